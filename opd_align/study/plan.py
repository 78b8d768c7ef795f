"""The cost estimate of a study: rollouts, tokens, memory, time and money.

Completion length and sampling speed are measured on a few rollouts of the student; the rest follows from the budget as
in `enrich`. The estimate is an upper bound: a target that already has enough visits costs less. A small finished run
gives a better estimate, since it shows how many of the targeted rollouts were needed, how long they are, and how long
everything took, including scoring and estimation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
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
from opd_align.study.hardware import GIB
from opd_align.study.memory_plan import MemoryPlan
from opd_align.types import OpdAlignError, SampleRequest

ROLLOUTS_PER_QUESTION = 16
"""Rollouts per question that are sampled to measure length and speed."""
TIMED_ROLLOUTS, TIMED_S = 8, 4.0
"""Rollouts that are sampled before every analysis, to say how long it will take, and then four times as many until they
take so many seconds: a batch of eight says little about batches of a hundred, which are far faster per token."""
FEW = 4
"""Rollouts at once below which a GPU is mostly waiting for its memory."""
MIN_TIMED_FRACTION = 0.95
"""Fraction of a run's tokens that must have been timed for its speed to be used."""


@dataclass(frozen=True)
class Prices:
    """The hardware and its price.

    Args:
        gpus: Number of GPUs, at least 1.
        tokens_per_second: Sampling speed of one GPU. `None`: measured.
        dollars_per_gpu_hour: Price of one GPU for an hour. `None`: no price is shown.
    """

    gpus: int = 1
    tokens_per_second: float | None = None
    dollars_per_gpu_hour: float | None = None

    def __post_init__(self) -> None:
        speed = 1.0 if self.tokens_per_second is None else self.tokens_per_second
        dollars = self.dollars_per_gpu_hour or 0.0
        if self.gpus < 1 or not 0 < speed < math.inf or not 0 <= dollars < math.inf:
            raise OpdAlignError(f"gpus must be at least 1, with a speed above 0 and a price of at least 0; got {self}")


@dataclass(frozen=True)
class Measured:
    """Measurements that the estimate is based on.

    Args:
        length: Mean number of tokens per completion.
        tokens_per_second: Sampling speed.
        targeted_length: Mean number of new tokens per targeted rollout. `None`: unknown.
        needed: Fraction of the targeted rollouts allowed by the budget that were needed.
        budget: The budget of the measured run. `None`: not measured on a run.
        teachers: Names of the teachers of the measured run.
    """

    length: float
    tokens_per_second: float
    targeted_length: float | None = None
    needed: float = 1.0
    budget: Budget | None = None
    teachers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The estimate for all questions together.

    Args:
        questions: Number of questions.
        initial: Number of initial rollouts.
        targeted: Number of targeted rollouts.
        tokens: Tokens to sample.
        scored_tokens: Tokens to score, of student and teachers together.
        seconds: Time on one GPU.
    """

    questions: int
    initial: int
    targeted: int
    tokens: int
    scored_tokens: int
    seconds: float

    def seconds_on(self, gpus: int) -> float:
        """Wall time: each question is analyzed on one GPU, so GPUs may be idle during the last questions."""
        return self.seconds / self.questions * math.ceil(self.questions / gpus)


def targeted_rollouts(budget: Budget, length: float) -> int:
    """The maximum number of targeted rollouts per question, for paths of the given length."""
    if budget.targeted is not None and budget.allocation == "adaptive":
        return budget.targeted
    paths = budget.correct_paths + budget.incorrect_paths
    windows, start, width = 0, 0.0, float(budget.first_window)
    while start < length:
        windows, start, width = windows + 1, start + width, 2 * width
    total = paths * windows * (budget.by_update + budget.by_gap) * budget.n_min
    if budget.allocation == "adaptive":
        return total // 2
    return total if budget.targeted is None else min(total, budget.targeted)


def planned(budget: Budget, questions: int, teachers: int, measured: Measured, *, futures: bool = False) -> Plan:
    """The cost of a budget.

    Args:
        budget: The budget per question.
        questions: Number of questions.
        teachers: Number of teachers.
        measured: Lengths and speed. If the length of targeted rollouts is unknown, they start half-way along a path.
        futures: Whether an objective uses what follows a token (MiniLLM), for which every rollout is scored too.
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


