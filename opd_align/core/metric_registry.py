"""The metrics that opd-align reports: key, meaning, unit, range, direction, where it is shown, how it is computed.

`summary.json`, the trainer's log, W&B, `history.jsonl`, the dashboard and `docs/metrics.md` are generated from
`METRICS`: to add a metric everywhere, add one record. Keys have the same shape for any number of teachers and
objectives:

    opd_align/<teacher>/<objective>/<stem>   per teacher and objective; `reward` is the teacher of reward objectives
    opd_align/student/<stem>                 the student's rollouts, independent of the teachers
    opd_align/evaluation/<stem>              cost of an evaluation, logged by the callback
    gate/<stem>                              logged by a gated trainer at each of its steps
    schedule/<stem>                          logged by `AlignmentSchedule` at each step
    mix/<teacher>/<kind>/<stem>              logged by `TeacherMix` at each step

Teacher names may contain slashes, so keys are parsed from the right, by stem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from math import inf, isfinite, nan
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opd_align.core import metrics
from opd_align.core.alignment import pairs_of, teachers_of
from opd_align.core.engine import Analysis
from opd_align.core.interval_metrics import HALF_WIDTH, STUDENT_INTERVALS, TEACHER_INTERVALS, half_width
from opd_align.core.metric_schema import ROOT, Level, Metric
from opd_align.core.node_rows import NodeRows, select_rows
from opd_align.core.training_metrics import (
    ALARM_METRICS,
    EVALUATION_METRICS,
    GATE_METRICS,
    MIX_METRICS,
    SCHEDULE_METRICS,
)
from opd_align.core.whole_update import WHOLE_UPDATE_METRICS, WholeUpdate, whole_update
from opd_align.types import OVERLAP_TOP_K, REWARD, Floats

FILTER_MEASURE, FILTER_QUANTILE = "kl", 0.5
"""The divergence filter that is reported: keep the half of the nodes with the largest KL divergence."""


class TeacherRecords:
    """The records of `core.metrics` for one teacher and objective, each computed when it is first used.

    Args:
        analysis: The analysis.
        rows: Rows of the node table of this teacher and objective.
        teacher: Name of the teacher.
        objective: Name of the objective.
    """

    def __init__(self, analysis: Analysis, rows: pa.Table, teacher: str, objective: str) -> None:
        self.analysis, self.rows, self.teacher, self.objective = analysis, rows, teacher, objective

    @cached_property
    def counted(self) -> NodeRows:
        """The rows that count; selected once for all records."""
        return select_rows(self.rows, self.objective, self.teacher)

    @cached_property
    def rank(self) -> metrics.TeacherRank:
        return metrics.teacher_ranking(self.counted)[0]

    @cached_property
    def whole_update(self) -> WholeUpdate:
        return whole_update(self.analysis, self.teacher, self.objective)

    @cached_property
    def contrast(self) -> metrics.Contrast:
        """Mean alignment on correct and incorrect paths."""
        return metrics.correct_vs_incorrect(self.counted, teacher=self.teacher)[0]

    @cached_property
    def thirds(self) -> tuple[metrics.Estimate, metrics.Estimate, metrics.Estimate]:
        """Mean alignment in the first, the middle and the last third of the completions."""
        return metrics.alignment_by_position(self.counted)

    @cached_property
    def gated(self) -> metrics.Gated:
        return metrics.gated_alignment(self.counted)

    def question_values(self, column: str) -> Floats:
        """The values of this teacher in a column of `Analysis.questions` with one entry per teacher."""
        position = teachers_of(self.analysis.children).index(self.teacher)
        return np.array([row[position] for row in self.analysis.questions[column].to_pylist()], float)

    def question_mean(self, column: str) -> float:
        """The mean of `question_values` over questions."""
        return _known_mean(self.question_values(column))

    @cached_property
    def oracle_rows(self) -> list[metrics.OracleRow]:
        return metrics.selective_oracle(self.counted, (0.0,))

    @property
    def all_nodes(self) -> metrics.OracleRow:
        return self.oracle_rows[0]

    @property
    def oracle(self) -> metrics.OracleRow:
        """Distillation only at nodes with positive alignment."""
        return self.oracle_rows[1]

    @cached_property
    def filter(self) -> metrics.FilterRow:
        return metrics.divergence_filter(self.counted, FILTER_MEASURE, (FILTER_QUANTILE,))[0]

    @cached_property
    def correlations(self) -> dict[str, metrics.Correlation]:
        """Within-path correlations by feature."""
        rows = metrics.within_path_correlations(self.counted)
        return {row.feature: row for row in rows if row.teacher == self.teacher}


def _known_mean(value_Q: Floats) -> float:
    return float(np.nanmean(value_Q)) if np.isfinite(value_Q).any() else nan


def _question_mean(column: str) -> Callable[[Analysis], float]:
    return lambda analysis: _known_mean(analysis.questions[column].to_numpy().astype(float))


def _total(*columns: str) -> Callable[[Analysis], int]:
    return lambda analysis: sum(int(analysis.questions[name].to_numpy().sum()) for name in columns)


def _nodes(analysis: Analysis) -> int:
    return len(analysis.nodes.group_by(["question", "path", "depth"]).aggregate([]))


def _spearman(stem: str, column: str, label: str, feature: str) -> Metric:
    meaning = f"Mean Spearman correlation along a path between alignment and {feature}."
    charts = {"Spearman ρ of alignment with": label}

    def compute(records: TeacherRecords) -> float:
        return records.correlations[column].rho.mean

    interval = f"{stem}{HALF_WIDTH}"
    options: dict[str, Any] = {"needs_teacher": True, "half_width": interval, "charts": charts}
    return Metric("teacher", stem, meaning, "correlation", compute=compute, **options)


TEACHER_METRICS = (
    Metric("teacher", "alignment/mean", "Mean cosine of ideal update and objective's update, corrected for shrinkage.",
        "cosine", "higher", lambda r: r.rank.alignment.mean, half_width="alignment/half_width",
        charts={"Alignment": "", "Alignment with the gate": "without"}, column="alignment"),
    half_width("alignment/half_width", "alignment/mean", "cosine", lambda r: r.rank.alignment),
    Metric("teacher", "alignment/weighted",
        "Alignment weighted by the SR range of each node: tokens that hardly affect success hardly count.", "cosine",
        "higher", lambda r: r.rank.weighted_cosine.mean, half_width="alignment/weighted_half_width",
        charts={"SR-weighted alignment": ""}),
    half_width("alignment/weighted_half_width", "alignment/weighted", "cosine",
        lambda r: r.rank.weighted_cosine, logged=False),
    Metric("teacher", "alignment/attenuation",
        "Share of the SR-weighted alignment that shrinkage leaves; `alignment/weighted` is divided by it.", "share",
        "higher", lambda r: r.rank.weighted_cosine.attenuation, logged=False),
    Metric("teacher", "alignment/fraction_positive", "Share of nodes with positive alignment.", "share", "higher",
        lambda r: r.rank.fraction_positive.mean, half_width="alignment/fraction_positive_half_width",
        charts={"Decisions with positive alignment": ""}),
    half_width("alignment/fraction_positive_half_width", "alignment/fraction_positive", "share",
        lambda r: r.rank.fraction_positive, logged=False),
    Metric("teacher", "alignment/correct", "Mean alignment on correct rollouts.", "cosine", "higher",
        lambda r: r.contrast.correct, half_width="alignment/correct_half_width",
        charts={"Alignment by rollout outcome": "correct"}),
    Metric("teacher", "alignment/incorrect", "Mean alignment on incorrect rollouts.", "cosine", "higher",
        lambda r: r.contrast.incorrect, half_width="alignment/incorrect_half_width",
        charts={"Alignment by rollout outcome": "incorrect"}),
    Metric("teacher", "alignment/first_third", "Mean alignment in the first third of the completions.", "cosine",
        "higher", lambda r: r.thirds[0].mean, half_width="alignment/first_third_half_width",
        charts={"Alignment by position": "first third"}),
    Metric("teacher", "alignment/middle_third", "Mean alignment in the middle third of the completions.", "cosine",
        "higher", lambda r: r.thirds[1].mean, half_width="alignment/middle_third_half_width",
        charts={"Alignment by position": "middle third"}),
    Metric("teacher", "alignment/last_third", "Mean alignment in the last third of the completions.", "cosine",
        "higher", lambda r: r.thirds[2].mean, half_width="alignment/last_third_half_width",
        charts={"Alignment by position": "last third"}),
    Metric("teacher", "gated/alignment",
        "`alignment/mean` with each node weighted by the trainer's gate: the alignment of what is distilled.", "cosine",
        "higher", lambda r: r.gated.alignment.mean, needs_teacher=True, needs_gate=True,
        half_width="gated/alignment_half_width", charts={"Alignment with the gate": "with the gate"}),
    half_width("gated/alignment_half_width", "gated/alignment", "cosine", lambda r: r.gated.alignment,
        needs_teacher=True, needs_gate=True),
    Metric("teacher", "gated/signal",
        "`oracle/full_signal` with each node weighted by the trainer's gate.", "SR range × cosine", "higher",
        lambda r: r.gated.signal.mean, needs_teacher=True, needs_gate=True, half_width="gated/signal_half_width",
        charts={"Signal with the gate": "with the gate"}),
    Metric("teacher", "gated/kept", "Share of nodes to which the trainer's gate gives a positive weight.", "share",
        "neither", lambda r: r.gated.share_kept, needs_teacher=True, needs_gate=True),
    Metric("teacher", "alignment/delta", "`alignment/correct` minus `alignment/incorrect`.", "cosine", "neither",
        lambda r: r.contrast.delta, bounds=(-2, 2)),
    Metric("teacher", "alignment/delta_p_value",
        "p-value of `alignment/delta`: paired t-test over questions, or Welch's over paths.", "probability", "neither",
        lambda r: r.contrast.p_value, logged=False),
    Metric("teacher", "alignment/decided", "Share of nodes whose verdict is helpful or harmful rather than undecided.",
        "share", "higher", lambda r: r.rank.helpful + r.rank.harmful,
        charts={"Reliability of the measurement": "decided"}),
    Metric("teacher", "alignment/noise_ceiling",
        "Largest correlation with the true alignment that the estimates can have, from split halves.", "correlation",
        "higher", lambda r: r.rank.noise_ceiling.ceiling, bounds=(0, 1),
        charts={"Reliability of the measurement": "noise ceiling"}),
    Metric("teacher", "alignment/noise_ceiling_low",
        "Lower end of the 95 % bootstrap interval of `alignment/noise_ceiling`.", "correlation", "higher",
        lambda r: r.rank.noise_ceiling.low, bounds=(0, 1), logged=False),
    Metric("teacher", "alignment/noise_ceiling_high",
        "Upper end of the 95 % bootstrap interval of `alignment/noise_ceiling`.", "correlation", "higher",
        lambda r: r.rank.noise_ceiling.high, bounds=(0, 1), logged=False),
    Metric("teacher", "advantage/mean",
        "Success rate if the teacher chose the next token minus success rate if the student does.", "probability",
        "higher", lambda r: r.rank.advantage.mean, bounds=(-1, 1), needs_teacher=True,
        half_width="advantage/half_width",
        charts={"Teacher advantage": ""}),
    half_width("advantage/half_width", "advantage/mean", "probability", lambda r: r.rank.advantage, (-1, 1),
        needs_teacher=True, logged=False),
    *WHOLE_UPDATE_METRICS, Metric("teacher", "overlap_ratio",
        f"Share of the student's {OVERLAP_TOP_K} most likely next tokens that are also among the teacher's "
        f"{OVERLAP_TOP_K}, averaged over the tokens of the analyzed rollouts; verl's `distillation/overlap_ratio`, "
        "where the number is that of its top-k loss.",
        "share", "neither", lambda r: r.question_mean("overlap_ratio"), needs_teacher=True,
        half_width="overlap_ratio_half_width",
        charts={"Overlap of the most likely tokens": ""}),
    Metric("teacher", "overlap_token_advantage",
        "Mean of −t (log t − log p) over the overlapping tokens, with teacher probability t and student probability p, "
        "averaged over tokens with an overlap; verl's `distillation/overlap_token_advantage`.", "nats", "neither",
        lambda r: r.question_mean("overlap_token_advantage"), (-inf, inf), needs_teacher=True,
        half_width="overlap_token_advantage_half_width",
        charts={"Advantage of the overlapping tokens": ""}),
    Metric("teacher", "teacher_entropy",
        "Entropy of the teacher's next-token distribution, averaged over the tokens of the analyzed rollouts.", "nats",
        "neither", lambda r: r.question_mean("teacher_entropy"), needs_teacher=True,
        half_width="teacher_entropy_half_width", charts={"Teacher entropy": ""}),
    Metric("teacher", "oracle/full_signal", "Mean signal (SR range × alignment) of all nodes.", "SR range × cosine",
        "higher", lambda r: r.all_nodes.signal.mean,
        half_width="oracle/full_signal_half_width",
        charts={"Signal of the selective oracle": "all decisions", "Signal of the divergence filter": "all decisions",
            "Signal with the gate": "without"}),
    half_width("oracle/full_signal_half_width", "oracle/full_signal", "SR range × cosine",
        lambda r: r.all_nodes.signal, logged=False),
    Metric("teacher", "oracle/selective_signal",
        "Mean signal of the nodes with positive alignment; biased upwards: same rollouts select and value nodes.",
        "SR range × cosine", "higher", lambda r: r.oracle.signal.mean,
        half_width="oracle/selective_signal_half_width",
        charts={"Signal of the selective oracle": "positive alignment"}),
    half_width("oracle/selective_signal_half_width", "oracle/selective_signal", "SR range × cosine",
        lambda r: r.oracle.signal, logged=False),
    Metric("teacher", "oracle/cross_fitted_signal",
        "`oracle/selective_signal`, nodes selected on one half of the rollouts and valued on the other, not shrunk.",
        "SR range × cosine", "higher", lambda r: r.oracle.cross_fitted_signal.mean,
        half_width="oracle/cross_fitted_signal_half_width",
        charts={"Signal of the selective oracle": "cross-fitted"}),
    half_width("oracle/cross_fitted_signal_half_width", "oracle/cross_fitted_signal", "SR range × cosine",
        lambda r: r.oracle.cross_fitted_signal, logged=False),
    Metric("teacher", "oracle/kept", "Share of nodes with positive alignment, over all nodes.", "share", "neither",
        lambda r: r.oracle.share_kept, charts={"Decisions kept": "positive alignment"}),
    Metric("teacher", "oracle/gain",
        "`oracle/selective_signal` minus `oracle/full_signal`, over questions that keep a node.", "SR range × cosine",
        "higher", lambda r: r.oracle.gain.mean, bounds=(-2, 2), half_width="oracle/gain_half_width",
        charts={"Oracle gain over all decisions": ""}),
    Metric("teacher", "filter/threshold",
        "KL divergence from which on the divergence filter keeps a node: the median over nodes.", "nats", "neither",
        lambda r: r.filter.threshold, needs_teacher=True, charts={"Filter threshold (KL)": ""}),
    Metric("teacher", "filter/kept", "Share of nodes that the divergence filter keeps.", "share", "neither",
        lambda r: r.filter.share_kept, needs_teacher=True, charts={"Decisions kept": "divergence filter"}),
    Metric("teacher", "filter/signal", "Mean signal of the nodes that the divergence filter keeps.",
        "SR range × cosine", "higher", lambda r: r.filter.signal.mean, needs_teacher=True,
        half_width="filter/signal_half_width",
        charts={"Signal of the divergence filter": "divergence filter"}),
    Metric("teacher", "filter/oracle_share",
        "Gain of the divergence filter divided by the cross-fitted gain of the oracle; unknown if that is not larger "
        "than its error.", "ratio", "higher", lambda r: r.filter.share_of_oracle_gain, needs_teacher=True,
        charts={"Oracle gain recovered by the filter": ""}),
    _spearman("spearman/depth", "depth_normalised", "depth", "the position in the completion"),
    _spearman("spearman/kl", "kl", "KL", "KL(student ‖ teacher)"),
    _spearman("spearman/js", "js", "JS", "the Jensen-Shannon divergence"),
    _spearman("spearman/l2", "l2", "L2", "the L2 distance of the next-token distributions"),
    _spearman("spearman/cosine", "cosine", "cosine", "the cosine similarity of the next-token distributions"),
    Metric("teacher", "nodes/helpful", "Share of nodes with the verdict helpful.", "share", "higher",
        lambda r: r.rank.helpful, logged=False),
    Metric("teacher", "nodes/harmful", "Share of nodes with the verdict harmful.", "share", "lower",
        lambda r: r.rank.harmful, logged=False),
    Metric("teacher", "nodes/undecided", "Share of nodes with the verdict undecided.", "share", "lower",
        lambda r: r.rank.undecided, logged=False),
    Metric("teacher", "nodes/two_children", "Share of nodes with exactly two children, where the cosine is always ±1.",
        "share", "lower", lambda r: r.rank.two_children, logged=False),
    Metric("teacher", "nodes/questions", "Number of questions with at least one node.", "questions", "higher",
        lambda r: r.rank.n_questions),
    Metric("teacher", "nodes/count", "Number of nodes with a known alignment and a positive SR range.", "nodes",
        "higher", lambda r: r.rank.n_nodes, logged=False),
    *ALARM_METRICS,
    *TEACHER_INTERVALS,
    Metric("teacher", "alignment/histogram", "Distribution of the alignment over nodes.", "histogram"),
)  # fmt: skip

STUDENT_METRICS = (
    Metric("student", "pass_rate", "Share of the student's rollouts that are correct, averaged over questions.",
        "share", "higher", _question_mean("pass_rate"), half_width="pass_rate_half_width",
        charts={"Student pass rate": ""}, column="pass rate"),
    Metric("student", "entropy",
        "Entropy of the student's next-token distribution, averaged over the tokens of the analyzed rollouts.", "nats",
        "neither", _question_mean("student_entropy"), half_width="entropy_half_width",
        charts={"Student entropy": ""}),
    Metric("student", "questions", "Number of questions evaluated.", "questions", "neither",
        lambda analysis: analysis.questions.num_rows, charts={"Questions": ""}),
    Metric("student", "nodes",
        "Number of nodes (decisions): token positions with two or more continuations of known success rate.", "nodes",
        "higher", _nodes, charts={"Decisions": ""}),
    Metric("student", "rollouts", "Number of rollouts, initial and targeted.", "rollouts", "neither",
        _total("initial", "targeted"), charts={"Rollouts": "all"}),
    Metric("student", "truncated", "Number of rollouts that reached the token limit; they count as incorrect.",
        "rollouts", "lower", _total("truncated"), charts={"Rollouts": "truncated"}),
    Metric("student", "unknown", "Number of rollouts that the verifier could not grade.", "rollouts", "lower",
        _total("unknown"), charts={"Rollouts": "not graded"}),
    *STUDENT_INTERVALS,
    Metric("student", "top_nodes", "The nodes with the largest SR range, for all teachers.", "table"),
    Metric("student", "paths", "A few rollouts token by token, coloured by alignment.", "HTML"),
)  # fmt: skip

HEADLINE = ("alignment/mean", "alignment/weighted", "overlap_ratio", "pass_rate")
"""Stems of what to watch during a training."""


def _headline_first(registered: Iterable[Metric]) -> tuple[Metric, ...]:
    rank = {stem: number for number, stem in enumerate(HEADLINE)}
    return tuple(sorted(registered, key=lambda metric: rank.get(metric.stem, len(rank))))


LOGGED_BY_TRAINERS = (*GATE_METRICS, *SCHEDULE_METRICS, *MIX_METRICS)
METRICS = _headline_first((*TEACHER_METRICS, *STUDENT_METRICS, *EVALUATION_METRICS, *LOGGED_BY_TRAINERS))

HEADLINE_SECTION = (
    "What to watch",
    "Does the teacher's update point toward success, also where it matters most; does the student become similar to "
    "the teacher; does it solve more questions?",
)

PAGE_SECTIONS: Mapping[Level, tuple[str, str]] = {
    "teacher": ("Per teacher and objective", "Objectives without a teacher, such as GRPO, have the teacher `reward`."),
    "student": ("Student", "Independent of teachers and objectives."),
    "evaluation": ("Cost of evaluations", "Logged by `AlignmentCallback` and `opd-align watch`."),
    "gate": ("Gates", "Logged by the gated trainers at each logging step."),
    "schedule": ("Schedule", "Logged at each logging step of a training with `AlignmentSchedule`."),
    "mix": ("Mix of teachers", "Logged at each logging step of a training with `TeacherMix`."),
}
"""Headings and introductions of `metrics_markdown`."""

_TEACHER_STEMS = {metric.stem: metric for metric in TEACHER_METRICS}
_MIX_STEMS = {metric.stem: metric for metric in MIX_METRICS}
_FIXED_KEYS = {metric.key(): metric for metric in METRICS if metric.level not in ("teacher", "mix")}


class ParsedKey(NamedTuple):
    """A key of the registry.

    Args:
        metric: The metric.
        variant: `<teacher>/<objective>`, of a mix `<teacher>/<kind>`; None if the metric belongs to no teacher.
    """

    metric: Metric
    variant: str | None


def parse_key(key: str) -> ParsedKey | None:
    """The metric of a key, and its teacher and objective; None if the registry does not know it."""
    if key in _FIXED_KEYS:
        return ParsedKey(_FIXED_KEYS[key], None)
    root, *parts = key.split("/")
    if root == "mix" and len(parts) >= 3 and parts[-1] in _MIX_STEMS:
        return ParsedKey(_MIX_STEMS[parts[-1]], "/".join(parts[:-1]))
    for size in (2, 1):
        variant, metric = parts[:-size], _TEACHER_STEMS.get("/".join(parts[-size:]))
        if root == ROOT and metric is not None and len(variant) >= 2:
            return ParsedKey(metric, "/".join(variant))
    return None


def evaluation_metric(stem: str) -> Metric:
    """The metric that the callback logs about an evaluation; raises KeyError if it is not registered."""
    return _FIXED_KEYS[f"{ROOT}/evaluation/{stem}"]


def teacher_metric(stem: str) -> Metric:
    """The metric of a teacher with this stem; raises KeyError if it is not registered."""
    return _TEACHER_STEMS[stem]


def student_metric(stem: str) -> Metric:
    """The metric of the student with this stem; raises KeyError if it is not registered."""
    return _FIXED_KEYS[f"{ROOT}/student/{stem}"]


def analysis_metrics(
    analysis: Analysis, registered: Iterable[Metric], gate_weights: Mapping[tuple[str, str], Floats] | None = None
) -> dict[str, float]:
    """The given metrics of an analysis by key; NaN is unknown. Teachers without rows in the node table are absent.

    Args:
        analysis: The analysis.
        registered: The metrics.
        gate_weights: For each (teacher, objective), the weight that the trainer's gate gives to each of its rows in the
            node table. Without them, metrics that need a gate are absent.
    """
    computed = [metric for metric in registered if metric.compute is not None]
    values = {metric.key(): _value(metric, analysis) for metric in computed if metric.level == "student"}
    nodes = analysis.nodes
    for teacher, objective in pairs_of(analysis.children):
        rows = nodes.filter(pc.and_(pc.equal(nodes["teacher"], teacher), pc.equal(nodes["objective"], objective)))
        if not rows.num_rows:
            continue
        weight_N = (gate_weights or {}).get((teacher, objective))
        if weight_N is not None:
            rows = rows.append_column(metrics.GATE_WEIGHT, pa.array(weight_N))
        records = TeacherRecords(analysis, rows, teacher, objective)
        for metric in computed:
            known = not (metric.needs_teacher and teacher == REWARD) and not (metric.needs_gate and weight_N is None)
            if metric.level == "teacher" and known:
                values[metric.key(teacher, objective)] = _value(metric, records)
    return headline_first(values)


def headline_first(values: Mapping[str, float]) -> dict[str, float]:
    """The same values, those of `HEADLINE` first."""
    found = [parse_key(key) for key in values]
    first = [
        key
        for stem in HEADLINE
        for key, parsed in zip(values, found, strict=True)
        if parsed is not None and parsed.metric.stem == stem
    ]
    return {key: values[key] for key in dict.fromkeys((*first, *values))}


def recorded_metrics(
    analysis: Analysis, gate_weights: Mapping[tuple[str, str], Floats] | None = None
) -> dict[str, float]:
    """What `history.jsonl` has of one evaluation: what is logged, and the half-widths of its intervals."""
    half_widths = {metric.half_width for metric in METRICS if metric.logged}
    recorded = [metric for metric in METRICS if metric.logged or metric.stem in half_widths]
    return {key: float(value) for key, value in analysis_metrics(analysis, recorded, gate_weights).items()}


def for_trackers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers among recorded metrics that are logged."""
    finite = {key: value for key, value in values.items() if isinstance(value, int | float) and isfinite(value)}
    return {key: value for key, value in finite.items() if (found := parse_key(key)) is None or found.metric.logged}


