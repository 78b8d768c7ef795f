"""`AlignmentCallback`: the engine on held-out questions every so many steps of a TRL training.

A training with it is bit for bit the training without it: models are borrowed, logs go beside the trainer's own rows,
and what fails here is logged and counted but never ends a training. Each evaluation leaves a run directory beside the
checkpoints, from which every number that was logged can be made again.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Literal

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from opd_align.core.engine import Analysis
from opd_align.core.metric_registry import ROOT, evaluation_metric, logged_metrics
from opd_align.core.objectives import Objective, ReverseKL
from opd_align.report.history import FOLDER, HISTORY, TRAINING
from opd_align.report.trackers import wandb_media
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Budget, Sampling, Settings
from opd_align.training.adapters import adapt_trainer
from opd_align.training.distributed import on_all_ranks
from opd_align.training.evaluator import Evaluator, TeacherSet
from opd_align.training.held_out import HeldOut, check_verifier_calls
from opd_align.training.model_state import preserve_rng_state
from opd_align.training.overhead import OverheadLimit
from opd_align.training.rewards import CORRECT_FROM, TIMEOUT_S
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

STATE = "opd_align.json"
"""Within a checkpoint: where the schedule stands."""

SMALL = Budget(initial=32, targeted=512, allocation="adaptive", rounds=3)
"""What is spent on each question, unless told otherwise; in few rounds, since each waits for its longest rollout."""

ABREAST = 4
"""Questions that are worked on side by side."""


class AlignmentCallback(TrainerCallback):
    """Does the teacher's update point toward success, now? Evaluated at the start and every `every_n_steps` steps.

    `questions` are held out: `Question`s, or rows with TRL's columns. `verifier` is a task, one of its verifiers, or a
    reward function with TRL's signature, synchronous or asynchronous. `correct_from` is the smallest value that means
    correct, `verifier_timeout_s` the time limit of one call; one that raises or hangs leaves its completions unknown.
    `teachers` come beside the trainer's own: names of contexts (the live student, shown its own solutions) and models
    by name. `objectives` default to what the trainer optimises.
    `max_overhead` is the share of the wall time that evaluations may take; `None`: no limit. `on_error="raise"` ends
    the training where an evaluation fails; otherwise that is logged and counted.
    """

    def __init__(
        self,
        trainer: Any,
        questions: Iterable[Any],
        verifier: Any,
        *,
        every_n_steps: int = 100,
        teachers: Mapping[str, Any] | Sequence[Any] = (),
        objectives: Sequence[Objective] | None = None,
        budget: Budget = SMALL,
        sampling: Sampling | None = None,
        max_overhead: float | None = 0.05,
        on_error: Literal["log", "raise"] = "log",
        correct_from: float = CORRECT_FROM,
        verifier_timeout_s: float = TIMEOUT_S,
    ) -> None:
        if every_n_steps < 1:
            raise OpdAlignError(f"every_n_steps must be at least 1, not {every_n_steps}")
        if max_overhead is not None and not 0 < max_overhead <= 1:
            raise OpdAlignError(f"max_overhead is a share of the wall time, above 0 and at most 1, not {max_overhead}")
        if on_error not in ("log", "raise"):
            raise OpdAlignError(f"on_error is 'log' or 'raise', not {on_error!r}")
        self.host = adapt_trainer(trainer, sampling)
        if any(isinstance(each, AlignmentCallback) for each in trainer.callback_handler.callbacks):
            raise OpdAlignError(
                "this trainer has an AlignmentCallback, and two would write the same keys and files; give all teachers "
                "and questions to one, or before: trainer.remove_callback(AlignmentCallback)"
            )
        faculty = TeacherSet.of(self.host, teachers)
        taught = faculty.contexts or faculty.models or self.host.teacher is not None or self.host.server is not None
        if objectives is None:
            # A trainer that follows rewards has no loss of its own to compare a teacher by.
            rewarded = taught and self.host.objective.signal == "reward"
            objectives = [self.host.objective, *([ReverseKL()] if rewarded else [])]
        if not isinstance(budget, Budget):
            raise OpdAlignError(f"budget is a Budget(initial=..., targeted=...), not {budget!r}")
        named = [each for each in objectives if not hasattr(each, "signal")]
        if named:
            raise OpdAlignError(f"objectives are objects such as opd_align.ReverseKL(), not {named[0]!r}")
        self.settings = Settings(objectives, budget, abreast=ABREAST)
        self.folder = Path(trainer.args.output_dir) / FOLDER
        held_out = HeldOut.of(questions, verifier, correct_from=correct_from, timeout_s=verifier_timeout_s)
        self.evaluator = Evaluator(self.host, held_out, faculty, self.folder)
        self.evaluator.check(self.settings)
        self.governor = OverheadLimit(every_n_steps, max_overhead, len(self.evaluator.held_out.questions))
        self.on_error = on_error
        self.failures = 0
        self.latest: Analysis | None = None
        self._run: str | None = None
        self._put_off = self._said = False
        self._since = time.perf_counter()

    @property
    def teachers(self) -> list[str]:
        """The names of those that are evaluated, the trainer's own first."""
        return self.evaluator.teachers

    # -- the trainer's events -----------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        with preserve_rng_state():
            self._resume(state)
            self._since = time.perf_counter()
            if self.governor.due <= state.global_step:
                self._evaluate(state, control)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.governor.due <= state.global_step:
            with preserve_rng_state():
                self._evaluate(state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        checkpoint = self.folder.parent / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and checkpoint.is_dir():
            known = {**self._counted().state(), "failures": self.failures, "latest": self._run}
            with suppress(OSError):  # the schedule is all that would be lost
                (checkpoint / STATE).write_text(json.dumps(known) + "\n", encoding="utf-8")

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and logs and not any(key.startswith(f"{ROOT}/") for key in logs):
            numbers = {key: value for key, value in logs.items() if isinstance(value, int | float) and isfinite(value)}
            self._append(TRAINING, {"step": state.global_step, "at": time.time(), **numbers})

    # -- one evaluation -----------------------------------------------------------------------------------------

    def evaluate(self, scale: float = 1.0) -> tuple[Analysis, str]:
        """An evaluation of the student as it is now, by all processes together, on a share of the questions.

        Nothing is logged; beside the analysis comes the name of its run directory.
        """
        verifier = self.evaluator.held_out.verifier
        calls, failures = verifier.calls, verifier.failures
        evaluated = self.evaluator.evaluate(self.settings, self.host.trainer.state.global_step, scale)
        counts = on_all_ranks(lambda: (verifier.calls - calls, verifier.failures - failures, verifier.last_failure))
        reasons = [reason for _, _, reason in counts if reason is not None]
        check_verifier_calls(
            sum(n for n, _, _ in counts), sum(n for _, n, _ in counts), reasons[-1] if reasons else None
        )
        return evaluated

    def _evaluate(self, state: TrainerState, control: TrainerControl) -> None:
        step, began = state.global_step, time.perf_counter()
        governor = self._counted()
        # One clock decides for all: processes that disagreed about an evaluation would wait for each other for ever.
        governor = on_all_ranks(lambda: governor)[0]
        scale = governor.scale()
        if scale is None:
            self.governor, self._since = governor.waiting(step), began
            if not self._put_off and state.is_world_process_zero:
                self._put_off = True
                logger.warning(
                    "the evaluation due at step %d would take more than max_overhead=%g of the time; it is put off, as "
                    "later ones will be without a word, until the training has gone on for long enough (about step "
                    "%d). max_overhead=None sets no limit",
                    step, governor.max_overhead, self.governor.due,
                )  # fmt: skip
            return
        error: Exception | None = None
        run: str | None = None
        numbers: dict[str, float] = {}
        try:
            self.latest, run = self.evaluate(scale)
            self._run = run
            numbers = logged_metrics(self.latest)
        except Exception as failure:
            error = failure
        seconds = on_all_ranks(lambda: time.perf_counter() - began)[0]
        self.governor = (governor.evaluated if error is None else governor.failed)(step, scale, seconds)
        self.failures += error is not None
        numbers |= {
            evaluation_metric(key).key(): float(value)
            for key, value in {
                "seconds": seconds,
                "overhead_share": self.governor.share,
                "scale": scale,
                **({} if governor.last is None else {"interval": step - governor.last}),
                "failures": self.failures,
                "verifier_failures": sum(on_all_ranks(lambda: self.evaluator.held_out.verifier.failures)),
            }.items()
        }
        try:
            self._tell(state, control, numbers, run, error)
        except Exception as failure:  # a tracker that is down, a disk that is full
            logger.warning("the evaluation at step %d could not be reported: %s", step, failure, exc_info=failure)
            self.failures += 1
            error = error or failure
        self._since = time.perf_counter()
        telling_s = self._since - began - seconds
        self.governor = replace(self.governor, spent_s=self.governor.spent_s + max(telling_s, 0.0))
        if error is not None and self.on_error == "raise":
            raise error

    def _tell(
        self,
        state: TrainerState,
        control: TrainerControl,
        numbers: dict[str, float],
        run: str | None,
        error: Exception | None,
    ) -> None:
        known = {key: value for key, value in numbers.items() if isfinite(value)}
        trainer, should_log = self.host.trainer, control.should_log
        # Not the trainer's own `log`: TRL's would empty its metrics into this row. And a row that was logged resets
        # `should_log`, which would swallow the trainer's own row of this step.
        try:
            Trainer.log(trainer, known)
        finally:
            control.should_log = trainer.control.should_log = should_log
        if not state.is_world_process_zero:
            return
        if error is not None and self.on_error == "log":
            logger.warning(
                "the evaluation at step %d failed, training goes on: %s: %s",
                state.global_step, type(error).__name__, error, exc_info=error,
            )  # fmt: skip
        elif error is None and not self._said and not any(key.endswith("/alignment/mean") for key in known):
            self._said = True
            logger.warning("the evaluation at step %d found nothing to compare: %s", state.global_step, self._nothing())
        self._append(
            HISTORY,
            {
                "step": state.global_step,
                "max_steps": state.max_steps,
                "epoch": state.epoch,
                "at": time.time(),
                "trainer": type(trainer).__name__,
                "run": run,
                "error": None if error is None else f"{type(error).__name__}: {error}",
                "metrics": {key: value if isfinite(value) else None for key, value in numbers.items()},
            },
        )
        if error is None and self.latest is not None and "wandb" in trainer.args.report_to:
            import wandb

            if wandb.run is not None:
                shown = {f"train/{key}": value for key, value in wandb_media(self.latest, wandb).items()}
                wandb.log({**shown, "train/global_step": state.global_step})

    def _nothing(self) -> str:
        """Why there is no node, as far as can be seen from here."""
        questions = self.latest.questions.to_pylist() if self.latest is not None else []
        rates = [row["pass_rate"] for row in questions if row["pass_rate"] is not None and isfinite(row["pass_rate"])]
        if not rates:
            return "the verifier could judge none of the rollouts"
        if max(rates) == 0:
            least = self.evaluator.held_out.verifier.correct_from
            return f"no rollout is correct (of a reward function's values, {least} and more mean correct)"
        if min(rates) == 1:
            return "every rollout is correct"
        return "no token was visited often enough; a larger budget would help: budget=Budget(initial=..., targeted=...)"

    # -- what goes on around it ---------------------------------------------------------------------------------

    def _counted(self) -> OverheadLimit:
        """The governor, told of the training since it last heard."""
        now = time.perf_counter()
        counted = self.governor.trained(now - self._since)
        self.governor, self._since = counted, now
        return counted

    def _resume(self, state: TrainerState) -> None:
        """Every training has a schedule of its own; a resumed one goes on with that of its checkpoint."""
        step, every = state.global_step, self.governor.every
        fresh = OverheadLimit(every, self.governor.max_overhead, self.governor.questions, since=step)
        file = self.folder.parent / f"checkpoint-{step}" / STATE

        def known() -> tuple[OverheadLimit, int, str | None]:
            if not step or not file.is_file():
                return fresh, 0, None
            try:
                stored = json.loads(file.read_text(encoding="utf-8"))
                return fresh.resumed(stored), int(stored["failures"]), stored["latest"]
            except (OSError, ValueError, LookupError, TypeError) as error:  # half written when the training was killed
                logger.warning("%s cannot be read, the schedule begins anew: %r", file, error)
                return fresh, 0, None

        self.governor, self.failures, self._run = on_all_ranks(known)[0]
        self.latest = on_all_ranks(self._read_latest)[0]
        if step:
            self.evaluator.showing.recall()
        if self.governor.due < step:
            self.governor = replace(self.governor, due=ceil(step / every) * every)

    def _read_latest(self) -> Analysis | None:
        """What a checkpoint's latest evaluation found: gates may follow it."""
        if self._run is None or self.evaluator.rank:
            return None
        try:
            return RunDirectory.load(self.folder / self._run)
        except OpdAlignError as error:
            logger.warning("the latest evaluation before the checkpoint cannot be read: %s", error)
            return None

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / name).open("ab+") as file:
                if file.seek(0, os.SEEK_END):
                    file.seek(-1, os.SEEK_END)
                    if file.read(1) != b"\n":  # a line that a crash left half written must not take this one with it
                        file.write(b"\n")
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        except OSError as error:
            logger.warning("could not write to %s: %s", self.folder / name, error.strerror)
