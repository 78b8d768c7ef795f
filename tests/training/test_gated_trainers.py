"""TRL's trainers with a gate: an open one changes nothing, one that drops every token stops the training."""

from __future__ import annotations

import inspect
import threading
import time

import pytest
import torch
from peft import LoraConfig
from support.gated_runs import dialogues, distillation, gkd, grpo, models, prompts, verifier
from trl import DistillationTrainer, GRPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.utils import DataCollatorForChatML
from trl.kernels.chunked_divergence import ChunkedDivergenceFunction
from trl.trainer import distillation_trainer

from opd_align.training.chunked_divergence import KernelCall, replaced_kernel
from opd_align.training.gates import DivergenceAbove, FunctionGate, GateBatch, IncorrectOnly, Open, SignAgrees
from opd_align.training.measures import READABLE, measure_logits
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.training.trainers.gkd import GatedGKDTrainer
from opd_align.training.trainers.grpo import GatedGRPOTrainer
from opd_align.types import OpdAlignError

# TRL and its libraries warn about each other; what concerns us is raised as an error of our own.
pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]

TWICE = {"gradient_accumulation_steps": 2}
ONE_STEP = {"max_steps": 1, "per_device_train_batch_size": 8}
CLOSED = FunctionGate(lambda batch: torch.zeros_like(batch.mask_BT, dtype=torch.float32), "closed", measures=())
INCORRECT = IncorrectOnly(verifier, unknown="drop")


def assert_same_training(one, other):
    """Bit-identical losses, gradient norms and weights."""
    assert len(one.logs) == len(other.logs) > 0
    assert one.column("loss") == other.column("loss")
    assert one.column("grad_norm") == other.column("grad_norm")
    for name, weights in one.weights.items():
        assert torch.equal(weights, other.weights[name]), name


def assert_same_gradients(one, other, *, times=1.0):
    """Up to float32 rounding: sums run in another order."""
    assert one.gradients
    for mine, theirs in zip(one.gradients, other.gradients, strict=True):
        assert mine.keys() == theirs.keys()
        scale = max(float(value.abs().max()) for value in mine.values())
        assert scale > 0
        for name, value in mine.items():
            torch.testing.assert_close(
                value, theirs[name] * times, atol=2e-5 * scale, rtol=1e-3, msg=lambda m, n=name: n + m
            )


# Open gates


@pytest.mark.parametrize("gate", [Open(), DivergenceAbove(threshold=0.0), DivergenceAbove(quantile=0.0)])
def test_open_gkd_equals_trl_where_trls_count_is_right(tmp_path, gate):
    plain = gkd(GKDTrainer, tmp_path, options=TWICE)
    for denominator in ("keep", "renormalise"):
        assert_same_training(plain, gkd(GatedGKDTrainer, tmp_path, gate=gate, denominator=denominator, options=TWICE))


@pytest.mark.parametrize(("lmbda", "seq_kd"), [(0.5, False), (1.0, False), (0.5, True)])
def test_open_gkd_on_policy_equals_trl_with_trls_count(tmp_path, lmbda, seq_kd):
    options = {**TWICE, "lmbda": lmbda, "seq_kd": seq_kd}
    gated = gkd(GatedGKDTrainer, tmp_path, gate=Open(), denominator="trl", options=options)
    assert_same_training(gkd(GKDTrainer, tmp_path, options=options), gated)


