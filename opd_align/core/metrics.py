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
from dataclasses import dataclass, replace
from math import hypot, inf, nan, sqrt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import stats

from opd_align.core.attenuation import QuestionValues, advantage_values, alignment_values, weighted_values
from opd_align.core.intervals import COSINE, LEVEL, NORMAL
from opd_align.core.intervals import TAILS as TAILS
from opd_align.core.intervals import Estimate as Estimate
from opd_align.core.intervals import interval as interval
from opd_align.core.node_rows import Nodes, centred_ranks, group_rows, mean_by, rank_correlation, select_rows, share
from opd_align.core.oracle import MEASURES as MEASURES
from opd_align.core.oracle import ROUNDING
from opd_align.core.oracle import FilterRow as FilterRow
from opd_align.core.oracle import OracleRow as OracleRow
from opd_align.core.oracle import divergence_filter as divergence_filter
from opd_align.core.oracle import selective_oracle as selective_oracle
from opd_align.types import DIVERGENCES, Floats

Name = str | None
FEATURES = ("depth_normalised", *DIVERGENCES)
PAIRED, WELCH, NO_TEST = "paired t-test over questions", "Welch's t-test over paths", "none"
DRAWS = 1000

MIN_QUESTIONS = 4
"""With fewer questions a 95 % interval is wider than the scale of a cosine, or narrow by chance: none is reported."""

GATE_WEIGHT = "gate_weight"
"""Column that `gated_alignment` needs: the weight that a gate gives to the node's token."""


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
        correct_interval: `correct` with its 95 % interval.
        incorrect_interval: `incorrect` with its 95 % interval.
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
    correct_interval: Estimate
    incorrect_interval: Estimate


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


def teacher_ranking(nodes: Nodes, objective: Name = None) -> list[TeacherRank]:
    """Teachers sorted by mean alignment, best first; teachers without any node come last."""
    ranks = []
    for teacher in select_rows(nodes, objective).teachers:
        rows = select_rows(nodes, objective, teacher)
        alignment_N, verdict_N = rows["alignment"], rows.column("verdict")
        rank = TeacherRank(
            teacher=teacher,
            objective=rows.objective,
            alignment=interval(alignment_values(rows), bounds=COSINE),
            fraction_positive=interval(rows.question_means((alignment_N > 0).astype(np.float64)), bounds=(0.0, 1.0)),
            weighted_cosine=interval(weighted_values(rows), bounds=COSINE),
            advantage=interval(advantage_values(rows), bounds=COSINE),
            helpful=share(pc.equal(verdict_N, "helpful").to_numpy()),
            harmful=share(pc.equal(verdict_N, "harmful").to_numpy()),
            undecided=share(pc.equal(verdict_N, "undecided").to_numpy()),
            two_children=share(rows["children"] == 2),
            n_questions=rows.n_questions,
            n_nodes=len(alignment_N),
            noise_ceiling=noise_ceiling(rows),
        )
        ranks.append(rank)
    return sorted(ranks, key=lambda rank: (-rank.alignment.mean if rank.n_nodes else inf, rank.teacher))


def teacher_difference(nodes: Nodes, first: str, second: str, objective: Name = None) -> Estimate:
    """Mean alignment of one teacher minus that of another, paired over the questions that both were used on."""
    value_of = {}
    for teacher in (first, second):
        rows = select_rows(nodes, objective, teacher)
        _, first_row_Q = group_rows(rows.question_N)
        names = rows.column("question").cast(pa.string()).to_pylist()
        mean_Q = alignment_values(rows).value_Q
        value_of[teacher] = {names[row]: float(mean_Q[rows.question_N[row]]) for row in first_row_Q}
    shared = [name for name in value_of[first] if name in value_of[second]]
    return interval(np.array([value_of[first][name] - value_of[second][name] for name in shared]))


def noise_ceiling(nodes: Nodes, objective: Name = None, *, teacher: Name = None, seed: int = 0) -> NoiseCeiling:
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
    drawn_DQ = np.random.default_rng(seed).integers(n, size=(DRAWS, n)) + n * np.arange(DRAWS)[:, None]
    times_DQ = np.vstack([np.ones(n), np.bincount(drawn_DQ.ravel(), minlength=DRAWS * n).reshape(DRAWS, n)])
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


def correct_vs_incorrect(nodes: Nodes, objective: Name = None, *, teacher: Name = None) -> list[Contrast]:
    """Compares mean cosine, weighted cosine and teacher advantage on correct and incorrect paths.

    Uses a paired t-test over questions, or Welch's t-test over paths if fewer than two questions have both kinds of
    paths.
    """
    rows = select_rows(nodes, objective, teacher)
    # Several teachers on the same path are not independent, so a path counts once here whatever the teacher.
    path_N, first_P = group_rows(rows.question_N, rows["path"].astype(np.int64))
    question_P, correct_P = rows.question_N[first_P], rows["path_correct"][first_P]
    correct_N = correct_P[path_N]
    count_Q = [np.bincount(question_P[correct_P == kind], minlength=rows.n_questions) for kind in (1.0, 0.0)]
    paired_N = ((count_Q[0] > 0) & (count_Q[1] > 0))[rows.question_N]

    def side(metric: str, kind: float) -> QuestionValues:
        kept_N = paired_N & (correct_N == kind)

        def mean(value_N: Floats) -> Floats:
            return mean_by(question_P, mean_by(path_N, np.where(kept_N, value_N, nan), len(first_P)), rows.n_questions)

        if metric == "weighted_cosine":
            return weighted_values(rows, kept_N)
        return alignment_values(rows, mean) if metric == "mean_cosine" else advantage_values(rows, mean)

    table = []
    for metric, column, weight_N in (
        ("mean_cosine", "alignment", None),
        ("weighted_cosine", "alignment", rows["sr_range"]),
        ("advantage", "advantage", None),
    ):
        value_P = mean_by(path_N, rows[column], len(first_P), weight_N)
        by_path = [value_P[(correct_P == kind) & np.isfinite(value_P)] for kind in (1.0, 0.0)]
        table.append(_contrast(metric, teacher, by_path, [side(metric, kind) for kind in (1.0, 0.0)]))
    return table


