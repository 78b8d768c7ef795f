"""Screening: which contexts raise the pass rate, and which questions are worth an analysis.

For every question and context variant, `rollouts` samples of the student with that context in its prompt; difficulty
bins come from the baseline without context. A question counts in comparisons only if every variant could be asked:
its demonstrations exist and its prompts fit, so that variants are compared on the same questions. What was left out
is listed with the reason. Everything sampled is in the run directory before it is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from opd_align.core.metrics import Estimate, interval
from opd_align.runs.filesystem import PathLike, as_path
from opd_align.runs.manifest import FORMAT, question_digest, read_manifest
from opd_align.runs.rollout_store import CachedStudent, DamagedFileError, read_table, table_bytes
from opd_align.runs.run_directory import RunDirectory
from opd_align.tasks import Task, TextGrader, Verdict
from opd_align.teachers.contexts import SELF, Context, ContextPrompt, Demonstration, unavailable
from opd_align.teachers.demonstrations import DemonstrationSource, DemonstrationWriters, demonstrate
from opd_align.types import Finish, OpdAlignError, Question, Rollouts, SampleRequest

BASELINE = "Baseline"
BINS = {"easy": 0.8, "medium": 0.25, "hard": 0.0}
"""Difficulty by the least baseline pass rate; `hard` is above its bound, and at 0 a question is extremely hard."""
EXTREMELY_HARD = "extremely hard"

PASSES, MISSING, DEMONSTRATIONS, SCREENED = (
    "passes.parquet", "missing.parquet", "demonstrations.parquet", "screening.json",
)  # fmt: skip

COUNTS = ("rollouts", "correct", "incorrect", "unparseable", "unknown", "truncated", "failed")


class Asked(Protocol):
    """A student or teacher as far as fitting is concerned."""

    @property
    def name(self) -> str: ...
    @property
    def prompt(self) -> Callable[[Question], Sequence[int]]: ...
    @property
    def context_length(self) -> int | None: ...


@dataclass(frozen=True)
class Screening:
    """Counts of outcomes per question and variant, and what could not be asked."""

    passes: pa.Table
    missing: pa.Table
    variants: Sequence[str]
    sources: Sequence[str] = ()

    @property
    def questions(self) -> list[str]:
        """All questions that have a baseline, in their order."""
        rows = zip(self.passes["question"].to_pylist(), self.passes["variant"].to_pylist(), strict=True)
        return [question for question, variant in rows if variant == BASELINE]

    @property
    def compared(self) -> list[str]:
        """Questions that every variant was asked."""
        left_out = set(self.missing["question"].to_pylist())
        return [question for question in self.questions if question not in left_out]

    def pass_rate(self, variant: str) -> dict[str, float]:
        """Question → share of known outcomes that are correct; NaN if none is known."""
        return {
            row["question"]: row["correct"] / known if (known := row["rollouts"] - row["unknown"]) else float("nan")
            for row in self.passes.to_pylist()
            if row["variant"] == variant
        }

    def difficulty(self) -> dict[str, str]:
        """Question → its bin."""
        return {question: difficulty_of(rate) for question, rate in self.pass_rate(BASELINE).items()}

    def selected(self, bins: Sequence[str]) -> list[str]:
        """Compared questions in the given bins."""
        wrong = [name for name in bins if name not in (*BINS, EXTREMELY_HARD)]
        if wrong:
            raise OpdAlignError(f"there is no bin {wrong[0]!r}; there are: {', '.join((*BINS, EXTREMELY_HARD))}")
        bin_of = self.difficulty()
        return [question for question in self.compared if bin_of[question] in bins]


def difficulty_of(pass_rate: float) -> str:
    """The bin of a baseline pass rate."""
    if np.isnan(pass_rate):
        return "unknown"
    return (
        "easy" if pass_rate >= 0.8 else "medium" if pass_rate >= 0.25 else "hard" if pass_rate > 0 else EXTREMELY_HARD
    )


@dataclass(frozen=True)
class Availability:
    """How many of the screened questions have a correct demonstration by each source, and by all."""

    asked: int
    by_source: Mapping[str, int]
    all: int


@dataclass(frozen=True)
class VariantRow:
    """One variant's accuracy over the compared questions, and its paired difference from the baseline."""

    variant: str
    accuracy: Estimate
    delta: Estimate | None
    by_bin: Mapping[str, Estimate]


