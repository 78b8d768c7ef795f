"""A LoRA training that generates with vLLM is bit-identical with the callback, whether its weight syncs fail or not.

TRL merges the adapters for each sync, which rounds the base weights: those syncs must happen as often, and at the same
steps, as without the callback.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
import torch
from support.engineless_vllm import Engine, engineless_vllm
from support.trainings import TOKENS, add_alignment, fresh, held_out, make, same_weights, trainer_rows

from opd_align.settings import Budget, Sampling

pytestmark = [
    pytest.mark.training,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

FEW = Budget(initial=4, targeted=4, allocation="adaptive", rounds=1, correct_paths=1, incorrect_paths=1)
STEPS, EVERY = 6, 3


def first_is_odd(completion_ids: list[list[int]], **columns: Any) -> list[float]:
    return [float(tokens[0] % 2) for tokens in completion_ids]


def adapted(*, dora: bool) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(7)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, use_dora=dora, task_type="CAUSAL_LM")
    return get_peft_model(fresh("student"), lora)


def train(folder: Path, *, watched: bool, failing: bool = False, sleeps: bool = False, dora: bool = False) -> Any:
    """Each generation is used for two steps; completions depend on the weights that vLLM has."""
    torch.set_num_threads(1)
    trainer = make(
        "grpo", folder, student=adapted(dora=dora), max_steps=STEPS, num_iterations=2, max_completion_length=6,
        vllm_importance_sampling_correction=False,
    )  # fmt: skip
    trainer.reward_funcs[0] = first_is_odd
    evaluating: list[bool] = []

    def on_weight(number: int, count: int) -> None:
        if failing and evaluating and number == count // 2:
            raise ConnectionError("vLLM is gone")

    engine = Engine(on_weight)
    vllm = engineless_vllm(trainer.model, trainer.accelerator, engine, sleeps=sleeps)

    def generate(prompts: list[list[int]], **options: Any) -> tuple[Any, ...]:
        if vllm._llm_weights_sleeping:
            vllm.sync_weights()  # as TRL's `generate` does
        key = blake2b(b"".join(weight.numpy().tobytes() for weight in engine.weights.values())).digest()
        completions = [[5 + (byte + row) % 40 for byte in key[:6]] for row in range(len(prompts))]
        vllm._llm_weights_sleeping = vllm.enable_sleep_mode
        return None, completions, [[[-1.0]] * 6 for _ in completions], None

    vllm.generate = generate
    callback = None
    if watched:
        callback = add_alignment(
            trainer, questions=held_out(1), every_n_steps=EVERY, budget=FEW, teachers={"another": fresh("teacher")},
            sampling=Sampling(max_tokens=TOKENS, seed=5),
        )  # fmt: skip
        evaluate = callback.evaluate

        def noted(*args: Any, **options: Any) -> Any:
            evaluating.append(True)
            try:
                return evaluate(*args, **options)
            finally:
                evaluating.clear()

        callback.evaluate = noted
    trainer.use_vllm, trainer.vllm_generation, trainer._last_loaded_step = True, vllm, -1
    trainer.train()
    if callback is not None:
        evaluations = 1 + STEPS // EVERY
        assert (callback.failures, callback.schedule.num_evaluations) == (evaluations * failing, evaluations)
    return trainer


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_adapters_with_vllm(dora, tmp_path):
    alone = train(tmp_path / "alone", watched=False, dora=dora)
    assert all(row["grad_norm"] > 0 for row in trainer_rows(alone) if "loss" in row)
    start = adapted(dora=dora).state_dict()
    rounded = [
        name
        for name, weight in alone.model.state_dict().items()
        if "base_layer" in name and not torch.equal(weight, start[name])
    ]
    assert rounded, "TRL's own syncs round the base weights"
    for failing in (False, True):
        for sleeps in (False,) if dora else (False, True):
            other = train(tmp_path / f"{failing}-{sleeps}", watched=True, failing=failing, sleeps=sleeps, dora=dora)
            assert trainer_rows(other) == trainer_rows(alone)
            assert same_weights(other.model, alone.model)
