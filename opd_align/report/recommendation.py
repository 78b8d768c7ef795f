"""The recommendation as one line and as tables: which teacher, which objective, how certain, what is still open.

Every number is of a `core.decision.Decision`. Names come from outside and are inserted as they are; whoever shows the
text escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite

from opd_align.core.decision import HEADLINE, MAX_MORE_QUESTIONS, Candidate, Decision, Open, candidate_names
from opd_align.core.metrics import MIN_QUESTIONS
from opd_align.report.table_format import Cell, Column, Table, row

MAX_PAIRWISE = 12
"""Number of candidates in the table of pairwise probabilities."""
MAX_NAMED = 3
"""Number of candidates that a sentence names."""
ANNOUNCED = 0.9
"""Probability from which on a sentence makes a claim, with its probability, before it counts as decided."""


def recommendation(decision: Decision) -> str:
    """The recommendation in one line.

    Args:
        decision: What `core.decision.decide` found.
    """
    if not decision.candidates:
        return "No recommendation: there was nothing to compare."
    if decision.best is None:
        return _too_few(decision)
    names, best = candidate_names(decision.candidates), decision.best
    if decision.outcome == "no_teacher_helps":
        return _sentences(_none_helps(decision, names), *_harmful(decision, names))
    open_of = {entry.other: entry for entry in decision.still_open}
    if best.p_helps < ANNOUNCED:
        more = f"To decide whether it helps, {_more_text(open_of[None])}" if None in open_of else ""
        return _sentences(_undecided(decision, names[0]), *_limits(decision), more, *_harmful(decision, names))
    return _sentences(_use(decision, names), *_harmful(decision, names), *_separate(decision, names, open_of))


def _undecided(decision: Decision, name: str) -> str:
    best = decision.candidates[0]
    helps = f"helps with probability {probability(best.p_helps)}"
    if len(decision.compared) == 1:
        return f"Undecided: {name} {helps}"
    if best.p_helps < 0.5:
        return f"Undecided: no teacher seems to help; {name}, the first, {helps}"
    return f"Undecided: {name} ranks first, but {helps}"


def _limits(decision: Decision) -> list[str]:
    """How large an effect, and a difference, the questions leave possible."""
    if not isfinite(decision.effect_limit):
        return []
    several = len(decision.compared) > 1
    whose = "no teacher's" if several else "its"
    beyond = "is beyond" if several else "is within"
    sentence = f"With probability {decision.level:g}, {whose} {HEADLINE.label} {beyond} ±{_up(decision.effect_limit)}"
    if isfinite(decision.difference_limit):
        sentence += f", and no two differ by more than {_up(decision.difference_limit)}"
    return [sentence]


def _up(value: float) -> str:
    """A limit with two decimals, rounded up: a smaller one would claim too much."""
    return f"{ceil(round(value * 100, 6)) / 100:.2f}"


def _too_few(decision: Decision) -> str:
    n = decision.n_questions
    shared = "on which all teachers can be compared" if len(decision.candidates) > 1 else "with a known value"
    found = "no question" if n == 0 else "only one question" if n == 1 else f"only {n} questions"
    return (
        f"No recommendation: {found} {shared}, and probabilities need at least {MIN_QUESTIONS}. Analyze more questions "
        "that the student solves some of the time."
    )


def _none_helps(decision: Decision, names: Sequence[str]) -> str:
    certain = f"(probability {probability(decision.p_none_helps)})"
    if len(decision.compared) == 1:
        return f"Do not distill from {names[0]}: it does not help {certain}"
    return f"No teacher helps: none of {len(decision.compared)} points toward success {certain}"


def _use(decision: Decision, names: Sequence[str]) -> str:
    best = decision.candidates[0]
    choice = f"Use {' or '.join([names[0], *(names[at] for at in decision.as_good[: MAX_NAMED - 1])])}"
    others = [at for at in range(1, len(decision.better)) if at not in decision.as_good]
    beaten = [at for at in others if decision.better[0][at] >= ANNOUNCED]
    if not beaten:
        return f"{choice}: it helps with probability {probability(best.p_helps)}"
    closest = min(beaten, key=lambda at: decision.better[0][at])
    chance = probability(decision.better[0][closest])
    if len(beaten) == len(others) > 1:
        first = f"the best of {len(decision.better)} with probability {probability(decision.p_first)}"
        return f"{choice}: {first}; better than {names[closest]}, the next, with {chance}"
    at_least = "at least " if len(beaten) > 1 else ""
    return f"{choice}: better than {_listed([names[at] for at in beaten])} with probability {at_least}{chance}"


def _harmful(decision: Decision, names: Sequence[str]) -> list[str]:
    harmful = {(one.teacher, one.objective) for one in decision.harmful}
    listed = [
        name for name, one in zip(names, decision.candidates, strict=True) if (one.teacher, one.objective) in harmful
    ]
    if not listed or len(listed) == len(decision.compared):
        return []
    return [f"Harmful: {_listed(listed)}"]


def _separate(decision: Decision, names: Sequence[str], open_of: dict[int | None, Open]) -> list[str]:
    """What more questions would decide: whether the first one is better than those that may be as good."""
    close = [entry for other, entry in open_of.items() if other is not None]
    if not close:
        return []
    # Candidates that only the level of a decision separates need no sentence if others are far more open.
    uncertain = [entry for entry in close if entry.probability < ANNOUNCED] or close
    first = uncertain[0]
    if first.probability >= ANNOUNCED:
        return [f"For probability {decision.level:g}, {_more_text(first)}"]
    other = names[first.other or 0]
    chance = f"better with probability {probability(first.probability)}"
    # The limit is one for all pairs: said of two of them only if there are no others.
    if len(decision.compared) == 2 and isfinite(decision.difference_limit):
        chance += f"; the difference is at most {_up(decision.difference_limit)} with {decision.level:g}"
    sentence = f"To separate {names[0]} from {other} ({chance}), "
    rest = len(uncertain) - 1
    also = f"; {rest} other{'s' if rest > 1 else ''} may be as good" if rest else ""
    return [f"{sentence}{_more_text(first)}{also}"]


def _more_text(entry: Open) -> str:
    if not entry.more_questions <= MAX_MORE_QUESTIONS:
        return f"more than {MAX_MORE_QUESTIONS:,} more questions"
    return f"about {entry.more_questions:,.0f} more question{'s' if entry.more_questions != 1 else ''}"


def _listed(names: Sequence[str]) -> str:
    shown = [*names[:MAX_NAMED], *([f"{len(names) - MAX_NAMED} more"] if len(names) > MAX_NAMED else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def _sentences(*parts: str) -> str:
    return " ".join(f"{part}." for part in parts if part)


def probability(value: float) -> str:
    """A probability with two decimals; never 0.00 or 1.00, which no data can show."""
    if value != value:
        return "–"
    return "<0.01" if value < 0.005 else ">0.99" if value > 0.995 else f"{value:.2f}"


# -- tables -----------------------------------------------------------------------------------------------------


def decision_tables(decision: Decision) -> list[Table]:
    """The tables behind the recommendation: candidates, teacher × loss, pairwise probabilities."""
    if not decision.candidates:
        return []
    made = [candidate_table(decision)]
    if len({one.objective for one in decision.candidates}) > 1:
        made.append(matrix_table(decision))
    if len(decision.better) > 1:
        made.append(pairwise_table(decision))
    return made


def candidate_table(decision: Decision) -> Table:
    """Every teacher and objective with the probabilities that it helps, harms and is the best."""
    several = len({one.objective for one in decision.candidates}) > 1
    columns = (
        Column("teacher"), *([Column("objective")] if several else []), Column(HEADLINE.label, "signed"),
        Column("helps"), Column("harms"), Column("best"), Column("questions", "count"),
    )  # fmt: skip
    rows = [
        row(
            one.teacher, *([one.objective] if several else []), one.mean, probability(one.p_helps),
            probability(one.p_harms), probability(one.p_best), one.n_questions,
        )
        for one in decision.candidates
    ]  # fmt: skip
    covered = ", ".join(dict.fromkeys(one.objective for one in decision.candidates))
    title = f"Which teacher to use: probabilities ({covered})"
    return Table("decision", title, columns, tuple(rows), _caption(decision))


def matrix_table(decision: Decision) -> Table:
    """Teachers × objectives: the headline quantity, with the probability that it is above zero."""
    of_pair = {(one.teacher, one.objective): one for one in decision.candidates}
    teachers = list(dict.fromkeys(one.teacher for one in decision.candidates))
    objectives = list(dict.fromkeys(one.objective for one in decision.candidates))
    rows = [row(teacher, *(_matrix_cell(of_pair.get((teacher, name))) for name in objectives)) for teacher in teachers]
    columns = (Column("teacher"), *(Column(name) for name in objectives))
    caption = f"{HEADLINE.label}; in brackets the probability that it is above zero"
    return Table("teacher-by-objective", f"Teacher × loss ({', '.join(objectives)})", columns, tuple(rows), caption)


def _matrix_cell(one: Candidate | None) -> Cell:
    if one is None:
        return Cell(None)
    return Cell(f"{one.mean:+.3f} ({probability(one.p_helps)})".replace("-", "−"))


def pairwise_table(decision: Decision) -> Table:
    """The probability that the candidate of a row is better than the candidate of a column."""
    names = candidate_names(decision.compared)
    shown = range(min(len(names), MAX_PAIRWISE))
    columns = (Column(""), Column("better than"), *(Column(f"{at + 1}") for at in shown))
    rows = [
        row(
            f"{one + 1}",
            names[one],
            *("" if one == other else probability(decision.better[one][other]) for other in shown),
        )
        for one in shown
    ]
    caption = f"the first {MAX_PAIRWISE} of {len(names)}" if len(names) > MAX_PAIRWISE else ""
    covered = ", ".join(dict.fromkeys(one.objective for one in decision.compared))
    title = f"Probability that a row is better than a column ({covered})"
    return Table("pairwise", title, columns, tuple(rows), caption)


def _caption(decision: Decision) -> str:
    if decision.best is None:
        return f"no probabilities: fewer than {MIN_QUESTIONS} questions can be compared"
    shared = " that all of them have" if len(decision.compared) > 1 else ""
    caption = f"from {decision.n_questions} questions{shared}; decided means probability {decision.level:g}"
    if len(decision.compared) < len(decision.candidates):
        caption += "; –: too few questions in common with the others"
    return caption
