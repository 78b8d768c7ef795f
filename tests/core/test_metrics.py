"""Metrics on tables that are small enough to compute by hand, and against simple reference implementations."""

from __future__ import annotations

from collections import defaultdict
from math import isnan, nan, sqrt
from statistics import fmean

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from opd_align import metrics
from opd_align.core.intervals import NORMAL
from opd_align.core.node_rows import select_rows
from opd_align.core.oracle import SHARED_SD
from opd_align.types import REWARD, OpdAlignError

FIELDS = {
    "question": ("q0", pa.string()),
    "path": (0, pa.int16()),
    "path_correct": (True, pa.bool_()),
    "depth": (0, pa.int32()),
    "depth_normalised": (0.0, pa.float64()),
    "token": (0, pa.uint32()),
    "teacher": ("T", pa.string()),
    "objective": ("gkd", pa.string()),
    "alignment": (0.5, pa.float64()),
    "alignment_low": (-0.1, pa.float64()),
    "alignment_high": (0.9, pa.float64()),
    "verdict": ("undecided", pa.string()),
    "alignment_a": (nan, pa.float64()),
    "alignment_b": (nan, pa.float64()),
    "advantage": (0.0, pa.float64()),
    "sr_range": (0.1, pa.float64()),
    "children": (3, pa.int16()),
    **{name: (0.0, pa.float64()) for name in ("kl", "js", "l2", "cosine", "student_entropy", "teacher_entropy")},
}


def make_nodes(*rows: dict[str, object]) -> pa.Table:
    """A table with one row per dictionary; missing entries take their default from FIELDS."""
    assert all(set(row) <= set(FIELDS) for row in rows)
    columns = {name: [row.get(name, default) for row in rows] for name, (default, _) in FIELDS.items()}
    return pa.table({name: pa.array(columns[name], kind) for name, (_, kind) in FIELDS.items()})


def along(values: list[float], **same: object) -> list[dict[str, object]]:
    """Rows of one path, sorted by depth, with these alignments."""
    return [{"alignment": value, "depth": depth, **same} for depth, value in enumerate(values)]


