"""A tiny random language model, its exact distribution, and a vLLM server for it that tests can kill."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# Compiling vLLM's small kernels takes longer than running them here.
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

END = (2, 3)
PROMPT = (1, 7, 5)
VOCABULARY = 32
CONTEXT = 512


def make_model(folder: Path) -> Any:
    """A Qwen3 with two layers whose token probabilities differ clearly, saved without a tokenizer."""
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=CONTEXT, initializer_range=0.25,
        bos_token_id=1, eos_token_id=9, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = Qwen3ForCausalLM(config).float().eval()
    # A server's defaults; none of them may affect what we sample.
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.4,
        top_k=3,
        top_p=0.7,
        repetition_penalty=1.5,
        eos_token_id=[9, 11],
        pad_token_id=0,
    )
    model.save_pretrained(folder)
    return model


@dataclass
class RealServer:
    """`vllm serve` on loopback; can be killed and restarted at the same address."""

    folder: Path
    log: Path
    port: int = field(default_factory=lambda: _free_port())
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.folder),
            "--served-model-name", "tiny", "--dtype", "float32", "--enforce-eager", "--host", "127.0.0.1",
            # Chunked prefill of a seeded request stops the CPU engine.
            "--no-enable-chunked-prefill", "--skip-tokenizer-init",
            "--port", str(self.port), "--max-model-len", str(CONTEXT),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait(self, timeout_s: float = 240.0) -> None:
        import httpx

        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text(errors="replace")[-3000:]
            try:
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.25)
        raise TimeoutError(self.log.read_text(errors="replace")[-3000:])

    def finished(self) -> int:
        """How many samples the server has finished since it started, by its own metrics."""
        import httpx

        lines = httpx.get(f"{self.url}/metrics", timeout=5).text.splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:request_success_total{")))

    def kill(self) -> None:
        """Sends SIGKILL to the server and its engine processes."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def exact_completions(model: Any, sampling: Any, prefix: tuple[int, ...], length: int) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of the prefix up to that length, by plain forward passes."""
    import torch

    from opd_align.backends.scoring import sampled_log_probs

    done: dict[tuple[int, ...], float] = {}
    level = {(): 1.0}
    for _ in range(length):
        with torch.inference_mode():
            rows = torch.tensor([[*PROMPT, *prefix, *so_far] for so_far in level])
            p = sampled_log_probs(sampling, model(rows).logits[:, -1]).exp().double().numpy()
        grown = {
            (*so_far, token): mass * p[row, token]
            for (row, (so_far, mass)), token in itertools.product(enumerate(level.items()), range(VOCABULARY))
        }
        done |= {tokens: mass for tokens, mass in grown.items() if tokens[-1] in END}
        level = {tokens: mass for tokens, mass in grown.items() if tokens[-1] not in END and mass > 1e-7}
    return done | level


def chi_square_p(observed: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """p-value of the counts; outcomes with small expected counts are pooled."""
    from scipy.stats import chisquare

    total = sum(observed.values())
    common = [outcome for outcome, mass in expected.items() if mass * total >= 8]
    assert len(common) > 5
    counts = [observed[outcome] for outcome in common]
    masses = [expected[outcome] for outcome in common]
    counts.append(total - sum(counts))
    masses.append(1 - sum(masses))
    if masses[-1] * total < 1:  # almost nothing left: it must not be a class of its own
        assert counts[-1] < 10
        counts, masses = counts[:-1], masses[:-1]
    frequencies = np.array(masses) / sum(masses)
    return float(chisquare(counts, frequencies * sum(counts)).pvalue)
