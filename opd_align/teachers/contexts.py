"""Teachers' contexts: what a self-distillation teacher reads beside the question.

A teacher is a name, a model and a prompt. The prompt of a context teacher is the question's user message with
demonstrations written into it, in the paper's form or the user's own; that of an external teacher is the student's.
Here contexts, demonstrations and messages meet; how demonstrations are sampled is the business of `demonstrations`,
and no model is known.
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
"""The source of demonstrations that the student wrote itself."""

CLOSING = "Now answer with a response of your own, including the thinking process:"
WARNING = (
    "Below are example responses to the question. Some are CORRECT and some are WRONG — the wrong responses contain "
    "mistakes and should NOT be imitated."
)


@dataclass(frozen=True)
class Demonstration:
    """A response to a question and whether it is right. `trial` numbers the samples of its source."""

    question: str
    source: str
    trial: int
    correct: bool
    text: str
    summary: str | None = None


Write = Callable[[Question, str, Sequence[Demonstration]], str]
"""From question, user message and demonstrations to the user message that the teacher reads."""


def in_the_papers_form(question: Question, message: str, demonstrations: Sequence[Demonstration]) -> str:
    """The message, the demonstrations, and the request to answer in one's own words; without any, the message."""
    if not demonstrations:
        return message
    quoted = [(demonstration.correct, f'"""\n{demonstration.text}\n"""') for demonstration in demonstrations]
    if all(correct for correct, _ in quoted):
        lead = "This is a correct response" if len(demonstrations) == 1 else "These are correct responses"
        shown = f"{lead} to the question:\n" + "\n\n".join(quote for _, quote in quoted)
    else:
        labelled = [f"{'Correct:' if correct else 'WRONG (do NOT imitate):'}\n{quote}" for correct, quote in quoted]
        shown = "\n\n".join([WARNING, *labelled])
    return f"{message}\n\n{shown}\n\n{CLOSING}"


@dataclass(frozen=True)
class Context:
    """What a teacher is shown: how many correct and wrong responses, by whom, whole or summarised, in which form.

    `source` is "self" or the name of another model that writes the demonstrations. A context of your own needs a name
    and a `write`; with `correct` and `wrong` at 0 it gets no demonstrations.
    """

    name: str
    correct: int = 0
    wrong: int = 0
    summarised: bool = False
    source: str = SELF
    write: Write = field(default=in_the_papers_form, compare=False)

    def __post_init__(self) -> None:
        if not self.name or min(self.correct, self.wrong) < 0:
            raise OpdAlignError(f"a context needs a name and counts of 0 or more; got {self}")

    def placeholders(self, question: Question) -> list[Demonstration]:
        """Stand-ins that show where demonstrations go."""
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

    def missing(self, found: Sequence[Demonstration]) -> str | None:
        """Why these demonstrations are not enough; `None` if they are."""
        for kind, wanted, right in (("correct", self.correct, True), ("wrong", self.wrong, False)):
            own = [each for each in found if each.source == self.source and each.correct == right]
            if len(own) < wanted:
                return f"{len(own)} of {wanted} {kind} responses by {self.source!r}"
            if self.summarised and any(each.summary is None for each in own[:wanted]):
                return f"a {kind} response by {self.source!r} has no summary"
        return None

    def chosen(self, found: Sequence[Demonstration]) -> list[Demonstration]:
        """The first correct and the first wrong ones, as they are shown."""
        own = [each for each in found if each.source == self.source]
        picked = [each for each in own if each.correct][: self.correct]
        picked += [each for each in own if not each.correct][: self.wrong]
        return [replace(each, text=each.summary or "") for each in picked] if self.summarised else picked

    def within(self, question: Question, message: str, demonstrations: Mapping[str, Sequence[Demonstration]]) -> str:
        """The user message with the question's demonstrations in it; refuses where some are missing."""
        found = demonstrations.get(question.id, ())
        missing = self.missing(found)
        if missing is not None:
            raise OpdAlignError(f"question {question.id!r} has no context {self.name!r}: {missing}")
        return self.write(question, message, self.chosen(found))


CONTEXTS = {
    context.name: context
    for context in (
        Context("Self-1C", correct=1),
        Context("Self-3C", correct=3),
        Context("Self-1C1W", correct=1, wrong=1),
        Context("Self-Sum-1C", correct=1, summarised=True),
        Context("Self-Sum-1C1W", correct=1, wrong=1, summarised=True),
        Context("Self-1C (source)", correct=1, source="source"),
    )
}
"""The paper's contexts; the last one shows the student, as teacher, a response by another model."""


def context(name: str) -> Context:
    """A built-in context by its name, whatever the case."""
    by_lower = {known.lower(): found for known, found in CONTEXTS.items()}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f"did you mean {by_lower[near[0]].name!r}? " if near else ""
    raise OpdAlignError(f"there is no context {name!r}; {hint}There are: {', '.join(CONTEXTS)}")


@dataclass(frozen=True)
class ContextPrompt:
    """Questions as token ids for one reader: a tokenizer's chat, a task's form, and a context with its demonstrations.

    Called with a question it gives the prompt, as students and teachers take it.
    """

    chat: Chat
    task: Task
    context: Context | None = None
    demonstrations: Mapping[str, Sequence[Demonstration]] = field(default_factory=dict)

    @property
    def tokenizer_hash(self) -> str:
        return self.chat.fingerprint

    def __call__(self, question: Question) -> tuple[int, ...]:
        return self.chat.prompt(self.messages(question))

    def token_text(self, token: int) -> str:
        """What one token reads."""
        return self.chat.token_text(token)

    def shown(self, question: Question) -> str:
        """The prompt as text."""
        return self.chat.render(self.messages(question))

    def messages(self, question: Question) -> list[dict[str, Any]]:
        """The conversation, with the context in its last user message."""
        messages = [dict(message) for message in self.task.messages(question)]
        if self.context is None:
            return messages
        user = next(message for message in reversed(messages) if message["role"] == "user")
        user["content"] = self.context.within(question, user["content"], self.demonstrations)
        return messages


def unavailable(
    questions: Sequence[Question],
    contexts: Sequence[Context],
    demonstrations: Mapping[str, Sequence[Demonstration]],
) -> dict[str, dict[str, str]]:
    """Question → context → what is missing. A fair comparison leaves such a question out for all contexts."""
    missing: dict[str, dict[str, str]] = {}
    for question in questions:
        for each in contexts:
            reason = each.missing(demonstrations.get(question.id, ()))
            if reason is not None:
                missing.setdefault(question.id, {})[each.name] = reason
    return missing
