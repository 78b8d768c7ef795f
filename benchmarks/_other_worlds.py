"""Families of exact worlds, with five teachers each, by somebody who had not seen the estimators or the other worlds.

The families of `_worlds.py` grew together with the estimators that are measured on them; these did not. Here states
have meanings, and tokens have roles: at every position most tokens do nothing, and the others change style, make or
mend a mistake, go back, or start the answer.

- `cot`: a chain of thought. See `_cot`.
- `search`: steps of a search, which may go back. See `_search`.
- `late`: all prefixes are about equally good, until the last tokens decide. See `_late`.

The seed determines everything: vocabulary (12 to 40 tokens), typical length, and pass rate (0.05 to 0.95).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from _automaton import Automaton, Likely, drawn_logits, drawn_pass_rate, normalised, some_tokens

from opd_align.backends.exact import ExactTeacher, ExactWorld
from opd_align.backends.exact_random import EOS

Generator = np.random.Generator
SHORTEST = 40
"""Shortest typical completion, in tokens."""
TEACHER_STREAM = 77


@dataclass(frozen=True)
class Family:
    """A family of worlds.

    Args:
        stream: Second number of the seed, so that families do not share random numbers.
        longest: Longest typical completion, in tokens.
        build: Creates a world with a vocabulary of some size and a typical length.
    """

    stream: int
    longest: int
    build: Callable[[Generator, int, int], ExactWorld]

    def sizes(self, seed: int) -> tuple[Generator, int, int]:
        """The generator of a world after the first draws, its vocabulary and its typical length."""
        rng = np.random.default_rng([seed, self.stream])
        vocabulary = int(rng.integers(12, 41))
        return rng, vocabulary, int(np.exp(rng.uniform(np.log(SHORTEST), np.log(self.longest))))


def world_of(family: str, seed: int) -> ExactWorld:
    return FAMILIES[family].build(*FAMILIES[family].sizes(seed))


def length_of(family: str, seed: int) -> int:
    """Typical length of the completions of a world, in tokens."""
    return FAMILIES[family].sizes(seed)[2]


def teachers_of(family: str, world: ExactWorld, seed: int) -> list[ExactTeacher]:
    """A good teacher, a neutral one, one that is surer than the student, a bad one, and one that helps only late.

    All but the surer one have noise with heavy tails that is the same in all states of a position.
    """
    rng = np.random.default_rng([seed, TEACHER_STREAM])
    log_p_LSV, advantage_LSV = world.log_p_LSV, _advantage(world)
    limit, _, vocabulary = log_p_LSV.shape

    def noise(scale: float) -> np.ndarray:
        return np.clip(rng.standard_t(4, (limit, 1, vocabulary)) * scale, -4, 4)

    last_L = np.arange(limit) >= 0.6 * length_of(family, seed)
    logits = {
        "tilted": log_p_LSV + 5.0 * advantage_LSV + noise(0.6),
        "stylist": log_p_LSV + noise(0.9),
        "sharp": 1.7 * log_p_LSV,
        "adversary": log_p_LSV - 4.0 * advantage_LSV + noise(0.6),
        "late": log_p_LSV + np.where(last_L[:, None, None], 8.0 * advantage_LSV, 0.0) + noise(0.4),
    }
    for name, logit_LSV in logits.items():
        if name != "sharp":
            # When to end the text is not a matter of taste.
            logit_LSV[..., EOS] = log_p_LSV[..., EOS]
    return [ExactTeacher(name, normalised(logit_LSV)) for name, logit_LSV in logits.items()]


def _advantage(world: ExactWorld) -> np.ndarray:
    q_LSV = world.value_LS[np.arange(1, world.limit + 1)[:, None, None], world.next_LSV]
    q_LSV[..., EOS] = world.success_S
    return q_LSV - world.value_LS[:-1, :, None]


# -- cot: a chain of thought ---------------------------------------------------------------------------------

STRATEGIES, HEALTHS, STYLES, PHASES = 3, 3, 3, 6
RIGHT, SLIPPED, WRONG = range(HEALTHS)
REASONING, ANSWERING, LAST = 0, 3, 5
"""Phases of a completion: the others between them lead to the answer and to the end of the text."""
COT_LIKELY = Likely(tokens=(2, 5), first=(0.35, 0.92), evenness=1.5, fork_tail=(0.003, 0.06), plain_tail=(2e-4, 1e-2))


def _cot(rng: Generator, vocabulary: int, length: int) -> ExactWorld:
    """A chain of thought: three strategies of different skill, mistakes that may be noticed, and an answer at the end.

    A state is a strategy, a health (all right; a slip, which "wait" or a correction mends; wrong for good), a style
    without consequence, and a phase (reasoning, then five tokens of the answer). Every 3rd to 10th position forks. Most
    forks are style; a tenth offer to check, 8 to 25 % are decisive, and in a quarter of these the likely token is the
    mistake. Few switch the strategy. The answer is right with 97 %, 35 % or 3 %, by health.
    """
    limit = int(1.3 * length) + 12
    world = Automaton.empty(limit, (STRATEGIES, HEALTHS, STYLES, PHASES), vocabulary)
    answer_K = some_tokens(rng, vocabulary, 5)[:4]
    distractor_K = np.array([0.0, *rng.dirichlet(np.ones(3))])
    carelessness_S = rng.normal(0.0, 1.0, STRATEGIES)
    decisive = rng.uniform(0.08, 0.25)
    for strategy in range(STRATEGIES):
        kinds = _kinds_of_forks(rng, limit, length, decisive)
        for position in range(limit):
            late = position > 0.55 * length
            ending = 1 / (1 + np.exp(-(position - 0.95 * length) / (0.06 * length)))
            roles = _cot_roles(rng, vocabulary, kinds.get(position, "plain"), strategy, late=late)
            _cot_reasoning(world, position, strategy, roles, carelessness_S[strategy], -1.0 + 6.0 * ending)
    for position in range(limit):
        _cot_answer(rng, world, position, answer_K, distractor_K)
    world.success_S[world.state[:, RIGHT, :, LAST].ravel()] = True
    return world.calibrated(drawn_pass_rate(rng), (0, RIGHT, 0, REASONING))


def _kinds_of_forks(rng: Generator, limit: int, length: int, decisive: float) -> dict[int, str]:
    """What the positions that fork are about."""
    kinds: dict[int, str] = {}
    position = int(rng.integers(1, 8))
    while position < limit:
        kind = rng.random()
        if kind < decisive:
            kinds[position] = "decisive"
        elif kind < decisive + 0.10:
            kinds[position] = "check"
        else:
            kinds[position] = "switch" if kind > 0.96 and position < length / 2 else "style"
        position += int(rng.integers(3, 11))
    return kinds


@dataclass(frozen=True)
class CotRoles:
    """What the tokens of a position do, whatever the state.

    Args:
        likely_V: Whether a token is one of the likely ones.
        role_V: Name of what the token does.
        strategy_V: Strategy after the token.
        jump_V: By how much a token of the role "style" changes the style.
        logit_CV: Logits by style.
    """

    likely_V: np.ndarray
    role_V: np.ndarray
    strategy_V: np.ndarray
    jump_V: np.ndarray
    logit_CV: np.ndarray


def _cot_roles(rng: Generator, vocabulary: int, kind: str, strategy: int, *, late: bool) -> CotRoles:
    token_K, logit_V = COT_LIKELY.draw(rng, vocabulary, fork=kind != "plain")
    role_V = rng.choice(["none", "style", "slip", "wrong"], vocabulary, p=[0.45, 0.3, 0.17, 0.08]).astype(object)
    strategy_V = np.full(vocabulary, strategy)
    last = len(token_K) - 1
    for rank, token in enumerate(token_K):
        role_V[token] = "style" if kind == "style" and rng.random() < 0.6 else "none"
        if kind == "decisive" and rank > 0:
            role_V[token] = rng.choice(["slip", "wrong", "none", "fix"], p=[0.5, 0.25, 0.2, 0.05])
        elif kind == "decisive" and rng.random() < 0.25:
            role_V[token] = "slip"
            # Only for the draw: the second token gets its role in the next round.
            rng.random()
        elif kind == "check" and rank == last:
            role_V[token] = "wait"
        elif kind == "switch":
            strategy_V[token] = (strategy + rank) % STRATEGIES
        elif kind == "style" and rank == last and late:
            role_V[token] = "conclude"
    jump_V = rng.integers(1, STYLES, vocabulary)
    logit_CV = logit_V + rng.normal(0.0, 0.15, (STYLES, vocabulary))
    return CotRoles(np.isin(np.arange(vocabulary), token_K), role_V, strategy_V, jump_V, logit_CV)


def _cot_reasoning(
    world: Automaton,
    position: int,
    strategy: int,
    roles: CotRoles,
    carelessness: float,
    concluding: float,
) -> None:
    """The states of one strategy at one position, before the answer."""
    role_V = roles.role_V
    mistake_V = (roles.likely_V & np.isin(role_V, ["slip", "wrong"])).astype(float)
    phase_V = np.where(role_V == "conclude", REASONING + 1, REASONING)
    for health in range(HEALTHS):
        health_V = np.full(len(role_V), health)
        health_V[role_V == "slip"] = max(health, SLIPPED)
        health_V[role_V == "wrong"] = WRONG
        if health == SLIPPED:
            health_V[(role_V == "fix") | (role_V == "wait")] = RIGHT
        for style in range(STYLES):
            here = strategy, health, style, REASONING
            style_V = np.where(role_V == "style", (style + roles.jump_V) % STYLES, style)
            logit_V = roles.logit_CV[style].copy()
            # A student that has slipped is the most likely to say "wait".
            logit_V[role_V == "wait"] += (-1.5, 0.7, -0.5)[health]
            logit_V[role_V == "conclude"] += concluding
            logit_V += mistake_V * carelessness * 0.5
            next_V = world.state[roles.strategy_V, health_V, style_V, phase_V]
            world.fill(position, here, logit_V, next_V, end=np.log(2e-6), mistake_V=mistake_V)


def _cot_answer(
    rng: Generator,
    world: Automaton,
    position: int,
    answer_K: np.ndarray,
    distractor_K: np.ndarray,
) -> None:
    """The phases after the reasoning at one position: the same in all strategies and styles."""
    vocabulary = world.vocabulary
    fixed_K = some_tokens(rng, vocabulary, 2)
    is_right_V = np.arange(vocabulary) == answer_K[0]
    for phase in range(1, PHASES):
        for health in range(HEALTHS):
            end, health_V = np.log(2e-6), np.full(vocabulary, health)
            if phase == ANSWERING:
                right = (0.97, 0.35, 0.03)[health]
                share_K = right * np.eye(4)[0] + (1 - right) * distractor_K
                logit_V = drawn_logits(rng, vocabulary, answer_K, share_K, 0.002)
                health_V = np.where(is_right_V, RIGHT, WRONG)
            elif phase == LAST:
                logit_V = drawn_logits(rng, vocabulary, fixed_K[:1], [1.0], 0.5)
                end = np.log(0.97 / 0.03) + np.log(np.exp(logit_V[1:]).sum())
            else:
                logit_V = drawn_logits(rng, vocabulary, [fixed_K[phase % 2]], [1.0], 0.003)
            for strategy in range(STRATEGIES):
                for style in range(STYLES):
                    next_V = world.state[strategy, health_V, style, min(phase + 1, LAST)]
                    world.fill(position, (strategy, health, style, phase), logit_V, next_V, end=end)


# -- search: steps, and going back ---------------------------------------------------------------------------

ERRORS, OPEN_STEPS, CONTEXTS = 3, 8, 5
NO_ERROR, MENDABLE, FATAL = range(ERRORS)
SEARCH_LIKELY = Likely(tokens=(2, 4), first=(0.4, 0.9), evenness=1.0, fork_tail=(0.005, 0.08), plain_tail=(3e-4, 9e-3))


def _search(rng: Generator, vocabulary: int, length: int) -> ExactWorld:
    """A search with three to five open steps: advancing closes one, expanding and going back open one.

    A state is an error (none, one that going back mends, a fatal one), the number of open steps, and a context with
    tokens of its own: a quarter of the positions fork, in each context others. When no step is open, the answer
    follows; the context counts its tokens. It is right with 95 %, 20 % or 2 %, by error. Many completions of students
    that go back too often are truncated.
    """
    limit = int(length * rng.uniform(1.25, 1.8)) + 5
    world = Automaton.empty(limit, (ERRORS, OPEN_STEPS, CONTEXTS), vocabulary)
    answer_K = some_tokens(rng, vocabulary, 4)
    first = int(rng.integers(3, 6))
    pace = 0.9 * first / length
    for position in range(limit):
        for context in range(CONTEXTS):
            _search_steps(rng, world, position, context, pace)
        _search_answer(rng, world, position, answer_K)
    world.success_S[world.state[NO_ERROR, 0, 3:]] = True
    return world.calibrated(drawn_pass_rate(rng), (NO_ERROR, first, 0))


def _search_steps(rng: Generator, world: Automaton, position: int, context: int, pace: float) -> None:
    """The states of one context at one position, while steps are open."""
    vocabulary = world.vocabulary
    fork = rng.random() < 0.25
    token_K, drawn_V = SEARCH_LIKELY.draw(rng, vocabulary, fork=fork)
    role_V = _search_roles(rng, vocabulary, token_K, pace, fork=fork)
    jump_V = rng.integers(1, CONTEXTS, vocabulary)
    likely_V = np.isin(np.arange(vocabulary), token_K)
    mistake_V = (likely_V & np.isin(role_V, ["error", "fatal"])).astype(float)
    advance_V, back_V = role_V == "advance", role_V == "back"
    for error in range(ERRORS):
        error_V = np.full(vocabulary, error)
        error_V[role_V == "error"] = max(error, MENDABLE)
        error_V[role_V == "fatal"] = FATAL
        if error == MENDABLE:
            error_V[back_V] = NO_ERROR
        logit_V = drawn_V.copy()
        logit_V[advance_V] -= 0.15 * (error == MENDABLE)
        logit_V[back_V] += (-1.0, 0.8, 0.3)[error]
        for n_open in range(1, OPEN_STEPS):
            open_V = np.where(advance_V, n_open - 1, n_open)
            open_V[back_V | (role_V == "expand")] = min(n_open + 1, OPEN_STEPS - 1)
            context_V = np.where(role_V == "context", (context + jump_V) % CONTEXTS, context)
            # With no step left the answer starts, at its first token.
            next_V = world.state[error_V, open_V, np.where(open_V == 0, 0, context_V)]
            here = error, n_open, context
            world.fill(position, here, logit_V, next_V, end=np.log(1e-5), mistake_V=mistake_V)


def _search_roles(rng: Generator, vocabulary: int, token_K: np.ndarray, pace: float, *, fork: bool) -> np.ndarray:
    role_V = rng.choice(
        ["none", "context", "expand", "error", "fatal"], vocabulary, p=[0.45, 0.3, 0.1, 0.1, 0.05]
    ).astype(object)
    if not fork:
        role_V[token_K] = "advance" if rng.random() < pace else "none"
        return role_V
    for token in token_K:
        role_V[token] = rng.choice(
            ["none", "context", "advance", "expand", "error", "fatal", "back"],
            p=[0.28, 0.32, 0.14, 0.05, 0.09, 0.03, 0.09],
        )
    return role_V


def _search_answer(rng: Generator, world: Automaton, position: int, answer_K: np.ndarray) -> None:
    """The tokens of the answer at one position; the text may end from the fourth on."""
    vocabulary = world.vocabulary
    fixed_K = some_tokens(rng, vocabulary, 2)
    is_right_V = np.arange(vocabulary) == answer_K[0]
    for error in range(ERRORS):
        for step in range(CONTEXTS):
            error_V = np.full(vocabulary, error)
            if step == 1:
                right = (0.95, 0.2, 0.02)[error]
                share_K = [right, *((1 - right) * np.array([0.6, 0.3, 0.1]))]
                logit_V = drawn_logits(rng, vocabulary, answer_K, share_K, 0.003)
                error_V = np.where(is_right_V, NO_ERROR, FATAL)
            elif step in (0, 2):
                logit_V = drawn_logits(rng, vocabulary, fixed_K[:1], [1.0], 0.004)
            else:
                logit_V = drawn_logits(rng, vocabulary, fixed_K[1:], [1.0], 0.4)
            end = np.log((1e-5, 1e-5, 1e-5, 9.0, 99.0)[step])
            next_V = world.state[error_V, 0, min(step + 1, CONTEXTS - 1)]
            world.fill(position, (error, 0, step), logit_V, next_V, end=end)


# -- late: the last tokens decide ----------------------------------------------------------------------------

LATE_STYLES, TRACKS = 6, 3
ON_TRACK, DERAILED, OFF_TRACK = range(TRACKS)
BODY, WAY = 0, 1
LATE_LIKELY = Likely(tokens=(2, 5), first=(0.3, 0.9), evenness=1.0, fork_tail=(0.003, 0.05), plain_tail=(2e-4, 1e-2))


@dataclass(frozen=True)
class Late:
    """What is the same at all positions of a world of `_late`.

    Args:
        length: Typical length, in tokens.
        answer_K: The right answer, and three wrong ones.
        lean_C: By how much each style favors the right way, in logits.
        derailing: Probability that an unlikely token derails.
    """

    length: int
    answer_K: np.ndarray
    lean_C: np.ndarray
    derailing: float


def _late(rng: Generator, vocabulary: int, length: int) -> ExactWorld:
    """All prefixes have nearly the same success probability; two of the last tokens decide.

    A state is a style, a track, and a phase: the body, then five tokens, of which the first chooses the way to the
    answer and the third is the answer. A fifth of the positions of the body fork, but styles differ by nothing or next
    to nothing in what follows. In three of five worlds unlikely tokens derail, which makes both deciding tokens worse.
    """
    limit = int(1.25 * length) + 10
    world = Automaton.empty(limit, (LATE_STYLES, TRACKS, PHASES), vocabulary)
    answer_K = some_tokens(rng, vocabulary, 4)
    difference = 0.0 if rng.random() < 0.4 else np.exp(rng.uniform(np.log(0.003), np.log(0.05)))
    lean_C = rng.normal(0.0, difference, LATE_STYLES) if difference else np.zeros(LATE_STYLES)
    derailing = 0.0 if rng.random() < 0.4 else 0.06
    for position in range(limit):
        _late_position(rng, world, position, Late(length, answer_K, lean_C, derailing))
    world.success_S[world.state[:, ON_TRACK, LAST]] = True
    return world.calibrated(drawn_pass_rate(rng), (0, ON_TRACK, BODY))


def _late_position(rng: Generator, world: Automaton, position: int, late: Late) -> None:
    """All states at one position."""
    token_K, drawn_V = LATE_LIKELY.draw(rng, world.vocabulary, fork=rng.random() < 0.22)
    jump_V = rng.integers(0, LATE_STYLES, world.vocabulary)
    derails_V = rng.random(world.vocabulary) < late.derailing
    derails_V[token_K] = False
    leaving = 0.5 / (1 + np.exp(-(position - 0.9 * late.length) / (0.05 * late.length))) + 1e-5
    conclude = int(rng.integers(1, world.vocabulary))
    while conclude in token_K:
        conclude = int(rng.integers(1, world.vocabulary))
    logit_CV = drawn_V + rng.normal(0.0, 0.2, (LATE_STYLES, world.vocabulary))
    fixed_K = some_tokens(rng, world.vocabulary, 2)
    between_V = drawn_logits(rng, world.vocabulary, fixed_K[:1], [1.0], 0.004)
    last_V = drawn_logits(rng, world.vocabulary, fixed_K[1:], [1.0], 0.4)
    unlikely_end, likely_end = np.log(1e-6), np.log(30.0)
    for style in range(LATE_STYLES):
        for track in range(TRACKS):
            logit_V = logit_CV[style].copy()
            logit_V[conclude] = np.log(np.exp(logit_V[1:]).sum()) + np.log(leaving / (1 - leaving))
            next_V = world.state[(style + jump_V) % LATE_STYLES, np.where(derails_V, DERAILED, track), BODY]
            next_V[conclude] = world.state[style, track, WAY]
            world.fill(position, (style, track, BODY), logit_V, next_V, end=unlikely_end)
            for phase, after_V, end in (
                (WAY + 1, between_V, unlikely_end),
                (ANSWERING + 1, between_V, unlikely_end),
                (LAST, last_V, likely_end),
            ):
                next_V = np.full(world.vocabulary, world.state[style, track, min(phase + 1, LAST)])
                world.fill(position, (style, track, phase), after_V, next_V, end=end)
            _late_decisions(rng, world, position, style, track, late)


def _late_decisions(rng: Generator, world: Automaton, position: int, style: int, track: int, late: Late) -> None:
    """The two tokens that decide, in one style and on one track: the way to the answer, and the answer."""
    token_V, answer_K = np.arange(world.vocabulary), late.answer_K
    right = (0.6, 0.15, 0.1)[track]
    way_V = drawn_logits(rng, world.vocabulary, answer_K[:3], [right, (1 - right) * 0.6, (1 - right) * 0.4], 0.004)
    way_V[answer_K[0]] += late.lean_C[style]
    right = (0.85, 0.3, 0.15)[track]
    share_K = [right, *((1 - right) * np.array([0.5, 0.4, 0.1]))]
    answer_V = drawn_logits(rng, world.vocabulary, answer_K, share_K, 0.004)
    track_V = np.where(token_V == answer_K[0], ON_TRACK, OFF_TRACK)
    for phase, logit_V, wrong_K in ((WAY, way_V, answer_K[1:3]), (ANSWERING, answer_V, answer_K[1:])):
        next_V = world.state[style, track_V, phase + 1]
        mistake_V = np.isin(token_V, wrong_K)
        world.fill(position, (style, track, phase), logit_V, next_V, end=np.log(1e-6), mistake_V=mistake_V)


FAMILIES = {"cot": Family(11, 200, _cot), "search": Family(22, 160, _search), "late": Family(33, 220, _late)}
