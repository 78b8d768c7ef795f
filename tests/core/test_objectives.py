"""Objectives against autograd of their losses, against slow loops over rollouts, and their properties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from math import comb
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from opd_align.backends.exact import ExactWorld
from opd_align.core.alignment import EstimatedPath, node_table
from opd_align.core.collect import collect
from opd_align.core.engine import Analysis, analyze
from opd_align.core.estimate import estimate
from opd_align.core.objectives import (
    GRPO,
    LOG_FLOOR,
    OBJECTIVES,
    DrGRPO,
    ForwardKL,
    GeneralisedJSD,
    Ideal,
    MiniLLM,
    Nodes,
    Objective,
    ReverseKL,
    SingleSample,
    sampled_update,
    unified_update,
)
from opd_align.runs.manifest import describe, settings_from_manifest
from opd_align.settings import Budget, Rules, Settings
from opd_align.study.config import read_config
from opd_align.types import REWARD, Floats, OpdAlignError, Question

BETAS = (0.0, 0.1, 0.5, 0.9, 1.0)
EVERY = (Ideal(), *OBJECTIVES, *(GeneralisedJSD(beta) for beta in BETAS if beta != 0.5))
DISTILLING = (ReverseKL(), ForwardKL(), *(GeneralisedJSD(beta) for beta in BETAS))


def log_softmax(logits: Floats) -> Floats:
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def make_nodes(log_p: Any, log_t: Any = None, **columns: Any) -> Nodes:
    """Nodes with zero columns and a teacher equal to the student, unless given."""
    log_p = np.asarray(log_p, float)
    zero = np.zeros_like(log_p)
    names = ("q", "natural", "natural_wins", "natural_inverse_length", "natural_wins_inverse_length")
    given_or_zero = {name: columns.get(name, zero) for name in names}
    return Nodes(
        log_p,
        log_p if log_t is None else np.asarray(log_t, float),
        **given_or_zero,
        mean_reward=columns.get("mean_reward", 0.0),
        to_go=columns.get("to_go"),
    )


def random_nodes(seed: int, n: int, k: int, *, spread: float = 2.0) -> Nodes:
    """Nodes with every column filled: up to 20 rollouts per child, some children without any."""
    rng = np.random.default_rng(seed)
    natural = rng.integers(0, 20, (n, k)) * (rng.random((n, k)) < 0.8)
    wins = rng.binomial(natural, 0.4)
    return Nodes(
        log_softmax(rng.normal(0, spread, (n, k))),
        log_softmax(rng.normal(0, spread, (n, k))),
        q=rng.random((n, k)),
        natural=natural.astype(float),
        natural_wins=wins.astype(float),
        natural_inverse_length=natural / 30.0,
        natural_wins_inverse_length=wins / 25.0,
        mean_reward=0.4,
        to_go=rng.normal(0, 5, (n, k)),
    )


# -- autograd of the loss -------------------------------------------------------------------------------------


def kl(log_a: torch.Tensor, log_b: torch.Tensor) -> torch.Tensor:
    return (log_a.exp() * (log_a - log_b)).sum()


def jsd(log_p: torch.Tensor, log_t: torch.Tensor, beta: float) -> torch.Tensor:
    """TRL's loss: KL(teacher ‖ student) at β=0, KL(student ‖ teacher) at β=1, teacher weight β in the mixture."""
    if beta == 0:
        return kl(log_t, log_p)
    if beta == 1:
        return kl(log_p, log_t)
    log_m = (beta * log_t.exp() + (1 - beta) * log_p.exp()).log()
    return beta * kl(log_t, log_m) + (1 - beta) * kl(log_p, log_m)


GAINS: dict[str, tuple[Objective, Any]] = {
    "ideal": (Ideal(), lambda log_p, log_t, q: (log_p.exp() * q).sum()),
    "reverse_kl": (ReverseKL(), lambda log_p, log_t, q: -kl(log_p, log_t)),
    "forward_kl": (ForwardKL(), lambda log_p, log_t, q: -kl(log_t, log_p)),
    **{
        f"jsd_{beta:g}": (GeneralisedJSD(beta), lambda log_p, log_t, q, beta=beta: -jsd(log_p, log_t, beta))
        for beta in BETAS
    },
}


