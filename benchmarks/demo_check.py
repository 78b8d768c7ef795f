"""Does the demo recommend the teacher that training shows to be the best?

    OMP_NUM_THREADS=1 python benchmarks/demo_check.py        # 20 minutes on a free core; resumes
    python benchmarks/demo_check.py [--quick] [--json FILE]

The student is trained with each teacher of the demo as in the prediction study (`_prediction_training`). Then
`opd-align analyze` runs with its defaults for several seeds, each with questions of its own. A recommendation is right
if no teacher that it names gains less than the best one, as far as the trainings can tell: the 95 % interval of the
difference includes zero.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _prediction_analysis import TAILS, Gain, gain_of, plain
from _prediction_teachers import Entry, World
from _prediction_training import measure_before, run
from rich.console import Console
from rich.table import Table

from opd_align.cli.main import main as opd_align

CANDIDATES = (
    Entry("Self-1C", "demo", "context", {"context": "1C"}, "reverse_kl"),
    Entry("Teacher", "demo", "embedded", {"model": "teacher"}, "reverse_kl"),
    Entry("Careless", "demo", "embedded", {"model": "careless"}, "reverse_kl"),
)
"""The teachers of the demo, under the names that it uses."""
FIRST_SEED = 101
"""The demo was developed with small seeds."""
DRAWS = 4000


@dataclass(frozen=True)
class Size:
    """How large the check is.

    Args:
        train: Training questions.
        held_out: Held-out questions.
        samples: Samples per held-out question after a training; four times as many before.
        steps: Training steps.
        trainings: Trainings per teacher.
        demos: Runs of the demo.
        options: Options of `opd-align analyze`.
    """

    train: int = 288
    held_out: int = 256
    samples: int = 2
    steps: int = 16
    trainings: int = 3
    demos: int = 10
    options: tuple[str, ...] = ()


SMALL = Size(
    train=16, held_out=32, samples=1, steps=2, trainings=1, demos=1,
    options=("--limit", "4", "--initial", "40", "--targeted", "80", "--set", "demonstrations.trials=20"),
)  # fmt: skip


@dataclass(frozen=True)
class Demo:
    """One run of the demo.

    Args:
        seed: Of its sampling and its questions.
        line: The recommendation, as it is printed.
        decision: What `summary.json` says.
    """

    seed: int
    line: str
    decision: dict[str, Any]

    @property
    def named(self) -> tuple[str, ...]:
        """The teachers that the recommendation says to use; none if it does not recommend any."""
        if not self.line.startswith("Use "):
            return ()
        at = [0, *self.decision["as_good"]]
        return tuple(self.decision["candidates"][index]["teacher"] for index in at)

    @property
    def harmful(self) -> tuple[str, ...]:
        """The teachers that the recommendation calls harmful."""
        return tuple(teacher for teacher, _ in self.decision["harmful"])

    def better(self, first: str, second: str) -> float:
        """The stated probability that one teacher is better than another."""
        order = [each["teacher"] for each in self.decision["candidates"]]
        return float(self.decision["better"][order.index(first)][order.index(second)])


@dataclass(frozen=True)
class Trainings:
    """What the trainings showed.

    Args:
        after_of: For each teacher, accuracy after training, by training and held-out question.
        before_Q: Accuracy before, by held-out question.
        gains: For each teacher, with its interval.
    """

    after_of: dict[str, np.ndarray]
    before_Q: np.ndarray
    gains: dict[str, Gain]

    @staticmethod
    def load(folder: Path, trainings: int) -> Trainings:
        before = _read(folder / "before.json")
        before_Q = np.array(before["correct"]) / before["samples"]
        runs = {
            entry.name: [_read(folder / "runs" / f"{entry.name}-{seed}.json") for seed in range(trainings)]
            for entry in CANDIDATES
        }
        return Trainings(
            {name: np.array([np.array(r["correct"]) / r["samples"] for r in own]) for name, own in runs.items()},
            before_Q,
            {name: gain_of(own, before_Q, np.array(before["two_step"])) for name, own in runs.items()},
        )

    @property
    def best(self) -> str:
        return max(self.gains, key=lambda name: self.gains[name].mean)

    @property
    def harms(self) -> list[str]:
        """The teachers whose gain is clearly below zero."""
        return [name for name, gain in self.gains.items() if gain.high < 0]

    def difference(self, first: str, second: str) -> tuple[float, float, float]:
        """How much more one teacher gains than another: mean and 95 % interval, over trainings and shared questions."""
        sides = [self.after_of[name] for name in (first, second)]
        rng = np.random.default_rng(0)
        draws = []
        for _ in range(DRAWS):
            question_Q = rng.integers(0, len(self.before_Q), len(self.before_Q))
            means = [side[rng.integers(0, len(side), len(side))][:, question_Q].mean() for side in sides]
            draws.append(means[0] - means[1])
        low, high = np.quantile(draws, TAILS)
        return float(sides[0].mean() - sides[1].mean()), float(low), float(high)

    def as_good_as_best(self, name: str) -> bool:
        return name == self.best or self.difference(name, self.best)[2] >= 0


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _write(file: Path, content: Any) -> None:
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.rename(file)


def train_all(size: Size, folder: Path) -> None:
    """Trains what has no file yet."""
    runs = folder / "runs"
    runs.mkdir(exist_ok=True)
    missing = [
        (seed, entry)
        for seed in range(size.trainings)
        for entry in CANDIDATES
        if not (runs / f"{entry.name}-{seed}.json").exists()
    ]
    if not missing:
        return
    world = World(folder, size.train, 0)
    held_out = world.task.load(split="test", limit=size.held_out, seed=31)
    measure_before(world, held_out, 4 * size.samples, folder / "before.json")
    for seed, entry in missing:
        result = run(
            world, entry, seed=seed, steps=size.steps, held_out=held_out, samples=size.samples,
            folder=folder / "trainer",
        )  # fmt: skip
        _write(runs / f"{entry.name}-{seed}.json", result)
        print(f"{entry.name}, seed {seed}: {result['accuracy']:.3f} ({result['cpu_seconds']:.0f} s)", flush=True)


def run_demo(seed: int, size: Size, folder: Path) -> Demo:
    """`opd-align analyze` with its defaults, unless that seed has been run."""
    file = folder / f"demo-{seed}.json"
    if not file.exists():
        out = folder / f"demo-{seed}"
        command = ["analyze", "--quiet", "--out", str(out), "--seed", str(seed), "--set", f"questions.seed={seed}"]
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            code = opd_align([*command, *size.options])
        if code:
            raise SystemExit(f"opd-align {' '.join(command)} failed with exit code {code}")
        line = " ".join(printed.getvalue().partition("\nreport ")[0].split())
        _write(file, {"seed": seed, "line": line, "decision": _read(out / "summary.json")["decision"]})
        print(f"demo, seed {seed}: {line}", flush=True)
    return Demo(**_read(file))


def figures(trainings: Trainings, demos: list[Demo]) -> dict[str, Any]:
    """How often the demo is right, and how sure it was where it was right or wrong."""
    right = [bool(demo.named) and all(map(trainings.as_good_as_best, demo.named)) for demo in demos]
    pairs = [
        (first.name, second.name) for at, first in enumerate(CANDIDATES) for second in CANDIDATES[at + 1 :]
    ]  # fmt: skip
    compared = {}
    for first, second in pairs:
        mean, low, high = trainings.difference(first, second)
        clear = low > 0 or high < 0
        stated = [demo.better(first, second) for demo in demos]
        compared[f"{first} - {second}"] = {
            "difference": mean, "low": low, "high": high, "stated": stated,
            # Where training does not separate two teachers, there is no right side.
            "right_side": sum((p > 0.5) == (mean > 0) for p in stated) if clear else None,
            "brier": float(np.mean([(p - (mean > 0)) ** 2 for p in stated])) if clear else None,
            "decided": sum(max(p, 1 - p) >= demo.decision["level"] for p, demo in zip(stated, demos, strict=True)),
        }  # fmt: skip
    helps = [
        (candidate["p_helps"], trainings.gains[candidate["teacher"]])
        for demo in demos
        for candidate in demo.decision["candidates"]
    ]
    known = [(p, gain.mean > 0) for p, gain in helps if gain.low > 0 or gain.high < 0]
    return {
        "demos": len(demos),
        "right": sum(right),
        "names_the_best": sum(demo.named[:1] == (trainings.best,) for demo in demos),
        "recommends": {each.name: sum(each.name in demo.named for demo in demos) for each in CANDIDATES},
        "harmful_named": sum(set(trainings.harms) <= set(demo.harmful) for demo in demos),
        "harmful_wrongly_named": sum(bool(set(demo.harmful) - set(trainings.harms)) for demo in demos),
        "best": trainings.best,
        "harms": trainings.harms,
        "accuracy_before": float(trainings.before_Q.mean()),
        "gains": {name: {"mean": g.mean, "low": g.low, "high": g.high, "seeds": list(g.seeds)}
                  for name, g in trainings.gains.items()},
        "pairs": compared,
        "p_first": [demo.decision["p_first"] for demo in demos],
        "outcomes": [demo.decision["outcome"] for demo in demos],
        "helps_right": sum((p > 0.5) == truth for p, truth in known),
        "helps_known": len(known),
        "helps_brier": float(np.mean([(p - truth) ** 2 for p, truth in known])) if known else None,
        "helps_least_sure": min((max(p, 1 - p) for p, _ in known), default=None),
        "lines": {str(demo.seed): demo.line for demo in demos},
    }  # fmt: skip


def show(found: dict[str, Any]) -> None:
    console = Console(width=150)
    table = Table("teacher", "gain in held-out accuracy [95 %]", "recommended in")
    for name, gain in found["gains"].items():
        interval = f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
        table.add_row(name, interval, f"{found['recommends'][name]} of {found['demos']}")
    console.print(table)
    table = Table(
        "pair", "difference of gains [95 %]", "stated probability: median, range", "right side", "Brier score"
    )
    for pair, row in found["pairs"].items():
        stated = row["stated"]
        side = "not separated" if row["right_side"] is None else f"{row['right_side']} of {found['demos']}"
        table.add_row(
            pair, f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]",
            f"{np.median(stated):.2f}, {min(stated):.2f} to {max(stated):.2f}", side,
            "–" if row["brier"] is None else f"{row['brier']:.3f}",
        )  # fmt: skip
    console.print(table)
    for seed, line in found["lines"].items():
        print(f"seed {seed}: {line}")
    n = found["demos"]
    print(f"the recommended teacher is as good as the best by training ({found['best']}): {found['right']} of {n}")
    print(f"the recommended teacher is the one with the largest gain: {found['names_the_best']} of {n}")
    harms = ", ".join(found["harms"]) or "none"
    print(f"all teachers that harm ({harms}) are named as harmful: {found['harmful_named']} of {n}")
    print(f"ratio {found['right'] / n:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one small demo, two steps: numbers mean nothing")
    parser.add_argument("--folder", type=Path, default=Path("build/demo_check"), help="where results are kept")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    for name in ("trl", "transformers", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.set_num_threads(1)
    size = SMALL if arguments.quick else Size()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) if arguments.quick else arguments.folder
        folder.mkdir(parents=True, exist_ok=True)
        train_all(size, folder)
        demos = [run_demo(FIRST_SEED + n, size, folder) for n in range(size.demos)]
        found = figures(Trainings.load(folder, size.trainings), demos)
    show(found)
    if arguments.json:
        arguments.json.write_text(json.dumps(plain(found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
