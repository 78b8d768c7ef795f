"""The names of TRL, transformers, accelerate and vLLM that opd-align relies on without a promise that they stay.

Private methods, instance attributes and functions that are not documented are listed in the tables of `trl_names`,
with the parameters that we pass, and are imported and accessed through this module only; what is set on a trainer's
vLLM and on adapters is in `weight_sync`. The tables drive all checks: a name is checked when it is imported from here,
methods when a trainer is constructed (`check_trainer`), attributes once it has been constructed (`check_attributes`).
What is missing or has changed raises `OpdAlignError` instead of training without a gate.

Importing this module imports none of these libraries: names are looked up on first use. The layers below `training`
cannot import it; the private names that they use are listed here too, so that they are checked with the others.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import ExitStack, contextmanager
from importlib import import_module, metadata
from types import SimpleNamespace
from typing import Any

from opd_align.training.trl_names import (
    ALWAYS,
    AT_RUN_TIME,
    ATTRIBUTES,
    CLIENT_ATTRIBUTES,
    GENERATED,
    METHODS,
    NAMES,
    SDPO_EVENTS,
    SYNCED,
    TESTED,
    TITLES,
    TRL_BELOW,
    TRL_MIN,
    UNTESTED,
    VLLM_ATTRIBUTES,
    Call,
)
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)


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
    except (ImportError, AttributeError, RuntimeError) as error:  # TRL's lazy modules raise RuntimeError
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
    for name in AT_RUN_TIME:
        resolve(name)
    _check_vllm(trainer)
    if getattr(trainer, "teacher_client", None) is not None:
        _check_path(trainer, *(f"teacher_client.{name}" for name in CLIENT_ATTRIBUTES))


def _check_vllm(trainer: Any) -> None:
    vllm = vllm_generation(trainer)
    if vllm is None:
        return
    resolve("VLLMGeneration")
    _check_path(vllm, *VLLM_ATTRIBUTES.get(getattr(vllm, "mode", ""), ("mode",)))
    if resolve("is_peft_model")(vllm.model):
        resolve("BaseTunerLayer")
    if vllm.mode == "server" and trainer.accelerator.is_main_process:
        _check_path(vllm, *(f"vllm_client.{name}" for name in CLIENT_ATTRIBUTES))
    if any(base.__name__ in SYNCED and _library(base) == "trl" for base in type(trainer).__mro__):
        _check_path(trainer, "_last_loaded_step")


def _check_path(owner: Any, *paths: str) -> None:
    """Checks attributes, and attributes of attributes, of an object of TRL."""
    for path in paths:
        found = owner
        for name in path.split("."):
            if not hasattr(found, name):
                raise _unsupported(_library(type(found)), f"{type(found).__name__} has no attribute {name!r}")
            found = getattr(found, name)


def check_generated(trainer: Any, generated: Any) -> None:
    """Checks what a trainer's `_generate_and_score_completions` returned."""
    for base in type(trainer).__mro__:
        for name in GENERATED.get(base.__name__, ()) if _library(base) == "trl" else ():
            if name not in generated:
                where = f"{base.__name__}._generate_and_score_completions"
                raise _unsupported("trl", f"{where} returns no {name!r}")


def check_events(trainer_class: type) -> None:
    """Checks that SDPO's trainer names the callback events that a gate waits for."""
    methods = [inspect.unwrap(each) for base in trainer_class.__mro__ for each in vars(base).values() if callable(each)]
    named = {constant for each in methods if hasattr(each, "__code__") for constant in each.__code__.co_consts}
    for event in SDPO_EVENTS:
        if event not in named:
            raise _unsupported("trl", f"{trainer_class.__name__} has no event {event!r}")


def event_arguments(event: str, arguments: Mapping[str, Any]) -> list[Any]:
    """The arguments of one of `SDPO_EVENTS`, in the order of the table."""
    missing = [name for name in SDPO_EVENTS[event] if arguments.get(name) is None]
    if missing:
        raise _unsupported("trl", f"SDPOTrainer's event {event} has no {missing[0]!r}")
    return [arguments[name] for name in SDPO_EVENTS[event]]


def check_version() -> None:
    """Refuses versions of TRL that were not tested; `UNTESTED` lets later ones through, with one warning."""
    try:
        version = metadata.version("trl")
    except metadata.PackageNotFoundError:
        raise OpdAlignError("training needs TRL: pip install 'opd-align[train]'") from None
    if _release(version) < _release(TRL_MIN):
        raise _unsupported("trl", "this version is too old")
    if _release(version) < _release(TRL_BELOW):
        return
    if os.environ.get(UNTESTED, "0") in ("", "0"):
        raise _unsupported(
            "trl", f"this version is too new; {UNTESTED}=1 lets you try it, the names that opd-align uses are checked"
        )
    if version not in _warned:
        _warned.add(version)
        logger.warning("TRL %s is newer than the versions that opd-align was tested with (%s).", version, TESTED["trl"])


_warned: set[str] = set()


def _check_member(library: str, owner: Any, name: str, expected: Call | None) -> None:
    where = f"{owner.__name__}.{name}"
    if not hasattr(owner, name):
        raise _unsupported(library, f"{owner.__name__} has no attribute {name!r}")
    if expected is not None:
        with_self = not isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod)
        _check_call(library, where, getattr(owner, name), expected, skip=int(with_self))


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
    tested = f". Tested versions of {title}: {TESTED[library]}" if library in TESTED else ""
    return OpdAlignError(f"{title} {version} is not supported: {what}{tested}")


def untested() -> str:
    """Ends an error message about a trainer that does something unexpected."""
    version = metadata.version("trl")
    if _release(TRL_MIN) <= _release(version) < _release(TRL_BELOW):
        cause = f"a subclass or a callback changed how the trainer of TRL {version} makes batches or computes its loss"
    else:
        cause = f"TRL {version} is not supported"
    return f"{cause}. Tested versions of TRL: {TESTED['trl']}"


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


def discard_generated(trainer: Any) -> None:
    """For weights that were replaced within a step: completions are generated again, and vLLM loads the weights."""
    if vllm_generation(trainer) is not None and hasattr(trainer, "_last_loaded_step"):
        trainer._last_loaded_step = -1
    if hasattr(trainer, "_buffered_inputs"):
        trainer._buffered_inputs = None


@contextmanager
def without_hooks(model: Any) -> Iterator[None]:
    """Within the block, forward passes of a ZeRO-3 model are not collective; its weights must be gathered."""
    optimizer = getattr(model, "optimizer", None)  # before the first training step, the model has none
    offload: Any = getattr(optimizer, "parameter_offload", optimizer)
    if offload is not None and not hasattr(offload, "fwd_pre_hook"):
        raise _unsupported("deepspeed", f"{type(offload).__name__} has no attribute 'fwd_pre_hook'")
    resolve("remove_hooks")(model)
    try:
        with ExitStack() as stack:
            # TRL leaves one hook: at the start of a forward pass DeepSpeed compares the order of modules across ranks.
            # A rank that made no forward pass, or failed before its first one, would leave the others waiting there.
            if offload is not None:
                hooks, number = offload.module._forward_pre_hooks, offload.fwd_pre_hook.id
                stack.callback(hooks.__setitem__, number, hooks[number])
                hooks[number] = _no_hook
            yield
    finally:
        resolve("add_hooks")(model)


def _no_hook(*_: Any) -> None:
    """Takes the place of a hook, so that the order of the others does not change."""


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
