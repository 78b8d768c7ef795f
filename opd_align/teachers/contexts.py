"""Contexts: what a self-distillation teacher reads in addition to the question.

A teacher is a name, a model and a prompt. A context teacher reads the question's user message with demonstrations
added, in the paper's format or a custom one; an external teacher reads the same prompt as the student. This module
builds those prompts. Sampling demonstrations is done in `demonstrations`; no model is loaded here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from opd_align.backends.chat import Chat
from opd_align.tasks import Task
from opd_align.types import OpdAlignError, Question

SELF = "self"
"""Name of the source whose demonstrations the student writes itself."""

CLOSING = "Now answer with a response of your own, including the thinking process:"
WARNING = (
    "Below are example responses to the question. Some are CORRECT and some are WRONG — the wrong responses contain "
    "mistakes and should NOT be imitated."
)


@dataclass(frozen=True)
class Demonstration:
    """A verified response to a question.

    Args:
        question: Id of the question.
        source: Name of the source that wrote the response; "self" is the student.
        trial: Index of the sample among all samples of this source for this question, from 0.
        correct: Whether the verifier accepted the response.
        text: The response, thinking included.
        summary: Summary of the response, or `None` if none was made.
    """

    question: str
    source: str
    trial: int
    correct: bool
    text: str
    summary: str | None = None


ContextTemplate = Callable[[Question, str, Sequence[Demonstration]], str]
"""Function from question, user message and demonstrations to the user message that the teacher reads."""


def paper_template(question: Question, message: str, demonstrations: Sequence[Demonstration]) -> str:
    """The paper's format: message, demonstrations, closing request. Without demonstrations, the message unchanged."""
    if not demonstrations:
        return message
    quoted = [(demonstration.correct, f'"""\n{demonstration.text}\n"""') for demonstration in demonstrations]
    if all(correct for correct, _ in quoted):
        lead = "This is a correct response" if len(demonstrations) == 1 else "These are correct responses"
        examples = f"{lead} to the question:\n" + "\n\n".join(quote for _, quote in quoted)
    else:
        labelled = [f"{'Correct:' if correct else 'WRONG (do NOT imitate):'}\n{quote}" for correct, quote in quoted]
        examples = "\n\n".join([WARNING, *labelled])
    return f"{message}\n\n{examples}\n\n{CLOSING}"


def change_text(content: Any, change: Callable[[str], str]) -> Any:
    """The content of a message with its text changed; of one in parts, as models for images read it, the last text."""
    if isinstance(content, str):
        return change(content)
    parts = [dict(part) for part in content]
    text = next((part for part in reversed(parts) if isinstance(part.get("text"), str)), None)
    if text is None:
        raise OpdAlignError("a user message has no text that a context could be added to")
    text["text"] = change(text["text"])
    return parts


@dataclass(frozen=True)
class Context:
    """Demonstrations that a teacher reads with the question.

    Args:
        name: Name of the context, used as the teacher's name in tables and metrics.
        correct: Number of correct responses to show, 0 or more.
        wrong: Number of wrong responses to show, 0 or more.
        summarised: Show summaries instead of full responses.
        source: Who writes the responses: "self" (the student) or the name of another model.
        write: Function from question, user message and demonstrations to the teacher's user message. The default is
            the paper's format. With `correct` and `wrong` at 0 it receives no demonstrations.
    """

    name: str
    correct: int = 0
    wrong: int = 0
    summarised: bool = False
    source: str = SELF
    write: ContextTemplate = field(default=paper_template, compare=False)

    def __post_init__(self) -> None:
        if not self.name or min(self.correct, self.wrong) < 0:
            raise OpdAlignError(f"a context needs a name and counts of 0 or more; got {self}")

    def placeholders(self, question: Question) -> list[Demonstration]:
        """Placeholder demonstrations, to preview a prompt before any are collected."""
        kinds = [("correct", self.correct), ("wrong", self.wrong)]
        return [
            Demonstration(
                question.id,
                self.source,
                number,
                kind == "correct",
                f"{{{kind} response {number + 1}}}",
                f"{{summary of {kind} response {number + 1}}}",
            )
            for kind, count in kinds
            for number in range(count)
        ]

    def missing(self, available: Sequence[Demonstration]) -> str | None:
        """Why these demonstrations are not enough; `None` if they are."""
        for kind, wanted, correct in (("correct", self.correct, True), ("wrong", self.wrong, False)):
            usable = [demo for demo in available if demo.source == self.source and demo.correct == correct]
            if len(usable) < wanted:
                return f"{len(usable)} of {wanted} {kind} responses by {self.source!r}"
            if self.summarised and any(demo.summary is None for demo in usable[:wanted]):
                return f"a {kind} response by {self.source!r} has no summary"
        return None

    def select(self, available: Sequence[Demonstration], *, shortest: bool = False) -> list[Demonstration]:
        """The demonstrations to show, correct ones first: the first that were found, or the shortest ones."""
        usable = [demo for demo in available if demo.source == self.source]
        if shortest and not self.summarised:  # only the first ones have a summary
            usable = sorted(usable, key=lambda demo: len(demo.text))
        selected = [demo for demo in usable if demo.correct][: self.correct]
        selected += [demo for demo in usable if not demo.correct][: self.wrong]
        return [replace(demo, text=demo.summary or "") for demo in selected] if self.summarised else selected

    def apply(
        self,
        question: Question,
        message: str,
        demonstrations: Mapping[str, Sequence[Demonstration]],
        *,
        shortest: bool = False,
    ) -> str:
        """The user message with the question's demonstrations added, see `select`.

        Raises:
            OpdAlignError: If the question does not have all demonstrations that the context needs.
        """
        available = demonstrations.get(question.id, ())
        missing = self.missing(available)
        if missing is not None:
            raise OpdAlignError(f"question {question.id!r} cannot be used with context {self.name!r}: {missing}")
        return self.write(question, message, self.select(available, shortest=shortest))


