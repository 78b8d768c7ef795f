"""Gated trainers in special cases: resumed, truncated, infinite, misused; what a gate sees, and what is logged."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from support.gated_runs import dialogues, distillation, gkd, grpo, models, trained, verifier
from transformers import set_seed
from trl.experimental.gkd import GKDConfig, GKDTrainer
from trl.experimental.utils import DataCollatorForChatML

from opd_align.training.chunked_divergence import KernelCall
from opd_align.training.gate_runtime import coarsest_eps
from opd_align.training.gates import DivergenceAbove, FunctionGate, GateBatch, IncorrectOnly, Open
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.training.trainers.gkd import MICRO_BATCH, GatedGKDTrainer, GatedMicroBatch
from opd_align.training.trainers.grpo import GatedGRPOTrainer
from opd_align.types import OpdAlignError

pytestmark = [pytest.mark.training, pytest.mark.filterwarnings("ignore")]

ON_POLICY = {"lmbda": 1.0, "max_steps": 1}
TRAINERS = pytest.mark.parametrize(
    ("run", "kind", "options"),
    [(gkd, GatedGKDTrainer, ON_POLICY), (distillation, GatedDistillationTrainer, {"max_steps": 1})],
    ids=["gkd", "distillation"],
)


def first_token(batch):
    return (torch.arange(batch.mask_BT.shape[1]) == 0).expand_as(batch.mask_BT)


def always_correct(completions, **columns):
    return [1.0] * len(completions)


def always_unknown(completions, **columns):
    return [None] * len(completions)


def no_reward(completions, **columns):
    return [0.0] * len(completions)


def grpo_with_teacher(tmp_path, **own):
    own = {"denominator": "keep", "reward_funcs": [no_reward], "teacher_model": models()["teacher_model"]} | own
    return grpo(GatedGRPOTrainer, tmp_path, **own)


# Global batches


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        (GKDTrainer, {}),
        (GatedGKDTrainer, {"gate": Open(), "denominator": "trl"}),
        (GatedGKDTrainer, {"gate": DivergenceAbove(quantile=0.5), "denominator": "renormalise"}),
    ],
    ids=["trl", "open", "quantile"],
)
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path, kind, own):
    options = {
        "lmbda": 0.7,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    whole = gkd(kind, tmp_path, options=options, **own)
    set_seed(2)  # random numbers drawn at construction must not matter
    again = kind(args=whole.trainer.args, train_dataset=dialogues(), **models(), **own)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    losses = [row["loss"] for row in again.state.log_history if "loss" in row]
    assert losses == whole.column("loss")
    assert len(losses) == 4
    assert all(torch.equal(value, whole.weights[name]) for name, value in again.model.state_dict().items())


@TRAINERS
@pytest.mark.parametrize("measures", [(), ("kl",)])
def test_a_gate_may_depend_on_the_position(tmp_path, run, kind, options, measures):
    for needs_global_batch in (False, True):
        gate = FunctionGate(first_token, measures=measures, needs_global_batch=needs_global_batch)
        (row,) = run(kind, tmp_path, gate=gate, denominator="keep", options=options).logs
        assert row["gate/tokens_distilled"] == 4
        assert row["gate/sequences_kept"] == 1
        assert row["loss"] == pytest.approx(row["gate/loss"], rel=1e-5)
        assert row["loss"] > 0


@pytest.mark.parametrize("lmbda", [0.0, 1.0])
def test_a_gkd_gate_sees_aligned_tokens_and_measures(tmp_path, lmbda):
    """Rows start with the completion and end with padding; a measure is at the position of its token."""
    seen = []

    def record(batch):
        seen.append((batch, batch.measure("log_ratio")))
        return batch.mask_BT

    run = gkd(GatedGKDTrainer, tmp_path, gate=record, denominator="keep", options={"lmbda": lmbda, "max_steps": 1})
    ((batch, log_ratio_BT),) = seen
    pad = run.trainer.processing_class.pad_token_id
    assert batch.mask_BT[:, 0].all()
    assert (batch.token_ids_BT[~batch.mask_BT] == pad).all()
    rows = [ids[mask] for ids, mask in zip(batch.token_ids_BT, batch.mask_BT, strict=True)]
    replies = run.trainer.processing_class.batch_decode(rows)
    assert lmbda or all(reply.startswith("I count.") for reply in replies)
    assert (log_ratio_BT[batch.mask_BT] != 0).float().mean() > 0.9
    assert (log_ratio_BT[~batch.mask_BT] == 0).all()


def test_counts_keep_their_precision_under_deepspeed():
    """transformers casts a batch's float tensors to DeepSpeed's dtype; a count of 100,001 is infinite in float16."""
    half = SimpleNamespace(deepspeed_plugin=SimpleNamespace(hf_ds_config=SimpleNamespace(dtype=lambda: torch.float16)))
    deep = SimpleNamespace(
        args=SimpleNamespace(device="cpu"), is_deepspeed_enabled=True, accelerator=SimpleNamespace(state=half)
    )
    deep._prepare_input = lambda value: GKDTrainer._prepare_input(deep, value)
    count = torch.tensor(100_001.0)
    micro_batch = GatedMicroBatch(GateBatch(*[torch.ones(1, 1).bool()] * 2), torch.full((1, 1), 0.1), count)
    prepared = deep._prepare_input({"count": count, MICRO_BATCH: micro_batch})
    assert prepared["count"].isinf()
    assert prepared[MICRO_BATCH] is micro_batch


@pytest.mark.parametrize(
    ("mixed", "dtype", "expected"),
    [("no", None, torch.float32), ("no", torch.bfloat16, torch.bfloat16), ("bf16", None, torch.bfloat16)],
)
def test_the_coarsest_precision_counts(mixed, dtype, expected):
    student, teacher = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, dtype=dtype)
    assert coarsest_eps(mixed, student, teacher) == torch.finfo(expected).eps


def test_gkds_divergence_is_trls_static_method(tmp_path):
    logits = torch.randn(2, 3, 5)
    assert GatedGKDTrainer.generalized_jsd_loss is GKDTrainer.generalized_jsd_loss
    assert GatedGKDTrainer.generalized_jsd_loss(logits, logits).item() == pytest.approx(0, abs=1e-6)
    run = gkd(GatedGKDTrainer, tmp_path, gate=Open(), denominator="keep", options={"max_steps": 1})
    assert run.trainer.generalized_jsd_loss is GKDTrainer.generalized_jsd_loss  # after a training, too


def test_a_subclass_may_have_a_divergence_of_its_own(tmp_path):
    class Doubled(GatedGKDTrainer):
        @staticmethod
        def generalized_jsd_loss(*args, **kwargs):
            return 2 * GKDTrainer.generalized_jsd_loss(*args, **kwargs)

    own = {"gate": Open(), "denominator": "keep", "options": {"max_steps": 1}}
    (row,) = gkd(GatedGKDTrainer, tmp_path, **own).logs
    (doubled,) = gkd(Doubled, tmp_path, **own).logs
    assert doubled["loss"] == pytest.approx(2 * row["loss"], rel=1e-6)


# Outcomes


@pytest.mark.parametrize("verifier", [always_correct, always_unknown])
@TRAINERS
def test_truncated_completions_are_incorrect(tmp_path, run, kind, options, verifier):
    length = "max_new_tokens" if run is gkd else "max_completion_length"
    gate = IncorrectOnly(verifier, unknown="drop")
    (row,) = run(kind, tmp_path, gate=gate, denominator="keep", options=options | {length: 8}).logs
    assert (row["gate/correct"], row["gate/unknown"], row["gate/tokens_kept"]) == (0, 0, 1)
    (row,) = run(kind, tmp_path, gate=gate, denominator="keep", options=options | {length: 128}).logs
    assert (row["gate/correct"], row["gate/unknown"]) == ((1, 0) if verifier is always_correct else (0, 1))
    assert row["gate/tokens_kept"] == 0


def test_completions_of_the_data_set_are_not_truncated(tmp_path):
    gate = IncorrectOnly(always_correct, unknown="drop")
    (row,) = gkd(GatedGKDTrainer, tmp_path, gate=gate, denominator="keep", options={"max_steps": 1}).logs
    assert row["gate/correct"] == 1


@pytest.mark.parametrize("masked", [False, True])
def test_shares_of_outcomes_include_truncated_and_masked_completions(tmp_path, masked):
    options = {"max_steps": 1, "mask_truncated_completions": masked, "max_completion_length": 4}
    (row,) = grpo_with_teacher(tmp_path, gate=IncorrectOnly(always_unknown, unknown="keep"), options=options).logs
    assert (row["gate/correct"], row["gate/unknown"]) == (0, 0)
    assert row["gate/sequences_kept"] == (0 if masked else 1)
    options["max_completion_length"] = 56  # some are truncated, some are not
    (row,) = grpo_with_teacher(tmp_path, gate=IncorrectOnly(always_unknown, unknown="keep"), options=options).logs
    assert row["gate/unknown"] == pytest.approx(1 - row["completions/clipped_ratio"])
    assert 0 < row["gate/unknown"] < 1


# What is logged


@pytest.mark.parametrize("accepts", [True, False])
def test_the_logged_denominator_is_the_one_used(tmp_path, monkeypatch, accepts):
    """TRL's count, or none: for a model without `num_items_in_batch`, the loss is a mean over micro-batches."""
    plain = GKDTrainer.__init__

    def init(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        self.model_accepts_loss_kwargs = accepts

    monkeypatch.setattr(GKDTrainer, "__init__", init)
    options = {"lmbda": 1.0, "max_steps": 1, "gradient_accumulation_steps": 2}
    run = gkd(GatedGKDTrainer, tmp_path, gate=Open(), denominator="trl", options=options)
    (row,) = run.logs
    assert row["gate/loss"] == pytest.approx(row["loss"], rel=1e-5)
    assert (row["gate/denominator"] == row["gate/tokens_distilled"]) is not accepts
    if accepts:
        divergence = row["gate/loss_open"] * row["gate/tokens_distilled"]
        assert row["loss"] == pytest.approx(divergence / row["gate/denominator"], rel=1e-5)


@TRAINERS
def test_the_choice_of_denominator_is_logged(tmp_path, run, kind, options):
    for denominator, mark in (("keep", 0.0), ("renormalise", 1.0)):
        trained = run(kind, tmp_path, gate=Open(), denominator=denominator, options=options)
        assert trained.column("gate/renormalised") == [mark]


# Infinite divergences


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_dropped_token_with_infinite_divergence_adds_nothing_in_gkd(tmp_path, beta):
    """The teacher gives a token zero probability: its divergence is infinite, and the gate drops it."""
    made = models()
    forbid(made["teacher_model"], at=3)
    gate = FunctionGate(lambda batch: 1.0 - first_token(batch).float(), "not_the_first", measures=())
    plain = gkd(GatedGKDTrainer, tmp_path, gate=gate, denominator="keep", options={"max_steps": 1, "beta": beta})
    run = gkd(GatedGKDTrainer, tmp_path, gate=gate, denominator="keep", options={"max_steps": 1, "beta": beta}, **made)
    assert not torch.isfinite(torch.tensor(run.logs[0]["gate/loss_open"]))
    assert run.logs[0]["loss"] == plain.logs[0]["loss"] > 0
    assert run.logs[0]["gate/loss"] == plain.logs[0]["gate/loss"]
    for name, gradient in run.gradients[0].items():
        assert torch.equal(gradient, plain.gradients[0][name]), name


def forbid(teacher, *, at):
    """The model gives one token zero probability at the first position of each reply of the data set."""
    marker = models()["processing_class"]("I count.", add_special_tokens=False)["input_ids"]

    def hook(module, args, kwargs, output):
        ids = kwargs["input_ids"]
        logits = output.logits.clone()
        for row in range(len(ids)):
            for column in range(ids.shape[1] - len(marker) + 1):
                if ids[row, column : column + len(marker)].tolist() == marker:
                    logits[row, column - 1, at] = -torch.inf
        output.logits = logits
        return output

    teacher.register_forward_hook(hook, with_kwargs=True)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("compact", [False, True])
def test_a_dropped_token_with_infinite_divergence_adds_nothing_in_the_kernel(beta, compact):
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(6, 8, generator=generator, requires_grad=True)
    head = torch.randn(11, 8, generator=generator, requires_grad=True)
    taught, teachers_head = torch.randn(6, 5, generator=generator), torch.randn(11, 5, generator=generator)
    taught[1] = torch.inf  # an overflow
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
    weights = torch.tensor([[0.5, 0.0, 0.0], [1.0, 0.0, 2.0]])
    rows = mask.reshape(-1) if compact else slice(None)
    sides = (states[rows], head, None, taught[rows], teachers_head, None)
    batch = GateBatch(torch.zeros(2, 3).long(), mask)
    found = KernelCall((*sides, beta, 1.0, 1.0, None, 1.0, None), batch).weighted(weights)
    found.sum().backward()
    kept = (weights > 0).reshape(-1)
    alone = states.detach()[kept].requires_grad_()
    head_alone = head.detach().requires_grad_()
    sides = (alone, head_alone, None, taught[kept], teachers_head, None)
    only = GateBatch(torch.zeros(1, 3).long(), torch.ones(1, 3).bool())
    expected = KernelCall((*sides, beta, 1.0, 1.0, None, 1.0, None), only).weighted(weights[weights > 0].view(1, 3))
    expected.sum().backward()
    torch.testing.assert_close(found.sum(), expected.sum())
    torch.testing.assert_close(states.grad[kept], alone.grad)
    torch.testing.assert_close(head.grad, head_alone.grad)
    assert not states.grad[~kept].any()


# Invalid arguments


@pytest.mark.parametrize("kind", [GatedGKDTrainer, GatedDistillationTrainer, GatedGRPOTrainer])
@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"gate": 3, "denominator": "keep"}, "a gate is a function"),
        ({"gate": Open(), "denominator": "half"}, "denominator must be one of keep, renormalise"),
        (
            {"gate": IncorrectOnly(verifier, unknown="keep"), "denominator": "keep", "verifier_timeout_s": 0},
            "positive number",
        ),
    ],
)
def test_invalid_gates_are_refused_before_models_are_loaded(kind, own, complaint):
    with pytest.raises(OpdAlignError, match=complaint):
        kind("no/such/model", teacher_model="no/such/teacher", **own)


