"""Where rows go, what is printed, which loss is evaluated, and what a gate does to the alignment."""

from __future__ import annotations

import logging
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.logged import logged_metrics
from support.trainings import ARITHMETIC, TINY, add_alignment, held_out, make
from transformers import TrainerCallback
from trl import DistillationTrainer, GRPOTrainer

from opd_align import AlignmentCallback, Budget, ExactFamily, OpdAlignError, ReverseKL, Settings, analyze
from opd_align.core.objectives import GRPO, DrGRPO, GeneralisedJSD
from opd_align.training.adapters import UNSUPPORTED, adapt_trainer
from opd_align.training.gated_alignment import gate_weights
from opd_align.training.gates import DivergenceAbove, FunctionGate, IncorrectOnly, Open, SignAgrees

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


# -- rows -------------------------------------------------------------------------------------------------------------


class Tracker(TrainerCallback):
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.rows.append({**logs, "step": state.global_step})


def first_evaluation(callback: AlignmentCallback) -> None:
    trainer = callback.adapter.trainer
    callback.on_train_begin(trainer.args, trainer.state, trainer.control)


def test_trackers_get_the_rows_and_the_trainers_history_does_not(tmp_path: Any, capsys: Any) -> None:
    trainer, tracker = make("distillation", tmp_path), Tracker()
    trainer.add_callback(tracker)
    callback = add_alignment(trainer, questions=held_out(2), on_error="raise")
    trainer.control.should_log = True
    first_evaluation(callback)
    assert trainer.state.log_history == []
    assert trainer.control.should_log, "the trainer's own row of this step is still to come"
    assert tracker.rows == callback.log_history
    assert tracker.rows[0]["opd_align/student/questions"] == 2
    assert tracker in trainer.callback_handler.callbacks
    printed = [line for line in capsys.readouterr().out.splitlines() if "opd-align" in line or "{" in line]
    assert len(printed) == 1, "one line, not the whole row"
    assert printed[0].startswith("opd-align at step 0: ")
    assert "2 questions" in printed[0]


class Acts(TrainerCallback):
    """A user's callback that takes every row for one of the trainer's."""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        control.should_training_stop = control.should_save = True
        if logs["loss"] < 1:
            control.should_evaluate = True


def test_other_callbacks_can_neither_stop_the_training_nor_lose_the_row(tmp_path: Any, caplog: Any) -> None:
    trainer, tracker = make("distillation", tmp_path), Tracker()
    trainer.add_callback(Acts())  # raises KeyError: 'loss'
    trainer.add_callback(tracker)
    callback = add_alignment(trainer, questions=held_out(1), on_error="raise")
    before, callbacks = dict(vars(trainer.control)), list(trainer.callback_handler.callbacks)
    with caplog.at_level(logging.WARNING, "opd_align"):
        first_evaluation(callback)
    assert vars(trainer.control) == before
    assert trainer.callback_handler.callbacks == callbacks
    assert tracker.rows == callback.log_history
    assert "Acts.on_log failed for the row of an evaluation: KeyError('loss')" in caplog.text
    assert callback.failures == 0


def test_the_history_has_the_row_even_if_logging_fails(tmp_path: Any, monkeypatch: Any) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("no connection")

    monkeypatch.setattr("opd_align.training.callback.log_to_trackers", fails)
    callback = add_alignment(make("distillation", tmp_path), questions=held_out(1))
    first_evaluation(callback)
    assert callback.failures == 1
    assert '"run": "step-000000"' in (callback.folder / "history.jsonl").read_text()


