"""Statistics of the finished runs of `comparison.py`, and recipes/RESULTS.md from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from _comparison_plot import draw
from _comparison_regimes import ARM_TEXTS, CONTROL, CONTROLLED, GATES, REGIMES, SCHEDULES, control_of
from _comparison_schedule import acted, acted_by_pass_rate, best_by_pass_rate, readings_of
from _comparison_store import Run
from _comparison_versions import ESTIMATOR, version_line, version_of

from opd_align.core.intervals import Estimate, interval
from opd_align.types import REWARD

Floats = np.ndarray[Any, np.dtype[np.float64]]
ALIGNMENT = "/alignment/weighted"
OF_REWARD = f"opd_align/{REWARD}/"
BY_PASS_RATE = "_pass_rate"
"""End of the names of schedules that follow the pass rate."""

WANTED_SHARE = 0.8
"""Share of the harm that a schedule or gate should prevent."""

PEAK_MARGIN = 0.05
"""How far below the peak a schedule may end."""


PROBE = (
    "- A success probe does not beat the outcome's sign, so there is no `ProbeGate`. Rank correlation within nodes, on "
    "held-out trees: probe 0.41 [0.34, 0.48], outcome's sign 0.47 [0.42, 0.52], difference −0.06 [−0.12, 0.00]. What a "
    "gate made of it keeps of the teacher's signal, minus what the outcome's sign keeps: 0.00 [−0.04, 0.03] (good "
    "teacher), 0.07 [0.04, 0.10] (noisy; no more than without a gate, 0.37) and −0.02 [−0.06, 0.02] (harmful). "
    "Measured by `benchmarks/probe.py`, without training: [a success probe as a gate?]"
    "(../docs/gates.md#a-success-probe-as-a-gate)."
)
"""No stored run has these figures: they are those of docs/gates.md."""


@dataclass(frozen=True)
class Arm:
    """The runs of one arm; rows of the arrays are seeds, columns evaluations."""

    seeds: list[int]
    steps: list[int]
    accuracy: Floats
    tokens: Floats
    distilled: Floats
    by_kind: Mapping[str, Floats] = field(default_factory=dict)
    alignment: Floats | None = None
    strength: Floats | None = None
    """Strength of the schedule in each step."""

    reward_alignment: Floats | None = None
    """Alignment of GRPO's own update."""

    versions: Sequence[str] = ()
    """What each run was made with; empty for an arm that is not a training of its own."""

    @staticmethod
    def of(runs: list[Run]) -> Arm:
        """Accuracy at the evaluations that all runs have."""
        runs = sorted(runs, key=lambda run: run["seed"])
        steps = sorted(set.intersection(*({int(step) for step in run["accuracy"]} for run in runs)))

        def until(per_step: list[float]) -> list[float]:
            total = np.concatenate([[0.0], np.cumsum(per_step)])
            return [float(total[step]) for step in steps]

        def accuracy(kind: str) -> Floats:
            return np.array([[run["accuracy"][str(step)][kind] for step in steps] for run in runs])

        histories = [run["history"] for run in runs]
        evaluated = runs[0]["arm"] in ("ungated", "handover")
        known = evaluated and all([line["step"] for line in each] == steps for each in histories)
        return Arm(
            [run["seed"] for run in runs],
            steps,
            accuracy("all"),
            np.array([until(run["tokens"]) for run in runs]),
            np.array([until(run["distilled"]) for run in runs]),
            {kind: accuracy(kind) for kind in ("two", "three")},
            _alignments(histories, of_reward=False) if known else None,
            np.array([run["strength"] for run in runs]) if "strength" in runs[0] else None,
            _alignments(histories, of_reward=True) if known and "strength" in runs[0] else None,
            [version_of(run) for run in runs],
        )

    def at(self, steps: list[int]) -> Arm:
        """At these evaluations alone."""
        own = [self.steps.index(step) for step in steps]
        columns = {name: getattr(self, name)[:, own] for name in ("accuracy", "tokens", "distilled")}
        by_kind = {kind: each[:, own] for kind, each in self.by_kind.items()}
        return replace(self, steps=steps, by_kind=by_kind, alignment=None, **columns)

    @property
    def final(self) -> Floats:
        return self.accuracy[:, -1]

    @property
    def over_training(self) -> Floats:
        """Mean accuracy over all evaluations after step 0, one number per seed."""
        return self.accuracy[:, 1:].mean(1)

    @property
    def share(self) -> float:
        """Share of the training tokens that were distilled."""
        return float((self.distilled[:, -1] / self.tokens[:, -1]).mean())

    def until_accuracy(self, target: float, spent: Floats) -> Floats:
        """What was spent until the accuracy first reaches the target, interpolated between evaluations."""
        found = []
        for accuracy, own in zip(self.accuracy, spent, strict=True):
            above = np.flatnonzero(accuracy >= target)
            if not len(above):
                found.append(np.nan)
            elif above[0] == 0:
                found.append(0.0)
            else:
                after = int(above[0])
                share = (target - accuracy[after - 1]) / (accuracy[after] - accuracy[after - 1])
                found.append(own[after - 1] + share * (own[after] - own[after - 1]))
        return np.array(found)


