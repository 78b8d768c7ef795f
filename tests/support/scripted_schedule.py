"""A schedule that follows a script instead of evaluations."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
from transformers import TrainerCallback

from opd_align.core.random_walk import Reading
from opd_align.training import AlignmentSchedule


class Scripted(TrainerCallback):
    """Stands for a callback: at its steps, an evaluation has found what the script says; `None`: it has failed.

    `pass_rates` has the rates of an evaluation by step and question, where they matter.
    """

    def __init__(self, trainer, script, teachers=("teacher",), kind="DistillationTrainer", pass_rates=None):
        self.pass_rates = pass_rates or {}
        self.adapter = SimpleNamespace(trainer=trainer, kind=kind)
        self.evaluator = SimpleNamespace(distilled=list(teachers))
        self.settings = SimpleNamespace(objectives=[SimpleNamespace(name="jsd_1", signal="teacher")])
        self.schedule = SimpleNamespace(last_step=None)
        self.script, self.latest, self.latest_step = script, object(), None

    def on_train_begin(self, args, state, control, **kwargs):
        self.on_step_end(args, state, control)

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step in self.script:
            self.schedule.last_step = state.global_step
            if self.script[state.global_step] is not None:
                self.latest_step = state.global_step
                rates = self.pass_rates.get(state.global_step, {})
                questions = {"question": list(rates), "pass_rate": pa.array(rates.values(), pa.float64())}
                self.latest = SimpleNamespace(questions=pa.table(questions))


class ScriptedSchedule(AlignmentSchedule):
    """A schedule that reads the script instead of analyses."""

    def __init__(self, callback, **options):
        super().__init__(callback, **options)
        self.log.take = self.take

    def take(self, callback):
        step = callback.latest_step
        if step is None or (self.log.step is not None and step <= self.log.step):
            return False
        self.log.step, self.log.evaluations = step, self.log.evaluations + 1
        found = callback.script[step]
        for teacher, mean in (found if isinstance(found, dict) else {"teacher": found}).items():
            self.log.readings.setdefault((teacher, "all"), []).append(Reading(step, mean, 0.05))
        return True
