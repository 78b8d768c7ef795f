"""What a TRL trainer offers: a student, a teacher, an objective, a way of sampling and of asking.

All knowledge of TRL's trainers is here, by the names of their classes and attributes; a trainer that cannot be served
is refused at once, with the reason. Nothing is computed, and nothing of the trainer is changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opd_align.core.objectives import GRPO, AtTemperature, DrGRPO, GeneralisedJSD, Objective, SingleSample
from opd_align.settings import Sampling
from opd_align.types import OpdAlignError

REFUSED = {
    "AsyncDistillationTrainer": "its student generates and its teacher scores in processes of their own",
    "AsyncGRPOTrainer": "its student generates in processes of its own",
    "SFTTrainer": "it has no teacher and samples nothing",
    "DPOTrainer": "it has no teacher and samples nothing",
}
"""Trainers that cannot be served, and why; GKD and GOLD build on SFT and are asked first."""

SERVED = (
    "GKDTrainer", "GOLDTrainer", "IWOPDTrainer", "ServerDistillationTrainer", "DistillationTrainer", "GRPOTrainer",
    "RLOOTrainer", "SDPOTrainer", "SDFTTrainer",
)  # fmt: skip
"""Trainers that are served, those that build on another one before it."""

WITHOUT_LENGTH = ("dr_grpo", "dapo", "bnpo", "cispo", "vespo")
"""GRPO's losses that do not divide a rollout's advantage by its own length."""


@dataclass(frozen=True)
class TrainerAdapter:
    """One trainer, as the callback sees it.

    `teacher` is the trainer's own teacher model, wrapped as the trainer keeps it, or `None`; `server` the address of a
    teacher behind a vLLM server. `template` are the arguments of its chat template; `context` names the context that
    stands for a self-distilling trainer's own.
    """

    trainer: Any
    kind: str
    sampling: Sampling
    objective: Objective
    teacher: Any = None
    server: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    context: str | None = None

    @property
    def tokenizer(self) -> Any:
        return self.trainer.processing_class

    @property
    def student(self) -> Any:
        """The student as the trainer keeps it, in whatever it is wrapped."""
        return self.trainer.model_wrapped

    @property
    def vllm(self) -> Any:
        """The vLLM that the trainer generates with; `None` if it does so by itself."""
        return getattr(self.trainer, "vllm_generation", None) if getattr(self.trainer, "use_vllm", False) else None


def adapt_trainer(trainer: Any, sampling: Sampling | None = None) -> TrainerAdapter:
    """What the trainer offers; `sampling` overrules how it draws its completions."""
    names = {kind.__name__ for kind in type(trainer).__mro__}
    kind = next((name for name in SERVED if name in names), None)
    if kind is None:
        why = next((reason for name, reason in REFUSED.items() if name in names), "it is none of TRL's that distil")
        raise OpdAlignError(
            f"the callback cannot serve {type(trainer).__name__}: {why}. It serves {', '.join(SERVED)}, and every "
            "model offline: opd-align analyze --student CHECKPOINT"
        )
    args = trainer.args
    _refuse(trainer, kind)
    told = sampling or _sampling(args)
    return TrainerAdapter(
        trainer,
        kind,
        told,
        _objective(trainer, kind, told.temperature),
        teacher=_teacher(trainer, kind),
        server=_server(trainer),
        template=_template(trainer),
        context="Self-1C" if kind in ("SDPOTrainer", "SDFTTrainer") else None,
    )


def _refuse(trainer: Any, kind: str) -> None:
    why = None
    if not hasattr(trainer.processing_class, "get_vocab"):
        why = "its processor is not a plain tokenizer; models that read images are not served"
    elif trainer.is_fsdp_enabled:
        why = "FSDP spreads the weights, and this version gathers them under DeepSpeed only; use ZeRO-2 or ZeRO-3"
    elif getattr(trainer, "tools", None) or getattr(trainer, "environments", None):
        why = "its student calls tools in mid-completion, and a generation tree knows the student's own tokens only"
    elif kind == "GOLDTrainer" and trainer.use_uld_loss:
        why = "its teacher speaks other tokens (use_uld_loss=True), and an update needs both on the same ones"
    elif hasattr(trainer.model, "peft_config") and getattr(trainer.args, "teacher_model_kind", "live") != "live":
        why = (
            f"its teacher is another adapter of the student (teacher_model_kind={trainer.args.teacher_model_kind!r}), "
            "switched on for its own forward passes only; use teacher_model_kind='live', or no adapter"
        )
    elif kind == "IWOPDTrainer" and trainer.teacher_model is None and _server(trainer) is None:
        why = "it has neither a teacher model nor a teacher server"
    if why is not None:
        raise OpdAlignError(f"the callback cannot serve this {type(trainer).__name__}: {why}")


def _sampling(args: Any) -> Sampling:
    room = getattr(args, "max_completion_length", None) or getattr(args, "max_new_tokens", None)
    if room is None:
        raise OpdAlignError(
            "the trainer sets no limit to its completions; give max_completion_length, or sampling=Sampling(...)"
        )
    unknown = {
        "min_p": getattr(args, "min_p", None) or None,
        "repetition_penalty": None
        if getattr(args, "repetition_penalty", None) in (None, 1.0)
        else args.repetition_penalty,
        "generation_kwargs": getattr(args, "generation_kwargs", None) or None,
    }
    odd = {name: value for name, value in unknown.items() if value is not None}
    if odd:
        name, value = next(iter(odd.items()))
        raise OpdAlignError(
            f"the trainer samples with {name}={value}, which the student's probabilities here would not show; leave it "
            "out, or say how to sample: sampling=opd_align.backends.scoring.Sampling(temperature=..., max_tokens=...)"
        )
    top_p, top_k = getattr(args, "top_p", None), getattr(args, "top_k", None)
    # vLLM writes "no limit" as -1, transformers as 0.
    return Sampling(args.temperature, 1.0 if top_p is None else top_p, max(top_k or 0, 0), int(room), int(args.seed))


def _objective(trainer: Any, kind: str, temperature: float) -> Objective:
    args = trainer.args
    if kind == "GRPOTrainer":
        return DrGRPO() if args.loss_type in WITHOUT_LENGTH else GRPO()
    if kind == "RLOOTrainer":
        return DrGRPO()
    if kind in ("SDPOTrainer", "SDFTTrainer"):
        alpha = getattr(args, "distillation_alpha", None)
        # Both divide the logits of student and teacher by the temperature they sample at.
        return GeneralisedJSD(1.0 if alpha is None else alpha)
    if kind == "IWOPDTrainer" and trainer.beta == 1 and args.loss_top_k == 1:
        return SingleSample()  # its default: the sampled token alone
    jsd = GeneralisedJSD(trainer.beta)
    # GKD samples at its temperature but takes the loss at 1; the others use it for both.
    return AtTemperature(jsd, temperature) if kind == "GKDTrainer" and temperature != 1 else jsd


def _teacher(trainer: Any, kind: str) -> Any:
    teacher = getattr(trainer, "teacher_model", None)
    # A self-distilling trainer names its own student as teacher when it has no copy of it.
    return None if teacher is trainer.model else teacher


def _server(trainer: Any) -> str | None:
    client = getattr(trainer, "teacher_client", None)
    return None if client is None else str(client.base_url)


def _template(trainer: Any) -> dict[str, Any]:
    options = dict(getattr(trainer, "chat_template_kwargs", None) or {})
    if getattr(trainer, "chat_template", None) is not None:
        options["chat_template"] = trainer.chat_template
    return options
