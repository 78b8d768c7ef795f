"""`opd-align watch`: evaluates the checkpoints of a training in a process of its own.

A watcher only reads what the training writes, and writes to `OUTPUT_DIR/opd_align`: run directories, `history.jsonl`,
demonstrations. The training never waits for it. It can be killed and started again at any moment: an evaluation is done
when its line is in `history.jsonl`, and one that was interrupted continues with the rollouts that are on disk. The
evaluation itself is the callback's (`training.evaluation`): the same weights give the same bytes.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from opd_align.core.engine import Analysis, check_inputs
from opd_align.core.metric_registry import recorded_metrics
from opd_align.report.history import FINISHED, FOLDER, HISTORY, TRAINING, read_lines
from opd_align.report.training_prose import evaluation_line
from opd_align.runs.run_directory import RunBusy, acquire_lock
from opd_align.study.checkpoints import Checkpoint, find_checkpoints, missing_part, name_patterns
from opd_align.study.watch_failures import RETRY_AFTER_S, CannotEvaluateNow, CannotWatch, is_of_this_machine
from opd_align.study.watched_models import WatchedModels
from opd_align.training import watch_spec
from opd_align.training.alarm_log import alarm_after
from opd_align.training.demonstration_cache import is_waiting_for_demonstrations
from opd_align.training.evaluation import HeldOutEvaluation
from opd_align.training.evaluation_log import (
    TrainingStep,
    append_line,
    evaluation_numbers,
    history_line,
    why_no_alignment,
)
from opd_align.training.gated_alignment import gate_weights
from opd_align.training.held_out import HeldOut, check_verifier_calls
from opd_align.training.portable import from_json, import_path
from opd_align.training.snapshots import REMOVED, Snapshot, list_snapshots, remove_remains
from opd_align.training.watch_spec import WatchSpec, spec_digest
from opd_align.types import Floats, OpdAlignError

logger = logging.getLogger(__name__)

POLL_S, SETTLE_S = 2.0, 5.0


class TrainingRestarted(OpdAlignError):
    """The training now describes itself differently: what was loaded for it is no longer right."""


@dataclass(frozen=True)
class Until:
    """When a watcher ends; without any of these, never.

    Args:
        step: After it has evaluated this step, or a later one.
        idle_s: After so many seconds without a new checkpoint.
        once: After it has evaluated what is there.
    """

    step: int | None = None
    idle_s: float | None = None
    once: bool = False


class Watcher:
    """Evaluates the checkpoints of one training, oldest first, each once.

    Args:
        output_dir: Where the training writes.
        spec: What is evaluated.
        pattern: Glob pattern of the checkpoints; `None`: the snapshots of `AlignmentCallback(where="outside")` if the
            training leaves some, else every folder that looks like a checkpoint.
        snapshots: Whether the training leaves snapshots.
        poll_s: Seconds between two looks at the directory.
        settle_s: A checkpoint is read after it has not changed for so many seconds; a snapshot is complete when it
            appears.
        track: Called with every line of the history, and its analysis if there is one: W&B, for example.
        say: Prints a line.
    """

    def __init__(
        self,
        output_dir: Path,
        spec: WatchSpec,
        *,
        pattern: str | None = None,
        snapshots: bool = False,
        poll_s: float = POLL_S,
        settle_s: float = SETTLE_S,
        track: Callable[[], None] = lambda: None,
        say: Callable[[str], None] = logger.info,
    ) -> None:
        self.output_dir, self.folder, self.spec = output_dir, output_dir / FOLDER, spec
        self.pattern, self.snapshots = pattern, snapshots and pattern is None
        self.poll_s, self.settle_s, self.track, self.say = poll_s, settle_s, track, say
        held_out = HeldOut.of(spec.questions, spec.verifier, correct_from=spec.correct_from, timeout_s=spec.timeout_s)
        if getattr(held_out.verifier.function, "fingerprint", None) is None:
            # The same function after a restart: its outcomes are reused.
            held_out = replace(held_out, instance=import_path(held_out.verifier.function, "verifier").partition("@")[0])
        check_inputs(spec.teachers, held_out.questions, spec.settings)
        self.held_out = held_out
        self.models = WatchedModels(spec)
        self._evaluation: HeldOutEvaluation | None = None
        self._seen: dict[str, tuple[str, float]] = {}  # name of a checkpoint → its id, and when it was first seen
        self._skipped: set[str] = set()
        self._warned_empty = False
        self._patterns: list[str] | None = None
        self._described_as = spec_digest(self.folder)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def run(self, until: Until) -> int:
        """Evaluates checkpoints until the end; returns the number of evaluations, failed ones included."""
        with ExitStack() as stack:
            self._lock(stack)
            remove_remains(self.folder, REMOVED)
            self.models.load_teachers()
            self.track()  # what a killed watcher has not logged
            count, last, attempts = 0, time.monotonic(), 0
            while True:
                if self.snapshots and spec_digest(self.folder) != self._described_as:
                    raise TrainingRestarted("the training was started again with other settings")
                # Looked for first: what is written before it is found below.
                finished = (self.folder / FINISHED).exists()
                ready, waiting = self.pending(final=finished or until.once)
                if ready:
                    try:
                        count += self._evaluate(ready[0])
                        attempts = 0
                    except CannotEvaluateNow as error:
                        self._wait_for_machine(ready[0], error, attempts)
                        attempts += 1
                    last = time.monotonic()
                    continue
                if until.step is not None and self._has_evaluated(until.step):
                    return count
                idle_s = time.monotonic() - last
                if (until.once or finished) and not waiting:
                    return count
                if until.idle_s is not None and idle_s > max(until.idle_s, self.settle_s if waiting else 0.0):
                    return count
                time.sleep(self.poll_s)

    def pending(self, *, final: bool = False) -> tuple[list[Checkpoint], list[Checkpoint]]:
        """Checkpoints that are not evaluated: those that can be read, by step, and those that may still change.

        With `final`, nothing more is written: what is not complete will stay so.
        """
        lines, _ = read_lines(self.folder / HISTORY)
        known = {str(line["checkpoint"]) for _, line in lines if line.get("checkpoint")}
        if self.snapshots:
            snapshots = list_snapshots(self.folder)
            for snapshot in snapshots:
                if snapshot.id in known:  # killed between the line and the removal
                    self._remove(snapshot)
            known |= self._skipped
            found = [Checkpoint(each.folder, each.id, each.step, each.id, each.meta) for each in snapshots]
            return [each for each in found if each.id not in known], []
        candidates = []
        self._warn_of_several_trainings()
        for each in find_checkpoints(self.output_dir, self.pattern):
            if each.id in known or each.id in self._skipped:
                continue
            if _came_late(each, lines):
                self._skip(each, "a later step was evaluated before it appeared")
            else:
                candidates.append(each)
        ready, waiting = [], []
        for at, each in enumerate(candidates):
            lacks = missing_part(each.folder)
            # A training that repeats a step overwrites it while later ones, of before, are there.
            followed = any(later.meta["at"] >= each.meta["at"] for later in candidates[at + 1 :])
            settled = self._is_settled(each) or (lacks is None and followed)
            if lacks is None and settled:
                ready.append(each)
            elif lacks is not None and settled and (final or followed):
                self._skip(each, f"it is not complete: {lacks}")
            else:
                waiting.append(each)
        # Not a later one before an earlier one that is still being written: results are in the order of the steps.
        first = min((each.step for each in waiting), default=None)
        return [each for each in ready if first is None or each.step < first], waiting

    def _is_settled(self, checkpoint: Checkpoint) -> bool:
        """Whether it has been the same for `settle_s` seconds."""
        now = time.monotonic()
        known, since = self._seen.get(checkpoint.name, ("", now))
        if known != checkpoint.id:
            since = now
        self._seen[checkpoint.name] = checkpoint.id, since
        return now - since >= self.settle_s

    def _skip(self, checkpoint: Checkpoint, reason: str) -> None:
        self._skipped.add(checkpoint.id)
        self.say(f"skipping {checkpoint.name}: {reason}")

    def _has_evaluated(self, step: int) -> bool:
        lines, _ = read_lines(self.folder / HISTORY)
        # A line replaces those before it with a later step: they are of a training that was here before.
        return bool(lines) and lines[-1][0] >= step

    def _wait_for_machine(self, checkpoint: Checkpoint, error: CannotEvaluateNow, attempts: int) -> None:
        """Waits until the next attempt; after the last one, raises the error."""
        if attempts >= len(RETRY_AFTER_S):
            raise OpdAlignError(
                f"step {checkpoint.step:,} cannot be evaluated: {error}. It is not lost: start the watcher again"
            ) from error
        seconds = RETRY_AFTER_S[attempts]
        self.say(f"step {checkpoint.step:,} cannot be evaluated now, trying again in {seconds:g} s: {error}")
        time.sleep(seconds)

    def _warn_of_several_trainings(self) -> None:
        if self._patterns is None or len(self._patterns) < 2:
            first, self._patterns = self._patterns is None, name_patterns(self.output_dir, self.pattern)
            if first and not self._patterns:
                named = "" if self.pattern is None else f" that matches {self.pattern!r}"
                self.say(f"there is no checkpoint{named} yet")
            if len(self._patterns) > 1:
                self.say(
                    f"there are checkpoints of {len(self._patterns)} kinds, of each step only the first is evaluated; "
                    f"to select some: --checkpoints {shlex.quote(self._patterns[0])} (or: {self._patterns[1]})"
                )

    def _remove(self, snapshot: Snapshot) -> None:
        try:
            snapshot.remove()
        except OSError as error:  # of another user: the training removes it when it needs the room
            if snapshot.id not in self._skipped:
                self.say(f"cannot remove the snapshot of step {snapshot.step:,}: {error.strerror}")
            self._skipped.add(snapshot.id)

    # -- one evaluation ---------------------------------------------------------------------------------------------

    def _evaluate(self, checkpoint: Checkpoint) -> bool:
        """Evaluates a checkpoint and writes its line; false if it was gone before it could be read."""
        start = time.monotonic()
        lines, _ = read_lines(self.folder / HISTORY)
        numbers: dict[str, float] = {}
        analysis, run, error, scale = None, None, None, 0.0
        verifier, first = self.held_out.verifier, self._evaluation is None
        calls, failures = verifier.calls, verifier.failures
        was_loaded = False
        try:
            with self.models.student(checkpoint) as loaded:
                was_loaded = True
                if not self.snapshots and not checkpoint.is_unchanged:
                    self._skip(checkpoint, "it was removed or overwritten while it was read")
                    return False
                evaluation = self._evaluation_with(loaded.chat)
                limit = evaluation.time_limit(self.spec.settings)
                models = self.models.evaluated(evaluation, loaded, limit)
                if first:
                    self.models.check(evaluation, models.student)
                analysis, run = evaluation.run(models, self.spec.settings, checkpoint.step)
            check_verifier_calls(verifier.calls - calls, verifier.failures - failures, verifier.last_failure)
            numbers = recorded_metrics(analysis, self._gate_weights(checkpoint, analysis))
            scale = len(analysis.questions) / max(evaluation.num_selected, len(analysis.questions))
        except (RunBusy, CannotWatch):
            raise
        except Exception as failure:
            if not was_loaded and not (checkpoint.folder.exists() if self.snapshots else checkpoint.is_unchanged):
                gone = not checkpoint.folder.exists()
                self._skip(checkpoint, f"it was {'removed' if gone else 'removed or overwritten'} before it was read")
                return False
            if is_of_this_machine(failure):
                kind = "" if isinstance(failure, OpdAlignError) else f"{type(failure).__name__}: "
                raise CannotEvaluateNow(f"{kind}{failure}") from failure
            if self.snapshots and not was_loaded:
                # A snapshot is complete, and removed once it has a line: it is not given up for what is missing here.
                raise CannotWatch(f"cannot load the snapshot of step {checkpoint.step:,}: {failure}") from failure
            analysis, run, error = None, None, failure
        waiting = is_waiting_for_demonstrations(error)
        before = [step for step, _ in lines if step < checkpoint.step]
        alarm, alerts = alarm_after(self.folder, checkpoint.step, numbers, distilled=self.spec.alerts_on)
        numbers |= alarm | evaluation_numbers(
            seconds=time.monotonic() - start,
            scale=scale,
            **({"interval": checkpoint.step - max(before)} if before else {}),
            failures=sum(line.get("error") is not None for _, line in lines) + (error is not None and not waiting),
            without_demonstration=waiting,
            loss_recognised=self.spec.loss_recognised,
            verifier_failures=verifier.failures,
            delay=max(time.time() - float(checkpoint.meta.get("at") or time.time()), 0.0),
            staleness=max(self._training_step() - checkpoint.step, 0),
        )
        at = TrainingStep(
            checkpoint.step, checkpoint.meta.get("max_steps"), checkpoint.meta.get("epoch"), self.spec.trainer
        )
        told = [asdict(alert) for alert in alerts]
        what = {"checkpoint": checkpoint.id, "written": checkpoint.meta.get("at"), "alerts": told}
        try:
            append_line(self.folder / HISTORY, history_line(at, numbers, run, error, **what), sync=True)
        except OSError as failure:
            raise CannotEvaluateNow(f"cannot write {HISTORY}: {failure.strerror}") from failure
        self._present(checkpoint, numbers, analysis, error, waiting)
        for alert in alerts:
            self.say(f"WARNING: {alert.title}. {alert.text}")
        self.track()
        if self.snapshots:
            self._remove(Snapshot(checkpoint.folder, checkpoint.step, {}))
        return True

    def _evaluation_with(self, chat: Any) -> HeldOutEvaluation:
        """Made with the first checkpoint: without a tokenizer of its own, a training has that of its checkpoints."""
        if self._evaluation is None:
            self._evaluation = HeldOutEvaluation(
                self.held_out, self.spec.contexts, chat, max_tokens=self.spec.sampling.max_tokens, folder=self.folder
            )
            self._evaluation.demonstrations.load(0)
        return self._evaluation

    def _gate_weights(self, checkpoint: Checkpoint, analysis: Analysis) -> dict[tuple[str, str], Floats] | None:
        """What the gate of the training gave to each node when the snapshot was taken; `None` without a gate."""
        if checkpoint.meta.get("gate") is None:
            return None
        try:
            return gate_weights(from_json(checkpoint.meta["gate"]), analysis, eps=float(checkpoint.meta["gate_eps"]))
        except Exception as error:  # a gate of the user's own
            self.say(f"the alignment with the gate is not evaluated: {type(error).__name__}: {error}")
            return None

    def _training_step(self) -> int:
        """The newest step of the training that is known here."""
        lines, _ = read_lines(self.folder / TRAINING, tail=2**16)
        steps = [step for step, _ in lines[-1:]]
        if self.snapshots:
            return max([*steps, *(each.step for each in list_snapshots(self.folder))], default=0)
        return max([*steps, *(each.step for each in find_checkpoints(self.output_dir, self.pattern))], default=0)

    def _present(
        self,
        checkpoint: Checkpoint,
        numbers: dict[str, float],
        analysis: Analysis | None,
        error: Exception | None,
        waiting: bool,
    ) -> None:
        if error is not None and not waiting:
            self.say(f"step {checkpoint.step:,}: the evaluation failed: {type(error).__name__}: {error}")
            logger.debug("The evaluation of %s failed", checkpoint.name, exc_info=error)
            return
        self.say(evaluation_line(checkpoint.step, numbers, waiting=str(error) if waiting else None))
        aligned = any(key.endswith("/alignment/mean") and isfinite(value) for key, value in numbers.items())
        if error is None and not aligned and not self._warned_empty:
            self._warned_empty = True
            self.say(f"step {checkpoint.step:,} has no alignment: {why_no_alignment(analysis, self.spec.correct_from)}")

    def _lock(self, stack: ExitStack) -> None:
        """One watcher per training."""
        import os

        folder = self.folder / watch_spec.FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = acquire_lock(folder / "lock")
        except RunBusy as error:
            holder = str(error).partition("(")[2].partition(")")[0]
            raise OpdAlignError(f"{str(self.output_dir)!r} is watched by another process ({holder})") from error
        except OSError as error:
            raise OpdAlignError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
        if handle is not None:
            stack.callback(os.close, handle)


def _came_late(checkpoint: Checkpoint, lines: Sequence[tuple[int, Mapping[str, Any]]]) -> bool:
    """Whether a later step, written after this checkpoint, has a result already.

    One that was written before it is of a training that went back to an earlier step and continued from there.
    """
    at = float(checkpoint.meta["at"])
    later = [line.get("written") for step, line in lines if step > checkpoint.step]
    return any(isinstance(written, int | float) and written >= at for written in later)
