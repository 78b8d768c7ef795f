"""A success probe beside what gates use today: which candidate knows the better of two next tokens?

The embedded student, trees on questions of the training split (candidates that learn are fitted on them) and on
questions of the test split (all are judged on them). Judged by rank correlation within nodes with the posterior means
of Q, and by what a gate made of each candidate would keep of a good, a noisy and a harmful teacher. The definitions
are in `_probe_judge.py`.

    python benchmarks/probe.py [--quick] [--json FILE] [--folder FOLDER] [--train N] [--judge M]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from _probe_judge import REAL_SPREAD, Judge, interval
from _probe_nodes import (
    HIDDEN_UNITS,
    ChildScores,
    PathStates,
    fit_value_head,
    hidden_states,
    log_prob,
    log_ratio,
    outcome_sign,
    path_states,
)
from _probe_trees import GOOD, HARMFUL, NOISY, Models, collect_trees, questions
from rich.console import Console
from rich.table import Table

from opd_align.core.engine import Analysis, _question_result, combine_results
from opd_align.settings import Settings
from opd_align.training.probe import examples_of, fit_probe
from opd_align.types import Floats

PROBE = "probe"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few questions with few rollouts: figures mean nothing")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--folder", type=Path, help="keep trees here, and continue with those that are there")
    parser.add_argument("--train", type=int, default=46, help="questions that candidates are fitted on")
    parser.add_argument("--judge", type=int, default=22, help="questions that they are judged on")
    arguments = parser.parse_args()
    start = time.monotonic()
    n_train, n_judge = (4, 3) if arguments.quick else (arguments.train, arguments.judge)
    budgets = ((24, 150), (24, 150)) if arguments.quick else ((64, 1500), (64, 3000))
    folder = arguments.folder or Path(mkdtemp(prefix="probe"))
    models = Models.load()
    train = collect_trees(models, questions("train", n_train), folder, initial=budgets[0][0], targeted=budgets[0][1])
    judged = collect_trees(models, questions("test", n_judge), folder, initial=budgets[1][0], targeted=budgets[1][1])
    if len(train) < 2 or not judged:
        raise SystemExit("too few questions with correct and incorrect rollouts")
    by_id = {each.question.id: each.question for each in train}

    learned, steps = fitted(models, train, by_id, {each.question.id for each in judged})
    judge = Judge.of(path_states(models, judged))
    figures = figures_of(judge, learned)
    figures |= {
        "questions": {"train": len(train), "judged": len(judged)},
        "rollouts": {"train": budgets[0], "judged": budgets[1]},
        "probe_steps": steps,
        "seconds": time.monotonic() - start,
    }
    show(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def analysis_of(train: list[Any]) -> Analysis:
    settings = Settings()
    teachers = [_Named(name) for name in train[0].paths[0].teachers]
    return combine_results([_question_result(_NoText(), teachers, each, settings) for each in train], settings)  # type: ignore[arg-type]


class _Named:
    def __init__(self, name: str) -> None:
        self.name = name


class _NoText:
    """A student of which only the text of tokens would be asked."""


def fitted(
    models: Models, train: list[Any], by_id: dict[str, Any], judged: set[str]
) -> tuple[dict[str, ChildScores], int]:
    """Candidates that learn from trees; refuses questions that are judged on."""
    examples = examples_of(analysis_of(train), lambda name, tokens: hidden_states(models, by_id[name], tokens))
    probe = fit_probe(examples, models.student.get_output_embeddings().weight)
    probe.check_held_out(judged)
    paths = path_states(models, train)
    heads = {"value head, linear": fit_value_head(paths, units=0)}
    heads["value head, MLP"] = fit_value_head(paths, units=HIDDEN_UNITS)

    def by_probe(each: PathStates) -> Floats:
        scores = each.path.scores
        scores_TV = probe.scores(each.hidden_TH).double().numpy()
        return np.asarray(scores_TV[scores.depth_C, scores.token_C.astype(np.int64)])

    found: dict[str, ChildScores] = {PROBE: by_probe}
    for name, head in heads.items():
        found[name] = lambda each, head=head: head(each.after_CH)  # type: ignore[misc]
    return found, probe.steps


def figures_of(judge: Judge, learned: dict[str, ChildScores]) -> dict[str, Any]:
    candidates: dict[str, ChildScores] = {
        **learned,
        "outcome's sign": outcome_sign,
        "student log p": log_prob,
        **{f"log t − log p, {teacher}": log_ratio(teacher) for teacher in (GOOD, NOISY, HARMFUL)},
    }
    weight_N = judge.sr_range_N
    real_N = (weight_N >= REAL_SPREAD).astype(float)
    correlation = {name: judge.correlations(scores) for name, scores in candidates.items()}
    rows = {}
    for name, value_N in correlation.items():
        rows[name] = {}
        for kind, weights in (("weighted", weight_N), ("real_spread", real_N)):
            mean, samples = judge.mean(value_N, weights)
            rows[name][kind] = (mean, *interval(samples))
            gap, gaps = judge.mean(correlation[PROBE] - value_N, weights)
            rows[name][f"probe_minus_{kind}"] = (gap, *interval(gaps))
    half, _ = judge.mean(judge.halves(), weight_N)
    gates: dict[str, dict[str, Any]] = {}
    for teacher in (GOOD, NOISY, HARMFUL):
        value_N = correlation[f"log t − log p, {teacher}"]
        kept_of = judge.gates(teacher, learned)
        for name, keep_N in kept_of.items():
            signal, samples = judge.mean(value_N * keep_N, weight_N)
            over_sign, gaps = judge.mean(value_N * (keep_N.astype(float) - kept_of["outcome's sign"]), weight_N)
            gates.setdefault(name, {})[teacher] = {
                "share": float(keep_N.mean()),
                "signal": (signal, *interval(samples)),
                "minus_outcome_sign": (over_sign, *interval(gaps)),
            }
    return {
        "nodes": len(judge.nodes),
        "nodes_with_real_spread": int(real_N.sum()),
        "nodes_with_two_children": int(sum(len(node.children) == 2 for node in judge.nodes)),
        "split_half": half,
        "ceiling": float(np.sqrt(max(2 * half / (1 + half), 0.0))),
        "candidates": rows,
        "gates": gates,
    }


def show(figures: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"{figures['questions']['train']} questions to fit on, {figures['questions']['judged']} to judge on, "
        f"{figures['nodes']} nodes ({figures['nodes_with_real_spread']} with an SR range of {REAL_SPREAD} or more), "
        f"{figures['seconds']:.0f} s. Split halves agree at {figures['split_half']:.2f}: a perfect one would have "
        f"about {figures['ceiling']:.2f}."
    )
    table = Table("candidate", "weighted by SR range", "nodes with spread", "probe − candidate", title="Within nodes")
    for name, row in figures["candidates"].items():
        table.add_row(name, *(formatted(row[kind]) for kind in ("weighted", "real_spread", "probe_minus_weighted")))
    console.print(table)
    kept = Table("gate", *(f"{teacher}: kept, signal" for teacher in (GOOD, NOISY, HARMFUL)), title="As a gate")
    for name, by_teacher in figures["gates"].items():
        kept.add_row(name, *(f"{100 * row['share']:.0f} %, {formatted(row['signal'])}" for row in by_teacher.values()))
    console.print(kept)


def formatted(value: tuple[float, float, float]) -> str:
    return "{:+.2f} [{:+.2f}, {:+.2f}]".format(*value)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
