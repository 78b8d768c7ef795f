"""yesno: what a small model writes about a question on a passage. Many tokens matter a little."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from _automaton import Automaton, drawn_logits, some_tokens
from _task_text import NO_END, Generator, end_logit, everywhere, log_uniform, rising, words

from opd_align.backends.exact import ExactWorld

YESNO_PARTS = LEANINGS, TOPICS, PHASES = 9, 4, 6
QUOTING, WEIGHING, CONCLUDING, COMMITTED, VERDICT, DONE = range(PHASES)
NO_SIDE, UNDECIDED, YES_SIDE = 0, LEANINGS // 2, LEANINGS - 1
YES, NO = 1, 2
"""Tokens of the answer."""


@dataclass(frozen=True)
class Passage:
    """What is the same at all positions of a world of `yesno`.

    Args:
        length: Typical length, in tokens.
        truth: 1 if the right answer is yes, else −1.
        favor_T: Probability that evidence favors the truth, by topic.
        evidence: Share of the alternatives at forks that are evidence.
    """

    length: int
    truth: int
    favor_T: np.ndarray
    evidence: float


def yesno(rng: Generator, vocabulary: int, length: int) -> ExactWorld:
    """The passage is quoted and weighed, the student leans to one side more and more, and commits itself.

    A state is a leaning in nine degrees, a topic with words and evidence of its own, and a phase. Evidence changes the
    leaning by a degree or two, "however" takes two back, and after the commitment little matters until the answer,
    except for a rare second thought. In a third of the worlds the student is inclined to say yes or no at once, and
    gives reasons afterwards. Who does not lean to any side may give an answer that is neither.
    """
    limit = int(length * rng.uniform(1.15, 1.5)) + 4
    world = Automaton.empty(limit, YESNO_PARTS, vocabulary)
    truth = int(rng.choice([-1, 1]))
    passage = Passage(length, truth, rng.uniform(0.25, 0.85, TOPICS), rng.uniform(0.15, 0.5))
    pass_rate = rng.uniform(0.8, 0.95) if rng.random() < 0.35 else rng.uniform(0.25, 0.85)
    prior = 1.5 * (pass_rate - 0.5) + rng.normal(0.0, 0.5)
    for position in range(limit):
        for topic in range(TOPICS):
            _words(rng, world, position, topic, passage)
    if rng.random() < 0.35:
        _at_once(rng, world, truth, prior)
    _conclusion(rng, world, truth)
    _answer(rng, world)
    world.success_S[world.state[YES_SIDE if truth > 0 else NO_SIDE, :, DONE]] = True
    start = int(np.clip(UNDECIDED + truth * round(1.5 * prior), 2, LEANINGS - 3))
    return world.calibrated(pass_rate, (start, int(rng.integers(TOPICS)), QUOTING))


def _words(rng: Generator, world: Automaton, position: int, topic: int, passage: Passage) -> None:
    """The words of one topic at one position, until the answer."""
    late = rising(position, 0.9 * passage.length, 0.07 * passage.length)
    vocabulary, length = world.vocabulary, passage.length
    reading = {"topic": 0.4, "evidence": 0.7 * passage.evidence}
    weighing = {"evidence": passage.evidence, "topic": 0.25, "however": 0.05, "conclude": 0.04, "hedge": 0.05}
    reasons = {"evidence": passage.evidence, "topic": 0.25}
    tail = {"evidence": 0.25, "topic": 0.15, "however": 0.04, "conclude": 0.02, "hedge": 0.05}
    for phase, forks, pace, roles in (
        (QUOTING, 0.15, 2.3 / length + 0.3 * late, reading),
        (WEIGHING, 0.32, 0.01 + 0.5 * late, weighing),
        (COMMITTED, 0.2, 0.005 + 0.4 * late, reasons),
    ):
        tail_roles = {"rethink": 0.03, "evidence": 0.2} if phase == COMMITTED else tail
        here = words(rng, vocabulary, forks, roles, tail_roles, moves=rng.random() < pace)
        role_V = here.role_V
        if phase == WEIGHING and len(here.token_K) == 1 and rng.random() < 0.08:
            role_V[here.token_K] = "evidence"
        toward_truth_V = rng.random(vocabulary) < passage.favor_T[topic]
        weight_V = np.where(rng.random(vocabulary) < 0.15, 2, 1) * np.where(toward_truth_V, 1, -1) * passage.truth
        topic_V = np.where(role_V == "topic", rng.integers(0, TOPICS, vocabulary), topic)
        mistake_V = 0.5 * here.likely("evidence") * ~toward_truth_V
        for leaning in range(LEANINGS):
            degree = leaning - UNDECIDED
            degree_V = np.where(role_V == "evidence", degree + weight_V, degree)
            degree_V[role_V == "however"] = degree - 2 * np.sign(degree)
            degree_V[role_V == "hedge"] = int(degree / 2)
            phase_V = np.where(here.moves_V, phase + 1, phase)
            if phase == WEIGHING:
                phase_V[role_V == "conclude"] = CONCLUDING
            rethink_V = role_V == "rethink"
            degree_V[rethink_V], phase_V[rethink_V] = 0, WEIGHING
            leaning_V = np.clip(degree_V + UNDECIDED, 0, LEANINGS - 1)
            next_V = world.state[leaning_V, topic_V, phase_V]
            world.fill(position, (leaning, topic, phase), here.logit_V, next_V, end=NO_END, mistake_V=mistake_V)


def _at_once(rng: Generator, world: Automaton, truth: int, prior: float) -> None:
    """Makes the third token a fork between yes, no, and the passage first."""
    at_once = rng.uniform(0.3, 0.95)
    yes = 1 / (1 + np.exp(-2.0 * truth * prior))
    logit_V = drawn_logits(rng, world.vocabulary, [YES, NO, 3], [at_once * yes, at_once * (1 - yes), 1 - at_once], 0.01)
    mistake_V = (np.arange(world.vocabulary) == (NO if truth > 0 else YES)).astype(float)
    for leaning in range(LEANINGS):
        for topic in range(TOPICS):
            next_V = np.full(world.vocabulary, world.state[leaning, topic, QUOTING])
            next_V[[YES, NO]] = world.state[[YES_SIDE, NO_SIDE], topic, COMMITTED]
            world.fill(2, (leaning, topic, QUOTING), logit_V, next_V, end=NO_END, mistake_V=mistake_V)


def _conclusion(rng: Generator, world: Automaton, truth: int) -> None:
    """The token after which the student is on the side of yes, of no, or of neither."""
    vocabulary, token_V = world.vocabulary, np.arange(world.vocabulary)
    firmness, neither = rng.uniform(0.25, 0.8), log_uniform(rng, 0.01, 0.1)
    yes_token, no_token, neither_token = some_tokens(rng, vocabulary, 3)
    mistake_V = (token_V == (no_token if truth > 0 else yes_token)).astype(float)
    for leaning in range(LEANINGS):
        yes = 1 / (1 + np.exp(-firmness * (leaning - UNDECIDED)))
        share_K = [(1 - neither) * yes, (1 - neither) * (1 - yes), neither]
        logit_V = drawn_logits(rng, vocabulary, [yes_token, no_token, neither_token], share_K, 0.01)
        for topic in range(TOPICS):
            next_V = np.full(vocabulary, world.state[leaning, topic, COMMITTED])
            next_V[[yes_token, no_token]] = world.state[[YES_SIDE, NO_SIDE], topic, COMMITTED]
            next_V[neither_token] = world.state[UNDECIDED, topic, COMMITTED]
            everywhere(world, (leaning, topic, CONCLUDING), logit_V, next_V, mistake_V=mistake_V)


def _answer(rng: Generator, world: Automaton) -> None:
    """Yes, no, or neither; then the end."""
    vocabulary = world.vocabulary
    firmness, neither = rng.uniform(0.8, 1.6), log_uniform(rng, 0.005, 0.1)
    neither_token, *word_K = 2 + some_tokens(rng, vocabulary - 2, 3)
    for leaning in range(LEANINGS):
        degree = leaning - UNDECIDED
        yes = 1 / (1 + np.exp(-firmness * degree))
        unsure = neither if abs(degree) < 2 else 0.1 * neither
        share_K: Sequence[float] = [(1 - unsure) * yes, (1 - unsure) * (1 - yes), unsure]
        answer_V = drawn_logits(rng, vocabulary, [YES, NO, neither_token], share_K, 0.003)
        word_V = drawn_logits(rng, vocabulary, word_K, [0.7, 0.3], 0.01)
        for topic in range(TOPICS):
            next_V = np.full(vocabulary, world.state[UNDECIDED, topic, DONE])
            next_V[[YES, NO]] = world.state[[YES_SIDE, NO_SIDE], topic, DONE]
            everywhere(world, (leaning, topic, VERDICT), answer_V, next_V)
            next_V = np.full(vocabulary, world.state[leaning, topic, DONE])
            everywhere(world, (leaning, topic, DONE), word_V, next_V, end=end_logit(0.8))
