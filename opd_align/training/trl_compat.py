"""The names of TRL, transformers, accelerate and vLLM that opd-align relies on without a promise that they stay.

Private methods, instance attributes and functions that are not documented are listed in the tables below, with the
parameters that we pass, and are imported and accessed through this module only. The tables drive all checks: a name is
checked when it is imported from here, methods when a trainer is constructed (`check_trainer`), attributes once it has
been constructed (`check_attributes`). What is missing or has changed raises `OpdAlignError` instead of training
without a gate.

Importing this module imports none of these libraries: names are looked up on first use. The layers below `training`
cannot import it; the private names that they use are listed here too, so that they are checked with the others.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module, metadata
from types import SimpleNamespace
from typing import Any

from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

TRL_MIN, TRL_BELOW = "1.16", "1.17"
"""The tested versions of TRL: at least the first, below the second. An older one is refused, a newer one is used with a
warning if everything in the tables is as expected."""

TESTED = {"trl": f">={TRL_MIN},<{TRL_BELOW}", "transformers": ">=5.16,<6", "accelerate": ">=1.10,<2"}

TITLES = {"trl": "TRL"}


# -- the tables ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """How a function is called. Any other parameter must have a default; `self` is not counted.

    Args:
        positional: Leading parameters, in this order.
        keywords: Parameters that are passed by name.
    """

    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()


def call(*positional: str, keywords: tuple[str, ...] = ()) -> Call:
    return Call(positional, keywords)


@dataclass(frozen=True)
class Name:
    """An attribute of a module.

    Args:
        module: Import name of the module.
        attribute: Name of the attribute.
        call: How it is called; `None`: not checked.
        members: Members of it that are used, and how they are called.
    """

    module: str
    attribute: str
    call: Call | None = None
    members: dict[str, Call | None] = field(default_factory=dict)


SIDE = ("hidden", "weight", "bias")
SCALES = ("logit_scale", "final_logit_softcapping")

NAMES: dict[str, Name] = {
    # The trainers that gates are built on; their methods are in METHODS.
    "DistillationTrainer": Name("trl", "DistillationTrainer"),
    "GRPOTrainer": Name("trl", "GRPOTrainer"),
    "GKDTrainer": Name("trl.experimental.gkd", "GKDTrainer"),
    "DataCollatorForChatML": Name(
        "trl.experimental.utils", "DataCollatorForChatML", None, {"__call__": call("examples")}
    ),
    "is_conversational": Name("trl.data_utils", "is_conversational", call("example")),
    # The chunked loss: `KernelCall` reads the kernel's arguments by position.
    "ChunkedDivergenceFunction": Name(
        "trl.kernels.chunked_divergence", "ChunkedDivergenceFunction", None,
        {"forward": call("ctx", *(f"student_{name}" for name in SIDE), *(f"teacher_{name}" for name in SIDE), "beta",
                         "temperature", *(f"student_{name}" for name in SCALES),
                         *(f"teacher_{name}" for name in SCALES))},
    ),
    "ChunkedLogProbFunction": Name(
        "trl.kernels.chunked_logprob", "ChunkedLogProbFunction", None,
        {"forward": call("ctx", *SIDE, "targets", "temperature", "chunk_size", "final_logit_softcapping", "logit_scale",
                         "outputs")},
    ),
    "distillation_kernel": Name("trl.trainer.distillation_trainer", "ChunkedDivergenceFunction"),
    "maybe_gather_lm_head_ctx": Name("trl.trainer.utils", "maybe_gather_lm_head_ctx", call()),
    "split_pixel_values_by_grid": Name("trl.trainer.utils", "split_pixel_values_by_grid", call("batch")),
    "split_tensor_dict": Name("trl.trainer.utils", "split_tensor_dict", call("tensor_dict", "num_chunks")),
    "unsplit_pixel_values_by_grid": Name("trl.trainer.utils", "unsplit_pixel_values_by_grid", call("batch")),
    # Wrapped models.
    "ForwardRedirection": Name(
        "trl.models.utils", "_ForwardRedirection", None,
        {"__call__": call("wrapper_module", "original_module", "method")},
    ),
    "add_hooks": Name("trl.models.utils", "add_hooks", call("model")),
    "remove_hooks": Name("trl.models.utils", "remove_hooks", call("model")),
    "prepare_deepspeed": Name("trl.models", "prepare_deepspeed", call("model", "accelerator")),
    "unwrap_model_for_generation": Name(
        "trl.models.utils", "unwrap_model_for_generation",
        call("model", "accelerator", keywords=("generation_kwargs", "gradient_checkpointing_kwargs")),
    ),
    "is_peft_model": Name("accelerate.utils", "is_peft_model", call("model")),
    "Accelerator": Name(
        "accelerate", "Accelerator", None,
        {"unwrap_model": call("model", keywords=("keep_torch_compile",)), "autocast": call(),
         "prepare_model": call("model", keywords=("evaluation_mode",)), "reduce": call("tensor", "reduction"),
         "gather": call("tensor"), "pad_across_processes": call("tensor", keywords=("dim", "pad_index"))},
    ),
    "CallbackHandler": Name(
        "transformers.trainer_callback", "CallbackHandler", None, {"on_log": call("args", "state", "control", "logs")}
    ),
    "gather_object": Name("accelerate.utils", "gather_object", call("object")),
    # The trainer's own vLLM.
    "VLLMGeneration": Name("trl.generation.vllm_generation", "VLLMGeneration", None, {"sync_weights": call()}),
    # `accelerate launch`, started by `opd-align train`.
    "launch_main": Name("accelerate.commands.launch", "main", call()),
    # Used by `backends.hf_attention`, below this layer.
    "PretrainedConfig": Name("transformers", "PretrainedConfig", None, {"_attn_implementation": None}),
}  # fmt: skip
"""What other modules import from here."""

METHODS: dict[str, dict[str, Call]] = {
    "Trainer": {
        "compute_loss_context_manager": call(),
        "get_batch_samples": call("epoch_iterator", "num_batches", "device"),
        "training_step": call("model", "inputs", "num_items_in_batch"),
    },
    "GKDTrainer": {
        "training_step": call("model", "inputs", "num_items_in_batch"),
        "compute_loss": call("model", "inputs", "return_outputs", "num_items_in_batch"),
        "generalized_jsd_loss": call(
            "student_logits", "teacher_logits",
            keywords=("labels", "beta", "temperature", "reduction", "num_items_in_batch"),
        ),
        "generate_on_policy_outputs": call("model", "inputs", "generation_config"),
    },
    "DistillationTrainer": {
        "_generate_and_score_completions": call("inputs"),
        "_compute_loss": call("unwrapped_student", "inputs", "num_items_in_batch"),
        "_get_last_hidden_state": call("unwrapped_model", "input_ids", "attention_mask", "logits_to_keep"),
        "compute_loss": call("model", "inputs", "return_outputs", "num_items_in_batch"),
    },
    "GRPOTrainer": {
        "_generate_and_score_completions": call("inputs"),
        "_compute_loss": call("model", "inputs"),
    },
}  # fmt: skip
"""Methods of trainers, by class, that opd-align overrides or calls."""

ALWAYS = ("compute_loss_context_manager",)
"""Methods of every trainer that the callback calls."""

COMMON = (
    "accelerator", "args", "callback_handler", "control", "is_deepspeed_enabled", "is_fsdp_enabled", "model",
    "model_wrapped", "processing_class", "state",
)  # fmt: skip

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Trainer": COMMON,
    "GKDTrainer": (
        "beta", "lmbda", "seq_kd", "temperature", "teacher_model", "generation_config", "generation_kwargs", "_metrics",
        "data_collator",
    ),
    "GOLDTrainer": ("beta", "teacher_model", "use_uld_loss", "use_vllm"),
    "IWOPDTrainer": ("beta", "teacher_model", "teacher_client", "use_vllm"),
    "DistillationTrainer": (
        "beta", "teacher_model", "_metrics", "_tokenizer", "eos_token_ids", "_forward_redirection", "use_vllm",
    ),
    "GRPOTrainer": ("_metrics", "_tokenizer", "eos_token_ids", "reward_funcs", "tools", "environments", "use_vllm"),
    "SDPOTrainer": ("_metrics", "_tokenizer", "eos_token_ids", "reward_funcs", "teacher_model", "use_vllm"),
    "SDFTTrainer": ("teacher_model", "use_vllm"),
}  # fmt: skip
"""Attributes of a constructed trainer, by class."""

VLLM_ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colocate": ("mode", "enable_sleep_mode", "sync_weights", "llm", "tensor_parallel_size", "_llm_weights_sleeping"),
    "server": ("mode", "enable_sleep_mode", "sync_weights"),
}
"""Attributes of a trainer's `vllm_generation`, by its mode; a server's client exists on the first process only."""


# -- the checks ---------------------------------------------------------------------------------------------------


def resolve(name: str) -> Any:
    """The object behind one of `NAMES`, checked."""
    wanted = NAMES[name]
    library = wanted.module.partition(".")[0]
    if library == "trl":
        check_version()
    where = f"{wanted.module}.{wanted.attribute}"
    try:
        found = getattr(import_module(wanted.module), wanted.attribute)
    except (ImportError, AttributeError) as error:
        raise _unsupported(library, f"cannot import {where} ({error})") from error
    if wanted.call is not None:
        _check_call(library, where, found, wanted.call)
    for member, expected in wanted.members.items():
        _check_member(library, found, member, expected)
    return found


def check_trainer(trainer_class: type, overridden: Iterable[str] = ()) -> None:
    """Checks the methods that opd-align overrides or calls in a trainer class, before a trainer is constructed.

    Args:
        trainer_class: TRL's class, or a subclass of it; a subclass's own methods are not looked at.
        overridden: Methods that the caller overrides or calls, each listed in `METHODS` for the class or for one of its
            bases. Those that every trainer needs (`ALWAYS`) are checked in any case.
    """
    bases = [base for base in trainer_class.__mro__ if _library(base) in ("trl", "transformers")]
    if any(_library(base) == "trl" for base in bases):
        check_version()
    wanted = {*overridden}
    for base in bases:
        table = METHODS.get(base.__name__, {})
        for name in table.keys() & {*wanted, *ALWAYS}:
            _check_member(_library(base), base, name, table[name])
            wanted.discard(name)
    if wanted:
        raise OpdAlignError(
            f"{trainer_class.__name__}: {', '.join(sorted(wanted))} not listed in opd_align.training.trl_compat.METHODS"
        )


def check_attributes(trainer: Any) -> None:
    """Checks the attributes of a constructed trainer that opd-align reads, and those of its vLLM if it has one."""
    for base in type(trainer).__mro__:
        for name in ATTRIBUTES.get(base.__name__, ()) if _library(base) in ("trl", "transformers") else ():
            if not hasattr(trainer, name):
                raise _unsupported(_library(base), f"{base.__name__} has no attribute {name!r}")
    vllm = vllm_generation(trainer)
    for name in () if vllm is None else VLLM_ATTRIBUTES.get(getattr(vllm, "mode", ""), ("mode",)):
        if not hasattr(vllm, name):
            raise _unsupported("trl", f"{type(vllm).__name__} has no attribute {name!r}")


def check_version() -> None:
    """Refuses versions of TRL before the tested ones; warns once about later ones."""
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError:
        raise OpdAlignError("training needs TRL: pip install 'opd-align[train]'") from None
    if _release(version) < _release(TRL_MIN):
        raise _unsupported("trl", "this version is too old")
    if _release(version) >= _release(TRL_BELOW) and version not in _warned:
        _warned.add(version)
        logger.warning("TRL %s is newer than the versions that opd-align was tested with (%s).", version, TESTED["trl"])


_warned: set[str] = set()


def _check_member(library: str, owner: Any, name: str, expected: Call | None) -> None:
    where = f"{owner.__name__}.{name}"
    if not hasattr(owner, name):
        raise _unsupported(library, f"{owner.__name__} has no attribute {name!r}")
    if expected is not None:
        bound = not isinstance(inspect.getattr_static(owner, name), staticmethod)
        _check_call(library, where, getattr(owner, name), expected, skip=int(bound))


def _check_call(library: str, where: str, function: Any, expected: Call, *, skip: int = 0) -> None:
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    plain = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    leading = tuple(each.name for each in plain[: len(expected.positional)])
    if leading != expected.positional:
        raise _unsupported(
            library, f"{where} takes ({', '.join(leading)}), expected ({', '.join(expected.positional)})"
        )
    by_name = {each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD)}
    missing = [name for name in expected.keywords if name not in by_name]
    if missing and not any(each.kind is each.VAR_KEYWORD for each in parameters):
        raise _unsupported(library, f"{where} has no parameter {missing[0]!r}")
    passed = {*expected.positional, *expected.keywords}
    for each in parameters:
        optional = each.default is not each.empty or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if each.name not in passed and not optional:
            raise _unsupported(library, f"{where} has a new required parameter {each.name!r}")


def _unsupported(library: str, what: str) -> OpdAlignError:
    try:
        version = metadata.version(library)
    except metadata.PackageNotFoundError:
        version = "(not installed)"
    title = TITLES.get(library, library)
    return OpdAlignError(f"{title} {version} is not supported: {what}. Tested versions of {title}: {TESTED[library]}")


def _library(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in version.split(".")[:2])


# -- access to private state --------------------------------------------------------------------------------------


def train_metrics(trainer: Any) -> MutableMapping[str, list[float]]:
    """The lists that a TRL trainer averages into its next training log."""
    metrics: MutableMapping[str, list[float]] = trainer._metrics["train"]
    return metrics


def completion_ends(trainer: Any) -> list[int]:
    """The last tokens by which TRL recognizes a completion that was not truncated."""
    return [*trainer.eos_token_ids, trainer._tokenizer.pad_token_id]


def vllm_generation(trainer: Any) -> Any:
    """TRL's wrapper around the vLLM engine or server that the trainer generates with; `None` without vLLM."""
    return getattr(trainer, "vllm_generation", None) if getattr(trainer, "use_vllm", False) else None


@contextmanager
def vllm_ready(trainer: Any) -> Iterator[None]:
    """Within the block the trainer's vLLM, if it has one, is awake and has the weights of this step."""
    vllm = vllm_generation(trainer)
    if vllm is None:
        yield
        return
    vllm.sync_weights()
    # The trainer need not sync again: its next generation uses these very weights.
    trainer._last_loaded_step = trainer.state.global_step
    sleeps = vllm.mode == "colocate" and vllm.enable_sleep_mode
    if sleeps:
        vllm.llm.wake_up(tags=["kv_cache"])
    try:
        yield
    finally:
        if sleeps:
            vllm.llm.sleep(level=2)
            vllm._llm_weights_sleeping = True


@contextmanager
def replaced_kernel(apply: Callable[..., Any]) -> Iterator[None]:
    """Within the block `DistillationTrainer`'s loss calls this function instead of its chunked divergence kernel."""
    original = resolve("distillation_kernel")
    module = import_module(NAMES["distillation_kernel"].module)
    module.ChunkedDivergenceFunction = SimpleNamespace(apply=apply)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.ChunkedDivergenceFunction = original  # type: ignore[attr-defined]


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve(name)
