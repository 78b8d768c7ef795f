"""A worker of a study: a process that prepares it or analyzes groups of questions for another one.

Ray actors (`ray`) and processes of this machine (`processes`) run the same worker. It builds its own study from the
same plain configuration: sampler, scorers, grader; models are placed on the GPUs that it sees. It writes its rollouts
to the run directory, where it finds them again after a restart.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol
from uuid import uuid4

from opd_align.runs.execute import GroupResults, LocalExecutor
from opd_align.runs.filesystem import as_path
from opd_align.runs.manifest import describe
from opd_align.runs.rollout_store import DamagedFileWarning
from opd_align.study.build import Study
from opd_align.study.config import StudyConfig
from opd_align.study.memory_plan import placed_on_visible_gpus
from opd_align.study.prepared import PreparedStudy
from opd_align.teachers.contexts import ContextPrompt, Demonstration
from opd_align.types import Question


@dataclass(frozen=True)
class WorkStarted:
    """A process started some work; if several processes started the same work, all but the last one died."""

    work: str
    process: str


@dataclass(frozen=True)
class WorkerResult:
    """The results of the group number `index`, and messages about damaged files that were found."""

    index: int
    done: GroupResults
    damaged_files: Sequence[str]


class WorkerContext(Protocol):
    """What a worker needs to know about the run."""

    def enter(self) -> WorkerContext:
        """Called once, in the worker's process."""
        ...

    def send(self, event: Any) -> None:
        """Sends an event (`WorkStarted`, `Progress`, a phase) to the process that started the worker."""
        ...


class RemoteModel(Protocol):
    """A teacher's model in another process."""

    def teacher(self, name: str, prompt: ContextPrompt, temperature: float) -> Any:
        """A teacher with this model."""
        ...

    def load(self) -> None:
        """Loads the model now."""
        ...


class Worker:
    """Analyzes one group of questions at a time.

    Args:
        context: What the worker needs to know about the run.
        config: The configuration of the study.
        path: The run directory.
        reuse: A run directory whose rollouts are reused; `None`: no reuse.
        remote_models: The models of teachers that are loaded in another process, by name of the teacher.
        gpu_share: Share of each GPU that this worker may use, above 0.
    """

    def __init__(
        self,
        context: WorkerContext,
        config: StudyConfig,
        path: str,
        reuse: str | None,
        remote_models: Mapping[str, RemoteModel],
        gpu_share: float = 1.0,
    ) -> None:
        self.context, self.config, self.path, self.reuse = context.enter(), config, path, reuse
        self.remote_models, self.gpu_share = remote_models, gpu_share
        self.process = uuid4().hex

    @cached_property
    def study(self) -> Study:
        apart = {name: model.teacher for name, model in self.remote_models.items()}
        return Study(placed_on_visible_gpus(self.config, share=self.gpu_share, apart=apart), apart)

    def prepare(self) -> tuple[PreparedStudy, dict[str, Any]]:
        """Prepares the study; returns it with the manifest of the run."""
        self.context.send(WorkStarted("the demonstrations", self.process))
        study = self.study
        prepared = study.prepare(as_path(self.path), lambda *phase: self.context.send(phase))
        teachers = study.teachers(prepared.demonstrations)
        return prepared, describe(study.student, teachers, prepared.questions, study.grader, study.config.settings())

    def analyze(
        self, index: int, questions: Sequence[Question], demonstrations: Mapping[str, Sequence[Demonstration]]
    ) -> WorkerResult:
        """Analyzes one group of questions; rollouts that are on disk are not sampled again."""
        question_ids = ", ".join(repr(question.id) for question in questions)
        self.context.send(WorkStarted(f"question {question_ids}", self.process))
        study = self.study
        executor = LocalExecutor(
            study.student,
            study.teachers(demonstrations),
            study.grader,
            study.config.settings(),
            self.reuse,
            on_progress=self.context.send,
        )
        for model in self.remote_models.values():
            model.load()  # usage does not include loading, which happens once per process
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DamagedFileWarning)
            done = executor.analyze_groups(as_path(self.path), [questions])
        damaged_files = [str(entry.message) for entry in caught if entry.category is DamagedFileWarning]
        return WorkerResult(index, done, damaged_files)
