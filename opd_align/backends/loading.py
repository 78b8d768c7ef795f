"""Models by name: a folder, a GGUF file, a name on the Hub, or one that ships with the package.

`load_model` returns a causal language model in eval mode with its tokenizer, ready for `backends.hf`. Files and names
are checked before anything is loaded. What identifies a loaded model (a hash of its weights and active adapters) is
computed here too. torch and transformers are imported on first use.
"""

from __future__ import annotations

import os
import re
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opd_align.backends.load_options import LoadOptions
from opd_align.hub import cached_if_unreachable
from opd_align.types import OpdAlignError, shortened

EMBEDDED = "embedded:"
DTYPES = ("auto", "float32", "bfloat16", "float16")
# torch also knows the device "meta", which has shapes but no values.
_DEVICE = re.compile(r"auto|cpu|(?:cuda|mps|xpu|npu|hpu|mlu|musa)(?::\d{1,3})?")
_HUB_NAME = re.compile(r"[\w.-]{1,96}(?:/[\w.-]{1,96})?", re.ASCII)


class HubUnreachable(OpdAlignError):
    """The Hub does not answer, and there is no cached copy."""


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer.

    Args:
        name: The model's name in tables.
        model: A causal language model in eval mode.
        tokenizer: Its tokenizer.
    """

    name: str
    model: Any
    tokenizer: Any

    @property
    def configs(self) -> tuple[Any, ...]:
        """The configs that name the model's end-of-sequence tokens."""
        return self.model.config, self.model.generation_config


def load_model(
    reference: str,
    *,
    adapter: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    name: str | None = None,
    tokenizer: str | None = None,
    load: LoadOptions | None = None,
) -> LoadedModel:
    """Loads a model.

    Args:
        reference: A folder made by `save_pretrained`, a .gguf file, a name on the Hub, or `embedded:student` /
            `embedded:teacher` / `embedded:careless`.
        adapter: Folder or Hub name of a PEFT adapter to load on top.
        dtype: "auto" (as saved; float32 on a CPU), "float32", "bfloat16" or "float16".
        device: A torch device; "auto" is a GPU if there is one.
        name: The model's name in tables; None takes the last part of `reference`.
        tokenizer: Where the tokenizer is loaded from; None takes `reference`.
        load: Further settings: revision, attention, quantisation, several GPUs. `None`: the defaults.
    """
    check_model(reference, dtype=dtype, device=device)
    load = load or LoadOptions()
    source, options = resolve_reference(reference)
    loaded_tokenizer = load_tokenizer(reference if tokenizer is None else tokenizer, **load.source)
    torch, transformers = _libraries()
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    _check_device(torch, reference, device)
    precision = "float32" if dtype == "auto" and device == "cpu" else dtype
    options["dtype"] = precision if precision == "auto" else getattr(torch, precision)
    options |= load.model_arguments(transformers, torch)
    if load.device_map is not None:
        options["device_map"] = load.device_map
    elif device != "cpu" and "gguf_file" not in options:
        # From the file to the device: a copy in host memory would have to fit there, and takes as long again.
        options["device_map"] = {"": device}
    if load.rope_scaling is not None:
        read = {name: value for name, value in options.items() if name == "gguf_file"} | load.source
        options["config"] = _from_pretrained(transformers.AutoConfig, reference, source, read)
        load.extend_context(options["config"])
    model = _from_pretrained(transformers.AutoModelForCausalLM, reference, source, options)
    if "gguf_file" in options:
        model = _unquantised(model)
    if adapter is not None:
        model = _with_adapter(model, adapter)
    if "device_map" not in options:
        model = model.to(device)
    return LoadedModel(name or short_name(reference), model.eval(), loaded_tokenizer)


def _check_device(torch: Any, reference: str, device: str) -> None:
    """Rejects a device that does not exist here, before weights are read."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # torch reports a device it was not built for with an assertion
        raise OpdAlignError(f"cannot move {reference!r} to the device {device!r}: {_first_line(error)}") from error


def check_model(reference: str, *, dtype: str = "auto", device: str = "auto") -> None:
    """Rejects a reference that cannot exist, without loading anything; a name on the Hub is not looked up."""
    if not _DEVICE.fullmatch(device):
        raise OpdAlignError(f"device must be auto, cpu, cuda, cuda:1 or another torch device, not {device!r}")
    if dtype not in DTYPES:
        raise OpdAlignError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    resolve_reference(reference)


def short_name(reference: str) -> str:
    """A model's display name: the last part of its reference, with dots (Qwen3-0.6B)."""
    return Path(reference.removeprefix(EMBEDDED)).name.removesuffix(".gguf")


def load_tokenizer(reference: str, **kwargs: Any) -> Any:
    """Loads only the tokenizer, which is enough to build prompts; `kwargs` (such as a revision) go to transformers."""
    source, options = resolve_reference(reference)
    return _from_pretrained(_libraries()[1].AutoTokenizer, reference, source, options | kwargs)


def load_config(reference: str, **kwargs: Any) -> Any:
    """Loads only the config; raises `HubUnreachable` if it is neither on this machine nor can be downloaded."""
    source, options = resolve_reference(reference)
    return _from_pretrained(_libraries()[1].AutoConfig, reference, source, options | kwargs)


def weight_bytes(reference: str, *, dtype: str = "auto", device: str = "auto") -> int:
    """Memory of a model's weights in bytes, from its config alone: no weights are loaded."""
    torch, transformers = _libraries()
    config = load_config(reference)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    on_gpu = torch.cuda.is_available() if device == "auto" else device != "cpu"
    saved = getattr(config, "dtype", None) or torch.float32
    loaded = getattr(torch, dtype) if dtype != "auto" else saved if on_gpu else torch.float32
    return sum(weight.numel() for weight in model.parameters()) * int(loaded.itemsize)


