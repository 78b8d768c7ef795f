"""Pivotal decisions as data: one JSON object each, and preference pairs for TRL's `DPOTrainer`.

A preference pair has the prompt, a correct response that takes the token with the highest success, and an incorrect one
that takes the token with the lowest. Both begin alike, and the common beginning cancels in the DPO loss. Everything is
read from a run directory; nothing is sampled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opd_align.core.pivotal import Option, PivotalDecision, pivotal_decisions
from opd_align.runs.continuations import Wanted, continuations
from opd_align.runs.filesystem import PathLike, as_path, error_reason, write_output
from opd_align.runs.run_directory import RunDirectory
from opd_align.runs.run_prompts import RunPrompts
from opd_align.types import OpdAlignError, Outcome

if TYPE_CHECKING:
    from opd_align.backends.chat import Chat
    from opd_align.core.engine import Analysis

Row = dict[str, Any]


@dataclass(frozen=True)
class Preferences:
    """Preference pairs, and why there are fewer than decisions times `pairs_per_decision`.

    Args:
        rows: One row per pair: `prompt`, `chosen` and `rejected` as TRL reads them, and where they come from.
        n_decisions: Number of pivotal decisions.
        n_without: Number of these that have no pair: no stored rollout ends as needed, or both have the same text.
    """

    rows: Sequence[Row]
    n_decisions: int
    n_without: int


def pivotal_rows(analysis: Analysis, **thresholds: float) -> list[Row]:
    """The pivotal decisions of an analysis as JSON values.

    Args:
        analysis: The analysis.
        thresholds: `min_difference` and `confidence` of `core.pivotal.pivotal_decisions`.
    """
    of_question = {
        row["question"]: row for row in analysis.questions.select(["question", "text", "answer"]).to_pylist()
    }

    def option_row(option: Option) -> Row:
        return {
            "token": option.token, "text": analysis.texts.get(option.token), "student": _number(option.p),
            "teachers": {name: _number(value) for name, value in option.teachers.items()},
            "success": _number(option.success), "success_90": [_number(option.low), _number(option.high)],
            "visits": option.visits,
        }  # fmt: skip

    return [
        {
            "question": one.question, "question_text": of_question[one.question]["text"],
            "answer": of_question[one.question]["answer"], "path": one.path, "path_correct": one.path_correct,
            "depth": one.depth, "prefix": _prefix_text(analysis.texts, one.prefix), "prefix_tokens": list(one.prefix),
            "difference": _number(one.difference), "probability": _number(one.probability),
            "options": [option_row(option) for option in one.options], "verdicts": one.verdicts,
        }
        for one in pivotal_decisions(analysis.nodes, analysis.children, **thresholds)
    ]  # fmt: skip


def preference_pairs(
    run: PathLike,
    analysis: Analysis | None = None,
    *,
    tokenizer: str | None = None,
    pairs_per_decision: int = 1,
    **thresholds: float,
) -> Preferences:
    """Preference pairs at the pivotal decisions of a run.

    Args:
        run: The run directory, whose rollouts are the responses.
        analysis: Its analysis, if it is already loaded.
        tokenizer: Model or folder with the student's tokenizer. `None`: the one that the run names.
        pairs_per_decision: Largest number of pairs per decision; no response is used twice.
        thresholds: `min_difference` and `confidence` of `core.pivotal.pivotal_decisions`.
    """
    if pairs_per_decision < 1:
        raise OpdAlignError(f"pairs_per_decision must be at least 1, not {pairs_per_decision}")
    folder = as_path(run)
    analysis = RunDirectory.load(folder) if analysis is None else analysis
    prompts = RunPrompts.load(folder)
    name = tokenizer or (prompts.tokenizer if prompts else None)
    if name is None:
        raise OpdAlignError(
            f"{str(folder)!r} does not name the student's tokenizer, which preference pairs need as text; name it: "
            "--tokenizer MODEL"
        )
    from opd_align.backends.chat import Chat
    from opd_align.backends.loading import load_tokenizer

    chat = Chat(load_tokenizer(name))
    decisions = pivotal_decisions(analysis.nodes, analysis.children, **thresholds)
    messages = _messages(analysis, prompts)
    wanted = [
        Wanted(one.question, (*one.prefix, option.token), outcome)
        for one in decisions
        for option, outcome in ((one.chosen, Outcome.CORRECT), (one.rejected, Outcome.INCORRECT))
    ]
    found = continuations(folder, wanted, n=pairs_per_decision)
    rows, n_without = [], 0
    for one, chosen, rejected in zip(decisions, found[::2], found[1::2], strict=True):
        texts = [(chat.decode(good), chat.decode(bad)) for good, bad in zip(chosen, rejected, strict=False)]
        pairs = [_pair(chat, messages[one.question], good, bad) for good, bad in texts if good != bad]
        rows += [{**pair, **_origin(analysis.texts, one)} for pair in pairs]
        n_without += not pairs
    return Preferences(rows, len(decisions), n_without)


def write_json_lines(path: PathLike, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes one JSON object per line; the file is complete as soon as it exists."""
    file = as_path(path)
    text = "".join(f"{json.dumps(row, ensure_ascii=False, allow_nan=False)}\n" for row in rows)
    text = text.encode("utf-8", "replace").decode()  # a lone surrogate (half of a broken token) is not UTF-8
    try:
        write_output(file, text)
    except OSError as error:
        raise OpdAlignError(f"cannot write {str(file)!r}: {error_reason(error)}; choose another path") from error


def _messages(analysis: Analysis, prompts: RunPrompts | None) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """The student's prompt of each question; without a record of them, the question as a user message."""
    known: dict[str, Sequence[Mapping[str, str]]] = dict(prompts.messages) if prompts else {}
    for row in analysis.questions.select(["question", "text"]).to_pylist():
        known.setdefault(row["question"], [{"role": "user", "content": row["text"]}])
    empty = [name for name, listed in known.items() if not any(each["content"].strip() for each in listed)]
    if empty:
        raise OpdAlignError(f"question {empty[0]!r} has no text, so there is no prompt for preference pairs")
    return known


def _pair(chat: Chat, messages: Sequence[Mapping[str, str]], chosen: str, rejected: str) -> Row:
    if not chat.tokenizer.chat_template:
        return {"prompt": chat.render(messages), "chosen": chosen, "rejected": rejected}
    return {
        "prompt": [dict(message) for message in messages],
        "chosen": [{"role": "assistant", "content": chosen}],
        "rejected": [{"role": "assistant", "content": rejected}],
    }


def _origin(texts: Mapping[int, str], one: PivotalDecision) -> Row:
    """Where a pair comes from. Trainers ignore these columns."""
    return {
        "question": one.question, "depth": one.depth,
        "chosen_token": texts.get(one.chosen.token), "rejected_token": texts.get(one.rejected.token),
        "chosen_success": _number(one.chosen.success), "rejected_success": _number(one.rejected.success),
        "probability": _number(one.probability),
    }  # fmt: skip


def _prefix_text(texts: Mapping[int, str], prefix: Sequence[int]) -> str | None:
    """The tokens' texts one after another; `None` without a tokenizer."""
    return "".join(texts.get(token, "\N{REPLACEMENT CHARACTER}") for token in prefix) if texts else None


def _number(value: float) -> float | None:
    """Rounded as far as a float32 of the tables reaches; `None` if unknown."""
    return round(value, 6) if math.isfinite(value) else None