def measure(study: Study, questions: int = 2, *, rollouts: int = ROLLOUTS_PER_QUESTION) -> Measured:
    """Samples a few rollouts of the student: once to warm up, then timed."""
    no_prefix = np.empty(0, np.uint32)
    study.student.sample([SampleRequest(study.usable_questions[0], no_prefix, 2)])
    requests = [SampleRequest(question, no_prefix, rollouts) for question in study.usable_questions[:questions]]
    start = time.perf_counter()
    sampled = study.student.sample(requests)
    seconds = time.perf_counter() - start
    if not len(sampled):
        reason = sampled.failures[0].reason if sampled.failures else "the student returned no rollouts"
        raise OpdAlignError(
            f"none of {rollouts * len(requests)} rollouts succeeded, so no estimate is possible: {reason}"
        )
    return Measured(float(sampled.length_R.mean()), len(sampled.tokens) / seconds)


def measure_growing(study: Study) -> tuple[Measured, int]:
    """Measures in batches that grow up to the budget's initial rollouts; also returns the size of the last one."""
    rollouts, most = TIMED_ROLLOUTS, max(study.config.budget.initial, TIMED_ROLLOUTS)
    while True:
        measured = measure(study, 1, rollouts=rollouts)
        if rollouts == most or rollouts * measured.length / measured.tokens_per_second >= TIMED_S:
            return measured, rollouts
        rollouts = min(4 * rollouts, most)


def expected_duration(study: Study, n_questions: int, most: int) -> str:
    """How long an analysis will take, in a sentence, from a few timed rollouts.

    Args:
        study: The study.
        n_questions: Number of questions that are analyzed for certain.
        most: Number of questions that may be analyzed.
    """
    measured, rollouts = measure_growing(study)
    budget = study.config.budget
    futures = any(objective.signal == "future" for objective in study.config.settings().objectives)
    seconds = planned(budget, 1, len(study.teacher_specs), measured, futures=futures).seconds
    more = f", and {_duration(seconds)} for each further one, up to {most:,}" if most > n_questions else ""
    return (
        f"Expected: at most about {_duration(n_questions * seconds)} for {n_questions:,} questions{more} "
        f"({measured.tokens_per_second:,.0f} tokens/s and {measured.length:,.0f} tokens per completion, measured on "
        f"{rollouts} rollouts; scoring and demonstrations come in addition)."
    )


def calibrated(run: PathLike, tokens_per_second: float | None = None) -> Measured:
    """Measurements of a finished run, for larger runs of the same student and task."""
    folder, analysis = as_path(run), RunDirectory.load(run)
    manifest = read_manifest(folder / MANIFEST) or {}
    initial, targeted = [0, 0], [0, 0]  # number of rollouts, number of their new tokens
    for file in (folder / ROLLOUTS).glob("*.parquet"):
        try:
            batch = read_shard(file)
        except DamagedFileError as error:
            raise OpdAlignError(
                f"{str(file)!r} is damaged ({error}); use another run, or resume this one to repair it"
            ) from error
        except OSError as error:
            raise OpdAlignError(f"could not read {str(file)!r}: {error_reason(error)}") from error
        if batch is not None:
            launch_R, new_R = batch.rollouts.launch_R, batch.rollouts.length_R - batch.rollouts.launch_R
            for totals, own_R in ((initial, launch_R == 0), (targeted, (launch_R > 0) & (new_R > 0))):
                totals[0] += int(own_R.sum())
                totals[1] += int(new_R[own_R].sum())
    if not initial[1]:
        raise OpdAlignError(f"{str(folder)!r} has no rollouts to calibrate from; use another run")
    usage, length, sampled = Usage.load(folder), initial[1] / initial[0], initial[1] + targeted[1]
    if tokens_per_second is None and not usage.tokens:
        raise OpdAlignError(f"{str(folder)!r} has no recorded time; set --tokens-per-second")
    if tokens_per_second is None and usage.tokens < MIN_TIMED_FRACTION * sampled:
        raise OpdAlignError(
            f"{str(folder)!r} was resumed, or reuses another run's rollouts: only {usage.tokens:,} of its "
            f"{sampled:,} tokens were timed, so its speed is unknown; use a run that was not interrupted, or set "
            "--tokens-per-second"
        )
    allowed = analysis.questions.num_rows * targeted_rollouts(analysis.settings.budget, length)
    return Measured(
        length,
        tokens_per_second or usage.tokens / usage.seconds,
        targeted[1] / targeted[0] if targeted[0] else None,
        sum(analysis.questions["targeted"].to_pylist()) / allowed if allowed else 1.0,
        analysis.settings.budget,
        tuple(manifest.get("teachers", ())),
    )


