"""Would other uses of the same number of rollouts give better estimates? Three ideas on random exact worlds.

    python benchmarks/ideas.py [--quick] [--first SEED] [--worlds N] [--json FILE]

- Coupled siblings: targeted rollouts with the same index use the same Gumbel noise at the same depth, so that their
  errors cancel in differences. `coupled_node` shares it within a node, `coupled_depth` in the whole question.
  States of these worlds move in parallel, the best case for coupling; in `coupled_lost` each rollout leaves the
  common noise with a probability of 2 % per token.
- Stopping at decided signs: adaptive rounds whose nodes count only while the sign of the alignment is open.
  `stop_decided` leaves out nodes with a verdict, `top_two` weighs them by the probability of the wrong sign,
  `near_verdict` prefers those that a few rollouts would decide.
- A predictor of success: `prior_*` shifts the prior mean of each exit by the predicted difference from its siblings,
  with a slope fitted to the question's rollouts. `control_*` subtracts the predicted gains of a rollout's
  own tokens from its outcome, which needs the prediction for every possible next token of every rollout. The number is
  the correlation of the predictor with the success probability over the student's states; its error varies slowly with
  state and position, or is independent everywhere (`rough`).

Each is compared with the present estimator after `adaptive` allocation, in the same world and at equal rollouts;
intervals are 95 % over worlds, and the seeds are used nowhere else. RMSE is that of Q_k − Q_j over all pairs of tokens
at a node. "RMSE, 0.9 ×" compares with a baseline that has 1 / 0.9 of the rollouts: above 0, a tenth of them is saved.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
from _fixed_truth import counts, kept_children, node_correlation, on_grid, ratios, true_grid
from _worlds import FAMILIES, RULES, explore, settings, teachers_of, world_of
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.ndimage import gaussian_filter
from scipy.special import ndtr
from scipy.stats import t as student_t

from opd_align.backends.exact import ExactWorld, _uniform
from opd_align.backends.exact_random import EOS
from opd_align.core import allocation
from opd_align.core.alignment import EstimatedPath, node_table
from opd_align.core.collect import Evidence
from opd_align.core.estimate import _Backup, _Segment, _Siblings, estimate
from opd_align.core.objectives import unified_update
from opd_align.core.path_estimate import PathEstimate
from opd_align.core.prior import ExitSamples
from opd_align.core.tree import child_keys, find_sorted
from opd_align.settings import Budget
from opd_align.types import Finish, PathScores, Rollouts, SampleRequest, mix64

FIRST_SEED = 90_000
LOSS = 0.02
"""Probability per token of leaving the common noise in `coupled_lost`."""
PREDICTORS = {"0.5": (0.5, True), "0.7": (0.7, True), "0.9": (0.9, True), "0.7_rough": (0.7, False)}
"""Correlation with the truth, and whether the error varies slowly."""
FIGURES = ("verdict_precision_fixed_truth", "verdict_share_fixed_truth", "node_corr_fixed_truth")
NO_COVERAGE = dict.fromkeys(("on", "on_inside", "off", "off_inside", "low_pass", "low_pass_inside"), 0.0)
EQUAL_ERROR = 0.9
"""An idea pays if its error is below that of the baseline with 1 / 0.9 of the rollouts."""
Interval = tuple[float, float, float]
VERDICT = 1.645
"""Standard deviations from zero at which the sign is decided."""


# -- coupled siblings ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class CoupledWorld(ExactWorld):
    """A world whose targeted rollouts share their noise: token = argmax (log p + Gumbel noise of index and depth)."""

    by_node: bool = False
    loss: float = 0.0
    pending: list[np.ndarray] = field(default_factory=list)

    def sample(self, requests: Sequence[SampleRequest], fingerprint: str = "") -> Rollouts:
        noise = [
            SampleRequest(each.question, each.prefix[: len(each.prefix) - 1 if self.by_node else 0], each.n, each.first)
            for each in requests
        ]
        self.pending[:] = [each.keys("noise") for each in noise]
        return super().sample(requests, fingerprint)

    def _continue(self, launch_R, state_R, key_R):  # type: ignore[no-untyped-def]
        if not launch_R.any():  # the same initial rollouts, hence the same paths, in all variants
            return super()._continue(launch_R, state_R, key_R)
        noise_R = np.concatenate(self.pending)
        rows, position, state = np.arange(len(key_R)), launch_R.copy(), state_R.copy()
        end_R, finish_R = np.zeros(len(key_R), np.int64), np.full(len(key_R), Finish.TRUNCATED, np.uint8)
        steps, active = [], position < self.limit
        while True:
            rows, position, state = rows[active], position[active], state[active]
            if not len(rows):
                return steps, end_R, finish_R
            if self.loss:
                lost = _uniform(mix64(key_R[rows]), position) < self.loss
                noise_R[rows[lost]] = key_R[rows[lost]]
            cell_RV = position[:, None] * self.vocabulary + np.arange(self.vocabulary)
            # The smallest of exponential times with rates p: the same as Gumbel noise, with one logarithm.
            time_RV = -np.log1p(-_uniform(noise_R[rows, None], cell_RV))
            with np.errstate(divide="ignore"):
                token = (time_RV / np.exp(self.log_p_LSV[position, state])).argmin(-1).astype(np.uint8)
            steps.append((rows, token))
            end_R[rows] += 1
            finish_R[rows[token == EOS]] = Finish.STOPPED
            state = self.next_LSV[position, state, token].astype(np.int64)
            position = position + 1
            active = (token != EOS) & (position < self.limit)


# -- stopping at decided signs ---------------------------------------------------------------------------------


def sign_scores(scores: PathScores, found: PathEstimate) -> np.ndarray:
    """Mean ÷ standard deviation of (ideal · update), whose sign is the alignment's, per teacher and node.

    It is linear in Q, so both follow from the posterior without draws. Zero: nothing to decide.
    """
    nodes = len(scores)
    rows = []
    for name in scores.teachers:
        kept_C = kept_children(scores, name)
        weight_C = np.zeros(len(kept_C))
        for depth in np.flatnonzero(np.bincount(scores.depth_C, kept_C, nodes) >= 2):
            child = np.arange(scores.offsets[depth], scores.offsets[depth + 1])
            child = child[kept_C[child]]
            p_K, t_K = np.exp(scores.log_p_C[child]), np.exp(scores.teachers[name].log_t_C[child])
            p_K, t_K = p_K / p_K.sum(), t_K / t_K.sum()
            weight_C[child] = unified_update(p_K, unified_update(p_K, np.log(t_K + 1e-30) - np.log(p_K + 1e-30)))

        def total(value_C: np.ndarray, weight_C: np.ndarray = weight_C) -> np.ndarray:
            return np.bincount(scores.depth_C, weight_C * value_C, nodes)

        own_T = np.bincount(scores.depth_C, weight_C**2 * found.own_var_C, nodes)
        var_T = own_T + total(found.load_C) ** 2 * found.path_var_T + total(found.sibling_sd_C) ** 2
        rows.append(total(found.q_C) / np.sqrt(np.maximum(found.widening**2 * var_T, 1e-30)))
    return np.array(rows)


def weighted_std(scores: PathScores, found: PathEstimate, *, weigh: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """`allocation._std_in_results` with a weight per node: the most open of the teachers' signs."""
    weight_T = weigh(np.abs(sign_scores(scores, found))).max(0)
    depth_C, p_C = scores.depth_C, np.exp(scores.log_p_C)
    follow_T = np.minimum(np.bincount(depth_C, p_C * found.load_C, len(scores)), 1.0)
    above_T = np.zeros(len(scores))
    for m in range(1, len(scores)):
        above_T[m] = weight_T[m - 1] + follow_T[m - 1] ** 2 * above_T[m - 1]
    return np.sqrt(found.own_var_C * (weight_T[depth_C] + p_C**2 * above_T[depth_C]))


