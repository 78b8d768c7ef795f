"""What could only be estimated without a GPU, measured on one: an hour on a rented GPU fills the table.

    python benchmarks/gpu.py [--student MODEL] [--teacher MODEL] [--json FILE]      one GPU, with vLLM installed
    python benchmarks/gpu.py --cpu [--quick] [--json FILE]                          the embedded models, in a minute

Four stages, each in a process of its own, so that its memory is free again and a failure leaves the others alone:

- `sampling`: our vLLM backend compared with raw vLLM on the same requests, tokens per second (with `--cpu`: the `hf`
  backend alone).
- `memory`: weights, KV cache and, on a GPU, the peak of scoring, each divided by the plan of `--dry-run`.
- `scoring`: student, a context and a teacher along one path of 30,000 tokens: seconds, and peak memory on a GPU.
- `callback`: share of a training's wall time that AlignmentCallback takes with `max_overhead=0.05`.

Without a GPU it runs as with `--cpu`. A figure that a stage could not measure is null, and the reason is printed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.backends.loading import load_model, resolve_reference
from opd_align.settings import Sampling
from opd_align.study.config import read_config
from opd_align.study.hardware import Gpu
from opd_align.study.memory_plan import plan_memory
from opd_align.study.model_sizes import model_size
from opd_align.types import Question, SampleRequest, ScoreRequest

GIB = 2**30
STAGE_TIMEOUT_S = 20 * 60
PROMPT = tuple(range(10, 74))
EXPECTED = {
    "vllm_over_raw": "0.99 on a CPU",
    "weights_over_plan": "1",
    "kv_over_plan": "1",
    "scoring_peak_over_plan": "0.9 to 1.1",
    "overhead_share": "at most 0.05",
}
"""What the estimates say."""


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Args:
        student: The student model.
        teacher: The teacher model.
        device: Where.
        path: Length of the scored path, in tokens.
        demonstration: Length of the demonstration in the context teacher's prompt, in tokens.
        targets: Number of targets along a path that are sampled from.
        steps: Steps of the training.
    """

    student: str
    teacher: str
    device: str
    path: int
    demonstration: int
    targets: int
    steps: int

    @property
    def dtype(self) -> str:
        return "float32" if self.device == "cpu" else "bfloat16"


def sampling(sizes: Sizes) -> dict[str, float | None]:
    """Tokens per second of 50 continuations per target of a path."""
    vocabulary = model_size(sizes.student).vocabulary
    path = np.random.default_rng(0).integers(200, vocabulary - 100, 512).astype(np.uint32)
    depths = np.linspace(0, 511, sizes.targets).astype(int)
    requests = [SampleRequest(Question("q"), path[:depth], 50) for depth in depths]
    if sizes.device == "cpu":
        student = _student(sizes, max_tokens=544)
        start = time.perf_counter()
        rollouts = student.sample(requests)
        new = len(rollouts.tokens) - int(rollouts.launch_R.sum())
        return {"hf_tokens_per_s": new / (time.perf_counter() - start), "vllm_over_raw": None}
    import _vllm

    from opd_align.backends.vllm import VLLMStudent, vllm_engine

    folder = resolve_reference(sizes.student)[0]
    llm = vllm_engine(folder, dtype=sizes.dtype, max_model_len=2048, gpu_memory_utilization=0.8)
    ours = VLLMStudent("student", llm, _vllm.prompt, _vllm.END, _vllm.NoScorer(), Sampling(max_tokens=1024))
    best = _vllm.measure(llm, _vllm.contenders(llm, ours, requests), 3)
    llm.llm_engine.engine_core.shutdown()
    return {"vllm_over_raw": best["ours"] / best["raw"], "vllm_tokens_per_s": best["ours"]}


def memory(sizes: Sizes) -> dict[str, float | None]:
    """Measured ÷ planned: weights, KV cache, and the peak of scoring."""
    planned = model_size(sizes.student)
    loaded = load_model(sizes.student, dtype=sizes.dtype, device=sizes.device).model
    weights = sum(weight.nbytes for weight in loaded.parameters())
    with torch.no_grad():
        cache = loaded(input_ids=torch.tensor([PROMPT], device=loaded.device), use_cache=True).past_key_values
    kv = sum(each.nbytes for layer in cache.layers for each in (layer.keys, layer.values))
    figures: dict[str, float | None] = {
        "weights_over_plan": weights / planned.weight_bytes(sizes.dtype),
        "kv_over_plan": kv / (len(PROMPT) * planned.kv_bytes_per_token(sizes.dtype)),
        "scoring_peak_over_plan": None,
    }
    if sizes.device == "cpu":
        return figures
    del loaded, cache
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    teachers = f"teachers=[Self-1C, {{model: {{model: {sizes.teacher}, dtype: {sizes.dtype}}}}}]"
    student = f"student={{model: {sizes.student}, dtype: {sizes.dtype}}}"
    lengths = [f"sampling.max_tokens={sizes.path}", f"demonstrations.max_tokens={sizes.demonstration}"]
    plan = plan_memory(read_config(None, [student, teachers, *lengths]), [Gpu(total, total, "GPU")])
    counted = ("weights", "hidden states", "scoring")
    expected = sum(use.bytes for use in plan.gpus[0].uses if use.what.endswith(counted))
    figures["scoring_peak_over_plan"] = (_score(sizes)["scoring_peak_gib"] or 0) * GIB / expected
    return figures


def scoring(sizes: Sizes) -> dict[str, float | None]:
    """Seconds to score student, a context and a teacher along one path."""
    return _score(sizes)