def check_comparable(study: Study, run: PathLike) -> None:
    """Raises `OpdAlignError` if a run has another student or task; other teachers or another budget are only noted."""
    stored, known, model = read_manifest(as_path(run) / MANIFEST) or {}, study.known_manifest, study.config.student
    stored_names = [name for name in stored.get("prompts", {}) if name not in stored.get("teachers", {})]
    names = {model.name, model.served_as, model.model, short_name(model.model)}
    differing = [key for key in ("tokenizer", "grader") if stored.get(key) != known[key]]
    if stored_names and not names & {*stored_names, *map(short_name, stored_names)}:
        differing.insert(0, f"student ({stored_names[0]} there, {model.name or short_name(model.model)} here)")
    if differing:
        raise OpdAlignError(
            f"cannot calibrate from {str(run)!r}: it has another {' and '.join(differing)}; use a small run of the "
            "same student and task"
        )


def plan(study: Study, out: AnyPath, prices: Prices | None = None, calibrate_from: PathLike | None = None) -> Any:
    """The estimate as a table for the terminal."""
    prices = prices or Prices()
    if calibrate_from is not None:
        measured, source = calibrated(calibrate_from, prices.tokens_per_second), f"as in {calibrate_from}"
        check_comparable(study, calibrate_from)
    else:
        measured, source = measure(study), "measured"
    speed = prices.tokens_per_second or measured.tokens_per_second
    budget, teachers = study.config.budget, [spec.name for spec in study.teacher_specs]
    futures = any(objective.signal == "future" for objective in study.config.settings().objectives)
    measured = replace(measured, tokens_per_second=speed)
    counts = planned(budget, len(study.usable_questions), len(teachers), measured, futures=futures)
    hours, dollars, busy_gpus = counts.seconds / 3600, prices.dollars_per_gpu_hour, min(prices.gpus, counts.questions)
    price = "" if dollars is None else f", ${hours * dollars:,.2f} at ${dollars:,.2f} per hour"
    bound = "at most" if calibrate_from is None else f"({measured.needed:.0%} of what the budget allows)"
    speed_source = source if prices.tokens_per_second is None else "as given"
    per_gpu = f" on each of {busy_gpus} GPUs" if busy_gpus > 1 else ""
    if busy_gpus < prices.gpus:
        per_gpu += f"; {prices.gpus - busy_gpus} are idle, since each question is analyzed on one GPU"
    weights = {
        model.model: weight_bytes(model.model, dtype=model.dtype, device=model.device) for model in study.local_models
    }
    weights_text = " + ".join(f"{short_name(name)} {_size(size)}" for name, size in weights.items())
    unusable = len(study.unusable_questions)
    skipped = f" ({unusable:,} more are skipped: no usable answer, or repeated)" if unusable else ""
    rows = [
        ("student", study.config.student.model),
        ("teachers", ", ".join(teachers) or "none"),
        ("questions", f"{counts.questions:,} of task {study.task.name}{skipped}"),
        ("initial rollouts", f"{counts.initial:,}"),
        ("targeted rollouts", f"{counts.targeted:,} {bound} ({budget.allocation} allocation)"),
        ("tokens to sample", f"{counts.tokens:,} at {measured.length:.0f} tokens per completion ({source})"),
        ("tokens to score", f"{counts.scored_tokens:,}, student and {len(teachers)} teachers"),
        ("weights in memory", f"{_size(sum(weights.values()))} ({weights_text})"),
        (
            "time",
            f"about {_duration(counts.seconds_on(prices.gpus))} at {speed:,.0f} tokens/s ({speed_source}){per_gpu}",
        ),
        ("GPU time", f"{hours:,.1f} GPU hours{price}"),
        ("run directory", str(out)),
    ]
    if calibrate_from is not None and prices.tokens_per_second is None:
        note = "includes scoring and estimation, but not demonstrations"
        if measured.budget != budget:
            # Measured: with a third of the visits the time came out 35 to 60 % too high (LOG.md).
            note += "; calibrated with another budget, whose batches have other sizes and another speed"
        if measured.teachers != tuple(teachers):
            note += (
                f"; calibrated with other teachers ({', '.join(measured.teachers) or 'none'}), which affects scoring"
            )
    else:
        note = "does not include demonstrations and scoring"
        if prices.tokens_per_second is None:
            note += "; long batches are faster than the short one that was timed"
    title = "Estimated cost (nothing was saved)"
    return to_rich(Table("plan", title, (Column("what"), Column("")), tuple(row(*cells) for cells in rows), note))


