"""A sampler that follows a script: its reply is a function of question, prompt and sample index.

It satisfies the `Sampler` protocol (content keys, independent requests) and records every sample, so that tests know
the expected result without a model.
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
    """Raised in place of a kill."""


@dataclass(frozen=True)
class Reply:
    """A reply: its text, whether it was truncated at the token limit, whether sampling failed."""

    text: str = ""
    truncated: bool = False
    failed: bool = False


RIGHT, WRONG, NO_ANSWER = Reply(f"so: Answer: {GOLD}"), Reply("hm: Answer: 13"), Reply("I do not know.")
TRUNCATED, FAILED = Reply(f"Answer: {GOLD}", truncated=True), Reply(failed=True)

Script = Callable[[Question, str, int], Reply]
"""Function from question, prompt (as text) and sample index to a reply."""


@dataclass(frozen=True)
class ScriptedSampler:
    """A sampler with a script. `sampled` lists (question, prompt, index) of all samples, over all copies of it."""

    name: str
    script: Script
    prompt: Any
    sampling: Any = field(default_factory=lambda: Sampling(max_tokens=64))
    context_length: int | None = None
    sampled: list[tuple[str, str, int]] = field(default_factory=list, compare=False)
    batches: list[int] = field(default_factory=list, compare=False)
    interrupt_at: list[int] = field(default_factory=list, compare=False)

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
        if self.interrupt_at and self.interrupt_at[0] == len(self.batches):
            raise Interrupted
        completions, truncated, keys, failures = [], [], [], []
        for request, key_R in zip(requests, self.keys(requests), strict=True):
            prompt = CHAT.tokenizer.decode(list(self.prompt(request.question)))
            for number, key in enumerate(key_R.tolist(), request.first):
                self.sampled.append((request.question.id, prompt, number))
                reply = self.script(request.question, prompt, number)
                if reply.failed:
                    failures.append(Failure(key, "scripted failure"))
                    continue
                text = reply.text + ("" if reply.truncated else END)
                completions.append(CHAT.tokenizer(text, add_special_tokens=False)["input_ids"])
                truncated.append(reply.truncated)
                keys.append(key)
        # Rows are returned in another order than requested: only keys identify them.
        order = np.argsort(np.array(keys, np.uint64))
        rollouts = Rollouts.of(completions, key=keys, truncated=truncated).take(order)
        return Rollouts(**{**vars(rollouts), "failures": tuple(failures)})


def question(name: str, answer: str | None = GOLD) -> Question:
    return Question(name, f"Pens of {name}?", answer)


def source(name: str, script: Script, **options: Any) -> DemonstrationSource:
    """A source with the task's plain prompt."""
    sampler = ScriptedSampler(name, script, ContextPrompt(CHAT, TASK), **options)
    return DemonstrationSource(name, sampler, CHAT.decode, TextGrader(TASK, CHAT.decode, sampler.end_tokens))


def summariser(script: Script, **options: Any) -> DemonstrationSource:
    def prompt(question: Question) -> tuple[int, ...]:
        return CHAT.prompt([{"role": "user", "content": question.text}])

    return DemonstrationSource(
        "summariser", ScriptedSampler("summariser", script, prompt, **options), CHAT.decode, NoGrading()
    )


def demonstration_writers(
    script: Script, summary_script: Script | None = None, trials: TrialBudget | None = None
) -> DemonstrationWriters:
    return DemonstrationWriters(
        {SELF: source(SELF, script)}, summariser(summary_script) if summary_script else None, trials or TrialBudget()
    )
