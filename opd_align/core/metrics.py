"""From a NodeTable to numbers: rankings, contrasts, oracles, filters, correlations.

Pure functions of one table (a row per question, path, depth, teacher, objective); no file, no plot, no model.
A row counts if its alignment is finite and its SR range positive. The question is the unit of independence:
means run along the path, then over the question's paths, then over questions; intervals are across questions.
What cannot be known is NaN and never spoils its neighbours.

Everywhere, `objective=None` means the only objective that has a teacher, and `teacher=None` all teachers
together, each teacher's view of a path being a path of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, isfinite, nan, sqrt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import stats

from opd_align.types import DIVERGENCES, REWARD, Floats, Ints, OpdAlignError

Name = str | None
MEASURES = (*DIVERGENCES, "student_entropy", "teacher_entropy")
FEATURES = ("depth_normalised", *DIVERGENCES)
PAIRED, WELCH, NO_TEST = "paired t-test over questions", "Welch's t-test over paths", "none"
LEVEL, TAILS, DRAWS = 0.95, (0.025, 0.975), 1000

# With two children the cosine is +-1 up to rounding. What lies closer together than this is the same number:
# a tie, an exact one, no improvement.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` questions and the half-width of its 95 % t interval (NaN below two questions)."""

    mean: float
    half_width: float
    n: int


@dataclass(frozen=True)
class NoiseCeiling:
    """How well two halves of the rollouts agree, and what that allows.

    `pearson` (SR-range-weighted) and `spearman` correlate the halves; the reliabilities are theirs after Spearman and
    Brown, zero where the halves disagree. `ceiling`, the root of `reliability`, is the largest correlation with the
    truth that the estimate can have; `low` and `high` bound it by a bootstrap over questions.
    """

    pearson: float = nan
    spearman: float = nan
    reliability: float = nan
    rank_reliability: float = nan
    ceiling: float = nan
    low: float = nan
    high: float = nan
    n_nodes: int = 0


@dataclass(frozen=True)
class TeacherRank:
    """One teacher's line in the ranking; verdicts and `two_children` are shares of its nodes."""

    teacher: str
    objective: str
    alignment: Estimate
    fraction_positive: Estimate
    weighted_cosine: Estimate
    advantage: Estimate
    helpful: float
    harmful: float
    undecided: float
    two_children: float
    n_questions: int
    n_nodes: int
    noise_ceiling: NoiseCeiling


@dataclass(frozen=True)
class Contrast:
    """Correct against incorrect paths; the two means are over what the test compared (questions or paths)."""

    metric: str
    teacher: Name
    correct: float
    incorrect: float
    delta: float
    half_width: float
    p_value: float
    test: str
    n_pairs: int
    n_correct_paths: int
    n_incorrect_paths: int


@dataclass(frozen=True)
class OracleRow:
    """Distillation at the nodes with alignment above `threshold` (`None`: at all of them).

    `signal` chooses and values nodes by one noisy estimate and so flatters the oracle; `cross_fitted_signal` chooses by
    one half of the rollouts and takes the alignment from the other. `gain`: over all nodes, where a question keeps any.
    """

    threshold: float | None
    signal: Estimate
    gain: Estimate
    share_kept: float
    n_nodes: int
    share_beating: float
    cross_fitted_signal: Estimate


@dataclass(frozen=True)
class FilterRow:
    """Distillation at the most divergent nodes: from `threshold` on, a quantile over the nodes that count."""

    measure: str
    quantile: float
    threshold: float
    signal: Estimate
    gain: Estimate
    share_kept: float
    n_nodes: int
    share_of_oracle_gain: float


@dataclass(frozen=True)
class Correlation:
    """Mean within-path Spearman correlation of alignment and a feature; `teacher` None: all combined."""

    feature: str
    teacher: Name
    rho: Estimate
    n_paths: int
    n_left_out: int


@dataclass(frozen=True)
class Histogram:
    """Alignment over all nodes that count."""

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    mean: float
    std: float
    share_at_plus_one: float
    share_at_minus_one: float


