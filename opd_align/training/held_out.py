"""Held-out questions: how they are turned into prompts, and how completions are graded.

Questions are `Question`s of a task, or rows like those of the training data, with TRL's columns. Completions are graded
by a verifier of the contract in `rewards`. Prompts are built with the trainer's own tokenizer, chat template and
template arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from opd_align.backends.chat import Chat
from opd_align.tasks import Task
from opd_align.teachers.contexts import Context, ContextPrompt, Demonstration, change_text
from opd_align.training.distributed import EvaluationFailed
from opd_align.training.rewards import CORRECT_FROM, EXTRA_ARGUMENTS, TIMEOUT_S, RewardVerifier, call_arguments
from opd_align.types import OpdAlignError, Outcome, Question, Rollouts

PROMPT = "prompt"

MAX_CONSECUTIVE_FAILURES = 3
"""Verifier calls that may fail in a row before the evaluation fails: each of them may take the whole time limit."""


@dataclass(frozen=True)
class RowPrompting:
    """Prompts from rows of a data set, as TRL builds them: conversations with the chat template, text unchanged.

    Args:
        chat: The trainer's tokenizer and chat template.
        context: Context of a teacher, added to the user message; `None` for the plain prompt.
        demonstrations: What the context shows, by question id.
    """

    chat: Chat
    context: Context | None = None
    demonstrations: Mapping[str, Sequence[Demonstration]] = field(default_factory=dict)

    @property
    def tokenizer_hash(self) -> str:
        return self.chat.fingerprint

    def token_text(self, token: int) -> str:
        """The text of one token."""
        return self.chat.token_text(token)

    def __call__(self, question: Question) -> tuple[int, ...]:
        prompt = _prompt(question)
        if isinstance(prompt, str):
            text = self._in_context(question, prompt)
            return tuple(int(token) for token in self.chat.tokenizer(text)["input_ids"])
        messages = [dict(message) for message in prompt]
        user = next((message for message in reversed(messages) if message["role"] == "user"), None)
        if user is None:
            raise OpdAlignError(f"held-out question {question.id!r} has no user message")
        if self.context is not None:
            user["content"] = change_text(user["content"], lambda text: self._in_context(question, text))
        return self.chat.prompt(messages)

    def _in_context(self, question: Question, message: str) -> str:
        return self.context.apply(question, message, self.demonstrations) if self.context else message


@dataclass(frozen=True)
class RewardGrader:
    """Grades rollouts with a verifier.

    Args:
        verifier: The verifier with its time limit and `correct_from`.
        chat: Decodes the completions.
        end_tokens: Tokens that are removed from the end of a completion before it is decoded.
        fingerprint: Identifies the verifier in run directories; two runs with the same one graded alike.
        task: The task whose verifier is called, if it is one; its values depend on the text and the answer alone, so
            equal completions are graded once.
        state: The trainer's state, which TRL passes to reward functions.
    """

    verifier: RewardVerifier
    chat: Chat
    end_tokens: Sequence[int]
    fingerprint: str
    task: Task | None = None
    state: Any = None

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        """One outcome per rollout; raises `EvaluationFailed` if the verifier has failed several times in a row."""
        completions = [self._without_end(rollouts.completion(row).tolist()) for row in range(len(rollouts))]
        if self.task is None:
            return np.array(self._outcomes(question, completions), np.int8)
        different = list(dict.fromkeys(completions))
        outcome_of = dict(zip(different, self._outcomes(question, different), strict=True))
        return np.array([outcome_of[completion] for completion in completions], np.int8)

    def _outcomes(self, question: Question, completion_ids: Sequence[tuple[int, ...]]) -> list[Outcome]:
        prompt = _prompt(question) if self.task is None else self.task.messages(question)
        texts = [self.chat.decode(ids) for ids in completion_ids]
        completions = texts if isinstance(prompt, str) else [[{"role": "assistant", "content": t}] for t in texts]
        columns = _columns(question) if self.task is None else {**question.fields, "answer": question.answer}
        outcomes = self.verifier.outcomes(
            [prompt] * len(texts),
            completions,
            {name: [value] * len(texts) for name, value in columns.items()},
            completion_ids=[list(ids) for ids in completion_ids],
            trainer_state=self.state,
            # Nothing that the function logs may reach the trainer's logs.
            log_extra=_ignore,
            log_metric=_ignore,
        )
        if self.verifier.consecutive_failures >= MAX_CONSECUTIVE_FAILURES:
            raise EvaluationFailed(
                f"verifier {self.verifier.name!r} failed {self.verifier.consecutive_failures} times in a row, last "
                f"with: {self.verifier.last_failure}"
            )
        return outcomes

    def _without_end(self, tokens: list[int]) -> tuple[int, ...]:
        while tokens and tokens[-1] in self.end_tokens:
            tokens = tokens[:-1]
        return tuple(tokens)


def _columns(question: Question) -> dict[str, Any]:
    """The columns that a reward function receives for a question."""
    return {**({} if question.answer is None else {"answer": question.answer}), **question.fields}


def _prompt(question: Question) -> Any:
    """A row's own prompt, or the question as a conversation."""
    return question.fields.get(PROMPT, [{"role": "user", "content": question.text}])