WEIGHTS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "stop_decided": lambda z: (z < VERDICT).astype(float),
    "top_two": lambda z: 4 * ndtr(-z) * ndtr(z),
    "near_verdict": lambda z: np.where(z < VERDICT, np.exp(-((VERDICT - z) ** 2) / 2), 0.0),
}


# -- a predictor of success ------------------------------------------------------------------------------------


def predictor(world: ExactWorld, quality: float, seed: int, *, smooth: bool = True) -> np.ndarray:
    """Predicted success by position and state, whose correlation with the truth over visited states is `quality`."""
    noise_LS = np.random.default_rng(seed).standard_normal(world.value_LS.shape)
    if smooth:
        noise_LS = gaussian_filter(noise_LS, (10.0, noise_LS.shape[1] / 10))
        noise_LS /= noise_LS.std()
    here_S, visit_LS = np.zeros(len(world.success_S)), np.zeros(world.value_LS.shape)
    here_S[world.start] = 1.0
    for position, (log_p_SV, next_SV) in enumerate(zip(world.log_p_LSV, world.next_LSV, strict=True)):
        visit_LS[position] = here_S
        flow_SV = here_S[:, None] * np.exp(log_p_SV)
        flow_SV[:, EOS] = 0.0
        here_S = np.bincount(next_SV.ravel(), flow_SV.ravel(), len(here_S))
    visited, weight = visit_LS > 0, visit_LS[visit_LS > 0]
    truth_LS = np.clip(world.value_LS, 0.005, 0.995)
    logit_LS = np.log(truth_LS / (1 - truth_LS))
    low, high = 0.0, 100.0
    for _ in range(40):
        scale = (low + high) / 2
        predicted_LS = 1 / (1 + np.exp(-(logit_LS + scale * noise_LS)))
        covariance = np.cov(predicted_LS[visited], world.value_LS[visited], aweights=weight)
        above = covariance[0, 1] > quality * np.sqrt(covariance[0, 0] * covariance[1, 1])
        low, high = (scale, high) if above else (low, scale)
    return predicted_LS


