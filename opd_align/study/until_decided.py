"""An analysis that goes on adding questions until its recommendation is decided, or all questions are used.

Each stage is the analysis of the first n questions, in the same run directory: what is stored is not sampled again,
and within a process nothing is scored again. The result is that of a run on these n questions from the start. The
sizes of the stages depend on results only, so an interrupted run goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite

from opd_align.core.decision import Decision, decide
from opd_align.core.engine import Analysis
from opd_align.runs.filesystem import AnyPath
from opd_align.runs.manifest import read_manifest
from opd_align.runs.run_directory import DEMONSTRATIONS, MANIFEST
from opd_align.study.build import Study
from opd_align.types import OpdAlignError

START = 8
"""Number of questions of the first stage if the configuration does not say."""
MAX_QUESTIONS = 100
"""Default for the largest number of questions."""
GROWTH = (1.25, 2.0)
"""Smallest and largest factor from one stage to the next: each look at an undecided result is a chance to be wrong."""


def analyze_until_decided(
    study: Study,
    path: AnyPath,
    analyze: Callable[[Study, int], Analysis],
    *,
    level: float,
    start: int,
    on_stage: Callable[[int, Decision], None] | None = None,
) -> Analysis:
    """The analysis of as many questions as the recommendation needs.

    Args:
        study: The study on all questions that may be used.
        path: The run directory, new or of an interrupted run.
        analyze: From the study of a stage and its number of new questions to the analysis, in that directory; it calls
            `Study.analyze` with `extend=True`.
        level: Probability from which on the recommendation is decided.
        start: Number of questions of the first stage.
        on_stage: Called after every stage with its number of questions and its decision.
    """
    # Stages count usable questions: the others change nothing, and a resumed run cannot see how many there were.
    order = [at for at, question in enumerate(study.questions) if question.id not in study.unusable_questions]
    most = len(order)
    if start < 1:
        raise OpdAlignError(f"the first stage needs at least 1 question, not {start}")
    n, before = min(max(start, _stored(study, path)), most), 0
    while True:
        stage = study.limited(order[n - 1] + 1)
        analysis = analyze(stage, n - before)
        decision = decide(analysis.nodes, n_analyzed=analysis.questions.num_rows, level=level)
        if on_stage:
            on_stage(analysis.questions.num_rows, decision)
        if decision.decided or n >= most:
            return analysis
        before, n = n, next_size(n, decision, most)


def next_size(n: int, decision: Decision, most: int) -> int:
    """Number of questions of the next stage: as many as the open comparisons need, within `GROWTH`."""
    wanted = [entry.more_questions for entry in decision.still_open if isfinite(entry.more_questions)]
    low, high = (max(ceil(n * factor), n + 2) for factor in GROWTH)
    size = high if not wanted else min(max(ceil(n + max(wanted)), low), high)
    return min(size, most)


def _stored(study: Study, path: AnyPath) -> int:
    """How many of the study's usable questions the run directory already contains: up to the last of them."""
    at_of = {question.id: at for at, question in enumerate(study.usable_questions)}
    stored = [read_manifest(folder / MANIFEST) or {} for folder in (path, path / DEMONSTRATIONS)]
    return max((at_of.get(name, -1) + 1 for manifest in stored for name in manifest.get("questions", ())), default=0)
