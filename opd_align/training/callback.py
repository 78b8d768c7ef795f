"""`AlignmentCallback`: an alignment analysis on held-out questions every `every_n_steps` steps of a TRL training.

Training with the callback is bit-identical to training without it: the state of the models is restored, its metrics are
logged in rows of their own that stay out of `trainer.state.log_history`, and a failed evaluation is logged and counted
but never ends a training. Each evaluation writes a run directory beside the checkpoints, from which every logged number
can be recomputed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Literal

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from opd_align.core.engine import Analysis
from opd_align.core.metric_registry import for_trackers, recorded_metrics
from opd_align.core.metric_schema import ROOT
from opd_align.core.metrics import MIN_QUESTIONS
from opd_align.core.objectives import Objective, ReverseKL
from opd_align.report.history import FOLDER, HISTORY, TRAINING
from opd_align.report.training_prose import evaluation_line
from opd_align.settings import Budget, Sampling, Settings
from opd_align.training.adapters import adapt_trainer, other_rewards
from opd_align.training.alarm_log import Alert, alarm_after
from opd_align.training.checkpoint import STATE, read_latest, read_state, resumed_from
from opd_align.training.demonstration_cache import is_waiting_for_demonstrations
from opd_align.training.distributed import max_wait, on_all_ranks, wait_for_all_ranks
from opd_align.training.evaluation import DEFAULT_BUDGET, QUESTIONS_PER_GROUP
from opd_align.training.evaluation_log import (
    TrainingStep,
    append_line,
    evaluation_numbers,
    history_line,
    num_lines,
    why_no_alignment,
)
from opd_align.training.evaluator import Evaluator, TeacherSet
from opd_align.training.gated_alignment import gate_eps, gate_of, gate_state, gate_weights
from opd_align.training.held_out import HeldOut, check_verifier_calls
from opd_align.training.model_state import preserve_rng_state
from opd_align.training.outside import MAX_SNAPSHOTS, OutsideEvaluation
from opd_align.training.overhead import OverheadLimit
from opd_align.training.rewards import CORRECT_FROM, TIMEOUT_S
from opd_align.training.time_limit import completed_share
from opd_align.training.tracking import log_media, log_to_trackers, send_alerts
from opd_align.types import Floats, OpdAlignError

logger = logging.getLogger(__name__)


class AlignmentCallback(TrainerCallback):
    """Measures during a training whether following the teacher's update improves the student's success rate.

    Evaluates before the first step and then every `every_n_steps` steps. Logs metrics under `opd_align/` to all
    trackers of the trainer, and writes run directories and `history.jsonl` to `<output_dir>/opd_align`.

    Example:
        ```python
        callback = AlignmentCallback(trainer, held_out_rows, reward_function, teachers=["Self-1C"])
        trainer.add_callback(callback)
        trainer.train()
        ```

    Args:
        trainer: A TRL trainer: GKD, GOLD, IWOPD, Distillation, ServerDistillation, GRPO, GMPO, RLOO, SDPO or SDFT, or a
            subclass. If part of its loss is not evaluated, such as an overridden `compute_loss`, that is logged once.
        questions: Held-out questions: `opd_align.Question` objects, or rows with TRL's columns (`prompt` or `messages`,
            and whatever the verifier needs, such as `answer`).
        verifier: Decides which completions are correct: a task, the verifier of a task, or a reward function as TRL
            calls it, sync or async. A call that raises or exceeds its time limit leaves its completions unknown.
        correct_from: The smallest value of a reward function that means correct.
        verifier_timeout_s: Time limit of one call of the verifier, in seconds.
        every_n_steps: Optimizer steps between evaluations, at least 1. Fewer evaluations are made if they would exceed
            `max_overhead`.
        teachers: Teachers in addition to the trainer's own: names of contexts (such as `"Self-1C"`, the live student
            with one of its own correct solutions in its prompt), and models that share the student's tokenizer, by
            name: `{"Qwen3-8B": model, "Self-1C": "Self-1C"}`.
        objectives: Objectives to evaluate, such as `opd_align.ReverseKL()`. `None`: what the trainer optimizes, and
            `ReverseKL()` for the teachers of a trainer that optimizes rewards. The alignment with a gated trainer's
            gate is logged beside that without it.
        budget: Rollouts per question. Defaults to 32 initial and at most 512 targeted rollouts in 3 rounds.
        sampling: Temperature, top-p, top-k, maximum completion length in tokens, and seed. `None`: the trainer's own.
        max_overhead: Share of the wall time that evaluations may take, above 0 and at most 1. Evaluations use fewer
            questions, or are skipped, to stay below it. `None`: no limit.
        on_error: What to do when an evaluation fails. `"log"`: log and count the failure, and continue training;
            `"raise"`: raise it, which ends the training.
        where: `"inside"`: this process evaluates, and training waits. `"outside"`: the weights are saved to
            `<output_dir>/opd_align/snapshots`, and `opd-align watch <output_dir>`, on another GPU or machine, evaluates
            them; `max_overhead` then limits the time that saving takes.
        max_snapshots: With `where="outside"`: how many snapshots may wait for a watcher; the oldest make room.
        alerts: Whether to warn, in the log and with `wandb.alert`, when the trainer's teacher stops helping or harms.

    Attributes:
        latest: The latest analysis; `None` before the first.
        latest_step: The step of the latest analysis; `None` before the first.
        log_history: The rows that were logged since the training started or was resumed, like those of
            `trainer.state.log_history`.
        failures: Number of evaluations that failed.
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
        budget: Budget = DEFAULT_BUDGET,
        sampling: Sampling | None = None,
        max_overhead: float | None = 0.05,
        on_error: Literal["log", "raise"] = "log",
        correct_from: float = CORRECT_FROM,
        verifier_timeout_s: float = TIMEOUT_S,
        where: Literal["inside", "outside"] = "inside",
        max_snapshots: int = MAX_SNAPSHOTS,
        alerts: bool = True,
    ) -> None:
        if every_n_steps < 1:
            raise OpdAlignError(f"every_n_steps must be at least 1, not {every_n_steps}")
        if max_overhead is not None and not 0 < max_overhead <= 1:
            raise OpdAlignError(
                f"max_overhead must be a share of the wall time, above 0 and at most 1, not {max_overhead}"
            )
        if on_error not in ("log", "raise"):
            raise OpdAlignError(f"on_error must be 'log' or 'raise', not {on_error!r}")
        if where not in ("inside", "outside"):
            raise OpdAlignError(f"where must be 'inside' or 'outside', not {where!r}")
        self.adapter = adapt_trainer(trainer, sampling)
        if any(isinstance(callback, AlignmentCallback) for callback in trainer.callback_handler.callbacks):
            raise OpdAlignError(
                "this trainer already has an AlignmentCallback, and two would write the same keys and files; pass all "
                "teachers and questions to one callback, or first call trainer.remove_callback(AlignmentCallback)"
            )
        teacher_set = TeacherSet.of(self.adapter, teachers)
        own_teacher = self.adapter.teacher is not None or self.adapter.server is not None
        has_teacher = own_teacher or teacher_set.contexts or teacher_set.models
        own_objectives = objectives is not None
        if objectives is None:
            # A trainer that optimizes rewards has no distillation loss to compare teachers by.
            add_distillation = has_teacher and self.adapter.objective.signal == "reward"
            distillation = self.adapter.distillation or ReverseKL()
            objectives = [self.adapter.objective, *([distillation] if add_distillation else [])]
        if not isinstance(budget, Budget):
            raise OpdAlignError(f"budget must be a Budget(initial=..., targeted=...), not {budget!r}")
        for objective in objectives:
            if not hasattr(objective, "signal"):
                raise OpdAlignError(f"objectives must be objects such as opd_align.ReverseKL(), not {objective!r}")
        self.settings = Settings(objectives, budget, questions_per_group=QUESTIONS_PER_GROUP)
        self.folder = Path(trainer.args.output_dir) / FOLDER
        held_out = HeldOut.of(questions, verifier, correct_from=correct_from, timeout_s=verifier_timeout_s)
        self._unevaluated = (
            *(self.adapter.with_any_objective if own_objectives else self.adapter.unevaluated),
            *other_rewards(self.adapter, held_out.verifier.function),
        )
        self.evaluator = Evaluator(self.adapter, held_out, teacher_set, self.folder)
        self.evaluator.check(self.settings)
        self.outside: OutsideEvaluation | None = None
        if where == "outside":
            self.outside = OutsideEvaluation(
                self.evaluator, self.settings, verifier,
                loss_recognised=not self._unevaluated, max_snapshots=max_snapshots, alerts=alerts,
            )  # fmt: skip
        # A snapshot has one size, whatever is evaluated on it later.
        n_questions = 1 if self.outside else len(held_out.questions)
        self.schedule = OverheadLimit(every_n_steps, max_overhead, n_questions, self.evaluator.world)
        self.on_error, self.alerts = on_error, alerts
        self.failures = 0
        self.latest: Analysis | None = None
        self.latest_step: int | None = None
        self._latest_run: str | None = None
        self.log_history: list[dict[str, float]] = []
        self._logged: set[str] = set()
        self._skip_logged = self._empty_logged = False
        self._counted_until = time.perf_counter()
        self._log_limits(held_out)

    @property
    def teachers(self) -> list[str]:
        """The names of the teachers that are evaluated, the trainer's own first."""
        return self.evaluator.teachers

    # -- the trainer's events -----------------------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        with preserve_rng_state(), max_wait(args.ddp_timeout):
            self._resume(state)
            if self.outside is not None:
                self.outside.begin(state.global_step)
                self._take_result(state)
            self._counted_until = time.perf_counter()
            if self.schedule.next_step <= state.global_step:
                self._evaluate(state, control)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        due = self.schedule.next_step <= state.global_step
        # One process reads results at every step; several have to agree, so they do when they meet anyway.
        if due or (self.outside is not None and self.evaluator.world == 1):
            with preserve_rng_state(), max_wait(args.ddp_timeout):
                if self.outside is not None:
                    self._take_result(state)
                if due:
                    self._evaluate(state, control)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.outside is not None:
            self.outside.finish(state.global_step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        checkpoint = self.folder.parent / f"checkpoint-{state.global_step}"
        if state.is_world_process_zero and checkpoint.is_dir():
            stored = {
                **self._count_training_time().state_dict(),
                "failures": self.failures,
                "latest": self._latest_run,
                "latest_step": self.latest_step,
                "gate": gate_state(self.adapter.trainer),
            }
            with suppress(OSError):  # only the schedule would be lost
                (checkpoint / STATE).write_text(json.dumps(stored) + "\n", encoding="utf-8")

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and logs and not any(key.startswith(f"{ROOT}/") for key in logs):
            numbers = {key: value for key, value in logs.items() if isinstance(value, int | float) and isfinite(value)}
            self._append(TRAINING, {"step": state.global_step, "at": time.time(), **numbers})

    # -- one evaluation -----------------------------------------------------------------------------------------

    def evaluate(self, scale: float = 1.0, *, time_limit_s: float | None = None) -> tuple[Analysis, str]:
        """Evaluates the student with its present weights on a share of the questions; all processes must call it.

        Nothing is logged. Returns the analysis and the name of its run directory.

        Args:
            scale: Share of the questions, above 0 and at most 1.
            time_limit_s: Sampling ends after so many seconds; questions that are not sampled by then are left out.
                `None`: no limit other than `Budget.seconds`.
        """
        verifier = self.evaluator.held_out.verifier
        calls, failures = verifier.calls, verifier.failures
        step = self.adapter.trainer.state.global_step
        evaluated = self.evaluator.evaluate(self.settings, step, scale, time_limit_s=time_limit_s)
        counts = on_all_ranks(
            lambda: (verifier.calls - calls, verifier.failures - failures, verifier.last_failure), "verifier"
        )
        reasons = [reason for _, _, reason in counts if reason is not None]
        check_verifier_calls(
            sum(n for n, _, _ in counts), sum(n for _, n, _ in counts), reasons[-1] if reasons else None
        )
        return evaluated

    def _evaluate(self, state: TrainerState, control: TrainerControl) -> None:
        step, start = state.global_step, time.perf_counter()
        schedule = self._count_training_time()
        # The clock of rank 0 decides for all: processes that disagreed about an evaluation would deadlock.
        schedule = on_all_ranks(lambda: schedule, "schedule")[0]
        scale = schedule.scale()
        if scale is None:
            self.schedule, self._counted_until = schedule.skip(step), start
            if not self._skip_logged and state.is_world_process_zero:
                self._skip_logged = True
                logger.warning(
                    "Skipping evaluation at step %d (would exceed max_overhead=%g); next at about step %d; further "
                    "skips are not logged. Use max_overhead=None for no limit.",
                    step, schedule.max_overhead, self.schedule.next_step,
                )  # fmt: skip
            return
        if self.outside is not None:
            self._push_snapshot(self.outside, state, schedule, start)
            return
        error: Exception | None = None
        analysis: Analysis | None = None
        run: str | None = None
        numbers: dict[str, float] = {}
        try:
            analysis, run = self.evaluate(scale, time_limit_s=schedule.time_limit_s(scale))
            numbers = recorded_metrics(analysis, self._gate_weights(analysis))
        except Exception as failure:
            error = failure
        # All ranks come here, whatever happened on them, and agree on whether the evaluation failed.
        measured = time.perf_counter() - start, self.evaluator.held_out.verifier.failures
        ranks, error = wait_for_all_ranks("evaluation", 0, measured, error)
        seconds = ranks[0][0]
        if error is None and analysis is not None:
            self.latest, self.latest_step, self._latest_run = analysis, step, run
            selected = max(self.evaluator.num_selected, len(analysis.questions))
            # An evaluation that was cut by its time limit took its time for a part of the work.
            self.schedule = schedule.add_evaluation(
                step, scale * completed_share(analysis.questions, selected), seconds
            )
            scale *= len(analysis.questions) / selected
        else:
            run, numbers = None, {}
            self.schedule = schedule.add_failure(step, scale, seconds)
        waiting = is_waiting_for_demonstrations(error)
        self.failures += error is not None and not waiting
        interval = {} if schedule.last_step is None else {"interval": step - schedule.last_step}
        alarm, alerts = on_all_ranks(lambda: self._alarm(step, numbers), "alarm")[0]
        numbers |= alarm | evaluation_numbers(
            seconds=seconds,
            overhead_share=self.schedule.overhead_share,
            scale=scale,
            **interval,
            failures=self.failures,
            without_demonstration=waiting,
            loss_recognised=not self._unevaluated,
            verifier_failures=sum(failures for _, failures in ranks),
        )
        unreported: Exception | None = None
        try:
            self._report(state, control, numbers, run, error, alerts)
        except Exception as failure:  # a tracker that is not reachable, a full disk
            unreported = failure
        _, unreported = wait_for_all_ranks("logging", 0, None, unreported)
        if unreported is not None:
            if state.is_world_process_zero:
                logger.warning("Could not log the evaluation at step %d: %s", step, unreported, exc_info=unreported)
            self.failures += 1
            error = error or unreported
        self._counted_until = time.perf_counter()
        reporting_s = max(self._counted_until - start - seconds, 0.0)
        self.schedule = replace(self.schedule, evaluation_s=self.schedule.evaluation_s + reporting_s)
        if error is not None and not waiting and self.on_error == "raise":
            raise error

    def _push_snapshot(
        self, outside: OutsideEvaluation, state: TrainerState, schedule: OverheadLimit, start: float
    ) -> None:
        """Leaves a snapshot for a watcher; one that cannot be written is counted and logged."""
        error: Exception | None = None
        try:
            outside.push(state)
        except Exception as failure:  # a full disk
            error = failure
        ranks, error = wait_for_all_ranks("snapshot", 0, time.perf_counter() - start, error)
        book = schedule.add_evaluation if error is None else schedule.add_failure
        self.schedule, self._counted_until = book(state.global_step, 1.0, ranks[0]), time.perf_counter()
        if error is not None:
            self.failures += 1
            if self.on_error == "raise":
                raise error
            if state.is_world_process_zero:
                logger.warning("No snapshot at step %d, training continues: %s", state.global_step, error)

    def _take_result(self, state: TrainerState) -> None:
        """Makes the newest result of a watcher, if one has arrived, the latest one."""
        found = None if self.outside is None else self.outside.newest_result(state.global_step)
        if found is not None:
            self.latest, self.latest_step, self._latest_run = found
            if state.is_world_process_zero:
                now, of = state.global_step, found[1]
                logger.info("The evaluation of step %d arrived at step %d (%d steps late)", of, now, now - of)

    def _gate_weights(self, analysis: Analysis) -> dict[tuple[str, str], Floats] | None:
        """What the trainer's gate, as it was until now, gives to each node; `None` without a gate."""
        gate = gate_of(self.adapter.trainer)
        if gate is None:
            return None
        try:
            return gate_weights(gate, analysis, eps=gate_eps(self.adapter.trainer))
        except Exception as error:  # a gate of the user's own that needs what only a training batch has
            self._log_once(
                logging.WARNING,
                "The alignment with the gate %s is not logged, since the gate cannot be applied to the analyzed "
                "rollouts: %s: %s", gate.name, type(error).__name__, error,
            )  # fmt: skip
            return None

    def _alarm(self, step: int, numbers: Mapping[str, float]) -> tuple[dict[str, float], list[Alert]]:
        """Rank 0 reads the history, which other nodes may not see."""
        if self.evaluator.rank:
            return {}, []
        found, alerts = alarm_after(self.folder, step, numbers, distilled=self.evaluator.distilled)
        return found, alerts if self.alerts else []

    def _report(
        self,
        state: TrainerState,
        control: TrainerControl,
        numbers: dict[str, float],
        run: str | None,
        error: Exception | None,
        alerts: Sequence[Alert],
    ) -> None:
        finite = for_trackers(numbers)
        trainer, waiting = self.adapter.trainer, is_waiting_for_demonstrations(error)
        row = {**finite, "epoch": float(state.epoch or 0.0)}
        self.log_history.append({**row, "step": state.global_step})
        if state.is_world_process_zero:  # before anything that may fail: a tracker that is not reachable, for example
            at = TrainingStep(state.global_step, state.max_steps, state.epoch, type(trainer).__name__)
            more = {"next_step": self.schedule.next_step, "alerts": [asdict(alert) for alert in alerts]}
            self._append(HISTORY, history_line(at, numbers, run, error, **more))
        printer = log_to_trackers(trainer, state, control, row)
        if not state.is_world_process_zero:
            return
        if error is None or waiting:
            printer(evaluation_line(state.global_step, numbers, waiting=str(error) if waiting else None))
        if waiting:
            self._log_once(logging.INFO, "No result at step %d: %s", state.global_step, error)
        elif error is not None and self.on_error == "log":
            logger.warning(
                "Evaluation at step %d failed, training continues: %s: %s",
                state.global_step, type(error).__name__, error, exc_info=error,
            )  # fmt: skip
        elif error is None and not self._empty_logged and not any(key.endswith("/alignment/mean") for key in finite):
            self._empty_logged = True
            why = why_no_alignment(self.latest, self.evaluator.held_out.verifier.correct_from)
            logger.warning("Evaluation at step %d has no alignment: %s", state.global_step, why)
        send_alerts(trainer, alerts)
        if error is None and self.latest is not None:
            log_media(trainer, state.global_step, self.latest, num_lines(self.folder / HISTORY))

    def _log_limits(self, held_out: HeldOut) -> None:
        """Logs once what users should know before they read the first result."""
        trainer = self.adapter.trainer
        if not trainer.is_world_process_zero():
            return
        if self._unevaluated:
            of_objective = set(self._unevaluated) & (
                set(self.adapter.unevaluated) - set(self.adapter.with_any_objective)
            )
            logger.warning(
                "%s optimizes more than what is evaluated (%s). Not evaluated: %s.%s",
                type(trainer).__name__,
                ", ".join(objective.name for objective in self.settings.objectives),
                "; ".join(self._unevaluated),
                " Pass objectives=[...] to evaluate your own objective." if of_objective else "",
            )
        if len(held_out.questions) < MIN_QUESTIONS:
            logger.warning(
                "There are too few held-out questions for confidence intervals: %d, at least %d are needed.",
                len(held_out.questions), MIN_QUESTIONS,
            )  # fmt: skip

    def _log_once(self, level: int, message: str, *args: Any) -> None:
        if message not in self._logged and self.adapter.trainer.is_world_process_zero():
            self._logged.add(message)
            logger.log(level, message, *args)

    # -- schedule and files -------------------------------------------------------------------------------------

    def _count_training_time(self) -> OverheadLimit:
        """The schedule, with the training time since it was last counted."""
        now = time.perf_counter()
        self.schedule, self._counted_until = self.schedule.add_training(now - self._counted_until), now
        return self.schedule

    def _resume(self, state: TrainerState) -> None:
        """Starts a new schedule, or continues that of the checkpoint that the training is resumed from."""
        step, every_n_steps = state.global_step, self.schedule.every_n_steps
        new = OverheadLimit(
            every_n_steps,
            self.schedule.max_overhead,
            self.schedule.num_questions,
            self.evaluator.world,
            start_step=step,
        )
        trainer = self.adapter.trainer
        checkpoint = resumed_from(trainer) or self.folder.parent / f"checkpoint-{step}"
        gate = gate_of(trainer)

        def read() -> tuple[OverheadLimit, int, dict[str, Any]]:
            # The other ranks get what rank 0 reads: they may be on nodes that do not see its files.
            if not step or self.evaluator.rank:
                return new, 0, {}
            opened = f"; gate {gate.name} starts open" if gate is not None and gate_state(trainer) else ""
            return read_state(checkpoint / STATE, new, opened)

        self.schedule, self.failures, stored = on_all_ranks(read, "reading the schedule")[0]
        self._latest_run, self.latest_step = stored.get("latest"), stored.get("latest_step")
        latest = None if self.evaluator.rank else self._latest_run
        self.latest = on_all_ranks(lambda: read_latest(checkpoint, latest), "reading the latest evaluation")[0]
        if gate is not None:
            own = stored.get("gate")
            gate.load_state_dict(own if isinstance(own, dict) else {})
        if step:
            self.evaluator.demonstrations.load(self.evaluator.rank)
        if self.schedule.next_step < step:
            self.schedule = replace(self.schedule, next_step=ceil(step / every_n_steps) * every_n_steps)

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        try:
            append_line(self.folder / name, line)
        except OSError as error:
            logger.warning("Could not write to %s: %s", self.folder / name, error.strerror)
