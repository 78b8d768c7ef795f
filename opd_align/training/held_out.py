"""Held-out questions: how the trainer's student is asked them, and who judges what it says.

Questions come as `Question`s of a task, or as rows like those of the training data, with TRL's columns; verifiers as
a task, one of its verifiers, or any reward function of TRL's signature. Asked is in the trainer's own words: its
tokenizer, its chat template, its template's arguments.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from opd_align.backends.chat import Chat
from opd_align.tasks import Task
from opd_align.teachers.contexts import Context, ContextPrompt, Demonstration
from opd_align.training.reward_call import BESIDE, call_of, refuse_model
from opd_align.types import OpdAlignError, Outcome, Question, Rollouts

CORRECT_FROM = 0.5
"""Rewards from here on mean a correct completion."""

PROMPT = "prompt"


@dataclass(frozen=True)
class RowPrompting:
    """Rows of a data set as token ids: conversations through the chat template, plain text as it is, as TRL does."""

    chat: Chat
    context: Context | None = None
    demonstrations: Mapping[str, Sequence[Demonstration]] = field(default_factory=dict)

    @property
    def tokenizer_hash(self) -> str:
        return self.chat.fingerprint

    def token_text(self, token: int) -> str:
        """What one token reads."""
        return self.chat.token_text(token)

    def __call__(self, question: Question) -> tuple[int, ...]:
        prompt = _asked(question)
        if isinstance(prompt, str):
            text = self._shown(question, prompt)
            return tuple(int(token) for token in self.chat.tokenizer(text)["input_ids"])
        messages = [dict(message) for message in prompt]
        user = next((message for message in reversed(messages) if message["role"] == "user"), None)
        if user is None:
            raise OpdAlignError(f"held-out question {question.id!r} has no message by the user")
        user["content"] = self._shown(question, user["content"])
        return self.chat.prompt(messages)

    def _shown(self, question: Question, message: str) -> str:
        return self.context.within(question, message, self.demonstrations) if self.context else message


@dataclass(frozen=True)
class RewardGrader:
    """Outcomes by a reward function as TRL calls it; `None` is unknown, rewards from `CORRECT_FROM` on correct."""

    reward: Callable[..., Any]
    chat: Chat
    end_tokens: Sequence[int]
    state: Any = None
    given: str = ""

    @property
    def name(self) -> str:
        return str(getattr(self.reward, "__name__", type(self.reward).__name__))

    @property
    def fingerprint(self) -> str:
        """The function's own, or one for this callback alone: what it does, and what it calls, no name tells."""
        return str(getattr(self.reward, "fingerprint", None) or f"{self.name}/{self.given}")

    def grade(self, question: Question, rollouts: Rollouts) -> NDArray[np.int8]:
        tokens = [self._spoken(rollouts.completion(row).tolist()) for row in range(len(rollouts))]
        texts = [self.chat.decode(ids) for ids in tokens]
        prompt = _asked(question)
        talk = not isinstance(prompt, str)
        completions = [[{"role": "assistant", "content": text}] for text in texts] if talk else texts
        columns = {name: [value] * len(texts) for name, value in _columns(question).items()}
        # Nothing that is logged may reach the trainer's logs.
        beside = {"completion_ids": tokens, "trainer_state": self.state, "log_extra": _unheard, "log_metric": _unheard}
        rewards = self.reward(**call_of(self.reward, [prompt] * len(texts), completions, columns, beside))
        if inspect.isawaitable(rewards):
            rewards = _awaited(rewards)
        if len(rewards) != len(texts):
            raise OpdAlignError(f"verifier {self.name!r} gave {len(rewards)} rewards for {len(texts)} completions")
        return np.array([_outcome(reward) for reward in rewards], np.int8)

    def _spoken(self, tokens: list[int]) -> list[int]:
        while tokens and tokens[-1] in self.end_tokens:
            tokens = tokens[:-1]
        return tokens


def _columns(question: Question) -> dict[str, Any]:
    """What a reward function is told of a question."""
    return {**({} if question.answer is None else {"answer": question.answer}), **question.fields}


def _asked(question: Question) -> Any:
    """What the student is asked: a row's own prompt, or the question in a conversation."""
    return question.fields.get(PROMPT, [{"role": "user", "content": question.text}])


def _awaited(rewards: Awaitable[Any]) -> Any:
    """What an asynchronous function gives; in a thread, since a notebook's own loop is at work in this one."""

    async def wait() -> Any:
        return await rewards

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


def _unheard(*_: Any) -> None:
    """Takes what a reward function would log."""


def _outcome(reward: float | None) -> Outcome:
    if reward is None or reward != reward:
        return Outcome.UNKNOWN
    return Outcome.CORRECT if reward >= CORRECT_FROM else Outcome.INCORRECT


@dataclass(frozen=True)
class HeldOut:
    """Questions, the form they are asked in, and the verifier."""

    questions: tuple[Question, ...]
    verifier: Any
    given: str = field(default_factory=lambda: uuid4().hex)

    @staticmethod
    def of(questions: Iterable[Any], verifier: Any) -> HeldOut:
        """From questions or rows; refuses what cannot be asked or judged."""
        if not isinstance(verifier, Task) and not callable(verifier):
            raise OpdAlignError(
                "verifier must be a task (opd_align.tasks.task('gsm8k')), one of its verifiers, or a reward function "
                f"as TRL calls it, not {type(verifier).__name__}"
            )
        refuse_model(verifier)
        made = tuple(_question(item, number) for number, item in enumerate(questions))
        if not made:
            raise OpdAlignError("there are no held-out questions to evaluate on")
        if isinstance(verifier, Task) and any(PROMPT in question.fields for question in made):
            verifier = verifier.verifier  # the rows ask in their own form
        reads = verifier.verifier if isinstance(verifier, Task) else verifier
        if hasattr(reads, "canonical"):
            unread = [
                question.id
                for question in made
                if question.answer is None or reads.canonical(question.answer, question.fields.get("choices")) is None
            ]
            if unread:
                raise OpdAlignError(f"held-out question {unread[0]!r} has no answer to judge a reply by")
        if not isinstance(verifier, Task):
            call_of(verifier, [], [], _columns(made[0]), dict.fromkeys(BESIDE))
        names = [question.id for question in made]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise OpdAlignError(f"held-out question {twice[0]!r} appears more than once; give each its own id")
        return HeldOut(made, verifier)

    def prompting(
        self,
        chat: Chat,
        context: Context | None = None,
        demonstrations: Mapping[str, Sequence[Demonstration]] | None = None,
    ) -> Any:
        """From a question to token ids, for the student or a teacher in a context; demonstrations may come later."""
        shown = {} if demonstrations is None else demonstrations
        if isinstance(self.verifier, Task):
            return ContextPrompt(chat, self.verifier, context, shown)
        return RowPrompting(chat, context, shown)

    def grader(self, chat: Chat, end_tokens: Sequence[int], state: Any = None) -> Any:
        """Who judges completions; reward functions are told the trainer's state."""
        if isinstance(self.verifier, Task):
            from opd_align.tasks import TextGrader

            return TextGrader(self.verifier, chat.decode, end_tokens)
        return RewardGrader(self.verifier, chat, end_tokens, state, self.given)


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
            f"held-out row {number} has neither prompt nor messages; it has {', '.join(row) or 'nothing'}"
        )
    text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
    # The row keeps its columns as they are: a reward function may count on numbers where a question has text.
    answer = row.get("answer")
    name = str(row.get("id", f"held-out-{number}"))
    return Question(name, text, None if answer is None else str(answer), {PROMPT: prompt, **row})