def _ignore(*_: Any) -> None:
    """Stands for TRL's logging functions."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out questions and their verifier.

    Args:
        questions: The questions.
        verifier: Grades the completions.
        task: The task that formats the questions; `None` for a reward function, and for rows, which have prompts.
        instance: Identifies a reward function that has no fingerprint: its name says nothing of what it does.
    """

    questions: tuple[Question, ...]
    verifier: RewardVerifier
    task: Task | None = None
    instance: str = field(default_factory=lambda: uuid4().hex)

    @staticmethod
    def of(
        questions: Iterable[Any], verifier: Any, *, correct_from: float = CORRECT_FROM, timeout_s: float = TIMEOUT_S
    ) -> HeldOut:
        """From questions or rows; refuses those that cannot be used as a prompt or graded."""
        reward = RewardVerifier(verifier, correct_from=correct_from, timeout_s=timeout_s)
        made = tuple(_question(item, number) for number, item in enumerate(questions))
        if not made:
            raise OpdAlignError("there are no held-out questions to evaluate on")
        rows = any(PROMPT in question.fields for question in made)
        task = verifier if isinstance(verifier, Task) and not rows else None
        canonical = getattr(reward.function, "canonical", None)
        if canonical is not None:
            unreadable = [
                question.id
                for question in made
                if question.answer is None or canonical(question.answer, question.fields.get("choices")) is None
            ]
            if unreadable:
                raise OpdAlignError(f"held-out question {unreadable[0]!r} has no answer that the verifier can read")
        if task is None:
            call_arguments(reward.function, [], [], _columns(made[0]), dict.fromkeys(EXTRA_ARGUMENTS))
        ids = [question.id for question in made]
        duplicates = [name for name in ids if ids.count(name) > 1]
        if duplicates:
            raise OpdAlignError(f"held-out question {duplicates[0]!r} appears more than once; ids must be unique")
        return HeldOut(made, reward, task)

    def prompting(
        self,
        chat: Chat,
        context: Context | None = None,
        demonstrations: Mapping[str, Sequence[Demonstration]] | None = None,
    ) -> Any:
        """From a question to token ids, for the student or a teacher with a context.

        `demonstrations` is read when a prompt is built, so it may be filled later.
        """
        demonstrations = {} if demonstrations is None else demonstrations
        if self.task is not None:
            return ContextPrompt(chat, self.task, context, demonstrations)
        return RowPrompting(chat, context, demonstrations)

    def grader(self, chat: Chat, end_tokens: Sequence[int], state: Any = None) -> RewardGrader:
        """Grades completions; `state` is the trainer's, for reward functions that read it."""
        return RewardGrader(self.verifier, chat, end_tokens, self._fingerprint(), self.task, state)

    def _fingerprint(self) -> str:
        own = getattr(self.verifier.function, "fingerprint", None)
        name = f"{self.task.name}:{own}" if self.task is not None else own or f"{self.verifier.name}/{self.instance}"
        least = self.verifier.correct_from
        return str(name) if least == CORRECT_FROM else f"{name}>={least:g}"


def check_verifier_calls(calls: int, failures: int, reason: str | None) -> None:
    """Refuses an evaluation none of whose verifier calls returned: it has no outcomes."""
    if calls and failures == calls:
        raise EvaluationFailed(f"the verifier failed on all {calls} calls, last with: {reason}")


def _question(item: Any, number: int) -> Question:
    if isinstance(item, Question):
        return item
    if not isinstance(item, Mapping):
        raise OpdAlignError(
            f"held-out question {number} is a {type(item).__name__}; expected opd_align.Question, or a row with the "
            "columns prompt (or messages) and answer"
        )
    row = dict(item)
    prompt = row.pop(PROMPT, None)
    if prompt is None and row.get("messages"):
        messages = row.pop("messages")
        # As GKD's collator does: the last turn is the reply.
        prompt = messages[:-1] if messages[-1]["role"] == "assistant" else messages
    if not prompt:
        raise OpdAlignError(
            f"held-out row {number} has neither prompt nor messages; its columns are {', '.join(row) or 'none'}"
        )
    text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    # The row keeps its columns unchanged: a reward function may expect numbers where a question has text.
    answer = row.get("answer")
    name = str(row.get("id", f"held-out-{number}"))
    return Question(name, text, None if answer is None else str(answer), {PROMPT: prompt, **row})
