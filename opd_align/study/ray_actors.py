"""What the actors of a study do, each in a process of its own wherever Ray found room for it.

A worker has a study of its own, made from the same plain configuration: sampler, scorers, grader. It writes its
rollouts to the run's shelf, so that its next life finds there what was made. An actor is born with plain values and
does nothing yet: whatever goes wrong goes wrong in a call, and is told in the words of a run without actors. Others are
found by name; who hires and what comes of it is the business of `cluster`.

A teacher too large to sit beside the student is an actor of its own. Its body reads there; its last hidden states come
back (and once its output layer), never logits: scores are as exact as if it sat here.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

from opd_align.core.collect import DONE, Progress
from opd_align.core.engine import QuestionResult, analyze_group
from opd_align.runs.filesystem import as_path
from opd_align.runs.manifest import describe
from opd_align.runs.rollout_store import CachedStudent, DamagedFileWarning, RolloutStore
from opd_align.runs.run_directory import Usage
from opd_align.study.build import PreparedStudy, Study
from opd_align.study.config import ModelConfig, StudyConfig
from opd_align.teachers.contexts import ContextPrompt, Demonstration
from opd_align.types import Floats, OpdAlignError, Question, Rollouts, Tokens


@dataclass(frozen=True)
class WorkStarted:
    """Some work was begun, in which life of its actor: several lives of the same work were ended by death."""

    work: str
    life: str


@dataclass(frozen=True)
class GroupResult:
    """What a worker has to tell about a group of questions: their parts, what that took, and files found damaged."""

    at: int
    parts: Sequence[QuestionResult]
    spent: Usage
    damage: Sequence[str]


class EventQueue:
    """An actor that keeps what others have to tell until the driver asks."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def put(self, message: Any) -> None:
        """Keeps a message."""
        self.messages.append(message)

    def take(self) -> list[Any]:
        """All messages since the last time."""
        taken, self.messages = self.messages, []
        return taken


@dataclass(frozen=True)
class ActorContext:
    """Where an actor sits: what it is called, the folder that relative names start from, and the name of the mail.

    Not its handle: Ray complains of actors that are to be started again with handles of others.
    """

    name: str
    folder: str
    mail: str

    def enter(self) -> ActorContext:
        """Goes to the folder; a machine that does not have it has no use for relative names."""
        with suppress(OSError):
            os.chdir(self.folder)
        return self

    def tell(self, message: Any) -> None:
        """Returns when the message is kept: one that dies with its sender would never have been."""
        import_ray().get(self._mail.put.remote(message))

    @cached_property
    def _mail(self) -> Any:
        return import_ray().get_actor(self.mail)


class Worker:
    """An actor that works on one group of questions at a time; `apart` has the actors of teachers, both by name."""

    def __init__(
        self, desk: ActorContext, config: StudyConfig, path: str, reuse: str | None, apart: Mapping[str, str]
    ) -> None:
        self.desk, self.config, self.path, self.reuse, self.apart = desk.enter(), config, path, reuse, apart
        self.life = uuid4().hex

    @cached_property
    def bodies(self) -> dict[str, _ModelActor]:
        made = {actor: _ModelActor(actor) for actor in self.apart.values()}
        return {name: made[actor] for name, actor in self.apart.items()}

    @cached_property
    def study(self) -> Study:
        return Study(self.config, {name: body.teacher for name, body in self.bodies.items()})

    def prepare(self) -> tuple[PreparedStudy, dict[str, Any]]:
        """What the analysis starts from, and the manifest of the run."""
        self.desk.tell(WorkStarted("the demonstrations", self.life))
        study = self.study
        ready = study.prepared(as_path(self.path), lambda *phase: self.desk.tell(phase))
        teachers = study.teachers(ready.demonstrations)
        return ready, describe(study.student, teachers, ready.questions, study.grader, study.config.settings())

    def analyze(
        self, at: int, questions: Sequence[Question], demonstrations: Mapping[str, Sequence[Demonstration]]
    ) -> GroupResult:
        """One group of questions, as far as it is not on the shelf yet."""
        self.desk.tell(WorkStarted(f"question {', '.join(repr(question.id) for question in questions)}", self.life))
        study = self.study
        recorded = CachedStudent(RolloutStore(self.path, reuse=self.reuse), study.student, study.grader)
        teachers = study.teachers(demonstrations)
        for body in self.bodies.values():
            _ = body.about
        begin = time.monotonic()  # models are loaded by now, here and apart: once a life, not once a question
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", DamagedFileWarning)
            parts = analyze_group(
                recorded, teachers, questions, recorded, settings=study.config.settings(), on_progress=self.desk.tell
            )
        spent = Usage(recorded.tokens, time.monotonic() - begin)
        for question in questions:
            self.desk.tell(Progress(question.id, DONE, 1, 1))
        return GroupResult(
            at, parts, spent, [str(each.message) for each in heard if each.category is DamagedFileWarning]
        )


