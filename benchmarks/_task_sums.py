"""sums: what a small model writes about a word problem of grade school. Few tokens are numbers, and these decide."""

from __future__ import annotations

import numpy as np
from _automaton import Automaton, drawn_logits, some_tokens
from _task_text import LIKELY_END, NO_END, Generator, end_logit, everywhere, log_uniform, pauses, words

from opd_align.backends.exact import ExactWorld

SUMS_PARTS = STEPS, PLACES, HEALTHS, MANNERS = 5, 7, 3, 2
WORDING, QUANTITY, OPERATION, SECOND, RESULT, DIGIT, CLOSE = range(PLACES)
NUMBERS = QUANTITY, SECOND, RESULT, DIGIT
RIGHT, SLIPPED, WRONG = range(HEALTHS)
BRIEF, WORDY = range(MANNERS)
FORMAT, ANSWER, UNIT, END, BABBLE = range(1, 6)
"""Places of the last step instead of those of a calculation."""


def sums(rng: Generator, vocabulary: int, length: int) -> ExactWorld:
    """Two to four calculations in words, each of them with five tokens that can go wrong, then the answer.

    A state is a step, a place in its text, a health (all right; a wrong result, which a check after the step mends;
    a misunderstanding, which only reading the problem again mends) and a manner. Most numbers are as good as sure;
    about one in four is hard, and in a tenth of these the likely number is wrong. Wording changes the manner: a wordy
    student is more careful, and more often truncated. Some students check often, some leave a step out, and some do
    not write the answer in the format that is graded.
    """
    steps = int(np.clip(round(length / 20 + rng.normal(0.0, 0.6)), 2, STEPS - 1))
    limit = int(length * rng.uniform(1.15, 1.5)) + 5
    world = Automaton.empty(limit, SUMS_PARTS, vocabulary)
    # Tokens in words before each calculation and before the answer; the others are 6 a step and 5 for the answer.
    n_words = max(1.5, (length - 6 * steps - 5) / (steps + 1))
    care, hard = rng.uniform(0.3, 1.5), rng.uniform(0.1, 0.4)
    for step in range(steps + 1):
        _words(rng, world, step, steps, n_words)
    for step in range(steps):
        for place in range(QUANTITY, CLOSE):
            _token(rng, world, step, place, hard, care)
        _close(rng, world, step, steps)
    _answer(rng, world, steps)
    world.success_S[world.state[steps, END:, RIGHT].ravel()] = True
    easy = rng.random() < 0.4
    pass_rate = rng.uniform(0.85, 0.95) if easy else rng.uniform(0.15, 0.88)
    return world.calibrated(pass_rate, (0, WORDING, RIGHT, int(rng.integers(MANNERS))))


def _words(rng: Generator, world: Automaton, step: int, steps: int, n_words: float) -> None:
    """The words before a calculation, or before the answer."""
    fork = {"turn": 0.6, "muddle": 0.03}
    tail = {"turn": 0.3, "muddle": 0.07, "slip": 0.04, "skip": 0.02}
    limit = len(world.logit_LSV)
    moves_CL = [pauses(rng, limit, more * n_words) for more in (0.85, 1.25)]
    for position in range(limit):
        for manner in (BRIEF, WORDY):
            here = words(rng, world.vocabulary, 0.2, fork, tail, moves=moves_CL[manner][position])
            role_V = here.role_V
            manner_V = np.where(role_V == "turn", 1 - manner, manner)
            skip_V = role_V == "skip"
            step_V = np.where(skip_V, steps, step)
            place_V = np.where(here.moves_V & ~skip_V, WORDING + 1, WORDING)
            for health in range(HEALTHS):
                health_V = np.full(world.vocabulary, health)
                health_V[role_V == "slip"] = max(health, SLIPPED)
                health_V[(role_V == "muddle") | (skip_V & (step < steps))] = WRONG
                next_V = world.state[step_V, place_V, health_V, manner_V]
                parts = step, WORDING, health, manner
                world.fill(position, parts, here.logit_V, next_V, end=NO_END, mistake_V=here.likely("muddle"))


