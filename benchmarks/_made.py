"""Synthetic analyses of any size without a model: random forks and success probabilities, tables by the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from opd_align.core.alignment import EstimatedPath, child_table, node_table
from opd_align.core.engine import Analysis, QuestionRecord, dictionary_encoded
from opd_align.core.objectives import Objective, ReverseKL
from opd_align.core.path_estimate import PathEstimate
from opd_align.core.tree import PathCounts
from opd_align.settings import Rules, Settings
from opd_align.types import PathScores, TeacherScores

WORDS = (
    " the", " shelf", " holds", " 12", " books", ",", " so", " therefore", " we", " multiply", " 4", " four", " by",
    " and", " then", " remove", " add", " total", " is", " 48", " which", " gives", ".", " Next", " left", " each",
    "\n",
)  # fmt: skip


def made_path(
    rng: np.random.Generator, question: str, index: int, *, length: int, teachers: Sequence[str]
) -> EstimatedPath:
    """A path on which a third of the positions fork, mostly with small differences in success."""
    forks_T = rng.random(length) < 1 / 3
    size_T = np.where(forks_T, rng.integers(2, 5, length), 1)
    offsets = np.concatenate([[0], np.cumsum(size_T)]).astype(np.int64)
    depth_C = np.repeat(np.arange(length), size_T)
    rank_C = np.arange(offsets[-1]) - offsets[depth_C]
    token_C = ((rng.integers(0, 900, length)[depth_C] + 97 * rank_C) % 1000).astype(np.uint32)
    order = np.lexsort((token_C, depth_C))
    token_C = token_C[order]
    weight_C = rng.gamma(1.0, 1.0, len(token_C)) + 0.05

    def log_shares(weight_C: np.ndarray) -> np.ndarray:
        return np.asarray(np.log(weight_C / np.bincount(depth_C, weight_C, length)[depth_C]) - 1e-3)

    own_T = offsets[:-1] + rng.integers(0, size_T)
    stake_T = np.where(rng.random(length) < 0.15, 0.15, 0.02)
    value_T = np.clip(0.5 + np.cumsum(rng.normal(0, 0.4 / np.sqrt(length), length)), 0.02, 0.98)
    q_C = np.clip(value_T[depth_C] + rng.normal(0, 1, len(token_C)) * stake_T[depth_C], 0.001, 0.999)
    one_T = np.abs(rng.normal(0, 1, length))
    teacher_scores = {
        name: TeacherScores(
            log_shares(weight_C * rng.gamma(2.0, 1.0, len(token_C)) * np.exp(12 * number * (q_C - value_T[depth_C]))),
            one_T, *(np.abs(rng.normal(0, 0.5, length)) for _ in range(6)),
        )
        for number, name in enumerate(teachers)
    }  # fmt: skip
    scores = PathScores(token_C[own_T], offsets, token_C, log_shares(weight_C), one_T, teacher_scores)
    visits_C = rng.integers(20, 300, len(token_C))
    zero_C = np.zeros(len(token_C))
    estimate = PathEstimate(
        q_C, q_C * (1 - q_C) / visits_C, zero_C, zero_C, np.zeros(length), q_C[own_T], visits_C, visits_C.astype(float),
        value_T, np.full(length, 0.01), offsets,
    )  # fmt: skip
    wins_C = np.rint(visits_C * q_C).astype(np.int64)
    counts = PathCounts(offsets, np.zeros(length, np.int64), token_C, *[visits_C, wins_C] * 3, *[zero_C] * 2)
    return EstimatedPath(question, index, index % 2 == 0, scores, estimate, counts, 0.5, (estimate, estimate))


def made_analysis(
    questions: int = 3,
    *,
    paths: int = 4,
    length: int = 200,
    teachers: Sequence[str] = ("Self-1C", "Qwen3-8B", "Qwen3-4B"),
    objectives: Sequence[Objective] = (ReverseKL(),),
    name: Callable[[int], str] = lambda at: f"question-{at}",
    word: Callable[[int], str] = lambda token: WORDS[token % len(WORDS)],
) -> Analysis:
    """`questions` with `paths` of `length` tokens each; later teachers prefer successful tokens more."""
    rng, rules = np.random.default_rng(0), Rules(draws=40)
    node_parts, child_parts, records = [], [], []
    for at in range(questions):
        made = [made_path(rng, name(at), index, length=length, teachers=teachers) for index in range(paths)]
        node_parts.append(node_table(made, objectives, rules))
        child_parts.append(child_table(made, teachers, objectives, rules))
        text = f"Question {at}: a bookshelf has {at + 3} shelves with 12 books each. How many books are there?"
        record = {"question": name(at), "text": text, "answer": str(12 * (at + 3)), "pass_rate": 0.5, "note": ""}
        record |= {"correct_paths": (paths + 1) // 2, "incorrect_paths": paths // 2, "nodes": len(node_parts[-1])}
        record |= dict.fromkeys(("teacher_entropy", "overlap_ratio", "overlap_token_advantage"), [0.5] * len(teachers))
        records.append(dict.fromkeys(QuestionRecord.__dataclass_fields__, 200) | record)
    children = dictionary_encoded(pa.concat_tables(child_parts))
    texts = {token: word(token) for token in children["token"].unique().to_pylist()}
    settings = Settings(list(objectives), rules=rules)
    return Analysis(
        dictionary_encoded(pa.concat_tables(node_parts)), pa.Table.from_pylist(records), settings, children, texts
    )