def availability(screening: Screening, demonstrations: Mapping[str, Sequence[Demonstration]]) -> Availability:
    """The paper's first table."""
    # Not the sources of what was found: one that never got it right must show as 0.
    sources = sorted(screening.sources, key=_self_first)
    having = {
        source: {
            question
            for question, responses in demonstrations.items()
            if any(each.source == source and each.correct for each in responses)
        }
        for source in sources
    }
    everywhere = set.intersection(*having.values()) if having else set()
    asked = len(screening.questions)
    return Availability(asked, {source: len(found) for source, found in having.items()}, len(everywhere))


def variant_rows(screening: Screening) -> list[VariantRow]:
    """The paper's second and third table: extremely hard questions are left out, as they carry no signal."""
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


def unfit(speaker: Asked, questions: Sequence[Question], room: int) -> dict[str, str]:
    """Question → why its prompt and `room` more tokens do not fit the speaker's context."""
    limit = speaker.context_length
    if limit is None:
        return {}
    length = {question.id: len(speaker.prompt(question)) for question in questions}
    return {
        name: f"{tokens} prompt tokens and up to {room} new ones do not fit the context of {speaker.name!r} ({limit})"
        for name, tokens in length.items()
        if tokens + room > limit
    }


def unanswered(task: Task, questions: Sequence[Question]) -> dict[str, str]:
    """Question → why no reply to it can be judged."""
    gold = {
        question.id: None
        if question.answer is None
        else task.verifier.canonical(question.answer, question.fields.get("choices"))
        for question in questions
    }
    return {name: "no answer to compare with" for name, answer in gold.items() if answer is None}


def unserved(
    cast: DemonstrationWriters,
    contexts: Sequence[Context],
    questions: Sequence[Question],
    demonstrations: Mapping[str, Sequence[Demonstration]],
) -> dict[str, dict[str, str]]:
    """Question → context → what is missing, or why its source could not be asked."""
    lacking = unavailable(questions, contexts, demonstrations)
    by_id, by_name = {each.id: each for each in questions}, {each.name: each for each in contexts}
    for question, reasons in lacking.items():
        for name in reasons:
            source = cast.sources.get(by_name[name].source)
            reasons[name] = (source and source.unfit(by_id[question])) or reasons[name]
    return lacking