CONTEXTS = {
    context.name: context
    for context in (
        Context("Self-1C", correct=1),
        Context("Self-3C", correct=3),
        Context("Self-1C1W", correct=1, wrong=1),
        Context("Self-1W", wrong=1),
        Context("Self-Sum-1C", correct=1, summarised=True),
        Context("Self-Sum-1C1W", correct=1, wrong=1, summarised=True),
        Context("Self-1C (source)", correct=1, source="source"),
    )
}
"""The paper's contexts by name, and `Self-1W`, which shows only a wrong response.

In the last one, the demonstration is written by another model, not the student.
"""


def context(name: str) -> Context:
    """The built-in context with this name (case-insensitive)."""
    by_lower = {name.lower(): context for name, context in CONTEXTS.items()}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"; did you mean {by_lower[near[0]].name!r}?" if near else "."
    raise OpdAlignError(f"unknown context {name!r}{hint} Available contexts: {', '.join(CONTEXTS)}")


@dataclass(frozen=True)
class ContextPrompt:
    """Builds the prompt of one model: calling it with a question returns token ids.

    Args:
        chat: Chat template and tokenizer of the model.
        task: Task that formats the question as messages.
        context: Context added to the last user message; `None` for the plain prompt.
        demonstrations: Demonstrations by question id; needed where `context` shows any.
        max_length: Tokens that the model can read, prompt and completion together; `None` for any number.
        preferred_length: A prompt beyond this many tokens shows the shortest demonstrations that were found, not the
            first ones. `None`: always the first.
    """

    chat: Chat
    task: Task
    context: Context | None = None
    demonstrations: Mapping[str, Sequence[Demonstration]] = field(default_factory=dict)
    max_length: int | None = None
    preferred_length: int | None = None

    @property
    def tokenizer_hash(self) -> str:
        return self.chat.fingerprint

    def __call__(self, question: Question) -> tuple[int, ...]:
        return self.chat.prompt(self.messages(question))

    def unavailable(self, question: Question, completion_tokens: int = 1) -> str | None:
        """Why the model cannot read a completion of this many tokens to a question; `None` if it can.

        A demonstration may be missing, or prompt and completion may be too long.
        """
        missing = self.context and self.context.missing(self.demonstrations.get(question.id, ()))
        if missing or self.max_length is None:
            return missing or None
        prompt_tokens = len(self(question))
        if prompt_tokens + completion_tokens <= self.max_length:
            return None
        return (
            f"{prompt_tokens} prompt tokens and {completion_tokens} of the completion do not fit the context "
            f"({self.max_length})"
        )

    def token_text(self, token: int) -> str:
        """The text of one token."""
        return self.chat.token_text(token)

    def text(self, question: Question) -> str:
        """The prompt as text, special tokens included."""
        return self.chat.render(self.messages(question))

    def messages(self, question: Question) -> list[dict[str, Any]]:
        """The messages, with the context added to the last user message."""
        messages = [dict(message) for message in self.task.messages(question)]
        if self.context is None:
            return messages
        user = next(message for message in reversed(messages) if message["role"] == "user")
        plain = user["content"]
        user["content"] = self.context.apply(question, plain, self.demonstrations)
        if self.preferred_length is not None and len(self.chat.prompt(messages)) > self.preferred_length:
            user["content"] = self.context.apply(question, plain, self.demonstrations, shortest=True)
        return messages