def random_nodes(seed: int = 0, *, questions: int = 5, teachers: tuple[str, ...] = ("A", "B")) -> pa.Table:
    """Correct and incorrect paths of different lengths, ties at +-1, some nodes that do not count, two noisy halves."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for question in range(questions):
        for path in range(int(rng.integers(2, 5))):
            for depth in range(int(rng.integers(1, 9))):
                for teacher in teachers:
                    truth = rng.uniform(-1, 1) if rng.random() < 0.6 else rng.choice([-1.0, 1.0])
                    rows.append(
                        {
                            "question": f"q{question}",
                            "path": path,
                            "path_correct": path % 2 == 0,
                            "depth": depth,
                            "depth_normalised": depth / 10,
                            "token": depth + 100,
                            "teacher": teacher,
                            "alignment": nan if rng.random() < 0.1 else truth,
                            "alignment_a": float(np.clip(truth + rng.normal(0, 0.4), -1, 1)),
                            "alignment_b": float(np.clip(truth + rng.normal(0, 0.4), -1, 1)),
                            "verdict": str(rng.choice(["helpful", "harmful", "undecided"])),
                            "advantage": rng.normal(0, 0.1),
                            "sr_range": 0.0 if rng.random() < 0.1 else rng.uniform(0.01, 0.5),
                            "children": int(rng.integers(2, 4)),
                            "kl": float(rng.integers(0, 4)),
                            "js": rng.random(),
                            "l2": rng.random(),
                            "cosine": rng.random(),
                            "student_entropy": rng.random(),
                        }
                    )
    return make_nodes(*rows)


def counting(nodes: pa.Table) -> list[dict[str, object]]:
    return [row for row in nodes.to_pylist() if np.isfinite(row["alignment"]) and row["sr_range"] > 0]


def reference_questions(rows: list[dict], value) -> dict[str, float]:
    """Reference: mean along each path, then over all (path, teacher) combinations of a question."""
    paths = defaultdict(list)
    for row in rows:
        paths[row["question"], row["teacher"], row["path"]].append(value(row))
    questions = defaultdict(list)
    for (question, _, _), values in paths.items():
        questions[question].append(fmean(values))
    return {question: fmean(values) for question, values in questions.items()}


def same(left: object, right: object) -> bool:
    """Whether records are equal: floats up to rounding, NaN equal to NaN."""
    if isinstance(left, float) and isinstance(right, float):
        return left == pytest.approx(right, rel=1e-9, abs=1e-12, nan_ok=True)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "__dataclass_fields__"):
        return type(left) is type(right) and same(vars(left), vars(right))
    return left == right


def everything(nodes: pa.Table) -> list[object]:
    """The results of all functions for a table with one objective."""
    return [
        metrics.teacher_ranking(nodes),
        metrics.noise_ceiling(nodes),
        metrics.correct_vs_incorrect(nodes),
        metrics.selective_oracle(nodes),
        *(metrics.divergence_filter(nodes, measure) for measure in metrics.MEASURES),
        metrics.within_path_correlations(nodes),
        metrics.alignment_histogram(nodes),
    ]


# Ranking


def test_ranking_averages_over_nodes_then_paths_then_questions():
    nodes = make_nodes(
        *along([1.0, 0.0, -0.4], question="q0", path=0, advantage=0.2),
        *along([0.8], question="q0", path=1, sr_range=0.3),
        *along([-0.5, 0.1], question="q1", path=0, advantage=0.1),
    )
    (rank,) = metrics.teacher_ranking(nodes)
    # Question q0: (0.2 + 0.8) / 2 = 0.5; q1: -0.2. Two questions: the interval is t(0.975, 1) * 0.35.
    assert rank.alignment.mean == pytest.approx(0.15)
    assert rank.alignment.half_width == pytest.approx(12.706204736 * 0.35)
    assert rank.fraction_positive.mean == pytest.approx(((1 / 3 + 1) / 2 + 1 / 2) / 2)
    # q0: (0.1 * (1 + 0 - 0.4) + 0.3 * 0.8) / 0.6 = 0.5; q1: -0.2.
    assert rank.weighted_cosine.mean == pytest.approx((0.5 - 0.2) / 2)
    assert rank.advantage.mean == pytest.approx((0.1 + 0.1) / 2)
    assert (rank.n_questions, rank.n_nodes, rank.alignment.n) == (2, 6, 2)


def test_weighted_cosine_weights_by_sr_range():
    nodes = make_nodes({"alignment": 1.0, "sr_range": 0.3}, {"alignment": -1.0, "sr_range": 0.1, "depth": 1})
    (rank,) = metrics.teacher_ranking(nodes)
    assert rank.weighted_cosine.mean == pytest.approx(0.5)
    assert rank.alignment.mean == pytest.approx(0.0)


def test_ranking_is_sorted_with_teachers_without_nodes_last():
    nodes = make_nodes(
        {"teacher": "without nodes", "alignment": nan},
        {"teacher": "bad", "alignment": -0.5},
        {"teacher": "good", "alignment": 0.5},
        {"teacher": "also good", "alignment": 0.5},
    )
    ranks = metrics.teacher_ranking(nodes)
    assert [rank.teacher for rank in ranks] == ["also good", "good", "bad", "without nodes"]
    assert ranks[-1].n_nodes == 0
    assert isnan(ranks[-1].alignment.mean)
    assert isnan(ranks[-1].helpful)


def test_ranking_counts_verdicts_and_two_children_of_counting_nodes_only():
    nodes = make_nodes(
        {"verdict": "helpful", "children": 2},
        {"verdict": "harmful", "depth": 1},
        {"verdict": "helpful", "depth": 2},
        {"verdict": "undecided", "depth": 3},
        {"verdict": "harmful", "depth": 4, "sr_range": 0.0, "children": 2},
        {"verdict": "harmful", "depth": 5, "alignment": nan, "children": 2},
    )
    (rank,) = metrics.teacher_ranking(nodes)
    assert (rank.helpful, rank.harmful, rank.undecided) == (0.5, 0.25, 0.25)
    assert rank.two_children == 0.25
    assert rank.n_nodes == 4


@pytest.mark.parametrize("seed", range(4))
def test_ranking_matches_the_reference(seed):
    nodes = random_nodes(seed)
    ranks = metrics.teacher_ranking(nodes)
    assert {rank.teacher for rank in ranks} == {"A", "B"}
    for rank in ranks:
        rows = [row for row in counting(nodes) if row["teacher"] == rank.teacher]
        for estimate, value in (
            (rank.alignment, lambda row: row["alignment"]),
            (rank.fraction_positive, lambda row: float(row["alignment"] > 0)),
            (rank.advantage, lambda row: row["advantage"]),
        ):
            values = list(reference_questions(rows, value).values())
            low, high = stats.t.interval(0.95, len(values) - 1, fmean(values), stats.sem(values))
            assert estimate.mean == pytest.approx(fmean(values))
            assert estimate.half_width == pytest.approx((high - low) / 2)
        assert rank.n_nodes == len(rows)


# Noise ceiling


def reference_correlations(nodes: pa.Table) -> tuple[float, float]:
    rows = counting(nodes)
    a, b, weight = (np.array([row[name] for row in rows]) for name in ("alignment_a", "alignment_b", "sr_range"))
    covariance = np.cov(a, b, aweights=weight)
    return covariance[0, 1] / sqrt(covariance[0, 0] * covariance[1, 1]), stats.spearmanr(a, b).statistic


def test_noise_ceiling_matches_numpy_and_scipy():
    nodes = random_nodes(3, teachers=("A",))
    ceiling = metrics.noise_ceiling(nodes)
    pearson, spearman = reference_correlations(nodes)
    assert 0.3 < pearson < 0.95
    assert ceiling.pearson == pytest.approx(pearson)
    assert ceiling.spearman == pytest.approx(spearman)
    assert ceiling.reliability == pytest.approx(2 * pearson / (1 + pearson))
    assert ceiling.rank_reliability == pytest.approx(2 * spearman / (1 + spearman))
    assert ceiling.ceiling == pytest.approx(sqrt(ceiling.reliability))
    assert ceiling.low < ceiling.ceiling < ceiling.high


def test_noise_ceiling_is_reached_with_a_known_truth():
    # Halves with the truth's variance in their noise: each has reliability 1/2, the whole 2/3.
    rng = np.random.default_rng(1)
    truth, noise_a, noise_b = rng.normal(0, 0.2, (3, 4000))
    rows = [
        {"question": f"q{i % 40}", "depth": i, "alignment": t + (a + b) / 2, "alignment_a": t + a, "alignment_b": t + b}
        for i, (t, a, b) in enumerate(zip(truth, noise_a, noise_b, strict=True))
    ]
    ceiling = metrics.noise_ceiling(make_nodes(*rows))
    reached = np.corrcoef(truth, truth + (noise_a + noise_b) / 2)[0, 1]
    assert ceiling.low < reached < ceiling.high
    assert ceiling.ceiling == pytest.approx(sqrt(2 / 3), abs=0.02)
    assert ceiling.high - ceiling.low < 0.06


def test_bootstrap_resamples_questions_not_nodes():
    """Duplicating the nodes of a question adds no information, so the interval must stay as wide."""
    rows = random_nodes(5, teachers=("A",)).to_pylist()
    once, often = metrics.noise_ceiling(make_nodes(*rows)), metrics.noise_ceiling(make_nodes(*rows * 20))
    assert often.n_nodes == 20 * once.n_nodes
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_noise_ceiling_is_zero_if_the_halves_disagree():
    rows = [{"depth": i, "alignment_a": x, "alignment_b": -x} for i, x in enumerate([-0.5, 0.1, 0.4])]
    ceiling = metrics.noise_ceiling(make_nodes(*rows))
    assert (ceiling.pearson, ceiling.spearman) == pytest.approx((-1, -1))
    assert (ceiling.reliability, ceiling.ceiling) == (0.0, 0.0)
    assert isnan(ceiling.low)  # no interval from one question


@pytest.mark.parametrize("halves", [(nan, nan), (0.5, 0.5), (0.5, nan)])
def test_noise_ceiling_is_nan_without_variation_in_both_halves(halves):
    rows = [{"depth": i, "question": f"q{i}", "alignment_a": halves[0], "alignment_b": halves[1]} for i in range(5)]
    ceiling = metrics.noise_ceiling(make_nodes(*rows))
    assert isnan(ceiling.pearson)
    assert isnan(ceiling.ceiling)
    assert isnan(ceiling.low)


def test_seed_affects_only_the_bootstrap():
    nodes = random_nodes(2)
    first, again, other = (metrics.noise_ceiling(nodes, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert (first.low, first.high) != (other.low, other.high)
    assert first.ceiling == other.ceiling


# Correct against incorrect


def test_contrast_is_paired_by_question():
    nodes = make_nodes(
        *along([0.2, 0.0], question="q0", path=0),
        *along([0.5], question="q0", path=1, path_correct=False),
        *along([-0.1], question="q1", path=0),
        *along([0.1, 0.3], question="q1", path=1, path_correct=False),
        *along([0.0], question="q2", path=0),
        *along([0.1], question="q2", path=1, path_correct=False),
        *along([0.9], question="q3", path=0),  # has no incorrect path, so it is not compared
    )
    contrast = metrics.correct_vs_incorrect(nodes)[0]
    test = stats.ttest_rel([0.1, -0.1, 0.0], [0.5, 0.2, 0.1])
    assert contrast.test == metrics.PAIRED
    assert (contrast.correct, contrast.incorrect) == pytest.approx((0.0, 0.8 / 3))
    assert contrast.delta == pytest.approx(-0.8 / 3)
    assert contrast.p_value == pytest.approx(test.pvalue)
    assert contrast.delta + contrast.half_width == pytest.approx(test.confidence_interval().high)
    assert (contrast.n_pairs, contrast.n_correct_paths, contrast.n_incorrect_paths) == (3, 4, 3)


@pytest.mark.parametrize("seed", range(3))
def test_contrasts_match_the_reference(seed):
    nodes = random_nodes(seed, teachers=("A",))
    rows = counting(nodes)
    sides: dict[str, list[dict[str, float]]] = defaultdict(list)
    for correct in (True, False):
        kind = [row for row in rows if row["path_correct"] is correct]
        sides["mean_cosine"].append(reference_questions(kind, lambda row: row["alignment"]))
        sides["advantage"].append(reference_questions(kind, lambda row: row["advantage"]))
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for row in kind:
            totals[row["question"]][0] += row["sr_range"] * row["alignment"]
            totals[row["question"]][1] += row["sr_range"]
        sides["weighted_cosine"].append({question: total / weight for question, (total, weight) in totals.items()})
    contrasts = metrics.correct_vs_incorrect(nodes)
    assert [contrast.metric for contrast in contrasts] == ["mean_cosine", "weighted_cosine", "advantage"]
    for contrast in contrasts:
        left, right = sides[contrast.metric]
        shared = sorted(left.keys() & right.keys())
        assert len(shared) >= 2
        test = stats.ttest_rel([left[q] for q in shared], [right[q] for q in shared])
        assert contrast.p_value == pytest.approx(test.pvalue)
        assert contrast.delta == pytest.approx(fmean(left[q] - right[q] for q in shared))


def test_contrast_of_one_question_uses_welch_over_paths():
    correct, incorrect = [0.1, 0.2, 0.4], [0.5, 0.9]
    nodes = make_nodes(
        *(row for path, x in enumerate(correct) for row in along([x, x], path=path)),
        *(row for path, x in enumerate(incorrect) for row in along([x], path=path + 3, path_correct=False)),
    )
    contrast = metrics.correct_vs_incorrect(nodes)[0]
    test = stats.ttest_ind(correct, incorrect, equal_var=False)
    assert contrast.test == metrics.WELCH
    assert contrast.p_value == pytest.approx(test.pvalue)
    assert contrast.half_width == pytest.approx(test.confidence_interval().high - contrast.delta)
    assert (contrast.n_pairs, contrast.n_correct_paths, contrast.n_incorrect_paths) == (1, 3, 2)


def test_contrast_is_paired_from_two_questions_on():
    nodes = make_nodes(
        *(
            {"question": f"q{question}", "path": path, "path_correct": path == 0, "alignment": x}
            for question, sides in enumerate([(0.1, 0.4), (0.3, 0.5)])
            for path, x in enumerate(sides)
        )
    )
    contrast = metrics.correct_vs_incorrect(nodes)[0]
    assert contrast.test == metrics.PAIRED
    assert contrast.p_value == pytest.approx(stats.ttest_rel([0.1, 0.3], [0.4, 0.5]).pvalue)


def test_contrast_counts_a_path_once_for_several_teachers():
    rows = [
        {"teacher": teacher, "path": path, "path_correct": path < 2, "alignment": x}
        for teacher in ("A", "B", "C")
        for path, x in enumerate([0.1, 0.2, 0.5, 0.9])
    ]
    together = metrics.correct_vs_incorrect(make_nodes(*rows))[0]
    alone = metrics.correct_vs_incorrect(make_nodes(*rows), teacher="A")[0]
    assert (together.n_correct_paths, together.n_incorrect_paths) == (2, 2)
    assert together.p_value == pytest.approx(alone.p_value)


def test_contrast_is_nan_with_only_correct_paths():
    for contrast in metrics.correct_vs_incorrect(make_nodes(*along([0.1, 0.3]))):
        assert contrast.test == metrics.NO_TEST
        assert isnan(contrast.incorrect)
        assert isnan(contrast.delta)
        assert isnan(contrast.p_value)
        assert (contrast.n_correct_paths, contrast.n_incorrect_paths) == (1, 0)
    assert metrics.correct_vs_incorrect(make_nodes(*along([0.1, 0.3])))[0].correct == pytest.approx(0.2)


def test_an_ungraded_path_is_neither_correct_nor_incorrect():
    nodes = make_nodes(*along([0.1]), *along([0.7], path=1, path_correct=None))
    contrast = metrics.correct_vs_incorrect(nodes)[0]
    assert (contrast.n_correct_paths, contrast.n_incorrect_paths) == (1, 0)
    assert contrast.correct == pytest.approx(0.1)


# Oracle and filters


def test_oracle_computed_by_hand():
    nodes = make_nodes(
        *along([1.0, -1.0, 0.2, 0.2], path=0, sr_range=0.4),  # signal: 0.4, -0.4, 0.08, 0.08
        *along([-0.5, -0.5], path=1, sr_range=0.2),  # never kept
        *along([0.5], question="q1", sr_range=0.2),  # kept whole: equal, so not better
    )
    full, zero, third = metrics.selective_oracle(nodes)
    assert [row.threshold for row in (full, zero, third)] == [None, 0.0, 0.3]
    assert full.signal.mean == pytest.approx(((0.04 - 0.1) / 2 + 0.1) / 2)
    assert (full.share_kept, full.gain.mean, full.n_nodes) == (1.0, 0.0, 7)
    assert isnan(full.share_beating)
    assert zero.signal.mean == pytest.approx((0.56 / 3 + 0.1) / 2)
    assert zero.gain.mean == pytest.approx((0.56 / 3 + 0.03) / 2)
    assert zero.share_kept == pytest.approx(4 / 7)
    assert zero.share_beating == pytest.approx(1 / 3)
    assert third.signal.mean == pytest.approx((0.4 + 0.1) / 2)
    assert third.n_nodes == 2
    assert isnan(zero.cross_fitted_signal.mean)


def test_oracle_drops_nodes_exactly_at_the_threshold():
    full, zero = metrics.selective_oracle(make_nodes(*along([0.0, 0.5])), (0.0,))
    assert (zero.share_kept, zero.share_beating) == (0.5, 1.0)
    assert (full.signal.mean, zero.signal.mean) == pytest.approx((0.025, 0.05))


def test_cross_fitting_selects_on_one_half_and_measures_on_the_other():
    nodes = make_nodes(
        {"alignment_a": 0.5, "alignment_b": -0.2, "sr_range": 0.1},
        {"alignment_a": 0.1, "alignment_b": 0.8, "sr_range": 0.5, "depth": 1},
        {"alignment_a": -0.9, "alignment_b": 0.4, "sr_range": 0.2, "depth": 2},
        {"alignment_a": 0.9, "alignment_b": nan, "sr_range": 0.2, "depth": 3},
    )
    full, zero = metrics.selective_oracle(nodes, (0.0,))
    # Chosen by a: rows 0 and 1, b says -0.02 and 0.40. Chosen by b: rows 1 and 2, a says 0.05 and -0.18.
    assert zero.cross_fitted_signal.mean == pytest.approx(((-0.02 + 0.4) / 2 + (0.05 - 0.18) / 2) / 2)
    assert full.cross_fitted_signal.mean == pytest.approx(((-0.02 + 0.4 + 0.08) / 3 + (0.05 + 0.05 - 0.18) / 3) / 2)


def test_on_pure_noise_only_the_cross_fitted_oracle_gains_nothing():
    rng = np.random.default_rng(0)
    rows = [
        {"question": f"q{i % 50}", "depth": i, "alignment_a": a, "alignment_b": b, "alignment": (a + b) / 2}
        for i, (a, b) in enumerate(rng.uniform(-1, 1, (5000, 2)))
    ]
    full, zero = metrics.selective_oracle(make_nodes(*rows), (0.0,))
    assert zero.signal.mean - full.signal.mean > 0.02
    sampling = np.sqrt(zero.cross_fitted_signal.half_width**2 - (NORMAL * SHARED_SD) ** 2)
    assert abs(zero.cross_fitted_signal.mean) < 2 * sampling


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threshold", [0.0, 0.3])
def test_oracle_matches_the_reference(seed, threshold):
    nodes = random_nodes(seed)
    rows = counting(nodes)
    row = metrics.selective_oracle(nodes, (threshold,))[1]
    kept = [node for node in rows if node["alignment"] > threshold]
    full_Q = reference_questions(rows, lambda node: node["sr_range"] * node["alignment"])
    kept_Q = reference_questions(kept, lambda node: node["sr_range"] * node["alignment"])
    assert row.signal.mean == pytest.approx(fmean(kept_Q.values()))
    assert row.gain.mean == pytest.approx(fmean(kept_Q[q] - full_Q[q] for q in kept_Q))
    assert row.share_kept == pytest.approx(len(kept) / len(rows))
    paths = defaultdict(list)
    for node in rows:
        paths[node["question"], node["teacher"], node["path"]].append(node)
    beating = 0
    for path in paths.values():
        signals = [node["sr_range"] * node["alignment"] for node in path]
        chosen = [s for s, node in zip(signals, path, strict=True) if node["alignment"] > threshold]
        beating += bool(chosen) and fmean(chosen) > fmean(signals) + 1e-9
    assert row.share_beating == pytest.approx(beating / len(paths))
    assert 0 < row.share_beating < 1


def test_filter_keeps_the_most_divergent_nodes():
    kl = [0.1, 0.4, 0.2, 0.3]
    alignments = [0.5, 1.0, -0.6, 0.3]
    nodes = make_nodes(
        *(
            {**row, "kl": x, "cosine": 1 - x, "alignment_a": row["alignment"], "alignment_b": row["alignment"]}
            for question in ("q0", "q1", "q2", "q3")
            for row, x in zip(along(alignments, question=question), kl, strict=True)
        )
    )
    for measure, threshold in (("kl", 0.3), ("cosine", 0.7)):
        (row,) = metrics.divergence_filter(nodes, measure, (0.5,))
        assert row.threshold == pytest.approx(threshold)
        assert (row.share_kept, row.n_nodes) == (0.5, 8)
        assert row.signal.mean == pytest.approx((0.1 + 0.03) / 2)  # alignments 1.0 and 0.3
        assert row.gain.mean == pytest.approx(0.065 - 0.03)
        # The oracle keeps 0.5, 1.0 and 0.3, whose mean signal is 0.06.
        assert row.share_of_oracle_gain == pytest.approx((0.065 - 0.03) / (0.06 - 0.03))


def test_filter_at_quantile_zero_is_full_distillation():
    nodes = random_nodes(1)
    (full,) = metrics.selective_oracle(nodes, ())
    for measure in metrics.MEASURES:
        (row,) = metrics.divergence_filter(nodes, measure, (0.0,))
        assert row.share_kept == 1.0
        assert same(row.signal, full.signal)
        assert row.share_of_oracle_gain == pytest.approx(0.0)


def test_share_of_oracle_gain_is_nan_if_the_oracle_gains_nothing():
    nodes = make_nodes(*({**row, "kl": x} for row, x in zip(along([0.5, 0.5]), [0.1, 0.2], strict=True)))
    (row,) = metrics.divergence_filter(nodes, "kl", (0.5,))
    assert isnan(row.share_of_oracle_gain)
    assert row.signal.mean == pytest.approx(0.05)


def test_filter_ignores_nodes_with_unknown_measure():
    known = [{**row, "kl": x} for row, x in zip(along([0.5, 1.0, -0.6]), [0.1, 0.4, 0.2], strict=True)]
    unknown = {"alignment": 0.9, "depth": 3, "kl": nan}
    assert same(metrics.divergence_filter(make_nodes(*known, unknown)), metrics.divergence_filter(make_nodes(*known)))


def test_unknown_measure_raises():
    with pytest.raises(OpdAlignError, match=r"'surprise'.*kl, js, l2, cosine"):
        metrics.divergence_filter(make_nodes({}), "surprise")


# Correlations and histogram


@pytest.mark.parametrize("seed", range(4))
def test_correlations_match_scipy_on_every_path(seed):
    nodes = random_nodes(seed)
    paths = defaultdict(list)
    for row in counting(nodes):
        paths[row["question"], row["teacher"], row["path"]].append(row)
    checked = 0
    for found in metrics.within_path_correlations(nodes):
        by_question, left_out = defaultdict(list), 0
        for (question, teacher, _), rows in paths.items():
            if found.teacher not in (None, teacher):
                continue
            a, x = [row["alignment"] for row in rows], [row[found.feature] for row in rows]
            if len(rows) < 3 or len(set(a)) == 1 or len(set(x)) == 1:
                left_out += 1
            else:
                by_question[question].append(stats.spearmanr(a, x).statistic)
        assert found.n_left_out == left_out > 0
        assert found.n_paths == sum(map(len, by_question.values())) > 0
        assert found.rho.mean == pytest.approx(fmean(map(fmean, by_question.values())))
        assert found.rho.n == len(by_question)
        checked += 1
    assert checked == 3 * len(metrics.FEATURES)


def test_rounding_errors_do_not_affect_ranks():
    """Two children give +-1 up to the last bit; differences in that bit must not affect ranks."""
    noisy = [1.0, 1 - 1e-16, 1 - 2e-16, -1.0, -1 + 1e-16]
    exact = [1.0, 1.0, 1.0, -1.0, -1.0]
    kl = [0.1, 0.2, 0.3, 0.4, 0.5]
    rho = [
        metrics.within_path_correlations(
            make_nodes(*({**row, "kl": x} for row, x in zip(along(values), kl, strict=True)))
        )
        for values in (noisy, exact)
    ]
    assert same(*rho)
    (found,) = [row for row in rho[0] if row.feature == "kl" and row.teacher is None]
    assert found.rho.mean == pytest.approx(stats.spearmanr(exact, kl).statistic)


def test_small_divergences_keep_their_order():
    kl = [1e-14, 2e-14, 3e-14]
    nodes = make_nodes(*({**row, "kl": x} for row, x in zip(along([0.1, 0.2, 0.3]), kl, strict=True)))
    (found,) = [row for row in metrics.within_path_correlations(nodes) if row.feature == "kl" and row.teacher is None]
    assert found.rho.mean == pytest.approx(1.0)


def test_histogram_counts_every_node_once():
    nodes = make_nodes(*along([-1.0, -1 + 1e-16, -0.4, 0.6, 1 + 1e-12, nan]))
    histogram = metrics.alignment_histogram(nodes, 4)
    assert histogram.counts == (2, 1, 0, 2)
    assert histogram.edges == (-1.0, -0.5, 0.0, 0.5, 1.0)
    assert (histogram.share_at_minus_one, histogram.share_at_plus_one) == (0.4, 0.2)
    assert histogram.mean == pytest.approx(-0.16)
    assert histogram.std == pytest.approx(np.std([-1, -1, -0.4, 0.6, 1]))


# Which rows: objectives and teachers


def test_unknown_objective_or_teacher_raises():
    nodes = make_nodes({"objective": "gkd"}, {"objective": "jsd", "alignment": -0.5})
    with pytest.raises(OpdAlignError, match="gkd, jsd"):
        metrics.teacher_ranking(nodes)
    with pytest.raises(OpdAlignError, match="gkd, jsd"):
        metrics.teacher_ranking(nodes, "gdk")
    with pytest.raises(OpdAlignError, match=r"'nobody'.*available: T"):
        metrics.noise_ceiling(nodes, "gkd", teacher="nobody")
    assert metrics.teacher_ranking(nodes, "jsd")[0].alignment.mean == -0.5


def test_reward_objectives_are_selected_by_name_or_if_alone():
    reward = {"objective": "dr_grpo", "teacher": REWARD, "alignment": -0.25, "kl": nan}
    nodes = make_nodes({}, reward)
    assert [rank.teacher for rank in metrics.teacher_ranking(nodes)] == ["T"]
    for ranks in (metrics.teacher_ranking(nodes, "dr_grpo"), metrics.teacher_ranking(make_nodes(reward))):
        assert [(rank.teacher, rank.objective, rank.alignment.mean) for rank in ranks] == [(REWARD, "dr_grpo", -0.25)]
    (row,) = metrics.divergence_filter(nodes, "kl", (0.5,), objective="dr_grpo")
    assert isnan(row.threshold)
    assert row.n_nodes == 0


# Invariants


@pytest.mark.parametrize(
    "nodes",
    [
        make_nodes(),
        make_nodes({"alignment": nan}),
        make_nodes({"alignment": 0.5, "sr_range": 0.0}),
        make_nodes({}),
        make_nodes(*along([1.0, -1.0])),
        make_nodes({"kl": nan, "js": nan, "l2": nan, "cosine": nan, "advantage": nan, "teacher": REWARD}),
    ],
    ids=["empty", "undefined", "no range", "one node", "one path", "reward"],
)
def test_nothing_raises_on_nearly_empty_tables(nodes):
    found = everything(nodes)
    assert len(found) == 12
    assert sum(metrics.alignment_histogram(nodes).counts) == len(counting(nodes))


def test_results_do_not_depend_on_encoding_and_chunks():
    nodes = random_nodes(2)
    strings = ("question", "teacher", "objective", "verdict")
    parts = []
    for part in (nodes.slice(0, 17), nodes.slice(17)):  # each chunk with a dictionary of its own
        for name in strings:
            part = part.set_column(part.column_names.index(name), name, part[name].combine_chunks().dictionary_encode())
        parts.append(part)
    encoded = pa.concat_tables(parts)
    assert encoded["question"].num_chunks == 2
    assert same(everything(encoded), everything(nodes))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_results_do_not_depend_on_row_order(seed):
    nodes = random_nodes(seed % 50, questions=3)
    order = np.random.default_rng(seed).permutation(nodes.num_rows)
    assert same(everything(nodes.take(order)), everything(nodes))


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 50),
    question=st.sampled_from(["q0", "q1", "new"]),
    dead=st.sampled_from([{"alignment": nan}, {"sr_range": 0.0}, {"sr_range": nan}, {"alignment": float("inf")}]),
)
def test_rows_that_do_not_count_have_no_effect(seed, question, dead):
    nodes = random_nodes(seed, questions=3)
    row = {"question": question, "teacher": "A", "children": 2, "verdict": "harmful", "kl": 99.0, "alignment_a": 0.1}
    assert same(everything(pa.concat_tables([nodes, make_nodes({**row, **dead})])), everything(nodes))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 50), scale=st.floats(1e-3, 1e3))
def test_scaling_the_sr_range_scales_only_signals(seed, scale):
    nodes = random_nodes(seed, questions=3)
    place = nodes.column_names.index("sr_range")
    scaled = nodes.set_column(place, "sr_range", pa.array(nodes["sr_range"].to_numpy() * scale))
    assert same(metrics.teacher_ranking(scaled), metrics.teacher_ranking(nodes))
    assert same(metrics.correct_vs_incorrect(scaled), metrics.correct_vs_incorrect(nodes))
    for big, small in zip(metrics.selective_oracle(scaled), metrics.selective_oracle(nodes), strict=True):
        assert big.signal.mean == pytest.approx(scale * small.signal.mean)
        assert big.gain.half_width == pytest.approx(scale * small.gain.half_width, nan_ok=True)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 1), st.floats(-1, 1), st.floats(0.01, 1)), min_size=1, max_size=20
    )
)
def test_oracle_signal_is_at_least_full_signal(rows):
    nodes = make_nodes(
        *({"question": f"q{q}", "path": p, "alignment": a, "sr_range": sr} for q, p, a, sr in rows),
        {"alignment": 0.5},  # keeps the oracle defined
    )
    full, zero = metrics.selective_oracle(nodes, (0.0,))
    assert zero.signal.mean >= full.signal.mean - 1e-12
    assert zero.gain.mean >= -1e-12
    assert zero.share_kept <= 1.0


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 50), measure=st.sampled_from(metrics.MEASURES))
def test_a_stricter_filter_keeps_fewer_nodes(seed, measure):
    rows = metrics.divergence_filter(random_nodes(seed, questions=3), measure, (0.0, 0.3, 0.6, 0.9, 1.0))
    kept = [row.n_nodes for row in rows]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] >= 1
    limits = [row.threshold for row in rows]
    assert limits == sorted(limits, reverse=measure == "cosine")


def test_a_teacher_without_nodes_does_not_affect_others():
    nodes = random_nodes(0, teachers=("A",))
    silent = make_nodes(*({**row, "teacher": "B", "alignment": nan, "kl": nan} for row in nodes.to_pylist()))
    both = pa.concat_tables([nodes, silent])
    assert same(metrics.teacher_ranking(both)[0], metrics.teacher_ranking(nodes)[0])
    assert same(metrics.selective_oracle(both), metrics.selective_oracle(nodes))
    assert same(metrics.correct_vs_incorrect(both), metrics.correct_vs_incorrect(nodes))


# Rows that are selected once


def test_selected_rows_give_the_same_statistics_as_the_table():
    nodes = random_nodes(1)
    rows = select_rows(nodes, None, "A")
    assert select_rows(rows, None) is rows
    assert metrics.teacher_ranking(rows) == [r for r in metrics.teacher_ranking(nodes) if r.teacher == "A"]
    assert metrics.noise_ceiling(rows) == metrics.noise_ceiling(nodes, teacher="A")
    assert select_rows(rows, None, "B").teachers == ["B"]


def test_selected_rows_stay_those_of_their_teacher_where_a_measure_is_unknown():
    nodes = random_nodes(1)
    kl = [None if at % 3 == 0 else value for at, value in enumerate(nodes["kl"].to_pylist())]
    nodes = nodes.set_column(nodes.column_names.index("kl"), "kl", pa.array(kl, pa.float64()))
    rows = select_rows(nodes, None, "A")
    assert metrics.divergence_filter(rows, "kl") == metrics.divergence_filter(nodes, "kl", teacher="A")
