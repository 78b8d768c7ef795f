"""Verifiers: the one contract by which the callback, the gates, GRPO rewards and SDPO decide what is correct.

A verifier is a function with TRL's reward signature, synchronous or asynchronous, or a `Task`, whose verifier is then
used. It returns one value per completion: `correct_from` (0.5) and more is correct, less is incorrect, `None` and NaN
are unknown. A call that raises, or does not return within `timeout_s`, leaves its completions unknown; such calls are
counted, and the first one is logged. What no later batch could fix raises `OpdAlignError`: a missing column, a wrong
number of values, values that are not numbers.

How the time limit works: in the main thread an alarm signal ends the call, even one that never releases the GIL (a
regular expression with catastrophic backtracking, for example), where no other thread would get to run. In other
threads, inside a running event loop, and where the alarm is already in use, the call runs in a daemon thread. A child
process could be killed, but a verifier is any callable (a closure, a client, a model on the device): it may not be
picklable, a fork does not work with CUDA, and a spawned process would import the user's script again.

The limit cannot end code that ignores signals, nor a verifier that sets an alarm of its own, which replaces ours. A
thread that never returns keeps using the interpreter, so the verifier is not called while `MAX_HANGING_CALLS` threads
hang; as daemon threads, they do not delay the interpreter's exit. The verifiers of tasks need none of this: what could
take long there runs in the processes of `tasks.math_pool`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from opd_align.tasks import Task
from opd_align.types import OpdAlignError, Outcome

logger = logging.getLogger(__name__)

CORRECT_FROM = 0.5
"""Default of `correct_from`: values from here on mean that the completion is correct."""

TIMEOUT_S = 60.0
"""Default time limit of one call of a verifier, in seconds."""

MAX_HANGING_CALLS = 3
"""Number of calls that may hang in threads at the same time before the verifier is no longer called."""

ALARM_REPEAT_S = 1.0
"""Interval at which the alarm repeats, in case the verifier has caught the first one."""

WITHHELD_COLUMNS = ("prompt", "completion", "completion_ids")
"""Columns of the data set that TRL does not pass to reward functions, which get the generated completions instead."""

EXTRA_ARGUMENTS = ("completion_ids", "trainer_state", "log_extra", "log_metric", "environments")
"""What TRL passes to reward functions in addition to the data set's columns."""

Verifier = Callable[..., Any]
"""A reward function as TRL calls it: `verifier(prompts=, completions=, **columns)` returns one value per completion."""


class _Timeout(BaseException):
    """The time limit was reached; a `BaseException`, so that a verifier's own `except Exception` does not catch it."""


