"""Compares gates: trains the embedded models with several gates and controls, with several seeds each.

    make recipes-results                        # all runs, two in parallel; continues after an interruption
    python recipes/compare.py --report          # only the tables and the plot, from the finished runs

Every arm trains the same student with the same teacher (`GatedDistillationTrainer`, KL(student ‖ teacher), on-policy)
on the same questions in the same order; only the gate differs. Held-out accuracy is that of single samples at
temperature 1 on questions that are not trained on. Each run is a separate process and writes a file to build/recipes;
RESULTS.md and results.svg are generated from these files alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from opd_align.core.alignment import pairs_of
from opd_align.core.metrics import Estimate, interval

HERE = Path(__file__).parent
SETTINGS = {
    "steps": 40,
    "batch": 16,
    "learning_rate": 3e-4,
    "evaluate_every": 10,
    "alignment_every": 20,
    "questions": 128,
    "alignment_questions": 4,
    "initial": 32,
    "targeted": 256,
    "quantile": 0.8,
    "max_completion_length": 96,
}
SEEDS = 5
TARGET_ACCURACY = 0.8
"""Target accuracy of the table of distilled tokens; the student starts at about 0.56."""

ARMS = {
    "ungated": ("#222222", "all tokens"),
    "incorrect": ("#0072b2", "tokens of incorrect rollouts"),
    "divergence": ("#009e73", "20 % of the tokens with the largest KL"),
    "both": ("#cc79a7", "tokens of incorrect rollouts that are among the 20 % with the largest KL"),
    "correct": ("#e69f00", "control: tokens of correct rollouts"),
    "random_rollouts": ("#56b4e9", "control: random rollouts, as many as are incorrect"),
    "random_tokens": ("#999999", "control: 20 % of the tokens at random"),
}
# `both` has no control of equal size: the control keeps more tokens, which RESULTS.md mentions.
CONTROLS = {"incorrect": ("correct", "random_rollouts"), "divergence": ("random_tokens",), "both": ("random_tokens",)}


# -- one run


def gate_of(arm: str, seed: int, verifier: Any) -> Any:
    import torch

    from opd_align.training import DivergenceAbove, FunctionGate, IncorrectOnly, Open
    from opd_align.types import Outcome

    # A separate generator, so that the training draws the same random numbers as in the other arms.
    generator = torch.Generator().manual_seed(seed)

    def correct(batch: Any) -> Any:
        return batch.outcome_mask_BT(Outcome.CORRECT).float()

    def random_rollouts(batch: Any) -> Any:
        shuffled = torch.randperm(len(batch.outcome_B), generator=generator)
        return (batch.outcome_B[shuffled] == Outcome.INCORRECT).float().unsqueeze(1) * batch.mask_BT

    def random_tokens(batch: Any) -> Any:
        return (torch.rand(batch.mask_BT.shape, generator=generator) >= SETTINGS["quantile"]).float()

    incorrect = IncorrectOnly(verifier, unknown="drop")
    divergence = DivergenceAbove(quantile=SETTINGS["quantile"])
    return {
        "ungated": Open(),
        "incorrect": incorrect,
        "divergence": divergence,
        "both": incorrect * divergence,
        "correct": FunctionGate(correct, measures=(), verifier=verifier),
        "random_rollouts": FunctionGate(random_rollouts, measures=(), verifier=verifier),
        "random_tokens": FunctionGate(random_tokens, measures=()),
    }[arm]


def train(arm: str, seed: int, file: Path) -> None:
    """Trains one arm with one seed and writes the results to the file."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import DistillationConfig

    from opd_align.backends.loading import load_model
    from opd_align.settings import Budget
    from opd_align.tasks import task
    from opd_align.training import AlignmentCallback, GatedDistillationTrainer

    arithmetic = task("arithmetic")
    student, teacher = load_model("embedded:student"), load_model("embedded:teacher")
    held_out = arithmetic.load(split="test", limit=SETTINGS["questions"])
    rows = arithmetic.load(split="train", limit=SETTINGS["steps"] * SETTINGS["batch"], seed=seed)
    output = file.with_suffix("")
    trainer = GatedDistillationTrainer(
        model=student.model,
        teacher_model=teacher.model,
        args=DistillationConfig(
            output_dir=str(output),
            max_steps=SETTINGS["steps"],
            per_device_train_batch_size=SETTINGS["batch"],
            learning_rate=SETTINGS["learning_rate"],
            lr_scheduler_type="constant",
            beta=1.0,
            temperature=1.0,
            max_completion_length=SETTINGS["max_completion_length"],
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            bf16=False,
            seed=seed,
        ),
        train_dataset=Dataset.from_list([{"prompt": arithmetic.messages(row), "answer": row.answer} for row in rows]),
        processing_class=student.tokenizer,
        gate=gate_of(arm, seed, arithmetic.verifier),
        denominator="keep",
    )
    tokenizer = student.tokenizer
    conversations = [arithmetic.messages(question) for question in held_out]
    texts = tokenizer.apply_chat_template(conversations, add_generation_prompt=True, tokenize=False)
    prompts = tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")

    def accuracy(model: Any) -> float:
        model.eval()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            generated = model.generate(
                **prompts, do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
                max_new_tokens=SETTINGS["max_completion_length"], pad_token_id=tokenizer.pad_token_id,
            )  # fmt: skip
        model.train()
        replies = tokenizer.batch_decode(generated[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
        verdicts = arithmetic.verifier(completions=replies, answer=[question.answer for question in held_out])
        return float(np.mean([verdict == 1 for verdict in verdicts]))

    measured: dict[int, float] = {}

    class HeldOut(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            measured[0] = accuracy(model)

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step % SETTINGS["evaluate_every"] == 0:
                measured[state.global_step] = accuracy(model)

    alignment = AlignmentCallback(
        trainer,
        arithmetic.load(split="test", limit=SETTINGS["alignment_questions"], offset=SETTINGS["questions"]),
        arithmetic,
        every_n_steps=SETTINGS["alignment_every"],
        budget=Budget(initial=SETTINGS["initial"], targeted=SETTINGS["targeted"], allocation="adaptive", rounds=3),
        max_overhead=None,
        on_error="raise",
    )
    trainer.add_callback(HeldOut())
    trainer.add_callback(alignment)
    start = time.monotonic()
    trainer.train()

    steps = [row for row in trainer.state.log_history if "gate/denominator" in row]
    ((teacher, objective),) = pairs_of(alignment.latest.children)
    history = [json.loads(line) for line in (output / "opd_align" / "history.jsonl").read_text().splitlines()]
    result = {
        "settings": SETTINGS,
        "arm": arm,
        "seed": seed,
        "seconds": time.monotonic() - start,
        "accuracy": measured,
        # With denominator="keep" this is the number of all completion tokens.
        "tokens": [row["gate/denominator"] for row in steps],
        "distilled": [row["gate/tokens_distilled"] for row in steps],
        "alignment": {
            row["step"]: row["metrics"][f"opd_align/{teacher}/{objective}/alignment/weighted"] for row in history
        },
    }
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(result, indent=1))
    temporary.rename(file)


# -- all runs


def finished(file: Path) -> dict[str, Any] | None:
    if not file.is_file():
        return None
    found = json.loads(file.read_text())
    return found if found["settings"] == SETTINGS else None


def run_all(folder: Path, arms: list[str], seeds: int, processes: int) -> None:
    """Runs what has no result file yet, several in parallel, each in its own process."""
    # Seeds in the outer loop: after an interruption all arms have about the same number of runs.
    wanted = [(arm, seed) for seed in range(seeds) for arm in arms]
    missing = [(arm, seed) for arm, seed in wanted if finished(folder / f"{arm}-{seed}.json") is None]
    print(f"{len(wanted) - len(missing)} of {len(wanted)} runs are finished", flush=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def run_one(arm_and_seed: tuple[str, int]) -> None:
        arm, seed = arm_and_seed
        command = [sys.executable, __file__, "--folder", str(folder), "--one", arm, str(seed)]
        log = folder / f"{arm}-{seed}.log"
        with log.open("w") as output:
            code = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT).returncode
        if code:
            raise SystemExit(f"{arm}, seed {seed} failed: see {log}")
        seconds = json.loads((folder / f"{arm}-{seed}.json").read_text())["seconds"]
        print(f"{arm}, seed {seed}: {seconds:.0f} s", flush=True)

    with ThreadPoolExecutor(processes) as pool:
        for _ in pool.map(run_one, missing):
            pass


# -- results


class Arm:
    """The runs of one arm; rows of the arrays are seeds."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        self.runs = sorted(runs, key=lambda run: run["seed"])
        self.seeds = [run["seed"] for run in self.runs]
        self.steps = [int(step) for step in self.runs[0]["accuracy"]]
        self.accuracy = np.array([list(run["accuracy"].values()) for run in self.runs])
        self.tokens = np.array([self._until(run["tokens"]) for run in self.runs])
        self.distilled = np.array([self._until(run["distilled"]) for run in self.runs])
        self.alignment_steps = [int(step) for step in self.runs[0]["alignment"]]
        self.alignment = np.array([list(run["alignment"].values()) for run in self.runs], float)

    def _until(self, per_step: list[float]) -> list[float]:
        total = np.concatenate([[0.0], np.cumsum(per_step)])
        return [float(total[step]) for step in self.steps]

    def share(self) -> float:
        """Share of the training tokens that were distilled."""
        return float((self.distilled[:, -1] / self.tokens[:, -1]).mean())

    def over_training(self) -> np.ndarray:
        """Mean accuracy over all evaluations after step 0, one number per seed."""
        return self.accuracy[:, 1:].mean(1)

    def distilled_to(self, target: float) -> np.ndarray:
        """Distilled tokens until the accuracy first reaches the target, interpolated between evaluations."""
        found = []
        for accuracy, distilled in zip(self.accuracy, self.distilled, strict=True):
            above = np.flatnonzero(accuracy >= target)
            if not len(above):
                found.append(np.nan)
                continue
            after = int(above[0])
            if after == 0:
                found.append(0.0)
                continue
            share = (target - accuracy[after - 1]) / (accuracy[after] - accuracy[after - 1])
            found.append(distilled[after - 1] + share * (distilled[after] - distilled[after - 1]))
        return np.array(found)


def load(folder: Path) -> dict[str, Arm]:
    runs = [found for file in sorted(folder.glob("*-*.json")) if (found := finished(file))]
    return {arm: Arm(own) for arm in ARMS if (own := [run for run in runs if run["arm"] == arm])}


def formatted(value: Estimate, digits: int = 3, *, signed: bool = False) -> str:
    mean = f"{value.mean:{'+' if signed else ''}.{digits}f}"
    return mean if np.isnan(value.half_width) else f"{mean} ± {value.half_width:.{digits}f}"


def difference(one: Arm, other: Arm, what: Callable[[Arm], np.ndarray]) -> Estimate:
    """Mean difference, paired by seed: runs of one seed see the same questions in the same order."""
    shared = [seed for seed in one.seeds if seed in other.seeds]
    sides = [what(arm)[[arm.seeds.index(seed) for seed in shared]] for arm in (one, other)]
    return interval(sides[0] - sides[1])


def verdict_of(value: Estimate, better: str, worse: str) -> str:
    if value.mean - value.half_width > 0:
        return better
    return worse if value.mean + value.half_width < 0 else "inconclusive"


def size_remark(own: float, control: float) -> str:
    """A remark where a control is not of equal size: more tokens may be the reason for a better result."""
    if abs(control - own) < 0.02:
        return ""
    kind = "larger" if control > own else "smaller"
    return f" The control is {kind}, not of equal size: it distils {control:.2f} of the tokens, the arm {own:.2f}."


def write_results(folder: Path, target: Path) -> None:
    arms = load(folder)
    if "ungated" not in arms:
        raise SystemExit(f"no finished runs in {folder}; run without --report first")
    seconds = [run["seconds"] for arm in arms.values() for run in arm.runs]
    counts = {len(arm.runs) for arm in arms.values()}
    final = lambda arm: arm.accuracy[:, -1]  # noqa: E731
    lines = [
        "# Comparison of gates",
        "",
        "Generated by `make recipes-results` (`recipes/compare.py`); do not edit.",
        "",
        f"The embedded student is trained with the embedded teacher for {SETTINGS['steps']} steps of "
        f"{SETTINGS['batch']} completions, {' to '.join(map(str, sorted(counts)))} seeds per arm, "
        f"{np.mean(seconds):.0f} s per run. Accuracy: single samples on {SETTINGS['questions']} held-out questions. "
        "± is the 95 % t interval over seeds; differences are paired by seed. AdamW is nearly invariant to the scale "
        "of the loss, so a gate does not reduce the step size for the tokens that it keeps.",
        "",
        "![Accuracy against training tokens and distilled tokens; alignment over training](results.svg)",
        "",
        "| arm | distils | accuracy at the end | − ungated | mean over training | − ungated | distilled share |",
        "|---|---|---|---|---|---|---|",
    ]
    plain = arms["ungated"]
    for name, arm in arms.items():
        against = [
            "" if name == "ungated" else formatted(difference(arm, plain, what), signed=True)
            for what in (final, Arm.over_training)
        ]
        lines.append(
            f"| {name} | {ARMS[name][1]} | {formatted(interval(final(arm)))} | {against[0]} | "
            f"{formatted(interval(arm.over_training()))} | {against[1]} | {arm.share():.2f} |"
        )
    lines += ["", "## Conclusions", ""]
    for name in ("incorrect", "divergence", "both"):
        if name not in arms:
            continue
        for other in ("ungated", *CONTROLS[name]):
            if other in arms:
                gap = difference(arms[name], arms[other], Arm.over_training)
                verdict = verdict_of(gap, f"{name} is better", f"{name} is worse")
                size = "" if other == "ungated" else size_remark(arms[name].share(), arms[other].share())
                words = f"{name} compared with {other}, mean over training: {formatted(gap, signed=True)}: {verdict}."
                lines.append(f"- {words}{size}")
    lines += [
        "",
        f"## Distilled tokens until an accuracy of {TARGET_ACCURACY}",
        "",
        "| arm | tokens | seeds that reached it |",
        "|---|---|---|",
    ]
    for name, arm in arms.items():
        needed = arm.distilled_to(TARGET_ACCURACY)
        reached = needed[np.isfinite(needed)]
        tokens = f"{reached.mean():,.0f} (from {reached.min():,.0f} to {reached.max():,.0f})" if len(reached) else "–"
        lines.append(f"| {name} | {tokens} | {len(reached)} of {len(needed)} |")
    lines += [
        "",
        "## Alignment over training",
        "",
        "SR-weighted cosine of the teacher's update and the ideal update, on "
        f"{SETTINGS['alignment_questions']} held-out questions; mean ± 95 % over seeds.",
        "",
        "| arm | " + " | ".join(f"step {step}" for step in plain.alignment_steps) + " |",
        "|---" * (len(plain.alignment_steps) + 1) + "|",
    ]
    for name, arm in arms.items():
        values = [formatted(interval(column[np.isfinite(column)]), 2, signed=True) for column in arm.alignment.T]
        lines.append(f"| {name} | " + " | ".join(values) + " |")
    target.write_text("\n".join(lines) + "\n", encoding="utf-8")
    target.with_name("results.svg").write_text(draw(arms), encoding="utf-8")
    print(f"{target}\n{target.with_name('results.svg')}")


# -- the plot

WIDTH, HEIGHT, LEFT, TOP, PANEL, TALL, GAP = 1000, 400, 40, 84, 270, 262, 60

DASHED = {control for controls in CONTROLS.values() for control in controls}


def draw(arms: dict[str, Arm]) -> str:
    panels = [
        ("training tokens", lambda arm: arm.tokens.mean(0), lambda arm: arm.accuracy, "Held-out accuracy"),
        ("distilled tokens", lambda arm: arm.distilled.mean(0), lambda arm: arm.accuracy, "Held-out accuracy"),
        ("step", lambda arm: np.array(arm.alignment_steps, float), lambda arm: arm.alignment, "Alignment, SR-weighted"),
    ]
    shapes = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    x = LEFT
    for name in arms:
        shapes.append(f'<path d="M{x} 20h22" {pen(name)}/><text x="{x + 28}" y="24">{label_of(name)}</text>')
        x += 48 + 7 * len(name)
    for number, (label, across, up, what) in enumerate(panels):
        shapes += panel(arms, LEFT + number * (PANEL + GAP), label, across, up, what)
    style = 'font-family="system-ui, sans-serif" font-size="12" fill="#222222"'
    body = "\n".join(shapes)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {style}>\n{body}\n</svg>\n'


def label_of(name: str) -> str:
    return name.replace("_", " ")


def pen(name: str) -> str:
    """Controls are dashed."""
    dashes = ' stroke-dasharray="5 3"' if name in DASHED else ""
    return f'fill="none" stroke="{ARMS[name][0]}" stroke-width="2" stroke-linejoin="round"{dashes}'


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers between low and high."""
    size = 10.0 ** np.floor(np.log10((high - low) / 4))
    step = next(size * factor for factor in (1, 2, 5, 10) if (high - low) / (size * factor) <= 5)
    return [float(n * step) for n in range(int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9)) + 1)]


