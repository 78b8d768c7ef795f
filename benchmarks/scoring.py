"""Streamed scoring compared with a plain forward pass that holds all logits: memory, speed, error, precision.

Student and teacher with a vocabulary of 152K and a small body score one path. Memory is the growth of a separate
process while it scores 30,000 tokens. Speed and error are relative to all logits and the same reductions, on a path
short enough for them (in float32 and float64). With a budget of 2 GiB, nine models are scored together on two chunks,
and the chunks of a path of 30,000 tokens are counted. Precision: cosine of the update of bfloat16 weights with that of
their float32 copy, as scored by default, with a float32 output layer only, and in bfloat16 (`_precision.py`).

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
from _precision import cosines
from rich.console import Console
from rich.table import Table
from transformers import Qwen3Config, Qwen3ForCausalLM

from opd_align.backends import scoring
from opd_align.backends.scoring import PromptedModel, score_path
from opd_align.backends.scoring_columns import block_bytes
from opd_align.settings import Sampling
from opd_align.types import PathScores, Question, ScoreRequest

VOCABULARY = 151_936
LONG, QUICK = 30_000, 1_000
FLOOR = 0.02
PROMPTS = [1, 2, 3], [1, 2, 3, 4, 5]
TEACHERS, BUDGET = 8, 2 << 30
"""Of the measurement with nine models: number of teachers, and bytes of memory."""


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


def streamed(
    student: Any, teacher: Any, length: int, *, teachers: int = 1, chunk_bytes: int | None = None
) -> PathScores:
    request = ScoreRequest(Question("q"), path(length), np.empty(0, np.int64), np.empty(0, np.uint32), FLOOR)
    prompted = [PromptedModel("teacher", teacher, PROMPTS[1])]
    prompted += [PromptedModel(f"teacher {number}", teacher, [number, *PROMPTS[1]]) for number in range(1, teachers)]
    student = PromptedModel("student", student, PROMPTS[0])
    return score_path(student, prompted, request, Sampling(), chunk_bytes=chunk_bytes)


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


def chunks(length: int) -> list[tuple[int, int]]:
    """The chunks of a path with a budget of 2 GiB; how many models are scored does not matter."""
    return list(scoring._chunks(length, VOCABULARY, BUDGET, block_bytes(torch.device("cpu"))))


def growth_gib(length: int, teachers: int, chunk_bytes: int | None) -> float:
    """Growth of the process's peak memory while it scores; call it in a new process."""
    student, teacher = models()
    streamed(student, teacher, 2)  # libraries allocate on first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    streamed(student, teacher, length, teachers=teachers, chunk_bytes=chunk_bytes)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def growth_in_new_process(length: int, teachers: int = 1, chunk_bytes: int | None = None) -> float:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(growth_gib, length, teachers, chunk_bytes).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="shorter paths")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    short, rounds = (64, 2) if arguments.quick else (512, 3)
    extra = growth_in_new_process(QUICK if arguments.quick else LONG)
    extra_nine = None
    if not arguments.quick:
        extra_nine = growth_in_new_process(2 * chunks(LONG)[0][1], TEACHERS, BUDGET)
    model_name, cosine = cosines(2 if arguments.quick else 5)
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
        "chunks_30k_nine_models_2gib": len(chunks(LONG)),
        "extra_gib_nine_models_2gib": None if extra_nine is None else round(extra_nine, 3),
        "scoring_cosine_to_fp32": round(float(cosine["auto"].mean()), 5),
        "head_cosine_to_fp32": round(float(cosine["head"].mean()), 5),
        "bf16_cosine_to_fp32": round(float(cosine["native"].mean()), 5),
        "bf16_nodes_below_0.9": round(float((cosine["native"] < 0.9).mean()), 3),
        "precision_nodes": len(cosine["auto"]),
        "whole_logits_gib_30k": round(2 * LONG * VOCABULARY * 4 / 2**30, 1),
        "speed_over_plain": round(min(seconds["plain"]) / min(seconds["streamed"]), 3),
        "max_abs_error": error,
        "streamed_tokens_per_second": round(short / min(seconds["streamed"]), 1),
    }
    title = f"one path, student and teacher, vocabulary {VOCABULARY:,}; precision with {model_name}"
    table = Table("result", "value", title=title)
    for name, value in results.items():
        table.add_row(name, "–" if value is None else f"{value:g}")
    Console().print(table)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
