"""The comparison of gates, mixes and schedules, on runs with known results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import opd_align
from opd_align.core.alarm import Reading
from opd_align.training import GateBatch
from opd_align.training.gates import compute_weights
from opd_align.types import Outcome

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ALIGNMENT = "opd_align/teacher/reverse_kl/alignment/weighted"


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(BENCHMARKS))
    names = ("regimes", "training", "schedule", "store", "results", "plot", "versions")
    yield SimpleNamespace(**{name: import_module(f"_comparison_{name}") for name in names})
    sys.path.remove(str(BENCHMARKS))


def a_run(modules, regime, arm, seed, final, *, share=1.0, alignment=0.3, accuracy=None, strength=None):
    """Accuracy changes linearly from 0.5, or as given; 100 tokens per step, a share of them distilled.

    The strength of a schedule is given between evaluations.
    """
    settings = modules.store.settings_of(regime, arm)
    every, steps = settings["every"], settings["steps"]
    evaluated = range(0, steps + 1, every)
    values = accuracy or [0.5 + (final - 0.5) * step / steps for step in evaluated]
    alignments = alignment if isinstance(alignment, list) else [alignment] * len(evaluated)
    return {
        "regime": regime,
        "arm": arm,
        "seed": seed,
        "settings": settings,
        "seconds": 10.0,
        "accuracy": {
            str(step): dict.fromkeys(("all", "two", "three"), value)
            for step, value in zip(evaluated, values, strict=True)
        },
        "tokens": [100.0] * steps,
        "distilled": [100.0 * share] * steps,
        "history": [
            {
                "step": step,
                "metrics": {
                    ALIGNMENT: mean,
                    **({"opd_align/reward/dr_grpo/alignment/weighted": 0.9} if arm == "handover" else {}),
                    f"{ALIGNMENT}_half_width": 0.1,
                    "opd_align/student/pass_rate": value,
                },
            }
            for step, mean, value in zip(evaluated, alignments, values, strict=True)
            if arm in ("ungated", "mix", "handover")
        ],
        "weights": {},
        **({"strength": [each for each in strength for _ in range(every)]} if strength else {}),
    }


def regimes_in(modules, folder):
    return modules.results.load(modules.store.runs_in(folder).values())


def store(folder, *runs):
    for run in runs:
        (folder / "{regime}-{arm}-{seed}.json".format(**run)).write_text(json.dumps(run))


@pytest.fixture
def runs(modules, tmp_path):
    for seed in range(3):
        offset = 0.01 * seed
        store(
            tmp_path,
            a_run(modules, "good", "ungated", seed, 0.8 + offset),
            a_run(modules, "good", "incorrect", seed, 0.9 + offset, share=0.25),
            a_run(modules, "good", "control_incorrect", seed, 0.6 + offset, share=0.25),
            a_run(modules, "good", "divergence", seed, 0.7 + offset, share=0.2),
            a_run(modules, "harmful", "ungated", seed, 0.3 + offset, alignment=-0.4),
            a_run(modules, "harmful", "sign_agrees", seed, 0.4 + offset, share=0.4),
        )
        for arm, final in (("mix", 0.9), ("A", 0.8), ("B", 0.7), ("equal", 0.75)):
            store(tmp_path, a_run(modules, "mixture", arm, seed, final + offset))
        course = [0.5, 0.6, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
        store(
            tmp_path,
            a_run(
                modules, "ruin", "ungated", seed, 0.1, accuracy=course,
                alignment=[0.5, 0.4, 0.2, -0.3, -0.4, -0.5, -0.5, -0.5, -0.5],
            ),
        )  # fmt: skip
    return tmp_path


def test_statistics_of_known_runs(modules, runs):
    arms = regimes_in(modules, runs)["good"]
    assert list(arms) == [
        "ungated",
        "incorrect",
        "divergence",
        "control_incorrect",
        "stop",
        "rollback",
        "early_stopping",
    ]
    assert arms["incorrect"].tokens[0].tolist() == [0, 600, 1200, 1800, 2400]
    assert arms["incorrect"].share == pytest.approx(0.25)
    gap = modules.results.difference(arms["incorrect"], arms["ungated"], modules.results.final)
    assert gap.mean == pytest.approx(0.1)
    assert gap.half_width == pytest.approx(0, abs=1e-9)  # paired: what is common to a seed cancels
    # From 0.5 to 0.9 in 600 distilled tokens: 0.8 is reached after three quarters of them.
    spent = arms["incorrect"].distilled
    assert arms["incorrect"].until_accuracy(0.8, spent)[0] == pytest.approx(450)
    assert all(needed != needed for needed in arms["control_incorrect"].until_accuracy(0.8, spent))
    assert arms["incorrect"].until_accuracy(0.5, spent).tolist() == [0, 0, 0]  # reached from the start


def test_the_share_of_harm_that_is_prevented(modules, runs):
    arms = regimes_in(modules, runs)["harmful"]
    # Lost without a gate: 0.2, 0.19, 0.18; the gate keeps 0.1 of it each time.
    share = modules.results.harm_prevented(arms["sign_agrees"], arms["ungated"])
    assert share.mean == pytest.approx(0.3 / 0.57)
    assert 0 < share.half_width < 0.1
    # A teacher that harms from the start: the schedule returns to the student before training.
    assert modules.results.harm_prevented(arms["rollback"], arms["ungated"]).mean == pytest.approx(1)
    assert 0 < modules.results.harm_prevented(arms["stop"], arms["ungated"]).mean < 1
    assert arms["rollback"].share < 1


def test_a_schedule_returns_to_the_peak(modules, runs):
    arms = regimes_in(modules, runs)["ruin"]
    assert arms["rollback"].final.tolist() == pytest.approx([0.7] * 3)
    assert arms["early_stopping"].final.tolist() == pytest.approx([0.7] * 3)
    assert (arms["stop"].final < 0.7).all()
    assert (arms["stop"].final > arms["ungated"].final).all()


def test_a_schedule_that_follows_the_pass_rate_returns_to_its_best_evaluation(modules, runs):
    assert "rollback_pass_rate" not in regimes_in(modules, runs)["ruin"], "runs without pass rates by question"
    course = [0.5, 0.6, 0.7, 0.68, 0.5, 0.4, 0.3, 0.2, 0.1]
    hard = [0.1 * (question % 4 - 1.5) for question in range(16)]
    for seed in range(3):
        run = a_run(modules, "ruin", "ungated", seed, 0.1, accuracy=course)
        steps = [line["step"] for line in run["history"]]
        rates = [{str(i): rate + each for i, each in enumerate(hard)} for rate in course]
        store(runs, run | {"pass_rates": dict(zip(map(str, steps), rates, strict=True))})
    arms = regimes_in(modules, runs)["ruin"]
    assert arms["rollback_pass_rate"].final.tolist() == pytest.approx([0.7] * 3)
    assert arms["stop_pass_rate"].final.tolist() == pytest.approx([0.5] * 3), "a fall of 0.02 is none yet"
    assert arms["stop_pass_rate"].share == pytest.approx(0.5)


@pytest.fixture
def rewarded(modules, tmp_path):
    """The first training hands over after step 20, the second one lowers the strength and raises it again."""
    strengths = [[1.0, 1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.5, 1.0, 1.0, 1.0]]
    for seed, strength in enumerate(strengths):
        offset = 0.01 * seed
        store(
            tmp_path,
            a_run(modules, "reward", "handover", seed, 0.7 + offset, strength=strength, share=0.1, alignment=-0.2),
            a_run(modules, "reward", "grpo_distill", seed, 0.2 + offset, share=0.4),
            a_run(modules, "reward", "grpo", seed, 0.8 + offset, share=0.0),
        )
    return tmp_path


def test_trainings_that_hand_over_to_the_reward(modules, rewarded):
    modules.results.write_results(regimes_in(modules, rewarded), rewarded / "RESULTS.md")
    text = (rewarded / "RESULTS.md").read_text()
    assert "`handover` − `grpo_distill`: +0.500 ± 0.000: `handover` ends above." in text
    assert "`handover` − `grpo`: -0.100 ± 0.000: `handover` ends below." in text
    assert "| `grpo` | nothing; GRPO on all rollouts | 2 | 0.805 ± 0.064 | -0.100 ± 0.000 |" in text
    assert "| alignment of GRPO's own update |" + " +0.90 ± 0.00 |" * 7 in text
    assert "| alignment |" + " -0.20 ± 0.00 |" * 7 in text
    assert "| strength from then on, seed 0 | 1.00 | 1.00 |" + " 0.00 |" * 4 + " |" in text
    assert "in 1 of 2 trainings, for the first time after step 20 (seed 0); at the end it has in 1." in text
    assert "Strength 0 holds in 0.33 of all steps." in text
    assert "nan" not in text
    assert (rewarded / "results.svg").read_text().count("<polyline") == 3


def test_a_schedule_that_never_acts_ends_like_the_training(modules):
    found = modules.schedule.acted([Reading(step, 0.5, 0.05) for step in (0, 10, 20)])
    assert (found.at, found.stop, found.rollback) == (None, 20, 20)


def test_the_results_are_generated_from_the_files_alone(modules, runs):
    modules.results.write_results(regimes_in(modules, runs), runs / "RESULTS.md")
    text = (runs / "RESULTS.md").read_text()
    assert "| `incorrect` | tokens of incorrect rollouts | 3 | 0.910 ± 0.025 | +0.100 ± 0.000 |" in text
    assert "`TeacherMix` − the better single teacher: +0.100 ± 0.000: `TeacherMix` ends above." in text
    assert "A harmful teacher: share of the loss that `rollback` prevents: 1.00 ± 0.00, at least 80 %." in text
    assert "of 5 arms those that end below plain distillation by more than their interval: `divergence`." in text
    assert "plain distillation. Better: `incorrect`; worse: `divergence`." in text
    assert "the most of 1 gates" in text
    assert "nan" not in text
    plot = (runs / "results.svg").read_text()
    assert plot.count("<polyline") == 2 + 4  # ruin: ungated and rollback; mixture: four arms
    assert "nan" not in plot


def test_arms_are_compared_at_the_evaluations_that_both_have(modules, tmp_path):
    gated = a_run(modules, "noisy", "incorrect", 0, 0.9)
    gated["accuracy"] = {step: gated["accuracy"][step] for step in ("12", "24")}  # as without a schedule
    store(tmp_path, a_run(modules, "noisy", "ungated", 0, 0.7), gated, a_run(modules, "noisy", "divergence", 1, 0.9))
    arms = regimes_in(modules, tmp_path)["noisy"]
    assert arms["incorrect"].accuracy[0].tolist() == pytest.approx([0.5, 0.7, 0.9])  # before: of the same seed
    gap = modules.results.difference(arms["incorrect"], arms["ungated"], modules.results.over_training)
    assert gap.mean == pytest.approx((0.1 + 0.2) / 2)
    assert "divergence" not in arms  # no ungated run of its seed yet
    modules.results.write_results(regimes_in(modules, tmp_path), tmp_path / "RESULTS.md")


def test_stored_runs_give_the_same_results(modules, runs):
    file = runs / "all.json"
    known = modules.store.runs_in(runs)
    modules.store.store(known.values(), file)
    (runs / "none").mkdir()
    assert modules.store.runs_in(runs / "none", file).keys() == known.keys()
    texts = []
    for number, found in enumerate((known, modules.store.runs_in(runs / "none", file))):
        modules.results.write_results(modules.results.load(found.values()), runs / f"{number}.md")
        texts.append((runs / f"{number}.md").read_text())
    assert texts[0] == texts[1]


def test_the_page_of_results_is_that_of_the_stored_runs(modules, tmp_path):
    stored = modules.store.runs_in(tmp_path, modules.store.STORED)
    modules.results.write_results(modules.results.load(stored.values()), tmp_path / "RESULTS.md")
    assert (tmp_path / "RESULTS.md").read_text() == (BENCHMARKS.parent / "recipes" / "RESULTS.md").read_text()


def test_the_page_says_what_a_regime_does_not_compare(modules, runs):
    store(
        runs,
        a_run(modules, "good", "oracle_sign", 0, 0.8, share=0.07),
        a_run(modules, "good", "control_both", 0, 0.8, share=0.08),
        a_run(modules, "good", "control_entropy_divergence", 0, 0.8, share=0.03),
    )
    for seed in range(3):
        run = a_run(modules, "ruin", "ungated", seed, 0.1)
        store(runs, run | {"pass_rates": {str(line["step"]): {"q": 0.5} for line in run["history"]}})
    missing, regimes = modules.results.missing, regimes_in(modules, runs)
    pass_rate, oracles = missing("good", regimes["good"])
    assert "follow the pass rate" in pass_rate
    assert "`oracle_sign` keeps 7 % of the tokens, the random ones of `control_both` are 8 % and" in oracles
    assert list(missing("harmful", regimes["harmful"])) == [pass_rate]
    assert list(missing("ruin", regimes["ruin"])) == list(missing("mixture", regimes["mixture"])) == []
    modules.results.write_results(regimes, runs / "RESULTS.md")
    assert (runs / "RESULTS.md").read_text().count(pass_rate) == 2


def test_figures_of_the_probe_are_those_of_the_documentation(modules):
    figures = re.findall(r"−?\d\.\d\d(?: \[[^]]*\])?", modules.results.PROBE)
    assert len(figures) == 7
    documented = (BENCHMARKS.parent / "docs" / "gates.md").read_text().partition("## A success probe as a gate?")[2]
    assert [figure for figure in figures if figure not in documented] == []


def test_the_page_says_which_version_made_which_training(modules, runs):
    made = {"opd_align": "1.2.3", "commit": "abc1234"}
    store(
        runs,
        a_run(modules, "good", "incorrect", 1, 0.9) | {"made_with": made},
        *(a_run(modules, "harmful", "ungated", seed, 0.3, alignment=-0.4) | {"made_with": made} for seed in range(3)),
    )
    regimes = regimes_in(modules, runs)
    modules.results.write_results(regimes, runs / "RESULTS.md")
    expected = (
        "Trainings were made with different versions of the code: opd_align 1.2.3, commit abc1234 "
        '("A good teacher": `incorrect` with seed 1; "A harmful teacher": `ungated`); all others: unknown.'
    )
    assert expected in (runs / "RESULTS.md").read_text().splitlines()
    modules.store.store(modules.store.runs_in(runs).values(), runs / "all.json")
    kept = modules.store.runs_in(runs / "none", runs / "all.json")
    assert kept["harmful", "ungated", 0]["made_with"] == made
    assert "made_with" not in kept["good", "ungated", 0]


def test_nothing_is_said_where_one_version_made_all(modules, runs):
    modules.results.write_results(regimes_in(modules, runs), runs / "RESULTS.md")
    assert "versions of the code" not in (runs / "RESULTS.md").read_text()


def test_the_commit_of_a_run_is_known_or_unknown(modules, tmp_path, monkeypatch):
    made = modules.versions.made_with()
    assert made["opd_align"] == opd_align.__version__
    code, results = tmp_path / "repository/benchmarks/a.py", tmp_path / "repository/benchmarks/results.json"
    code.parent.mkdir(parents=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for file in (code, results):
        file.write_text("1")
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path / "repository"), *command], check=True)
    commit = modules.versions._commit(code.parent)
    assert re.fullmatch("[0-9a-f]{7,}", commit)
    results.write_text("2")
    assert modules.versions._commit(code.parent) == commit
    code.write_text("2")
    assert modules.versions._commit(code.parent) == f"{commit}-dirty"
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert modules.versions._commit(tmp_path) == "unknown"  # no repository
    monkeypatch.setenv("PATH", "")
    assert modules.versions._commit(BENCHMARKS) == "unknown"  # no git


def test_runs_that_are_stored_are_trained_again_on_request(modules, runs, monkeypatch):
    comparison, file, again = import_module("comparison"), runs / "all.json", runs / "again"
    modules.store.store(modules.store.runs_in(runs).values(), file)
    again.mkdir()
    store(again, a_run(modules, "good", "ungated", 0, 0.7) | {"made_with": {"opd_align": "1", "commit": "a"}})
    monkeypatch.setattr(comparison, "STORED", file)
    wanted = comparison.wanted_runs(["good"], ["ungated"], 3)
    assert comparison.missing_runs(again, wanted, again=False) == []
    # What the folder has was made by an interrupted call: it stays.
    assert comparison.missing_runs(again, wanted, again=True) == [("good", "ungated", 1), ("good", "ungated", 2)]
    # Runs of the folder replace stored ones.
    modules.store.store(modules.store.runs_in(again, file).values(), file)
    replaced = modules.store.runs_in(runs / "none", file)
    assert replaced["good", "ungated", 0]["accuracy"]["24"]["all"] == 0.7
    assert replaced["good", "ungated", 1]["accuracy"]["24"]["all"] == 0.81


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.47, 0.92, [0.5, 0.6, 0.7, 0.8, 0.9]), (-0.31, 0.91, [0.0, 0.5]), (0, 30395, [0, 10000, 20000, 30000])],
)
def test_ticks_are_round(modules, low, high, expected):
    assert modules.plot.ticks(low, high) == pytest.approx(expected)


def test_nothing_is_concluded_from_one_seed(modules, tmp_path):
    store(
        tmp_path,
        a_run(modules, "good", "ungated", 0, 0.8),
        a_run(modules, "good", "incorrect", 0, 0.1),
        a_run(modules, "harmful", "ungated", 0, 0.3, alignment=-0.4),
        a_run(modules, "harmful", "incorrect", 0, 0.5),
        a_run(modules, "reward", "handover", 0, 0.7, strength=[1.0] * 6),
        a_run(modules, "reward", "grpo", 0, 0.5),
    )
    regimes = regimes_in(modules, tmp_path)
    assert modules.results.must_show(regimes) == {}
    assert list(modules.results.conclusions(regimes)) == []
    assert modules.results.harm_prevented(regimes["harmful"]["incorrect"], regimes["harmful"]["ungated"]) is None


def test_no_share_of_a_loss_that_did_not_happen(modules, tmp_path):
    for seed, end in enumerate((0.50, 0.52, 0.49)):
        store(tmp_path, a_run(modules, "harmful", "ungated", seed, end), a_run(modules, "harmful", "both", seed, 0.5))
    arms = regimes_in(modules, tmp_path)["harmful"]
    assert modules.results.harm_prevented(arms["both"], arms["ungated"]) is None


@pytest.mark.parametrize(
    ("mean", "half", "share", "peak"),
    [
        (0.95, 0.1, "at least 80 %", "at most 0.05 below"),
        (0.5, 0.1, "less than 80 %", "at most 0.05 below"),
        (0.8, 0.5, "80 % is inside the interval", "at most 0.05 below"),
        (-0.1, 0.02, "less than 80 %", "below"),
        (-0.1, 0.2, "less than 80 %", "inconclusive, the interval includes the peak"),
    ],
)
def test_verdicts_use_both_ends_of_an_interval(modules, mean, half, share, peak):
    estimate = modules.results.Estimate(mean, half, 5)
    assert modules.results.share_verdict(estimate) == share
    assert modules.results.peak_verdict(estimate) == peak


def test_stored_runs_with_other_settings_are_kept_and_not_used(modules, runs):
    file, old = runs / "all.json", a_run(modules, "good", "ungated", 0, 0.7)
    old["settings"] = old["settings"] | {"batch": 1}
    gone = old | {"regime": "gone"}
    modules.store.store([old, gone], file)
    modules.store.store(modules.store.runs_in(runs).values(), file)
    assert len(json.loads(file.read_text())) == len(modules.store.runs_in(runs)) + 2
    assert modules.store.runs_in(runs / "none", file).keys() == modules.store.runs_in(runs).keys()


def test_runs_with_other_settings_are_ignored(modules, runs):
    other = a_run(modules, "good", "ungated", 0, 0.7)
    other["settings"] = other["settings"] | {"batch": 1}
    store(runs, other)
    assert regimes_in(modules, runs)["good"]["ungated"].seeds == [1, 2]
    assert ("good", "ungated", 0) not in modules.store.runs_in(runs)


def test_verdicts_depend_on_the_interval(modules):
    verdict, estimate = modules.results.verdict_of, modules.results.Estimate
    assert verdict(estimate(0.1, 0.05, 5), "up", "down") == "up"
    assert verdict(estimate(-0.1, 0.05, 5), "up", "down") == "down"
    assert verdict(estimate(0.1, 0.2, 5), "up", "down") == "inconclusive"
    assert verdict(estimate(0.1, float("nan"), 1), "up", "down") == "inconclusive"


def test_controls_have_the_size_of_their_arms(modules):
    outcomes = torch.tensor([Outcome.CORRECT] * 5 + [Outcome.INCORRECT] * 3)
    mask = torch.ones(8, 500).bool()
    values = {name: torch.rand(8, 500) for name in ("kl", "student_entropy", "teacher_mass")}
    values |= {name: torch.randn(8, 500) for name in ("student_log_prob", "teacher_log_prob")}

    def kept(arm, seed=0):
        batch = GateBatch(torch.zeros(8, 500), mask, outcomes, values.__getitem__)
        return compute_weights(modules.training.gate_of(arm, seed, lambda **columns: []), batch)

    for name in modules.regimes.CONTROLLED:
        own, control = kept(name), kept(f"control_{name}")
        assert own.sum() == control.sum() > 0
        assert not torch.equal(own, control)
        assert torch.equal(control, kept(f"control_{name}"))
        assert not torch.equal(control, kept(f"control_{name}", 1))
    # Whole rollouts at random, where the gate keeps whole rollouts.
    assert set(kept("control_incorrect").sum(1).tolist()) == {0, 500}
    for name, other in modules.regimes.SAME_CONTROL.items():
        if name != "contrastive":  # needs a trainer
            assert kept(name).sum().item() == kept(other).sum().item()
    assert kept("ungated").mean() == 1


def test_every_gate_of_the_comparison_has_a_control_and_a_text(modules):
    regimes = modules.regimes
    assert all(regimes.control_of(name) in regimes.ARM_TEXTS for name in regimes.GATES)
    for regime in regimes.REGIMES.values():
        assert {*regime.trained, *regime.derived} <= set(regimes.ARM_TEXTS)