def test_no_demonstration_yet_is_a_state_and_not_a_failure(tmp_path: Any, caplog: Any, capsys: Any) -> None:
    def never(completions: Any, **columns: Any) -> list[float]:
        return [0.0] * len(completions)

    callback = add_alignment(
        make("grpo", tmp_path), questions=held_out(2), verifier=never, teachers=["Self-1C"], on_error="raise"
    )
    with caplog.at_level(logging.INFO, "opd_align"):
        first_evaluation(callback)
    (row,) = callback.log_history
    assert (row["opd_align/evaluation/failures"], row["opd_align/evaluation/without_demonstration"]) == (0, 1)
    assert not [record for record in caplog.records if record.exc_info or "Excluding" in record.message]
    assert "no result yet, the student could not write the demonstrations of Self-1C" in capsys.readouterr().out
    assert '"error": null, "waiting": "the student could not' in (callback.folder / "history.jsonl").read_text()


# -- what is optimized --------------------------------------------------------------------------------------------


class OwnLoss(DistillationTrainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        return 2 * super().compute_loss(*args, **kwargs)


class OwnGRPO(GRPOTrainer):
    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        return super()._compute_loss(model, inputs)


class SameLoss(DistillationTrainer):
    def log(self, *args: Any, **kwargs: Any) -> None:
        super().log(*args, **kwargs)


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: Any) -> dict[str, Any]:
    return {kind: make(kind, tmp_path_factory.mktemp(kind)) for kind in ("distillation", "grpo", "gkd")}


@pytest.fixture
def as_class(trainers: dict[str, Any], monkeypatch: Any) -> Any:
    """One of the trainers, as an instance of another class."""

    def of(kind: str, other: type) -> Any:
        monkeypatch.setattr(trainers[kind], "__class__", other)
        return trainers[kind]

    return of


def test_an_overridden_loss_is_logged_once(as_class: Any, caplog: Any) -> None:
    assert adapt_trainer(as_class("grpo", OwnGRPO)).unevaluated == (
        "_compute_loss() of OwnGRPO (evaluated as GRPOTrainer's)",
    )
    assert adapt_trainer(as_class("distillation", SameLoss)).unevaluated == ()
    trainer = as_class("distillation", OwnLoss)
    with caplog.at_level(logging.WARNING, "opd_align"):
        callback = AlignmentCallback(trainer, held_out(4), ARITHMETIC, budget=TINY)
    (record,) = caplog.records
    assert "OwnLoss optimizes more than what is evaluated (jsd_1)" in record.message
    assert "compute_loss() of OwnLoss" in record.message
    assert callback._unevaluated
    assert not AlignmentCallback(trainer, held_out(4), ARITHMETIC, objectives=[ReverseKL()])._unevaluated


def test_a_loss_that_is_replaced_is_noticed(trainers: dict[str, Any], monkeypatch: Any) -> None:
    trainer = trainers["distillation"]
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "compute_loss", lambda *args, **kwargs: 0.0, raising=False)
        assert "compute_loss()" in adapt_trainer(trainer).unevaluated[0]
    original = DistillationTrainer._compute_loss

    @wraps(original)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    monkeypatch.setattr(DistillationTrainer, "_compute_loss", patched)
    assert "_compute_loss()" in adapt_trainer(trainer).unevaluated[0]


def test_gmpo_is_not_taken_for_grpo(as_class: Any, trainers: dict[str, Any], monkeypatch: Any) -> None:
    from trl.experimental.gmpo import GMPOTrainer

    grpo = adapt_trainer(trainers["grpo"])
    assert (grpo.kind, grpo.objective) == ("GRPOTrainer", DrGRPO()), "TRL's default loss type, dapo"
    gmpo = adapt_trainer(as_class("grpo", GMPOTrainer))
    assert (gmpo.kind, gmpo.objective, gmpo.unevaluated) == ("GMPOTrainer", GRPO(), ())
    monkeypatch.setattr(gmpo.trainer.args, "beta", 0.04)
    assert adapt_trainer(gmpo.trainer).unevaluated == ("the KL penalty (beta=0.04)",)