def summary(analysis: Analysis) -> dict[str, float | None]:
    """The content of `summary.json`: all metrics of an analysis. Unknown is None, since JSON has no NaN."""
    return {key: value if isfinite(value) else None for key, value in analysis_metrics(analysis, METRICS).items()}


def metrics_markdown() -> str:
    """The registry as a Markdown page, for the documentation."""
    parts = [
        "# Metrics",
        "Generated from `opd_align/core/metric_registry.py`. The same keys are used in `summary.json`, in the "
        "trainer's log, in W&B (with the prefix `train/`) and in `history.jsonl`. Unknown values are `null` in JSON "
        "and are not logged otherwise. A node, also called a decision, is a token position with at least two "
        "continuations whose success rate (SR) is known; its SR range is the largest "
        "minus the smallest of these success rates.",
    ]
    headline = METRICS[: len(HEADLINE)]
    sections = [(HEADLINE_SECTION, headline)]
    for level, section in PAGE_SECTIONS.items():
        sections.append((section, tuple(m for m in METRICS if m.level == level and m not in headline)))
    for (title, text), shown in sections:
        lines = ["| key | meaning | unit | range | better | shown in |", "|---|---|---|---|---|---|"]
        for metric in shown:
            better = "–" if metric.direction == "neither" else metric.direction
            cells = metric.meaning, metric.unit, _range_text(metric), better, ", ".join(metric.shown_in)
            lines.append(f"| `{metric.key()}` | {' | '.join(cells)} |")
        parts += [f"## {title}", text, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def _range_text(metric: Metric) -> str:
    if metric.unit in ("histogram", "table", "HTML"):
        return "–"
    low, high = metric.range
    if low == -inf and high == inf:
        return "any"
    left = f"{low:g}".replace("-", "−")
    return f"≥ {left}" if high == inf else f"{left} to {high:g}"


def _value(metric: Metric, source: Any) -> float:
    return metric.compute(source) if metric.compute is not None else nan
