"""Screening: which contexts raise the pass rate, and which questions are worth an analysis.

Samples the student `rollouts` times per question and variant, where a variant is a context in its prompt or the
baseline without one. Difficulty bins come from the baseline. Variants are compared on the same questions: those for
which all demonstrations exist and all prompts fit. Excluded questions are listed with the reason. Everything sampled is
in the run directory before it is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa

from opd_align.core.metrics import Estimate, interval
from opd_align.runs.filesystem import PathLike, as_path
from opd_align.runs.manifest import FORMAT, question_digest, read_manifest
from opd_align.runs.rollout_store import CachedStudent, DamagedFileError, read_table, table_bytes
from opd_align.runs.run_directory import RunDirectory, read_result
from opd_align.tasks import TextGrader, Verdict
from opd_align.teachers.contexts import Context, ContextPrompt, Demonstration
from opd_align.teachers.demonstrations import (
    EMPTY_PREFIX,
    DemonstrationSource,
    DemonstrationWriters,
    collect_demonstrations,
)
from opd_align.teachers.eligibility import missing_demonstrations, prompts_too_long, unusable_questions
from opd_align.types import Finish, OpdAlignError, Question, Rollouts, SampleRequest

BASELINE = "Baseline"
BINS = {"easy": 0.8, "medium": 0.25, "hard": 0.0}
"""Lowest baseline pass rate of each difficulty bin; `hard` excludes its bound: a pass rate of 0 is extremely hard."""
EXTREMELY_HARD = "extremely hard"

PASSES, MISSING, DEMONSTRATIONS, SCREENED = (
    "passes.parquet", "missing.parquet", "demonstrations.parquet", "screening.json",
)  # fmt: skip

COUNTS = ("rollouts", "correct", "incorrect", "unparseable", "unknown", "truncated", "failed")


@dataclass(frozen=True)
class Screening:
    """Outcome counts per question and variant, and the exclusions.

    Args:
        passes: Table with one row per question and variant: prompt length and outcome counts.
        missing: Table with one row per excluded question and variant: `question`, `variant`, `reason`.
        variants: Names of the variants, the baseline first.
        sources: Names of the sources of demonstrations.
    """

    passes: pa.Table
    missing: pa.Table
    variants: Sequence[str]
    sources: Sequence[str] = ()

    @property
    def questions(self) -> list[str]:
        """Ids of all questions that have a baseline, in order."""
        rows = zip(self.passes["question"].to_pylist(), self.passes["variant"].to_pylist(), strict=True)
        return [question for question, variant in rows if variant == BASELINE]

    @property
    def compared(self) -> list[str]:
        """Ids of the questions that every variant was sampled on."""
        excluded = set(self.missing["question"].to_pylist())
        return [question for question in self.questions if question not in excluded]

    def pass_rate(self, variant: str) -> dict[str, float]:
        """Question id → share of known outcomes that are correct; NaN if none is known."""
        return {
            row["question"]: row["correct"] / known if (known := row["rollouts"] - row["unknown"]) else float("nan")
            for row in self.passes.to_pylist()
            if row["variant"] == variant
        }

    def difficulty(self) -> dict[str, str]:
        """Question id → difficulty bin."""
        return {question: difficulty_of(rate) for question, rate in self.pass_rate(BASELINE).items()}

    def selected(self, bins: Sequence[str]) -> list[str]:
        """Ids of the compared questions in the given bins."""
        unknown = [name for name in bins if name not in (*BINS, EXTREMELY_HARD)]
        if unknown:
            raise OpdAlignError(f"there is no bin {unknown[0]!r}; choose from: {', '.join((*BINS, EXTREMELY_HARD))}")
        bin_of = self.difficulty()
        return [question for question in self.compared if bin_of[question] in bins]


def difficulty_of(pass_rate: float) -> str:
    """The difficulty bin of a baseline pass rate."""
    if np.isnan(pass_rate):
        return "unknown"
    return (
        "easy" if pass_rate >= 0.8 else "medium" if pass_rate >= 0.25 else "hard" if pass_rate > 0 else EXTREMELY_HARD
    )


@dataclass(frozen=True)
class VariantRow:
    """Accuracy of one variant over the compared questions.

    Args:
        variant: Name of the variant.
        accuracy: Mean pass rate with its interval.
        delta: Paired difference from the baseline; `None` for the baseline itself.
        by_bin: Mean pass rate per difficulty bin.
    """

    variant: str
    accuracy: Estimate
    delta: Estimate | None
    by_bin: Mapping[str, Estimate]


def variant_rows(screening: Screening) -> list[VariantRow]:
    """The paper's second and third tables. Extremely hard questions are excluded, as they carry no signal."""
    bin_of = screening.difficulty()
    kept = [question for question in screening.compared if bin_of[question] in BINS]
    baseline = screening.pass_rate(BASELINE)
    rows = []
    for variant in screening.variants:
        rate = screening.pass_rate(variant)
        value_Q = np.array([rate[question] for question in kept])
        base_Q = np.array([baseline[question] for question in kept])
        in_bin = {name: np.array([bin_of[question] == name for question in kept], bool) for name in BINS}
        rows.append(
            VariantRow(
                variant,
                interval(value_Q),
                None if variant == BASELINE else interval(value_Q - base_Q),
                {name: interval(value_Q[member_Q]) for name, member_Q in in_bin.items()},
            )
        )
    return rows


