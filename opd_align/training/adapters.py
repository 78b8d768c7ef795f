"""Adapters for TRL's trainers: the student, the teacher, the objective and the sampling settings of a trainer.

Everything that depends on the kind of trainer is here. A trainer is recognized by its classes in TRL; what its own
class changes about the loss, and parts of the loss that are not evaluated, are listed in `unevaluated`. An unsupported
trainer is refused at once, with the reason. Nothing is computed, and the trainer is not changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from opd_align.core.objectives import GRPO, AtTemperature, DrGRPO, GeneralisedJSD, Objective, ReverseKL, SingleSample
from opd_align.settings import Sampling
from opd_align.training import trl_compat
from opd_align.types import OpdAlignError

PREFERENCE_DATA = "it learns from preferences in a data set: it has no teacher and does not sample completions"

UNSUPPORTED = {
    "AsyncDistillationTrainer": "generation and teacher scoring run in separate processes",
    "AsyncGRPOTrainer": "generation runs in separate processes",
    "OnlineDPOTrainer": (
        "it learns from which of two sampled completions a judge prefers, and there is no update for that to evaluate"
    ),
    "A2POTrainer": (
        "it regresses whole completions on estimated advantages, and there is no update for that to evaluate"
    ),
    "DPOTrainer": PREFERENCE_DATA,
    "KTOTrainer": (
        "it learns from completions in a data set that are labelled as desirable or not: it has no teacher and does "
        "not sample completions"
    ),
    "CPOTrainer": PREFERENCE_DATA,
    "ORPOTrainer": PREFERENCE_DATA,
    "TPOTrainer": PREFERENCE_DATA,
    "RewardTrainer": "it trains a reward model, which does not sample completions",
    "SFTTrainer": "it learns from completions in a data set: it has no teacher and does not sample completions",
}
"""Unsupported trainers of TRL and the reason. GKD and GOLD are subclasses of SFT: `SUPPORTED` is looked up first."""

SUPPORTED = (
    "GKDTrainer", "GOLDTrainer", "IWOPDTrainer", "ServerDistillationTrainer", "DistillationTrainer", "GRPOTrainer",
    "GMPOTrainer", "RLOOTrainer", "SDPOTrainer", "SDFTTrainer",
)  # fmt: skip
"""Supported trainers of TRL. Of several bases of a trainer, the one that is nearest in its class hierarchy counts."""

NOT_LENGTH_NORMALISED = ("dr_grpo", "dapo", "bnpo", "cispo", "vespo", "luspo")
"""GRPO's loss types that do not divide a rollout's advantage by its own length."""


@dataclass(frozen=True)
class TrainerAdapter:
    """What the callback needs to know about a trainer.

    Args:
        trainer: The trainer.
        kind: The name of the TRL class that it is, or is a subclass of.
        sampling: How its student samples completions.
        objective: What it optimizes.
        teacher: The trainer's own teacher model, wrapped as the trainer keeps it; `None` without one.
        server: URL of a teacher behind a vLLM server; `None` without one.
        template: Arguments of the chat template.
        context: The context that represents the teacher of a self-distillation trainer; `None` for other trainers.
        distillation: The distillation loss beside a reward objective; `None` without one.
        unevaluated: What is optimized but not part of `objective`, in words; empty if it is the whole loss.
    """

    trainer: Any
    kind: str
    sampling: Sampling
    objective: Objective
    teacher: Any = None
    server: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    context: str | None = None
    distillation: Objective | None = None
    unevaluated: tuple[str, ...] = ()

    @property
    def tokenizer(self) -> Any:
        return self.trainer.processing_class

    @property
    def student(self) -> Any:
        """The student as the trainer keeps it, wrapped for DDP, DeepSpeed or `torch.compile`."""
        return self.trainer.model_wrapped

    @contextmanager
    def loss_precision(self) -> Iterator[None]:
        """The precision of the trainer's loss within the block: mixed precision where the loss is computed in it.

        Accelerate applies autocast in the forward of the model. `DistillationTrainer` replaces that forward by its
        loss, which therefore has the precision of the weights, whatever `bf16` and `fp16` say.
        """
        with nullcontext() if self.kind == "DistillationTrainer" else self.trainer.accelerator.autocast():
            yield

    @property
    def vllm(self) -> Any:
        """TRL's wrapper around the vLLM that the trainer generates with; `None` without vLLM."""
        return trl_compat.vllm_generation(self.trainer)


