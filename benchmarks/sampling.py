"""Targeted sampling beside `model.generate`: useful tokens a second, n=50 continuations of each target on a path.

Targets lie all along a path of 512 tokens. `hf` is our backend; `generate per target` is one call of `generate` a
target with `num_return_sequences=50`; `padded batch` is the best left-padded batching of `generate` that we could
write: targets sorted by depth, several of them a call, each row stopped at its own limit, the best of several batch
sizes. All draw from the same distribution with the same ends; only tokens up to a row's end count.

    python benchmarks/sampling.py [--quick] [--json FILE] [--vllm PYTHON]

`--quick` measures a small model only; otherwise a Llama of SmolLM2-135M's shape too (random weights: speed does not
depend on them). With several rounds the sides change order, and the best round of each counts. `--vllm` names a Python
that has vLLM (`make bench-vllm` makes one): our vLLM backend beside raw vLLM on the same requests, `vllm_over_raw`.

Give it cores of its own: two threads on a machine where one core is busy wait for each other at every step.
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
"""Completion tokens at most; most continuations end by themselves before."""


@dataclass(frozen=True)
class Setting:
    """A model and the targets asked of it.

    One token in `mean` of the vocabulary ends a completion, so a random model's continuations have `mean` tokens or
    so. `sizes` are targets in one padded batch, to choose the best from.
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
class World:
    """What all sides share."""

    model: Any
    prompt: list[int]
    ends: list[int]
    prefixes: list[np.ndarray[Any, np.dtype[np.uint32]]]

    @staticmethod
    def of(setting: Setting) -> World:
        torch.manual_seed(0)
        model = LlamaForCausalLM(setting.config).eval()
        rng = np.random.default_rng(0)
        vocabulary = setting.config.vocab_size
        ends = list(range(1, 1 + vocabulary // setting.mean))
        path = rng.integers(ends[-1] + 1, vocabulary, PATH).astype(np.uint32)
        depths = np.linspace(0, PATH - 1, setting.targets).astype(int)
        # The target's own token leaves the path, as enrichment does.
        leave = rng.integers(ends[-1] + 1, vocabulary, setting.targets).astype(np.uint32)
        prefixes = [np.append(path[:depth], token) for depth, token in zip(depths, leave, strict=True)]
        return World(model, rng.integers(ends[-1] + 1, vocabulary, PROMPT).tolist(), ends, prefixes)


class OwnLimit(StoppingCriteria):
    """Stops each row at its own number of new tokens, which `max_new_tokens` cannot."""

    def __init__(self, start: int, new_B: torch.Tensor) -> None:
        self.start, self.new_B = start, new_B

    def __call__(self, input_ids: torch.Tensor, scores: Any, **options: Any) -> torch.Tensor:
        return self.new_B <= input_ids.shape[1] - self.start


def by_hf(world: World) -> int:
    """Our backend; new tokens made."""
    sampling = Sampling(max_tokens=LIMIT)
    student = HFStudent("student", world.model, lambda question: world.prompt, tuple(world.ends), sampling)
    question = Question("q")
    made: Rollouts = student.sample([SampleRequest(question, prefix, N) for prefix in world.prefixes])
    return int((made.length_R - made.launch_R).sum())


def by_generate(world: World, size: int) -> int:
    """`generate` on `size` targets at a time, left-padded, deepest first; new tokens up to each row's end."""
    order = sorted(world.prefixes, key=len, reverse=True)
    return sum(_generated(world, order[first : first + size]) for first in range(0, len(order), size))


def _generated(world: World, prefixes: Sequence[np.ndarray[Any, np.dtype[np.uint32]]]) -> int:
    reads = [[*world.prompt, *prefix.tolist()] for prefix in prefixes]
    longest = max(map(len, reads))
    ids = torch.tensor([[0] * (longest - len(read)) + read for read in reads])
    mask = torch.tensor([[0] * (longest - len(read)) + [1] * len(read) for read in reads])
    new_B = torch.tensor([LIMIT - len(prefix) for prefix in prefixes]).repeat_interleave(N)
    made = world.model.generate(
        input_ids=ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=N,
        max_new_tokens=int(new_B.max()),
        eos_token_id=world.ends,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([OwnLimit(longest, new_B)]),
    )[:, longest:]
    ended = torch.isin(made, torch.tensor(world.ends))
    first_end = torch.where(ended.any(1), ended.int().argmax(1) + 1, made.shape[1])
    return int(torch.minimum(first_end, new_B).sum())


def measure(setting: Setting) -> dict[str, float]:
    """Tokens a second of every side, each at its best round."""
    world = World.of(setting)
    sides: dict[str, Callable[[], int]] = {
        "hf": lambda: by_hf(world),
        "generate per target": lambda: by_generate(world, 1),
        **{f"padded batch of {size} × {N}": lambda size=size: by_generate(world, size) for size in setting.sizes},
    }
    _generated(world, [world.prefixes[0][:1]])  # warm up
    best = dict.fromkeys(sides, 0.0)
    for turn in range(setting.rounds):
        for name in list(sides) if turn % 2 == 0 else list(reversed(sides)):
            torch.manual_seed(turn)
            start = time.perf_counter()
            made = sides[name]()
            best[name] = max(best[name], made / (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the small model only")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--vllm", type=Path, metavar="PYTHON", help="interpreter with vLLM; measures that instead")
    arguments = parser.parse_args()
    if arguments.vllm:
        same = [*(["--quick"] if arguments.quick else []), *(["--json", arguments.json] if arguments.json else [])]
        subprocess.run([arguments.vllm, Path(__file__).with_name("_vllm.py"), *same], check=True)
        return
    logging.set_verbosity_error()
    figures: dict[str, float] = {}
    console = Console()
    # The plain keys are the least of all models measured.
    for setting in (SMALL,) if arguments.quick else (SMOLLM2, SMALL):
        speed = measure(setting)
        padded = max(value for name, value in speed.items() if name != "hf")  # one target a call may be the best size
        ratios = {
            "hf_over_generate_per_target": speed["hf"] / speed["generate per target"],
            "hf_over_padded_batch": speed["hf"] / padded,
        }
        table = Table("side", "useful tokens/s", "hf is faster by", title=f"{setting.name}: {setting.targets} × {N}")
        for name, value in speed.items():
            table.add_row(name, f"{value:,.0f}", f"{speed['hf'] / value:.2f}×")
        console.print(table)
        short = setting.name.split()[0].lower()
        figures |= {f"{key}_{short}": round(value, 3) for key, value in ratios.items()}
        figures[f"hf_tokens_per_second_{short}"] = round(speed["hf"])
        for key, value in ratios.items():
            figures[key] = min(figures.get(key, float("inf")), round(value, 3))
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    # glibc gives large blocks back to the system at once, and `generate`, which copies its whole cache at every step,
    # would spend half its time on getting them again. That is not what we measure, so large blocks are kept.
    if "MALLOC_MMAP_MAX_" not in os.environ:
        kept = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 33), "MALLOC_TOP_PAD_": str(1 << 28)}
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | kept)
    main()
