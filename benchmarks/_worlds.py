"""Families of exact worlds for the estimator benchmarks, with their teachers, and the evidence collected in them.

`FAMILIES`, with three teachers each, are defined here. `OTHER_FAMILIES` are those of `_other_worlds.py` and
`_task_worlds.py`, each by somebody who had not seen the estimators.

Seeds below `TEST_SEED` are for development. Figures in the documentation come from `TEST_SEED` on: worlds that nothing
was tuned on.
"""

from __future__ import annotations

from collections.abc import Sequence

import _other_worlds
import _task_worlds
import numpy as np

from opd_align.backends.exact import ExactTeacher, ExactWorld
from opd_align.backends.exact_random import EOS
from opd_align.core.collect import Evidence, collect
from opd_align.settings import Budget, Rules, Settings
from opd_align.types import Question

DEVELOPMENT_SEED = 1_000
TEST_SEED = 70_000
FAMILIES = ("real", "stakes", "heavy")
_MADE_BY = {family: module for module in (_other_worlds, _task_worlds) for family in module.FAMILIES}
OTHER_FAMILIES = tuple(_MADE_BY)
LONGEST = {"real": 300, "stakes": 300, "heavy": 2_000}
"""Longest typical completion of each of `FAMILIES`, in tokens; the shortest is 60."""
# No resolution limit: a node with a small estimated SR range must count, not be left out.
RULES = Rules(draws=200, resolution=0.0)


def world_of(family: str, seed: int, length: int) -> ExactWorld:
    """A random world.

    `real` imitates measured traces: a third of the positions fork, unlikely tokens have 2 % of the mass, most forks
    hardly change the outcome. In `stakes` most forks change it. `heavy` is made by other rules than both: see there.
    Worlds of `OTHER_FAMILIES` have the length that `lengths_of` gives.
    """
    if family in OTHER_FAMILIES:
        return _MADE_BY[family].world_of(family, seed)
    if family == "heavy":
        return heavy_world(seed, length)
    return ExactWorld.random(seed, length=length, stakes={"real": 1.0, "stakes": 4.0}[family])


def heavy_world(seed: int, length: int, *, vocabulary: int = 24, states: int = 80) -> ExactWorld:
    """Heavy tails of tokens with 1 to 3 %, and a pass rate near 0.03 (with much truncation) or near 0.97.

    A fifth of the positions fork, a third have 3 to 10 unlikely tokens on either side of the threshold τ. Jumps between
    states follow Student's t with two degrees of freedom, and unlikely tokens lead downward more often than upward.
    """
    rng = np.random.default_rng(seed)
    hard = seed // 10 % 2 == 1
    limit = int((1.1 if hard else 1.35) * length)
    weight_LV = np.full((limit, vocabulary), 1e-5)
    order_LV = 1 + np.argsort(rng.random((limit, vocabulary - 1)), axis=-1)
    tail_L = np.where(rng.random(limit) < 1 / 3, rng.integers(3, 11, limit), 0)
    for rank in range(10):
        here = np.flatnonzero(tail_L > rank)
        weight_LV[here, order_LV[here, rank + 2]] += rng.uniform(0.01, 0.03, len(here))
    second_L = np.where(rng.random(limit) < 0.2, rng.uniform(0.05, 0.45, limit), 0.0)
    weight_LV[np.arange(limit), order_LV[:, 1]] += second_L
    weight_LV[np.arange(limit), order_LV[:, 0]] += 1 - weight_LV.sum(-1)
    unlikely_LV = weight_LV < 0.05
    scale = 0.8 * (150 / length) ** 0.35 * states / 40
    size_LV = scale * rng.standard_t(2.0, weight_LV.shape) * np.where(unlikely_LV, 2.0, 1.0)
    size_LV -= np.where(unlikely_LV, 0.5 * scale, 0.0)
    size_LV[np.arange(limit), order_LV[:, 0]] = 0.0
    jump_LV = np.floor(size_LV + rng.random(size_LV.shape)).astype(np.int64)
    hazard_L = 0.1 / length + 0.6 * np.maximum(np.arange(limit) / length - 0.75, 0.0) / (0.03 * length)
    log_p_LV = np.log(weight_LV / weight_LV[:, 1:].sum(-1, keepdims=True)) + np.log1p(-hazard_L)[:, None]
    log_p_LV[:, EOS] = np.log(hazard_L)
    # Weights differ a little between states, as they do after different prefixes.
    log_p_LSV = log_p_LV[:, None, :] + rng.normal(0.0, 0.2, (1, states, vocabulary))
    log_p_LSV -= np.logaddexp.reduce(log_p_LSV, axis=-1, keepdims=True)
    next_LSV = np.clip(np.arange(states)[None, :, None] + jump_LV[:, None, :], 0, states - 1).astype(np.uint8)
    start = states // 2
    pass_rate_S = np.cumsum(_ends(log_p_LSV, next_LSV, start)[::-1])[::-1]
    lowest = np.abs(pass_rate_S - (0.03 if hard else 0.97)).argmin()
    return ExactWorld(log_p_LSV, next_LSV, np.arange(states) >= lowest, start)


def _ends(log_p_LSV: np.ndarray, next_LSV: np.ndarray, start: int) -> np.ndarray:
    """Probability to end in each state; the rest is truncated."""
    here_S, ended_S = np.zeros(log_p_LSV.shape[1]), np.zeros(log_p_LSV.shape[1])
    here_S[start] = 1.0
    for log_p_SV, next_SV in zip(log_p_LSV, next_LSV, strict=True):
        flow_SV = here_S[:, None] * np.exp(log_p_SV)
        ended_S += flow_SV[:, EOS]
        flow_SV[:, EOS] = 0.0
        here_S = np.bincount(next_SV.ravel(), flow_SV.ravel(), len(here_S))
    return ended_S


def lengths_of(family: str, seeds: Sequence[int], *, longest: int | None = None) -> list[int]:
    """Typical lengths of worlds: from 60 to the longest, or drawn with the world in `OTHER_FAMILIES`.

    `longest` limits the first kind only: worlds that were made elsewhere stay what they are.
    """
    if family in OTHER_FAMILIES:
        return [_MADE_BY[family].length_of(family, seed) for seed in seeds]
    limit = LONGEST[family] if longest is None else min(LONGEST[family], longest)
    return np.geomspace(60, limit, len(seeds)).astype(int).tolist()


def teachers_of(world: ExactWorld, seed: int, family: str = "real") -> list[ExactTeacher]:
    """A good, a neutral and a bad teacher; five others in `OTHER_FAMILIES`."""
    if family in OTHER_FAMILIES:
        return _MADE_BY[family].teachers_of(family, world, seed)
    return [
        world.tilted_teacher(strength=4.0, noise=1.0, seed=seed + 1),
        world.style_teacher(seed=seed + 2),
        world.adversarial_teacher(strength=4.0, noise=1.0, seed=seed + 3),
    ]


def settings(budget: Budget | None = None) -> Settings:
    return Settings(budget=budget or Budget(), rules=RULES)


def explore(world: ExactWorld, teachers: Sequence[ExactTeacher], budget: Budget) -> Evidence:
    return collect(world, teachers, Question("world"), world, settings=settings(budget))
