"""SDPO with a gate: correct rollouts are not distilled."""

from __future__ import annotations

import pytest
from support.gated_runs import QUIET, models, prompts, trained, verifier
from transformers import TrainerCallback, set_seed
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from opd_align.training.trainers.sdpo import SDPOGate
from opd_align.types import OpdAlignError

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]


def sdpo(folder, gate=None, *, callbacks=None, **options):
    set_seed(1)
    settings = {"max_completion_length": 64, "num_generations": 4, "per_device_train_batch_size": 8}
    settings |= {"dont_reprompt_on_self_success": False, "distillation_alpha": 1.0, "distillation_mode": "full_logits"}
    args = SDPOConfig(str(folder), **(QUIET | settings | options))
    made = models()
    made.pop("teacher_model")
    reward = verifier if gate is None else gate.reward
    return SDPOTrainer(args=args, train_dataset=prompts(), reward_funcs=[reward], callbacks=callbacks, **made)


def test_correct_rollouts_are_removed(tmp_path):
    gate = SDPOGate(verifier, unknown="drop")
    trainer = sdpo(tmp_path, gate)
    masks = []

    class RecordMasks(TrainerCallback):
        """Runs after the gate."""

        def on_self_distillation_batch_prepared(self, *, self_distillation_mask, **kwargs):
            masks.append((self_distillation_mask.tolist(), [int(outcome) for outcome in gate._outcomes]))

    gate.attach(trainer)
    trainer.add_callback(RecordMasks())
    run = trained(trainer)
    assert len(masks) == 3
    rollouts = [pair for mask, outcomes in masks for pair in zip(mask, outcomes, strict=True)]
    assert {mask for mask, outcome in rollouts if outcome == 1} == {0.0}
    assert 1.0 in {mask for mask, outcome in rollouts if outcome == 0}
    assert run.column("gate/unknown") == [0.0] * 3
    assert run.column("gate/correct") == pytest.approx([sum(outcomes) / 8 for _, outcomes in masks])
    assert all(0 <= kept < 1 for kept in run.column("gate/sequences_kept"))


@pytest.mark.parametrize(("length", "correct"), [(8, 0.0), (128, 1.0)])
def test_truncated_rollouts_are_incorrect_for_the_gate(tmp_path, length, correct):
    gate = SDPOGate(lambda completions, **columns: [1.0] * len(completions), unknown="drop")
    trainer = sdpo(tmp_path, gate, max_completion_length=length, max_steps=1)
    run = trained(gate.attach(trainer)._trainer)
    assert run.column("gate/correct") == [correct]
    assert run.column("gate/sequences_kept") == [1 - correct]
    assert run.column("self_distillation/reward_mean") == [1.0]  # the reward is the verifier's value


def test_the_reward_is_the_verifiers_value(tmp_path):
    gate = SDPOGate(verifier, unknown="keep")
    gate.attach(sdpo(tmp_path, gate))
    rewards = gate.reward(
        prompts=["q"] * 3, completions=["Answer: 1", "Answer: 2", "Answer: 1"], answer=["1", "1", None]
    )
    assert rewards == [1.0, 0.0, None]


@pytest.mark.parametrize("added", [False, True], ids=["reward only", "also in callbacks"])
def test_a_gate_that_is_not_attached_does_not_train(tmp_path, added):
    gate = SDPOGate(verifier, unknown="keep")
    trainer = sdpo(tmp_path, gate, callbacks=[gate] if added else None, max_steps=1)
    with pytest.raises(OpdAlignError, match=r"SDPOGate is not attached: call gate\.attach\(trainer\) before"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_a_gate_that_is_also_in_callbacks_is_added_once(tmp_path):
    gate = SDPOGate(verifier, unknown="keep")
    trainer = sdpo(tmp_path, gate, callbacks=[gate], max_steps=1)
    gate.attach(trainer)
    assert trainer.callback_handler.callbacks.count(gate) == 1
    assert len(trained(trainer).column("gate/correct")) == 1


def test_every_generation_is_checked(tmp_path, monkeypatch):
    """The second generation's batch is built without telling the gate."""
    gate = SDPOGate(verifier, unknown="keep")
    trainer = gate.attach(sdpo(tmp_path, gate, max_steps=3, max_completion_length=8))._trainer
    plain = type(trainer)._dispatch_self_distillation_callback

    def dispatch(self, event_name, **payload):
        if not self.state.global_step:
            plain(self, event_name, **payload)

    monkeypatch.setattr(type(trainer), "_dispatch_self_distillation_callback", dispatch)
    with pytest.raises(OpdAlignError, match="SDPO's batch was built without the gate"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_a_gate_that_is_not_a_reward_is_refused(tmp_path):
    with pytest.raises(OpdAlignError, match=r"gate\.reward"):
        SDPOGate(verifier, unknown="keep").attach(sdpo(tmp_path))