@pytest.mark.parametrize("name", GAINS)
@pytest.mark.parametrize("k", [1, 2, 5])
def test_update_is_the_gradient_of_the_objective(name: str, k: int) -> None:
    objective, gain = GAINS[name]
    nodes = random_nodes(seed=k, n=20, k=k)
    update = objective.update(nodes)
    for node in range(20):
        # A constant shift of the logits is the same student and must not change the gradient.
        logits = torch.tensor(nodes.log_p[node] + node, requires_grad=True)
        gain(logits.log_softmax(-1), torch.tensor(nodes.log_t[node]), torch.tensor(nodes.q[node])).backward()
        np.testing.assert_allclose(update[node], logits.grad, rtol=1e-9, atol=1e-14)
    assert k == 1 or np.abs(update).max() > 1e-3


def test_jsd_has_beta_in_its_name_and_checks_its_range() -> None:
    assert [GeneralisedJSD(beta).name for beta in (0.0, 0.25, 1.0)] == ["jsd_0", "jsd_0.25", "jsd_1"]
    for beta in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="beta"):
            GeneralisedJSD(beta)


@pytest.mark.parametrize("seed", range(5))
def test_minillm_is_the_gradient_over_a_whole_tree(seed: int) -> None:
    """Two steps: each first token a leads to its own node with 1, 2 or 3 next tokens b."""
    rng = np.random.default_rng(seed)
    widths = (1, 2, 3, 2)
    first = torch.tensor(rng.normal(0, 1.5, len(widths)), requires_grad=True)
    second = [torch.tensor(rng.normal(0, 1.5, width), requires_grad=True) for width in widths]
    log_t_first = torch.tensor(log_softmax(rng.normal(0, 1.5, len(widths))))
    log_t_second = [torch.tensor(log_softmax(rng.normal(0, 1.5, width))) for width in widths]

    log_p_first = first.log_softmax(-1)
    expected_ratio, to_go = torch.zeros((), dtype=torch.float64), []
    for a, width in enumerate(widths):
        log_p_second = second[a].log_softmax(-1)
        future = 0.0
        for b in range(width):
            ratio = log_t_first[a] - log_p_first[a] + log_t_second[a][b] - log_p_second[b]
            expected_ratio = expected_ratio + (log_p_first[a] + log_p_second[b]).exp() * ratio
            future += (log_p_second[b].exp() * ratio).item()
        to_go.append(future)
    expected_ratio.backward()

    # Nothing follows the second token, so its reward-to-go is its own log-ratio.
    at_first = make_nodes([log_p_first.tolist()], to_go=np.array([to_go]))
    np.testing.assert_allclose(MiniLLM().update(at_first)[0], first.grad, rtol=1e-9, atol=1e-12)
    for a in range(len(widths)):
        log_p = second[a].detach().log_softmax(-1).numpy()[None]
        at_second = make_nodes(log_p, to_go=log_t_second[a].numpy()[None] - log_p)
        reached = log_p_first[a].exp().item()
        np.testing.assert_allclose(reached * MiniLLM().update(at_second)[0], second[a].grad, rtol=1e-9, atol=1e-12)
    assert np.abs(first.grad.numpy()).max() > 1e-2


def test_minillm_without_reward_to_go_raises() -> None:
    with pytest.raises(ValueError, match="reward-to-go"):
        MiniLLM().update(make_nodes([[-1.0, -0.5]]))


# -- finite samples: slow loops -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chosen:
    """One rollout at the node: sampled token, outcome and length."""

    token: int
    win: int
    length: int


def rollouts_at(seed: int, k: int, n: int) -> list[Chosen]:
    rng = np.random.default_rng(seed)
    return [Chosen(*(int(x) for x in (rng.integers(k), rng.integers(2), rng.integers(3, 40)))) for _ in range(n)]


