"""Verdicts in time: a verifier is called on a whole batch, and training goes on whatever it does.

A call that raises, or has not returned within its time, leaves its completions unknown; both are counted, and said
once. The call runs in a daemon thread. A process could be killed, but a verifier is any callable (a closure, a client,
a model on the device): it need not survive pickling, a fork under CUDA does not survive at all, and a spawned process
would import the user's script again. A thread that never returns costs its share of the interpreter, so while
`STUCK` of them hang the verifier is not called again; being daemons, they do not hold up the interpreter's exit.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any

from opd_align.training.gates import Verifier
from opd_align.types import OpdAlignError, Outcome

logger = logging.getLogger(__name__)

STUCK = 3
"""Calls that may hang at the same time before the verifier is given up."""


class Verifying:
    """Calls a verifier with TRL's reward signature; `outcomes` always comes back, at most about `timeout_s` later."""

    def __init__(self, verifier: Verifier, *, timeout_s: float = 60.0) -> None:
        if not 0 < timeout_s < math.inf:
            raise OpdAlignError(f"verifier: the time limit must be a positive number of seconds, not {timeout_s}")
        if iscoroutinefunction(verifier):
            raise OpdAlignError("the verifier is asynchronous; give a plain function that waits for it")
        self.verifier, self.timeout_s = verifier, timeout_s
        self.failures = 0
        self._stuck: list[threading.Thread] = []
        self._said = False

    def outcomes(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[Outcome]:
        """One outcome a completion: 1 is correct, 0 incorrect, `None` (or NaN) unknown."""
        self._stuck = [thread for thread in self._stuck if thread.is_alive()]
        if len(self._stuck) >= STUCK:
            return self._unknown(len(completions), f"{STUCK} earlier calls still hang")
        answer: list[Sequence[float | None]] = []
        raised: list[BaseException] = []

        def call() -> None:
            try:
                answer.append(self.verifier(prompts=prompts, completions=completions, **columns))
            except BaseException as error:  # whatever a user's function raises is for the log, not for the trainer
                raised.append(error)

        thread = threading.Thread(target=call, name="verifier", daemon=True)
        thread.start()
        thread.join(self.timeout_s)
        if answer:
            return _read(answer[0], len(completions))
        if raised:
            if isinstance(raised[0], OpdAlignError):
                raise raised[0]  # a column that is missing: no later batch would have it
            return self._unknown(len(completions), f"it raised {type(raised[0]).__name__}: {raised[0]}")
        self._stuck.append(thread)
        return self._unknown(len(completions), f"it did not return within {self.timeout_s:g} s")

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


def _read(values: Sequence[float | None], expected: int) -> list[Outcome]:
    values = list(values)
    if len(values) != expected:
        raise OpdAlignError(f"the verifier gave {len(values)} verdicts for {expected} completions")
    return [_outcome(value) for value in values]


def _outcome(value: float | None) -> Outcome:
    if value is None or math.isnan(value):
        return Outcome.UNKNOWN
    if value in (0, 1):
        return Outcome(int(value))
    raise OpdAlignError(
        f"the verifier gave {value!r}; a verdict is 1 (correct), 0 (incorrect) or None (unknown). "
        "Wrap a graded reward in a function that says from where on it is correct"
    )