@dataclass(frozen=True)
class PathTrace:
    """One teacher along one path, by depth; nodes that do not count are there too."""

    depth_N: Ints
    token_N: NDArray[np.uint32]
    alignment_N: Floats
    low_N: Floats
    high_N: Floats
    sr_range_N: Floats
    verdict_N: tuple[str, ...]


def teacher_ranking(nodes: pa.Table, objective: Name = None) -> list[TeacherRank]:
    """Teachers by mean alignment, best first; those without a single node last."""
    ranks = []
    for teacher in _select(nodes, objective).teachers:
        rows = _select(nodes, objective, teacher)
        alignment_N, spoken = rows["alignment"], rows.table["verdict"]
        rank = TeacherRank(
            teacher=teacher,
            objective=rows.objective,
            alignment=interval(rows.question_means(alignment_N)),
            fraction_positive=interval(rows.question_means((alignment_N > 0).astype(np.float64))),
            weighted_cosine=interval(_mean_by(rows.question_N, alignment_N, rows.n_questions, rows["sr_range"])),
            advantage=interval(rows.question_means(rows["advantage"])),
            helpful=_share(pc.equal(spoken, "helpful").to_numpy()),
            harmful=_share(pc.equal(spoken, "harmful").to_numpy()),
            undecided=_share(pc.equal(spoken, "undecided").to_numpy()),
            two_children=_share(rows["children"] == 2),
            n_questions=rows.n_questions,
            n_nodes=len(alignment_N),
            noise_ceiling=noise_ceiling(rows.table, rows.objective),
        )
        ranks.append(rank)
    return sorted(ranks, key=lambda rank: (-rank.alignment.mean if rank.n_nodes else inf, rank.teacher))


def noise_ceiling(nodes: pa.Table, objective: Name = None, *, teacher: Name = None, seed: int = 0) -> NoiseCeiling:
    """Split-half reliability of the nodes' alignment, and the best correlation with the truth it allows."""
    rows = _select(nodes, objective, teacher)
    both = np.isfinite(rows["alignment_a"]) & np.isfinite(rows["alignment_b"])
    a_N, b_N, weight_N = (rows[name][both] for name in ("alignment_a", "alignment_b", "sr_range"))
    if len(a_N) < 3:
        return NoiseCeiling(n_nodes=len(a_N))
    # Six sums make a correlation, so a resample of questions is a reweighting of theirs; row 0 of `times_DQ` is the
    # sample itself. Scaling the weights and centring only keep the sums well conditioned.
    weight_N = weight_N / weight_N.max()
    a_N, b_N = (half_N - np.average(half_N, weights=weight_N) for half_N in (a_N, b_N))
    group_N, first_Q = _group(rows.question_N[both])
    terms = (np.ones(len(a_N)), a_N, b_N, a_N * a_N, b_N * b_N, a_N * b_N)
    sums_Q6 = np.stack([np.bincount(group_N, weight_N * term) for term in terms], axis=1)
    n = len(first_Q)
    times_DQ = np.vstack([np.ones(n), np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), DRAWS)])
    total, a, b, aa, bb, ab = (times_DQ @ sums_Q6).T
    var_a, var_b = aa / total - (a / total) ** 2, bb / total - (b / total) ** 2
    varies = (var_a > ROUNDING**2) & (var_b > ROUNDING**2)
    pearson_D = (ab / total - a * b / total**2) / np.sqrt(np.where(varies, var_a * var_b, nan))
    tied = np.round(a_N / ROUNDING), np.round(b_N / ROUNDING)
    spearman_1 = _spearman_within(np.zeros(len(a_N), np.int64), *tied, 1)
    half = np.clip(np.append(spearman_1, pearson_D), -1, 1)
    whole = 2 * np.maximum(half, 0) / (1 + np.maximum(half, 0))  # Spearman-Brown; NaN stays NaN
    drawn = np.sqrt(whole[2:][np.isfinite(whole[2:])])
    low, high = np.quantile(drawn, TAILS).tolist() if n > 1 and len(drawn) else (nan, nan)
    (spearman, pearson), (rank_reliability, reliability) = half[:2].tolist(), whole[:2].tolist()
    return NoiseCeiling(pearson, spearman, reliability, rank_reliability, sqrt(reliability), low, high, len(a_N))