def generation_configs(reference: str, **kwargs: Any) -> tuple[Any, ...]:
    """The generation config without the model, if there is one: it names the end-of-sequence tokens."""
    source, options = resolve_reference(reference)
    options |= kwargs
    with nullcontext() if Path(source).is_dir() else cached_if_unreachable():
        try:
            return (_libraries()[1].GenerationConfig.from_pretrained(source, **options),)
        except (OSError, ValueError):
            return ()


def _from_pretrained(auto_class: Any, reference: str, source: str, options: dict[str, Any]) -> Any:
    # Without a connection, a cached copy is found at once instead of after half a minute of retries.
    with nullcontext(True) if Path(source).is_dir() else cached_if_unreachable() as reachable:
        try:
            # Unless it is switched on: without a value, transformers asks at the terminal whether to run such code.
            return auto_class.from_pretrained(source, **{"trust_remote_code": False, **options})
        except Exception as error:  # damaged or missing files, no connection: each raised by another library
            reason, kind = _first_line(error), OpdAlignError
            if not reachable and re.search("connect|cache|offline", reason):
                reason, kind = "no connection to the Hub, and no cached copy", HubUnreachable
            raise kind(
                f"cannot load {reference!r}: {reason}. Give a folder made by save_pretrained, a .gguf file, "
                "the name of a model on the Hub (which needs a connection or a cached copy), "
                f"or {EMBEDDED}student / {EMBEDDED}teacher"
            ) from error


def resolve_reference(reference: str) -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` takes for a reference: a folder or Hub name, and keyword arguments."""
    if reference.startswith(EMBEDDED):
        from opd_align import embedded

        folders = {
            "student": embedded.student_path, "teacher": embedded.teacher_path, "careless": embedded.careless_path,
        }  # fmt: skip
        name = reference.removeprefix(EMBEDDED)
        if name not in folders:
            raise OpdAlignError(
                f"there is no {reference!r}; there are {', '.join(EMBEDDED + each for each in folders)}"
            )
        return str(folders[name]()), {}
    # Unlike the methods of `Path`, these functions do not fail for a name that no file can have.
    path = Path(os.path.expanduser(reference))
    if path.suffix == ".gguf":
        if not os.path.isfile(path):
            raise OpdAlignError(f"{shortened(reference, 500)} does not exist")
        return str(path.parent), {"gguf_file": path.name}
    if os.path.isdir(path):
        if not (path / "config.json").is_file():
            raise OpdAlignError(f"{reference!r} is a folder without a config.json; save a model with save_pretrained")
        return str(path), {}
    if reference.startswith((".", "/", "~")) or reference.count("/") > 1:
        raise OpdAlignError(f"the folder {shortened(reference, 500)} does not exist")
    if not _HUB_NAME.fullmatch(reference):
        raise OpdAlignError(f"{shortened(reference, 500)} is neither a folder nor a name on the Hub")
    return reference, {}


def context_length(model: Any) -> int | None:
    """How many tokens fit into a model's context, if its config says so."""
    limit = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    return None if limit is None else int(limit)


def update_with_weights(digest: Any, model: Any) -> Any:
    """Adds all weights, the names of the active adapters and an extended context to a digest, and returns it."""
    digest.update(repr(_active_adapters(model)).encode())
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        digest.update(repr(sorted(rope.items())).encode())
    for name, weight in model.named_parameters():
        digest.update(f"{name}\0{weight.dtype}\0{tuple(weight.shape)}\0{_checksum(weight)}\0".encode())
    return digest


def _active_adapters(model: Any) -> tuple[str, ...]:
    """Names of the active PEFT adapters; the weights alone do not show which are active."""
    if not hasattr(model, "peft_config"):
        return ()
    if any(getattr(module, "disable_adapters", False) is True for module in model.modules()):
        return ("disabled",)
    return tuple(sorted(map(str, model.active_adapters)))


def _checksum(weight: Any) -> int:
    """Sum of a tensor's bits as integers: exact, so equal for any number of threads, and as fast as memory."""
    torch = _libraries()[0]
    weight = weight.detach().contiguous()
    if weight.data_ptr() % 8:  # a slice of a larger buffer may start at any byte
        weight = weight.clone()
    flat = weight.view(-1).view(torch.uint8)
    whole = len(flat) // 8 * 8
    return int(flat[:whole].view(torch.int64).sum()) + int(flat[whole:].sum())


def _unquantised(model: Any) -> Any:
    """transformers marks a model from a GGUF file as quantised though its weights are not; returns an ordinary one."""
    model.config.quantization_config = None
    ordinary = type(model)(model.config)
    ordinary.load_state_dict(model.state_dict())
    ordinary.generation_config = model.generation_config
    return ordinary.to(model.dtype)


def _with_adapter(model: Any, adapter: str) -> Any:
    try:
        from peft import PeftModel
    except ImportError as error:
        raise OpdAlignError("an adapter needs PEFT: pip install 'opd-align[train]'") from error
    with nullcontext() if Path(adapter).is_dir() else cached_if_unreachable():
        try:
            return PeftModel.from_pretrained(model, adapter)
        except Exception as error:  # as in _from_pretrained
            raise OpdAlignError(f"cannot load the adapter {adapter!r}: {_first_line(error)}") from error


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise OpdAlignError(f"language models need {error.name}: pip install 'opd-align[hf]'") from error
    return torch, transformers


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
