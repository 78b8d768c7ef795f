"""Our vLLM backend compared with raw vLLM: useful tokens per second, n=50 continuations per target of a path.

Targets are spread along a path of 512 tokens. `raw` passes the same prompts with the same parameters to `LLM.generate`
and does nothing with its outputs; ours adds checks, seeds, order and the assembly of rollouts. `raw, unseeded` lets
vLLM choose its seeds, which needs no generator per row. All share one engine, whose prefix cache is cleared before each
measurement; their order changes from round to round, and the best round of each counts.

    python benchmarks/_vllm.py [--quick] [--json FILE]

Needs vLLM: `make bench-vllm`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import SamplingParams

from opd_align.backends.vllm import VLLMStudent, vllm_engine
from opd_align.settings import Sampling
from opd_align.types import Question, SampleRequest, Tokens

PATH = 512
PROMPT = 64
N = 50
VOCABULARY = 4096
END = tuple(range(32))
"""1/128 of the vocabulary, so that a random model's continuations have 128 tokens on average."""


class NoScorer:
    """Scoring is not measured here."""

    def score(self, request: Any, teachers: Any) -> Any:
        raise NotImplementedError

    def token_log_probs(self, question: Any, rollouts: Any, teacher: Any) -> Any:
        raise NotImplementedError


def save_model(folder: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2048,
    )  # fmt: skip
    LlamaForCausalLM(config).float().save_pretrained(folder)


def targets(count: int) -> list[SampleRequest]:
    path = np.random.default_rng(1).integers(len(END), VOCABULARY, PATH).astype(np.uint32)
    depths = np.linspace(0, PATH, count, endpoint=False).astype(int)
    return [SampleRequest(Question("q"), path[:depth], N) for depth in depths]


def prompt(question: Question) -> list[int]:
    return list(range(100, 100 + PROMPT))


def contenders(llm: Any, student: VLLMStudent, requests: list[SampleRequest]) -> dict[str, Callable[[], int]]:
    """Each contender samples all rollouts and returns the number of new tokens."""

    def raw(seed: int | None) -> int:
        outputs = llm.generate(
            [{"prompt_token_ids": prompt(request.question) + request.prefix.tolist()} for request in requests],
            [params(request.prefix, None if seed is None else seed + i * N) for i, request in enumerate(requests)],
            use_tqdm=False,
        )
        return sum(len(sample.token_ids) for output in outputs for sample in output.outputs)

    def params(prefix: Tokens, seed: int | None) -> SamplingParams:
        return SamplingParams(
            n=N, seed=seed, temperature=1.0, max_tokens=student.sampling.max_tokens - len(prefix),
            stop_token_ids=list(END), ignore_eos=True, detokenize=False,
        )  # fmt: skip

    def ours() -> int:
        rollouts = student.sample(requests)
        assert len(rollouts) == N * len(requests)
        return int(len(rollouts.tokens) - rollouts.launch_R.sum())

    return {"ours": ours, "raw": lambda: raw(1), "raw, unseeded": lambda: raw(None)}


def measure(llm: Any, samplers: dict[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Tokens per second of each contender in its best round."""
    best = dict.fromkeys(samplers, 0.0)
    for number in range(-1, rounds):  # the first round is a warm-up and does not count
        names = list(samplers)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            llm.reset_prefix_cache()
            start = time.perf_counter()
            tokens = samplers[name]()
            speed = tokens / (time.perf_counter() - start)
            if number >= 0:
                best[name] = max(best[name], speed)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer targets and rounds")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    count, rounds = (4, 2) if options.quick else (16, 5)
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        llm = vllm_engine(folder, dtype="float32", enforce_eager=True, max_model_len=1024)
        student = VLLMStudent("small", llm, prompt, END, NoScorer(), Sampling(max_tokens=PATH + 128))
        best = measure(llm, contenders(llm, student, targets(count)), rounds)
        llm.llm_engine.engine_core.shutdown()
    table = Table("contender", "tokens/s", title=f"{count} targets × {N} along {PATH} tokens, best of {rounds} rounds")
    for name, speed in best.items():
        table.add_row(name, f"{speed:,.0f}")
    Console().print(table)
    results = {
        "vllm_over_raw": best["ours"] / best["raw"],
        "vllm_over_raw_unseeded": best["ours"] / best["raw, unseeded"],
        "tokens_per_s": best["ours"],
    }
    Console().print(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
