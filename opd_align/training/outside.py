"""`AlignmentCallback(..., where="outside")`: the training leaves snapshots, and another process evaluates them.

The training pays for saving the student and for nothing else. It never waits for a watcher: one that is late, killed,
restarted or absent changes nothing here, and what cannot be written is counted and logged. Results come back through
`history.jsonl`, for gates that calibrate on them; they are then as old as the watcher was late.
"""

from __future__ import annotations

import json
import logging
import time
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from opd_align.backends.loading import resolve_reference, update_with_weights
from opd_align.core.engine import Analysis
from opd_align.report.history import FINISHED, HISTORY, RUN
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Settings
from opd_align.training.adapters import TrainerAdapter
from opd_align.training.calibrated_gate import CalibratedDivergence
from opd_align.training.distributed import on_all_ranks
from opd_align.training.evaluation import OWN
from opd_align.training.evaluator import Evaluator
from opd_align.training.gated_alignment import gate_eps, gate_of
from opd_align.training.gates import DivergenceAbove
from opd_align.training.model_state import autocast_dtype, gathered_parameters, is_fsdp2, is_zero3, unwrapped
from opd_align.training.portable import to_json
from opd_align.training.snapshots import TEMPORARY, list_snapshots, remove_remains, write_snapshot
from opd_align.training.watch_spec import FOLDER, TOKENIZER, TeacherRef, WatchSpec, write_spec
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

MAX_SNAPSHOTS = 4
"""Snapshots that may wait for a watcher, by default."""


class OutsideEvaluation:
    """The part of an evaluation outside the training that the training does; all processes call its methods together.

    Args:
        evaluator: The evaluator of the training, which knows questions and teachers.
        settings: Settings of the analysis.
        verifier: The verifier as the user passed it.
        loss_recognised: Whether the objectives are the trainer's whole loss.
        max_snapshots: How many snapshots may wait for a watcher.
        alerts: Whether the watcher sends alerts.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        settings: Settings,
        verifier: Any,
        *,
        loss_recognised: bool,
        max_snapshots: int,
        alerts: bool = True,
    ) -> None:
        if max_snapshots < 1:
            raise OpdAlignError(f"max_snapshots must be at least 1, not {max_snapshots}")
        self.evaluator, self.adapter, self.max_snapshots = evaluator, evaluator.adapter, max_snapshots
        self.folder, self._read_until = evaluator.folder, 0
        model = self.adapter.trainer.model
        with self.adapter.loss_precision():
            autocast = autocast_dtype(model)
        held_out = evaluator.held_out
        self.spec = WatchSpec(
            held_out.questions,
            verifier,
            self.adapter.sampling,
            settings,
            tuple(_teachers(evaluator)),
            held_out.verifier.correct_from,
            held_out.verifier.timeout_s,
            TOKENIZER,
            dict(self.adapter.template),
            dtype=_dtype(model),
            attention=getattr(model.config, "_attn_implementation", None),
            autocast=autocast,
            base=_base_model(model),
            trainer=type(self.adapter.trainer).__name__,
            loss_recognised=loss_recognised,
            alerts_on=tuple(evaluator.distilled) if alerts else (),
        )
        self.spec.as_json()  # refuses what another process could not read

    def begin(self, step: int) -> None:
        """Describes the training for watchers; what cannot be written is logged."""
        if self.evaluator.rank:
            return
        try:
            teachers = [self._with_digest(teacher) for teacher in self.spec.teachers]
            spec = replace(self.spec, teachers=tuple(teachers), wandb=_wandb_run(self.adapter))
            remove_remains(self.folder, TEMPORARY)
            if not step:
                self._remove_snapshots()
            (self.folder / FINISHED).unlink(missing_ok=True)
            self.adapter.tokenizer.save_pretrained(self.folder / FOLDER / TOKENIZER)
            self.adapter.trainer.model.config.save_pretrained(self.folder / FOLDER / TOKENIZER)  # names its class
            write_spec(self.folder, spec)
            # A new training ignores the results of one that was here before; a resumed one continues with them.
            file = self.folder / HISTORY
            self._read_until = 0 if step else file.stat().st_size if file.exists() else 0
        except Exception as error:  # a full disk, for example: no reason to end a training
            logger.warning("Could not write to %s, so this training cannot be watched: %s", self.folder, error)

    def push(self, state: Any) -> None:
        """Saves the student with its present weights."""
        trainer = self.adapter.trainer
        with gathered_parameters(trainer.accelerator, self.adapter.student) as (student,):

            def save() -> None:
                if self.evaluator.rank == 0:
                    meta = {
                        "max_steps": state.max_steps,
                        "epoch": state.epoch,
                        "at": time.time(),
                        "gate": self._gate(),
                        "gate_eps": gate_eps(trainer),
                    }
                    write_snapshot(
                        self.folder, state.global_step, student.save_pretrained, meta,
                        size=_saved_bytes(student), keep=self.max_snapshots,
                    )  # fmt: skip

            on_all_ranks(save, "snapshot")

    def finish(self, step: int) -> None:
        """Tells watchers that no further snapshot will come."""
        if self.evaluator.rank == 0:
            with suppress(OSError):  # a watcher then waits until it is stopped, or idle for too long
                (self.folder / FINISHED).write_text(f"{step}\n", encoding="utf-8")

    def newest_result(self, step: int) -> tuple[Analysis, int, str] | None:
        """The newest result that has arrived since the last call: the analysis, its step and its run directory.

        Rank 0 reads it, and all get the same; `None` if there is none. Steps after `step`, the present one, are of a
        training that was resumed from before them.
        """
        return on_all_ranks(lambda: None if self.evaluator.rank else self._read(step), "results of a watcher")[0]

    def _read(self, step: int) -> tuple[Analysis, int, str] | None:
        file, found = self.folder / HISTORY, None
        try:
            if not file.exists() or file.stat().st_size <= self._read_until:
                return None
            with file.open("rb") as opened:
                opened.seek(self._read_until)
                for line in opened:
                    if not line.endswith(b"\n"):  # still being written
                        break
                    self._read_until += len(line)
                    with suppress(ValueError, TypeError, LookupError):
                        entry = json.loads(line)
                        if entry["run"] and RUN.fullmatch(entry["run"]) and entry["step"] <= step:
                            found = int(entry["step"]), str(entry["run"])
            return None if found is None else (RunDirectory.load(self.folder / found[1]), *found)
        except Exception as error:  # whatever another process has written there
            logger.warning("Cannot read a result of the watcher: %s", error)
            return None

    def _remove_snapshots(self) -> None:
        """Removes those of a training that was here before: they do not belong to what is evaluated from now on."""
        old = list_snapshots(self.folder)
        for snapshot in old:
            snapshot.remove()
        if old:
            steps = ", ".join(str(snapshot.step) for snapshot in old)
            logger.warning("Removing snapshots of an earlier training in %s that no watcher evaluated: step %s",
                           self.folder.parent, steps)  # fmt: skip

    def _gate(self) -> Any:
        """The trainer's gate as it is now, as JSON; `None` without one, or if another process cannot apply it."""
        gate = gate_of(self.adapter.trainer)
        if isinstance(gate, CalibratedDivergence):
            gate = DivergenceAbove(threshold=gate.threshold, measure=gate.measure)
        try:
            return None if gate is None else to_json(gate, "gate")
        except OpdAlignError as error:
            logger.debug("The alignment with the gate is not evaluated outside: %s", error)
            return None

    def _with_digest(self, teacher: TeacherRef) -> TeacherRef:
        own = {OWN: self.adapter.teacher, **(self.evaluator.teacher_set.models or {})}
        accelerator, model = self.adapter.trainer.accelerator, own.get(teacher.name)
        # Sharded weights are not gathered for this: the name has to do.
        if teacher.model is None or model is None or is_zero3(accelerator) or is_fsdp2(model):
            return teacher
        digest = update_with_weights(blake2b(digest_size=16), unwrapped(accelerator, model)).hexdigest()
        return replace(teacher, digest=digest)


