"""Targeted sampling compared with `model.generate`: useful tokens per second, n=50 continuations per target of a path.

Targets are spread along a path of 512 tokens. `hf` is our backend; `generate per target` is one call of `generate` per
target with `num_return_sequences=50`; `padded batch` is the best left-padded batching of `generate` that we could
write: targets sorted by depth, several per call, each row stopped at its own limit, the best of several batch sizes.
All sample the same distribution with the same end tokens; only tokens up to a row's end count.

    python benchmarks/sampling.py [--quick] [--json FILE] [--vllm PYTHON]

`--quick` measures a small model only; otherwise also a Llama of SmolLM2-135M's shape (random weights: speed does not
depend on them). With several rounds the order of the contenders alternates, and the best round of each counts. `--vllm`
is a Python interpreter with vLLM (`make bench-vllm` creates one): our vLLM backend compared with raw vLLM on the same
requests, `vllm_over_raw`.

Run it on idle cores: with one busy core of two, the threads wait for each other at every step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.utils import logging

from opd_align.backends.hf import HFStudent
from opd_align.settings import Sampling
from opd_align.types import Question, Rollouts, SampleRequest

PATH = 512
PROMPT = 64
N = 50
LIMIT = 640
"""Maximum completion length; most continuations end earlier."""


@dataclass(frozen=True)
class Setting:
    """A model and its targets.

    One token in `mean` of the vocabulary ends a completion, so a random model's continuations have about `mean` tokens.
    `sizes` are the numbers of targets per padded batch to choose the best from.
    """

    name: str
    config: LlamaConfig
    targets: int
    mean: int
    sizes: Sequence[int]
    rounds: int = 1


SMALL = Setting(
    "small (3 layers, 128 wide)",
    LlamaConfig(
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
    ),
    targets=4,
    mean=16,
    sizes=(2, 4),
    rounds=2,
)
SMOLLM2 = Setting(
    "135M (SmolLM2's shape)",
    LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
    ),
    targets=2,
    mean=8,
    sizes=(2,),
)


@dataclass(frozen=True)
class Workload:
    """What all contenders share."""

    model: Any
    prompt: list[int]
    ends: list[int]
    prefixes: list[np.ndarray[Any, np.dtype[np.uint32]]]

    @staticmethod
    def of(setting: Setting) -> Workload:
        torch.manual_seed(0)
        model = LlamaForCausalLM(setting.config).eval()
        rng = np.random.default_rng(0)
        vocabulary = setting.config.vocab_size
        ends = list(range(1, 1 + vocabulary // setting.mean))
        path = rng.integers(ends[-1] + 1, vocabulary, PATH).astype(np.uint32)
        depths = np.linspace(0, PATH - 1, setting.targets).astype(int)
        # The target's last token leaves the path, as targeted sampling does.
        off_path = rng.integers(ends[-1] + 1, vocabulary, setting.targets).astype(np.uint32)
        prefixes = [np.append(path[:depth], token) for depth, token in zip(depths, off_path, strict=True)]
        return Workload(model, rng.integers(ends[-1] + 1, vocabulary, PROMPT).tolist(), ends, prefixes)


class OwnLimit(StoppingCriteria):
    """Stops each row at its own number of new tokens, which `max_new_tokens` cannot."""

    def __init__(self, start: int, new_B: torch.Tensor) -> None:
        self.start, self.new_B = start, new_B

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        return self.new_B <= input_ids.shape[1] - self.start


def by_hf(workload: Workload) -> int:
    """Number of new tokens from our backend."""
    sampling = Sampling(max_tokens=LIMIT)
    student = HFStudent("student", workload.model, lambda question: workload.prompt, tuple(workload.ends), sampling)
    question = Question("q")
    rollouts: Rollouts = student.sample([SampleRequest(question, prefix, N) for prefix in workload.prefixes])
    return int((rollouts.length_R - rollouts.launch_R).sum())


def by_generate(workload: Workload, size: int) -> int:
    """Number of new tokens, up to each row's end, from `generate` on `size` left-padded targets per call."""
    order = sorted(workload.prefixes, key=len, reverse=True)  # deepest first
    return sum(_generated(workload, order[first : first + size]) for first in range(0, len(order), size))