def panel(
    arms: dict[str, Arm], left: float, label: str, across: Callable[[Arm], Any], up: Callable[[Arm], Any], what: str
) -> list[str]:
    """One panel: a line per arm with an error bar at its end; a confidence band for the ungated arm."""
    curves = {}
    for name, arm in arms.items():
        points = [interval(column[np.isfinite(column)]) for column in up(arm).T]
        middle = np.array([point.mean for point in points])
        half = np.nan_to_num([point.half_width for point in points])
        curves[name] = np.asarray(across(arm), float), middle, half
    right = max(x.max() for x, _, _ in curves.values()) * 1.04
    plotted = [(y, half) for name, (_, y, half) in curves.items() if name == "ungated"]
    plotted += [(y[-1:], half[-1:]) for _, y, half in curves.values()] + [(y, 0 * y) for _, y, _ in curves.values()]
    low, high = min((y - half).min() for y, half in plotted), max((y + half).max() for y, half in plotted)

    def place(x: float, y: float) -> tuple[float, float]:
        return left + x / right * PANEL, TOP + (high - y) / (high - low) * TALL

    def line(x: Any, y: Any) -> str:
        return " ".join("{:.1f},{:.1f}".format(*place(*pair)) for pair in zip(x, y, strict=True))

    shapes = [f'<text x="{left:.0f}" y="{TOP - 20}" font-weight="600">{what}</text>']
    for value in ticks(low, high):
        y = place(0, value)[1]
        shapes.append(f'<path d="M{left:.0f} {y:.1f}h{PANEL}" stroke="#e4e4e4"/>')
        shapes.append(f'<text x="{left - 6:.0f}" y="{y + 4:.1f}" text-anchor="end" fill="#666666">{value:.1f}</text>')
    for value in ticks(0, right):
        x = place(value, low)[0]
        shapes.append(
            f'<text x="{x:.1f}" y="{TOP + TALL + 18}" text-anchor="middle" fill="#666666">{value:,.0f}</text>'
        )
    shapes.append(f'<text x="{left + PANEL / 2:.0f}" y="{TOP + TALL + 38}" text-anchor="middle">{label}</text>')
    for name, (x, y, half) in curves.items():
        if name == "ungated":
            band = f"{line(x, y + half)} {line(x[::-1], (y - half)[::-1])}"
            shapes.append(f'<polygon points="{band}" fill="{ARMS[name][0]}" fill-opacity="0.08"/>')
    for number, (name, (x, y, half)) in enumerate(curves.items()):
        shapes.append(f'<polyline points="{line(x, y)}" {pen(name)}/>')
        # Error bars are shifted so that they do not overlap.
        at, (top, bottom) = place(x[-1], 0)[0] + 2 * number, (place(0, y[-1] + side * half[-1])[1] for side in (1, -1))
        shapes.append(f'<path d="M{at:.1f} {top:.1f}V{bottom:.1f}" stroke="{ARMS[name][0]}" stroke-opacity="0.5"/>')
    return shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/recipes"), help="folder of the result files")
    parser.add_argument(
        "--out",
        type=Path,
        default=HERE / "RESULTS.md",
        help="file for the tables; the plot is written to the same folder",
    )
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS), help="arms to run")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds per arm")
    parser.add_argument("--processes", type=int, default=2, help="number of runs in parallel")
    parser.add_argument("--report", action="store_true", help="no training, only tables and plot")
    parser.add_argument("--one", nargs=2, metavar=("ARM", "SEED"), help="a single run, in this process")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.one:
        arm, seed = arguments.one
        train(arm, int(seed), arguments.folder / f"{arm}-{seed}.json")
        return
    if not arguments.report:
        run_all(arguments.folder, arguments.arms, arguments.seeds, arguments.processes)
    write_results(arguments.folder, arguments.out)


if __name__ == "__main__":
    main()
