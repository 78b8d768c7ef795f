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
from math import isfinite, nan, sqrt
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from opd_align.core.metrics import MIN_QUESTIONS
from opd_align.core.node_rows import NodeRows, group_rows, mean_by, select_rows
from opd_align.types import REWARD, Floats, OpdAlignError

LEVEL = 0.95
"""Default probability from which on a comparison counts as decided."""
MAX_MORE_QUESTIONS = 1000
"""Larger numbers of further questions are reported as "more than" this."""
DRAWS, PLANNING_DRAWS, SEED = 4000, 1000, 0
MAX_PLANNED = 3
"""Number of undecided comparisons for which the number of further questions is computed."""
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
    value_Q = mean_by(rows.question_N, rows["alignment"], rows.n_questions, sr_N)
    variance_Q = np.bincount(rows.question_N, (sr_N * np.nan_to_num(sd_N)) ** 2, rows.n_questions)
    total_Q = np.bincount(rows.question_N, sr_N, rows.n_questions)
    return value_Q, np.sqrt(variance_Q) / np.where(total_Q > 0, total_Q, nan)


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
        more_questions: About how many more questions would decide it, if the difference stays as it is. None: more than
            `MAX_MORE_QUESTIONS`.
    """

    other: int | None
    probability: float
    more_questions: int | None


@dataclass(frozen=True)
class Decision:
    """What an analysis recommends.

    Args:
        outcome: `"recommended"`: the candidate with the highest mean helps, and is the best of all, each with
            probability `level`. `"no_teacher_helps"`: with that probability no candidate has a mean above zero.
            `"undecided"`: neither. `"too_few_questions"`: no probabilities, because fewer than four questions can be
            compared.
        level: Probability from which on something counts as decided.
        n_questions: Number of questions that the comparison uses.
        candidates: Those that were compared, highest mean first; then those with too few questions.
        better: For each two candidates that were compared, the probability that the first is better.
        p_none_helps: Probability that no candidate helps; NaN without probabilities.
        still_open: What is not decided about the best candidate, the least certain first.
    """

    outcome: Outcome
    level: float
    n_questions: int
    candidates: tuple[Candidate, ...]
    better: tuple[tuple[float, ...], ...] = ()
    p_none_helps: float = nan
    still_open: tuple[Open, ...] = ()

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
            "p_none_helps": _rounded(self.p_none_helps),
            "harmful": [_key(one) for one in self.harmful],
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
                    "probability": _rounded(one.probability), "more_questions": one.more_questions,
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
    posterior = Posterior(value_QP[shared_Q][:, kept], sd_QP[shared_Q][:, kept])
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
    outcome: Outcome = "recommended" if min(p_helps_K[0], p_best_K[0] if len(kept) > 1 else 1) >= level else "undecided"
    outcome = "no_teacher_helps" if p_none >= level else outcome
    still_open = tuple(_still_open(posterior, draws_DK, n, level, usable)) if outcome == "undecided" else ()
    better = tuple(tuple(values) for values in better_KK.tolist())
    return Decision(outcome, level, n, (*compared, *others), better, p_none, still_open)


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
            own = rows.table["question"].cast(pa.string()).to_pylist()
            index_Q = [index_of[own[row]] for row in first_Q]
            value_QP[index_Q, at], sd_QP[index_Q, at] = HEADLINE.values(rows)
    known_P = np.isfinite(value_QP).any(0)
    return [pair for pair, known in zip(pairs, known_P, strict=True) if known], value_QP[:, known_P], sd_QP[:, known_P]


class Posterior:
    """The joint posterior of the pairs' means over all questions, see above.

    Args:
        value_QK: Headline value of each question and pair, all known.
        sd_QK: Standard deviation of each value by itself; 0 if unknown.
    """

    def __init__(self, value_QK: Floats, sd_QK: Floats | None = None) -> None:
        self.mean_K = value_QK.mean(0)
        self.n_questions, self.size = value_QK.shape
        self._deviation_QK = value_QK - self.mean_K
        self._variance_K = self._deviation_QK.var(0, ddof=1)
        own_K = np.zeros(self.size) if sd_QK is None else (sd_QK**2).mean(0)
        self._missing_K = np.maximum(own_K - self._variance_K, 0)
        self._common_variance = float(self._deviation_QK.mean(1).var(ddof=1) + self._missing_K.mean() / self.size)
        # Differences between pairs, in the directions in which their noise is uncorrelated.
        contrast_KC = np.linalg.svd(np.eye(self.size) - 1 / self.size)[0][:, : self.size - 1]
        covariance_KK = self._deviation_QK.T @ self._deviation_QK / (self.n_questions - 1) + np.diag(self._missing_K)
        self._variance_C, vector_CC = np.linalg.eigh(contrast_KC.T @ covariance_KK @ contrast_KC)
        self._variance_C = np.maximum(self._variance_C, 0)
        self._direction_KC = contrast_KC @ vector_CC

    def draws(self, n: int, *, n_draws: int = DRAWS) -> Floats:
        """Draws of the means as they would be with `n` questions of the same means and spread; shape (draws, pairs)."""
        rng = np.random.default_rng(SEED)
        known = self.n_questions
        weight_DQ = rng.dirichlet(np.ones(known), n_draws) - 1 / known
        extra_DK = rng.standard_normal((n_draws, self.size))
        isotropic_DC = rng.standard_normal((n_draws, self.size - 1))
        wide_D1 = np.sqrt((n - 1) / rng.chisquare(n - 1, (n_draws, 1)))
        # A Bayesian bootstrap of k questions has (k - 1) / (k + 1) of the variance of a mean of k.
        noise_DK = weight_DQ @ self._deviation_QK * sqrt((known + 1) / (known - 1) * known / n)
        noise_DK += extra_DK * np.sqrt(self._missing_K / n)
        pick_D2, mean_1 = rng.random((n_draws, 2)), np.array([self.mean_K.mean()])
        common_DK = noise_DK.mean(1, keepdims=True)
        variance_1 = np.array([self._common_variance])
        mean_D1 = _shrunk(mean_1, common_DK, variance_1 / n, self._common_variance, wide_D1, pick_D2[:, :1])
        if self.size == 1:
            return mean_D1
        # With few questions and many pairs some differences seem free of noise: their variances are drawn together.
        pulled = (self.size - 2) / (n - 1 + self.size - 2)
        typical = float(self._variance_C.mean())
        variance_C = ((1 - pulled) * self._variance_C + pulled * typical) / n
        noise_DC = sqrt(1 - pulled) * (noise_DK @ self._direction_KC) + isotropic_DC * sqrt(pulled * typical / n)
        mean_C = self.mean_K @ self._direction_KC
        difference_DC = _shrunk(mean_C, noise_DC, variance_C, typical, wide_D1, pick_D2[:, 1:])
        return mean_D1 + difference_DC @ self._direction_KC.T


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
    above_KK = np.stack([(draw_D[:, None] > draws_DK).mean(0) for draw_D in draws_DK.T])
    np.fill_diagonal(above_KK, 0.5)
    return within_limit(above_KK, n)


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


def _still_open(posterior: Posterior, draws_DK: Floats, n: int, level: float, usable: float) -> list[Open]:
    """What is undecided about the first pair, the least certain first."""
    better_K = better_probabilities(draws_DK, n)[0]
    rivals = sorted(range(1, posterior.size), key=lambda at: better_K[at])
    p_best = (draws_DK.argmax(1) == 0).mean()
    # Several rivals, each of which is probably worse, can together be too many: then the closest one is open.
    close = [at for at in rivals if better_K[at] < level] or (rivals[:1] if p_best < level else [])
    questions: list[tuple[float, int | None]] = [(float(better_K[at]), at) for at in close]
    p_helps = float(within_limit((draws_DK[:, 0] > 0).mean(), n))
    if p_helps < level:
        questions.append((p_helps, None))
    questions.sort(key=lambda entry: (entry[0], entry[1] or 0))
    plan = [
        _more_questions(posterior, other, n, level, usable) if rank < MAX_PLANNED else None
        for rank, (_, other) in enumerate(questions)
    ]
    return [Open(other, probability, more) for (probability, other), more in zip(questions, plan, strict=True)]


def _more_questions(posterior: Posterior, other: int | None, n: int, level: float, usable: float) -> int | None:
    """How many more questions decide a comparison if means and spread stay as they are; None: too many."""

    def probability(total: int) -> float:
        draws_DK = posterior.draws(total, n_draws=PLANNING_DRAWS)
        above_D = draws_DK[:, 0] > (0 if other is None else draws_DK[:, other])
        return float(within_limit(above_D.mean(), total))

    low, high = n, n + int(MAX_MORE_QUESTIONS * usable)
    if probability(high) < level:
        return None
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
