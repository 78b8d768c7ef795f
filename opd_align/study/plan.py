"""The plan of a study: rollouts, tokens, memory, time and money, before they are spent.

Lengths and speed are measured on a few rollouts of the student; the rest is arithmetic on the budget, the same that
`enrich` does. So the plan is an estimate from above: a target that needs no more visits costs less than planned. A
small finished run tells more: how much of that was needed, how far targeted rollouts run, and how long all of it took,
scoring and estimates included.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from opd_align.backends.loading import short_name, weight_bytes
from opd_align.report.table_format import Column, Table, row, to_rich
from opd_align.runs.filesystem import AnyPath, PathLike, as_path, error_reason
from opd_align.runs.manifest import read_manifest
from opd_align.runs.rollout_store import ROLLOUTS, DamagedFileError, read_shard
from opd_align.runs.run_directory import MANIFEST, RunDirectory, Usage
from opd_align.settings import Budget
from opd_align.study.build import Study
from opd_align.types import OpdAlignError, SampleRequest

SAMPLED = 16
"""Rollouts that are sampled of each question looked at, to learn length and speed."""
TIMED = 0.95
"""How much of a run must have been sampled while the clock ran, for its speed to be believed."""


@dataclass(frozen=True)
class Prices:
    """What the work is done with: GPUs that share it, tokens a second of each (`None`: to be measured), dollars."""

    gpus: int = 1
    tokens_per_second: float | None = None
    dollars_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        speed = 1.0 if self.tokens_per_second is None else self.tokens_per_second
        dollars = self.dollars_per_gpu_hour or 0.0
        if self.gpus < 1 or not 0 < speed < math.inf or not 0 <= dollars < math.inf:
            raise OpdAlignError(f"a plan needs a GPU, a speed above 0 and a price that is not negative; got {self}")


@dataclass(frozen=True)
class Measured:
    """What rollouts told: tokens of a completion, tokens a second; new tokens of a targeted one, how many of the
    targeted ones that the budget allows were needed, and the budget and the teachers they were made with, where known.
    """

    length: float
    tokens_per_second: float
    targeted_length: float | None = None
    needed: float = 1.0
    budget: Budget | None = None
    teachers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Counts for all questions together; `seconds` on one GPU."""

    questions: int
    initial: int
    targeted: int
    tokens: int
    scored_tokens: int
    seconds: float

    def seconds_on(self, gpus: int) -> float:
        """By the clock: a question is worked on in one place, and the last round of questions may leave others idle."""
        return self.seconds / self.questions * math.ceil(self.questions / gpus)


def targeted_rollouts(budget: Budget, length: float) -> int:
    """Rollouts of the enrichment of one question at most, for paths of the given length."""
    if budget.targeted is not None and budget.allocation == "adaptive":
        return budget.targeted
    paths = budget.correct_paths + budget.incorrect_paths
    windows, start, width = 0, 0.0, float(budget.first_window)
    while start < length:
        windows, start, width = windows + 1, start + width, 2 * width
    whole = paths * windows * (budget.by_update + budget.by_gap) * budget.n_min
    if budget.allocation == "adaptive":
        return whole // 2
    return whole if budget.targeted is None else min(whole, budget.targeted)


def planned(budget: Budget, questions: int, teachers: int, measured: Measured, *, futures: bool = False) -> Plan:
    """What the budget comes to. A targeted rollout is launched half-way down a path, unless it is known better.

    `futures`: an objective looks at what comes after a token (MiniLLM), for which every rollout is scored too.
    """
    targeted = measured.needed * targeted_rollouts(budget, measured.length)
    new = measured.length / 2 if measured.targeted_length is None else measured.targeted_length
    tokens = measured.length * budget.initial + new * targeted
    paths = budget.correct_paths + budget.incorrect_paths
    scored = (paths + futures * (budget.initial + targeted)) * measured.length * (1 + teachers)
    return Plan(
        questions,
        questions * budget.initial,
        round(questions * targeted),
        round(questions * tokens),
        round(questions * scored),
        questions * tokens / measured.tokens_per_second,
    )


def measure(study: Study, questions: int = 2) -> Measured:
    """Samples a little of the student: once to warm up, then against the clock."""
    nothing = np.empty(0, np.uint32)
    study.student.sample([SampleRequest(study.questions[0], nothing, 2)])
    requests = [SampleRequest(question, nothing, SAMPLED) for question in study.questions[:questions]]
    start = time.perf_counter()
    rollouts = study.student.sample(requests)
    seconds = time.perf_counter() - start
    if not len(rollouts):
        reason = rollouts.failures[0].reason if rollouts.failures else "the student gave nothing back"
        raise OpdAlignError(f"none of {SAMPLED * len(requests)} rollouts came to an end, so there is no plan: {reason}")
    return Measured(float(rollouts.length_R.mean()), len(rollouts.tokens) / seconds)


