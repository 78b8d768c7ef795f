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
from opd_align.training.model_state import check_teacher_is_loaded
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

NEUTRAL = (
    "__", "log", "_log_", "_record_", "_warn_", "_raise_", "_reject_", "_send_", "_save_", "_load_", "_dispatch_",
    "config_cls", "create_model_card", "evaluate", "prediction_step", "get_train_dataloader", "get_eval_dataloader",
    "_get_train_sampler", "_get_eval_sampler", "_set_signature_columns", "_prepare_dataset",
)  # fmt: skip
"""How the names of those methods of TRL's trainers start that have no influence on the loss of a completion."""

OF_TRANSFORMERS = ("compute_loss", "training_step", "_prepare_inputs", "get_batch_samples")
"""Methods of transformers' trainer that determine the loss, for trainers of TRL that do not have their own."""


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
        with_any_objective: The part of `unevaluated` that is not evaluated with any other objective either.
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
    with_any_objective: tuple[str, ...] = ()

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
    completions = tuple(_other_completions(trainer, kind))
    return TrainerAdapter(
        trainer,
        kind,
        sampling,
        _objective(trainer, kind, sampling.temperature),
        teacher=_teacher(trainer),
        server=_server(trainer),
        template=template_options(trainer),
        context="Self-1C" if kind in ("SDPOTrainer", "SDFTTrainer") else None,
        distillation=_distillation(trainer),
        unevaluated=(*_overridden_loss(trainer, base), *completions, *_other_terms(trainer, kind)),
        with_any_objective=completions,
    )


def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _loss_methods(base: type) -> set[str]:
    """The methods of TRL's class that its loss may depend on: all that are not known to have no influence on it."""
    owners = [kind for kind in base.__mro__ if _library(kind) == "trl"]
    own = {name for kind in owners for name, value in vars(kind).items() if callable(value) or _is_static(value)}
    return {*(name for name in own if not name.startswith(NEUTRAL)), *OF_TRANSFORMERS}


def _is_static(value: Any) -> bool:
    return isinstance(value, staticmethod | classmethod)


def _overridden_loss(trainer: Any, base: type) -> list[str]:
    """The methods behind the loss that are not TRL's: overridden in a subclass, on the instance, or replaced.

    Those of our own gated trainers are excepted: what they change is the gate, which is evaluated.
    """
    mro = type(trainer).__mro__
    below = [kind for kind in mro[: mro.index(base)] if _library(kind) != "opd_align"]
    methods = _loss_methods(base)
    overridden = {name: kind.__name__ for kind in reversed(below) for name in methods if name in vars(kind)}
    for name in methods:
        # Not `__module__`: functools.wraps copies it from the function that is wrapped. torch: `@torch.no_grad()`.
        where = getattr(getattr(base, name), "__globals__", {}).get("__name__", "")
        if name in vars(trainer) or where.partition(".")[0] not in ("trl", "transformers", "torch"):
            overridden[name] = type(trainer).__name__
    return [f"{name}() of {kind} (evaluated as {base.__name__}'s)" for name, kind in sorted(overridden.items())]


REWARDED = ("GRPOTrainer", "GMPOTrainer", "RLOOTrainer")
SELF_DISTILLED = ("SDPOTrainer", "SDFTTrainer")


def _other_terms(trainer: Any, kind: str) -> list[str]:
    """What TRL's own losses contain beside the objective, and what they leave out, by the trainer's settings.

    Not listed: what scales the update of a question but does not turn it (such as `scale_rewards`), and the correction
    of vLLM's probabilities, whose aim is the update that is evaluated.
    """
    options = vars(trainer.args)
    terms = list(_other_tokens(trainer, kind))
    if kind in REWARDED and options["beta"]:
        terms.append(f"the KL penalty (beta={options['beta']:g})")
    if kind == "GRPOTrainer" and (options["entropy_coef"] or options["use_adaptive_entropy"]):
        terms.append(f"the entropy bonus (entropy_coef={options['entropy_coef']:g})")
    if kind == "RLOOTrainer" and options["reward_clip_range"]:
        terms.append(f"the clipping of rewards (reward_clip_range={options['reward_clip_range']})")
    if kind in ("GRPOTrainer", "RLOOTrainer") and trainer.aux_loss_enabled:
        terms.append(f"the load-balancing loss of experts (router_aux_loss_coef={trainer.router_aux_loss_coef:g})")
    if kind == "SDPOTrainer" and options["distillation_weight"] != 1:
        terms.append(f"the policy loss (distillation_weight={options['distillation_weight']:g})")
    if kind == "SDPOTrainer" and options["include_environment_feedback"]:
        terms.append("feedback in the teacher's prompt (include_environment_feedback=True)")
    if kind == "SDFTTrainer":
        terms.append("the privileged_context of the data set in the teacher's prompt (evaluated: Self-1C)")
    if options.get("neftune_noise_alpha"):
        terms.append(f"noise on the embeddings (neftune_noise_alpha={options['neftune_noise_alpha']:g})")
    if hasattr(trainer, "distillation_beta") and trainer._gate_runtime.verifier is not None:
        terms.append("that the advantages of incorrect completions are zero")  # GatedGRPOTrainer
    return terms