def correct_vs_incorrect(nodes: pa.Table, objective: Name = None, *, teacher: Name = None) -> list[Contrast]:
    """Mean cosine, weighted cosine and teacher advantage on correct and on incorrect paths.

    Paired by question; if fewer than two questions have both kinds of path, Welch's test between paths.
    """
    rows = _select(nodes, objective, teacher)
    # Teachers that look at the same path are not independent, so here a path is a path whoever looks at it.
    path_N, first_P = _group(rows.question_N, rows["path"].astype(np.int64))
    question_P, correct_P = rows.question_N[first_P], rows["path_correct"][first_P]
    # Weighing each path by its sum of SR ranges makes a question's mean the ratio of sums of the ranking.
    sr_N = rows["sr_range"]
    sr_P = np.bincount(path_N, sr_N, len(first_P)).astype(np.float64)
    table = []
    for metric, column, weight_N, weight_P in (
        ("mean_cosine", "alignment", None, None),
        ("weighted_cosine", "alignment", sr_N, sr_P),
        ("advantage", "advantage", None, None),
    ):
        value_P = _mean_by(path_N, rows[column], len(first_P), weight_N)
        sides_P = [np.where(correct_P == kind, value_P, nan) for kind in (1.0, 0.0)]
        sides_Q = [_mean_by(question_P, side_P, rows.n_questions, weight_P) for side_P in sides_P]
        table.append(_contrast(metric, teacher, [side_P[np.isfinite(side_P)] for side_P in sides_P], sides_Q))
    return table


def per_teacher_delta(nodes: pa.Table, objective: Name = None) -> list[Contrast]:
    """`correct_vs_incorrect` for each teacher, by name."""
    teachers = _select(nodes, objective).teachers
    return [row for name in teachers for row in correct_vs_incorrect(nodes, objective, teacher=name)]


def selective_oracle(
    nodes: pa.Table, thresholds: Sequence[float] = (0.0, 0.3), *, objective: Name = None, teacher: Name = None
) -> list[OracleRow]:
    """The mean signal (SR range × alignment) of the nodes above each threshold; first, of all nodes."""
    rows = _select(nodes, objective, teacher)
    alignment_N, a_N, b_N = (rows[name] for name in ("alignment", "alignment_a", "alignment_b"))
    signal_N = rows["sr_range"] * alignment_N
    full_U = rows.path_means(signal_N)
    table = []
    for threshold in (None, *thresholds):
        bar = -inf if threshold is None else threshold
        kept_U = rows.path_means(np.where(alignment_N > bar, signal_N, nan))
        # A path that keeps no node is NaN here, and beats nothing.
        beating = nan if threshold is None else _share(kept_U > full_U + ROUNDING)
        ways = [np.where(one > bar, rows["sr_range"] * other, nan) for one, other in ((a_N, b_N), (b_N, a_N))]
        fitted_UU = np.concatenate([rows.path_means(value_N) for value_N in ways])
        honest = interval(_mean_by(np.tile(rows.question_U, 2), fitted_UU, rows.n_questions))
        table.append(OracleRow(threshold, *_distilled(rows, alignment_N > bar), beating, honest))
    return table


