"""Statistics of a node table: rankings, contrasts, oracles, filters, correlations.

Pure functions of one table (one row per question, path, depth, teacher and objective). They read no files, draw no
plots and load no models. A row counts if its alignment is finite and its SR range is positive. Questions are treated as
independent: values are averaged along each path, then over the paths of a question, then over questions; confidence
intervals are across questions. Unknown values are NaN and do not affect other values. Names, units and meanings of the
metrics that are reported are in `core.metric_registry`.

In all functions, `objective=None` selects the only objective that has a teacher, and `teacher=None` combines all
teachers, with each teacher's rows of a path treated as a separate path.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan, sqrt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import stats

from opd_align.core.node_rows import NodeRows, centred_ranks, group_rows, mean_by, rank_correlation, select_rows, share
from opd_align.types import DIVERGENCES, Floats, OpdAlignError

Name = str | None
MEASURES = (*DIVERGENCES, "student_entropy", "teacher_entropy")
FEATURES = ("depth_normalised", *DIVERGENCES)
PAIRED, WELCH, NO_TEST = "paired t-test over questions", "Welch's t-test over paths", "none"
LEVEL, TAILS, DRAWS = 0.95, (0.025, 0.975), 1000

MIN_QUESTIONS = 4
"""With fewer questions a 95 % interval is wider than the scale of a cosine, or narrow by chance: none is reported."""

GATE_WEIGHT = "gate_weight"
"""Column that `gated_alignment` needs: the weight that a gate gives to the node's token."""

# With two children the cosine is +-1 up to rounding. Values that differ by less than this are treated as equal: as a
# tie, as exactly one, as no improvement.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Estimate:
    """A mean over questions with its 95 % confidence interval.

    Args:
        mean: Mean over the questions with a known value; NaN if there are none.
        half_width: Half-width of the t interval; NaN with fewer than two questions.
        n: Number of questions with a known value.
    """

    mean: float
    half_width: float
    n: int


@dataclass(frozen=True)
class NoiseCeiling:
    """Split-half agreement of the per-node alignment, and the best correlation with the truth that it allows.

    Args:
        pearson: SR-range-weighted Pearson correlation of the two halves.
        spearman: Spearman correlation of the two halves.
        reliability: `pearson` after the Spearman-Brown correction; 0 where the halves correlate negatively.
        rank_reliability: `spearman` after the same correction.
        ceiling: Square root of `reliability`: the largest correlation with the truth that the estimate can have.
        low: Lower end of the 95 % interval of `ceiling`, from a bootstrap over questions.
        high: Upper end of that interval.
        n_nodes: Number of nodes whose alignment is known in both halves.
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
    """One teacher's row in the ranking.

    Args:
        teacher: Name of the teacher, `"reward"` for an objective without a teacher.
        objective: Name of the objective.
        alignment: Mean alignment.
        fraction_positive: Share of nodes with positive alignment.
        weighted_cosine: Alignment weighted by the SR range of each node.
        advantage: Teacher advantage: success rate under the teacher's next-token distribution minus the student's.
        helpful: Share of nodes with the verdict `helpful`.
        harmful: Share of nodes with the verdict `harmful`.
        undecided: Share of nodes with the verdict `undecided`.
        two_children: Share of nodes with exactly two children, where the cosine is always +-1.
        n_questions: Number of questions with at least one node.
        n_nodes: Number of nodes.
        noise_ceiling: Split-half reliability of the per-node alignment.
    """

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
    """Comparison of correct and incorrect paths.

    Args:
        metric: `mean_cosine`, `weighted_cosine` or `advantage`.
        teacher: Name of the teacher; None if all teachers are combined.
        correct: Mean on correct paths, over the units that the test compares (questions or paths).
        incorrect: Mean on incorrect paths, over the same units.
        delta: `correct - incorrect`.
        half_width: Half-width of the 95 % interval of `delta`.
        p_value: Two-sided p-value of `delta`.
        test: Name of the test, or `none` if there are too few paths.
        n_pairs: Number of questions with both correct and incorrect paths.
        n_correct_paths: Number of correct paths.
        n_incorrect_paths: Number of incorrect paths.
    """

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
    """Distillation restricted to the nodes with alignment above a threshold.

    Args:
        threshold: Nodes with a larger alignment are kept; None keeps all nodes.
        signal: Mean signal (SR range × alignment) of the kept nodes. Nodes are selected and valued with the same noisy
            estimate, so it is biased upwards.
        gain: `signal` minus the mean signal of all nodes, over questions that keep at least one node.
        share_kept: Share of nodes that are kept.
        n_nodes: Number of nodes that are kept.
        share_beating: Share of paths whose kept nodes have a larger mean signal than all their nodes; NaN for None.
        cross_fitted_signal: `signal` with nodes selected on one half of the rollouts and valued on the other half,
            which removes the bias.
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
    """Distillation restricted to the nodes where student and teacher differ most.

    Args:
        measure: The divergence or entropy that is thresholded.
        quantile: Quantile of the measure over all nodes that is used as the threshold.
        threshold: The threshold itself; nodes at or beyond it are kept.
        signal: Mean signal (SR range × alignment) of the kept nodes.
        gain: `signal` minus the mean signal of all nodes, over questions that keep at least one node.
        share_kept: Share of nodes that are kept.
        n_nodes: Number of nodes that are kept.
        share_of_oracle_gain: `gain` divided by the gain of the selective oracle at threshold 0; NaN if the oracle
            gains nothing.
    """

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
    """Mean within-path Spearman correlation of alignment and a feature.

    Args:
        feature: Name of the column that is correlated with alignment.
        teacher: Name of the teacher; None if all teachers are combined.
        rho: Mean Spearman correlation over paths, then questions.
        n_paths: Number of paths that were used.
        n_left_out: Number of paths with fewer than three nodes or a constant column.
    """

    feature: str
    teacher: Name
    rho: Estimate
    n_paths: int
    n_left_out: int


