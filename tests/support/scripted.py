"""A sampler that follows a script: what it replies is a function of question, prompt and number of the sample.

It keeps the promises of a `Sampler` (content keys, requests independent of each other) and can be asked what it was
asked, so that tests know the truth without a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from opd_align.backends.chat import Chat
from opd_align.settings import Sampling
from opd_align.tasks import TextGrader, task
from opd_align.teachers.contexts import SELF, ContextPrompt
from opd_align.teachers.demonstrations import DemonstrationSource, DemonstrationWriters, NoGrading, TrialBudget
from opd_align.types import Failure, Question, Rollouts, SampleRequest
from support.small_chat import END, byte_tokenizer

CHAT = Chat(byte_tokenizer())
TASK = task("gsm8k")
GOLD = "12"


class Interrupted(Exception):
    """What a kill looks like from inside."""


@dataclass(frozen=True)
class Reply:
    """A text; `cut`: the limit of tokens came first; `broken`: the sample could not be made."""

    text: str = ""
    cut: bool = False
    broken: bool = False


RIGHT, WRONG, MUTE = Reply(f"so: Answer: {GOLD}"), Reply("hm: Answer: 13"), Reply("I do not know.")
CUT, BROKEN = Reply(f"Answer: {GOLD}", cut=True), Reply(broken=True)

Script = Callable[[Question, str, int], Reply]
"""From question, prompt (as text) and number of the sample to a reply."""


@dataclass(frozen=True)
class Scripted:
    """A sampler with a script. `asked` lists (question, number) of every sample ever drawn, by whatever copy of it."""

    name: str
    script: Script
    prompt: Any
    sampling: Any = field(default_factory=lambda: Sampling(max_tokens=64))
    context_length: int | None = None
    asked: list[tuple[str, str, int]] = field(default_factory=list, compare=False)
    batches: list[int] = field(default_factory=list, compare=False)
    die_at: list[int] = field(default_factory=list, compare=False)

    @property
    def fingerprint(self) -> str:
        return f"scripted-{self.name}-{self.sampling}"

    @property
    def end_tokens(self) -> tuple[int, ...]:
        return CHAT.end_tokens()

    def keys(self, requests: Sequence[SampleRequest]) -> list[NDArray[np.uint64]]:
        return [request.keys(self.fingerprint, list(self.prompt(request.question))) for request in requests]

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        self.batches.append(sum(request.n for request in requests))
        if self.die_at and self.die_at[0] == len(self.batches):
            raise Interrupted
        completions, cut, made, failures = [], [], [], []
        for request, key_R in zip(requests, self.keys(requests), strict=True):
            prompt = CHAT.tokenizer.decode(list(self.prompt(request.question)))
            for number, key in enumerate(key_R.tolist(), request.first):
                self.asked.append((request.question.id, prompt, number))
                reply = self.script(request.question, prompt, number)
                if reply.broken:
                    failures.append(Failure(key, "the script says so"))
                    continue
                text = reply.text + ("" if reply.cut else END)
                completions.append(CHAT.tokenizer(text, add_special_tokens=False)["input_ids"])
                cut.append(reply.cut)
                made.append(key)
        # Rows come back in another order than they were asked for: only their keys may tell whose they are.
        order = np.argsort(np.array(made, np.uint64))
        rollouts = Rollouts.of(completions, key=made, truncated=cut).take(order)
        return Rollouts(**{**vars(rollouts), "failures": tuple(failures)})


def question(name: str, answer: str | None = GOLD) -> Question:
    return Question(name, f"Pens of {name}?", answer)


def source(name: str, script: Script, **options: Any) -> DemonstrationSource:
    """A source that reads the task's own prompt."""
    sampler = Scripted(name, script, ContextPrompt(CHAT, TASK), **options)
    return DemonstrationSource(name, sampler, CHAT.decode, TextGrader(TASK, CHAT.decode, sampler.end_tokens))


def summariser(script: Script, **options: Any) -> DemonstrationSource:
    def prompt(asked: Question) -> tuple[int, ...]:
        return CHAT.prompt([{"role": "user", "content": asked.text}])

    return DemonstrationSource(
        "summariser", Scripted("summariser", script, prompt, **options), CHAT.decode, NoGrading()
    )


def cast(script: Script, short: Script | None = None, trials: TrialBudget | None = None) -> DemonstrationWriters:
    return DemonstrationWriters(
        {SELF: source(SELF, script)}, summariser(short) if short else None, trials or TrialBudget()
    )