def _alignments(histories: list[list[Any]], *, of_reward: bool) -> Floats:
    """Alignment of the teacher, or of GRPO's own update, at the evaluations of each training."""

    def at(line: Mapping[str, Any]) -> float:
        found = {name: value for name, value in line["metrics"].items() if name.endswith(ALIGNMENT)}
        (value,) = [value for name, value in found.items() if name.startswith(OF_REWARD) == of_reward]
        return float("nan") if value is None else float(value)

    return np.array([[at(line) for line in history] for history in histories])


Regimes = Mapping[str, Mapping[str, Arm]]


def load(runs: Collection[Run]) -> dict[str, dict[str, Arm]]:
    """The arms of each regime that have runs, in the order of `ARM_TEXTS`."""
    found: dict[str, dict[str, Arm]] = {}
    for name, regime in REGIMES.items():
        own = [run for run in runs if run["regime"] == name]
        # Before training, all arms of a seed have the same student: it is measured once.
        before = {run["seed"]: run["accuracy"]["0"] for run in own if run["arm"] == regime.reference}
        own = [run | {"accuracy": {"0": before[run["seed"]]} | run["accuracy"]} for run in own if run["seed"] in before]
        arms = {arm: Arm.of(of) for arm in ARM_TEXTS if (of := [run for run in own if run["arm"] == arm])}
        plain = [run for run in own if run["arm"] == "ungated"]
        if arms:
            # Runs that were made before pass rates by question were recorded cannot tell what follows them.
            known = plain and all(run.get("pass_rates") for run in plain)
            derived = [arm for arm in regime.derived if plain and (known or not arm.endswith(BY_PASS_RATE))]
            found[name] = arms | {arm: scheduled(arm, plain, arms["ungated"]) for arm in derived}
    return found


def scheduled(arm: str, runs: list[Run], plain: Arm) -> Arm:
    """A schedule's arm: the ungated training until it acts, afterwards the student that it ends with."""
    accuracy, tokens = plain.accuracy.copy(), plain.tokens.copy()
    for row, run in enumerate(sorted(runs, key=lambda run: run["seed"])):
        if arm == "early_stopping":
            at, ends_with = plain.steps[-1], best_by_pass_rate(run["history"])
        else:
            by_pass_rate = arm.endswith(BY_PASS_RATE)
            found = acted_by_pass_rate(run["pass_rates"]) if by_pass_rate else acted(readings_of(run["history"]))
            at, ends_with = found.at or plain.steps[-1], getattr(found, arm.removesuffix(BY_PASS_RATE))
        after = plain.steps.index(at)
        accuracy[row, after:] = accuracy[row, plain.steps.index(ends_with)]
        tokens[row, after:] = tokens[row, after]
    return Arm(plain.seeds, plain.steps, accuracy, plain.tokens, tokens)