def divergence_filter(
    nodes: pa.Table,
    measure: str = "kl",
    quantiles: Sequence[float] = (0.5, 0.75, 0.9),
    *,
    objective: Name = None,
    teacher: Name = None,
) -> list[FilterRow]:
    """The mean signal of the nodes beyond each quantile of a measure of divergence or entropy.

    Large values are kept, but small ones of the similarity `cosine`: quantile 0.9 always keeps a tenth.
    """
    if measure not in MEASURES:
        raise OpdAlignError(f"no measure {measure!r} to filter by; choose from {', '.join(MEASURES)}")
    rows = _select(nodes, objective, teacher, known=measure)
    sign = -1.0 if measure == "cosine" else 1.0
    divergence_N = sign * rows[measure]
    oracle_gain = _distilled(rows, rows["alignment"] > 0)[1].mean
    table = []
    for quantile in quantiles:
        # "higher" makes the cut a value that occurs: a gate with this threshold keeps just these nodes.
        cut = float(np.quantile(divergence_N, quantile, method="higher")) if len(divergence_N) else nan
        kept = _distilled(rows, divergence_N >= cut)
        recovered = kept[1].mean / oracle_gain if oracle_gain > ROUNDING else nan
        table.append(FilterRow(measure, quantile, sign * cut, *kept, recovered))
    return table


def within_path_correlations(nodes: pa.Table, objective: Name = None) -> list[Correlation]:
    """Alignment against depth and divergence along each path, all teachers combined first, then each.

    Paths with fewer than three nodes, or on which either side is constant, are left out and counted.
    """
    rows = _select(nodes, objective)
    alignment_N = np.round(rows["alignment"] / ROUNDING)
    rho = {}
    for feature in FEATURES:
        known_N = np.isfinite(rows[feature])
        sides = alignment_N[known_N], rows[feature][known_N]
        rho[feature] = _spearman_within(rows.path_N[known_N], *sides, len(rows.question_U))
    table = []
    for teacher in (None, *rows.teachers):
        mine_U = (rows.teacher_U == teacher) | (teacher is None)
        for feature, rho_U in rho.items():
            used = int(np.isfinite(rho_U[mine_U]).sum())
            mean = interval(rows.over_paths(np.where(mine_U, rho_U, nan)))
            table.append(Correlation(feature, teacher, mean, used, int(mine_U.sum()) - used))
    return table


def alignment_histogram(nodes: pa.Table, bins: int = 40, *, objective: Name = None, teacher: Name = None) -> Histogram:
    """How alignment is spread over [-1, 1]; its mean and deviation here are over nodes, not questions."""
    alignment_N = _select(nodes, objective, teacher)["alignment"]
    counts, edges = np.histogram(np.clip(alignment_N, -1, 1), bins, (-1, 1))
    mean, std = (float(alignment_N.mean()), float(alignment_N.std())) if len(alignment_N) else (nan, nan)
    ends = _share(alignment_N > 1 - ROUNDING), _share(alignment_N < ROUNDING - 1)
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()), mean, std, *ends)


def path_trace(nodes: pa.Table, question: str, path: int, teacher: str, objective: str) -> PathTrace:
    """What the table says along one path; empty if it says nothing."""
    wanted = {"question": question, "path": path, "teacher": teacher, "objective": objective}
    mine = reduce(pc.and_, (pc.equal(nodes[column], value) for column, value in wanted.items()))
    own = nodes.filter(mine).sort_by("depth")
    return PathTrace(
        depth_N=own["depth"].to_numpy().astype(np.int64),
        token_N=own["token"].to_numpy().astype(np.uint32),
        alignment_N=own["alignment"].to_numpy(),
        low_N=own["alignment_low"].to_numpy(),
        high_N=own["alignment_high"].to_numpy(),
        sr_range_N=own["sr_range"].to_numpy(),
        verdict_N=tuple(own["verdict"].to_pylist()),
    )


