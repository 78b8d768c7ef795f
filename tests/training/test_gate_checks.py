"""Every micro-batch of a gated training is gated, before its gradients count, and in the precision of the loss."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import accelerate
import pytest
import torch
from support.gated_runs import dialogues, distillation, gkd, grpo, models, verifier
from trl.experimental.gkd import GKDConfig
from trl.experimental.utils import DataCollatorForChatML

from opd_align.training import trl_compat
from opd_align.training.gates import DivergenceAbove, FunctionGate, IncorrectOnly, Open
from opd_align.training.trainers import gated_generation
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.training.trainers.gkd import DataCollatorWithColumns, GatedGKDTrainer, _check_dispatch
from opd_align.training.trainers.grpo import GatedGRPOTrainer
from opd_align.types import OpdAlignError

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]

CLOSED = FunctionGate(lambda batch: torch.zeros_like(batch.mask_BT, dtype=torch.float32), "closed", measures=())
GATED = {"gkd": GatedGKDTrainer, "distillation": GatedDistillationTrainer, "grpo": GatedGRPOTrainer}


def train(name: str, folder: Any, kind: Any = None, **given: Any) -> Any:
    """Trains one optimizer step of two micro-batches with a gate."""
    options = {"max_steps": 1, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2}
    own = {"gate": given.pop("gate", CLOSED), "denominator": "keep"}
    kind = kind or GATED[name]
    if name == "gkd":
        return gkd(kind, folder, options=options | {"lmbda": 1.0, "max_new_tokens": 8} | given, **own)
    options |= {"max_completion_length": 8} | given
    if name == "distillation":
        return distillation(kind, folder, options=options, **own)
    own["teacher_model"] = models()["teacher_model"]
    return grpo(kind, folder, options=options | {"num_generations": 2}, **own)


@pytest.fixture
def backward(monkeypatch: Any) -> list[bool]:
    """For each call of accelerate's `backward`, whether it is followed by an optimizer step."""
    calls: list[bool] = []
    plain = accelerate.Accelerator.backward

    def counted(self: Any, loss: Any, **kwargs: Any) -> None:
        calls.append(self.sync_gradients)
        plain(self, loss, **kwargs)

    monkeypatch.setattr(accelerate.Accelerator, "backward", counted)
    return calls


@pytest.mark.parametrize("ungated", [0, 1])
@pytest.mark.parametrize("name", GATED)
def test_a_micro_batch_without_the_gates_weights_is_not_trained_on(name, ungated, tmp_path, backward):
    class Forgets(GATED[name]):
        """What a subclass or another version of TRL may do to batches on their way to the loss."""

        prepared = 0

        def _prepare_inputs(self, inputs: Any) -> Any:
            inputs = super()._prepare_inputs(inputs)
            keep = not self.model.training or self.prepared != ungated
            self.prepared += 1
            return inputs if keep else {key: value for key, value in inputs.items() if not key.startswith("gate_")}

    with pytest.raises(OpdAlignError, match="a training batch came without the gate 'closed'"):
        train(name, tmp_path, Forgets)
    assert backward == [False] * ungated, "no gradients of the batch, and no step"