@dataclass(frozen=True)
class Screen:
    """What is screened: a student with its prompting, contexts, and who writes their demonstrations."""

    student: Any
    prompting: ContextPrompt
    contexts: Sequence[Context]
    cast: DemonstrationWriters
    rollouts: int = 32
    batch: int = 512
    on_progress: Callable[[str, int, int], None] = field(default=lambda what, done, of: None)

    def into(self, path: PathLike, questions: Sequence[Question]) -> Screening:
        """Screens into a run directory: new, or continued where it was left."""
        self._check(questions)
        grader = TextGrader(self.prompting.task, self.prompting.chat.said, self.student.end_tokens)
        with RunDirectory(path, self._manifest(questions, grader)) as run:
            screening, demonstrations = self._screened(run, grader, questions)
            run.write_file(DEMONSTRATIONS, table_bytes(_demonstration_table(demonstrations)))
            run.write_file(MISSING, table_bytes(screening.missing))
            run.write_file(PASSES, table_bytes(screening.passes))
            summary = {
                "variants": list(screening.variants), "sources": list(screening.sources),
                "compared": len(screening.compared),
            }  # fmt: skip
            run.write_file(SCREENED, f"{json.dumps(summary, indent=1)}\n".encode())
        return screening

    def _check(self, questions: Sequence[Question]) -> None:
        if not questions:
            raise OpdAlignError("there is no question to screen")
        if self.rollouts < 1 or self.batch < 1:
            raise OpdAlignError(f"rollouts ({self.rollouts}) and batch ({self.batch}) must be at least 1")
        names = [BASELINE, *(context.name for context in self.contexts)]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise OpdAlignError(f"more than one variant is called {twice[0]!r}; give each context its own name")
        self.cast.check(self.contexts)

    def _screened(
        self, run: RunDirectory, grader: TextGrader, questions: Sequence[Question]
    ) -> tuple[Screening, dict[str, list[Demonstration]]]:
        room = self.student.sampling.max_tokens
        open_ones = unanswered(self.prompting.task, questions)
        missing = [(name, BASELINE, reason) for name, reason in open_ones.items()]
        judged = [each for each in questions if each.id not in open_ones]
        missing += [(name, BASELINE, reason) for name, reason in unfit(self.student, judged, room).items()]
        left_out = {name for name, _, _ in missing}
        asked = [question for question in questions if question.id not in left_out]
        demonstrations = self._demonstrated(run, asked)
        lacking = unserved(self.cast, self.contexts, asked, demonstrations)
        missing += [(name, variant, reason) for name, by in lacking.items() for variant, reason in by.items()]
        rows = self._variant(run, grader, BASELINE, self.student, asked)
        for context in self.contexts:
            student = replace(
                self.student, prompt=replace(self.prompting, context=context, demonstrations=demonstrations)
            )
            able = [question for question in asked if context.name not in lacking.get(question.id, {})]
            long = unfit(student, able, room)
            missing += [(name, context.name, reason) for name, reason in long.items()]
            rows += self._variant(run, grader, context.name, student, [each for each in able if each.id not in long])
        # Without one known outcome there is no pass rate, and the question would count for some variants only.
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
            [*self.cast.sources],
        ), demonstrations

    def _demonstrated(self, run: RunDirectory, questions: Sequence[Question]) -> dict[str, list[Demonstration]]:
        return demonstrate(
            recorded_cast(run, self.cast), self.contexts, questions, batch=self.batch, on_progress=self.on_progress
        )

    def _variant(
        self, run: RunDirectory, grader: TextGrader, name: str, student: Any, questions: Sequence[Question]
    ) -> list[dict[str, Any]]:
        recorded = run.cached(student, grader)
        per_call = max(1, self.batch // self.rollouts)
        rows: list[dict[str, Any]] = []
        self.on_progress(name, 0, len(questions))
        for at in range(0, len(questions), per_call):
            asked = questions[at : at + per_call]
            requests = [SampleRequest(question, np.empty(0, np.uint32), self.rollouts) for question in asked]
            for question, rollouts, failed in _each(recorded, requests):
                counts = _counted(grader, question, rollouts) | {"failed": failed}
                prompt = len(student.prompt(question))
                rows.append({"question": question.id, "variant": name, "prompt_tokens": prompt, **counts})
            self.on_progress(name, len(rows), len(questions))
        return rows

    def _manifest(self, questions: Sequence[Question], grader: TextGrader) -> dict[str, Any]:
        shared = demonstrations_manifest(self.cast, self.contexts, questions)
        return shared | {
            "kind": "screening",
            "student": self.student.fingerprint,
            "tokenizer": self.prompting.chat.fingerprint,
            "grader": grader.fingerprint,
            "prompts": {BASELINE: self._prompts(questions)},
            "settings": {**shared["settings"], "rollouts": self.rollouts, "batch": self.batch},
        }

    def _prompts(self, questions: Sequence[Question]) -> str:
        """What the student reads, instruction and all; the contexts' prompts follow from it and their settings."""
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
    cast: DemonstrationWriters, contexts: Sequence[Context], questions: Sequence[Question]
) -> dict[str, Any]:
    """What a collection of demonstrations is, as JSON holds it."""

    def writer(source: DemonstrationSource) -> str:
        return f"{source.name}: {source.sampler.fingerprint}"

    return {
        "format": FORMAT,
        "kind": "demonstrations",
        "contexts": {
            context.name: {each.name: getattr(context, each.name) for each in fields(context) if each.compare}
            | {"write": _named(context.write)}
            for context in contexts
        },
        "sources": {name: writer(source) for name, source in cast.sources.items()},
        "summariser": writer(cast.summariser) if cast.summariser else None,
        "settings": {"trials": asdict(cast.trials)},
        "questions": {question.id: question_digest(question) for question in questions},
    }


