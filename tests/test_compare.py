"""The comparison of gates, on runs with known results."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import torch

from opd_align.training import GateBatch, launch
from opd_align.training.gates import compute_weights
from opd_align.types import Outcome


@pytest.fixture(scope="module")
def compare():
    spec = spec_from_file_location("compare", launch.folder() / "compare.py")
    module = module_from_spec(spec)
    sys.modules["compare"] = module
    spec.loader.exec_module(module)
    # The expected results below are for these sizes.
    module.SETTINGS |= {"steps": 60, "evaluate_every": 15}
    yield module
    del sys.modules["compare"]


def a_run(compare, arm, seed, final, share):
    """Accuracy increases linearly; 100 tokens per step, a share of them distilled."""
    every, steps = compare.SETTINGS["evaluate_every"], compare.SETTINGS["steps"]
    steps_evaluated = range(0, steps + 1, every)
    return {
        "settings": compare.SETTINGS,
        "arm": arm,
        "seed": seed,
        "seconds": 10.0,
        "accuracy": {str(step): 0.5 + (final - 0.5) * step / steps for step in steps_evaluated},
        "tokens": [100.0] * steps,
        "distilled": [100.0 * share] * steps,
        "alignment": {"0": 0.1, "30": 0.2, "60": None if seed else 0.3},
    }


@pytest.fixture
def runs(compare, tmp_path):
    for seed in range(3):
        offset = 0.01 * seed
        for arm, final, share in (("ungated", 0.8, 1.0), ("incorrect", 0.9, 0.25), ("correct", 0.6, 0.75)):
            run = a_run(compare, arm, seed, final + offset, share)
            (tmp_path / f"{arm}-{seed}.json").write_text(json.dumps(run))
    return tmp_path


def test_statistics_of_known_runs(compare, runs):
    arms = compare.load(runs)
    assert list(arms) == ["ungated", "incorrect", "correct"]
    assert arms["incorrect"].tokens[0].tolist() == [0, 1500, 3000, 4500, 6000]
    assert arms["incorrect"].distilled[0][-1] == 1500
    gap = compare.difference(arms["incorrect"], arms["ungated"], lambda arm: arm.accuracy[:, -1])
    assert gap.mean == pytest.approx(0.1)
    assert gap.half_width == pytest.approx(0, abs=1e-9)  # paired: what is common to a seed cancels
    # From 0.5 to 0.9 in 1,500 distilled tokens: 0.8 is reached after three quarters of them.
    assert arms["incorrect"].distilled_to(0.8)[0] == pytest.approx(1125)
    assert all(needed != needed for needed in arms["correct"].distilled_to(0.8))
    assert arms["incorrect"].distilled_to(0.5).tolist() == [0, 0, 0]  # reached from the start


def test_the_results_are_generated_from_the_files_alone(compare, runs):
    compare.write_results(runs, runs / "RESULTS.md")
    text = (runs / "RESULTS.md").read_text()
    assert "| incorrect | tokens of incorrect rollouts | 0.910 ± 0.025 | +0.100 ± 0.000 |" in text
    assert "incorrect compared with correct, mean over training: +0.188 ± 0.000: incorrect is better." in text
    assert "larger, not of equal size: it distils 0.75 of the tokens, the arm 0.25." in text
    assert "| correct | – | 0 of 3 |" in text
    assert "nan" not in text
    plot = (runs / "results.svg").read_text()
    assert plot.count("<polyline") == 3 * 3
    assert "nan" not in plot


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.47, 0.92, [0.5, 0.6, 0.7, 0.8, 0.9]), (-0.31, 0.91, [0.0, 0.5]), (0, 30395, [0, 10000, 20000, 30000])],
)
def test_ticks_are_round(compare, low, high, expected):
    assert compare.ticks(low, high) == pytest.approx(expected)


def test_runs_with_other_settings_are_ignored(compare, runs):
    other = a_run(compare, "ungated", 0, 0.7, 1.0)
    other["settings"] = other["settings"] | {"batch": 1}
    (runs / "ungated-0.json").write_text(json.dumps(other))
    assert compare.load(runs)["ungated"].seeds == [1, 2]
    assert compare.finished(runs / "ungated-0.json") is None
    assert compare.finished(runs / "no-0.json") is None


def test_verdicts_depend_on_the_interval(compare):
    assert compare.verdict_of(compare.Estimate(0.1, 0.05, 5), "up", "down") == "up"
    assert compare.verdict_of(compare.Estimate(-0.1, 0.05, 5), "up", "down") == "down"
    assert compare.verdict_of(compare.Estimate(0.1, 0.2, 5), "up", "down") == "inconclusive"
    assert compare.verdict_of(compare.Estimate(0.1, float("nan"), 1), "up", "down") == "inconclusive"


def test_controls_have_the_size_of_their_arms(compare):
    outcomes = torch.tensor([Outcome.CORRECT] * 5 + [Outcome.INCORRECT] * 3)
    mask = torch.ones(8, 500).bool()
    batch = GateBatch(torch.zeros(8, 500), mask, outcomes, lambda name: torch.rand(8, 500))

    def kept(arm, seed=0):
        return compute_weights(compare.gate_of(arm, seed, lambda **columns: []), batch)

    assert kept("incorrect").sum() == kept("random_rollouts").sum() == 3 * 500
    assert not torch.equal(kept("incorrect"), kept("random_rollouts"))
    assert kept("correct").sum() == 5 * 500
    assert kept("divergence").mean() == pytest.approx(0.2, abs=0.001)
    assert kept("random_tokens").mean() == pytest.approx(0.2, abs=0.02)
    assert torch.equal(kept("random_tokens", 1), kept("random_tokens", 1))
    assert kept("both").sum() < kept("incorrect").sum()
    assert kept("ungated").mean() == 1
    assert set(compare.ARMS) == {
        "ungated",
        "incorrect",
        "divergence",
        "both",
        "correct",
        "random_rollouts",
        "random_tokens",
    }