def alignment_by_position(
    nodes: Nodes, objective: Name = None, *, teacher: Name = None
) -> tuple[Estimate, Estimate, Estimate]:
    """Mean alignment of the nodes in the first, the middle and the last third of their completions."""
    rows = select_rows(nodes, objective, teacher)
    third_N = np.minimum(3 * rows["depth"] // rows["path_length"], 2)

    def third(at: int) -> Estimate:
        values = alignment_values(rows, lambda value_N: rows.question_means(np.where(third_N == at, value_N, nan)))
        return interval(values, bounds=COSINE)

    return third(0), third(1), third(2)


def gated_alignment(nodes: Nodes, objective: Name = None, *, teacher: Name = None) -> Gated:
    """Alignment with a gate: nodes of a question are averaged with the weights in the column `GATE_WEIGHT`.

    With equal weights, it is the mean alignment: every path counts the same, whatever its number of nodes. Questions
    whose nodes all have weight zero are not distilled and do not count.
    """
    rows = select_rows(nodes, objective, teacher)
    gate_N = rows[GATE_WEIGHT]
    weight_N = gate_N / np.bincount(rows.path_N, minlength=len(rows.question_U))[rows.path_N]

    def mean(value_N: Floats) -> Floats:
        return mean_by(rows.question_N, value_N, rows.n_questions, weight_N)

    signal = interval(mean(rows["sr_range"] * rows["alignment"]), bounds=COSINE)
    return Gated(interval(alignment_values(rows, mean), bounds=COSINE), signal, share(gate_N > 0))


def within_path_correlations(nodes: Nodes, objective: Name = None) -> list[Correlation]:
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


def alignment_histogram(nodes: Nodes, bins: int = 40, *, objective: Name = None, teacher: Name = None) -> Histogram:
    """Histogram of alignment over [-1, 1]; mean and standard deviation are over nodes, not over questions."""
    alignment_N = select_rows(nodes, objective, teacher)["alignment"]
    counts, edges = np.histogram(np.clip(alignment_N, -1, 1), bins, (-1, 1))
    mean, std = (float(alignment_N.mean()), float(alignment_N.std())) if len(alignment_N) else (nan, nan)
    ends = share(alignment_N > 1 - ROUNDING), share(alignment_N < ROUNDING - 1)
    return Histogram(tuple(counts.tolist()), tuple(edges.tolist()), mean, std, *ends)


def _contrast(metric: str, teacher: Name, by_path: list[Floats], by_question: list[QuestionValues]) -> Contrast:
    both = np.isfinite(by_question[0].value_Q) & np.isfinite(by_question[1].value_Q)
    sides, test, half_width, p_value = by_path, NO_TEST, nan, nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # if all differences are equal, p is 0 or NaN
        if both.sum() >= 2:
            sides, test = [side.value_Q[both] for side in by_question], PAIRED
            result = stats.ttest_rel(*sides)
        elif min(map(len, by_path)) >= 2:
            test, result = WELCH, stats.ttest_ind(*by_path, equal_var=False)
        if test != NO_TEST:
            found = result.confidence_interval(LEVEL)
            half_width, p_value = float(found.high - found.low) / 2, float(result.pvalue)
    correct, incorrect = (float(side.mean()) if len(side) else nan for side in sides)
    delta, model_sd = correct - incorrect, hypot(*(side.model_sd for side in by_question))
    if test == PAIRED and model_sd > 0:
        # The corrections of both sides err in the same direction more often than not; taken as independent.
        sampling_sd = half_width / float(stats.t.ppf(TAILS[1], both.sum() - 1))
        half_width = hypot(half_width, NORMAL * model_sd)
        p_value = 2 * float(stats.t.sf(abs(delta) / hypot(sampling_sd, model_sd), both.sum() - 1))
    tested = delta, half_width, p_value, test
    intervals = [
        # Paths of one question are not independent: without pairs there is no interval over questions.
        interval(replace(values, value_Q=side), bounds=COSINE) if test == PAIRED else Estimate(mean, nan, 0)
        for values, side, mean in zip(by_question, sides, (correct, incorrect), strict=True)
    ]
    counts = int(both.sum()), len(by_path[0]), len(by_path[1])
    return Contrast(metric, teacher, correct, incorrect, *tested, *counts, intervals[0], intervals[1])