def test_the_distillation_loss_of_a_gated_grpo_trainer(trainers: dict[str, Any], monkeypatch: Any) -> None:
    trainer = trainers["grpo"]
    runtime = SimpleNamespace(gate=Open(), verifier=verifier)
    monkeypatch.setattr(trainer, "_gate_runtime", runtime, raising=False)
    for beta, expected in ((0.5, GeneralisedJSD(0.5)), (1.0, ReverseKL())):
        monkeypatch.setattr(trainer, "distillation_beta", beta, raising=False)
        adapter = adapt_trainer(trainer)
        assert (adapter.objective, adapter.distillation) == (DrGRPO(), expected)
        assert adapter.unevaluated == ("that the advantages of incorrect completions are zero",)


def test_a_class_is_not_recognised_by_its_name(as_class: Any) -> None:
    from transformers import Trainer

    named = type("GRPOTrainer", (Trainer,), {})
    with pytest.raises(OpdAlignError, match="does not support GRPOTrainer: it is not from TRL"):
        adapt_trainer(object.__new__(named))


def test_every_other_trainer_of_trl_is_refused_with_a_reason_of_its_own() -> None:
    import importlib
    import pkgutil

    import trl.experimental
    from trl.trainer.base_trainer import _BaseTrainer

    for package in pkgutil.iter_modules(trl.experimental.__path__):
        if package.name not in ("harbor", "openreward"):  # need packages of their own, and have no trainer
            importlib.import_module(f"trl.experimental.{package.name}")
    for name in ("DPOTrainer", "KTOTrainer", "RewardTrainer", "SFTTrainer", "RLOOTrainer"):
        getattr(trl, name)
    from opd_align.training.adapters import SUPPORTED

    def subclasses(kind: type) -> set[type]:
        return {kind}.union(*map(subclasses, kind.__subclasses__()))

    kinds = {kind for kind in subclasses(_BaseTrainer) - {_BaseTrainer} if kind.__module__.startswith("trl.")}
    refused = sorted({kind.__name__ for kind in kinds} - set(SUPPORTED))
    assert {"OnlineDPOTrainer", "KTOTrainer", "DPOTrainer", "SFTTrainer", "RewardTrainer"} <= set(refused)
    for kind in kinds:
        if kind.__name__ in refused:
            with pytest.raises(OpdAlignError) as raised:
                adapt_trainer(object.__new__(kind))
            assert UNSUPPORTED[kind.__name__] in str(raised.value)
            assert "opd-align analyze --student" in str(raised.value)


# -- alignment with a gate ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def analysis() -> Any:
    family = ExactFamily.random(seed=3, n=5, length=40)
    teachers = [family.teacher(name, lambda world: world.tilted_teacher(strength=2.0)) for name in ("one", "two")]
    budget = Budget(initial=64, targeted=600, allocation="adaptive")
    settings = Settings([ReverseKL(), DrGRPO()], budget)
    return analyze(family, teachers, family.questions, family, settings=settings)


def rows_of(analysis: Any, teacher: str = "one") -> dict[str, Any]:
    nodes = analysis.nodes
    selected = np.array([name == teacher for name in nodes["teacher"].to_pylist()])
    return {name: np.array(nodes[name].to_pylist())[selected] for name in ("kl", "path_correct", "depth", "alignment")}