class ModelActor:
    """An actor that is a teacher's model: it reads completions after prompts, and tells what scoring needs of that."""

    def __init__(self, desk: ActorContext, model: ModelConfig) -> None:
        self.desk, self.config = desk.enter(), model

    @cached_property
    def model(self) -> Any:
        from opd_align.backends.loading import load_model

        self.desk.tell(WorkStarted(self.desk.name, uuid4().hex))
        chosen = self.config
        return load_model(chosen.model, adapter=chosen.adapter, dtype=chosen.dtype, device=chosen.device).model

    @cached_property
    def told(self) -> tuple[str, int | None]:
        from opd_align.backends.hf import HFTeacher

        teacher = HFTeacher(self.desk.name, self.model, lambda question: ())
        return teacher.fingerprint, teacher.context_length

    def about(self) -> tuple[str, int | None]:
        """Fingerprint and context length."""
        return self.told

    def head(self, name: str) -> Any:
        """The output layer, on the CPU; any few tokens will do to see that it is one."""
        from copy import deepcopy

        from opd_align.backends.scoring import PromptedModel, output_layer

        return deepcopy(output_layer(PromptedModel(name, self.model, range(4)))).cpu()

    def hidden_states(self, name: str, prompt: Sequence[int], completion: Tokens) -> Any:
        """The last hidden state before each token of the completion, on the CPU."""
        import torch

        from opd_align.backends.scoring import PromptedModel, hidden_states

        with torch.no_grad():
            # A view would take the prompt's states along.
            return hidden_states(PromptedModel(name, self.model, prompt), [completion]).cpu().clone()

    def token_log_probs(self, name: str, prompt: Sequence[int], rollouts: Rollouts, temperature: float) -> Floats:
        """Log-probability of every token of every rollout, flat."""
        from opd_align.backends.scoring import PromptedModel, rollout_log_probs
        from opd_align.settings import Sampling

        return rollout_log_probs(PromptedModel(name, self.model, prompt), rollouts, Sampling(temperature))


@dataclass(frozen=True)
class _ModelActor:
    """A teacher's model in another process, as a worker knows it; its output layer is fetched once."""

    name: str

    def teacher(self, name: str, prompt: ContextPrompt, temperature: float) -> ActorTeacher:
        return ActorTeacher(name, prompt, temperature, self)

    def ask(self, method: str, *arguments: Any) -> Any:
        ray = import_ray()
        with reraise_ray_errors(ray):
            return ray.get(getattr(self._actor, method).remote(*arguments))

    @cached_property
    def about(self) -> tuple[str, int | None]:
        told: tuple[str, int | None] = self.ask("about")
        return told

    @cached_property
    def heads(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def _actor(self) -> Any:
        return import_ray().get_actor(self.name)


@dataclass(frozen=True)
class ActorTeacher:
    """A teacher whose model is an actor of its own; what it reads is written here."""

    name: str
    prompt: ContextPrompt
    temperature: float
    body: _ModelActor

    @property
    def fingerprint(self) -> str:
        return self.body.about[0]

    @property
    def context_length(self) -> int | None:
        return self.body.about[1]

    def head(self, device: Any) -> Any:
        """The output layer on a device."""
        if device not in self.body.heads:
            self.body.heads[device] = self.body.ask("head", self.name).to(device)
        return self.body.heads[device]

    def hidden_states(self, question: Question, completion: Tokens) -> Any:
        """The last hidden state before each token of a completion."""
        return self.body.ask("hidden_states", self.name, list(self.prompt(question)), completion)

    def score_inputs(self, question: Question, completion: Tokens, device: Any) -> Any:
        """What scoring needs along a completion: hidden states and output layer, both on `device`."""
        from opd_align.backends.scoring import RemoteTeacher

        return RemoteTeacher(self.name, self.head(device), self.hidden_states(question, completion).to(device))

    def token_log_probs(self, question: Question, rollouts: Rollouts) -> Floats:
        """Log-probability of every token of every rollout, flat."""
        return self.body.ask("token_log_probs", self.name, list(self.prompt(question)), rollouts, self.temperature)


@contextmanager
def reraise_ray_errors(ray: Any) -> Iterator[None]:
    """What went wrong in an actor, as if it had happened here."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:  # comes first: it may pass for the error that it carries
        if isinstance(error.cause, OpdAlignError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        # Whoever dies is started again; for good it is gone if it could not be made, or was sent away from outside.
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise OpdAlignError(
            f"an actor is gone for good: {reason.strip()} What is finished is kept: the same command goes on from there"
        ) from error


def import_ray() -> Any:
    """Ray, which only a cluster needs."""
    try:
        import ray
    except ImportError as error:
        raise OpdAlignError("a cluster needs Ray: pip install 'opd-align[ray]'") from error
    return ray