@pytest.mark.parametrize(
    ("own", "complaint"),
    [
        ({"distillation_beta": 2.0}, r"distillation_beta must be in \[0, 1\].*not 2.0"),
        ({"distillation_beta": float("nan")}, r"distillation_beta"),
        ({"options": {"gradient_accumulation_steps": 4, "steps_per_generation": 2}}, "2 must be a multiple of .*=4"),
        ({"options": {"gradient_accumulation_steps": 2, "steps_per_generation": 3}}, "3 must be a multiple of .*=2"),
    ],
)
def test_grpo_refuses_invalid_settings(tmp_path, own, complaint):
    with pytest.raises(OpdAlignError, match=complaint):
        grpo_with_teacher(tmp_path, gate=Open(), **own)


def test_a_collators_settings_are_kept(tmp_path):
    made = models()
    own = DataCollatorForChatML(made["processing_class"], max_length=100, messages_key="chat")
    data = dialogues(8).rename_column("messages", "chat")
    args = GKDConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", lmbda=0.0, max_length=256)
    args.max_steps, args.logging_steps = 1, 1
    gate = IncorrectOnly(verifier, unknown="drop")
    run = trained(
        GatedGKDTrainer(args=args, train_dataset=data, data_collator=own, gate=gate, denominator="keep", **made)
    )
    assert run.trainer.data_collator.max_length == 100
    assert run.column("gate/correct") == [0.5]
