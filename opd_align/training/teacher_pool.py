"""The models of several teachers: loaded when they are needed, and where memory asks for it one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from opd_align.backends.loading import DTYPES, load_config, load_model
from opd_align.training import trl_compat
from opd_align.training.mix_contexts import as_context
from opd_align.training.model_state import check_teacher_is_loaded, is_fsdp2, is_zero3
from opd_align.types import OpdAlignError

Source = Any | str | Callable[[], Any]
"""A model, its folder or name on the Hub, a function that loads it, or a context or its name."""


class TeacherPool(Mapping[str, Any]):
    """Teachers by name; a lookup gives the model as the trainer prepares teachers, on its device.

    The first teacher is the one that TRL's trainer is constructed with. With `one_at_a_time` a lookup moves the others
    away: those that were given as models, and the first one, to host memory; the others are dropped and loaded again.
    Contexts have no model of their own: they are in `names` and `contexts`, and are not looked up.

    Args:
        sources: A model, a folder or name on the Hub, a function that loads it, or a context, by name.
        one_at_a_time: Whether only one of them may be on the device.
    """

    def __init__(self, sources: Any, *, one_at_a_time: bool = False) -> None:
        if not isinstance(sources, Mapping) or not sources:
            raise OpdAlignError("a TeacherMix needs teachers by name: TeacherMix({'maths': model, 'code': 'org/name'})")
        for name, source in sources.items():
            if not isinstance(name, str) or not name:
                raise OpdAlignError(f"names of teachers must be text, not {name!r}")
            if as_context(name, source) is None and not (
                isinstance(source, str) or hasattr(source, "get_output_embeddings") or callable(source)
            ):
                raise OpdAlignError(
                    f"teacher {name!r} is a {type(source).__name__}; expected a model, a folder or name on the Hub, a "
                    "function that loads a model, or a context such as 'Self-1C'"
                )
        of = {name: as_context(name, source) for name, source in sources.items()}
        self.names = tuple(sources)
        self.contexts = {name: context for name, context in of.items() if context is not None}
        self.sources = {name: source for name, source in sources.items() if name not in self.contexts}
        self.one_at_a_time = one_at_a_time
        if self.names[0] in self.contexts:
            raise OpdAlignError(
                f"the first teacher of a TeacherMix must be a model, which the trainer is constructed with, and "
                f"{self.names[0]!r} is a context; contexts alone are trained with by SDPO"
            )
        self._models: dict[str, Any] = {}
        self._trainer: Any = None

    def first_model(self) -> Any:
        """The model that TRL's trainer is constructed with."""
        return self._load(self.names[0])

    def attach(self, trainer: Any) -> None:
        """Takes the first teacher as the trainer has prepared it, and prepares the others."""
        self._trainer = trainer
        self._models = {self.names[0]: trainer.teacher_model}
        accelerator = trainer.accelerator
        check_teacher_is_loaded(trainer)
        if trainer.is_fsdp_enabled and not self.one_at_a_time:
            trainer.teacher_model.to(accelerator.device)  # accelerate leaves it on the CPU
        if len(self.names) == 1:
            return
        if trainer.is_fsdp_enabled and accelerator.state.fsdp_plugin.fsdp_version == 1:
            raise OpdAlignError("several teachers are not supported under FSDP1; use FSDP2, DDP, ZeRO-2 or ZeRO-3")
        if self.one_at_a_time and trainer.is_deepspeed_enabled:
            raise OpdAlignError("one_at_a_time=True is not supported under DeepSpeed, which keeps teachers itself")
        if not self.one_at_a_time:
            for name in [*self.sources][1:]:
                self._models[name] = self._prepare(name)

    def __getitem__(self, name: str) -> Any:
        if name not in self.sources:
            raise KeyError(name)
        if self.one_at_a_time and len(self.sources) > 1:
            self._make_room(name)
        if name not in self._models:
            self._models[name] = self._prepare(name)
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def sharded(self) -> bool:
        """Whether processes share the weights of a model: all of them make its forward pass, or none."""
        trainer = self._trainer
        return is_zero3(trainer.accelerator) or trainer.is_fsdp_enabled or is_fsdp2(trainer.model)

    @property
    def loaded(self) -> list[Any]:
        """The models in memory."""
        return list(self._models.values())

    def _load(self, name: str) -> Any:
        source = self.sources[name]
        if isinstance(source, str):
            # In the precision that it was saved in: in float32 it would take twice the memory on the device.
            saved = str(getattr(load_config(source), "dtype", None)).removeprefix("torch.")
            return load_model(source, device="cpu", dtype=saved if saved in DTYPES else "auto").model
        return source if hasattr(source, "get_output_embeddings") else source()

    def _prepare(self, name: str) -> Any:
        trainer, model = self._trainer, self._load(name)
        if not hasattr(model, "get_output_embeddings"):
            raise OpdAlignError(f"the function of teacher {name!r} returned a {type(model).__name__}, not a model")
        sizes = [each.config.get_text_config().vocab_size for each in (trainer.model, model)]
        if sizes[0] != sizes[1]:
            raise OpdAlignError(
                f"teacher {name!r} has a vocabulary of {sizes[1]} tokens and the student one of {sizes[0]}; all "
                "teachers must share the student's vocabulary"
            )
        if self.one_at_a_time:  # accelerate would keep a reference to it
            return model.to(trainer.accelerator.device).eval()
        if trainer.is_deepspeed_enabled:
            return trl_compat.prepare_deepspeed(model, trainer.accelerator)
        # Under FSDP, accelerate would leave it on the CPU.
        return trainer.accelerator.prepare_model(model, device_placement=True, evaluation_mode=True)

    def _make_room(self, name: str) -> None:
        device, host = self._trainer.accelerator.device, torch.device("cpu")
        for other in [each for each in self._models if each != name]:
            if other == self.names[0] or hasattr(self.sources[other], "get_output_embeddings"):
                self._models[other].to(host)
            else:
                del self._models[other]
        if name in self._models:
            self._models[name].to(device)
        elif device.type == "cuda":
            torch.cuda.empty_cache()