def predicted_after(world: ExactWorld, predicted_LS: np.ndarray, scores: PathScores) -> np.ndarray:
    """The prediction after every kept child; an end of the completion keeps that of its node."""
    state_C = world.states_along(scores.completion_T)[scores.depth_C]
    after_C = predicted_LS[scores.depth_C + 1, world.next_LSV[scores.depth_C, state_C, scores.token_C]]
    return np.where(scores.token_C == EOS, predicted_LS[scores.depth_C, state_C], after_C)


class PriorBackup(_Backup):
    """`backup` whose exits are shrunk toward their siblings' mean plus slope × the predicted difference from them."""

    def __init__(self, evidence: Evidence, predicted: Sequence[np.ndarray]) -> None:
        super().__init__(evidence.tree, evidence.paths, shrink=True)
        self.predicted = {id(segment): each_C for segment, each_C in zip(self.segments, predicted, strict=True)}
        self.products: dict[int, tuple[float, float]] = {}

    def _sibling_means(self, segment: _Segment) -> tuple[ExitSamples, _Siblings]:
        exits, siblings = super()._sibling_means(segment)
        predicted_C, children = self.predicted[id(segment)], len(segment.scores.token_C)
        rows = np.flatnonzero(segment.exit_S)
        token_E, depth_E = rows < children, segment.depth_S[rows]
        own_E = predicted_C[np.minimum(rows, children - 1)]
        seen_E = np.where(token_E, exits.n_E, 0)
        nodes = len(segment.scores)
        others_E = np.bincount(depth_E, seen_E, nodes)[depth_E] - seen_E
        mean_E = (np.bincount(depth_E, seen_E * own_E, nodes)[depth_E] - seen_E * own_E) / np.maximum(others_E, 1)
        path_E = predicted_C[segment.on_path_T[depth_E]]
        share_E = np.where(others_E > 0, siblings.path_weight_E, 1.0)
        ahead_E = np.where(token_E, own_E - share_E * path_E - (1 - share_E) * mean_E, 0.0)
        spread_E = np.clip(exits.centre_E * (1 - exits.centre_E), 0.01, None)
        prior_E = self.prior.spread(exits.p_E)
        weight_E = np.where(seen_E > 0, 1 / (spread_E * (1 / np.maximum(seen_E, 1) + prior_E)), 0.0)
        found_E = exits.w_E / np.maximum(exits.n_E, 1) - exits.centre_E
        slope = self.slope
        self.products[id(segment)] = float((weight_E * ahead_E * found_E).sum()), float((weight_E * ahead_E**2).sum())
        centre_E = np.clip(exits.centre_E + slope * ahead_E, 0.0, 1.0)
        return ExitSamples(exits.p_E, exits.n_E, exits.w_E, centre_E), siblings

    @property
    def slope(self) -> float:
        """Regression of outcomes on predictions over all exits, one round behind; a useless predictor gets 0."""
        products = list(self.products.values())
        return float(np.clip(sum(a for a, _ in products) / (sum(b for _, b in products) + 1.0), 0.0, 2.0))