def test_gkd_on_policy_divides_by_the_tokens_that_were_generated(tmp_path):
    options = {**TWICE, "lmbda": 1.0, "max_steps": 1}
    plain = gkd(GKDTrainer, tmp_path, options=options)
    gated = gkd(GatedGKDTrainer, tmp_path, gate=Open(), denominator="keep", options=options)
    (row,) = gated.logs
    assert row["loss"] == pytest.approx(row["gate/loss_open"], rel=1e-6)
    ratio = plain.logs[0]["loss"] / row["loss"]
    trl_count = row["gate/denominator"] / ratio  # what TRL divided by: tokens of the data set's replies
    assert trl_count == pytest.approx(round(trl_count), abs=1e-2)
    assert ratio > 1.2
    assert_same_gradients(plain, gated, times=ratio)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_open_distillation_equals_trl(tmp_path, beta):
    options = {**TWICE, "beta": beta}
    plain = distillation(DistillationTrainer, tmp_path, options=options)
    for gate, denominator in (
        (Open(), "keep"),
        (DivergenceAbove(threshold=0.0), "keep"),
        (DivergenceAbove(quantile=0.0, measure="js"), "renormalise"),
    ):
        gated = distillation(GatedDistillationTrainer, tmp_path, gate=gate, denominator=denominator, options=options)
        assert_same_training(plain, gated)


def test_grpo_without_distillation_equals_trl(tmp_path):
    gated = grpo(
        GatedGRPOTrainer,
        tmp_path,
        gate=Open(),
        denominator="keep",
        distillation_weight=0.0,
        teacher_model=models()["teacher_model"],
        options=TWICE,
    )
    assert_same_training(grpo(GRPOTrainer, tmp_path, options=TWICE), gated)


# Closed gates


@pytest.mark.parametrize("denominator", ["keep", "renormalise"])
@pytest.mark.parametrize(
    ("run", "kind"), [(gkd, GatedGKDTrainer), (distillation, GatedDistillationTrainer)], ids=["gkd", "distillation"]
)
def test_a_closed_gate_gives_zero_loss_and_gradients(tmp_path, run, kind, denominator):
    closed = run(kind, tmp_path, gate=CLOSED, denominator=denominator, options=TWICE)
    assert closed.column("loss") == closed.column("grad_norm") == closed.column("gate/tokens_kept") == [0.0] * 3
    assert all(value > 0 for value in closed.column("gate/loss_open"))
    assert not closed.column("gate/kept_divergence")
    before = models()["model"].state_dict()
    assert all(torch.equal(weights, before[name]) for name, weights in closed.weights.items())
    assert all(not value.any() for step in closed.gradients for value in step.values())


# Partly open gates


def test_only_incorrect_completions_are_distilled(tmp_path):
    data = dialogues(8)
    wrong = data.select(range(0, 8, 2))
    keep = gkd(GatedGKDTrainer, tmp_path, data=data, gate=INCORRECT, denominator="keep", options=ONE_STEP)
    share = gkd(GatedGKDTrainer, tmp_path, data=data, gate=INCORRECT, denominator="renormalise", options=ONE_STEP)
    alone = gkd(GKDTrainer, tmp_path, data=wrong, options={**ONE_STEP, "per_device_train_batch_size": 4})
    (row,) = keep.logs
    assert (row["gate/sequences_kept"], row["gate/correct"], row["gate/unknown"]) == (0.5, 0.5, 0.0)
    assert_same_gradients(share, alone)
    assert_same_gradients(keep, alone, times=row["gate/tokens_kept"])
    assert row["gate/loss"] == pytest.approx(row["gate/tokens_kept"] * row["gate/kept_divergence"])
    assert share.logs[0]["gate/loss"] == pytest.approx(row["gate/kept_divergence"])