def _teachers(evaluator: Evaluator) -> list[TeacherRef]:
    """The teachers of a training in the order of its results; refuses those that another process cannot load."""
    adapter, teacher_set = evaluator.adapter, evaluator.teacher_set
    if adapter.context is not None and adapter.teacher is not None:
        raise OpdAlignError(
            f"where='outside' does not support the teacher of this {adapter.kind}: it changes during training; use "
            "teacher_model_kind='live', or where='inside'"
        )
    contexts = {context.name: context for context in teacher_set.contexts}
    models = {OWN: adapter.teacher, **(teacher_set.models or {})}
    made = []
    for name in evaluator.teachers:
        if name in contexts:
            made.append(TeacherRef(name, contexts[name]))
        elif name == OWN and adapter.server is not None:
            made.append(TeacherRef(name, url=adapter.server, served_as=adapter.trainer.teacher_client.model))
        else:
            made.append(_teacher_model(name, unwrapped(adapter.trainer.accelerator, models[name])))
    return made


def _teacher_model(name: str, model: Any) -> TeacherRef:
    reference = str(getattr(model.config, "_name_or_path", "") or getattr(model, "name_or_path", ""))
    try:
        if not reference:
            raise OpdAlignError("it has no name")
        resolve_reference(reference)
    except OpdAlignError as error:
        raise OpdAlignError(
            f"where='outside': teacher {name!r} was not loaded from a folder or the Hub ({error}); save it with "
            "save_pretrained and load it from there, so that a watcher can"
        ) from error
    attention = getattr(model.config, "_attn_implementation", None)
    return TeacherRef(name, model=reference, dtype=_dtype(model), attention=attention)


def _dtype(model: Any) -> str:
    return str(model.dtype).removeprefix("torch.")


def _base_model(model: Any) -> str | None:
    """The model that an adapter was put on; `None` for a model without adapters."""
    if not hasattr(model, "peft_config"):
        return None
    reference = str(model.get_base_model().config._name_or_path)
    resolve_reference(reference)
    return reference


def _saved_bytes(model: Any) -> int:
    """Bytes that `save_pretrained` writes, about: of a model with adapters, those alone."""
    weights = list(model.parameters())
    if hasattr(model, "peft_config"):
        weights = [weight for weight in weights if weight.requires_grad]
    return sum(weight.numel() * weight.element_size() for weight in weights)


def _wandb_run(adapter: TrainerAdapter) -> dict[str, Any] | None:
    """The run of the training on W&B, if it reports there."""
    if "wandb" not in adapter.trainer.args.report_to:
        return None
    import wandb

    run = wandb.run
    return None if run is None else {"id": run.id, "project": run.project, "entity": run.entity or None}