# -- differences


def difference(one: Arm, other: Arm, what: Callable[[Arm], Floats]) -> Estimate:
    """Mean difference, paired by seed: runs of one seed see the same questions in the same order."""
    shared = [seed for seed in one.seeds if seed in other.seeds]
    steps = [step for step in one.steps if step in other.steps]
    sides = [what(arm.at(steps))[[arm.seeds.index(seed) for seed in shared]] for arm in (one, other)]
    return interval(sides[0] - sides[1])


def final(arm: Arm) -> Floats:
    return arm.final


def over_training(arm: Arm) -> Floats:
    return arm.over_training


def harm_prevented(arm: Arm, plain: Arm) -> Estimate | None:
    """Share of the ungated training's loss of accuracy that does not happen: ratio of means, jackknife over seeds.

    `None` where the ungated training did not surely lose any, or where fewer than two seeds are known.
    """
    rows = [plain.seeds.index(seed) for seed in arm.seeds if seed in plain.seeds]
    own = [arm.seeds.index(plain.seeds[row]) for row in rows]
    lost = (plain.accuracy[:, 0] - plain.final)[rows]
    kept = arm.final[own] - plain.final[rows]
    n = len(rows)
    if n < 2 or verdict_of(interval(lost), "lost", "") != "lost":
        return None
    left_out = (kept.sum() - kept) / (lost.sum() - lost)
    pseudo = n * kept.sum() / lost.sum() - (n - 1) * left_out
    return Estimate(float(kept.sum() / lost.sum()), interval(pseudo).half_width, n)


def share_verdict(share: Estimate) -> str:
    if share.mean - share.half_width >= WANTED_SHARE:
        return "at least 80 %"
    return "less than 80 %" if share.mean + share.half_width < WANTED_SHARE else "80 % is inside the interval"


def peak_verdict(gap: Estimate) -> str:
    if gap.mean - gap.half_width > -PEAK_MARGIN:
        return f"at most {PEAK_MARGIN} below"
    return "below" if gap.mean + gap.half_width < 0 else "inconclusive, the interval includes the peak"


def verdict_of(value: Estimate, better: str, worse: str) -> str:
    if value.mean - value.half_width > 0:
        return better
    return worse if value.mean + value.half_width < 0 else "inconclusive"


def formatted(value: Estimate, digits: int = 3, *, signed: bool = False) -> str:
    mean = f"{value.mean:{'+' if signed else ''}.{digits}f}"
    return mean if np.isnan(value.half_width) else f"{mean} ± {value.half_width:.{digits}f}"


def known(arms: Mapping[str, Arm]) -> dict[str, Arm]:
    """Arms that can be compared with plain distillation, controls aside: at least two seeds of both."""
    plain = arms.get("ungated")
    return {
        name: arm
        for name, arm in arms.items()
        if name != "ungated" and not name.startswith(CONTROL) and plain and len({*arm.seeds} & {*plain.seeds}) > 1
    }


