"""Streamed scoring compared with a plain forward pass that holds all logits: memory, speed, error.

Student and teacher with a vocabulary of 152K and a small body score one path. Memory is the growth of a separate
process while it scores 30,000 tokens. Speed and error are relative to all logits and the same reductions, on a path
short enough for them (in float32 and float64).

    python benchmarks/scoring.py [--quick] [--json FILE]

`--quick` measures the memory on 1,000 tokens (`extra_gib_1k`) and leaves `extra_gib_30k` null.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from opd_align.backends.scoring import PromptedModel, score_path
from opd_align.settings import Sampling
from opd_align.types import PathScores, Question, ScoreRequest

VOCABULARY = 151_936
LONG, QUICK = 30_000, 1_000
FLOOR = 0.02
PROMPTS = [1, 2, 3], [1, 2, 3, 4, 5]


def models() -> list[Any]:
    shape = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "head_dim": 16}
    config = Qwen3Config(
        **shape,
        vocab_size=VOCABULARY,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2 * LONG,
    )
    built = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config).eval()
        with torch.no_grad():
            model.lm_head.weight.mul_(20)  # the logits of a random head are nearly equal; this one prefers some tokens
        built.append(model)
    return built


def path(length: int) -> Any:
    return np.random.default_rng(0).integers(0, VOCABULARY, length).astype(np.uint32)


def streamed(student: Any, teacher: Any, length: int) -> PathScores:
    request = ScoreRequest(Question("q"), path(length), np.empty(0, np.int64), np.empty(0, np.uint32), FLOOR)
    prompted = [PromptedModel("student", student, PROMPTS[0]), PromptedModel("teacher", teacher, PROMPTS[1])]
    return score_path(prompted[0], prompted[1:], request, Sampling())


def plain(student: Any, teacher: Any, length: int, dtype: torch.dtype) -> dict[str, Any]:
    """All logits of both models, then the same quantities."""
    log = []
    with torch.no_grad():
        for model, prompt in zip((student, teacher), PROMPTS, strict=True):
            ids = torch.tensor([[*prompt, *path(length)[:-1].tolist()]])
            logits = model(input_ids=ids, use_cache=False, logits_to_keep=length).logits[0]
            log.append(torch.log_softmax(logits.to(dtype), -1))
        log_p, log_t = log
        p, t = log_p.exp(), log_t.exp()
        log_m = torch.log((p + t) / 2)
        kept = (p > FLOOR) | (t > FLOOR)
        kept[torch.arange(length), torch.tensor(path(length).astype(np.int64))] = True
        row, token = kept.nonzero(as_tuple=True)
        result = {
            "token_C": token,
            "log_p_C": log_p[row, token],
            "entropy_T": -(p * log_p).sum(-1),
            "log_t_C": log_t[row, token],
            "teacher_entropy_T": -(t * log_t).sum(-1),
            "kl_T": (p * (log_p - log_t)).sum(-1),
            "js_T": ((p * (log_p - log_m)).sum(-1) + (t * (log_t - log_m)).sum(-1)) / 2,
            "l2_T": (p - t).norm(dim=-1),
            "cosine_T": (p * t).sum(-1) / (p.norm(dim=-1) * t.norm(dim=-1)),
        }
    return {name: column.numpy() for name, column in result.items()}


def largest_error(scores: PathScores, expected: dict[str, Any]) -> float:
    assert scores.token_C.tolist() == expected["token_C"].tolist()
    teacher = scores.teachers["teacher"]
    actual = {
        "log_p_C": scores.log_p_C,
        "entropy_T": scores.entropy_T,
        "log_t_C": teacher.log_t_C,
        "teacher_entropy_T": teacher.entropy_T,
        **{name: getattr(teacher, name) for name in ("kl_T", "js_T", "l2_T", "cosine_T")},
    }
    return max(float(np.abs(column - expected[name]).max()) for name, column in actual.items())


def growth_gib(length: int) -> float:
    """Growth of the process's peak memory while it scores; call it in a new process."""
    student, teacher = models()
    streamed(student, teacher, 2)  # libraries allocate on first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    streamed(student, teacher, length)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def growth_in_new_process(length: int) -> float:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(growth_gib, length).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter paths")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    short, rounds = (64, 2) if arguments.quick else (512, 3)
    extra = growth_in_new_process(QUICK if arguments.quick else LONG)
    student, teacher = models()
    error = largest_error(streamed(student, teacher, 48), plain(student, teacher, 48, torch.float64))
    seconds: dict[str, list[float]] = {"streamed": [], "plain": []}
    for number in range(2 * rounds):
        name = "streamed" if number % 2 else "plain"
        start = time.perf_counter()
        if number % 2:
            streamed(student, teacher, short)
        else:
            plain(student, teacher, short, torch.float32)
        seconds[name].append(time.perf_counter() - start)
    results = {
        "extra_gib_30k": None if arguments.quick else round(extra, 3),
        "extra_gib_1k": round(extra, 3) if arguments.quick else None,
        "whole_logits_gib_30k": round(2 * LONG * VOCABULARY * 4 / 2**30, 1),
        "speed_over_plain": round(min(seconds["plain"]) / min(seconds["streamed"]), 3),
        "max_abs_error": error,
        "streamed_tokens_per_second": round(short / min(seconds["streamed"]), 1),
    }
    table = Table("result", "value", title=f"one path, student and teacher, vocabulary {VOCABULARY:,}")
    for name, value in results.items():
        table.add_row(name, "–" if value is None else f"{value:g}")
    Console().print(table)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