def summary(nodes: pa.Table) -> dict[str, float | None]:
    """The main numbers under keys like `alignment/gkd/Qwen3-8B/mean`; unknown is None, as JSON has no NaN."""
    numbers: dict[str, float] = {}
    for objective in sorted(nodes["objective"].unique().to_pylist()):
        for rank in teacher_ranking(nodes, objective):
            cosine = correct_vs_incorrect(nodes, objective, teacher=rank.teacher)[0]
            full, oracle = selective_oracle(nodes, (0.0,), objective=objective, teacher=rank.teacher)
            for group, record, fields in (
                ("alignment", rank.alignment, ("mean", "half_width")),
                ("alignment", cosine, ("correct", "incorrect", "delta", "p_value")),
                ("noise_ceiling", rank.noise_ceiling, ("ceiling", "low", "high")),
                ("fraction_positive", rank.fraction_positive, ("mean", "half_width")),
                ("weighted_cosine", rank.weighted_cosine, ("mean", "half_width")),
                ("advantage", rank.advantage, ("mean", "half_width")),
                ("signal", full.signal, ("mean", "half_width")),
                ("oracle_signal", oracle.signal, ("mean", "half_width")),
                ("oracle_signal_cross_fitted", oracle.cross_fitted_signal, ("mean", "half_width")),
                ("nodes", rank, ("helpful", "harmful", "undecided", "two_children", "n_questions", "n_nodes")),
            ):
                for name in fields:
                    numbers[f"{group}/{objective}/{rank.teacher}/{name}"] = getattr(record, name)
    return {key: value if isfinite(value) else None for key, value in numbers.items()}


@dataclass(frozen=True)
class _Rows:
    """The rows that count. Suffix `_N` is a row, `_U` one teacher's view of one path, `_Q` a question."""

    table: pa.Table
    objective: str
    teachers: list[str]
    question_N: Ints
    path_N: Ints
    question_U: Ints
    teacher_U: NDArray[np.object_]
    n_questions: int

    def __getitem__(self, name: str) -> Floats:
        # An absent value of any type, boolean included, becomes NaN.
        return np.asarray(self.table[name].to_numpy(), np.float64)

    def path_means(self, value_N: Floats) -> Floats:
        return _mean_by(self.path_N, value_N, len(self.question_U))

    def over_paths(self, value_U: Floats) -> Floats:
        return _mean_by(self.question_U, value_U, self.n_questions)

    def question_means(self, value_N: Floats) -> Floats:
        return self.over_paths(self.path_means(value_N))


def _select(nodes: pa.Table, objective: Name, teacher: Name = None, known: str = "alignment") -> _Rows:
    """The rows that count, of one objective, where `known` is finite; unknown names are refused."""
    found = nodes.unify_dictionaries().group_by(["objective", "teacher"]).aggregate([]).to_pylist()
    pairs = sorted((row["objective"], row["teacher"]) for row in found)
    if objective is None:
        pairs = [pair for pair in pairs if pair[1] != REWARD] or pairs
    held = sorted({name for name, _ in pairs})
    if held and (objective not in held if objective else len(held) > 1):
        raise OpdAlignError(f"the table holds the objectives {', '.join(held)}; ask for one of them, not {objective!r}")
    objective = objective or "".join(held)
    teachers = [name for own, name in pairs if own == objective]
    if teacher is not None and teachers and teacher not in teachers:
        raise OpdAlignError(f"{objective!r} has no teacher {teacher!r}; it has {', '.join(teachers)}")
    teachers = teachers if teacher is None else [teacher]
    mine = pc.equal(nodes["objective"], objective), pc.is_in(nodes["teacher"], pa.array(teachers, pa.string()))
    counts = *map(pc.is_finite, (nodes["alignment"], nodes[known])), pc.greater(nodes["sr_range"], 0)
    table = nodes.filter(reduce(pc.and_, (*mine, *counts)))
    (questions, question_N), (names, teacher_N) = _codes(table, "question"), _codes(table, "teacher")
    path_N, first_U = _group(teacher_N, question_N, table["path"].to_numpy().astype(np.int64))
    of_path = question_N[first_U], names[teacher_N[first_U]]
    return _Rows(table, objective, teachers, question_N, path_N, *of_path, len(questions))


