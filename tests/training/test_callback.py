"""The callback on TRL's trainers: training stays bit-identical, numbers are reproducible, failures do no harm."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import random
import re
from math import isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.logged import logged_metrics
from support.trainings import (
    ARITHMETIC,
    KINDS,
    TOKENS,
    add_alignment,
    fresh,
    held_out,
    make,
    same_weights,
    trainer_rows,
)
from transformers import TrainerCallback

from opd_align import AlignmentCallback, OpdAlignError, Question
from opd_align.core.alignment import pairs_of
from opd_align.runs.run_directory import RunDirectory

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


class _RngStates(TrainerCallback):
    """Records the states of the random number generators at every step."""

    def __init__(self) -> None:
        self.states: list[Any] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        numpy_state = np.random.get_state()  # noqa: NPY002
        torch_state = torch.get_rng_state().tolist()
        self.states.append((random.getstate(), numpy_state[1].tolist(), numpy_state[2], torch_state))


def trained(kind: str, folder: Path, **callback_options: Any) -> tuple[Any, list[Any], AlignmentCallback | None]:
    trainer, recorder = make(kind, folder), _RngStates()
    callback = add_alignment(trainer, **callback_options) if callback_options else None
    trainer.add_callback(recorder)
    trainer.train()
    return trainer, recorder.states, callback


@pytest.fixture(scope="module", params=KINDS)
def pair(request: Any, tmp_path_factory: Any) -> Any:
    """The same training without and with the callback."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    teachers = ["Self-1C"] if request.param == "grpo" else []
    without = trained(request.param, folder / "without")
    return without, trained(request.param, folder / "with", teachers=teachers, on_error="raise")


def test_training_with_the_callback_is_bit_identical(pair):
    (alone, rng_states, _), (watched, other_rng_states, callback) = pair
    assert callback.schedule.num_evaluations == 4, "at the start and after each of three steps"
    assert trainer_rows(watched) == trainer_rows(alone)
    assert [row["loss"] for row in trainer_rows(alone) if "loss" in row]
    assert [row["grad_norm"] for row in trainer_rows(alone) if "grad_norm" in row]
    assert same_weights(watched.model, alone.model)
    assert not same_weights(watched.model, fresh("student")), "training must change the weights"
    assert other_rng_states == rng_states


def test_the_model_state_is_restored(pair):
    (alone, _, _), (watched, _, _) = pair
    assert [module.training for module in watched.model.modules()] == [
        module.training for module in alone.model.modules()
    ]
    assert watched.model.is_gradient_checkpointing == alone.model.is_gradient_checkpointing
    assert watched.model.config.use_cache == alone.model.config.use_cache
    assert watched.model.config._attn_implementation == alone.model.config._attn_implementation
    assert watched.processing_class.padding_side == alone.processing_class.padding_side
    assert dict(watched._metrics["train"]) == dict(alone._metrics["train"]) == {}


def test_a_compiled_student_is_not_compiled_for_evaluations(tmp_path):
    trainer = make("distillation", tmp_path)
    trainer.model_wrapped = torch.compile(trainer.model, backend="eager")
    torch._dynamo.utils.counters.clear()
    add_alignment(trainer, questions=held_out(1)).evaluate()
    assert not torch._dynamo.utils.counters["frames"]


