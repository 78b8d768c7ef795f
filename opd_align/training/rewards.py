"""Verdicts in time: a verifier is called on a whole batch, and training goes on whatever it does.

A call that raises, or has not returned within its time, leaves its completions unknown; both are counted, and said
once. In the main thread an alarm ends the call: it reaches code that never lets go of the interpreter, such as a
regular expression that backtracks for ever, where no other thread would get to run. Elsewhere, and where somebody else
uses the alarm, the call runs in a daemon thread. A process could be killed, but a verifier is any callable (a closure,
a client, a model on the device): it need not survive pickling, a fork under CUDA does not survive at all, and a spawned
process would import the user's script again.

What stays out of reach is code that heeds no signal, and a verifier that sets an alarm of its own, which replaces ours.
A thread that never returns costs its share of the interpreter, so while `STUCK` of them hang the verifier is not called
again; being daemons, they do not hold up the interpreter's exit.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

from opd_align.training.gates import Verifier, check_verifier
from opd_align.training.reward_call import BESIDE, call_of
from opd_align.types import OpdAlignError, Outcome

logger = logging.getLogger(__name__)

STUCK = 3
"""Calls that may hang at the same time before the verifier is given up."""

AGAIN_S = 1.0
"""After how long an alarm that somebody swallowed rings again."""


class _Late(BaseException):
    """The time is up; nothing that a verifier catches."""


class Verifying:
    """Calls a verifier with TRL's reward signature; `outcomes` comes back at most about `timeout_s` later."""

    def __init__(self, verifier: Verifier, *, timeout_s: float = 60.0) -> None:
        if not 0 < timeout_s < math.inf:
            raise OpdAlignError(f"verifier: the time limit must be a positive number of seconds, not {timeout_s}")
        check_verifier(verifier)
        self.verifier, self.timeout_s = verifier, timeout_s
        self.failures = 0
        self.latest: list[Outcome] = []
        self._stuck: list[threading.Thread] = []
        self._said = False

    def outcomes(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Mapping[str, Any],
        **extras: Any,
    ) -> list[Outcome]:
        """One outcome a completion: 1 is correct, 0 incorrect, `None` (or NaN) unknown.

        `extras` are what TRL hands over beside the data's columns; the verifier gets those that it has a name for.
        """
        given = call_of(self.verifier, prompts, completions, columns, extras)
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= STUCK:
            return self._unknown(len(completions), f"{STUCK} earlier calls still hang")

        def call() -> list[Outcome]:
            return _read(self.verifier(**given), len(completions))

        try:
            return self._under_alarm(call) if _alarm_is_free() else self._in_a_thread(call)
        except (OpdAlignError, KeyboardInterrupt):
            raise  # a column that is missing, a reply that is no verdict: no later batch would do better
        except _Late:
            return self._unknown(len(completions), f"it did not return within {self.timeout_s:g} s")
        except BaseException as error:  # whatever a user's function raises is for the log, not for the trainer
            return self._unknown(len(completions), f"it raised {type(error).__name__}: {error}")

    def as_reward(self) -> Callable[..., list[float | None]]:
        """The same calls as a reward function for a trainer; `latest` holds the outcomes that it last gave."""

        def reward(prompts: Sequence[Any], completions: Sequence[Any], **given: Any) -> list[float | None]:
            extras = {name: given.pop(name) for name in BESIDE if name in given}
            self.latest = self.outcomes(prompts, completions, given, **extras)
            return [None if outcome == Outcome.UNKNOWN else float(outcome) for outcome in self.latest]

        reward.__name__ = getattr(self.verifier, "__name__", type(self.verifier).__name__)
        return reward

    def _under_alarm(self, call: Callable[[], list[Outcome]]) -> list[Outcome]:
        def ring(*_: Any) -> None:
            raise _Late

        before = signal.signal(signal.SIGALRM, ring)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, self.timeout_s, AGAIN_S)
                return call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        finally:  # it may have rung a moment too late, just before it was switched off
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _in_a_thread(self, call: Callable[[], list[Outcome]]) -> list[Outcome]:
        answer: list[list[Outcome]] = []
        raised: list[BaseException] = []

        def work() -> None:
            try:
                answer.append(call())
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=work, name="verifier", daemon=True)
        thread.start()
        thread.join(self.timeout_s)
        if answer:
            return answer[0]
        if raised:
            raise raised[0]
        self._stuck.append(thread)
        raise _Late

    def _unknown(self, n: int, reason: str) -> list[Outcome]:
        self.failures += 1
        if not self._said:
            self._said = True
            logger.warning(
                "the verifier failed: %s. Its %d completions count as unknown; so will those of later failures, "
                "which are counted as gate/verifier_failures and not reported again.",
                reason,
                n,
            )
        return [Outcome.UNKNOWN] * n


def _alarm_is_free() -> bool:
    return (
        threading.current_thread() is threading.main_thread()
        and hasattr(signal, "setitimer")
        and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )


def _read(values: Any, expected: int) -> list[Outcome]:
    """What a verifier gave, made while its time runs: it may be a generator."""
    if not hasattr(values, "__iter__") or isinstance(values, str | bytes):
        raise OpdAlignError(f"the verifier gave {values!r}; expected one verdict for each of {expected} completions")
    verdicts = list(values)
    if len(verdicts) != expected:
        raise OpdAlignError(f"the verifier gave {len(verdicts)} verdicts for {expected} completions")
    return [_outcome(value) for value in verdicts]


def _outcome(value: Any) -> Outcome:
    value = value.item() if hasattr(value, "item") else value
    if value is None or (isinstance(value, Real) and math.isnan(value)):
        return Outcome.UNKNOWN
    if isinstance(value, Real) and value in (0, 1):
        return Outcome.CORRECT if value else Outcome.INCORRECT
    raise OpdAlignError(
        f"the verifier gave {value!r}; a verdict is 1 (correct), 0 (incorrect) or None (unknown). "
        "Wrap a graded reward in a function that says from where on it is correct"
    )