def _contrast(metric: str, teacher: Name, by_path: list[Floats], by_question: list[Floats]) -> Contrast:
    both = np.isfinite(by_question[0]) & np.isfinite(by_question[1])
    sides, test, half_width, p_value = by_path, NO_TEST, nan, nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # differences that are all alike; p is then 0 or NaN
        if both.sum() >= 2:
            sides, test = [side[both] for side in by_question], PAIRED
            result = stats.ttest_rel(*sides)
        elif min(map(len, by_path)) >= 2:
            test, result = WELCH, stats.ttest_ind(*by_path, equal_var=False)
        if test != NO_TEST:
            interval = result.confidence_interval(LEVEL)
            half_width, p_value = float(interval.high - interval.low) / 2, float(result.pvalue)
    correct, incorrect = (float(side.mean()) if len(side) else nan for side in sides)
    tested = correct - incorrect, half_width, p_value, test
    return Contrast(metric, teacher, correct, incorrect, *tested, int(both.sum()), *map(len, by_path))


def _distilled(rows: _Rows, kept_N: NDArray[np.bool_]) -> tuple[Estimate, Estimate, float, int]:
    """What distilling only some nodes leaves: signal, gain over all nodes, share and number of nodes."""
    signal_N = rows["sr_range"] * rows["alignment"]
    kept_Q = rows.question_means(np.where(kept_N, signal_N, nan))
    gain_Q = kept_Q - rows.question_means(signal_N)
    return interval(kept_Q), interval(gain_Q), _share(kept_N), int(kept_N.sum())


def _spearman_within(group_N: Ints, a_N: Floats, b_N: Floats, size: int) -> Floats:
    """Rank correlation within each group; NaN below three rows or where a side is constant."""
    count = np.bincount(group_N, minlength=size)
    centred = []
    for side_N in (a_N, b_N):
        _, dense_N = np.unique(side_N, return_inverse=True)
        rank_N = stats.rankdata(group_N * len(side_N) + dense_N)  # ranks of all rows, the groups one after another
        # The mean rank of a group does not depend on ties, so a constant leaves exact zeros.
        centred.append(rank_N - (np.cumsum(count) - count + (count + 1) / 2)[group_N])
    a_N, b_N = centred
    aa, bb, ab = (np.bincount(group_N, term, size) for term in (a_N * a_N, b_N * b_N, a_N * b_N))
    varies = (count >= 3) & (aa > 0) & (bb > 0)
    return np.where(varies, ab, nan) / np.sqrt(np.where(varies, aa * bb, nan))


def _mean_by(group: Ints, value: Floats, size: int, weight: Floats | None = None) -> Floats:
    """(Weighted) mean of each group's known values; NaN where it has none."""
    known = np.isfinite(value)
    group, value = group[known], value[known]
    weight = np.ones(len(value)) if weight is None else weight[known]
    total = np.bincount(group, weight, size)
    return np.bincount(group, weight * value, size) / np.where(total > 0, total, nan)


def interval(value_Q: Floats) -> Estimate:
    """Mean of the known values and its interval."""
    known = value_Q[np.isfinite(value_Q)]
    n = len(known)
    half_width = stats.t.ppf(TAILS[1], n - 1) * known.std(ddof=1) / sqrt(n) if n > 1 else nan
    return Estimate(float(known.mean()) if n else nan, float(half_width), n)


def _share(mask: NDArray[np.bool_]) -> float:
    return float(mask.mean()) if len(mask) else nan


def _group(*codes: Ints) -> tuple[Ints, Ints]:
    """A dense number for each row's combination of codes, and where each combination first occurs."""
    key = np.ravel_multi_index(codes, [int(code.max(initial=0)) + 1 for code in codes])
    _, first, dense = np.unique(key, return_index=True, return_inverse=True)
    return dense, first


def _codes(nodes: pa.Table, name: str) -> tuple[NDArray[np.object_], Ints]:
    """A string column as its names, sorted, and each row's index among them."""
    encoded = nodes[name].cast(pa.string()).combine_chunks().dictionary_encode()
    names, index = np.unique(np.array(encoded.dictionary.to_pylist(), object), return_inverse=True)
    return names, index[encoded.indices.to_numpy()]