def _generated(workload: Workload, prefixes: Sequence[np.ndarray[Any, np.dtype[np.uint32]]]) -> int:
    contexts = [[*workload.prompt, *prefix.tolist()] for prefix in prefixes]
    longest = max(map(len, contexts))
    ids = torch.tensor([[0] * (longest - len(context)) + context for context in contexts])
    mask = torch.tensor([[0] * (longest - len(context)) + [1] * len(context) for context in contexts])
    new_B = torch.tensor([LIMIT - len(prefix) for prefix in prefixes]).repeat_interleave(N)
    generated = workload.model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=N,
        max_new_tokens=int(new_B.max()),
        eos_token_id=workload.ends,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([OwnLimit(longest, new_B)]),
    )[:, longest:]
    ended = torch.isin(generated, torch.tensor(workload.ends))
    first_end = torch.where(ended.any(1), ended.int().argmax(1) + 1, generated.shape[1])
    return int(torch.minimum(first_end, new_B).sum())


def measure(setting: Setting) -> dict[str, float]:
    """Tokens per second of every contender in its best round."""
    workload = Workload.of(setting)
    contenders: dict[str, Callable[[], int]] = {
        "hf": lambda: by_hf(workload),
        "generate per target": lambda: by_generate(workload, 1),
        **{f"padded batch of {size} × {N}": lambda size=size: by_generate(workload, size) for size in setting.sizes},
    }
    _generated(workload, [workload.prefixes[0][:1]])  # warm up
    best = dict.fromkeys(contenders, 0.0)
    for number in range(setting.rounds):
        for name in list(contenders) if number % 2 == 0 else list(reversed(contenders)):
            torch.manual_seed(number)
            start = time.perf_counter()
            tokens = contenders[name]()
            best[name] = max(best[name], tokens / (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small model only")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    parser.add_argument(
        "--vllm", type=Path, metavar="PYTHON", help="interpreter with vLLM; measures the vLLM backend instead"
    )
    arguments = parser.parse_args()
    if arguments.vllm:
        options = [*(["--quick"] if arguments.quick else []), *(["--json", arguments.json] if arguments.json else [])]
        subprocess.run([arguments.vllm, Path(__file__).with_name("_vllm.py"), *options], check=True)
        return
    logging.set_verbosity_error()
    results: dict[str, float] = {}
    console = Console()
    # Keys without a suffix are the minimum over all models measured.
    for setting in (SMALL,) if arguments.quick else (SMOLLM2, SMALL):
        speed = measure(setting)
        padded = max(value for name, value in speed.items() if name != "hf")  # one target per call may be the best size
        ratios = {
            "hf_over_generate_per_target": speed["hf"] / speed["generate per target"],
            "hf_over_padded_batch": speed["hf"] / padded,
        }
        table = Table(
            "contender", "useful tokens/s", "speed-up of hf", title=f"{setting.name}: {setting.targets} × {N}"
        )
        for name, value in speed.items():
            table.add_row(name, f"{value:,.0f}", f"{speed['hf'] / value:.2f}×")
        console.print(table)
        short = setting.name.split()[0].lower()
        results |= {f"{key}_{short}": round(value, 3) for key, value in ratios.items()}
        results[f"hf_tokens_per_second_{short}"] = round(speed["hf"])
        for key, value in ratios.items():
            results[key] = min(results.get(key, float("inf")), round(value, 3))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # glibc returns large blocks to the system at once, and `generate`, which copies its whole cache at every step,
    # would spend half its time allocating them again. That is not what we measure, so large blocks are kept.
    if "MALLOC_MMAP_MAX_" not in os.environ:
        kept = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 33), "MALLOC_TOP_PAD_": str(1 << 28)}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | kept)
    main()