def counted(nodes: Nodes, rollouts: list[Chosen], mean_reward: float) -> Nodes:
    """One node with the counts of these rollouts."""
    columns = {
        name: np.zeros_like(nodes.log_p)
        for name in ("natural", "natural_wins", "natural_inverse_length", "natural_wins_inverse_length")
    }
    for rollout in rollouts:
        columns["natural"][0, rollout.token] += 1
        columns["natural_wins"][0, rollout.token] += rollout.win
        columns["natural_inverse_length"][0, rollout.token] += 1 / rollout.length
        columns["natural_wins_inverse_length"][0, rollout.token] += rollout.win / rollout.length
    return replace(nodes, **columns, mean_reward=mean_reward)


WEIGHTS: list[tuple[Objective, Any]] = [
    (SingleSample(), lambda rollout, log_ratio, mean: log_ratio - 1),
    (DrGRPO(), lambda rollout, log_ratio, mean: rollout.win - mean),
    (GRPO(), lambda rollout, log_ratio, mean: (rollout.win - mean) / rollout.length),
]


@pytest.mark.parametrize(("objective", "weight"), WEIGHTS, ids=lambda value: getattr(value, "name", ""))
@pytest.mark.parametrize("k", [1, 2, 5])
def test_sampled_updates_agree_with_a_loop_over_rollouts(objective: Objective, weight: Any, k: int) -> None:
    nodes, rollouts = random_nodes(seed=k, n=1, k=k), rollouts_at(seed=k, k=k, n=23)
    expected = np.zeros(k)
    for rollout in rollouts:
        log_ratio = nodes.log_t[0, rollout.token] - nodes.log_p[0, rollout.token]
        for child in range(k):
            score = (child == rollout.token) - nodes.p[0, child]
            expected[child] += weight(rollout, log_ratio, 0.3) * score / len(rollouts)
    update = objective.update(counted(nodes, rollouts, mean_reward=0.3))
    np.testing.assert_allclose(update[0], expected, rtol=1e-10, atol=1e-14)
    assert k == 1 or np.abs(expected).max() > 1e-4


def test_grpo_with_equal_lengths_is_dr_grpo_over_the_length() -> None:
    nodes = random_nodes(seed=0, n=1, k=4)
    same_length = [replace(rollout, length=17) for rollout in rollouts_at(seed=3, k=4, n=30)]
    shared = counted(nodes, same_length, mean_reward=0.45)
    np.testing.assert_allclose(17 * GRPO().update(shared), DrGRPO().update(shared), atol=1e-14)
    assert DrGRPO().update(shared).any()


@pytest.mark.parametrize("objective", [SingleSample(), DrGRPO(), GRPO()])
def test_no_rollouts_give_a_zero_update(objective: Objective) -> None:
    assert not objective.update(make_nodes([[-1.0, -0.5, -2.0]], [[-0.5, -1.0, -2.0]], mean_reward=0.5)).any()


# -- finite samples: their expectation ------------------------------------------------------------------------


