"""Mixes of teachers and rollbacks where completions come from vLLM: it always has the student's weights."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
pytest.importorskip("trl")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of TRL, about the version of vLLM
    from support.scripted_schedule import ScriptedSchedule
    from support.trainings import ARITHMETIC, fresh, held_out, rows, tokenizer
    from transformers import TrainerCallback
    from trl import DistillationConfig, GRPOConfig

    from opd_align.settings import Budget, Sampling
    from opd_align.training import (
        AlignmentCallback,
        GatedDistillationTrainer,
        GatedGRPOTrainer,
        IncorrectOnly,
        Open,
        TeacherMix,
    )
    from opd_align.training.contrast import CORRECT_HINT

from weights import is_loaded, patch_sync_weights

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

RUIN = {0: 0.4, 1: 0.4, 2: -0.5, 3: -0.5, 4: -0.5}


class WeightsByStep(TrainerCallback):
    def __init__(self) -> None:
        self.found: dict[int, Any] = {}

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.found[state.global_step] = [weight.detach().clone() for weight in model.parameters()]


@pytest.fixture
def trained(colocated_engine: None, tmp_path: Any) -> Any:
    """Trains with a mix of teachers that ruin the student, and checks what vLLM has whenever it generates."""

    def train(kind: Any, config: Any, teachers: dict[str, Any], options: dict[str, Any], **own: Any) -> Any:
        settings = {
            "max_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-3, "max_completion_length": 24,
            "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False, "save_strategy": "no",
            "disable_tqdm": True, "use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 512,
        }  # fmt: skip
        data = rows()
        data = data.add_column(CORRECT_HINT, [f"Answer: {row['answer']}" for row in data])
        mix = TeacherMix(teachers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = kind(
                model=fresh("student"), teacher_model=mix, args=config(str(tmp_path), **settings, **options),
                train_dataset=data, processing_class=tokenizer(), denominator="keep", **own,
            )  # fmt: skip
        patch_sync_weights(trainer.vllm_generation)
        generated, generate = [], trainer.vllm_generation.generate

        def checked(*args: Any, **kwargs: Any) -> Any:
            generated.append((trainer.state.global_step, is_loaded(trainer.vllm_generation.llm, trainer.model)))
            return generate(*args, **kwargs)

        trainer.vllm_generation.generate = checked
        budget = Budget(initial=8, targeted=8, allocation="adaptive", rounds=1, correct_paths=1, incorrect_paths=1)
        small = {"every_n_steps": 1, "max_overhead": None, "budget": budget, "sampling": Sampling(max_tokens=48)}
        callback = AlignmentCallback(trainer, held_out(2), ARITHMETIC, on_error="raise", **small)
        script = {step: dict.fromkeys(teachers, mean) for step, mean in RUIN.items()}
        callback.script, weights = script, WeightsByStep()
        schedule = ScriptedSchedule(callback, on_harm="rollback")
        trainer.add_callback(callback)
        mix.follow(callback)
        for each in (schedule, weights):
            trainer.add_callback(each)
        trainer.train()
        assert (schedule.ended_at, schedule.returned_to) == (2, 1)
        assert all(loaded for _, loaded in generated)
        return trainer, mix, callback, weights.found, [step for step, _ in generated]

    return train


@pytest.mark.parametrize("second", ["careless", "Self-1C"])
def test_a_mix_is_trained_evaluated_and_rolled_back(second, trained):
    teachers = {"good": fresh("teacher"), second: second if second == "Self-1C" else fresh(second)}
    trainer, mix, callback, weights, generated = trained(
        GatedDistillationTrainer, DistillationConfig, teachers, {}, gate=Open()
    )
    assert trainer.state.global_step == 2
    assert generated == [0, 1]
    assert [each.step for each in mix.log.of(second)] == [0, 1, 2]
    restored = [*trainer.model.parameters()]
    assert all(ours.equal(then) for ours, then in zip(restored, weights[1], strict=True))
    engine = trainer.vllm_generation.llm
    assert not is_loaded(engine, trainer.model), "the evaluation at step 2 was made with the weights of step 2"
    callback.evaluate()
    assert is_loaded(engine, trainer.model)


def test_grpo_goes_on_from_the_restored_weights(trained):
    teachers = {"good": fresh("teacher"), "careless": fresh("careless")}
    own = {"gate": IncorrectOnly(ARITHMETIC.verifier, unknown="drop"), "reward_funcs": ARITHMETIC.verifier}
    trainer, _, _, weights, generated = trained(GatedGRPOTrainer, GRPOConfig, teachers, {"num_generations": 4}, **own)
    assert trainer.state.global_step == 4
    assert generated == [0, 1, 2, 3]
    assert all(ours.equal(then) for ours, then in zip(weights[2], weights[1], strict=True)), "restored"
    assert not all(ours.equal(then) for ours, then in zip(weights[3], weights[2], strict=True)), "and trained on"