def test_correct_weight_interpolates_gradients(tmp_path):
    runs = {
        weight: gkd(
            GatedGKDTrainer,
            tmp_path,
            gate=IncorrectOnly(verifier, correct_weight=weight, unknown="keep"),
            denominator="keep",
            options=ONE_STEP,
        )
        for weight in (0.0, 0.25, 1.0)
    }
    for name, quarter in runs[0.25].gradients[0].items():
        mixed = 0.75 * runs[0.0].gradients[0][name] + 0.25 * runs[1.0].gradients[0][name]
        torch.testing.assert_close(quarter, mixed, atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("denominator", ["keep", "renormalise"])
@pytest.mark.parametrize(
    "gate",
    [INCORRECT, DivergenceAbove(quantile=0.7), INCORRECT * DivergenceAbove(threshold=0.05)],
    ids=lambda gate: gate.name,
)
def test_a_step_does_not_depend_on_its_micro_batches(tmp_path, gate, denominator):
    whole = gkd(GatedGKDTrainer, tmp_path, gate=gate, denominator=denominator, options=ONE_STEP)
    halves = {**ONE_STEP, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    split = gkd(GatedGKDTrainer, tmp_path, gate=gate, denominator=denominator, options=halves)
    assert_same_gradients(whole, split)
    for key in ("loss", "gate/loss", "gate/loss_open", "gate/tokens_kept", "gate/denominator", "gate/kept_divergence"):
        assert whole.logs[0][key] == pytest.approx(split.logs[0][key], rel=1e-4), key


def test_distillation_quantiles_are_over_the_global_batch(tmp_path):
    gate, options = DivergenceAbove(quantile=0.9), {**TWICE, "max_steps": 2}
    run = distillation(GatedDistillationTrainer, tmp_path, gate=gate, denominator="renormalise", options=options)
    for row in run.logs:
        assert row["gate/tokens_kept"] == pytest.approx(0.1, abs=0.01)
        assert row["gate/denominator"] == row["gate/tokens_distilled"]
        assert row["loss"] == pytest.approx(row["gate/loss"], rel=1e-5) == pytest.approx(row["gate/kept_divergence"])
        assert row["gate/kept_divergence"] > 3 * row["gate/loss_open"]


def test_weights_do_not_depend_on_when_they_are_computed(tmp_path):
    """A threshold is applied in the loss's forward pass, with `needs_global_batch` the same rule before it."""
    late = DivergenceAbove(threshold=0.05, measure="js") * SignAgrees(verifier, unknown="keep")
    early = FunctionGate(late, "early", late.measures, needs_global_batch=True, verifier=verifier)
    for run, kind in ((gkd, GatedGKDTrainer), (distillation, GatedDistillationTrainer)):
        one, other = (run(kind, tmp_path, gate=gate, denominator="keep", options=TWICE) for gate in (late, early))
        assert 0 < one.logs[0]["gate/tokens_kept"] < 1
        assert_same_training(one, other)


@pytest.mark.parametrize(
    ("run", "kind"), [(gkd, GatedGKDTrainer), (distillation, GatedDistillationTrainer)], ids=["gkd", "distillation"]
)
def test_gradient_checkpointing_changes_nothing(tmp_path, run, kind):
    gate = INCORRECT * DivergenceAbove(quantile=0.5)
    options = {"max_steps": 1, "gradient_checkpointing": True}
    plain = run(kind, tmp_path, gate=gate, denominator="renormalise", options={"max_steps": 1})
    assert_same_gradients(plain, run(kind, tmp_path, gate=gate, denominator="renormalise", options=options))


@pytest.mark.parametrize(
    ("run", "kind", "plain"),
    [(gkd, GatedGKDTrainer, GKDTrainer), (distillation, GatedDistillationTrainer, DistillationTrainer)],
    ids=["gkd", "distillation"],
)
def test_adapters_can_be_trained_with_a_gate(tmp_path, run, kind, plain):
    lora = {"peft_config": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)}
    assert_same_training(run(plain, tmp_path, **lora), run(kind, tmp_path, gate=Open(), denominator="keep", **lora))
    gated = run(kind, tmp_path, gate=INCORRECT * DivergenceAbove(quantile=0.5), denominator="renormalise", **lora)
    assert all("lora" in name for name in gated.gradients[0])
    assert any(value.any() for value in gated.gradients[0].values())


def test_evaluation_is_not_gated(tmp_path):
    losses = []
    for kind, own in ((GKDTrainer, {}), (GatedGKDTrainer, {"gate": CLOSED, "denominator": "keep"})):
        run = gkd(kind, tmp_path, eval_dataset=dialogues(4), options={"learning_rate": 0.0}, **own)
        losses.append(run.trainer.evaluate()["eval_loss"])
    assert losses[0] == losses[1] > 0
    run = distillation(GatedDistillationTrainer, tmp_path, gate=CLOSED, denominator="keep", eval_dataset=prompts(4))
    assert run.trainer.evaluate()["eval_loss"] > 0


def test_distillation_never_computes_full_logits(tmp_path):
    made = models()
    lengths = []
    for model in (made["model"], made["teacher_model"]):
        model.lm_head.register_forward_hook(lambda module, args, output: lengths.append(output.shape[1]))
    gate = DivergenceAbove(quantile=0.5) * SignAgrees(verifier, unknown="keep")
    distillation(
        GatedDistillationTrainer, tmp_path, gate=gate, denominator="renormalise", options={"max_steps": 1}, **made
    )
    assert lengths
    assert set(lengths) == {1}  # generation, one token at a time


# Failures


def hanging(**columns):
    threading.Event().wait(30)


def raising(**columns):
    raise RuntimeError("on purpose")


@pytest.mark.parametrize("broken", [hanging, raising])
@pytest.mark.parametrize(("unknown", "kept"), [("keep", 1.0), ("drop", 0.0)])
def test_training_continues_when_its_verifier_fails(tmp_path, broken, unknown, kept):
    gate = IncorrectOnly(broken, unknown=unknown)
    for run, kind in ((gkd, GatedGKDTrainer), (distillation, GatedDistillationTrainer)):
        trained = run(kind, tmp_path, gate=gate, denominator="keep", verifier_timeout_s=0.2)
        assert trained.column("gate/unknown") == [1.0] * 3
        assert trained.column("gate/verifier_failures") == [1.0] * 3
        assert trained.column("gate/sequences_kept") == [kept] * 3


def test_invalid_arguments_are_refused(tmp_path):
    with pytest.raises(TypeError, match="denominator"):
        gkd(GatedGKDTrainer, tmp_path, gate=Open())
    with pytest.raises(OpdAlignError, match="one of keep, renormalise, not 'trl'"):
        distillation(GatedDistillationTrainer, tmp_path, gate=Open(), denominator="trl")
    with pytest.raises(OpdAlignError, match="column 'answer'"):
        gkd(GatedGKDTrainer, tmp_path, data=dialogues().remove_columns("answer"), gate=INCORRECT, denominator="keep")
    own = {"data_collator": NoColumns(models()["processing_class"], max_length=256)}
    with pytest.raises(OpdAlignError, match="columns; leave out data_collator"):
        gkd(GatedGKDTrainer, tmp_path, gate=INCORRECT, denominator="keep", **own)


class NoColumns(DataCollatorForChatML):
    """A user's own collator."""


# GRPO: rewards on correct completions, the teacher on incorrect ones


def test_grpo_distills_incorrect_completions_and_rewards_correct_ones(tmp_path):
    teacher = {"teacher_model": models()["teacher_model"], "denominator": "keep", "options": TWICE | {"max_steps": 2}}
    both = grpo(GatedGRPOTrainer, tmp_path, gate=INCORRECT, **teacher)
    for row in both.logs:
        assert row["gate/correct"] == pytest.approx(row["reward"])
        assert row["gate/sequences_kept"] == pytest.approx(1 - row["gate/correct"])
    assert any(0 < row["gate/correct"] < 1 for row in both.logs)
    # Without distillation, gradients are GRPO's with the advantages of incorrect completions set to zero; the teacher's
    # part is proportional to its weight.
    once = {**teacher, "options": TWICE | {"max_steps": 1}}
    gradients = [
        grpo(GatedGRPOTrainer, tmp_path, gate=INCORRECT, distillation_weight=weight, **once).gradients[0]
        for weight in (0.0, 1.0, 2.0)
    ]
    for name, without in gradients[0].items():
        torch.testing.assert_close(
            gradients[2][name] - without, 2 * (gradients[1][name] - without), atol=1e-5, rtol=1e-2
        )
    assert any((gradients[1][name] != without).any() for name, without in gradients[0].items())


def test_a_verifier_that_is_also_a_reward_is_called_once_and_cannot_end_the_training(tmp_path):
    calls = []

    def counted(completions, completion_ids, trainer_state, **columns):
        calls.append(trainer_state.global_step)
        assert [len(ids) > 0 for ids in completion_ids] == [True] * len(completions)
        return [1.0] * len(completions)

    def broken(completions, **columns):
        raise RuntimeError("on purpose")

    def hangs(completions, **columns):
        time.sleep(600)

    def run(name, verifier, timeout_s=60.0):
        return grpo(
            GatedGRPOTrainer, tmp_path / name, teacher_model=models()["teacher_model"], reward_funcs=[verifier],
            gate=IncorrectOnly(verifier, unknown="drop"), denominator="keep", verifier_timeout_s=timeout_s,
            options={"max_steps": 1, "max_completion_length": 96},
        )  # fmt: skip

    assert run("counted", counted).column("rewards/counted/mean") == [1.0]
    assert calls == [0]
    for failing in (broken, hangs):
        failed = run(failing.__name__, failing, 0.5)
        assert failed.column("gate/unknown") == [1.0]
        assert failed.column("gate/verifier_failures") == [1.0]
        assert failed.column("gate/sequences_kept") == [0.0]


def test_grpos_distillation_term_equals_distillation_trainers(tmp_path):
    """On the same rollouts and without rewards, GRPO's distillation term is what DistillationTrainer computes."""
    options = {"max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 4}

    def no_reward(completions, **columns):
        return [0.0] * len(completions)

    made = models()
    run = grpo(
        GatedGRPOTrainer,
        tmp_path,
        gate=DivergenceAbove(quantile=0.3),
        denominator="renormalise",
        teacher_model=made["teacher_model"],
        options=options,
        reward_funcs=[no_reward],
    )
    inputs = run.trainer._buffered_inputs[0]
    student, teacher = models()["model"], made["teacher_model"]
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    length = inputs["completion_ids"].shape[1]
    logits = [
        model(input_ids=ids, attention_mask=attention).logits[:, -length - 1 : -1] for model in (student, teacher)
    ]
    mask = inputs["completion_mask"].bool()
    kl = measure_logits("kl", logits[0][mask], logits[1][mask].detach(), inputs["completion_ids"][mask])
    kept = kl >= kl.detach().sort().values[int(torch.tensor(0.3 * (len(kl) - 1)).ceil())]
    loss = kl[kept].mean()
    loss.backward()
    assert run.logs[0]["loss"] == pytest.approx(loss.item(), rel=1e-4)
    for name, weight in student.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(run.gradients[0][name], weight.grad, atol=1e-5, rtol=1e-3)


def test_a_generation_batch_may_be_used_for_several_steps(tmp_path):
    run = grpo(
        GatedGRPOTrainer,
        tmp_path,
        gate=Open(),
        denominator="keep",
        teacher_model=models()["teacher_model"],
        options={"max_steps": 2, "steps_per_generation": 2, "per_device_train_batch_size": 8, "learning_rate": 0.0},
        reward_funcs=[lambda completions, **columns: [0.0] * len(completions)],
    )
    tokens = sum(row["gate/tokens_distilled"] for row in run.logs)
    for row in run.logs:  # each step divides by its half of the generation batch
        assert row["gate/denominator"] == pytest.approx(tokens / 2)
        assert row["loss"] == pytest.approx(row["gate/loss"], rel=1e-5)


def test_grpo_with_an_adapter_and_a_measuring_pass(tmp_path):
    run = grpo(
        GatedGRPOTrainer,
        tmp_path,
        gate=INCORRECT * DivergenceAbove(quantile=0.5),
        denominator="renormalise",
        teacher_model=models()["teacher_model"],
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        options=TWICE | {"gradient_checkpointing": True},
    )
    assert run.gradients
    assert all("lora" in name for name in run.gradients[0])
    assert all(0 <= row["gate/tokens_kept"] < 0.6 for row in run.logs)


# The interface with TRL


def test_measures_from_the_kernel_equal_those_from_full_logits():
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(6, 8, generator=generator), torch.randn(6, 5, generator=generator)]
    heads = [torch.randn(11, 8, generator=generator), torch.randn(11, 5, generator=generator)]
    tokens = torch.randint(11, (2, 3), generator=generator)
    for mask in (torch.ones(2, 3).bool(), torch.tensor([[1, 1, 0], [1, 0, 0]]).bool()):
        batch = GateBatch(tokens, mask)
        for rows in (slice(None), mask.reshape(-1)):  # all positions, as on a CPU; those in the mask, as on a GPU
            sides = (states[0][rows], heads[0], None, states[1][rows], heads[1], None)
            call = KernelCall((*sides, 0.0, 0.7, 1.3, None, 1.0, 5.0), batch)
            student = states[0] @ heads[0].T * 1.3 / 0.7
            teacher = 5.0 * torch.tanh(states[1] @ heads[1].T / 5.0) / 0.7
            for name in READABLE:
                expected = measure_logits(name, student, teacher, tokens.reshape(-1)).view(2, 3)
                torch.testing.assert_close(call.measure(name)[mask], expected[mask], atol=1e-5, rtol=1e-4)
            assert torch.equal(call.scatter(call.select(tokens))[mask], tokens[mask])
    with pytest.raises(OpdAlignError, match="no measure 'distance'"):
        call.measure("distance")


def test_the_kernel_is_restored_after_an_error():
    def failing():
        with replaced_kernel(GateBatch(*[torch.ones(1, 1).bool()] * 2), lambda call: (call, call)):
            assert distillation_trainer.ChunkedDivergenceFunction is not ChunkedDivergenceFunction
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert distillation_trainer.ChunkedDivergenceFunction is ChunkedDivergenceFunction


def test_trl_has_the_names_and_parameters_that_gates_rely_on():
    """A release of TRL that changes one of these needs a review."""
    assert "ChunkedDivergenceFunction" in distillation_trainer._chunked_divergence_loss.__code__.co_names
    assert "_chunked_divergence_loss" in DistillationTrainer._compute_loss.__code__.co_names
    assert list(inspect.signature(DistillationTrainer._compute_loss).parameters) == [
        "self", "unwrapped_student", "inputs", "num_items_in_batch",
    ]  # fmt: skip
    assert list(inspect.signature(GRPOTrainer._compute_loss).parameters) == ["self", "model", "inputs"]
    kernel = list(inspect.signature(ChunkedDivergenceFunction.forward).parameters)
    assert kernel[1:9] == [
        "student_hidden", "student_weight", "student_bias", "teacher_hidden", "teacher_weight", "teacher_bias",
        "beta", "temperature",
    ]  # fmt: skip
    assert [name.split("_")[0] for name in kernel[9:]] == ["student", "student", "teacher", "teacher"]
    loss = inspect.signature(GKDTrainer.generalized_jsd_loss).parameters
    assert {"labels", "beta", "reduction", "num_items_in_batch"} <= loss.keys()
    assert "generalized_jsd_loss" in GKDTrainer.compute_loss.__code__.co_names
    assert {"random", "generate_on_policy_outputs"} <= set(GKDTrainer.training_step.__code__.co_names)


def test_a_loss_that_bypasses_the_gate_is_an_error(tmp_path, monkeypatch):
    def bypass(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return model(inputs["input_ids"]).logits.sum()

    monkeypatch.setattr(GKDTrainer, "compute_loss", bypass)
    with pytest.raises(OpdAlignError, match="computed without the gate"):
        gkd(GatedGKDTrainer, tmp_path, gate=Open(), denominator="keep")