class ControlBackup(_Backup):
    """`backup` of outcomes minus the predicted gains of the rollout's own tokens, which have mean zero."""

    def __init__(self, evidence: Evidence, gain_R_T1: Callable[[np.ndarray], np.ndarray]) -> None:
        tree, paths = evidence.tree, evidence.paths
        super().__init__(tree, paths, shrink=True)
        exits = [tree.exits(scores.completion_T) for scores in paths]
        owner_R = np.stack([each.depth_R for each in exits]).argmax(0)
        parts = []
        for index, (segment, each) in enumerate(zip(self.segments, exits, strict=True)):
            depth_R, nodes, children = each.depth_R, len(segment.scores), len(segment.scores.token_C)
            rows = np.flatnonzero((owner_R == index) & (depth_R >= segment.first) & (depth_R < nodes))
            rows = rows[each.token_R[rows] >= 0]
            keys = child_keys(segment.scores.depth_C, segment.scores.token_C)
            found, at = find_sorted(child_keys(depth_R[rows], each.token_R[rows]), keys)
            counted = tree.launch_R[rows] <= depth_R[rows] + found
            slot = np.where(found, at, children + depth_R[rows])[counted]
            parts.append(
                (slot, (tree.outcome_R[rows] > 0)[counted].astype(float), gain_R_T1(depth_R + 1)[rows][counted])
            )
        # One coefficient per question, from variation within slots.
        within = []
        for segment, (slot, won, gain) in zip(self.segments, parts, strict=True):
            n_S = np.maximum(np.bincount(slot, minlength=len(segment.p_S)), 1)
            within.append([each - (np.bincount(slot, each, len(n_S)) / n_S)[slot] for each in (won, gain)])
        won_R, gain_R = (np.concatenate(each) for each in zip(*within, strict=True))
        slope = float(won_R @ gain_R / max(gain_R @ gain_R, 1e-9))
        self.left = float(np.clip(1 - slope * (won_R @ gain_R) / max(won_R @ won_R, 1e-9), 0.02, 1.0))
        for segment, (slot, won, gain) in zip(self.segments, parts, strict=True):
            n_S = np.bincount(slot, minlength=len(segment.p_S))
            mean_S = np.bincount(slot, won - slope * gain, len(n_S)) / np.maximum(n_S, 1)
            # As many rollouts as would give this variance, rounded: the prior works on counts.
            n_S = np.where(segment.fixed_S, segment.n_S, np.rint(n_S / self.left).astype(np.int64))
            segment.w_S = np.where(segment.fixed_S, segment.w_S, np.clip(mean_S, 0, 1) * n_S)
            segment.n_S = n_S


