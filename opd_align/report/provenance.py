"""Where an analysis comes from: student, task, seed, what each teacher is, and what it read.

A study saves this next to its result (`provenance.json`), since the tables contain names only. It is shown, never
computed with: an analysis without it, such as one of a training step, is shown with its settings alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from opd_align.runs.filesystem import AnyPath, PathLike, as_path, read_file, write_atomic
from opd_align.settings import Settings

FILE = "provenance.json"
MAX_FACT = 300
MAX_PROMPT, MAX_PROMPTS = 8_000, 800_000
"""Number of characters that are kept of one prompt, and of all prompts together."""


@dataclass(frozen=True)
class TeacherNote:
    """What a teacher is.

    Args:
        name: Its name in tables.
        meaning: The model and what it reads, in words.
    """

    name: str
    meaning: str


@dataclass(frozen=True)
class Provenance:
    """Where an analysis comes from.

    Args:
        facts: Label → value, such as student, task and seed, in the order in which they are shown.
        teachers: What each teacher is.
        prompts: Question ID → name of a teacher → its prompt. The name "" is the student.
    """

    facts: Mapping[str, str] = field(default_factory=dict)
    teachers: Sequence[TeacherNote] = ()
    prompts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def save(self, folder: PathLike) -> None:
        """Writes the file into a run directory."""
        text = json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"
        write_atomic(as_path(folder) / FILE, text.encode(errors="backslashreplace"))

    @staticmethod
    def load(folder: AnyPath) -> Provenance:
        """What a run directory says; empty if it has no such file, or a damaged one."""
        try:
            data = json.loads(read_file(folder / FILE) or b"{}")
            facts = {str(label): str(value) for label, value in data.get("facts", {}).items()}
            notes = [TeacherNote(str(entry["name"]), str(entry["meaning"])) for entry in data.get("teachers", ())]
            prompts = {
                str(question): {str(name): str(text) for name, text in texts.items()}
                for question, texts in data.get("prompts", {}).items()
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return Provenance()
        return Provenance(facts, tuple(notes), prompts)


def kept_prompts(prompts: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """The prompts that are stored: each shortened, and those of the first questions if there are too many."""
    kept: dict[str, dict[str, str]] = {}
    size = 0
    for question, texts in prompts.items():
        short = {name: text if len(text) <= MAX_PROMPT else f"{text[:MAX_PROMPT]}…" for name, text in texts.items()}
        size += sum(map(len, short.values()))
        if size > MAX_PROMPTS and kept:
            break
        kept[question] = short
    return kept


def settings_facts(settings: Settings) -> dict[str, str]:
    """What the settings of an analysis say, for the same list."""
    budget, rules = settings.budget, settings.rules
    targeted = "as many as planned" if budget.targeted is None else f"up to {budget.targeted:,}"
    return {
        "objectives": ", ".join(objective.name for objective in settings.objectives),
        "budget per question": f"{budget.initial:,} initial rollouts, {targeted} targeted ({budget.allocation} "
        f"allocation), {budget.correct_paths} correct and {budget.incorrect_paths} incorrect paths",
        "estimator": f"{settings.estimator}{'' if settings.shrink else ', not shrunk'}",
        "a continuation counts": f"with a probability above {rules.tau:g} for the student or the teacher"
        + ("" if settings.estimator == "backup" else f", and {rules.n_sig:g} or more visits"),
        "a decision is certain": f"at probability {rules.confidence:g} ({rules.draws} draws, seed {rules.seed})",
    }


def shown_facts(provenance: Provenance, settings: Settings) -> dict[str, str]:
    """All facts, those of the study first; long values are shortened."""
    facts = {**provenance.facts, **settings_facts(settings)}
    return {label: value if len(value) <= MAX_FACT else f"{value[:MAX_FACT]}…" for label, value in facts.items()}