def multinomial_counts(n: int, p: Floats) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every assignment of n rollouts to the children, with its probability."""
    if len(p) == 1:
        yield (n,), float(p[0] ** n)
        return
    for head in range(n + 1):
        for tail, weight in multinomial_counts(n - head, p[1:]):
            yield (head, *tail), comb(n, head) * float(p[0] ** head) * weight


@pytest.mark.parametrize("n", [1, 2, 6])
@pytest.mark.parametrize("k", [2, 3])
def test_single_sample_is_reverse_kl_in_expectation(n: int, k: int) -> None:
    nodes = random_nodes(seed=10 * n + k, n=1, k=k, spread=1.0)
    cases = list(multinomial_counts(n, nodes.p[0]))
    weight_E = np.array([weight for _, weight in cases])
    assert weight_E.sum() == pytest.approx(1)
    rows = [replace(nodes, natural=np.array([counts], float)) for counts, _ in cases]
    expected = sum(weight * SingleSample().update(row)[0] for weight, row in zip(weight_E, rows, strict=True))
    np.testing.assert_allclose(expected, ReverseKL().update(nodes)[0], atol=1e-12)


@pytest.mark.parametrize("mean_reward", [0.0, 0.35])
def test_dr_grpo_is_the_ideal_in_expectation(mean_reward: float) -> None:
    """Enumerates child and outcome of 3 rollouts; any fixed baseline gives the ideal update."""
    k, n, nodes = 3, 3, random_nodes(seed=5, n=1, k=3, spread=1.0)
    expected, total = np.zeros(k), 0.0
    for outcome in product(product(range(k), (0, 1)), repeat=n):
        probability = 1.0
        for token, win in outcome:
            q = nodes.q[0, token]
            probability *= nodes.p[0, token] * (q if win else 1 - q)
        seen = counted(nodes, [Chosen(token, win, 10) for token, win in outcome], mean_reward)
        expected += probability * DrGRPO().update(seen)[0]
        total += probability
    assert total == pytest.approx(1)
    np.testing.assert_allclose(expected, Ideal().update(nodes)[0], atol=1e-12)


def test_grpo_differs_in_expectation_if_correct_rollouts_are_longer() -> None:
    """Equally good children, but correct rollouts of the first are ten times as long: GRPO prefers the second."""
    nodes = make_nodes(np.log([[0.5, 0.5]]), q=np.array([[0.5, 0.5]]))
    half = [Chosen(0, 1, 100), Chosen(0, 0, 10), Chosen(1, 1, 10), Chosen(1, 0, 10)]
    seen = counted(nodes, half, mean_reward=0.5)
    np.testing.assert_allclose(DrGRPO().update(seen), 0, atol=1e-15)
    assert GRPO().update(seen)[0, 0] < -1e-3


def test_sampled_updates_converge_to_their_expectation() -> None:
    nodes = random_nodes(seed=8, n=1, k=4, spread=1.0)
    rng = np.random.default_rng(0)
    n = 400_000
    natural = rng.multinomial(n, nodes.p[0])[None].astype(float)
    wins = rng.binomial(natural.astype(int), nodes.q).astype(float)
    mean = float(wins.sum() / n)
    seen = replace(
        nodes,
        natural=natural,
        natural_wins=wins,
        natural_inverse_length=natural / 10,
        natural_wins_inverse_length=wins / 10,
        mean_reward=mean,
    )
    # The standard error of each component is at most √(E w² / n).
    np.testing.assert_allclose(SingleSample().update(seen), ReverseKL().update(nodes), atol=5 * 4 / n**0.5)
    np.testing.assert_allclose(DrGRPO().update(seen), Ideal().update(nodes), atol=5 * 0.5 / n**0.5)
    np.testing.assert_allclose(10 * GRPO().update(seen), Ideal().update(nodes), atol=5 * 0.5 / n**0.5)
    assert np.abs(Ideal().update(nodes)).max() > 0.02


# -- properties -----------------------------------------------------------------------------------------------

shapes = st.tuples(st.integers(1, 4), st.integers(1, 6))


def arrays(shape: tuple[int, int], low: float, high: float) -> st.SearchStrategy[Floats]:
    return hnp.arrays(np.float64, shape, elements=st.floats(low, high, allow_subnormal=False))


@st.composite
def any_nodes(draw: st.DrawFn, low: float = -10.0) -> Nodes:
    shape = draw(shapes)
    natural = np.floor(draw(arrays(shape, 0, 30)))
    wins = np.floor(natural * draw(arrays(shape, 0, 1)))
    shorter = draw(arrays(shape, 0.001, 1))
    return Nodes(
        np.maximum(log_softmax(draw(arrays(shape, low, 0))), LOG_FLOOR),
        np.maximum(log_softmax(draw(arrays(shape, low, 0))), LOG_FLOOR),
        q=draw(arrays(shape, 0, 1)),
        natural=natural,
        natural_wins=wins,
        natural_inverse_length=natural * shorter,
        natural_wins_inverse_length=wins * shorter,
        mean_reward=draw(st.floats(0, 1)),
        to_go=draw(arrays(shape, -100, 100)),
    )


properties = settings(deadline=None, max_examples=60)


@properties
@given(nodes=any_nodes(low=-200.0))
def test_updates_sum_to_zero_and_are_finite_down_to_the_floor(nodes: Nodes) -> None:
    for objective in EVERY:
        update = objective.update(nodes)
        assert update.shape == nodes.log_p.shape, objective
        assert np.isfinite(update).all(), objective
        # The terms that cancel have the size of f (at most 100 here), not of the update.
        assert np.abs(update.sum(-1)).max() <= 1e-11, objective


@pytest.mark.parametrize("objective", EVERY, ids=lambda objective: objective.name)
def test_a_zero_probability_token_gives_a_large_finite_update(objective: Objective) -> None:
    log_p, log_t = np.array([[0.0, LOG_FLOOR]]), np.array([[LOG_FLOOR, 0.0]])
    natural = np.array([[9.0, 1.0]])
    q = np.array([[0.0, 1.0]])
    nodes = make_nodes(log_p, log_t, q=q, natural=natural, natural_wins=natural * q, to_go=log_t - log_p)
    assert np.isfinite(objective.update(nodes)).all()


def test_forward_kl_raises_tokens_that_reverse_kl_cannot() -> None:
    """The student has probability zero where the teacher has one: mode covering versus mode seeking."""
    nodes = make_nodes([[0.0, LOG_FLOOR]], [[LOG_FLOOR, 0.0]])
    np.testing.assert_allclose(ForwardKL().update(nodes), [[-1.0, 1.0]], atol=1e-15)
    assert 0 < ReverseKL().update(nodes)[0, 1] < 1e-18


@properties
@given(nodes=any_nodes())
def test_a_single_child_has_a_zero_update(nodes: Nodes) -> None:
    only = {name: value[:, :1] if isinstance(value, np.ndarray) else value for name, value in vars(nodes).items()}
    certain = np.zeros((len(nodes.log_p), 1))
    for objective in EVERY:
        update = objective.update(Nodes(**only | {"log_p": certain, "log_t": certain}))
        assert not update.any(), objective


@properties
@given(nodes=any_nodes(low=-200.0))
def test_a_teacher_equal_to_the_student_gives_a_zero_update(nodes: Nodes) -> None:
    for objective in DISTILLING:
        update = objective.update(replace(nodes, log_t=nodes.log_p))
        # The mixture of JSD is a rounded sum of two parts; the others are exactly zero.
        mixes = isinstance(objective, GeneralisedJSD) and objective.beta not in (0, 1)
        assert np.abs(update).max() <= (1e-13 if mixes else 0.0), objective


@properties
@given(nodes=any_nodes(), shift=st.floats(-100, 100))
def test_a_constant_added_to_f_changes_nothing(nodes: Nodes, shift: float) -> None:
    for objective, shifted in (
        (Ideal(), replace(nodes, q=nodes.q + shift)),
        (ReverseKL(), replace(nodes, log_t=nodes.log_t + shift)),
        (MiniLLM(), replace(nodes, to_go=nodes.to_go + shift)),
    ):
        np.testing.assert_allclose(objective.update(shifted), objective.update(nodes), atol=1e-10)


@properties
@given(nodes=any_nodes(), scale=st.floats(0.01, 100))
def test_a_scaled_f_scales_the_update(nodes: Nodes, scale: float) -> None:
    for objective, scaled in (
        (Ideal(), replace(nodes, q=nodes.q * scale)),
        (MiniLLM(), replace(nodes, to_go=nodes.to_go * scale)),
    ):
        np.testing.assert_allclose(objective.update(scaled), scale * objective.update(nodes), rtol=1e-8, atol=1e-9)


@properties
@given(nodes=any_nodes(), times=st.integers(1, 20))
def test_repeating_all_rollouts_changes_nothing(nodes: Nodes, times: int) -> None:
    names = ("natural", "natural_wins", "natural_inverse_length", "natural_wins_inverse_length")
    repeated = replace(nodes, **{name: times * getattr(nodes, name) for name in names})
    for objective in (SingleSample(), DrGRPO(), GRPO()):
        np.testing.assert_allclose(objective.update(repeated), objective.update(nodes), rtol=1e-9, atol=1e-12)


@properties
@given(nodes=any_nodes(), data=st.data())
def test_updates_do_not_depend_on_child_order_or_other_nodes(nodes: Nodes, data: st.DataObject) -> None:
    n, k = nodes.log_p.shape
    order = data.draw(st.permutations(range(k)))
    node = data.draw(st.integers(0, n - 1))

    def seen(value: Any) -> Any:
        return value[node : node + 1, order] if isinstance(value, np.ndarray) else value

    alone = Nodes(**{name: seen(value) for name, value in vars(nodes).items()})
    for objective in EVERY:
        expected = seen(objective.update(nodes))
        np.testing.assert_allclose(objective.update(alone), expected, rtol=1e-9, atol=1e-11, err_msg=objective.name)


@properties
@given(nodes=any_nodes())
def test_following_the_ideal_never_lowers_success(nodes: Nodes) -> None:
    update = unified_update(nodes.p, nodes.q)
    stepped = np.exp(log_softmax(nodes.log_p + 0.1 * update))
    assert ((stepped * nodes.q).sum(-1) >= (nodes.p * nodes.q).sum(-1) - 1e-12).all()


def test_sampled_update_with_the_expected_counts_is_the_unified_one() -> None:
    nodes = random_nodes(seed=2, n=6, k=4)
    count = 1000 * nodes.p
    np.testing.assert_allclose(sampled_update(nodes.p, count, count * nodes.q), unified_update(nodes.p, nodes.q))


def test_names_are_distinct_and_signals_known() -> None:
    names = [objective.name for objective in (Ideal(), *OBJECTIVES)]
    assert len(set(names)) == len(names) >= 8
    needs = {objective.name: objective.signal for objective in (Ideal(), *OBJECTIVES)}
    assert {name for name, signal in needs.items() if signal == "future"} == {"minillm"}
    assert {name for name, signal in needs.items() if signal == "reward"} == {"ideal", "dr_grpo", "grpo"}


# -- custom objectives, end to end ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Backwards:
    """Lowers the success probability."""

    name: str = "backwards"
    signal: Literal["teacher", "future", "reward"] = "reward"

    def update(self, nodes: Nodes) -> Floats:
        return -unified_update(nodes.p, nodes.q)


@dataclass(frozen=True)
class RecordingObjective:
    """Wraps another objective under another name and records the nodes it receives."""

    of: Objective
    name: str = "spy"
    received: list[Nodes] = field(default_factory=list)

    @property
    def signal(self) -> Literal["teacher", "future", "reward"]:
        return self.of.signal

    def update(self, nodes: Nodes) -> Floats:
        self.received.append(nodes)
        return self.of.update(nodes)


@dataclass(frozen=True)
class WrongShape:
    """Returns an update with a missing axis."""

    name: str = "misshapen"
    signal: Literal["teacher", "future", "reward"] = "teacher"

    def update(self, nodes: Nodes) -> Floats:
        return nodes.q.sum(-1)


@pytest.fixture(scope="module")
def world() -> ExactWorld:
    return ExactWorld.random(3, length=20, vocabulary=6, stakes=4.0, forks=0.6)


BUDGET = Budget(initial=50, n_min=10)
RULES = Rules(n_sig=5)


def analysed(
    world: ExactWorld, *objectives: Objective, restrict: Literal["renormalise", "full"] = "renormalise"
) -> Analysis:
    teachers = [world.tilted_teacher(), world.style_teacher()]
    chosen = Settings(objectives=objectives, budget=BUDGET, rules=replace(RULES, restrict=restrict))
    return analyze(world, teachers, [Question("q")], world, settings=chosen)


def columns(analysis: Analysis, objective: str) -> dict[str, list[Any]]:
    chosen = [row for row in analysis.nodes.to_pylist() if row["objective"] == objective]
    return {name: [row[name] for row in chosen] for name in analysis.nodes.column_names}


@pytest.mark.parametrize("restrict", ["renormalise", "full"])
@pytest.mark.parametrize("objective", [ReverseKL(), MiniLLM(), DrGRPO()], ids=lambda objective: objective.name)
def test_a_custom_objective_has_the_same_rows_as_a_built_in_one(
    world: ExactWorld, objective: Objective, restrict: Literal["renormalise", "full"]
) -> None:
    spy = RecordingObjective(objective)
    analysis = analysed(world, objective, spy, restrict=restrict)
    built_in, own = columns(analysis, objective.name), columns(analysis, "spy")
    assert len(own["alignment"]) > 20
    for name in ("teacher", "depth", "path", "alignment", "update_norm", "sr_range", "children"):
        np.testing.assert_array_equal(own[name], built_in[name])
    assert set(own["teacher"]) == ({REWARD} if objective.signal == "reward" else {"tilted", "style"})
    assert max(own["update_norm"]) > 1e-3

    pass_rate = analysis.questions["pass_rate"][0].as_py()
    assert spy.received
    for nodes in spy.received:
        np.testing.assert_allclose(nodes.p.sum(-1), 1)
        np.testing.assert_allclose(nodes.t.sum(-1), 1)
        assert ((nodes.q >= 0) & (nodes.q <= 1)).all()
        assert ((nodes.natural_wins >= 0) & (nodes.natural_wins <= nodes.natural)).all()
        assert (nodes.natural_inverse_length <= nodes.natural).all()
        assert nodes.natural.sum(-1).max() <= BUDGET.initial
        assert nodes.mean_reward == pass_rate
        assert (nodes.to_go is None) == (objective.signal != "future")


def test_a_custom_objective_against_success_is_harmful_everywhere(world: ExactWorld) -> None:
    analysis = analysed(world, Backwards(), Ideal())
    own, ideal = columns(analysis, "backwards"), columns(analysis, "ideal")
    matters = np.array(own["sr_range"]) > 0
    moves = np.array(own["update_norm"]) > 1e-6
    assert (matters & moves).sum() > 10
    sure = matters & moves & (np.array(ideal["p_positive"]) > 0.99)
    assert sure.sum() > 10
    assert (np.array(own["alignment"])[sure] < -0.6).all()
    np.testing.assert_allclose(np.array(own["alignment"])[matters], -np.array(ideal["alignment"])[matters], atol=1e-9)


def test_an_update_with_a_wrong_shape_raises(world: ExactWorld) -> None:
    chosen = Settings(objectives=[WrongShape()], budget=BUDGET, rules=RULES)
    evidence = collect(world, [world.tilted_teacher()], Question("q"), world, settings=chosen)
    found = estimate(evidence.tree, evidence.paths)
    paths = [
        EstimatedPath(
            "q", i, right, scores, q, evidence.tree.counts_along(scores.completion_T), evidence.pass_rate, to_go=to_go
        )
        for i, (right, scores, q, to_go) in enumerate(
            zip(evidence.correct, evidence.paths, found, evidence.to_go, strict=True)
        )
    ]
    assert node_table(paths, [Backwards()], RULES).num_rows > 10
    with pytest.raises(ValueError, match="misshapen"):
        node_table(paths, [WrongShape()], RULES)


def test_two_objectives_with_the_same_name_raise(world: ExactWorld) -> None:
    with pytest.raises(OpdAlignError, match="reverse_kl"):
        analysed(world, ReverseKL(), RecordingObjective(ForwardKL(), name="reverse_kl"))


def test_an_objective_added_to_the_list_can_be_used_by_name(world: ExactWorld) -> None:
    """`OBJECTIVES` is the only list: configuration files and run manifests read it."""
    chosen = ["objectives=[reverse_kl, backwards]"]
    with pytest.raises(OpdAlignError, match="backwards"):
        read_config(None, chosen).settings()
    OBJECTIVES.append(Backwards())
    try:
        configured = replace(read_config(None, chosen).settings(), budget=BUDGET, rules=RULES)
        teachers, questions = [world.tilted_teacher()], [Question("q")]
        analysis = analyze(world, teachers, questions, world, settings=configured)
        assert set(analysis.nodes["objective"].to_pylist()) == {"reverse_kl", "backwards"}
        manifest = describe(world, teachers, questions, world, configured)
        assert settings_from_manifest(manifest).objectives == configured.objectives == (ReverseKL(), Backwards())
    finally:
        OBJECTIVES.pop()