def _score(sizes: Sizes) -> dict[str, float | None]:
    student, on_gpu = _student(sizes, max_tokens=sizes.path), sizes.device != "cpu"
    large = load_model(sizes.teacher, dtype=sizes.dtype, device=sizes.device).model
    shown = PROMPT + tuple(range(100, 100 + sizes.demonstration))
    teachers = [HFTeacher("context", student.model, lambda question: shown)]
    teachers.append(HFTeacher("teacher", large, lambda question: PROMPT))
    vocabulary = min(student.vocabulary, int(large.config.vocab_size))

    def score(length: int) -> float:
        path = np.random.default_rng(0).integers(0, vocabulary, length).astype(np.uint32)
        start = time.perf_counter()
        student.score(ScoreRequest(Question("q"), path, np.empty(0, np.int64), np.empty(0, np.uint32), 0.02), teachers)
        return time.perf_counter() - start

    score(8)  # libraries allocate and choose kernels on first use
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = score(sizes.path)
    peak = torch.cuda.max_memory_allocated() / GIB if on_gpu else None
    return {"scoring_path_tokens": sizes.path, "scoring_seconds": seconds, "scoring_peak_gib": peak}


def callback(sizes: Sizes) -> dict[str, float | None]:
    """The callback's share of a training's wall time, measured around its events."""
    os.environ.setdefault("WANDB_MODE", "disabled")
    from callback import ARITHMETIC, Timed
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer

    on_gpu = sizes.device != "cpu"
    student = load_model(sizes.student, dtype="float32", device=sizes.device)
    teacher = load_model(sizes.teacher, dtype=sizes.dtype, device=sizes.device)
    rows = [{"prompt": ARITHMETIC.messages(question)} for question in ARITHMETIC.load(split="train", limit=512)]
    with tempfile.TemporaryDirectory() as folder:
        args = DistillationConfig(
            output_dir=folder, max_steps=sizes.steps, per_device_train_batch_size=16, max_completion_length=96,
            learning_rate=1e-6, report_to=[], use_cpu=not on_gpu, bf16=on_gpu, save_strategy="no", disable_tqdm=True,
            gradient_checkpointing=on_gpu,
        )  # fmt: skip
        trainer = DistillationTrainer(
            model=student.model, teacher_model=teacher.model, args=args, train_dataset=Dataset.from_list(rows),
            processing_class=student.tokenizer,
        )  # fmt: skip
        timed = Timed(
            trainer, ARITHMETIC.load(split="test", limit=4), ARITHMETIC, every_n_steps=max(sizes.steps // 4, 1)
        )
        trainer.add_callback(timed)
        start = time.perf_counter()
        trainer.train()
        wall_s = time.perf_counter() - start
        lines = [json.loads(line) for line in (timed.folder / "history.jsonl").read_text().splitlines()]
    done = sum(line["error"] is None for line in lines)
    return {"overhead_share": timed.inside_s / wall_s, "evaluations": done, "training_seconds": wall_s}


def _student(sizes: Sizes, *, max_tokens: int) -> HFStudent:
    loaded = load_model(sizes.student, dtype=sizes.dtype, device=sizes.device)
    ends = tuple(range(64))  # many end tokens, so that random prefixes are not continued to the limit
    return HFStudent("student", loaded.model, lambda question: PROMPT, ends, Sampling(max_tokens=max_tokens))


STAGES: dict[str, Callable[[Sizes], dict[str, float | None]]] = {
    "sampling": sampling, "memory": memory, "scoring": scoring, "callback": callback,
}  # fmt: skip


def run_stage(name: str, options: list[str]) -> dict[str, float | None]:
    """The figures of a stage that runs in a process of its own; empty if it failed, with the reason printed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.json"
        command = [sys.executable, __file__, "--stage", name, "--json", str(file), *options]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=STAGE_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            print(f"{name}: not finished within {STAGE_TIMEOUT_S / 60:.0f} minutes", file=sys.stderr)
            return {}
        if done.returncode:
            print(f"{name} failed:\n{done.stderr[-1500:]}", file=sys.stderr)
            return {}
        figures: dict[str, float | None] = json.loads(file.read_text(encoding="utf-8"))
        return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="the embedded models on a CPU: a test of this script")
    parser.add_argument("--quick", action="store_true", help="smaller sizes")
    parser.add_argument("--student", default="Qwen/Qwen3-0.6B", help="on a GPU (default: %(default)s)")
    parser.add_argument("--teacher", default="Qwen/Qwen3-4B", help="on a GPU (default: %(default)s)")
    parser.add_argument("--stage", choices=STAGES, help="run only this stage, in this process")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    args = parser.parse_args()
    if args.cpu or not torch.cuda.is_available():
        sizes = Sizes("embedded:student", "embedded:teacher", "cpu", 200 if args.quick else 800, 100, 2, 4)
    else:
        path, steps = (3000, 20) if args.quick else (30_000, 200)
        sizes = Sizes(args.student, args.teacher, "cuda", path, 4096, 16, steps)
    if args.stage:
        if args.stage == "sampling" and sizes.device != "cpu" and find_spec("vllm") is None:
            sys.exit("needs vLLM: pip install 'opd-align[vllm]'")
        figures = STAGES[args.stage](sizes)
    else:
        options = [flag for flag, given in (("--cpu", sizes.device == "cpu"), ("--quick", args.quick)) if given]
        options += ["--student", args.student, "--teacher", args.teacher]
        figures = {key: value for name in STAGES for key, value in run_stage(name, options).items()}
        where = "a CPU" if sizes.device == "cpu" else torch.cuda.get_device_name(0)
        table = Table("figure", "measured", "estimate", title=f"{sizes.student} and {sizes.teacher} on {where}")
        for key, value in figures.items():
            table.add_row(key, "–" if value is None else f"{value:,.3f}", EXPECTED.get(key, ""))
        Console().print(table)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0 if figures else 1


if __name__ == "__main__":
    sys.exit(main())
