"""Which teacher and objective to use, and how certain that is: probabilities from a joint posterior over questions.

Every pair (teacher, objective) has one value of the headline quantity per question. The posterior of the pairs' means
is a Bayesian bootstrap over questions: all pairs share the weights of a draw, so comparisons are paired. Three things
keep it from being surer than the data:

- the draws are widened to Student's t, since the spread between few questions is itself uncertain, and where questions
  agree more than the uncertainty of their own values allows, that uncertainty is used instead;
- the differences between pairs are shrunk toward zero as strongly as their common size suggests (a hierarchical model,
  the size integrated out), since the best of several noisy values is too good on average;
- no probability is closer to 0 or 1 than `2**-n`, which is all that n questions can say without assumptions.

Computes from the node table only. The sentences are in `report.recommendation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan, sqrt
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from opd_align.core.attenuation import weighted_values
from opd_align.core.metrics import MIN_QUESTIONS
from opd_align.core.node_rows import NodeRows, group_rows, select_rows
from opd_align.types import REWARD, Floats, OpdAlignError

LEVEL = 0.95
"""Default probability from which on a comparison counts as decided."""
MAX_MORE_QUESTIONS = 1000
"""Larger numbers of further questions are reported as "more than" this."""
ABSURD = f">{MAX_MORE_QUESTIONS}"
DRAWS, PLANNING_DRAWS, SEED = 4000, 1000, 0
MAX_PLANNED = 3
"""Number of undecided comparisons for which the number of further questions is computed."""
MARGIN = 0.02
"""Candidates whose headline quantity differs by less than this are as good as each other."""
SPREADS = np.geomspace(0.05, 2.0, 24)
"""Standard deviation of the pairs' true means, in units of the spread of differences between questions: a grid with
equal prior weights, so from "no visible difference" to "differences as large as those between questions"."""
NORMAL_90 = 1.6449  # half-width of a 90 % interval in standard deviations

Outcome = Literal["recommended", "undecided", "no_teacher_helps", "too_few_questions"]


@dataclass(frozen=True)
class Headline:
    """The quantity that decides.

    Args:
        label: Its name in tables and sentences.
        stem: Its name in `core.metric_registry`.
        values: From the rows of one pair to one value per question and its standard deviation (0: unknown).
    """

    label: str
    stem: str
    values: Callable[[NodeRows], tuple[Floats, Floats]]


def _weighted_alignment(rows: NodeRows) -> tuple[Floats, Floats]:
    sr_N, sd_N = rows["sr_range"], (rows["alignment_high"] - rows["alignment_low"]) / (2 * NORMAL_90)
    values = weighted_values(rows)
    variance_Q = np.bincount(rows.question_N, (sr_N * np.nan_to_num(sd_N)) ** 2, rows.n_questions)
    total_Q = np.bincount(rows.question_N, sr_N, rows.n_questions)
    return values.value_Q, np.sqrt(variance_Q) / np.where(total_Q > 0, total_Q, nan)


HEADLINE = Headline("SR-weighted alignment", "alignment/weighted", _weighted_alignment)
"""What recommendations are based on: of the quantities measured before training, one that predicts its gain."""


@dataclass(frozen=True)
class Candidate:
    """One teacher with one objective.

    Args:
        teacher: Name of the teacher.
        objective: Name of the objective.
        mean: Mean of the headline quantity over the questions of the comparison.
        n_questions: Number of questions with a known value.
        p_helps: Probability that the mean is above zero; NaN if it was not compared.
        p_best: Probability that it has the highest mean of all that were compared; NaN if it was not compared.
    """

    teacher: str
    objective: str
    mean: float
    n_questions: int
    p_helps: float = nan
    p_best: float = nan

    @property
    def p_harms(self) -> float:
        """Probability that the mean is below zero."""
        return 1 - self.p_helps


@dataclass(frozen=True)
class Open:
    """A comparison that is not decided.

    Args:
        other: Index of the candidate that the best one is compared with; None if the question is whether the best
            one helps.
        probability: Probability that the best one is better, or that it helps.
        more_questions: About how many more questions would decide it, if the difference stays as it is. Infinite: more
            than `MAX_MORE_QUESTIONS`. NaN: not computed, since others are less certain.
    """

    other: int | None
    probability: float
    more_questions: float


@dataclass(frozen=True)
class Decision:
    """What an analysis recommends.

    Args:
        outcome: `"recommended"`: the candidate with the highest mean helps, and no other one is better, each with
            probability `level`; others may be as good. `"no_teacher_helps"`: with that probability no candidate has a
            mean above zero. `"undecided"`: neither. `"too_few_questions"`: no probabilities, because fewer than four
            questions can be compared.
        level: Probability from which on something counts as decided.
        n_questions: Number of questions that the comparison uses.
        candidates: Those that were compared, highest mean first; then those with too few questions.
        better: For each two candidates that were compared, the probability that the first is better.
        p_none_helps: Probability that no candidate helps; NaN without probabilities.
        still_open: What is not decided about the best candidate, the least certain first.
        p_first: Probability that no other candidate is better than the best one and those that are as good.
        as_good: Indices of the candidates that are as good as the best one (within `MARGIN`) with probability `level`.
        effect_limit: With probability `level`, no candidate's mean is further from zero than this; NaN if unknown.
        difference_limit: With probability `level`, no two candidates' means differ by more than this; NaN if unknown.
    """

    outcome: Outcome
    level: float
    n_questions: int
    candidates: tuple[Candidate, ...]
    better: tuple[tuple[float, ...], ...] = ()
    p_none_helps: float = nan
    still_open: tuple[Open, ...] = ()
    p_first: float = nan
    as_good: tuple[int, ...] = ()
    effect_limit: float = nan
    difference_limit: float = nan

    @property
    def decided(self) -> bool:
        """Whether more questions are not needed."""
        return self.outcome in ("recommended", "no_teacher_helps")

    @property
    def compared(self) -> tuple[Candidate, ...]:
        """The candidates with probabilities, highest mean first."""
        return self.candidates[: len(self.better)]

    @property
    def best(self) -> Candidate | None:
        """The candidate with the highest mean; None without probabilities."""
        return self.candidates[0] if self.better else None

    @property
    def runner_up(self) -> int | None:
        """Index of the candidate that is most likely better than the best one."""
        others = range(1, len(self.better))
        return min(others, key=lambda index: self.better[0][index], default=None)

    @property
    def harmful(self) -> tuple[Candidate, ...]:
        """The candidates that harm with probability `level`."""
        return tuple(one for one in self.compared if one.p_harms >= self.level)

    def as_json(self) -> dict[str, Any]:
        """The decision as JSON values, for `summary.json`; unknown is None."""
        return {
            "outcome": self.outcome, "level": self.level, "headline": HEADLINE.stem, "questions": self.n_questions,
            "p_first": _rounded(self.p_first), "p_none_helps": _rounded(self.p_none_helps),
            "effect_limit": _rounded(self.effect_limit), "difference_limit": _rounded(self.difference_limit),
            "harmful": [_key(one) for one in self.harmful],
            "as_good": [_key(self.candidates[at]) for at in self.as_good],
            "candidates": [
                {
                    "teacher": one.teacher, "objective": one.objective, "mean": _rounded(one.mean),
                    "questions": one.n_questions, "p_helps": _rounded(one.p_helps), "p_best": _rounded(one.p_best),
                }
                for one in self.candidates
            ],
            "better": [[_rounded(value) for value in values] for values in self.better],
            "open": [
                {
                    "against": None if one.other is None else _key(self.candidates[one.other]),
                    "probability": _rounded(one.probability),
                    "more_questions": ABSURD if one.more_questions == inf else _rounded(one.more_questions),
                }
                for one in self.still_open
            ],
        }  # fmt: skip


def decide(nodes: pa.Table, *, n_analyzed: int | None = None, level: float = LEVEL) -> Decision:
    """The recommendation of an analysis.

    Args:
        nodes: `Analysis.nodes`. Objectives without a teacher are not candidates: they need no choice of a teacher.
        n_analyzed: Number of questions that were analyzed, with or without a value: needed for the number of further
            questions. `None`: those with a value.
        level: Probability from which on something counts as decided, in (0.5, 1).
    """
    if not 0.5 < level < 1:
        raise OpdAlignError(f"the probability of a decision must lie between 0.5 and 1, not {level:g}")
    pairs, value_QP, sd_QP = question_values(nodes)
    known_QP = np.isfinite(value_QP)
    kept = _comparable(known_QP)
    shared_Q = known_QP[:, kept].all(1) if kept else np.zeros(len(value_QP), bool)
    n = int(shared_Q.sum())
    rest = [at for at in range(len(pairs)) if at not in kept or n < MIN_QUESTIONS]
    others = [
        Candidate(*pairs[at], float(value_QP[known_QP[:, at], at].mean()), int(known_QP[:, at].sum()))
        for at in sorted(rest, key=lambda at: -value_QP[known_QP[:, at], at].mean())
    ]
    if n < MIN_QUESTIONS:
        shared = int(known_QP.all(1).sum()) if pairs else 0
        return Decision("too_few_questions", level, shared, tuple(others))
    mean_K = value_QP[shared_Q][:, kept].mean(0)
    order = sorted(range(len(kept)), key=lambda at: (-mean_K[at], pairs[kept[at]]))
    kept = [kept[at] for at in order]
    teachers = [pairs[at][0] for at in kept]
    posterior = Posterior(value_QP[shared_Q][:, kept], sd_QP[shared_Q][:, kept], teachers)
    draws_DK = posterior.draws(n)
    better_KK = better_probabilities(draws_DK, n)
    p_helps_K, best_D = within_limit((draws_DK > 0).mean(0), n), draws_DK.argmax(1)
    p_best_K = within_limit(np.bincount(best_D, minlength=len(kept)) / len(draws_DK), n)
    compared = [
        Candidate(*pairs[at], float(mean), int(known_QP[:, at].sum()), float(helps), float(best))
        for at, mean, helps, best in zip(kept, mean_K[order], p_helps_K, p_best_K, strict=True)
    ]
    p_none = float(within_limit((draws_DK <= 0).all(1).mean(), n))
    usable = n / max(n_analyzed or n, n)
    close_K = (np.abs(draws_DK - draws_DK[:, :1]) < MARGIN).mean(0)
    as_good = tuple(at for at in range(1, len(kept)) if within_limit(close_K[at], n) >= level)
    p_first = float(within_limit(np.isin(best_D, (0, *as_good)).mean(), n)) if len(kept) > 1 else 1.0
    outcome: Outcome = "recommended" if min(p_helps_K[0], p_first) >= level else "undecided"
    outcome = "no_teacher_helps" if p_none >= level else outcome
    open_now = outcome == "undecided"
    still_open = tuple(_still_open(posterior, draws_DK, as_good, n, level, usable)) if open_now else ()
    better = tuple(tuple(values) for values in better_KK.tolist())
    # Shrinking finds the best of several; a limit must also hold where means are as large as they look.
    limits = largest_sizes(posterior.draws(n, shrink=False), n, level)
    return Decision(outcome, level, n, (*compared, *others), better, p_none, still_open, p_first, as_good, *limits)


def question_values(nodes: pa.Table) -> tuple[list[tuple[str, str]], Floats, Floats]:
    """The pairs (teacher, objective), and the headline value of each question and its standard deviation for each."""
    found = nodes.unify_dictionaries().group_by(["objective", "teacher"]).aggregate([]).to_pylist()
    pairs = sorted((row["teacher"], row["objective"]) for row in found if row["teacher"] != REWARD)
    names = sorted(nodes["question"].cast(pa.string()).unique().to_pylist())
    index_of = {name: index for index, name in enumerate(names)}
    value_QP, sd_QP = np.full((len(names), len(pairs)), nan), np.zeros((len(names), len(pairs)))
    for at, (teacher, objective) in enumerate(pairs):
        rows = select_rows(nodes, objective, teacher)
        if rows.n_questions:
            _, first_Q = group_rows(rows.question_N)
            own = rows.column("question").cast(pa.string()).to_pylist()
            index_Q = [index_of[own[row]] for row in first_Q]
            value_QP[index_Q, at], sd_QP[index_Q, at] = HEADLINE.values(rows)
    known_P = np.isfinite(value_QP).any(0)
    return [pair for pair, known in zip(pairs, known_P, strict=True) if known], value_QP[:, known_P], sd_QP[:, known_P]


@dataclass(frozen=True)
class _Directions:
    """Uncorrelated directions of a space of differences between pairs.

    Args:
        vector_KC: Orthonormal vectors.
        mean_C: Observed means along them.
        variance_C: Variance of the noise of one question along them.
    """

    vector_KC: Floats
    mean_C: Floats
    variance_C: Floats


class Posterior:
    """The joint posterior of the pairs' means over all questions, see above.

    The mean of all pairs, the differences between teachers and those between the objectives of a teacher are three
    spaces with a size of their own: losses usually differ far less than teachers do.

    Args:
        value_QK: Headline value of each question and pair, all known.
        sd_QK: Standard deviation of each value by itself; 0 if unknown.
        teacher_K: Name of each pair's teacher. `None`: each pair has its own.
    """

    def __init__(self, value_QK: Floats, sd_QK: Floats | None = None, teacher_K: Sequence[str] | None = None) -> None:
        value_QK = np.round(value_QK, 9)  # equal up to rounding is equal
        self.n_questions, self.size = value_QK.shape
        self._deviation_QK = value_QK - value_QK.mean(0)
        own_K = np.zeros(self.size) if sd_QK is None else (sd_QK**2).mean(0)
        self._missing_K = np.maximum(own_K - self._deviation_QK.var(0, ddof=1), 0)
        covariance_KK = self._deviation_QK.T @ self._deviation_QK / (self.n_questions - 1) + np.diag(self._missing_K)
        _, index_K = np.unique(list(range(self.size) if teacher_K is None else teacher_K), return_inverse=True)
        teacher_KT = np.eye(index_K.max() + 1)[index_K]
        common_K1 = np.full((self.size, 1), 1 / sqrt(self.size))
        onto_teachers_KK = teacher_KT @ np.linalg.pinv(teacher_KT)
        spaces = (
            common_K1 @ common_K1.T,
            onto_teachers_KK - common_K1 @ common_K1.T,
            np.eye(self.size) - onto_teachers_KK,
        )
        self._spaces = [
            _directions(space_KK, value_QK.mean(0), covariance_KK) for space_KK in spaces if np.trace(space_KK) > 0.5
        ]

    def draws(self, n: int, *, n_draws: int = DRAWS, shrink: bool = True) -> Floats:
        """Draws of the means as they would be with `n` questions of the same means and spread; shape (draws, pairs).

        Without `shrink` they are around the observed means, whatever their common size.
        """
        rng = np.random.default_rng(SEED)
        known = self.n_questions
        weight_DQ = rng.dirichlet(np.ones(known), n_draws) - 1 / known
        # A Bayesian bootstrap of k questions has (k - 1) / (k + 1) of the variance of a mean of k.
        noise_DK = weight_DQ @ self._deviation_QK * sqrt((known + 1) / (known - 1) * known / n)
        noise_DK += rng.standard_normal((n_draws, self.size)) * np.sqrt(self._missing_K / n)
        wide_D1 = np.sqrt((n - 1) / rng.chisquare(n - 1, (n_draws, 1)))
        draws_DK = np.zeros((n_draws, self.size))
        for space in self._spaces:
            size, typical = len(space.mean_C), float(space.variance_C.mean())
            # With few questions some of many differences seem free of noise: their variances are drawn together, by
            # as many questions as there are directions, and two more.
            pulled = (size + 1) / (n + size)
            variance_C = ((1 - pulled) * space.variance_C + pulled * typical) / n
            isotropic_DC = rng.standard_normal((n_draws, size)) * sqrt(pulled * typical / n)
            noise_DC = sqrt(1 - pulled) * (noise_DK @ space.vector_KC) + isotropic_DC
            pick_D1 = rng.random((n_draws, 1))
            draws_DC = (
                _shrunk(space.mean_C, noise_DC, variance_C, typical, wide_D1, pick_D1)
                if shrink
                else space.mean_C + wide_D1 * noise_DC
            )
            draws_DK += draws_DC @ space.vector_KC.T
        return draws_DK


def _directions(space_KK: Floats, mean_K: Floats, covariance_KK: Floats) -> _Directions:
    """The space that a projection maps onto, in the directions in which the noise is uncorrelated."""
    basis_KC = np.linalg.svd(space_KK)[0][:, : round(np.trace(space_KK))]
    variance_C, rotation_CC = np.linalg.eigh(basis_KC.T @ covariance_KK @ basis_KC)
    vector_KC = basis_KC @ rotation_CC
    return _Directions(vector_KC, mean_K @ vector_KC, np.maximum(variance_C, 0))


def _shrunk(
    mean_C: Floats, noise_DC: Floats, variance_C: Floats, typical: float, wide_D1: Floats, pick_D1: Floats
) -> Floats:
    """Draws of true values, which are normal around zero with one unknown standard deviation, from noisy means.

    Args:
        mean_C: The noisy means.
        noise_DC: Draws of their noise, before widening.
        variance_C: Variance of the noise.
        typical: Variance between questions, the unit of `SPREADS`.
        wide_D1: Factor of the noise in each draw (Student's t).
        pick_D1: Uniform numbers that choose the standard deviation in each draw.
    """
    spread_T = typical * SPREADS**2 + 1e-30
    total_DTC = spread_T[:, None] + (wide_D1**2)[:, :, None] * variance_C
    log_DT = -0.5 * (np.log(total_DTC) + mean_C**2 / total_DTC).sum(2)
    chance_DT = np.exp(log_DT - log_DT.max(1, keepdims=True)).cumsum(1)
    chosen_D = (chance_DT < pick_D1 * chance_DT[:, -1:]).sum(1)
    kept_DC = spread_T[chosen_D][:, None] / total_DTC[np.arange(len(chosen_D)), chosen_D]
    draws_DC: Floats = kept_DC * mean_C + np.sqrt(kept_DC) * wide_D1 * noise_DC
    return draws_DC


def better_probabilities(draws_DK: Floats, n: int) -> Floats:
    """For each two pairs, the probability that the first has the higher mean; 0.5 on the diagonal."""
    sign_KK = np.stack([np.sign(draw_D[:, None] - draws_DK).mean(0) for draw_D in draws_DK.T])
    return within_limit(0.5 + sign_KK / 2, n)


def largest_sizes(draws_DK: Floats, n: int, level: float) -> tuple[float, float]:
    """What no mean's distance from zero and no difference of two means exceeds, each with probability `level`.

    Both are for all pairs at once. NaN: `n` questions cannot give that probability, or there is nothing to compare.
    """
    if within_limit(1.0, n) < level:
        return nan, nan
    effect = float(np.quantile(np.abs(draws_DK).max(1), level))
    return effect, float(np.quantile(np.ptp(draws_DK, axis=1), level)) if draws_DK.shape[1] > 1 else nan


def within_limit(probability: Any, n: int) -> Any:
    """Probabilities as far from 0 and 1 as `n` questions require: all on one side happens by chance in `2**-n`."""
    return np.clip(probability, 2.0**-n, 1 - 2.0**-n)


def _comparable(known_QP: Any) -> list[int]:
    """The pairs that are compared: without those whose few questions would leave few that all share."""
    kept = [at for at in range(known_QP.shape[1]) if known_QP[:, at].sum() >= MIN_QUESTIONS]
    while kept:
        count = known_QP[:, kept].sum(0)
        if known_QP[:, kept].all(1).sum() >= max(MIN_QUESTIONS, count.max() / 2):
            break
        kept.pop(int(count.argmin()))
    return kept


def _still_open(
    posterior: Posterior, draws_DK: Floats, as_good: Sequence[int], n: int, level: float, usable: float
) -> list[Open]:
    """What is undecided about the first pair, the least certain first."""
    better_K = better_probabilities(draws_DK, n)[0]
    rivals = sorted((at for at in range(1, posterior.size) if at not in as_good), key=lambda at: better_K[at])
    p_helps = float(within_limit((draws_DK[:, 0] > 0).mean(), n))
    questions: list[tuple[float, int | None]] = [(float(better_K[at]), at) for at in rivals if better_K[at] < level]
    if p_helps < level:
        questions.append((p_helps, None))
    # Several rivals, each of which is probably worse, can together be too many: then the closest one is open.
    if not questions and rivals:
        questions.append((float(better_K[rivals[0]]), rivals[0]))
    questions.sort(key=lambda entry: (entry[0], entry[1] or 0))
    return [
        Open(other, probability, _more_questions(posterior, other, n, level, usable) if planned else nan)
        for planned, (probability, other) in (
            (rank < MAX_PLANNED or entry[1] is None, entry) for rank, entry in enumerate(questions)
        )
    ]


def _more_questions(posterior: Posterior, other: int | None, n: int, level: float, usable: float) -> float:
    """How many more questions decide a comparison if means and spread stay as they are; infinite: too many."""

    def probability(total: int) -> float:
        draws_DK = posterior.draws(total, n_draws=PLANNING_DRAWS)
        if other is None:  # that no teacher helps would be a decision too
            return float(within_limit(max((draws_DK[:, 0] > 0).mean(), (draws_DK <= 0).all(1).mean()), total))
        return float(within_limit((draws_DK[:, 0] > draws_DK[:, other]).mean(), total))

    low, high = n, n + int(MAX_MORE_QUESTIONS * usable)
    if probability(high) < level:
        return inf
    while high - low > max(1, low // 20):
        middle = round(sqrt(low * high)) if low * high > 1 else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (low, middle) if probability(middle) >= level else (middle, high)
    return _readable((high - n) / usable)


def _readable(count: float) -> int:
    """A number of questions with as many digits as its precision allows."""
    step = 1 if count < 10 else 5 if count < 50 else 10 if count < 200 else 50
    return max(step * -int(-count // step), 1)


def _key(one: Candidate) -> list[str]:
    return [one.teacher, one.objective]


def _rounded(value: float) -> float | None:
    return round(value, 4) if isfinite(value) else None


def candidate_names(candidates: Sequence[Candidate]) -> list[str]:
    """How candidates are called: by teacher, and by objective too where there are several."""
    several = len({one.objective for one in candidates}) > 1
    return [f"{one.teacher} with {one.objective}" if several else one.teacher for one in candidates]