def test_every_logged_number_can_be_recomputed_from_its_run_directory(pair):
    _, (_, _, callback) = pair
    lines = [json.loads(line) for line in (callback.folder / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    logged = callback.log_history
    assert [row["step"] for row in logged] == [0, 1, 2, 3]
    assert sum(row["opd_align/student/nodes"] for row in logged) > 0
    assert any("alignment/mean" in key for row in logged for key in row)
    for line, row in zip(lines, logged, strict=True):
        again = logged_metrics(RunDirectory.load(callback.folder / line["run"]))
        assert {key: value for key, value in again.items() if isfinite(value)}.items() <= row.items()
        assert {key: value if isfinite(value) else None for key, value in again.items()}.items() <= line[
            "metrics"
        ].items()
    cost = {f"opd_align/evaluation/{name}" for name in ("seconds", "overhead_share", "scale")}
    assert cost <= logged[0].keys()


def test_default_teachers_and_objectives_are_those_of_the_trainer(pair):
    _, (watched, _, callback) = pair
    names = {
        "GKDTrainer": [("teacher", "jsd_0.5")],
        "DistillationTrainer": [("teacher", "jsd_1")],
        "GRPOTrainer": [("reward", "dr_grpo"), ("Self-1C", "reverse_kl")],
    }
    assert pairs_of(callback.latest.children) == names[type(watched).__name__]
    assert callback.adapter.sampling.temperature == 0.9
    assert callback.adapter.sampling.max_tokens == TOKENS


def test_prompts_are_those_of_the_trainer(tmp_path):
    trainer = make("grpo", tmp_path, chat_template_kwargs={"enable_thinking": False})
    callback = AlignmentCallback(trainer, held_out(), ARITHMETIC)
    prompting = callback.evaluator.held_out.prompting(callback.evaluator.chat)
    ours = [list(prompting(question)) for question in held_out()]
    theirs = trainer._tokenize_prompts([ARITHMETIC.messages(question) for question in held_out()])[0]
    assert ours == theirs
    assert callback.evaluator.chat.options == {"enable_thinking": False}


# -- reward functions as verifiers -----------------------------------------------------------------------------


def _evaluated(folder: Path, verifier: Any, questions: Any = None) -> AlignmentCallback:
    rows = [{"prompt": ARITHMETIC.messages(each), "answer": int(each.answer), "id": 7 + at, "completion": "unused"}
            for at, each in enumerate(held_out(2))]  # fmt: skip
    callback = add_alignment(make("distillation", folder), questions=questions or rows, verifier=verifier)
    callback.evaluate()
    return callback


def test_a_reward_function_is_called_as_the_trainer_calls_it(tmp_path):
    calls: list[Any] = []

    def reward(prompts: Any, completions: Any, completion_ids: Any, trainer_state: Any, **columns: Any) -> list[float]:
        calls.append(
            (completions[0], trainer_state, {name: value[0] for name, value in columns.items() if "log" not in name})
        )
        return [1.0] * len(completions)

    callback = _evaluated(tmp_path, reward)
    (message,), state, columns = calls[0]
    assert message["role"] == "assistant"
    assert state is callback.adapter.trainer.state
    assert columns == {"answer": int(held_out(1)[0].answer), "id": 7}, "values as in the row"


def test_completions_of_conversational_prompts_are_messages(tmp_path):
    def reward(completions: Any, answer: Any, **columns: Any) -> list[float]:
        return [float(gold in message[0]["content"]) for message, gold in zip(completions, answer, strict=True)]

    _evaluated(tmp_path, reward, held_out(2))


def test_outcomes_of_another_function_with_the_same_name_are_not_reused(tmp_path):
    def constant(value: float) -> Any:
        return lambda completions, **columns: [value] * len(completions)

    first, second = (_evaluated(tmp_path, constant(value)) for value in (1.0, 0.0))
    runs = [RunDirectory.load(first.folder / name).questions for name in ("step-000000", "step-000000-2")]
    assert min(runs[0]["pass_rate"].to_pylist()) > 0.9
    assert max(runs[1]["pass_rate"].to_pylist()) == 0
    assert second.evaluate()[1] == "step-000000-2", "its own outcomes are reused"


def test_a_reward_function_may_be_asynchronous(tmp_path):
    async def reward(completions: Any, **columns: Any) -> list[float]:
        return [1.0] * len(completions)

    async def in_a_notebook() -> AlignmentCallback:
        return _evaluated(tmp_path, reward)

    graded = RunDirectory.load(asyncio.run(in_a_notebook()).folder / "step-000000").questions
    assert min(graded["pass_rate"].to_pylist()) > 0.9, "all but the truncated ones"


# -- failures ------------------------------------------------------------------------------------------------


def _raises(**columns: Any) -> list[float]:
    raise RuntimeError("the verifier broke")


class _Nan(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def forward(self, hidden: Any) -> Any:
        return self.inner(hidden) * nan

    @property
    def weight(self) -> Any:
        return self.inner.weight


def _nan_teacher() -> Any:
    teacher = fresh("teacher")
    teacher.lm_head = _Nan(teacher.lm_head)
    return teacher


def _broken(name: str, monkeypatch: Any) -> dict[str, Any]:
    if name == "a verifier that raises":
        return {"verifier": _raises}
    if name == "a teacher that gives NaN":
        return {"teachers": {"broken": _nan_teacher()}}
    if name == "a full disk":

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("opd_align.runs.filesystem.os.fsync", full)
        return {"teachers": []}
    if name == "a callback that raises":
        monkeypatch.setattr("opd_align.runs.execute.combine_results", lambda *args: 1 / 0)
        return {"teachers": []}
    return {"questions": [*held_out(1), Question("long", "How many? " * 400, "3")]}


FAILURES = {
    "a verifier that raises": "the verifier broke",
    "a teacher that gives NaN": "'broken'.*NaN",
    "a full disk": "No space left on device",
    "a callback that raises": "ZeroDivisionError",
}


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: Any) -> Any:
    torch.set_num_threads(1)
    return trained("distillation", tmp_path_factory.mktemp("unwatched"))


@pytest.mark.parametrize("failure", FAILURES)
def test_failures_are_logged_and_counted_and_do_not_change_the_training(
    failure, unwatched, tmp_path, monkeypatch, caplog
):
    alone, rng_states, _ = unwatched
    with caplog.at_level(logging.WARNING, "opd_align"):
        watched, other_rng_states, callback = trained("distillation", tmp_path, **_broken(failure, monkeypatch))
    assert same_weights(watched.model, alone.model)
    assert trainer_rows(watched) == trainer_rows(alone)
    assert other_rng_states == rng_states
    assert callback.failures == 4
    assert [row["opd_align/evaluation/failures"] for row in callback.log_history] == [1, 2, 3, 4]
    if failure != "a full disk":
        lines = [json.loads(line) for line in (callback.folder / "history.jsonl").read_text().splitlines()]
        assert all(line["run"] is None for line in lines)

    assert all(
        re.search(FAILURES[failure], str(record.message)) for record in caplog.records if "failed" in record.message
    )
    assert len([record for record in caplog.records if "failed" in record.message]) == 4


def test_a_question_that_is_too_long_is_excluded_and_logged(unwatched, tmp_path, monkeypatch, caplog):
    alone, _, _ = unwatched
    with caplog.at_level(logging.WARNING, "opd_align"):
        watched, _, callback = trained("distillation", tmp_path / "watched", **_broken("long", monkeypatch))
    assert "Excluding held-out question 'long'" in caplog.text
    assert callback.failures == 0
    assert callback.latest.questions["question"].to_pylist() == [held_out(1)[0].id]
    assert same_weights(watched.model, alone.model)


def test_on_error_raise_ends_the_training_with_the_model_restored(tmp_path):
    def fails_after_a_step(completions: Any, trainer_state: Any, **columns: Any) -> list[float]:
        if trainer_state.global_step:
            raise RuntimeError("the verifier broke")
        return [1.0] * len(completions)

    trainer = make("distillation", tmp_path)
    callback = add_alignment(trainer, verifier=fails_after_a_step, on_error="raise")
    with pytest.raises(OpdAlignError, match="the verifier broke"):
        trainer.train()
    assert (trainer.state.global_step, callback.failures) == (1, 1)
    assert all(module.training for module in trainer.model.modules())


# -- invalid arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every_n_steps": 0}, "at least 1"),
        ({"max_overhead": 0.0}, "share of the wall time"),
        ({"on_error": "ignore"}, "must be 'log' or 'raise'"),
        ({"teachers": ["Self-3D"]}, "did you mean 'Self-3C'"),
        ({"teachers": [3]}, "neither a context"),
        ({"teachers": "Self-3D"}, "did you mean 'Self-3C'"),
        (
            {"questions": [{"prompt": [{"role": "system", "content": "?"}], "answer": "1"}]},
            "no user message",
        ),
        ({"teachers": ["Self-1C (source)"]}, "only responses of the student itself"),
        ({"questions": []}, "no held-out questions"),
        ({"questions": [Question("a", "?", None)]}, "'a' has no answer"),
        ({"questions": [Question("a", "?", "unreadable")]}, "'a' has no answer"),
        ({"questions": [Question("a", "?", "1"), Question("a", "?", "1")]}, "more than once"),
        ({"questions": [{"text": "?"}]}, "neither prompt nor messages"),
        ({"questions": ["?"]}, "expected opd_align.Question"),
        ({"verifier": 3}, "verifier must be"),
        ({"verifier": torch.nn.Linear(1, 1)}, "the verifier is a model"),
        ({"verifier": lambda completions, solution, **_: []}, "'solution'.*It is given .*prompts, completions"),
        ({"verifier": lambda prompts, completions: []}, r"end its parameters with \*\*columns"),
        ({"budget": {"targeted": 100}}, "budget must be a Budget"),
        ({"objectives": ["reverse_kl"]}, "such as opd_align.ReverseKL"),
        ({"questions": [Question("long", "How many? " * 400, "3")]}, "no held-out question is usable"),
    ],
)
def test_invalid_arguments_are_refused_before_training(options, message, tmp_path):
    trainer = make("distillation", tmp_path)
    with pytest.raises(OpdAlignError, match=message):
        add_alignment(trainer, **options)


