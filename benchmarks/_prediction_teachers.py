"""The teachers of the prediction study, made from the embedded student and teacher.

The list is `prediction_teachers.json`. It was written before any of them was built or trained with, by somebody who
did not take part in the analysis. `DEVELOPMENT` has the teachers that the study was developed with; they are
left out of its figures.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _prediction_models import LinearTeacher, WithContext, biased, by_question, combined, plain, tempered

from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent
from opd_align.backends.loading import load_model
from opd_align.settings import Sampling
from opd_align.tasks import task
from opd_align.tasks.arithmetic import summarise
from opd_align.tasks.grading import TextGrader
from opd_align.teachers.contexts import SELF, Context, ContextPrompt, Demonstration
from opd_align.types import Finish, Outcome, Question, SampleRequest

LIST = Path(__file__).with_name("prediction_teachers.json")
DEVELOPMENT = (
    {"name": "dev-interp-0.6", "family": "development", "kind": "interpolation", "params": {"a": 0.6},
     "loss": "reverse_kl"},
    {"name": "dev-anti-0.5", "family": "development", "kind": "anti", "params": {"c": 0.5}, "loss": "reverse_kl"},
    {"name": "dev-ctx-1C", "family": "development", "kind": "context", "params": {"context": "1C"},
     "loss": "jsd(0.5)"},
    {"name": "dev-noise-0.2", "family": "development", "kind": "teacher_noise", "params": {"sigma": 0.2, "seed": 99},
     "loss": "minillm"},
)  # fmt: skip

CONTEXTS = {
    context.name: context
    for context in (
        Context("1C", correct=1),
        Context("3C", correct=3),
        Context("1C1W", correct=1, wrong=1),
        Context("1W", wrong=1),
        Context("3W", wrong=3),
        Context("Sum-1C", correct=1, summarised=True),
    )
}
MAX_TOKENS = 160
TRIALS = 24
"""Solutions of the student per question, for contexts and for fine-tuned teachers."""
SHOWN = 3
"""A question is used if the student has so many correct and so many wrong solutions: every context needs them."""
STYLE = (" therefore", " Therefore", " After", "First")
"""Tokens that a teacher with a biased style prefers: formal connectives, which do not affect the answer."""
OPERATORS = {"+": " +", "-": " -", "×": " ×"}
FINETUNING = {"batch": 32, "learning_rate": 3e-4}


@dataclass(frozen=True)
class Entry:
    """One line of the list: a teacher and the loss that it is distilled with."""

    name: str
    family: str
    kind: str
    params: Mapping[str, Any]
    loss: str
    why: str = ""

    @property
    def model_key(self) -> str:
        """Equal for entries that only differ in their loss."""
        return json.dumps([self.kind, self.params], sort_keys=True)


def entries(*, development: bool = False) -> list[Entry]:
    """The teachers of the figures, or those of the development."""
    rows = DEVELOPMENT if development else json.loads(LIST.read_text(encoding="utf-8"))
    return [Entry(**row) for row in rows]


@dataclass(frozen=True)
class Sample:
    """A solution that the student wrote."""

    text: str
    correct: bool


@dataclass
class World:
    """Student, teacher and questions that all teachers share.

    Args:
        folder: Where the student's solutions are kept.
        train: Number of training questions.
        measured: Number of questions of the analysis.
    """

    folder: Path
    train: int
    measured: int
    _models: dict[str, LinearTeacher] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.task = task("arithmetic")
        loaded = load_model("embedded:student")
        self.student_model, self.tokenizer = loaded.model.requires_grad_(False), loaded.tokenizer
        self.teacher_model = load_model("embedded:teacher").model.requires_grad_(False)
        self.chat = Chat(self.tokenizer)
        self.prompt = ContextPrompt(self.chat, self.task)
        self.opening = self.tokenizer("<|im_start|>assistant\n", add_special_tokens=False)["input_ids"]
        self.grader = TextGrader(self.task, self.chat.decode, self.end_tokens)

    @property
    def end_tokens(self) -> tuple[int, ...]:
        return self.chat.end_tokens(self.student_model.config)

    def sampler(
        self, model: Any, *, prompt: Any = None, temperature: float = 1.0, seed: int = 0, max_tokens: int = MAX_TOKENS
    ) -> HFStudent:
        sampling = Sampling(temperature, max_tokens=max_tokens, seed=seed)
        return HFStudent("student", model, prompt or self.prompt, self.end_tokens, sampling)

    # -- questions

    @cached_property
    def training_questions(self) -> list[Question]:
        return self._usable(self.task.load(split="train", limit=2 * self.train, seed=4242), self.train)

    @cached_property
    def measured_questions(self) -> list[Question]:
        """Questions of the analysis: of the test split, like the held-out ones, but others."""
        return self._usable(self.task.load(split="test", limit=2 * self.measured, seed=777), self.measured)

    def _usable(self, candidates: Sequence[Question], n: int) -> list[Question]:
        """The first questions for which every context has its demonstrations."""
        samples = self.samples(candidates)

        def counts(question: Question) -> list[int]:
            return [sum(each.correct is kind for each in samples[question.id]) for kind in (True, False)]

        usable = [question for question in candidates if min(counts(question)) >= SHOWN]
        if len(usable) < n:
            raise SystemExit(f"{len(usable)} of {len(candidates)} questions can be used, {n} are needed")
        return usable[:n]

    def samples(self, questions: Sequence[Question]) -> dict[str, list[Sample]]:
        """The student's solutions of each question; those on disk are not sampled again."""
        file = self.folder / "samples.json"
        stored = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        missing = [question for question in questions if question.id not in stored]
        sampler = self.sampler(self.student_model, seed=1)
        for at in range(0, len(missing), 64):
            requests = [SampleRequest(each, np.empty(0, np.uint32), TRIALS) for each in missing[at : at + 64]]
            rollouts = sampler.sample(requests)
            for request, keys in zip(requests, sampler.keys(requests), strict=True):
                own = rollouts.take(np.isin(rollouts.key_R, keys))
                outcome_R = self.grader.grade(request.question, own)
                stored[request.question.id] = [
                    (self.chat.decode(own.completion(row)), bool(outcome_R[row] == Outcome.CORRECT))
                    for row in range(len(own))
                    if own.finish_R[row] == Finish.STOPPED
                ]
            file.write_text(json.dumps(stored), encoding="utf-8")
        return {question.id: [Sample(*each) for each in stored[question.id]] for question in questions}

    @cached_property
    def demonstrations(self) -> dict[str, list[Demonstration]]:
        questions = [*self.training_questions, *self.measured_questions]
        return {
            name: [
                Demonstration(name, SELF, trial, each.correct, each.text, summarise(each.text))
                for trial, each in enumerate(samples)
            ]
            for name, samples in self.samples(questions).items()
        }

    def is_two_step(self, tokens: Sequence[int]) -> bool:
        """Whether the question of a prompt has one change after the product, not two."""
        text = self.tokenizer.decode(list(tokens))
        return "Then" not in text.partition("<|im_start|>assistant\n")[0]

    # -- teachers

    def build(self, entry: Entry) -> LinearTeacher:
        if entry.model_key not in self._models:
            self._models[entry.model_key] = self._build(entry.kind, entry.params)
        return self._models[entry.model_key]

    def _build(self, kind: str, params: Mapping[str, Any]) -> LinearTeacher:
        base = {"student": self.student_model, "teacher": self.teacher_model}
        match kind:
            case "embedded":
                return plain(load_model(f"embedded:{params['model']}").model)
            case "interpolation":
                return plain(self._interpolated(params["a"]))
            case "teacher_noise" | "student_noise":
                return plain(_noisy(base[kind.partition("_")[0]], params["sigma"], params["seed"]))
            case "teacher_temperature":
                return tempered(plain(self.teacher_model), params["T"])
            case "biased_style":
                tokens = [self._token(text) for text in STYLE]
                return biased(plain(base[params["base"]]), tokens, params["b"])
            case "biased_operator":
                token = self._token(OPERATORS[params["operator"]])
                return biased(plain(base[params["base"]]), [token], params["b"])
            case "anti":
                models = [plain(self.student_model), plain(self.teacher_model)]
                return combined(models, [1 + params["c"], -params["c"]])
            case "student_finetuned":
                return plain(self._finetuned(params["mode"], params["steps"]))
            case "context":
                return self._with_context(CONTEXTS[params["context"]])
            case "mixture":
                first, second = self.sides(params)
                return by_question(self.build(first), self.build(second), self.is_two_step)
        raise SystemExit(f"unknown kind of teacher: {kind!r}")

    def sides(self, params: Mapping[str, Any]) -> tuple[Entry, Entry]:
        """The two teachers of a mixture: on questions of two steps, and on the others."""
        first, second = (Entry("", "", params[side]["kind"], params[side]["params"], "") for side in "AB")
        return first, second

    def _token(self, text: str) -> int:
        (token,) = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return int(token)

    def _interpolated(self, a: float) -> Any:
        """Weights on the line from the student (0) to the teacher (1), and beyond."""
        made = copy.deepcopy(self.student_model)
        target = self.teacher_model.state_dict()
        made.load_state_dict({name: torch.lerp(w, target[name], a) for name, w in made.state_dict().items()})
        return made

    def context_prompts(self, context: Context) -> dict[tuple[int, ...], tuple[int, ...]]:
        prompt = ContextPrompt(self.chat, self.task, context, self.demonstrations)
        questions = [*self.training_questions, *self.measured_questions]
        return {tuple(self.prompt(question)): tuple(prompt(question)) for question in questions}

    def _with_context(self, context: Context) -> LinearTeacher:
        model = plain(self.student_model)
        body = WithContext(model.body, self.context_prompts(context), self.opening)
        return LinearTeacher(body, model.config, model.head.weight)

    def _finetuned(self, mode: str, steps: int) -> Any:
        """The student, trained on some of its own solutions.

        `better`: correct ones. `worse`: wrong ones. `styled`: the longer half of the correct ones and the longer half
        of the wrong ones, so that the style changes and the pass rate of what it learns does not.
        """
        file = self.folder / f"finetuned-{mode}-{steps}.pt"
        if file.exists():
            made = copy.deepcopy(self.student_model)
            made.load_state_dict(torch.load(file))
            return made
        chosen: list[tuple[Question, str]] = []
        samples = self.samples(self.training_questions)
        for question in self.training_questions:
            right, wrong = ([each.text for each in samples[question.id] if each.correct is k] for k in (True, False))
            longer = [text for kind in (right, wrong) for text in sorted(kind, key=len)[len(kind) // 2 :]]
            chosen += [(question, text) for text in {"better": right, "worse": wrong, "styled": longer}[mode]]
        model = copy.deepcopy(self.student_model).requires_grad_(True).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=FINETUNING["learning_rate"], weight_decay=0.0)
        rng = np.random.default_rng(0)
        for _ in range(steps):
            picked = [chosen[at] for at in rng.integers(0, len(chosen), int(FINETUNING["batch"]))]
            rows = [self._conversation(question, text) for question, text in picked]
            width = max(len(tokens) for tokens, _ in rows)
            ids = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens, _ in rows])
            labels = torch.tensor(
                [[*[-100] * start, *tokens[start:], *[-100] * (width - len(tokens))] for tokens, start in rows]
            )
            model(input_ids=ids, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        torch.save(model.state_dict(), file)
        return model.requires_grad_(False).eval()

    def _conversation(self, question: Question, text: str) -> tuple[list[int], int]:
        prompt = list(self.prompt(question))
        end = self.tokenizer("<|im_end|>", add_special_tokens=False)["input_ids"]
        return [*prompt, *self.tokenizer(text, add_special_tokens=False)["input_ids"], *end], len(prompt)


def _noisy(model: Any, sigma: float, seed: int) -> Any:
    """Gaussian noise on every weight matrix, in units of its own standard deviation."""
    generator = torch.Generator().manual_seed(seed)
    made = copy.deepcopy(model)
    for weight in made.parameters():
        if weight.ndim > 1:
            noise = torch.randn(weight.shape, generator=generator)
            weight.data += sigma * weight.data.std() * noise
    return made