@pytest.mark.parametrize("ungated", [0, 1])
@pytest.mark.parametrize("name", GATED)
def test_a_loss_without_the_gate_is_noticed_before_the_step_also_under_deepspeed(
    name, ungated, tmp_path, monkeypatch, backward
):
    """DeepSpeed makes its step within the last `backward`, before transformers' callbacks are asked."""
    calls = []

    def except_one(replace: Any) -> Any:
        def replaced(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return nullcontext() if len(calls) == ungated + 1 else replace(*args, **kwargs)

        return replaced

    monkeypatch.setattr(trl_compat, "replaced_kernel", except_one(trl_compat.replaced_kernel))
    monkeypatch.setattr(GatedGKDTrainer, "_replaced_divergence", except_one(GatedGKDTrainer._replaced_divergence))
    # What is logged of a step is not needed to notice it.
    monkeypatch.setattr("opd_align.training.gate_runtime.GateRuntime.log_step", lambda self, *args: None)
    with pytest.raises(OpdAlignError, match="loss of 1 of 2 micro-batches was computed without the gate 'closed'"):
        train(name, tmp_path)
    assert backward == [False], "not the one that is followed by a step"


def test_a_training_may_be_started_again_after_an_interruption_within_a_step(tmp_path):
    class Interrupted(GatedDistillationTrainer):
        steps = 0

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            self.steps += 1
            if self.steps == 2:
                raise KeyboardInterrupt
            return super().training_step(*args, **kwargs)

    kept = []

    class Kept(Interrupted):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            kept.append(self)

    with pytest.raises(KeyboardInterrupt):
        train("distillation", tmp_path, Kept)
    (trainer,) = kept
    assert trainer._gate_runtime.gated_micro_batches == 1
    trainer._step = 0
    trainer.train()
    assert trainer.state.global_step == 1
    assert trainer._gate_runtime.gated_micro_batches == 0


# -- precision ----------------------------------------------------------------------------------------------------

EXPECTED = {"gkd": torch.bfloat16, "grpo": torch.bfloat16, "distillation": None}


@pytest.mark.parametrize("name", GATED)
def test_measures_have_the_precision_of_the_loss(name, tmp_path, monkeypatch, caplog):
    states: dict[str, set[Any]] = {"measuring": set(), "loss": set()}
    measuring: list[int] = []

    def flagged(measure: Any) -> Any:
        def wrapped(*args: Any) -> Any:
            measuring.append(1)
            try:
                return measure(*args)
            finally:
                measuring.pop()

        return wrapped

    monkeypatch.setattr(gated_generation, "_measure", flagged(gated_generation._measure))
    monkeypatch.setattr(GatedGKDTrainer, "_measure", flagged(GatedGKDTrainer._measure))

    class Watched(GATED[name]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.model.base_model.register_forward_pre_hook(self.note)
            eps = torch.finfo(EXPECTED[name] or torch.float32).eps
            assert self._gate_runtime.eps == eps, "what SignAgrees takes for rounding"

        def note(self, *_: Any) -> None:
            dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
            if measuring or torch.is_grad_enabled():
                states["measuring" if measuring else "loss"].add(dtype)

    with caplog.at_level("INFO", "opd_align"):
        train(name, tmp_path, Watched, gate=DivergenceAbove(quantile=0.5), bf16=True)
    assert states == {"measuring": {EXPECTED[name]}, "loss": {EXPECTED[name]}}
    mixed = "bf16" if EXPECTED[name] else "no"
    assert f"precision of measures: float32 weights, {mixed} mixed precision" in caplog.text


# -- columns of GKD's data set --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gate", "collator"),
    [(Open(), DataCollatorForChatML), (IncorrectOnly(verifier, unknown="keep"), DataCollatorWithColumns)],
)
def test_gkds_batches_have_columns_of_text_only_for_a_verifier(gate, collator, tmp_path):
    args = GKDConfig(str(tmp_path), report_to="none", use_cpu=True, bf16=False)
    trainer = GatedGKDTrainer(args=args, train_dataset=dialogues(4), gate=gate, denominator="keep", **models())
    assert type(trainer.data_collator) is collator


@pytest.mark.parametrize(("processes", "dispatch", "refused"), [(2, None, True), (2, False, False), (1, None, False)])
def test_columns_that_would_be_sent_to_other_processes_are_refused(processes, dispatch, refused, tmp_path):
    config = GKDConfig(str(tmp_path), bf16=False, accelerator_config={"dispatch_batches": dispatch})
    data, accelerator = dialogues(4).to_iterable_dataset(), SimpleNamespace(num_processes=processes)
    trainer = SimpleNamespace(args=config, train_dataset=data, accelerator=accelerator)
    if refused:
        with pytest.raises(OpdAlignError, match=r'use accelerator_config=\{"dispatch_batches": False\}'):
            _check_dispatch(trainer)
    else:
        _check_dispatch(trainer)