@dataclass(frozen=True)
class Gated:
    """Distillation with a gate.

    Args:
        alignment: Mean alignment with each node weighted by the gate.
        signal: Mean signal (SR range × alignment), weighted in the same way.
        share_kept: Share of nodes with a positive weight.
    """

    alignment: Estimate
    signal: Estimate
    share_kept: float


@dataclass(frozen=True)
class Histogram:
    """Histogram of alignment over nodes.

    Args:
        counts: Number of nodes per bin.
        edges: Bin edges, one more than bins.
        mean: Mean over nodes (not over questions).
        std: Standard deviation over nodes.
        share_at_plus_one: Share of nodes with alignment 1 up to rounding.
        share_at_minus_one: Share of nodes with alignment -1 up to rounding.
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]
    mean: float
    std: float
    share_at_plus_one: float
    share_at_minus_one: float


def teacher_ranking(nodes: pa.Table, objective: Name = None) -> list[TeacherRank]:
    """Teachers sorted by mean alignment, best first; teachers without any node come last."""
    ranks = []
    for teacher in select_rows(nodes, objective).teachers:
        rows = select_rows(nodes, objective, teacher)
        alignment_N, verdict_N = rows["alignment"], rows.column("verdict")
        rank = TeacherRank(
            teacher=teacher,
            objective=rows.objective,
            alignment=interval(rows.question_means(alignment_N)),
            fraction_positive=interval(rows.question_means((alignment_N > 0).astype(np.float64))),
            weighted_cosine=interval(mean_by(rows.question_N, alignment_N, rows.n_questions, rows["sr_range"])),
            advantage=interval(rows.question_means(rows["advantage"])),
            helpful=share(pc.equal(verdict_N, "helpful").to_numpy()),
            harmful=share(pc.equal(verdict_N, "harmful").to_numpy()),
            undecided=share(pc.equal(verdict_N, "undecided").to_numpy()),
            two_children=share(rows["children"] == 2),
            n_questions=rows.n_questions,
            n_nodes=len(alignment_N),
            noise_ceiling=noise_ceiling(rows.table, rows.objective),
        )
        ranks.append(rank)
    return sorted(ranks, key=lambda rank: (-rank.alignment.mean if rank.n_nodes else inf, rank.teacher))


def teacher_difference(nodes: pa.Table, first: str, second: str, objective: Name = None) -> Estimate:
    """Mean alignment of one teacher minus that of another, paired over the questions that both were used on."""
    value_of = {}
    for teacher in (first, second):
        rows = select_rows(nodes, objective, teacher)
        _, first_row_Q = group_rows(rows.question_N)
        names = rows.column("question").cast(pa.string()).to_pylist()
        mean_Q = rows.question_means(rows["alignment"])
        value_of[teacher] = {names[row]: float(mean_Q[rows.question_N[row]]) for row in first_row_Q}
    shared = [name for name in value_of[first] if name in value_of[second]]
    return interval(np.array([value_of[first][name] - value_of[second][name] for name in shared]))


def noise_ceiling(nodes: pa.Table, objective: Name = None, *, teacher: Name = None, seed: int = 0) -> NoiseCeiling:
    """Split-half reliability of the per-node alignment, and the best correlation with the truth that it allows."""
    rows = select_rows(nodes, objective, teacher)
    both = np.isfinite(rows["alignment_a"]) & np.isfinite(rows["alignment_b"])
    a_N, b_N, weight_N = (rows[name][both] for name in ("alignment_a", "alignment_b", "sr_range"))
    if len(a_N) < 3:
        return NoiseCeiling(n_nodes=len(a_N))
    # A correlation depends on six sums, so resampling questions only reweights their sums; row 0 of `times_DQ` is the
    # original sample. Scaling the weights and centring only keep the sums well conditioned.
    weight_N = weight_N / weight_N.max()
    a_N, b_N = (half_N - np.average(half_N, weights=weight_N) for half_N in (a_N, b_N))
    group_N, first_Q = group_rows(rows.question_N[both])
    terms = (np.ones(len(a_N)), a_N, b_N, a_N * a_N, b_N * b_N, a_N * b_N)
    sums_Q6 = np.stack([np.bincount(group_N, weight_N * term) for term in terms], axis=1)
    n = len(first_Q)
    times_DQ = np.vstack([np.ones(n), np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), DRAWS)])
    total, a, b, aa, bb, ab = (times_DQ @ sums_Q6).T
    var_a, var_b = aa / total - (a / total) ** 2, bb / total - (b / total) ** 2
    varies = (var_a > ROUNDING**2) & (var_b > ROUNDING**2)
    pearson_D = (ab / total - a * b / total**2) / np.sqrt(np.where(varies, var_a * var_b, nan))
    tied = np.round(a_N / ROUNDING), np.round(b_N / ROUNDING)
    whole_N = np.zeros(len(a_N), np.int64)
    rank_a_N, rank_b_N = (centred_ranks(whole_N, half_N, 1) for half_N in tied)
    spearman_1 = rank_correlation(whole_N, rank_a_N, rank_b_N, 1)
    half = np.clip(np.append(spearman_1, pearson_D), -1, 1)
    whole = 2 * np.maximum(half, 0) / (1 + np.maximum(half, 0))  # Spearman-Brown; NaN stays NaN
    ceilings = np.sqrt(whole[2:][np.isfinite(whole[2:])])
    low, high = np.quantile(ceilings, TAILS).tolist() if n > 1 and len(ceilings) else (nan, nan)
    (spearman, pearson), (rank_reliability, reliability) = half[:2].tolist(), whole[:2].tolist()
    return NoiseCeiling(pearson, spearman, reliability, rank_reliability, sqrt(reliability), low, high, len(a_N))


def correct_vs_incorrect(nodes: pa.Table, objective: Name = None, *, teacher: Name = None) -> list[Contrast]:
    """Compares mean cosine, weighted cosine and teacher advantage on correct and incorrect paths.

    Uses a paired t-test over questions, or Welch's t-test over paths if fewer than two questions have both kinds of
    paths.
    """
    rows = select_rows(nodes, objective, teacher)
    # Several teachers on the same path are not independent, so a path counts once here whatever the teacher.
    path_N, first_P = group_rows(rows.question_N, rows["path"].astype(np.int64))
    question_P, correct_P = rows.question_N[first_P], rows["path_correct"][first_P]
    # Weighting each path by its sum of SR ranges makes the mean of a question the same ratio of sums as in the ranking.
    sr_N = rows["sr_range"]
    sr_P = np.bincount(path_N, sr_N, len(first_P)).astype(np.float64)
    table = []
    for metric, column, weight_N, weight_P in (
        ("mean_cosine", "alignment", None, None),
        ("weighted_cosine", "alignment", sr_N, sr_P),
        ("advantage", "advantage", None, None),
    ):
        value_P = mean_by(path_N, rows[column], len(first_P), weight_N)
        sides_P = [np.where(correct_P == kind, value_P, nan) for kind in (1.0, 0.0)]
        sides_Q = [mean_by(question_P, side_P, rows.n_questions, weight_P) for side_P in sides_P]
        table.append(_contrast(metric, teacher, [side_P[np.isfinite(side_P)] for side_P in sides_P], sides_Q))
    return table


def alignment_by_position(
    nodes: pa.Table, objective: Name = None, *, teacher: Name = None
) -> tuple[Estimate, Estimate, Estimate]:
    """Mean alignment of the nodes in the first, the middle and the last third of their completions."""
    rows = select_rows(nodes, objective, teacher)
    alignment_N = rows["alignment"]
    third_N = np.minimum(3 * rows["depth"] // rows["path_length"], 2)
    first, middle, last = (interval(rows.question_means(np.where(third_N == at, alignment_N, nan))) for at in range(3))
    return first, middle, last


def gated_alignment(nodes: pa.Table, objective: Name = None, *, teacher: Name = None) -> Gated:
    """Alignment with a gate: nodes of a question are averaged with the weights in the column `GATE_WEIGHT`.

    With equal weights, it is the mean alignment: every path counts the same, whatever its number of nodes. Questions
    whose nodes all have weight zero are not distilled and do not count.
    """
    rows = select_rows(nodes, objective, teacher)
    gate_N, alignment_N = rows[GATE_WEIGHT], rows["alignment"]
    weight_N = gate_N / np.bincount(rows.path_N, minlength=len(rows.question_U))[rows.path_N]
    means = [
        interval(mean_by(rows.question_N, value_N, rows.n_questions, weight_N))
        for value_N in (alignment_N, rows["sr_range"] * alignment_N)
    ]
    return Gated(means[0], means[1], share(gate_N > 0))


def selective_oracle(
    nodes: pa.Table, thresholds: Sequence[float] = (0.0, 0.3), *, objective: Name = None, teacher: Name = None
) -> list[OracleRow]:
    """Mean signal (SR range × alignment) of the nodes above each threshold; the first row is for all nodes."""
    rows = select_rows(nodes, objective, teacher)
    alignment_N, a_N, b_N = (rows[name] for name in ("alignment", "alignment_a", "alignment_b"))
    signal_N = rows["sr_range"] * alignment_N
    full_U = rows.path_means(signal_N)
    table = []
    for threshold in (None, *thresholds):
        cut = -inf if threshold is None else threshold
        kept_U = rows.path_means(np.where(alignment_N > cut, signal_N, nan))
        # A path that keeps no node is NaN here and does not count as beating full distillation.
        beating = nan if threshold is None else share(kept_U > full_U + ROUNDING)
        folds = [np.where(one > cut, rows["sr_range"] * other, nan) for one, other in ((a_N, b_N), (b_N, a_N))]
        fitted_UU = np.concatenate([rows.path_means(value_N) for value_N in folds])
        cross_fitted = interval(mean_by(np.tile(rows.question_U, 2), fitted_UU, rows.n_questions))
        table.append(OracleRow(threshold, *_distilled(rows, alignment_N > cut), beating, cross_fitted))
    return table


def divergence_filter(
    nodes: pa.Table,
    measure: str = "kl",
    quantiles: Sequence[float] = (0.5, 0.75, 0.9),
    *,
    objective: Name = None,
    teacher: Name = None,
) -> list[FilterRow]:
    """Mean signal of the nodes beyond each quantile of a divergence or entropy measure.

    Nodes with large values are kept, except for the similarity `cosine`, where small values are kept: quantile 0.9
    always keeps a tenth of the nodes.
    """
    if measure not in MEASURES:
        raise OpdAlignError(f"unknown measure {measure!r}; choose from {', '.join(MEASURES)}")
    rows = select_rows(nodes, objective, teacher, known=measure)
    sign = -1.0 if measure == "cosine" else 1.0
    divergence_N = sign * rows[measure]
    oracle_gain = _distilled(rows, rows["alignment"] > 0)[1].mean
    table = []
    for quantile in quantiles:
        # "higher" makes the threshold a value that occurs, so a gate with this threshold keeps exactly these nodes.
        cut = float(np.quantile(divergence_N, quantile, method="higher")) if len(divergence_N) else nan
        kept = _distilled(rows, divergence_N >= cut)
        recovered = kept[1].mean / oracle_gain if oracle_gain > ROUNDING else nan
        table.append(FilterRow(measure, quantile, sign * cut, *kept, recovered))
    return table


def within_path_correlations(nodes: pa.Table, objective: Name = None) -> list[Correlation]:
    """Correlates alignment with depth and divergence along each path, for all teachers combined, then for each.

    Paths with fewer than three nodes, or on which either column is constant, are skipped and counted.
    """
    rows = select_rows(nodes, objective)
    alignment_N, size = np.round(rows["alignment"] / ROUNDING), len(rows.question_U)
    # Ranking is the expensive part; wherever a feature is known at all nodes, the alignment has the same ranks.
    rank_N = centred_ranks(rows.path_N, alignment_N, size)
    rho = {}
    for feature in FEATURES:
        feature_N = rows[feature]
        known_N = np.isfinite(feature_N)
        path_N, side_N = rows.path_N[known_N], rank_N
        if not known_N.all():
            side_N = centred_ranks(path_N, alignment_N[known_N], size)
        rho[feature] = rank_correlation(path_N, side_N, centred_ranks(path_N, feature_N[known_N], size), size)
    table = []
    for teacher in (None, *rows.teachers):
        teacher_rows_U = (rows.teacher_U == teacher) | (teacher is None)
        for feature, rho_U in rho.items():
            used = int(np.isfinite(rho_U[teacher_rows_U]).sum())
            mean = interval(rows.over_paths(np.where(teacher_rows_U, rho_U, nan)))
            table.append(Correlation(feature, teacher, mean, used, int(teacher_rows_U.sum()) - used))
    return table


def alignment_histogram(nodes: pa.Table, bins: int = 40, *, objective: Name = None, teacher: Name = None) -> Histogram:
    """Histogram of alignment over [-1, 1]; mean and standard deviation are over nodes, not over questions."""
    alignment_N = select_rows(nodes, objective, teacher)["alignment"]
    counts, edges = np.histogram(np.clip(alignment_N, -1, 1), bins, (-1, 1))
    mean, std = (float(alignment_N.mean()), float(alignment_N.std())) if len(alignment_N) else (nan, nan)
    ends = share(alignment_N > 1 - ROUNDING), share(alignment_N < ROUNDING - 1)
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()), mean, std, *ends)


def _contrast(metric: str, teacher: Name, by_path: list[Floats], by_question: list[Floats]) -> Contrast:
    both = np.isfinite(by_question[0]) & np.isfinite(by_question[1])
    sides, test, half_width, p_value = by_path, NO_TEST, nan, nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # if all differences are equal, p is 0 or NaN
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


def _distilled(rows: NodeRows, kept_N: NDArray[np.bool_]) -> tuple[Estimate, Estimate, float, int]:
    """Signal of distilling only the kept nodes, gain over all nodes, share and number of nodes kept."""
    signal_N = rows["sr_range"] * rows["alignment"]
    kept_Q = rows.question_means(np.where(kept_N, signal_N, nan))
    gain_Q = kept_Q - rows.question_means(signal_N)
    return interval(kept_Q), interval(gain_Q), share(kept_N), int(kept_N.sum())


def interval(value_Q: Floats) -> Estimate:
    """Mean of the finite values with its 95 % t interval."""
    known = value_Q[np.isfinite(value_Q)]
    n = len(known)
    half_width = stats.t.ppf(TAILS[1], n - 1) * known.std(ddof=1) / sqrt(n) if n > 1 else nan
    return Estimate(float(known.mean()) if n else nan, float(half_width), n)