def other_rewards(adapter: TrainerAdapter, verifier: Any) -> tuple[str, ...]:
    """What a trainer rewards apart from the verifier of the evaluations, in words; empty if it is the verifier alone.

    Args:
        adapter: The adapter of the trainer.
        verifier: The reward function that the evaluations call.
    """
    if adapter.kind not in REWARDED:
        return ()
    functions, weights = adapter.trainer.reward_funcs, adapter.trainer.reward_weights.tolist()
    used = [function for function, weight in zip(functions, weights, strict=True) if weight]
    if len(used) > 1:
        return (f"the sum of {len(used)} reward functions (evaluated: the verifier)",)
    # A gated trainer calls the verifier through a function of its own.
    if any(getattr(function, "verifier", function) != verifier for function in used):
        name = getattr(used[0], "__name__", type(used[0]).__name__)
        return (f"the reward {name} (evaluated: the verifier)",)
    return ()


def _other_completions(trainer: Any, kind: str) -> Iterator[str]:
    """Completions that are not, or not only, those that the student samples at this step."""
    options, lmbda = vars(trainer.args), getattr(trainer, "lmbda", 1.0)
    if lmbda < 1:
        source = "the teacher" if kind == "GKDTrainer" and trainer.seq_kd else "the data set"
        yield f"completions of {source} (lmbda={lmbda:g})"
    if kind == "SDFTTrainer" and options["generate_from_teacher"]:
        yield "that completions are sampled with the teacher's prompt (generate_from_teacher=True)"
    if getattr(trainer, "rollout_func", None) is not None:
        yield "the completions of rollout_func"
    if options.get("mask_truncated_completions"):
        yield "that truncated completions are left out (mask_truncated_completions=True)"
    if kind == "GRPOTrainer" and options["off_policy_mask_threshold"] is not None:
        threshold = options["off_policy_mask_threshold"]
        yield f"that off-policy completions are left out (off_policy_mask_threshold={threshold:g})"
    clipped = kind in REWARDED or (kind in SELF_DISTILLED and options["distillation_is_clip"] is not None)
    if clipped:
        iterations, steps = options["num_iterations"], options["steps_per_generation"]
        if iterations > 1 or steps > options["gradient_accumulation_steps"]:
            names = f"num_iterations={iterations}, steps_per_generation={steps}"
            yield f"clipped importance weights of completions that are used for several steps ({names})"


def _other_tokens(trainer: Any, kind: str) -> Iterator[str]:
    """Losses of some of the tokens, or of some of the vocabulary, or with weights."""
    options = vars(trainer.args)
    if options.get("top_entropy_quantile", 1.0) < 1:
        yield f"the selection of tokens by entropy (top_entropy_quantile={options['top_entropy_quantile']:g})"
    if options.get("num_loss_tokens_to_skip"):
        yield f"that the first tokens are left out (num_loss_tokens_to_skip={options['num_loss_tokens_to_skip']})"
    if kind == "IWOPDTrainer" and options["distillation_objective"] == "iw_opd":
        yield f"IW-OPD's weights of tokens (distillation_objective='iw_opd', iw_opd_gamma={options['iw_opd_gamma']:g})"
    elif kind in ("IWOPDTrainer", "ServerDistillationTrainer") and options["loss_top_k"]:
        yield f"that the divergence is of a few tokens (loss_top_k={options['loss_top_k']}; evaluated: all)"
    mode = options["distillation_mode"] if kind in SELF_DISTILLED else "full_logits"
    if mode == "sampled_token":
        yield "that the loss is of the sampled token (distillation_mode='sampled_token'; evaluated: its expectation)"
    elif mode == "topk_logits":
        yield f"that the divergence is of the student's top tokens (distillation_topk={options['distillation_topk']})"


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
    check_teacher_is_loaded(trainer)


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
        "vllm_structured_outputs_regex": getattr(args, "vllm_structured_outputs_regex", None) or None,
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
    if kind == "IWOPDTrainer" and args.distillation_objective == "iw_opd":
        return SingleSample()  # of the sampled token only, whatever beta and loss_top_k say
    jsd = GeneralisedJSD(trainer.beta)
    # GKD samples at its temperature but computes the loss at 1; the others use it for both.
    return AtTemperature(jsd, temperature) if kind == "GKDTrainer" and temperature != 1 else jsd


def _distillation(trainer: Any) -> Objective | None:
    """The distillation loss of `GatedGRPOTrainer`."""
    beta = getattr(trainer, "distillation_beta", None)
    return None if beta is None else ReverseKL() if beta == 1 else GeneralisedJSD(beta)


def _teacher(trainer: Any) -> Any:
    if getattr(trainer, "_teacher_mix", None) is not None:
        return None  # its teachers are evaluated by their names
    teacher = getattr(trainer, "teacher_model", None)
    # A self-distillation trainer without a copy of the student sets the student itself as its teacher.
    return None if teacher is trainer.model else teacher


def _server(trainer: Any) -> str | None:
    client = getattr(trainer, "teacher_client", None)
    return None if client is None else str(client.base_url)


def template_options(trainer: Any) -> dict[str, Any]:
    """The arguments of the chat template with which a trainer renders prompts."""
    options = dict(getattr(trainer, "chat_template_kwargs", None) or {})
    if getattr(trainer, "chat_template", None) is not None:
        options["chat_template"] = trainer.chat_template
    return options