class RewardVerifier:
    """Calls a verifier with a time limit and turns its values into outcomes.

    Args:
        verifier: A function with TRL's reward signature, synchronous or asynchronous, or a `Task`.
        correct_from: Smallest value that means correct.
        timeout_s: Time limit of one call on a batch of completions, in seconds.

    Attributes:
        function: The reward function that is called: `verifier`, or the task's verifier.
        calls: Number of calls so far.
        failures: Number of calls that raised or did not return in time.
        consecutive_failures: The same, since the last call that returned.
        last_failure: Why the last of them failed; `None` if none did.
        latest: Outcomes of the last call of `as_reward()`.
    """

    def __init__(
        self, verifier: Verifier | Task, *, correct_from: float = CORRECT_FROM, timeout_s: float = TIMEOUT_S
    ) -> None:
        if not 0 < timeout_s < math.inf:
            raise OpdAlignError(f"verifier: the time limit must be a positive number of seconds, not {timeout_s}")
        if not math.isfinite(correct_from):
            raise OpdAlignError(f"verifier: correct_from must be a finite number, not {correct_from}")
        self.function = reward_function(verifier)
        self.correct_from, self.timeout_s = correct_from, timeout_s
        self.calls = self.failures = self.consecutive_failures = 0
        self.last_failure: str | None = None
        self.latest: list[Outcome] = []
        self._hanging: list[threading.Thread] = []

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def values(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any], **extras: Any
    ) -> list[float | None]:
        """One value per completion, `None` where it is unknown; returns after about `timeout_s` at the latest.

        `extras` are some of `EXTRA_ARGUMENTS`; the verifier receives those that it has a parameter for.
        """
        arguments = call_arguments(self.function, prompts, completions, columns, extras)
        self.calls += 1
        self._hanging = [thread for thread in self._hanging if thread.is_alive()]
        if len(self._hanging) >= MAX_HANGING_CALLS:
            return self._unknown(len(completions), f"{MAX_HANGING_CALLS} earlier calls still hang")

        def call() -> list[float | None]:
            returned = self.function(**arguments)
            if inspect.isawaitable(returned):
                returned = asyncio.run(self._await(returned))
            return _read(returned, len(completions))

        try:
            values = self._with_alarm(call) if _alarm_is_usable() else self._in_thread(call)
        except (OpdAlignError, KeyboardInterrupt):
            raise
        except _Timeout:
            return self._unknown(len(completions), f"no result within {self.timeout_s:g} s")
        except (
            BaseException
        ) as error:  # nothing that a user's function raises may end the training, SystemExit included
            return self._unknown(len(completions), f"{type(error).__name__}: {error}")
        self.consecutive_failures = 0
        return values

    def outcome(self, value: float | None) -> Outcome:
        """The outcome that a value stands for."""
        if value is None:
            return Outcome.UNKNOWN
        return Outcome.CORRECT if value >= self.correct_from else Outcome.INCORRECT

    def outcomes(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Any], **extras: Any
    ) -> list[Outcome]:
        """One outcome per completion; arguments as in `values`. Without completions, the verifier is not called."""
        if not completions:
            return []
        return [self.outcome(value) for value in self.values(prompts, completions, columns, **extras)]

    def as_reward(self) -> Callable[..., list[float | None]]:
        """The verifier as a synchronous reward function for a trainer: its values, with `None` for unknown.

        `latest` holds the outcomes of the last call.
        """

        def reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
            extras = {name: columns.pop(name) for name in EXTRA_ARGUMENTS if name in columns}
            values = self.values(prompts, completions, columns, **extras)
            self.latest = [self.outcome(value) for value in values]
            return values

        reward.__name__ = self.name
        reward.verifier = self.function  # type: ignore[attr-defined]
        return reward

    async def _await(self, awaitable: Awaitable[Any]) -> Any:
        # The limit is set here too, so that a call that hangs in a thread is cancelled and its thread ends.
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                return await awaitable
        except TimeoutError:
            if limit.expired():
                raise _Timeout from None
            raise

    def _with_alarm(self, call: Callable[[], list[float | None]]) -> list[float | None]:
        def on_alarm(*_: Any) -> None:
            raise _Timeout

        previous = signal.signal(signal.SIGALRM, on_alarm)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, self.timeout_s, ALARM_REPEAT_S)
                return call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        finally:  # the alarm may have fired just before it was switched off above
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)

    def _in_thread(self, call: Callable[[], list[float | None]]) -> list[float | None]:
        returned: list[list[float | None]] = []
        raised: list[BaseException] = []

        def work() -> None:
            try:
                returned.append(call())
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=work, name="verifier", daemon=True)
        thread.start()
        thread.join(self.timeout_s)
        if returned:
            return returned[0]
        if raised:
            raise raised[0]
        self._hanging.append(thread)
        raise _Timeout

    def _unknown(self, n: int, reason: str) -> list[float | None]:
        self.failures += 1
        self.consecutive_failures += 1
        self.last_failure = reason
        if self.failures == 1:
            logger.warning(
                "Verifier %r returned no values (%s); its %d completions count as unknown. Further failures are "
                "counted as verifier_failures and not logged.",
                self.name, reason, n,
            )  # fmt: skip
        return [None] * n


def reward_function(verifier: Any) -> Verifier:
    """The function to call for what was given as a verifier; refuses what cannot be one."""
    if isinstance(verifier, Task):
        return verifier.verifier
    if hasattr(verifier, "named_parameters"):
        raise OpdAlignError(
            f"the verifier is a model ({type(verifier).__name__}); pass a function that calls the model, with TRL's "
            "reward signature: prompts and completions in, one number per completion out"
        )
    if not callable(verifier):
        raise OpdAlignError(
            "verifier must be a function with TRL's reward signature, a task (opd_align.tasks.task('gsm8k')) or a "
            f"task's verifier, not {verifier!r}"
        )
    function: Verifier = verifier
    return function


def call_arguments(
    function: Verifier, prompts: Any, completions: Any, columns: Mapping[str, Any], extras: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments of a call, as TRL passes them: of `extras`, only those that the function has a name for.

    Refuses a function that cannot be called with them: no later batch would do better.
    """
    arguments = {name: values for name, values in columns.items() if name not in WITHHELD_COLUMNS}
    arguments |= {"prompts": prompts, "completions": completions}
    try:
        signature = inspect.signature(function)
    except ValueError:  # compiled functions have none
        return arguments
    parameters = signature.parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    arguments |= {name: value for name, value in extras.items() if takes_all or name in named}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise OpdAlignError(
            f"the verifier cannot be called as TRL calls reward functions: {error}. It is given "
            f"{', '.join(arguments)}; end its parameters with **columns to accept what it does not use"
        ) from None
    return arguments


def _alarm_is_usable() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and hasattr(signal, "setitimer")
        and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
        and not _event_loop_is_running()  # as in a notebook: another one cannot be started in this thread
    )


def _event_loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _read(returned: Any, n: int) -> list[float | None]:
    """The values as a list; read within the time limit, since a verifier may be a generator."""
    if not hasattr(returned, "__iter__") or isinstance(returned, str | bytes):
        raise OpdAlignError(f"the verifier returned {returned!r}; expected one value for each of {n} completions")
    values = list(returned)
    if len(values) != n:
        raise OpdAlignError(f"the verifier returned {len(values)} values for {n} completions")
    return [_value(value) for value in values]


def _value(value: Any) -> float | None:
    number = value.item() if hasattr(value, "item") else value
    if number is None:
        return None
    if not isinstance(number, Real):
        raise OpdAlignError(f"the verifier returned {value!r}; expected a number, or None where it is unknown")
    return None if math.isnan(number) else float(number)