def _token(rng: Generator, world: Automaton, step: int, place: int, hard: float, care: float) -> None:
    """A token of a calculation: a number, or the operation."""
    vocabulary = world.vocabulary
    is_hard = rng.random() < (0.3 * hard if place == SECOND else hard)
    share = rng.uniform(0.08, 0.5) if is_hard else log_uniform(rng, 0.001, 0.03)
    if is_hard and rng.random() < 0.1:
        share = rng.uniform(0.5, 0.8)
    other = rng.uniform(0.1, 0.5) if place == OPERATION and rng.random() < 0.5 else 0.0
    worst = WRONG if place in (QUANTITY, OPERATION) else SLIPPED
    wrong_K = rng.dirichlet(np.full(3, 0.7))
    share_K = [(1 - share) * (1 - other), (1 - share) * other, *(share * wrong_K)]
    for health in range(HEALTHS):
        # After a mistake the numbers are others, and what is right no longer matters.
        token_K = some_tokens(rng, vocabulary, 5)
        drawn_V = drawn_logits(rng, vocabulary, token_K, share_K, log_uniform(rng, 3e-4, 1e-2))
        right_V = np.isin(np.arange(vocabulary), token_K[: 2 if other else 1])
        mistake_V = (np.isin(np.arange(vocabulary), token_K[2:]) & (health == RIGHT)).astype(float)
        health_V = np.where(right_V, health, max(health, worst))
        for manner in range(MANNERS):
            logit_V = drawn_V - (care * mistake_V if manner == WORDY else 0.0)
            next_V = world.state[step, place + 1, health_V, manner]
            everywhere(world, (step, place, health, manner), logit_V, next_V, mistake_V=mistake_V)


def _close(rng: Generator, world: Automaton, step: int, steps: int) -> None:
    """The end of a calculation: the next step, a check, or the answer too early."""
    check, skip = log_uniform(rng, 0.01, 0.2), log_uniform(rng, 0.001, 0.04)
    token_K = some_tokens(rng, world.vocabulary, 5)
    _, next_word, check_token, reread_token, skip_token = token_K
    split = rng.uniform(0.6, 0.98)
    for health in range(HEALTHS):
        checking = min(0.6, check * (1.0, 2.5, 1.2)[health])
        going_on = 1 - checking - skip
        share_K = [going_on * split, going_on * (1 - split), 0.75 * checking, 0.25 * checking, skip]
        logit_V = drawn_logits(rng, world.vocabulary, token_K, share_K, 0.005)
        for manner in range(MANNERS):
            next_V = np.full(world.vocabulary, world.state[step + 1, WORDING, health, manner])
            next_V[next_word] = world.state[step + 1, WORDING, health, 1 - manner]
            next_V[check_token] = world.state[step, QUANTITY, RIGHT if health == SLIPPED else health, manner]
            next_V[reread_token] = world.state[step, QUANTITY, RIGHT, manner]
            skipped = health if step == steps - 1 else WRONG
            next_V[skip_token] = world.state[steps, FORMAT, skipped, manner]
            everywhere(world, (step, CLOSE, health, manner), logit_V, next_V)


def _answer(rng: Generator, world: Automaton, steps: int) -> None:
    """The format, the answer, its unit, and the end."""
    vocabulary, token_V = world.vocabulary, np.arange(world.vocabulary)
    format_K, answer_K, unit_K = (some_tokens(rng, vocabulary, 4) for _ in range(3))
    bad = rng.uniform(0.1, 0.35) if rng.random() < 0.2 else log_uniform(rng, 0.002, 0.04)
    units = rng.uniform(0.5, 0.95)
    babble = log_uniform(rng, 0.03, 0.3)
    for health in range(HEALTHS):
        right = (0.985, 0.04, 0.03)[health]
        answer_V = drawn_logits(rng, vocabulary, answer_K, [right, *((1 - right) * np.array([0.7, 0.2, 0.1]))], 0.002)
        health_V = np.where(token_V == answer_K[0], RIGHT, WRONG)
        # An answer that cannot be extracted is wrong, whichever it is: it goes straight to its unit.
        format_V = drawn_logits(rng, vocabulary, format_K[:2], [1 - bad, bad], 0.004)
        unit_V = drawn_logits(rng, vocabulary, unit_K[:2], [units, 1 - units], 0.01)
        for manner in range(MANNERS):
            at = world.state[steps, :, :, manner]
            next_V = np.where(token_V == format_K[1], at[UNIT, WRONG], at[ANSWER, health])
            everywhere(world, (steps, FORMAT, health, manner), format_V, next_V)
            everywhere(world, (steps, ANSWER, health, manner), answer_V, at[UNIT, health_V])
            everywhere(world, (steps, UNIT, health, manner), unit_V, np.full(vocabulary, at[END, health]))
            for place, end in ((END, end_logit(LIKELY_END)), (BABBLE, end_logit(babble))):
                next_V = np.full(vocabulary, at[BABBLE, health])
                everywhere(world, (steps, place, health, manner), unit_V, next_V, end=end)