def gains(world: ExactWorld, evidence: Evidence, predicted_LS: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Depth per rollout → its predicted gain (prediction after a token − its mean over tokens) from that depth on."""
    rollouts = evidence.tree.rollouts()
    gain = np.zeros(len(rollouts.tokens) + 1)
    for rows, position, state, token in world._walk(rollouts):
        after_RV = predicted_LS[position + 1][world.next_LSV[position, state]]
        after_RV[:, EOS] = predicted_LS[position, state]
        mean_R = (np.exp(world.log_p_LSV[position, state]) * after_RV).sum(-1)
        gain[rollouts.offsets[rows] + position] = after_RV[np.arange(len(rows)), token] - mean_R
    summed = np.concatenate([[0.0], np.cumsum(gain)])
    ends = rollouts.offsets[1:]
    return lambda depth_R: summed[ends] - summed[np.minimum(rollouts.offsets[:-1] + depth_R, ends)]


def difference_mse(world: ExactWorld, evidence: Evidence, estimates: Sequence[PathEstimate]) -> float:
    """Mean squared error of Q_k − Q_j over all pairs of tokens above τ (or on the path) at the nodes of the paths."""
    total = pairs = 0.0
    for scores, found in zip(evidence.paths, estimates, strict=True):
        kept_C = scores.above(RULES.tau) | scores.on_path_C
        depth_C, error_C = scores.depth_C[kept_C], (found.q_C - world.exact_q_along(scores))[kept_C]
        size_T, sum_T, square_T = (np.bincount(depth_C, each) for each in (None, error_C, error_C**2))
        total += float((size_T * square_T - sum_T**2).sum())
        pairs += float((size_T * (size_T - 1) / 2).sum())
    return total / pairs


def figures(world: ExactWorld, evidence: Evidence, estimates: Sequence[PathEstimate]) -> dict[str, float]:
    truth = true_grid(world, evidence)
    paths = [
        EstimatedPath("world", i, correct, scores, found, evidence.tree.counts_along(scores.completion_T), 0.5)
        for i, (correct, scores, found) in enumerate(zip(evidence.correct, evidence.paths, estimates, strict=True))
    ]
    grid = on_grid(node_table(paths, settings().objectives, RULES), evidence)
    shares = ratios(counts(grid, truth) | NO_COVERAGE)
    return {
        "mse": difference_mse(world, evidence, estimates),
        "node_corr_fixed_truth": node_correlation(grid, truth),
        **{name: shares[name] for name in FIGURES if name in shares},
    }


def measure(family: str, seed: int, length: int, rollouts: int) -> dict[str, dict[str, float]]:
    """All variants in one world with the same number of targeted rollouts; `more` is the baseline with more of them."""
    world = world_of(family, seed, length)
    teachers = teachers_of(world, seed)
    budget = Budget(allocation="adaptive", targeted=rollouts)

    def run(budget: Budget, student: ExactWorld = world) -> dict[str, float]:
        evidence = explore(student, teachers, budget)
        return figures(world, evidence, estimate(evidence.tree, evidence.paths))

    evidence = explore(world, teachers, budget)
    found = {
        "baseline": figures(world, evidence, estimate(evidence.tree, evidence.paths)),
        "more": run(replace(budget, targeted=round(rollouts / EQUAL_ERROR))),
    }
    tables = (world.log_p_LSV, world.next_LSV, world.success_S, world.start)
    for name, by_node, loss in (("node", True, 0.0), ("depth", False, 0.0), ("lost", False, LOSS)):
        found[f"coupled_{name}"] = run(budget, CoupledWorld(*tables, by_node=by_node, loss=loss))
    for name, weigh in WEIGHTS.items():
        with patch.object(allocation, "_std_in_results", partial(weighted_std, weigh=weigh)):
            found[name] = run(budget)
    for name, (quality, smooth) in PREDICTORS.items():
        predicted_LS = predictor(world, quality, seed + 7, smooth=smooth)
        after = [predicted_after(world, predicted_LS, scores) for scores in evidence.paths]
        found[f"prior_{name}"] = figures(world, evidence, PriorBackup(evidence, after).solve())
        if quality == 0.9:
            control = ControlBackup(evidence, gains(world, evidence, predicted_LS))
            found[f"control_{name}"] = figures(world, evidence, control.solve())
    return found


def interval(value_W: np.ndarray) -> Interval:
    """Mean and its 95 % interval over worlds; worlds without a value are left out."""
    value_W = value_W[np.isfinite(value_W)]
    half = student_t.ppf(0.975, len(value_W) - 1) * value_W.std(ddof=1) / np.sqrt(len(value_W))
    return float(value_W.mean()), float(value_W.mean() - half), float(value_W.mean() + half)


def compare(worlds: Sequence[Mapping[str, Mapping[str, float]]], name: str) -> dict[str, Interval]:
    """Paired differences of one variant from the baseline in one family; positive is better."""

    def gain(base: str) -> Interval:
        log_W = np.log([world[base]["mse"] / world[name]["mse"] for world in worlds])
        mean, low, high = interval(log_W / 2)
        return 1 - np.exp(-mean), 1 - np.exp(-low), 1 - np.exp(-high)

    result = {"rmse_reduction": gain("baseline"), "rmse_reduction_over_more": gain("more")}
    for key in FIGURES:
        result[key] = interval(np.array([world[name][key] - world["baseline"][key] for world in worlds]))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three short worlds per family, under 60 s of CPU time")
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="first seed")
    parser.add_argument("--worlds", type=int, default=None, help="worlds per family")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    worlds = args.worlds or (3 if args.quick else 16)
    lengths = np.geomspace(60, 80 if args.quick else 200, worlds).astype(int).tolist()
    jobs = [(family, args.first + 10 * i, n) for family in FAMILIES for i, n in enumerate(lengths)]
    measured = [measure(*job, 800 if args.quick else 4000) for job in track(jobs, "worlds")]
    written: dict[str, float] = {"worlds": worlds}
    for family in FAMILIES:
        rows = [found for job, found in zip(jobs, measured, strict=True) if job[0] == family]
        table = Table(family, "RMSE", "RMSE, 0.9 ×", "precision", "share", "correlation")
        for key in ("mse", *FIGURES):
            written[f"baseline_{key}_{family}"] = float(np.nanmean([found["baseline"][key] for found in rows]))
        for name in rows[0]:
            if name != "baseline":
                compared = compare(rows, name)
                table.add_row(
                    name, *[f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]" for mean, low, high in compared.values()]
                )
                for key, bounds in compared.items():
                    ends = zip(("", "_low", "_high"), bounds, strict=True)
                    written |= {f"{name}_{key}_{family}{end}": float(value) for end, value in ends}
        Console(width=150).print(table)
    if args.json:
        finite = {key: value if np.isfinite(value) else None for key, value in written.items()}
        args.json.write_text(json.dumps(finite, indent=1))


if __name__ == "__main__":
    main()
