"""How a model is loaded: one record for students, teachers and writers of demonstrations, in every loader.

Where weights go, which of their versions, which attention kernel, and how an engine in this process divides a GPU.
Values are checked before anything is loaded. What changes numbers is seen elsewhere: a run is identified by a hash of
the weights, whatever revision or quantisation they came from.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, get_args

from opd_align.types import OpdAlignError

DeviceMap = Literal["auto", "balanced", "balanced_low_0", "sequential"]
Quantization = Literal["4bit", "8bit"]
_WORD = re.compile(r"[\w.@:/-]{1,200}", re.ASCII)


@dataclass(frozen=True)
class LoadOptions:
    """Settings of loading a model.

    Args:
        device_map: How weights are divided over several GPUs, as in transformers. `None`: all on one device.
        attn_implementation: Attention of transformers, such as `sdpa` or `flash_attention_2`. `None`: its default.
        revision: Branch, tag or commit on the Hub. `None`: the main branch.
        trust_remote_code: Whether Python code in the model's repository may run.
        quantization: Quantises the weights with bitsandbytes when they are loaded. `None`: as stored, which includes
            checkpoints that are quantised already (FP8, AWQ, GPTQ).
        rope_scaling: Extends the context, as model cards describe it, such as `{rope_type: yarn, factor: 4.0,
            original_max_position_embeddings: 32768}`. The context length becomes their product. `None`: as stored.
        tensor_parallel_size: With a vLLM engine: number of GPUs that it divides each layer over.
        gpu_memory_utilization: With a vLLM engine: its share of a GPU's memory, in (0, 1].
        max_model_len: With a vLLM engine: longest prompt and completion, in tokens.
    """

    device_map: DeviceMap | None = None
    attn_implementation: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    quantization: Quantization | None = None
    rope_scaling: Mapping[str, Any] | None = None
    tensor_parallel_size: int | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        for name, kind in (("device_map", DeviceMap), ("quantization", Quantization)):
            if getattr(self, name) not in (None, *get_args(kind)):
                raise OpdAlignError(f"{name} must be one of {', '.join(get_args(kind))}, not {getattr(self, name)!r}")
        for name in ("attn_implementation", "revision"):
            value = getattr(self, name)
            if value is not None and not _WORD.fullmatch(value):
                raise OpdAlignError(f"{name} is {value!r}, which is not a name")
        for name in ("tensor_parallel_size", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OpdAlignError(f"{name} must be at least 1, not {value}")
        share = self.gpu_memory_utilization
        if share is not None and not 0 < share <= 1:
            raise OpdAlignError(f"gpu_memory_utilization must lie in (0, 1], not {share}")

        if self.rope_scaling is not None:
            self._check_rope_scaling(self.rope_scaling)

    @staticmethod
    def _check_rope_scaling(scaling: Mapping[str, Any]) -> None:
        kind, factor, original = (scaling.get(name) for name in ("rope_type", *_ROPE_LENGTH))
        known = [each for each in (factor, original) if isinstance(each, int | float) and not isinstance(each, bool)]
        numbers = [each for each in known if 1 <= each < math.inf]
        if kind not in _ROPE_TYPES or len(numbers) < 2 or not isinstance(original, int):
            raise OpdAlignError(
                f"rope_scaling needs rope_type ({', '.join(_ROPE_TYPES)}), factor (at least 1) and "
                "original_max_position_embeddings, such as {rope_type: yarn, factor: 4.0, "
                f"original_max_position_embeddings: 32768}}; got {dict(scaling)}"
            )

    def check(self, model: str, *, backend: str, device: str, options: Mapping[str, Any]) -> None:
        """Rejects what has no effect, or contradicts itself, for a model with this backend and device."""
        engine = [name for name in _ENGINE_KEYS if getattr(self, name) is not None]
        if engine and backend != "vllm":
            raise OpdAlignError(f"{engine[0]} is a setting of a vLLM engine in this process, not of backend {backend}")
        twice = [name for name in self.engine_arguments if name in options]
        if twice:
            raise OpdAlignError(f"{twice[0]} is set twice, also in options")
        if self.device_map is not None and device != "auto":
            raise OpdAlignError(f"device ({device}) and device_map ({self.device_map}) both place the weights; set one")
        local = model.startswith("embedded:") or model.endswith(".gguf") or os.path.isdir(os.path.expanduser(model))
        if self.revision is not None and local:
            raise OpdAlignError(f"revision {self.revision!r} has no effect on {model!r}, which is not on the Hub")
        if self.quantization is not None:
            if model.endswith(".gguf") or model.startswith("embedded:"):
                raise OpdAlignError(f"quantization {self.quantization} does not apply to {model!r}")
            if backend == "vllm":
                raise OpdAlignError(
                    f"quantization {self.quantization} applies to the scorer, and vLLM would sample other weights; "
                    "use a checkpoint that is quantised already, or backend hf"
                )
            if device == "cpu":
                raise OpdAlignError(f"quantization {self.quantization} needs a GPU, but device is cpu")

    @property
    def source(self) -> dict[str, Any]:
        """Arguments of every `from_pretrained`, also those of tokenizers and configs."""
        arguments: dict[str, Any] = {} if self.revision is None else {"revision": self.revision}
        return arguments | ({"trust_remote_code": True} if self.trust_remote_code else {})

    def model_arguments(self, transformers: Any, torch: Any) -> dict[str, Any]:
        """Arguments of the `from_pretrained` of a model, without those of its device."""
        arguments = dict(self.source)
        if self.attn_implementation is not None:
            arguments["attn_implementation"] = self.attn_implementation
        if self.quantization is not None:
            if find_spec("bitsandbytes") is None:
                raise OpdAlignError(f"quantization {self.quantization} needs bitsandbytes: pip install bitsandbytes")
            arguments["quantization_config"] = transformers.BitsAndBytesConfig(
                load_in_4bit=self.quantization == "4bit",
                load_in_8bit=self.quantization == "8bit",
                bnb_4bit_compute_dtype=torch.bfloat16,
            )
        return arguments

    def extend_context(self, config: Any) -> None:
        """Applies `rope_scaling` to a config of transformers."""
        if self.rope_scaling is not None:
            config.rope_parameters = {**config.rope_parameters, **self.rope_scaling}
            factor, original = (self.rope_scaling[name] for name in _ROPE_LENGTH)
            config.max_position_embeddings = int(factor * original)

    @property
    def engine_arguments(self) -> dict[str, Any]:
        """Arguments of a vLLM engine."""
        given = {name: getattr(self, name) for name in _ENGINE_KEYS}
        return self.source | {name: value for name, value in given.items() if value is not None}


_ROPE_TYPES = ("yarn", "linear", "dynamic", "llama3", "longrope")
_ROPE_LENGTH = ("factor", "original_max_position_embeddings")
_ENGINE_KEYS = ("tensor_parallel_size", "gpu_memory_utilization", "max_model_len")
