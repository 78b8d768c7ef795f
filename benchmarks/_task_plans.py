"""plans: what a small model writes about a problem of a competition. One plan is chosen, and needs one idea."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from _automaton import Automaton, drawn_logits, some_tokens
from _task_text import (
    LIKELY_END,
    NO_END,
    Generator,
    Words,
    end_logit,
    everywhere,
    log_uniform,
    pauses,
    rising,
    words,
)

from opd_align.backends.exact import ExactWorld

PLANS_PARTS = PLANS, STAGES, STATUSES, ATTEMPTS = 4, 6, 5, 2
NO_PLAN, OPENING, ANSWERING = 0, 0, 5
SURE, SHAKY, FLAWED, LOST, LOOP = range(STATUSES)
UNLUCKY_LOGIT_S = np.array([0.0, 0.8, 0.8, 0.8])
"""By how much more likely a mistake is, by status."""


@dataclass(frozen=True)
class Plan:
    """A plan, as the student can carry it out.

    Args:
        number: Number of the plan, from 1.
        crux: Stage of the one idea that it needs.
        idea: Probability of the idea, before the pass rate is set.
        wait: Tokens until a stage is done.
    """

    number: int
    crux: int
    idea: float
    wait: float


def plans(rng: Generator, vocabulary: int, length: int) -> ExactWorld:
    """Three plans, of which the student chooses one near the beginning, and an idea which each of them needs.

    A state is a plan, a stage, a status (sure, shaky, flawed, lost, in a loop) and whether this is the second attempt.
    The answer follows after four stages; a text that has got nowhere when the budget nears its end guesses. Wording
    makes the student a little more or less sure. A flaw is noticed at times, which starts over, as long as this is the
    first attempt; some students also start over for no reason. Few leave a repetition loop. Some completions are
    truncated.
    """
    limit = int(length * rng.uniform(1.1, 1.5)) + 5
    world = Automaton.empty(limit, PLANS_PARTS, vocabulary)
    idea_K = rng.permutation([rng.uniform(0.02, 0.25), rng.uniform(0.15, 0.6), rng.uniform(0.4, 0.9)])
    _opening(rng, world, length, rng.dirichlet(np.full(3, 1.5)))
    fork = {
        "turn": 0.6,
        "flaw": rng.uniform(0.02, 0.12),
        "doubt": rng.uniform(0.02, 0.12),
        "loop": 0.005,
    }
    for number, idea in enumerate(idea_K, 1):
        # Three stages take most of the text; the opening, the idea and the answer take the rest.
        wait = (0.86 * length - 6) / 3 * rng.uniform(0.75, 1.3)
        plan = Plan(number, int(rng.integers(2, 4)), idea, wait)
        _body(rng, world, length, plan, fork)
        _crux(rng, world, plan)
    _loop(rng, world)
    _answer(rng, world)
    world.success_S[world.state[2:, ANSWERING, SURE].ravel()] = True
    pass_rate = rng.uniform(0.05, 0.15) if rng.random() < 0.35 else rng.uniform(0.1, 0.65)
    return world.calibrated(pass_rate, (NO_PLAN, OPENING, SURE, 0))


def _opening(rng: Generator, world: Automaton, length: int, preference_K: np.ndarray) -> None:
    """The problem in other words, until a token chooses the plan. The longer this takes, the less is left."""
    vocabulary = world.vocabulary
    roles = {"turn": 0.6}
    for position in range(len(world.logit_LSV)):
        here = words(rng, vocabulary, 0.2, roles, roles, moves=False)
        logit_V, plan_V = here.logit_V, np.zeros(vocabulary, np.int64)
        if position >= 3 and rng.random() < 12 / length:
            token_K = some_tokens(rng, vocabulary, 4)
            share_K = preference_K * rng.gamma(3.0, 1.0, 3)
            later = rng.uniform(0.02, 0.5)
            share_K = np.array([*(share_K / share_K.sum() * (1 - later)), later])
            logit_V = drawn_logits(rng, vocabulary, token_K, share_K, 0.01)
            plan_V[token_K[:3]] = [1, 2, 3]
        for status in (SURE, SHAKY):
            status_V = np.where(here.role_V == "turn", SURE + SHAKY - status, status)
            for attempt in range(ATTEMPTS):
                next_V = world.state[plan_V, np.minimum(plan_V, 1), status_V, attempt]
                world.fill(position, (NO_PLAN, OPENING, status, attempt), logit_V, next_V, end=NO_END)


def _body(rng: Generator, world: Automaton, length: int, plan: Plan, fork: dict[str, float]) -> None:
    """The stages of one plan, but the idea."""
    vocabulary, limit = world.vocabulary, len(world.logit_LSV)
    tail = {"turn": 0.3, "flaw": 0.08, "lost": 0.05, "doubt": 0.03, "loop": 0.015}
    # The stages of a plan have the same words at the same position, but not the same pauses.
    start_G = 0.1 * length + 4 + plan.wait * np.array([0, 0, 1, 1 if plan.crux == 2 else 2, 2, 3])
    moves_GL = [pauses(rng, limit, plan.wait, start) for start in start_G]
    for position in range(limit):
        here = words(rng, vocabulary, 0.25, fork, tail, moves=False)
        needless = rng.random() < 0.4
        guess = next(token for token in some_tokens(rng, vocabulary, 5) if token not in here.token_K)
        urge = -9.0 + 7.5 * rising(position, 1.05 * length, 0.08 * length)
        mistake_V = here.likely("flaw")
        for stage in range(1, ANSWERING):
            if stage == plan.crux:
                continue
            moves_V = here.moves_V != moves_GL[stage][position]
            for status in (SURE, SHAKY, FLAWED, LOST):
                logit_V = here.logit_V + UNLUCKY_LOGIT_S[status] * mistake_V
                logit_V += (here.role_V == "doubt") * (-0.8, -0.3, 0.9, -1.0)[status]
                logit_V[guess] = np.logaddexp(logit_V[guess], urge)
                for attempt in range(ATTEMPTS):
                    parts = plan.number, stage, status, attempt
                    next_V = _after(world, here, moves_V, parts, needless=needless)
                    # A guess without the idea counts on luck.
                    guessed = status if stage > plan.crux else LOST
                    next_V[guess] = world.state[NO_PLAN, ANSWERING, guessed, attempt]
                    flaw_V = mistake_V * (status <= SHAKY)
                    world.fill(position, parts, logit_V, next_V, end=NO_END, mistake_V=flaw_V)


def _after(
    world: Automaton, here: Words, moves_V: np.ndarray, parts: tuple[int, int, int, int], *, needless: bool
) -> np.ndarray:
    """Next states in the body of a plan."""
    number, stage, status, attempt = parts
    role_V = here.role_V
    status_V = np.full(world.vocabulary, status)
    if status <= SHAKY:
        status_V[role_V == "turn"] = SURE + SHAKY - status
    status_V[role_V == "flaw"] = max(status, FLAWED)
    status_V[role_V == "lost"] = LOST
    stage_V = np.where(moves_V, stage + 1, stage)
    plan_V = np.where(stage_V == ANSWERING, NO_PLAN, number)
    next_V = world.state[plan_V, stage_V, status_V, attempt]
    next_V[role_V == "loop"] = world.state[number, stage, LOOP, attempt]
    if attempt == 0 and (status >= FLAWED or needless):
        next_V[role_V == "doubt"] = world.state[NO_PLAN, OPENING, SHAKY, 1]
    return next_V


def _crux(rng: Generator, world: Automaton, plan: Plan) -> None:
    """The token with the idea. After it everything is routine, perhaps in the wrong direction."""
    vocabulary, token_V = world.vocabulary, np.arange(world.vocabulary)
    lost_V = rng.random(vocabulary) < rng.uniform(0.2, 0.8)
    n_right = int(rng.integers(1, 3))
    right_K = plan.idea * rng.dirichlet(np.full(n_right, 2.0))
    wrong_K = (1 - plan.idea) * rng.dirichlet(np.full(4 - n_right, 2.0))
    for status in (SURE, SHAKY, FLAWED, LOST):
        if status != SHAKY:
            # Sure or shaky, these are the same tokens; with a flaw the text is another one.
            token_K = some_tokens(rng, vocabulary, 4)
            drawn_V = drawn_logits(rng, vocabulary, token_K, [*right_K, *wrong_K], log_uniform(rng, 2e-3, 3e-2))
        wrong_V = np.isin(token_V, token_K[n_right:]).astype(float)
        right_V = np.isin(token_V, token_K[:n_right])
        status_V = np.where(right_V, status, np.where(lost_V, LOST, max(status, FLAWED)))
        logit_V = drawn_V + UNLUCKY_LOGIT_S[status] * wrong_V
        for attempt in range(ATTEMPTS):
            next_V = world.state[plan.number, plan.crux + 1, status_V, attempt]
            parts = plan.number, plan.crux, status, attempt
            everywhere(world, parts, logit_V, next_V, mistake_V=wrong_V * (status <= SHAKY))


def _loop(rng: Generator, world: Automaton) -> None:
    """The same tokens again and again."""
    vocabulary = world.vocabulary
    leaving = log_uniform(rng, 0.005, 0.05)
    token_K = some_tokens(rng, vocabulary, int(rng.integers(4, 9)))
    cycle_K, way_out = token_K[:-1], token_K[-1]
    for position in range(len(world.logit_LSV)):
        token = cycle_K[position % len(cycle_K)]
        logit_V = drawn_logits(rng, vocabulary, [token, way_out], [1 - leaving, leaving], 0.002)
        for plan in range(1, PLANS):
            for stage in range(1, ANSWERING):
                for attempt in range(ATTEMPTS):
                    next_V = np.full(vocabulary, world.state[plan, stage, LOOP, attempt])
                    next_V[way_out] = world.state[plan, stage, FLAWED, attempt]
                    world.fill(position, (plan, stage, LOOP, attempt), logit_V, next_V, end=NO_END)


def _answer(rng: Generator, world: Automaton) -> None:
    """Four places, which the number of the plan counts: words, the answer, the end, and what comes after the end."""
    vocabulary = world.vocabulary
    answer_K, word_K = some_tokens(rng, vocabulary, 4), some_tokens(rng, vocabulary, 4)
    for status in (SURE, SHAKY, FLAWED, LOST):
        right = (0.95, 0.9, 0.08, 0.04)[status]
        answer_V = drawn_logits(rng, vocabulary, answer_K, [right, *((1 - right) * np.array([0.5, 0.3, 0.2]))], 0.01)
        status_V = np.where(np.arange(vocabulary) == answer_K[0], SURE, LOST)
        word_V = drawn_logits(rng, vocabulary, word_K[:2], [0.8, 0.2], 0.01)
        for attempt in range(ATTEMPTS):
            at = world.state[:, ANSWERING, :, attempt]
            everywhere(world, (0, ANSWERING, status, attempt), word_V, np.full(vocabulary, at[1, status]))
            everywhere(world, (1, ANSWERING, status, attempt), answer_V, at[2, status_V])
            for place, end in ((2, end_logit(LIKELY_END)), (3, end_logit(0.2))):
                next_V = np.full(vocabulary, at[3, status])
                everywhere(world, (place, ANSWERING, status, attempt), word_V, next_V, end=end)
