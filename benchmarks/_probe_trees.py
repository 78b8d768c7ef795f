"""Trees for the comparison of success probes: rollouts of the embedded student, scored by three teachers.

Questions that probes are fitted on are of the training split, questions that they are judged on of the test split.
Evidence is kept in one file per question, so that an interrupted collection continues.
"""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.backends.loading import load_model
from opd_align.core.collect import Evidence, collect
from opd_align.core.tree import GenerationTree
from opd_align.settings import Budget, Sampling, Settings
from opd_align.tasks import task
from opd_align.tasks.grading import TextGrader
from opd_align.teachers.contexts import ContextPrompt
from opd_align.types import Question

GOOD, NOISY, HARMFUL = "good", "noisy", "harmful"
NOISE = {"sigma": 0.3, "seed": 2}
EXTRAPOLATION = -0.3
MAX_TOKENS = 160
SEED = 20261


@dataclass(frozen=True)
class Models:
    """The student, what it reads, and its three teachers.

    `good` is the embedded teacher; `noisy` has noise in its weights (own accuracy 0.06, helps at first, ruins later);
    `harmful` lies on the line of weights from teacher to student, beyond the student (own accuracy 0.19).
    """

    student: Any
    teachers: dict[str, Any]
    chat: Chat
    prompt: ContextPrompt
    grader: TextGrader

    @staticmethod
    def load() -> Models:
        loaded, teacher = load_model("embedded:student"), load_model("embedded:teacher").model
        student, chat, arithmetic = (
            loaded.model.requires_grad_(False).eval(),
            Chat(loaded.tokenizer),
            task("arithmetic"),
        )
        teachers = {GOOD: teacher, NOISY: _noisy(teacher), HARMFUL: _extrapolated(student, teacher)}
        for each in teachers.values():
            each.requires_grad_(False).eval()
        grader = TextGrader(arithmetic, chat.decode, chat.end_tokens(student.config))
        return Models(student, teachers, chat, ContextPrompt(chat, arithmetic), grader)

    @property
    def sampler(self) -> HFStudent:
        ends = self.chat.end_tokens(self.student.config)
        return HFStudent("student", self.student, self.prompt, ends, Sampling(max_tokens=MAX_TOKENS, seed=SEED))


def _noisy(model: Any) -> Any:
    """Gaussian noise on every weight matrix, in units of its own standard deviation."""
    generator, made = torch.Generator().manual_seed(int(NOISE["seed"])), copy.deepcopy(model)
    for weight in made.parameters():
        if weight.ndim > 1:
            weight.data += NOISE["sigma"] * weight.data.std() * torch.randn(weight.shape, generator=generator)
    return made


def _extrapolated(student: Any, teacher: Any) -> Any:
    made, target = copy.deepcopy(student), teacher.state_dict()
    made.load_state_dict({name: torch.lerp(w, target[name], EXTRAPOLATION) for name, w in made.state_dict().items()})
    return made


def questions(split: str, n: int) -> list[Question]:
    return task("arithmetic").load(split=split, limit=n, seed=SEED)


def collect_trees(
    models: Models, wanted: Sequence[Question], folder: Path, *, initial: int, targeted: int
) -> list[Evidence]:
    """The evidence of each question; questions without a path of each outcome are left out."""
    budget = Budget(initial=initial, targeted=targeted, allocation="adaptive", rounds=4)
    scored = [HFTeacher(name, model, models.prompt) for name, model in models.teachers.items()]
    sampler, found = models.sampler, []
    folder.mkdir(parents=True, exist_ok=True)
    for question in wanted:
        file = folder / f"{question.id}-{initial}-{targeted}.pickle"
        if not file.exists():
            start = time.monotonic()
            evidence = collect(sampler, scored, question, models.grader, settings=Settings(budget=budget))
            # Not the tree itself: numpy changes the byte order that it relies on.
            content = pickle.dumps((replace(evidence, tree=None), evidence.tree.rollouts()))  # type: ignore[arg-type]
            file.with_suffix(".new").write_bytes(content)
            file.with_suffix(".new").rename(file)
            print(
                f"{question.id}: {evidence.tree.outcome_R.size} rollouts, {time.monotonic() - start:.0f} s", flush=True
            )
        evidence, rollouts = pickle.loads(file.read_bytes())
        if len(set(evidence.correct)) == 2:
            found.append(replace(evidence, tree=GenerationTree.build(rollouts)))
    return found