def must_show(regimes: Regimes) -> dict[str, str]:
    """The questions that the comparison was made for, each with its answer."""
    found: dict[str, str] = {}
    if {"mix", "A", "B", "equal"} <= set(regimes.get("mixture", {})):
        arms = regimes["mixture"]
        better = max(("A", "B"), key=lambda name: float(arms[name].final.mean()))
        for name, text in ((better, "the better single teacher"), ("equal", "equal weights")):
            gap = difference(arms["mix"], arms[name], final)
            verdict = verdict_of(gap, "`TeacherMix` ends above", "`TeacherMix` ends below")
            found[f"Two teachers, `TeacherMix` − {text}"] = f"{formatted(gap, signed=True)}: {verdict}"
    for regime, arms in regimes.items():
        shares = {
            name: share
            for name, arm in (known(arms) if regime.startswith("harmful") else {}).items()
            if (share := harm_prevented(arm, arms["ungated"])) is not None
        }
        gates = {name: share for name, share in shares.items() if name in GATES}
        best = max(gates, key=lambda name: gates[name].mean, default=None)
        for name in ("rollback", "stop", "rollback_pass_rate", "stop_pass_rate", best):
            if name in shares:
                most = f", the most of {len(gates)} gates" if name == best else ""
                words = f"{REGIMES[regime].title}: share of the loss that `{name}` prevents{most}"
                found[words] = f"{formatted(shares[name], 2)}, {share_verdict(shares[name])}"
    if "ruin" in regimes and known(regimes["ruin"]):
        arms = regimes["ruin"]
        plain = arms["ungated"]
        at = int(plain.accuracy.mean(0).argmax())
        peak = interval(plain.accuracy[:, at])
        for name in ("rollback", "stop", "rollback_pass_rate", "stop_pass_rate", "early_stopping"):
            if name not in arms:
                continue
            own = interval(arms[name].final - plain.accuracy[:, at])
            each = interval(arms[name].final - plain.accuracy.max(1))
            found[f"Ruin, `{name}` − the peak of the ungated mean ({formatted(peak)}, step {plain.steps[at]})"] = (
                f"{formatted(own, signed=True)}: {peak_verdict(own)}; − each seed's own best evaluation "
                f"{formatted(each, signed=True)}"
            )
    rewarded = regimes.get("reward", {})
    for name in ("grpo_distill", "grpo"):
        if name in rewarded and len({*rewarded["handover"].seeds} & {*rewarded[name].seeds}) > 1:
            gap = difference(rewarded["handover"], rewarded[name], final)
            verdict = verdict_of(gap, "`handover` ends above", "`handover` ends below")
            found[f"GRPO and a teacher that ruins later, `handover` − `{name}`"] = (
                f"{formatted(gap, signed=True)}: {verdict}"
            )
    compared = known(regimes.get("good", {}))
    if compared:
        plain = regimes["good"]["ungated"]
        worse = [name for name, arm in compared.items() if verdict_of(difference(arm, plain, final), "", "x") == "x"]
        found[
            f"Good teacher, of {len(compared)} arms those that end below plain distillation by more than their interval"
        ] = ", ".join(f"`{name}`" for name in worse) or "none"
    return found


# -- the page


def write_results(regimes: Regimes, target: Path) -> None:
    """The tables, and the plot beside them."""
    versions = {
        (REGIMES[regime].title, name): dict(zip(arm.seeds, arm.versions, strict=True))
        for regime, arms in regimes.items()
        for name, arm in arms.items()
        if arm.versions
    }
    line = version_line(versions)
    made = [line, ESTIMATOR, ""] if line else []
    lines = [
        "# Comparison of gates, mixes and schedules",
        "",
        "Generated by `make recipes-results` ([benchmarks/comparison.py](../benchmarks/comparison.py)); do not edit.",
        "",
        "The embedded student is trained with teachers of five kinds (on-policy, KL(student ‖ teacher), 16 completions "
        "per step). Accuracy: single samples on 256 held-out questions, which no arm looks at. ± is the 95 % t "
        "interval over seeds: all seeds share the 256 questions and the student, so it does not tell how other "
        "questions would differ. Differences are paired by seed. With so many arms, about one in twenty intervals "
        "misses its true value. AdamW is nearly invariant to the scale of the loss, so a gate does not reduce the step "
        "size for the tokens that it keeps.",
        "",
        *made,
        "![Accuracy at the end of each arm, as a difference to plain distillation](results.svg)",
        "",
        "## In short",
        "",
        *(f"- {name}: {value}." for name, value in must_show(regimes).items()),
        *conclusions(regimes),
        PROBE,
    ]
    for name, arms in regimes.items():
        lines += ["", *section(name, arms)]
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    target.with_name("results.svg").write_text(draw(regimes, difference, final), encoding="utf-8")
    print(f"{target}\n{target.with_name('results.svg')}")