def calibrated(run: PathLike, tokens_per_second: float | None = None) -> Measured:
    """What a finished run tells about larger ones of the same student and task."""
    folder, analysis = as_path(run), RunDirectory.load(run)
    manifest = read_manifest(folder / MANIFEST) or {}
    natural, forced = [0, 0], [0, 0]  # rollouts, and their new tokens
    for file in (folder / ROLLOUTS).glob("*.parquet"):
        try:
            batch = read_shard(file)
        except DamagedFileError as error:
            raise OpdAlignError(
                f"{str(file)!r} is damaged ({error}); take another run, or make this one anew"
            ) from error
        except OSError as error:
            raise OpdAlignError(f"could not read {str(file)!r}: {error_reason(error)}") from error
        if batch is not None:
            launch_R, new_R = batch.rollouts.launch_R, batch.rollouts.length_R - batch.rollouts.launch_R
            for kind, own_R in ((natural, launch_R == 0), (forced, (launch_R > 0) & (new_R > 0))):
                kind[0] += int(own_R.sum())
                kind[1] += int(new_R[own_R].sum())
    if not natural[1]:
        raise OpdAlignError(f"{str(folder)!r} has no rollouts to predict from; take another run")
    spent, length, made = Usage.load(folder), natural[1] / natural[0], natural[1] + forced[1]
    if tokens_per_second is None and not spent.tokens:
        raise OpdAlignError(f"{str(folder)!r} does not tell how long it took; say --tokens-per-second")
    if tokens_per_second is None and spent.tokens < TIMED * made:
        raise OpdAlignError(
            f"{str(folder)!r} was resumed, or reuses another run's rollouts: only {spent.tokens:,} of its {made:,} "
            "tokens were sampled while the clock ran, so its speed is not known; take a run that was made in one go, "
            "or say --tokens-per-second"
        )
    allowed = analysis.questions.num_rows * targeted_rollouts(analysis.settings.budget, length)
    return Measured(
        length,
        tokens_per_second or spent.tokens / spent.seconds,
        forced[1] / forced[0] if forced[0] else None,
        sum(analysis.questions["targeted"].to_pylist()) / allowed if allowed else 1.0,
        analysis.settings.budget,
        tuple(manifest.get("teachers", ())),
    )


def check_same(study: Study, run: PathLike) -> None:
    """Refuses to predict from a run of another student or task; other teachers, and another budget, are pointed out."""
    stored, known, model = read_manifest(as_path(run) / MANIFEST) or {}, study.known, study.config.student
    there = [name for name in stored.get("prompts", {}) if name not in stored.get("teachers", {})]
    names = {model.name, model.served_as, model.model, short_name(model.model)}
    differing = [key for key in ("tokenizer", "grader") if stored.get(key) != known[key]]
    if there and not names & {*there, *map(short_name, there)}:
        differing.insert(0, f"student ({there[0]} there, {model.name or short_name(model.model)} here)")
    if differing:
        raise OpdAlignError(
            f"{str(run)!r} says nothing about this study: it has another {' and '.join(differing)}; calibrate from a "
            "small run of the same student and task"
        )


def plan(study: Study, out: AnyPath, prices: Prices | None = None, calibrate_from: PathLike | None = None) -> Any:
    """The plan as a table for the terminal."""
    prices = prices or Prices()
    if calibrate_from is not None:
        measured, how = calibrated(calibrate_from, prices.tokens_per_second), f"as in {calibrate_from}"
        check_same(study, calibrate_from)
    else:
        measured, how = measure(study), "measured"
    speed = prices.tokens_per_second or measured.tokens_per_second
    budget = study.config.budget
    futures = any(objective.signal == "future" for objective in study.config.settings().objectives)
    measured = replace(measured, tokens_per_second=speed)
    counts = planned(budget, len(study.questions), len(study.roles), measured, futures=futures)
    seconds, busy = counts.seconds, min(prices.gpus, counts.questions)
    hours, dollars = seconds / 3600, prices.dollars_per_gpu_hour
    price = "" if dollars is None else f", ${hours * dollars:,.2f} at ${dollars:,.2f} an hour"
    bound = "at most" if calibrate_from is None else f"({measured.needed:.0%} of what the budget allows)"
    told = how if prices.tokens_per_second is None else "as said"
    shared = f" on each of {busy} GPUs" if busy > 1 else ""
    if busy < prices.gpus:
        shared += f"; {prices.gpus - busy} have nothing to do, since a question is worked on in one place"
    weights = {model.model: weight_bytes(model.model, dtype=model.dtype, device=model.device) for model in study.local}
    shown = " + ".join(f"{short_name(name)} {_size(size)}" for name, size in weights.items())
    rows = [
        ("student", study.config.student.model),
        ("teachers", ", ".join(role.name for role in study.roles) or "none"),
        ("questions", f"{counts.questions:,} of task {study.task.name}"),
        ("initial rollouts", f"{counts.initial:,}"),
        ("targeted rollouts", f"{counts.targeted:,} {bound} ({budget.allocation} allocation)"),
        ("tokens to sample", f"{counts.tokens:,} at {measured.length:.0f} tokens a completion ({how})"),
        ("tokens to score", f"{counts.scored_tokens:,}, student and {len(study.roles)} teachers"),
        ("weights in memory", f"{_size(sum(weights.values()))} ({shown})"),
        ("time", f"about {_spoken(counts.seconds_on(prices.gpus))} at {speed:,.0f} tokens/s ({told}){shared}"),
        ("GPU time", f"{hours:,.1f} GPU hours{price}"),
        ("run directory", str(out)),
    ]
    if calibrate_from is not None and prices.tokens_per_second is None:
        note = "scoring and estimates included, demonstrations not"
        if measured.budget != budget:
            # Measured: with a third of the visits the time came out 35 to 60 % too high (LOG.md).
            note += "; calibrated with another budget, whose smaller or larger batches run at another speed"
        if measured.teachers != tuple(role.name for role in study.roles):
            note += f"; calibrated with other teachers ({', '.join(measured.teachers) or 'none'}), whose scoring counts"
    else:
        note = "without demonstrations and scoring"
        if prices.tokens_per_second is None:
            note += "; long batches are faster than the short one that was timed"
    table = Table(
        "plan", "The plan; nothing was kept", (Column("what"), Column("")), tuple(row(*each) for each in rows), note
    )
    return to_rich(table)


def _size(bytes_: int) -> str:
    return f"{bytes_ / 2**30:.1f} GiB" if bytes_ >= 2**30 else f"{bytes_ / 2**20:.1f} MiB"


def _spoken(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"