def adapt_trainer(trainer: Any, sampling: Sampling | None = None) -> TrainerAdapter:
    """The adapter of a trainer; `sampling` overrides the trainer's own sampling settings."""
    bases = [base for base in type(trainer).__mro__ if _library(base) == "trl"]
    base = next((base for base in bases if base.__name__ in SUPPORTED), None)
    if base is None:
        known = [UNSUPPORTED[base.__name__] for base in bases if base.__name__ in UNSUPPORTED]
        other = "it is neither a distillation trainer nor one that optimizes rewards" if bases else "it is not from TRL"
        raise OpdAlignError(
            f"AlignmentCallback does not support {type(trainer).__name__}: {[*known, other][0]}. Supported trainers: "
            f"{', '.join(SUPPORTED)}. Checkpoints of any trainer can be analyzed offline: "
            "opd-align analyze --student CHECKPOINT"
        )
    kind = base.__name__
    trl_compat.check_trainer(type(trainer))
    trl_compat.check_attributes(trainer)
    _check_supported(trainer, kind)
    sampling = sampling or _sampling(trainer.args)
    return TrainerAdapter(
        trainer,
        kind,
        sampling,
        _objective(trainer, kind, sampling.temperature),
        teacher=_teacher(trainer),
        server=_server(trainer),
        template=_template(trainer),
        context="Self-1C" if kind in ("SDPOTrainer", "SDFTTrainer") else None,
        distillation=_distillation(trainer),
        unevaluated=(*_overridden_loss(trainer, base), *_other_terms(trainer, kind)),
    )


def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_loss(owner: Any, name: str) -> bool:
    return "loss" in name and name != "compute_loss_context_manager" and callable(getattr(owner, name, None))


def _overridden_loss(trainer: Any, base: type) -> list[str]:
    """The loss methods that are not those of TRL's class: overridden in a subclass, on the instance, or replaced."""
    mro = type(trainer).__mro__
    below = [kind for kind in mro[: mro.index(base)] if _library(kind) != "opd_align"]
    losses = [name for name in dir(base) if _is_loss(base, name)]
    overridden = {name: kind.__name__ for kind in reversed(below) for name in losses if name in vars(kind)}
    for name in losses:
        # Not `__module__`: functools.wraps copies it from the function that is wrapped.
        where = getattr(getattr(base, name), "__globals__", {}).get("__name__", "")
        if name in vars(trainer) or where.partition(".")[0] not in ("trl", "transformers"):
            overridden[name] = type(trainer).__name__
    return [f"{name}() of {kind} (evaluated as {base.__name__}'s)" for name, kind in sorted(overridden.items())]


def _other_terms(trainer: Any, kind: str) -> list[str]:
    """Terms of TRL's own losses beside the objective, and tokens that they leave out."""
    args, terms = trainer.args, []
    if kind in ("GRPOTrainer", "GMPOTrainer", "RLOOTrainer") and args.beta:
        terms.append(f"the KL penalty (beta={args.beta:g})")
    if getattr(args, "top_entropy_quantile", 1.0) < 1:
        terms.append(f"the selection of tokens by entropy (top_entropy_quantile={args.top_entropy_quantile:g})")
    weight = getattr(args, "distillation_weight", 1.0)
    if kind == "SDPOTrainer" and weight != 1:
        terms.append(f"the policy loss (distillation_weight={weight:g})")
    if hasattr(trainer, "distillation_beta") and trainer._gate_runtime.verifier is not None:
        terms.append("that the advantages of incorrect completions are zero")  # GatedGRPOTrainer
    return terms


