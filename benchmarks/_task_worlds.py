"""Three more families of exact worlds, with five teachers each, by an author who has not seen the estimators.

Nor has the author seen any result on other worlds. The families imitate what a small reasoning model writes about three
kinds of questions. Tokens mean something because of the place in the text where they stand: a digit, a word, a plan.

- `sums`: a word problem of grade school. Few tokens are numbers, and these decide. See `_task_sums.py`.
- `plans`: a problem of a competition. The plan, one idea and the budget decide. See `_task_plans.py`.
- `yesno`: a question about a passage. Many tokens matter a little. See `_task_yesno.py`.

The seed determines everything: vocabulary (12 to 40 tokens), typical length, and pass rate (0.05 to 0.95).
"""

from __future__ import annotations

import numpy as np
from _automaton import Automaton, normalised
from _other_worlds import Family
from _task_plans import plans
from _task_sums import NUMBERS, SUMS_PARTS, sums
from _task_yesno import DONE, YES_SIDE, YESNO_PARTS, yesno

from opd_align.backends.exact import ExactTeacher, ExactWorld
from opd_align.backends.exact_random import EOS

TEACHER_STREAM = 404


def world_of(family: str, seed: int) -> ExactWorld:
    return FAMILIES[family].build(*FAMILIES[family].sizes(seed))


def length_of(family: str, seed: int) -> int:
    """Typical length of the completions of a world, in tokens."""
    return FAMILIES[family].sizes(seed)[2]


def teachers_of(family: str, world: ExactWorld, seed: int) -> list[ExactTeacher]:
    """Five teachers. All but the sharp one have habits: preferences for tokens everywhere, and in each place.

    - `larger` knows seven tokens in ten, has no opinion about two, and is mistaken about one. How firmly, varies.
    - `dialect` has stronger habits and knows nothing.
    - `sharp` is the student at a lower temperature.
    - `subtle` is right where little is at stake and wrong where much is.
    - `specialist` knows only the numbers of `sums` and only the beginning of `plans`. In `yesno` it wants to hear yes.
    """
    rng = np.random.default_rng([seed, TEACHER_STREAM, FAMILIES[family].stream])
    log_p_LSV, advantage_LSV = world.log_p_LSV, _advantage(world, world.success_S)
    _, states, vocabulary = log_p_LSV.shape

    def habits(everywhere: float, here: float) -> np.ndarray:
        noise_SV = rng.standard_t(4, (states, vocabulary)) * here + rng.normal(0.0, everywhere, vocabulary)
        return np.clip(noise_SV, -4, 4)

    firm, harm = np.exp(rng.uniform(np.log(1.0), np.log(6.0))), rng.uniform(0.3, 2.5)
    known_SV = rng.choice([1.0, 0.0, -0.7], (states, vocabulary), p=[0.7, 0.2, 0.1])
    stake_LSV = np.where(np.abs(advantage_LSV) > 0.08, -harm, 3.0)
    logits = {
        "larger": 1.1 * log_p_LSV + firm * known_SV * advantage_LSV + habits(0.3, 0.4),
        "dialect": log_p_LSV + habits(0.8, 0.5),
        "sharp": log_p_LSV / 0.6,
        "subtle": log_p_LSV + stake_LSV * advantage_LSV + habits(0.2, 0.3),
        "specialist": log_p_LSV + _speciality(family, world, seed, advantage_LSV) + habits(0.2, 0.3),
    }
    for name, logit_LSV in logits.items():
        if name != "sharp":
            # Everybody stops where the answer is complete.
            logit_LSV[..., EOS] = log_p_LSV[..., EOS]
    return [ExactTeacher(name, normalised(logit_LSV)) for name, logit_LSV in logits.items()]


def _speciality(family: str, world: ExactWorld, seed: int, advantage_LSV: np.ndarray) -> np.ndarray:
    if family == "sums":
        number_S = np.zeros(len(world.success_S))
        number_S[_state_of(SUMS_PARTS)[:, list(NUMBERS)].ravel()] = 6.0
        return number_S[:, None] * advantage_LSV
    if family == "plans":
        early_L = np.arange(world.limit) < 0.3 * length_of(family, seed)
        return np.where(early_L[:, None, None], 7.0 * advantage_LSV, 0.0)
    yes_S = np.zeros(len(world.success_S), np.bool_)
    yes_S[_state_of(YESNO_PARTS)[YES_SIDE, :, DONE]] = True
    return 3.0 * _advantage(world, yes_S)


def _state_of(parts: tuple[int, ...]) -> np.ndarray:
    return Automaton.empty(1, parts, 1).state


def _advantage(world: ExactWorld, success_S: np.ndarray) -> np.ndarray:
    """By how much each token changes the probability to end in a state of `success_S`."""
    wanted = ExactWorld(world.log_p_LSV, world.next_LSV, success_S, world.start)
    q_LSV = wanted.value_LS[np.arange(1, world.limit + 1)[:, None, None], world.next_LSV]
    q_LSV[..., EOS] = success_S
    return q_LSV - wanted.value_LS[:-1, :, None]


FAMILIES = {"sums": Family(44, 110, sums), "plans": Family(55, 120, plans), "yesno": Family(66, 80, yesno)}