def test_a_teacher_of_another_tokenizer_is_refused_before_training(tmp_path):
    trainer = make("distillation", tmp_path)
    other = fresh("teacher")
    other.resize_token_embeddings(len(trainer.processing_class) - 1)
    with pytest.raises(OpdAlignError, match=r"'other' has a vocabulary of .* must share the student's tokenizer"):
        add_alignment(trainer, teachers={"other": other})


def test_a_trainer_has_at_most_one_alignment_callback(tmp_path):
    trainer = make("distillation", tmp_path)
    add_alignment(trainer)
    with pytest.raises(OpdAlignError, match="already has an AlignmentCallback"):
        add_alignment(trainer)
    trainer.remove_callback(AlignmentCallback)
    add_alignment(trainer)


def test_a_student_with_sliding_window_attention_is_refused_before_training(tmp_path):
    student = fresh("student", sliding_window=16)
    student.config.layer_types = ["sliding_attention"] * student.config.num_hidden_layers
    with pytest.raises(OpdAlignError, match="every layer must attend to the whole context"):
        add_alignment(make("distillation", tmp_path, student=student))


def test_unsupported_trainers_are_refused_with_the_reason(tmp_path):
    from support.trainings import conversations, tokenizer
    from trl import SFTConfig, SFTTrainer

    sft = SFTTrainer(
        fresh("student"),
        SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[]),
        train_dataset=conversations(4),
        processing_class=tokenizer(),
    )
    with pytest.raises(OpdAlignError, match="does not support SFTTrainer: it learns from completions in a data set"):
        AlignmentCallback(sft, held_out(), ARITHMETIC)
    odd = make("distillation", tmp_path, repetition_penalty=1.2)
    with pytest.raises(OpdAlignError, match=r"repetition_penalty=1\.2"):
        AlignmentCallback(odd, held_out(), ARITHMETIC)