def conclusions(regimes: Regimes) -> Iterator[str]:
    """Which gates are better or worse than plain distillation."""
    for regime in ("good", "noisy", "harmful"):
        arms = regimes.get(regime, {})
        gates = {name: arm for name, arm in known(arms).items() if name not in SCHEDULES}
        if not gates:
            continue
        sides: dict[str, list[str]] = {"better": [], "worse": [], "inconclusive": []}
        for name, arm in gates.items():
            side = verdict_of(difference(arm, arms["ungated"], over_training), "better", "worse")
            sides[side].append(f"`{name}`")
        words = "; ".join(f"{side}: {', '.join(names)}" for side, names in sides.items() if names)
        yield f"- {REGIMES[regime].title}, mean over training compared with plain distillation. {words.capitalize()}."


def section(regime: str, arms: Mapping[str, Arm]) -> Iterator[str]:
    about, reference = REGIMES[regime], arms[REGIMES[regime].reference]
    shared = sorted(set.intersection(*(set(arm.steps) for arm in arms.values())))
    common = {name: arm.at(shared) for name, arm in arms.items()}
    yield f"## {about.title}"
    yield ""
    yield f"{about.text} {about.settings['steps']} steps."
    yield ""
    yield from accuracy_table(regime, common)
    yield ""
    yield f"The student before training: {formatted(interval(reference.accuracy[:, 0]))}."
    if any(name in arms for name in SCHEDULES):
        yield (
            "Schedules are read from the ungated training: until they act, a training with them is the same to the "
            "bit. Their distilled share counts the steps until then."
        )
    for text in missing(regime, arms):
        yield from ("", text)
    yield ""
    yield f"Until an accuracy of {about.target} (means over the seeds that reached it):"
    yield ""
    yield from target_table(about.target, common)
    if reference.alignment is not None:
        training = "ungated training" if about.reference == "ungated" else f"training `{about.reference}`"
        yield ""
        yield (
            f"Alignment of the {training} (SR-weighted, {about.settings['questions']} held-out questions), and "
            f"{'its accuracy' if reference.strength is None else 'accuracy and strength by step'}:"
        )
        yield ""
        yield from course_table(about.reference, arms)


def missing(regime: str, arms: Mapping[str, Arm]) -> Iterator[str]:
    """What a regime does not compare, though a reader would expect it."""
    if any(name not in arms for name in REGIMES[regime].derived):
        yield (
            "Missing: schedules that follow the pass rate. These runs were made before pass rates by question were "
            "stored."
        )
    oracle, both, entropy = (arms.get(name) for name in ("oracle_sign", "control_both", "control_entropy_divergence"))
    if oracle and both and entropy:
        yield (
            f"Missing: controls of the oracle gates' own sizes. `oracle_sign` keeps {oracle.share:.0%} of the tokens, "
            f"the random ones of `control_both` are {both.share:.0%} and of `control_entropy_divergence` "
            f"{entropy.share:.0%}."
        ).replace("%", " %")


def accuracy_table(regime: str, arms: Mapping[str, Arm]) -> Iterator[str]:
    """A row for each arm, with its differences to the reference."""
    about, reference = REGIMES[regime], arms[REGIMES[regime].reference]
    plain = about.reference == "ungated"
    relation = f"− {about.reference}" if plain else f"`{about.reference}` − arm"
    columns = ["arm", "distills", "seeds", "accuracy at the end", relation, "mean over training", relation]
    columns += own_cells(about.reference, arms)
    harmful = regime.startswith("harmful")
    columns += ["share of the loss that it prevents"] if harmful else []
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for name, arm in arms.items():
        pair = (arm, reference) if plain else (reference, arm)
        gaps = [
            "" if name == about.reference else formatted(difference(*pair, what), signed=True)
            for what in (final, over_training)
        ]
        cells = [f"`{name}`", ARM_TEXTS[name], str(len(arm.seeds)), formatted(interval(arm.final)), gaps[0]]
        # Early stopping looks back from the end of the training, so it has no course of its own.
        cells += ["", ""] if name == "early_stopping" else [formatted(interval(arm.over_training)), gaps[1]]
        cells += own_cells(name, arms).values()
        if harmful:
            kept = None if name == about.reference else harm_prevented(arm, reference)
            cells.append("" if kept is None else formatted(kept, 2))
        yield f"| {' | '.join(cells)} |"