def _check_supported(trainer: Any, kind: str) -> None:
    reason = None
    if not hasattr(trainer.processing_class, "get_vocab"):
        reason = "its processing_class is not a tokenizer; vision-language models are not supported"
    elif trainer.is_fsdp_enabled and trainer.accelerator.state.fsdp_plugin.fsdp_version == 1:
        reason = "FSDP1 is not supported; use FSDP2 (fsdp_version: 2 in accelerate's configuration), ZeRO-2 or ZeRO-3"
    elif getattr(trainer, "tools", None) or getattr(trainer, "environments", None):
        reason = "completions with tool calls contain tokens that the student did not sample"
    elif kind == "GOLDTrainer" and trainer.use_uld_loss:
        reason = "its teacher has a different tokenizer (use_uld_loss=True); student and teacher must share one"
    elif hasattr(trainer.model, "peft_config") and getattr(trainer.args, "teacher_model_kind", "live") != "live":
        reason = (
            f"its teacher is a second adapter of the student (teacher_model_kind={trainer.args.teacher_model_kind!r}) "
            "that is active only in its own forward passes; use teacher_model_kind='live', or train without an adapter"
        )
    elif kind == "IWOPDTrainer" and trainer.teacher_model is None and _server(trainer) is None:
        reason = "it has neither a teacher model nor a teacher server"
    if reason is not None:
        raise OpdAlignError(f"AlignmentCallback does not support this {type(trainer).__name__}: {reason}")


def _sampling(args: Any) -> Sampling:
    max_tokens = getattr(args, "max_completion_length", None) or getattr(args, "max_new_tokens", None)
    if max_tokens is None:
        raise OpdAlignError(
            "the trainer has no completion length; set max_completion_length, or sampling=Sampling(...)"
        )
    penalty = getattr(args, "repetition_penalty", None)
    unsupported = {
        "min_p": getattr(args, "min_p", None) or None,
        "repetition_penalty": None if penalty in (None, 1.0) else penalty,
        "generation_kwargs": getattr(args, "generation_kwargs", None) or None,
    }
    for name, value in unsupported.items():
        if value is not None:
            raise OpdAlignError(
                f"the trainer samples with {name}={value}, which the student's probabilities would not reflect; remove "
                "it, or set how to sample: sampling=opd_align.settings.Sampling(temperature=..., max_tokens=...)"
            )
    top_p, top_k = getattr(args, "top_p", None), getattr(args, "top_k", None)
    # vLLM writes "no limit" as -1, transformers as 0.
    return Sampling(
        args.temperature, 1.0 if top_p is None else top_p, max(top_k or 0, 0), int(max_tokens), int(args.seed)
    )


def _objective(trainer: Any, kind: str, temperature: float) -> Objective:
    args = trainer.args
    if kind == "GMPOTrainer":
        return GRPO()  # a geometric mean over the completion, whatever the loss type: 1 / length, as in GRPO
    if kind == "GRPOTrainer":
        return DrGRPO() if args.loss_type in NOT_LENGTH_NORMALISED else GRPO()
    if kind == "RLOOTrainer":
        return DrGRPO()
    if kind in ("SDPOTrainer", "SDFTTrainer"):
        alpha = getattr(args, "distillation_alpha", None)
        # Both divide the logits of student and teacher by the sampling temperature.
        return GeneralisedJSD(1.0 if alpha is None else alpha)
    if kind == "IWOPDTrainer" and trainer.beta == 1 and args.loss_top_k == 1:
        return SingleSample()  # its default: the sampled token only
    jsd = GeneralisedJSD(trainer.beta)
    # GKD samples at its temperature but computes the loss at 1; the others use it for both.
    return AtTemperature(jsd, temperature) if kind == "GKDTrainer" and temperature != 1 else jsd


def _distillation(trainer: Any) -> Objective | None:
    """The distillation loss of `GatedGRPOTrainer`."""
    beta = getattr(trainer, "distillation_beta", None)
    return None if beta is None else ReverseKL() if beta == 1 else GeneralisedJSD(beta)


def _teacher(trainer: Any) -> Any:
    teacher = getattr(trainer, "teacher_model", None)
    # A self-distillation trainer without a copy of the student sets the student itself as its teacher.
    return None if teacher is trainer.model else teacher


def _server(trainer: Any) -> str | None:
    client = getattr(trainer, "teacher_client", None)
    return None if client is None else str(client.base_url)


def _template(trainer: Any) -> dict[str, Any]:
    options = dict(getattr(trainer, "chat_template_kwargs", None) or {})
    if getattr(trainer, "chat_template", None) is not None:
        options["chat_template"] = trainer.chat_template
    return options