def recorded_cast(run: RunDirectory, cast: DemonstrationWriters) -> DemonstrationWriters:
    """The same writers behind a run directory."""

    def behind(source: DemonstrationSource) -> DemonstrationSource:
        recorded = run.cached(source.sampler, source.grader)
        return replace(source, sampler=recorded, grader=recorded)

    return replace(
        cast,
        sources={name: behind(source) for name, source in cast.sources.items()},
        summariser=behind(cast.summariser) if cast.summariser else None,
    )


def load_screening(path: PathLike) -> tuple[Screening, dict[str, list[Demonstration]]]:
    """A finished screening from its directory, with its demonstrations."""
    folder = as_path(path)
    manifest = read_manifest(folder / "manifest.json")
    if manifest is None or manifest.get("kind") != "screening":
        what = "is no screening" if manifest or folder.is_dir() else "does not exist"
        raise OpdAlignError(f"{str(folder)!r} {what}; one is made by: opd-align screen --out {folder}")
    if not (folder / SCREENED).is_file():
        raise OpdAlignError(f"the screening in {str(folder)!r} is not finished; run the same command again, it goes on")
    try:
        summary = json.loads((folder / SCREENED).read_bytes())
        variants, sources = summary["variants"], summary["sources"]
        passes, missing, shown = (
            read_table((folder / name).read_bytes()) for name in (PASSES, MISSING, DEMONSTRATIONS)
        )
    except (DamagedFileError, OSError, ValueError, LookupError) as error:
        raise OpdAlignError(
            f"the screening in {str(folder)!r} cannot be read ({error}); run the same command again: its tables are "
            "made anew from the rollouts, none of which is sampled again"
        ) from error
    demonstrations: dict[str, list[Demonstration]] = {}
    for row in shown.to_pylist():
        demonstrations.setdefault(row["question"], []).append(Demonstration(**row))
    return Screening(passes, missing, variants, sources), demonstrations


def _each(recorded: CachedStudent, requests: Sequence[SampleRequest]) -> list[tuple[Question, Rollouts, int]]:
    rollouts = recorded.sample(requests)
    row_of = {int(key): row for row, key in enumerate(rollouts.key_R)}
    result = []
    for request, key_R in zip(requests, recorded.keys(requests), strict=True):
        rows = [row_of[int(key)] for key in key_R if int(key) in row_of]
        result.append((request.question, rollouts.take(np.array(rows, np.int64)), request.n - len(rows)))
    return result


def _counted(grader: TextGrader, question: Question, rollouts: Rollouts) -> dict[str, int]:
    truncated_R = rollouts.finish_R == Finish.TRUNCATED
    ended = rollouts.take(~truncated_R)
    verdicts = grader.verdicts(question, ended)
    counts = {verdict.value: sum(each is verdict for each in verdicts) for verdict in Verdict}
    return {**counts, "truncated": int(truncated_R.sum()), "rollouts": len(rollouts)}


def _demonstration_table(demonstrations: Mapping[str, Sequence[Demonstration]]) -> pa.Table:
    schema = pa.schema(
        [
            ("question", pa.string()), ("source", pa.string()), ("trial", pa.int32()), ("correct", pa.bool_()),
            ("text", pa.string()), ("summary", pa.string()),
        ]
    )  # fmt: skip
    return pa.Table.from_pylist([asdict(each) for found in demonstrations.values() for each in found], schema=schema)


def _named(write: Any) -> str:
    """A function by where it was written; whatever else can be called, by its type."""
    where = write if hasattr(write, "__qualname__") else type(write)
    return f"{where.__module__}.{where.__qualname__}"


def _self_first(source: str) -> tuple[bool, str]:
    return source != SELF, source
