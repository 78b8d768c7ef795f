"""Acting on alignment: a mix of teachers, and a schedule that undoes harm, on the embedded models.

    python benchmarks/acting.py --regime mixture --seeds 5     # continues after an interruption
    python benchmarks/acting.py --regime ruin --seeds 5
    python benchmarks/acting.py --report                       # only the tables, from the finished runs
    python benchmarks/acting.py --simulate                     # the schedule on the recorded courses of alarm.py

`mixture`: two teachers; each is the embedded teacher on one kind of question (two or three steps) and the student moved
away from it on the other. Arms: each teacher alone, equal weights, `TeacherMix`. Each arm is a training of its own,
with the same questions in the same order. `ruin`: the embedded teacher with noise on its weights, other noise for each
seed; it helps first and ruins later. Until a schedule acts, a training with it is that without it to the bit
(tests/training/test_acting_on_alignment.py), so one training per seed has all arms: ungated is its end, `stop` the step
at which the schedule ends it, `rollback` the evaluation that it returns to. Accuracy is that of single samples on
held-out questions that the callback does not see. Differences are paired by seed, with 95 % t intervals.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from _prediction_models import by_question, plain
from _prediction_teachers import _noisy
from alarm import COURSES, QUESTION_SD, QUESTIONS, STEPS

from opd_align.backends.loading import load_model
from opd_align.core.alarm import LEVELS, Reading
from opd_align.core.intervals import interval
from opd_align.settings import Budget
from opd_align.tasks import task
from opd_align.training.alignment_schedule import best_step, judge

SETTINGS: dict[str, dict[str, Any]] = {
    "mixture": {"steps": 40, "every": 10, "questions": 32, "away": 0.3, "initial": 32, "targeted": 64},
    "ruin": {"steps": 80, "every": 10, "questions": 32, "sigma": 0.4, "noise_seed": 11, "initial": 32, "targeted": 128},
}
QUICK = {"steps": 2, "every": 1, "questions": 8, "initial": 16, "targeted": 16}
COMMON = {"batch": 16, "learning_rate": 3e-4, "accuracy_questions": 256, "max_completion_length": 96}
ARMS = {"mixture": ("A", "B", "equal", "mix"), "ruin": ("ungated",)}
ARITHMETIC = task("arithmetic")


def kind_of(question: Any) -> str:
    return "three" if "Then" in question.text else "two"


def row_of(question: Any) -> dict[str, Any]:
    return {"prompt": ARITHMETIC.messages(question), "answer": question.answer, "kind": kind_of(question)}


def of_both_kinds(n: int, *, offset: int) -> list[Any]:
    """Held-out questions, as many of each kind."""
    questions = ARITHMETIC.load(split="test", limit=8 * n, offset=offset)
    return [each for kind in ("two", "three") for each in [q for q in questions if kind_of(q) == kind][: n // 2]]


def moved(student: Any, teacher: Any, by: float) -> Any:
    """The student's weights on the line to the teacher's; away from it with a negative share."""
    made, target = copy.deepcopy(student), teacher.state_dict()
    made.load_state_dict({name: torch.lerp(weight, target[name], by) for name, weight in made.state_dict().items()})
    return made


def teachers_of(regime: str, seed: int, student: Any, teacher: Any, tokenizer: Any) -> dict[str, Any]:
    settings = SETTINGS[regime]
    if regime == "ruin":
        return {"noisy": _noisy(teacher, settings["sigma"], settings["noise_seed"] + seed)}

    def is_two_step(tokens: Any) -> bool:
        return "Then" not in tokenizer.decode(list(tokens)).partition("<|im_start|>assistant\n")[0]

    good, bad = plain(teacher), plain(moved(student, teacher, -settings["away"]))
    return {"A": by_question(good, bad, is_two_step), "B": by_question(bad, good, is_two_step)}


def run(regime: str, arm: str, seed: int, file: Path) -> None:
    """One training; writes what it measured to the file."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import DistillationConfig

    from opd_align.training import AlignmentCallback, GatedDistillationTrainer, Open, TeacherMix

    settings = SETTINGS[regime] | COMMON
    loaded = load_model("embedded:student")
    student, tokenizer = loaded.model, loaded.tokenizer
    teacher = load_model("embedded:teacher").model
    frozen = copy.deepcopy(student).requires_grad_(False)
    teachers = teachers_of(regime, seed, frozen, teacher.requires_grad_(False), tokenizer)
    weights = {"equal": {"A": 1.0, "B": 1.0}, "mix": None}.get(arm, {arm: 1.0} if arm in teachers else {"noisy": 1.0})
    kind = "kind" if arm == "mix" else None
    mix = TeacherMix(teachers, weights=weights, kind=kind, seed=seed)
    trained = ARITHMETIC.load(split="train", limit=settings["steps"] * settings["batch"], seed=seed)
    output = file.with_suffix("")
    trainer = GatedDistillationTrainer(
        model=student, teacher_model=mix, gate=Open(), denominator="keep", processing_class=tokenizer,
        train_dataset=Dataset.from_list([row_of(question) for question in trained]),
        args=DistillationConfig(
            output_dir=str(output), max_steps=settings["steps"], per_device_train_batch_size=settings["batch"],
            learning_rate=settings["learning_rate"], lr_scheduler_type="constant", beta=1.0, temperature=1.0,
            max_completion_length=settings["max_completion_length"], gradient_checkpointing=False, logging_steps=1,
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, seed=seed,
        ),
    )  # fmt: skip
    tested = ARITHMETIC.load(split="test", limit=settings["accuracy_questions"])
    measured: dict[int, dict[str, float]] = {}

    def accuracy(model: Any) -> dict[str, float]:
        texts = tokenizer.apply_chat_template(
            [ARITHMETIC.messages(question) for question in tested], add_generation_prompt=True, tokenize=False
        )
        inputs = tokenizer(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
        model.eval()
        with torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            generated = model.generate(
                **inputs, do_sample=True, top_k=0, top_p=1.0, temperature=1.0, pad_token_id=tokenizer.pad_token_id,
                max_new_tokens=settings["max_completion_length"],
            )  # fmt: skip
        model.train()
        replies = tokenizer.batch_decode(generated[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        right = np.array(ARITHMETIC.verifier(completions=replies, answer=[each.answer for each in tested])) == 1
        kinds = np.array([kind_of(question) for question in tested])
        return {"all": float(right.mean()), **{each: float(right[kinds == each].mean()) for each in ("two", "three")}}

    class Accuracy(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            measured[0] = accuracy(model)

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if state.global_step % settings["every"] == 0:
                measured[state.global_step] = accuracy(model)
                print(state.global_step, measured[state.global_step], mix.metrics(), flush=True)

    needs_alignment = regime == "ruin" or arm == "mix"
    if needs_alignment:
        held_out = of_both_kinds(settings["questions"], offset=settings["accuracy_questions"])
        callback = AlignmentCallback(
            trainer, [row_of(question) for question in held_out], ARITHMETIC, every_n_steps=settings["every"],
            budget=Budget(settings["initial"], settings["targeted"], allocation="adaptive", rounds=2),
            max_overhead=None, on_error="raise",
        )  # fmt: skip
        trainer.add_callback(callback)
        if arm == "mix":
            mix.follow(callback)
    trainer.add_callback(Accuracy())
    start = time.monotonic()
    trainer.train()
    history = output / "opd_align" / "history.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()] if needs_alignment else []
    steps = [row for row in trainer.state.log_history if "gate/denominator" in row]
    found = {
        "settings": settings, "arm": arm, "seed": seed, "seconds": time.monotonic() - start, "accuracy": measured,
        "tokens": [row["gate/denominator"] for row in steps], "distilled": [row["gate/tokens_distilled"] for row in steps],
        "history": [{"step": line["step"], "metrics": line["metrics"]} for line in lines],
        "weights": {kind: list(each) for kind, each in mix.weights.items()},
    }  # fmt: skip
    temporary = file.with_suffix(".new")
    temporary.write_text(json.dumps(found, indent=1))
    temporary.rename(file)


def finished(folder: Path, regime: str, arm: str, seed: int) -> dict[str, Any] | None:
    file = folder / f"{regime}-{arm}-{seed}.json"
    found = json.loads(file.read_text()) if file.is_file() else None
    return found if found is not None and found["settings"] == SETTINGS[regime] | COMMON else None


def pm(values: Any) -> str:
    estimate = interval(np.array(values, float))
    return f"{estimate.mean:+.3f} ± {estimate.half_width:.3f} (n = {estimate.n})"


def last(run: dict[str, Any]) -> float:
    return float(run["accuracy"][max(run["accuracy"], key=int)]["all"])


def report_mixture(folder: Path) -> dict[str, Any]:
    runs = {
        arm: {seed: run for seed in range(100) if (run := finished(folder, "mixture", arm, seed))}
        for arm in ARMS["mixture"]
    }
    found: dict[str, Any] = {}
    for arm, of in runs.items():
        if of:
            found[f"{arm}: accuracy at the end"] = pm([last(run) for run in of.values()])
    for other in ("A", "B", "equal"):
        seeds = sorted(runs["mix"].keys() & runs[other].keys())
        if seeds:
            differences = [last(runs["mix"][seed]) - last(runs[other][seed]) for seed in seeds]
            found[f"mix − {other}"] = pm(differences)
    return found


def scheduled(run: dict[str, Any]) -> dict[str, float]:
    """Accuracy at the end of each arm of a long training, and its peak."""
    from opd_align.training.alarm_log import readings_by_variant

    ((_, readings),) = readings_by_variant([(line["step"], line) for line in run["history"]]).items()
    return acted(readings, {int(step): each["all"] for step, each in run["accuracy"].items()})


def acted(readings: list[Reading], accuracy: dict[int, float]) -> dict[str, float]:
    """What each arm ends with, given the readings and the accuracy at their steps."""
    ungated, peak = accuracy[max(accuracy)], max(accuracy.values())
    at = next((n for n in range(len(readings)) if LEVELS[judge([readings[: n + 1]]).level] < 0), None)
    found = {"before": accuracy[0], "peak": peak, "ungated": ungated, "stop": ungated, "rollback": ungated}
    if at is not None:
        until: list[Reading] = readings[: at + 1]
        target = best_step([until], [each.step for each in until])
        found |= {"stop": accuracy[until[-1].step], "rollback": accuracy[until[-1].step if target is None else target]}
    return found


def report_ruin(folder: Path) -> dict[str, Any]:
    runs = [run for seed in range(100) if (run := finished(folder, "ruin", "ungated", seed))]
    arms = [scheduled(run) for run in runs]
    if not arms:
        return {}
    found = {name: pm([each[name] for each in arms]) for name in arms[0]}
    for name in ("stop", "rollback"):
        for other in ("ungated", "peak"):
            found[f"{name} − {other}"] = pm([each[name] - each[other] for each in arms])
    return found


def simulate(trainings: int = 400) -> dict[str, Any]:
    """Accuracy at the end of simulated trainings: mean over trainings, by course and number of questions."""
    found: dict[str, Any] = {}
    for course in COURSES:
        if course.accuracy is None:
            continue
        found[f"{course.name}: peak, ungated"] = f"{max(course.accuracy):.2f}, {course.accuracy[-1]:.2f}"
        for questions in QUESTIONS:
            rng, error = np.random.default_rng(questions), QUESTION_SD / questions**0.5
            ends: dict[str, list[float]] = {"stop": [], "rollback": []}
            for _ in range(trainings):
                noise = rng.normal(0, error, len(course.alignment))
                readings = [Reading(STEPS * n, mean, error) for n, mean in enumerate(course.alignment + noise)]
                accuracy = {STEPS * n: each for n, each in enumerate(course.accuracy)}
                arms = acted(readings, accuracy)
                for name, values in ends.items():
                    values.append(arms[name])
            text = ", ".join(f"{name} {np.mean(values):.3f} (sd {np.std(values):.2f})" for name, values in ends.items())
            found[f"{course.name}: {questions} questions"] = text
    return found


def ended_at_zero(trainings: int = 2000) -> dict[str, Any]:
    """Share of simulated trainings that a schedule ends by an evaluation, where the true alignment is always 0."""
    found: dict[str, Any] = {}
    for questions in (32, 128):
        error = QUESTION_SD / questions**0.5
        for required in (1, 2):
            rng, ends = np.random.default_rng(questions), []
            for _ in range(trainings):
                readings = [Reading(STEPS * n, mean, error) for n, mean in enumerate(rng.normal(0, error, 6))]
                judged = (judge([readings[: n + 1]], min_readings=required).level for n in range(6))
                ends.append(next((n + 1 for n, level in enumerate(judged) if LEVELS[level] < 0), 7))
            text = ", ".join(f"evaluation {n}: {np.mean(np.array(ends) <= n):.1%}" for n in (1, 2, 6))
            found[f"{questions} questions, {required} reading{'s' * (required > 1)}"] = text
    return found


def measure(folder: Path, regimes: Iterable[str], seeds: Sequence[int]) -> dict[str, Any]:
    """Makes the trainings that are not finished; returns the tables of all that are."""
    folder.mkdir(parents=True, exist_ok=True)
    for regime in regimes:
        # Seeds in the outer loop: after an interruption all arms have about the same number of runs.
        for seed in seeds:
            for arm in ARMS[regime]:
                if finished(folder, regime, arm, seed) is None:
                    print(f"{regime}, {arm}, seed {seed}", flush=True)
                    run(regime, arm, seed, folder / f"{regime}-{arm}-{seed}.json")
    return {"mixture": report_mixture(folder), "ruin": report_ruin(folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--regime", choices=sorted(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("build/acting"))
    parser.add_argument("--report", action="store_true", help="only print the tables")
    parser.add_argument("--simulate", action="store_true", help="only simulated readings of recorded courses")
    parser.add_argument("--quick", action="store_true", help="a few steps on a few questions: figures mean nothing")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    arguments = parser.parse_args()
    if arguments.quick:
        with TemporaryDirectory() as folder:
            for settings in SETTINGS.values():
                settings |= QUICK
            COMMON["accuracy_questions"] = 16
            found = measure(Path(folder), SETTINGS, range(1)) | {
                "simulated": simulate(20),
                "ended at 0": ended_at_zero(20),
            }
    elif arguments.simulate:
        found = {"simulated": simulate(), "ended at 0": ended_at_zero()}
    else:
        regimes = [arguments.regime] if arguments.regime else sorted(SETTINGS)
        seeds = range(0 if arguments.report else arguments.seeds)
        found = measure(arguments.folder, regimes, [arguments.first_seed + seed for seed in seeds])
        found |= {"simulated": simulate(), "ended at 0": ended_at_zero()}
    for name, table in found.items():
        print(f"\n{name}")
        for key, value in table.items():
            print(f"  {key:32s} {value}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