@dataclass(frozen=True)
class Screener:
    """Runs a screening.

    Args:
        student: The student (a backend's student object).
        prompting: Builds the student's plain prompts.
        contexts: Contexts to compare with the baseline.
        writers: Models that write the contexts' demonstrations.
        rollouts: Rollouts per question and variant, at least 1.
        batch: Maximum number of rollouts per sampling request, at least 1.
        on_progress: Called with a label, the number of finished questions, and the number of questions.
    """

    student: Any
    prompting: ContextPrompt
    contexts: Sequence[Context]
    writers: DemonstrationWriters
    rollouts: int = 32
    batch: int = 512
    on_progress: Callable[[str, int, int], None] = field(default=lambda label, done, total: None)

    def run(self, path: PathLike, questions: Sequence[Question]) -> Screening:
        """Screens the questions into a run directory, which is created or resumed."""
        self._check(questions)
        grader = TextGrader(self.prompting.task, self.prompting.chat.decode, self.student.end_tokens)
        with RunDirectory(path, self._manifest(questions, grader)) as run:
            screening, demonstrations = self._sample(run, grader, questions)
            summary = {
                "variants": list(screening.variants), "sources": list(screening.sources),
                "compared": len(screening.compared),
            }  # fmt: skip
            run.write_results(
                {
                    DEMONSTRATIONS: table_bytes(_demonstration_table(demonstrations)),
                    MISSING: table_bytes(screening.missing),
                    PASSES: table_bytes(screening.passes),
                    SCREENED: f"{json.dumps(summary, indent=1)}\n".encode(),
                }
            )
        return screening

    def _check(self, questions: Sequence[Question]) -> None:
        if not questions:
            raise OpdAlignError("no questions to screen")
        if self.rollouts < 1 or self.batch < 1:
            raise OpdAlignError(f"rollouts ({self.rollouts}) and batch ({self.batch}) must be at least 1")
        names = [BASELINE, *(context.name for context in self.contexts)]
        duplicates = [name for name in names if names.count(name) > 1]
        if duplicates:
            raise OpdAlignError(f"several variants have the name {duplicates[0]!r}; context names must be unique")
        self.writers.check(self.contexts)

    def _sample(
        self, run: RunDirectory, grader: TextGrader, questions: Sequence[Question]
    ) -> tuple[Screening, dict[str, list[Demonstration]]]:
        max_tokens = self.student.sampling.max_tokens
        unusable = unusable_questions(self.prompting.task, questions)
        missing = [(name, BASELINE, reason) for name, reason in unusable.items()]
        answered = [question for question in questions if question.id not in unusable]
        too_long = prompts_too_long(self.student, answered, max_tokens)
        missing += [(name, BASELINE, reason) for name, reason in too_long.items()]
        usable = [question for question in answered if question.id not in too_long]
        demonstrations = collect_demonstrations(
            recorded_writers(run, self.writers), self.contexts, usable, batch=self.batch, on_progress=self.on_progress
        )
        lacking = missing_demonstrations(usable, self.contexts, demonstrations, self.writers)
        missing += [(name, variant, reason) for name, by in lacking.items() for variant, reason in by.items()]
        rows = self._sample_variant(run, grader, BASELINE, self.student, usable)
        for context in self.contexts:
            student = replace(
                self.student, prompt=replace(self.prompting, context=context, demonstrations=demonstrations)
            )
            complete = [question for question in usable if context.name not in lacking.get(question.id, {})]
            too_long = prompts_too_long(student, complete, max_tokens)
            missing += [(name, context.name, reason) for name, reason in too_long.items()]
            fitting = [question for question in complete if question.id not in too_long]
            rows += self._sample_variant(run, grader, context.name, student, fitting)
        # Without a known outcome there is no pass rate, and the question would count for some variants only.
        missing += [
            (row["question"], row["variant"], f"none of {self.rollouts} rollouts has a known outcome")
            for row in rows
            if row["rollouts"] == row["unknown"]
        ]
        columns = ("question", "variant", "reason")
        return Screening(
            pa.Table.from_pylist(rows, schema=_PASSES),
            pa.table({name: pa.array([row[at] for row in missing], pa.string()) for at, name in enumerate(columns)}),
            [BASELINE, *(context.name for context in self.contexts)],
            [*self.writers.sources],
        ), demonstrations

    def _sample_variant(
        self, run: RunDirectory, grader: TextGrader, name: str, student: Any, questions: Sequence[Question]
    ) -> list[dict[str, Any]]:
        recorded = run.cached(student, grader)
        per_call = max(1, self.batch // self.rollouts)
        rows: list[dict[str, Any]] = []
        self.on_progress(name, 0, len(questions))
        for at in range(0, len(questions), per_call):
            requests = [
                SampleRequest(question, EMPTY_PREFIX, self.rollouts) for question in questions[at : at + per_call]
            ]
            for question, rollouts, failed in _by_request(recorded, requests):
                counts = _outcome_counts(grader, question, rollouts) | {"failed": failed}
                prompt_tokens = len(student.prompt(question))
                rows.append({"question": question.id, "variant": name, "prompt_tokens": prompt_tokens, **counts})
            self.on_progress(name, len(rows), len(questions))
        return rows

    def _manifest(self, questions: Sequence[Question], grader: TextGrader) -> dict[str, Any]:
        shared = demonstrations_manifest(self.writers, self.contexts, questions)
        return shared | {
            "kind": "screening",
            "student": self.student.fingerprint,
            "tokenizer": self.prompting.chat.fingerprint,
            "grader": grader.fingerprint,
            "prompts": {BASELINE: self._prompts_digest(questions)},
            "settings": {**shared["settings"], "rollouts": self.rollouts, "batch": self.batch},
        }

    def _prompts_digest(self, questions: Sequence[Question]) -> str:
        """Digest of the student's plain prompts; the contexts' prompts follow from them and the manifest's settings."""
        digest = blake2b(digest_size=8)
        for question in questions:
            prompt = list(self.student.prompt(question))
            digest.update(np.asarray([len(prompt), *prompt], ">u4").tobytes())
        return digest.hexdigest()


_PASSES = pa.schema(
    [("question", pa.string()), ("variant", pa.string()), ("prompt_tokens", pa.int32())]
    + [(name, pa.int32()) for name in COUNTS]
)


def demonstrations_manifest(
    writers: DemonstrationWriters, contexts: Sequence[Context], questions: Sequence[Question]
) -> dict[str, Any]:
    """Manifest of a collection of demonstrations, as JSON values."""

    def described(source: DemonstrationSource) -> str:
        return f"{source.name}: {source.sampler.fingerprint}"

    return {
        "format": FORMAT,
        "kind": "demonstrations",
        "contexts": {
            context.name: {field.name: getattr(context, field.name) for field in fields(context) if field.compare}
            | {"write": _qualified_name(context.write)}
            for context in contexts
        },
        "sources": {name: described(source) for name, source in writers.sources.items()},
        "summariser": described(writers.summariser) if writers.summariser else None,
        "settings": {"trials": asdict(writers.trials)},
        "questions": {question.id: question_digest(question) for question in questions},
    }


def recorded_writers(run: RunDirectory, writers: DemonstrationWriters) -> DemonstrationWriters:
    """The same writers, with every sample recorded in a run directory."""

    def recorded(source: DemonstrationSource) -> DemonstrationSource:
        student = run.cached(source.sampler, source.grader)
        return replace(source, sampler=student, grader=student)

    return replace(
        writers,
        sources={name: recorded(source) for name, source in writers.sources.items()},
        summariser=recorded(writers.summariser) if writers.summariser else None,
    )


def load_screening(path: PathLike) -> tuple[Screening, dict[str, list[Demonstration]]]:
    """Loads a finished screening and its demonstrations from a run directory."""
    folder = as_path(path)
    manifest = read_manifest(folder / "manifest.json")
    if manifest is None or manifest.get("kind") != "screening":
        problem = "is not a screening" if manifest or folder.is_dir() else "does not exist"
        raise OpdAlignError(f"{str(folder)!r} {problem}; create one with: opd-align screen --out {folder}")
    if not (folder / SCREENED).is_file():
        raise OpdAlignError(f"the screening in {str(folder)!r} is not finished; run the same command to resume it")
    try:
        summary = json.loads(read_result(folder, manifest, SCREENED))
        variants, sources = summary["variants"], summary["sources"]
        passes, missing, demonstration_rows = (
            read_table(read_result(folder, manifest, name)) for name in (PASSES, MISSING, DEMONSTRATIONS)
        )
    except (DamagedFileError, OSError, ValueError, LookupError) as error:
        raise OpdAlignError(
            f"the screening in {str(folder)!r} cannot be read ({error}); run the same command again: it rebuilds the "
            "tables from the saved rollouts without sampling"
        ) from error
    demonstrations: dict[str, list[Demonstration]] = {}
    for row in demonstration_rows.to_pylist():
        demonstrations.setdefault(row["question"], []).append(Demonstration(**row))
    return Screening(passes, missing, variants, sources), demonstrations


def _by_request(recorded: CachedStudent, requests: Sequence[SampleRequest]) -> list[tuple[Question, Rollouts, int]]:
    rollouts = recorded.sample(requests)
    row_of = {int(key): row for row, key in enumerate(rollouts.key_R)}
    result = []
    for request, key_R in zip(requests, recorded.keys(requests), strict=True):
        rows = [row_of[int(key)] for key in key_R if int(key) in row_of]
        result.append((request.question, rollouts.take(np.array(rows, np.int64)), request.n - len(rows)))
    return result


def _outcome_counts(grader: TextGrader, question: Question, rollouts: Rollouts) -> dict[str, int]:
    truncated_R = rollouts.finish_R == Finish.TRUNCATED
    ended = rollouts.take(~truncated_R)
    verdicts = grader.verdicts(question, ended)
    counts = {kind.value: sum(verdict is kind for verdict in verdicts) for kind in Verdict}
    return {**counts, "truncated": int(truncated_R.sum()), "rollouts": len(rollouts)}


def _demonstration_table(demonstrations: Mapping[str, Sequence[Demonstration]]) -> pa.Table:
    schema = pa.schema(
        [
            ("question", pa.string()), ("source", pa.string()), ("trial", pa.int32()), ("correct", pa.bool_()),
            ("text", pa.string()), ("summary", pa.string()),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist([asdict(demo) for found in demonstrations.values() for demo in found], schema=schema)


def _qualified_name(function: Any) -> str:
    """Module and name of a function; of any other callable, those of its type."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"
