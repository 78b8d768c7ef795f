"""Records what an exact world answered during an analysis, as a file that `backends.replay` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from opd_align.backends.exact import EOS, ExactFamily, ExactFamilyTeacher
from opd_align.core.engine import Analysis, analyze
from opd_align.settings import Settings
from opd_align.types import Finish, Question, Rollouts, SampleRequest, ScoreRequest


class Recorder:
    """An exact family that remembers its rollouts and the paths that were scored."""

    def __init__(self, family: ExactFamily) -> None:
        self.family = family
        self.rollouts: dict[str, list[Rollouts]] = {}
        self.paths: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.family, name)

    def sample(self, requests: Sequence[SampleRequest]) -> Rollouts:
        (question,) = {request.question.id: request.question for request in requests}.values()
        rollouts = self.family.sample(requests)
        graded = replace(rollouts, outcome_R=self.family.grade(question, rollouts))
        self.rollouts.setdefault(question.id, []).append(graded)
        return rollouts

    def score(self, request: ScoreRequest, teachers: Sequence[ExactFamilyTeacher]) -> Any:
        self.paths.setdefault(request.question.id, []).append(request.completion)
        return self.family.score(request, teachers)


def recorded_analysis(
    file: Path, family: ExactFamily, teachers: Sequence[ExactFamilyTeacher], settings: Settings
) -> Analysis:
    """Analyzes a family, and writes everything that was sampled and the full distributions along the paths."""
    recorder = Recorder(family)
    analysis = analyze(recorder, teachers, family.questions, family, settings=settings)
    lines: list[dict[str, Any]] = [{"end_tokens": [EOS], "temperature": 1}]
    for question in family.questions:
        rollouts = Rollouts.join(recorder.rollouts[question.id])
        lines += rollout_lines(family, teachers, question, rollouts)
        lines += node_lines(family, teachers, question, recorder.paths.get(question.id, []))
    write_lines(file, lines)
    return analysis


def write_lines(file: Path, lines: Sequence[dict[str, Any]]) -> Path:
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return file


def rollout_lines(
    family: ExactFamily, teachers: Sequence[ExactFamilyTeacher], question: Question, rollouts: Rollouts
) -> list[dict[str, Any]]:
    """Natural rollouts with log-probabilities, forced ones without."""
    log_p = family.token_log_probs(question, rollouts, None)
    log_t = {teacher.name: family.token_log_probs(question, rollouts, teacher) for teacher in teachers}
    lines = []
    for row in range(len(rollouts)):
        part = slice(rollouts.offsets[row], rollouts.offsets[row + 1])
        line: dict[str, Any] = {
            "question": question.id,
            "tokens": rollouts.completion(row).tolist(),
            "outcome": int(rollouts.outcome_R[row]),
            "truncated": bool(rollouts.finish_R[row] == Finish.TRUNCATED),
            "key": int(rollouts.key_R[row]),
        }
        if rollouts.launch_R[row]:
            line["launch"] = int(rollouts.launch_R[row])
        else:
            line["log_probs"] = log_p[part].tolist()
            line["teacher_log_probs"] = {name: values[part].tolist() for name, values in log_t.items()}
        lines.append(line)
    return lines


def node_lines(
    family: ExactFamily, teachers: Sequence[ExactFamilyTeacher], question: Question, paths: Sequence[Any]
) -> list[dict[str, Any]]:
    """The distributions of student and teachers at all nodes of the paths, and the outcome of ending there."""
    nothing = (np.empty(0, np.int64), np.empty(0, np.uint32))
    found: dict[tuple[tuple[int, ...], int], dict[str, Any]] = {}
    for path in paths:
        scores = family.score(ScoreRequest(question, path, *nothing, 1e-300), teachers)
        for child, (depth, token) in enumerate(zip(scores.depth_C.tolist(), scores.token_C.tolist(), strict=True)):
            prefix = path[:depth].tolist()
            line: dict[str, Any] = {
                "question": question.id,
                "prefix": prefix,
                "token": token,
                "p": float(np.exp(scores.log_p_C[child])),
                "teacher_p": {name: float(np.exp(each.log_t_C[child])) for name, each in scores.teachers.items()},
            }
            if token == EOS:
                line["outcomes"] = family.grade(question, Rollouts.of([[*prefix, EOS]])).tolist()
            found[tuple(prefix), token] = line
    return list(found.values())