def memory_table(plans: Mapping[str, MemoryPlan]) -> Any:
    """Memory and placement on each kind of hardware, for the terminal."""
    rows = []
    for hardware, plan in plans.items():
        rows.append(row(hardware, "", "", _verdict(plan)))
        for index, gpu in enumerate(plan.gpus):
            uses = " + ".join(f"{use.what} {use.bytes / GIB:.1f}" for use in gpu.uses if use.bytes >= GIB / 20)
            needed = f"{gpu.needed_bytes / GIB:.1f} / {gpu.gpu.free_bytes / GIB:.1f}"
            rows.append(row(hardware, f"cuda:{index}", needed, uses))
        rows += [
            row(hardware, "cuda:0", "", f"vLLM: gpu_memory_utilization {share:.2f}")
            for share in plan.utilization.values()
        ]
    missing = sorted({name for plan in plans.values() for name in plan.from_table})
    note = "an estimate; models are placed so when a run starts, unless the configuration says where"
    if missing:
        note += f"; no connection to the Hub: published sizes were used for {', '.join(missing)}"
    columns = (Column("GPUs"), Column("device"), Column("GiB needed / free"), Column(""))
    return to_rich(Table("memory", "Memory per process", columns, tuple(rows), note, grouped=True))


def _verdict(plan: MemoryPlan) -> str:
    if not plan.fits:
        return "does NOT fit"
    process = "1 process" if plan.processes == 1 else f"{plan.processes} processes"
    each = "1 GPU" if len(plan.gpus) == 1 else f"{len(plan.gpus)} GPUs"
    parts = [f"fits: {process} with {each}"]
    if plan.rollouts_at_once is not None:
        many = "1 completion" if plan.rollouts_at_once == 1 else f"{plan.rollouts_at_once:,} completions"
        slow = " (slow: use more GPUs, or fewer teachers)" if plan.rollouts_at_once < FEW else ""
        parts.append(f"{many} of {plan.completion_tokens:,} tokens at once in each{slow}")
    if idle := plan.n_gpus - plan.processes * len(plan.gpus):
        parts.append(f"{idle} GPU{'s are' if idle > 1 else ' is'} idle")
    return "; ".join(parts)


def _size(bytes_: int) -> str:
    return f"{bytes_ / 2**30:.1f} GiB" if bytes_ >= 2**30 else f"{bytes_ / 2**20:.1f} MiB"


def _duration(seconds: float) -> str:
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"