def own_cells(name: str, arms: Mapping[str, Arm]) -> dict[str, str]:
    """What only some regimes have: the cells of an arm by column."""
    arm = arms[name]
    if "mix" in arms:
        return {f"{kind} steps": formatted(interval(arm.by_kind[kind][:, -1])) for kind in ("two", "three")}
    share = {"distilled share": f"{arm.share:.2f}"}
    if "ungated" not in arms:
        return share
    control = control_of(name) if name in GATES else None
    against = difference(arm, arms[control], over_training) if control in arms else None
    return {"− its control": "" if against is None else formatted(against, signed=True), **share}


def target_table(target: float, arms: Mapping[str, Arm]) -> Iterator[str]:
    """What each arm needs until an accuracy."""
    yield "| arm | steps | training tokens | distilled tokens | seeds that reached it |"
    yield "|---|---|---|---|---|"
    for name, arm in arms.items():
        if name in SCHEDULES:
            continue
        spent = [np.tile(np.array(arm.steps, float), (len(arm.seeds), 1)), arm.tokens, arm.distilled]
        needed = [arm.until_accuracy(target, each) for each in spent]
        reached = np.isfinite(needed[0])
        cells = [f"{each[reached].mean():,.0f}" if reached.any() else "–" for each in needed]
        yield f"| `{name}` | {' | '.join(cells)} | {reached.sum()} of {len(reached)} |"


def course_table(reference: str, arms: Mapping[str, Arm]) -> Iterator[str]:
    """Alignment and accuracy of the reference by step; with a strength also that, and the accuracy of the others."""
    own = arms[reference]
    assert own.alignment is not None
    rows = [("alignment", own.alignment, True)]
    if own.strength is None:
        rows.append(("accuracy", own.accuracy, False))
    else:
        assert own.reward_alignment is not None
        rows.append(("alignment of GRPO's own update", own.reward_alignment, True))
        rows += [(f"accuracy, `{name}`", arm.accuracy, False) for name, arm in arms.items() if arm.steps == own.steps]
    yield "| | " + " | ".join(f"step {step}" for step in own.steps) + " |"
    yield "|---" * (len(own.steps) + 1) + "|"
    for label, values, signed in rows:
        means = [formatted(interval(column[np.isfinite(column)]), 2, signed=signed) for column in values.T]
        yield f"| {label} | " + " | ".join(means) + " |"
    if own.strength is not None:
        # Of the step after each evaluation: it stays until the next one.
        for seed, strength in zip(own.seeds, own.strength[:, own.steps[:-1]], strict=True):
            yield f"| strength from then on, seed {seed} | " + " | ".join(f"{each:.2f}" for each in strength) + " | |"
        yield ""
        yield handed_over(own.seeds, own.strength)


def handed_over(seeds: list[int], strength: Floats) -> str:
    """After which steps the strength is 0 for the first time, and how often it is."""
    none = strength == 0
    first = [f"{row.argmax()} (seed {seed})" for seed, row in zip(seeds, none, strict=True) if row.any()]
    last = int(none[:, -1].sum())
    return (
        f"The reward takes over completely (strength 0) in {len(first)} of {len(seeds)} trainings"
        + (f", for the first time after step {', '.join(first)}" if first else "")
        + f"; at the end it has in {last}. Strength 0 holds in {none.mean():.2f} of all steps."
    )


assert set(CONTROLLED) <= set(GATES)