def verifier(completions: Any, **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def test_weights_of_gates_at_nodes(analysis: Any) -> None:
    rows = rows_of(analysis)
    threshold = float(np.median(rows["kl"]))
    expected = {
        Open(): np.ones(len(rows["kl"])),
        IncorrectOnly(verifier, correct_weight=0.25, unknown="drop"): np.where(rows["path_correct"], 0.25, 1.0),
        DivergenceAbove(threshold=np.float32(threshold)): rows["kl"].astype(np.float32) >= np.float32(threshold),
    }
    for gate, weight_N in expected.items():
        weights = gate_weights(gate, analysis)
        assert weights.keys() == {("one", "reverse_kl"), ("two", "reverse_kl")}, "the reward has no distillation loss"
        assert np.allclose(weights["one", "reverse_kl"], weight_N), gate.name


def test_measures_at_all_tokens(analysis: Any) -> None:
    """The world's vocabulary is small and nearly all of it is kept: what is left out hardly changes a measure."""
    seen: dict[str, Any] = {}

    def read(batch: Any) -> Any:
        seen.update(batch=batch, **{name: batch.measure(name) for name in ("kl", "js", "log_ratio")})
        return batch.mask_BT.float()

    gate_weights(FunctionGate(read), analysis)
    batch, own = seen["batch"], analysis.children.filter(analysis.children["own"])
    assert int(batch.mask_BT.sum()) == own.num_rows
    p, t = own["p"].to_numpy(), np.array(own["t"].to_pylist())[:, 1]  # `seen` is that of the last teacher
    assert np.allclose(np.sort(seen["log_ratio"][batch.mask_BT].numpy()), np.sort(np.log(t / p)), atol=1e-4)
    assert bool((seen["js"] <= np.log(2) + 1e-6).all())
    assert bool((seen["kl"] >= 0).all())


def test_a_gate_at_nodes_allows_for_the_rounding_of_the_evaluation(analysis: Any, monkeypatch: Any) -> None:
    seen = []
    gate = FunctionGate(lambda batch: seen.append(batch.eps) or batch.mask_BT)
    runtime = SimpleNamespace(gate=gate, eps=torch.finfo(torch.bfloat16).eps)
    trainer = SimpleNamespace(_gate_runtime=runtime)
    callback = SimpleNamespace(adapter=SimpleNamespace(trainer=trainer))
    assert AlignmentCallback._gate_weights(callback, analysis)  # type: ignore[arg-type]
    assert {*seen} == {runtime.eps}


def test_alignment_with_and_without_the_gate(analysis: Any) -> None:
    key = "opd_align/one/reverse_kl/"
    plain = logged_metrics(analysis)
    assert not [name for name in plain if "/gated/" in name]
    opened = logged_metrics(analysis, gate_weights(Open(), analysis))
    assert opened[f"{key}gated/alignment"] == pytest.approx(plain[f"{key}alignment/mean"])
    assert opened[f"{key}gated/signal"] == pytest.approx(plain[f"{key}oracle/full_signal"])
    gated = logged_metrics(analysis, gate_weights(IncorrectOnly(verifier, unknown="drop"), analysis))
    rows = rows_of(analysis)
    assert gated[f"{key}gated/kept"] == pytest.approx(1 - rows["path_correct"].mean(), abs=0.02)
    assert gated[f"{key}gated/alignment"] != pytest.approx(plain[f"{key}alignment/mean"])
    assert gated[f"{key}alignment/mean"] == plain[f"{key}alignment/mean"]
    quantile = logged_metrics(analysis, gate_weights(DivergenceAbove(quantile=0.9), analysis))
    assert 0 < quantile[f"{key}gated/kept"] < 1
    gate_weights(SignAgrees(verifier, unknown="drop") * DivergenceAbove(quantile=0.5), analysis)


def test_a_gate_that_cannot_be_applied_is_logged_once(analysis: Any, trainers: Any, monkeypatch: Any, caplog: Any):
    trainer = trainers["distillation"]
    callback = AlignmentCallback(trainer, held_out(4), ARITHMETIC, budget=TINY)

    def needs_more(batch: Any) -> Any:
        raise RuntimeError("no optimizer here")

    gate = FunctionGate(needs_more)
    monkeypatch.setattr(trainer, "_gate_runtime", SimpleNamespace(gate=gate, verifier=None, eps=1e-7), raising=False)
    with caplog.at_level(logging.WARNING, "opd_align"):
        assert callback._gate_weights(analysis) is None
        assert callback._gate_weights(analysis) is None
    (record,) = caplog.records
    assert "alignment with the gate needs_more is not logged" in record.message
    assert "no optimizer here" in record.message
