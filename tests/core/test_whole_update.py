"""First-order gain and cosine of the whole update, against exact worlds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from opd_align import (
    Budget,
    ExactFamily,
    ExactWorld,
    ForwardKL,
    Ideal,
    OpdAlignError,
    ReverseKL,
    Rules,
    SampleRequest,
    Settings,
    analyze,
)
from opd_align.backends.exact import ExactTeacher
from opd_align.core.alignment import SCHEMA, EstimatedPath, child_table
from opd_align.core.engine import Analysis, dictionary_encoded
from opd_align.core.metric_registry import summary
from opd_align.core.path_estimate import PathEstimate
from opd_align.core.tree import PathCounts
from opd_align.core.whole_update import whole_update
from opd_align.types import ScoreRequest

STEP = 1e-4


def exact_derivative(world: ExactWorld, teacher: ExactTeacher) -> float:
    """Derivative of the pass rate at the start of p^(1 − ε) t^ε, normalised, by central differences."""
    values = []
    for step in (STEP, -STEP):
        mixed = np.where(np.isneginf(world.log_p_LSV), -np.inf, 0.0)
        finite = np.isfinite(world.log_p_LSV)
        mixed[finite] = (1 - step) * world.log_p_LSV[finite] + step * teacher.log_t_LSV[finite]
        mixed -= np.logaddexp.reduce(mixed, axis=-1, keepdims=True)
        moved = replace(world, log_p_LSV=mixed)
        values.append(moved.value_LS[0, moved.start])
    return float((values[0] - values[1]) / (2 * STEP))


TEACHERS = {
    "good": lambda world: world.tilted_teacher("good", strength=6.0, noise=0.3, seed=1),
    "bad": lambda world: world.adversarial_teacher("bad", strength=6.0, noise=0.3, seed=2),
    "style": lambda world: world.style_teacher(),
}


@pytest.fixture(scope="module")
def family() -> ExactFamily:
    return ExactFamily.random(11, 6, length=24, vocabulary=8, stakes=4.0, forks=0.6)


@pytest.fixture(scope="module")
def analysis(family: ExactFamily) -> Analysis:
    budget = Budget(initial=100, targeted=1500, allocation="adaptive", rounds=2)
    teachers = [family.teacher(name, make) for name, make in TEACHERS.items()]
    settings = Settings((ReverseKL(), ForwardKL(), Ideal()), budget)
    return analyze(family, teachers, family.questions, family, settings=settings)


def exact_analysis(family: ExactFamily, paths_per_outcome: int) -> Analysis:
    """Every token of the vocabulary with its exact success probability, along rollouts of each world.

    As many are correct as are incorrect, whatever the pass rate.
    """
    children, records = [], []
    for question in family.questions:
        world = family.worlds[question.id]
        sampled = world.sample([SampleRequest(question, np.empty(0, np.uint32), 20 * paths_per_outcome)])
        correct_R = world.grade(question, sampled) > 0
        chosen = [row for kind in (True, False) for row in np.flatnonzero(correct_R == kind)[:paths_per_outcome]]
        nothing, teachers = np.empty(0, np.int64), [make(world) for make in TEACHERS.values()]
        paths = []
        for row in chosen:
            request = ScoreRequest(question, sampled.completion(row), nothing, nothing.astype(np.uint32), 1e-30)
            scores = world.score(request, teachers)
            q_C = world.exact_q_along(scores)
            many_C, zero_C, zero_T = np.full(len(q_C), 10**6), np.zeros(len(q_C)), np.zeros(len(scores))
            none = dict.fromkeys(("own_var_C", "load_C", "sibling_sd_C"), zero_C)
            none |= dict.fromkeys(("path_var_T", "value_T", "tail_mass_T"), zero_T)
            sure = {"visits_C": many_C, "effective_C": many_C.astype(float), "path_q_T": q_C[scores.on_path_C]}
            estimate = PathEstimate(q_C=q_C, offsets=scores.offsets, **none, **sure)
            counts = PathCounts(scores.offsets, zero_T.astype(np.int64), scores.token_C, *[many_C] * 6, *[zero_C] * 2)
            correct = bool(correct_R[row])
            paths.append(EstimatedPath(question.id, row, correct, scores, estimate, counts, 0.5, (estimate, estimate)))
        children.append(child_table(paths, list(TEACHERS), (ReverseKL(),), Rules(tau=1e-12)))
        counts = dict.fromkeys(("correct_paths", "incorrect_paths"), paths_per_outcome)
        records.append({"question": question.id, "pass_rate": world.value_LS[0, world.start], **counts})
    table = dictionary_encoded(pa.concat_tables(children))
    return Analysis(SCHEMA.empty_table(), pa.Table.from_pylist(records), Settings(), table)


def test_first_order_gain_is_the_derivative_of_the_exact_pass_rate() -> None:
    made = ExactFamily.random(11, 8, length=10, vocabulary=6, states=20, stakes=4.0, forks=0.6).worlds
    uneven = ExactFamily({name: made[name] for name in ("world-13", "world-15", "world-16", "world-18")})
    analysis = exact_analysis(uneven, 60)
    for name, make in TEACHERS.items():
        exact_Q = [exact_derivative(world, make(world)) for world in uneven.worlds.values()]
        gain = whole_update(analysis, name, "reverse_kl").gain
        assert gain.mean == pytest.approx(np.mean(exact_Q), rel=0.05, abs=0.003), name
        assert gain.n == 4


def test_paths_count_by_the_pass_rate_not_by_their_number(analysis: Analysis) -> None:
    """The same children with every question solved nearly always: incorrect paths hardly count."""
    column = analysis.questions.schema.get_field_index("pass_rate")
    solved = analysis.questions.set_column(column, "pass_rate", [np.full(analysis.questions.num_rows, 0.999)])
    failed = analysis.questions.set_column(column, "pass_rate", [np.full(analysis.questions.num_rows, 0.001)])
    gains = [
        whole_update(replace(analysis, questions=questions), "good", "reverse_kl").gain.mean
        for questions in (solved, analysis.questions, failed)
    ]
    assert min(gains[0], gains[2]) < gains[1] < max(gains[0], gains[2])


def test_cosine_of_the_ideal_update_with_itself_is_one(analysis: Analysis) -> None:
    ideal = whole_update(analysis, "reward", "ideal")
    assert ideal.cosine.mean == pytest.approx(1.0)
    assert ideal.cosine.half_width == pytest.approx(0.0, abs=1e-6)
    assert ideal.gain.mean > 0


def test_teachers_are_ordered_by_what_they_prefer(analysis: Analysis) -> None:
    cosine = {name: whole_update(analysis, name, "reverse_kl").cosine for name in TEACHERS}
    assert cosine["good"].mean - cosine["good"].half_width > 0 > cosine["bad"].mean + cosine["bad"].half_width
    assert abs(cosine["style"].mean) < 0.3 < min(cosine["good"].mean, -cosine["bad"].mean)


def test_summary_has_both_quantities_for_every_teacher_and_objective(analysis: Analysis) -> None:
    values = summary(analysis)
    for teacher, objective in (("good", "reverse_kl"), ("bad", "forward_kl"), ("reward", "ideal")):
        found = whole_update(analysis, teacher, objective)
        assert values[f"opd_align/{teacher}/{objective}/update/cosine"] == found.cosine.mean
        assert values[f"opd_align/{teacher}/{objective}/update/gain"] == found.gain.mean
        assert values[f"opd_align/{teacher}/{objective}/update/gain_half_width"] == found.gain.half_width


def test_forward_kl_gains_the_teachers_advantage(analysis: Analysis) -> None:
    """g = t − p, so Σ Q g is the advantage: both have the same sign."""
    gain = whole_update(analysis, "good", "forward_kl").gain
    assert gain.mean > 0 > whole_update(analysis, "bad", "forward_kl").gain.mean


def test_unknown_pairs_are_named(analysis: Analysis) -> None:
    with pytest.raises(OpdAlignError, match="no 'nobody' with 'reverse_kl'; available: good with reverse_kl"):
        whole_update(analysis, "nobody", "reverse_kl")
