"""The callback on TRL's trainers: no trace in the training, numbers to be made again, trouble that stays its own."""

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
from support.trainings import ARITHMETIC, KINDS, TINY, TOKENS, fresh, held_out, make, same_weights, trainer_rows
from transformers import TrainerCallback, TrainerControl, TrainerState

from opd_align import AlignmentCallback, OpdAlignError, Question
from opd_align.core.alignment import pairs_of
from opd_align.core.metric_registry import logged_metrics
from opd_align.runs.run_directory import RunDirectory
from opd_align.training.overhead import OverheadLimit

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def watch(trainer: Any, **given: Any) -> AlignmentCallback:
    options: dict[str, Any] = {"every_n_steps": 1, "max_overhead": None, "budget": TINY}
    questions, verifier = given.pop("questions", held_out()), given.pop("verifier", ARITHMETIC)
    callback = AlignmentCallback(trainer, questions, verifier, **(options | given))
    trainer.add_callback(callback)
    return callback


class _Dice(TrainerCallback):
    """What the generators would give next, at every step."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        numbers = np.random.get_state()  # noqa: NPY002
        self.seen.append((random.getstate(), numbers[1].tolist(), numbers[2], torch.get_rng_state().tolist()))


def trained(kind: str, folder: Path, **watching: Any) -> tuple[Any, list[Any], AlignmentCallback | None]:
    trainer, dice = make(kind, folder), _Dice()
    callback = watch(trainer, **watching) if watching else None
    trainer.add_callback(dice)
    trainer.train()
    return trainer, dice.seen, callback


@pytest.fixture(scope="module", params=KINDS)
def pair(request: Any, tmp_path_factory: Any) -> Any:
    """The same training without and with the callback."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    teachers = ["Self-1C"] if request.param == "grpo" else []
    alone = trained(request.param, folder / "alone")
    return alone, trained(request.param, folder / "watched", teachers=teachers, on_error="raise")


def test_a_watched_training_is_the_training_alone(pair):
    (alone, dice, _), (watched, other_dice, callback) = pair
    assert callback.governor.made == 4, "at the start and after each of three steps"
    assert trainer_rows(watched) == trainer_rows(alone)
    assert [row["loss"] for row in trainer_rows(alone) if "loss" in row]
    assert [row["grad_norm"] for row in trainer_rows(alone) if "grad_norm" in row]
    assert same_weights(watched.model, alone.model)
    assert not same_weights(watched.model, fresh("student")), "the training did something"
    assert other_dice == dice


def test_the_model_comes_back_as_it_was_lent(pair):
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
    watch(trainer, questions=held_out(1)).evaluate()
    assert not torch._dynamo.utils.counters["frames"]


def test_every_logged_number_can_be_made_again_from_its_run_directory(pair):
    _, (watched, _, callback) = pair
    lines = [json.loads(line) for line in (callback.folder / "history.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    logged = [row for row in watched.state.log_history if "opd_align/student/pass_rate" in row]
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


def test_teachers_and_objectives_are_the_trainers_own(pair):
    _, (watched, _, callback) = pair
    names = {
        "GKDTrainer": [("teacher", "jsd_0.5")],
        "DistillationTrainer": [("teacher", "jsd_1")],
        "GRPOTrainer": [("reward", "dr_grpo"), ("Self-1C", "reverse_kl")],
    }
    assert pairs_of(callback.latest.children) == names[type(watched).__name__]
    assert callback.host.sampling.temperature == 0.9
    assert callback.host.sampling.max_tokens == TOKENS


def test_prompts_are_those_that_the_trainer_would_write(tmp_path):
    trainer = make("grpo", tmp_path, chat_template_kwargs={"enable_thinking": False})
    callback = AlignmentCallback(trainer, held_out(), ARITHMETIC)
    prompting = callback.evaluator.held_out.prompting(callback.evaluator.chat)
    ours = [list(prompting(question)) for question in held_out()]
    theirs = trainer._tokenize_prompts([ARITHMETIC.messages(question) for question in held_out()])[0]
    assert ours == theirs
    assert callback.evaluator.chat.options == {"enable_thinking": False}


# -- any reward function judges --------------------------------------------------------------------------------


def _judged(folder: Path, verifier: Any, questions: Any = None) -> AlignmentCallback:
    asked = [{"prompt": ARITHMETIC.messages(each), "answer": int(each.answer), "id": 7 + at, "completion": "unread"}
             for at, each in enumerate(held_out(2))]  # fmt: skip
    callback = watch(make("distillation", folder), questions=questions or asked, verifier=verifier)
    callback.evaluate()
    return callback


def test_a_reward_function_is_called_as_the_trainer_calls_it(tmp_path):
    seen: list[Any] = []

    def reward(prompts: Any, completions: Any, completion_ids: Any, trainer_state: Any, **columns: Any) -> list[float]:
        seen.append(
            (completions[0], trainer_state, {name: value[0] for name, value in columns.items() if "log" not in name})
        )
        return [1.0] * len(completions)

    callback = _judged(tmp_path, reward)
    (message,), state, columns = seen[0]
    assert message["role"] == "assistant"
    assert state is callback.host.trainer.state
    assert columns == {"answer": int(held_out(1)[0].answer), "id": 7}, "as the row has them"


def test_a_question_that_is_asked_in_a_conversation_is_answered_in_one(tmp_path):
    def reward(completions: Any, answer: Any, **columns: Any) -> list[float]:
        return [float(gold in said[0]["content"]) for said, gold in zip(completions, answer, strict=True)]

    _judged(tmp_path, reward, held_out(2))


def test_outcomes_by_another_function_of_the_same_name_are_not_taken_for_its_own(tmp_path):
    def judge(worth: float) -> Any:
        return lambda completions, **columns: [worth] * len(completions)

    first, second = (_judged(tmp_path, judge(worth)) for worth in (1.0, 0.0))
    runs = [RunDirectory.load(first.folder / name).questions for name in ("step-000000", "step-000000-2")]
    assert min(runs[0]["pass_rate"].to_pylist()) > 0.9
    assert max(runs[1]["pass_rate"].to_pylist()) == 0
    assert second.evaluate()[1] == "step-000000-2", "its own are"


def test_a_reward_function_may_be_asynchronous(tmp_path):
    async def reward(completions: Any, **columns: Any) -> list[float]:
        return [1.0] * len(completions)

    async def in_a_notebook() -> AlignmentCallback:
        return _judged(tmp_path, reward)

    graded = RunDirectory.load(asyncio.run(in_a_notebook()).folder / "step-000000").questions
    assert min(graded["pass_rate"].to_pylist()) > 0.9, "all but what was cut off"


# -- what goes wrong stays here --------------------------------------------------------------------------------


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


TROUBLE = {
    "a verifier that raises": "the verifier broke",
    "a teacher that gives NaN": "'broken'.*NaN",
    "a full disk": "No space left on device",
    "a callback that raises": "ZeroDivisionError",
}


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: Any) -> Any:
    torch.set_num_threads(1)
    return trained("distillation", tmp_path_factory.mktemp("unwatched"))


@pytest.mark.parametrize("trouble", TROUBLE)
def test_trouble_is_logged_and_counted_and_training_ends_as_it_would_have(
    trouble, unwatched, tmp_path, monkeypatch, caplog
):
    alone, dice, _ = unwatched
    with caplog.at_level(logging.WARNING, "opd_align"):
        watched, other_dice, callback = trained("distillation", tmp_path / "watched", **_broken(trouble, monkeypatch))
    assert same_weights(watched.model, alone.model)
    assert trainer_rows(watched) == trainer_rows(alone)
    assert other_dice == dice
    assert callback.failures == 4
    counted = [
        row["opd_align/evaluation/failures"]
        for row in watched.state.log_history
        if "opd_align/evaluation/failures" in row
    ]
    assert counted == [1, 2, 3, 4]
    if trouble != "a full disk":
        lines = [json.loads(line) for line in (callback.folder / "history.jsonl").read_text().splitlines()]
        assert all(line["run"] is None for line in lines)

    assert all(
        re.search(TROUBLE[trouble], str(record.message)) for record in caplog.records if "failed" in record.message
    )
    assert len([record for record in caplog.records if "failed" in record.message]) == 4


def test_a_question_that_does_not_fit_is_left_out_and_named(unwatched, tmp_path, monkeypatch, caplog):
    alone, _, _ = unwatched
    with caplog.at_level(logging.WARNING, "opd_align"):
        watched, _, callback = trained("distillation", tmp_path / "watched", **_broken("long", monkeypatch))
    assert "'long' is left out" in caplog.text
    assert callback.failures == 0
    assert callback.latest.questions["question"].to_pylist() == [held_out(1)[0].id]
    assert same_weights(watched.model, alone.model)


def test_failures_can_be_asked_to_end_the_training(tmp_path):
    trainer = make("distillation", tmp_path)
    watch(trainer, verifier=_raises, on_error="raise")
    with pytest.raises(OpdAlignError, match="the verifier broke"):
        trainer.train()
    assert trainer.model.training or trainer.state.global_step == 0


# -- the schedule ----------------------------------------------------------------------------------------------


def test_a_resumed_training_goes_on_with_the_schedule(tmp_path):
    first = make("distillation", tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    before = watch(first, every_n_steps=3)
    first.train()
    assert [line["step"] for line in _history(before)] == [0, 3]
    state = json.loads((tmp_path / "checkpoint-2" / "opd_align.json").read_text())
    assert state["due"] == 3
    assert state["made"] == 1
    assert state["latest"] == "step-000000"
    second = make("distillation", tmp_path, max_steps=7)
    after = watch(second, every_n_steps=3)
    found = []
    after._evaluate, evaluate = lambda *given: (found.append(after.latest), evaluate(*given)), after._evaluate
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [line["step"] for line in _history(after)] == [0, 3, 3, 6]
    assert found[0].nodes.equals(RunDirectory.load(tmp_path / "opd_align" / "step-000000").nodes)
    assert after.governor.made == 3
    assert after.governor.spent_s > state["spent_s"] > 0


def _shown(callback: AlignmentCallback) -> dict[str, str]:
    return {name: found[0].text for name, found in callback.evaluator.showing.found.items() if found}


def test_a_resumed_training_shows_what_it_showed_but_no_other_training_does(tmp_path):
    def rows_of(questions: Any) -> list[dict[str, Any]]:
        return [{"prompt": ARITHMETIC.messages(each), "answer": each.answer} for each in questions]

    def begun(step: int, asked: Any) -> AlignmentCallback:
        callback = watch(make("distillation", tmp_path), questions=asked, teachers=["Self-1C"], every_n_steps=5)
        callback.on_train_begin(callback.host.trainer.args, TrainerState(global_step=step), TrainerControl())
        return callback

    asked, others = rows_of(held_out(2)), rows_of(held_out(4)[2:])
    first = begun(0, asked)
    assert len(_shown(first)) == 2
    file = first.folder / "demonstrations.json"
    file.write_text(file.read_text().replace('"text": "', '"text": "Indeed. '))
    assert all(text.startswith("Indeed.") for text in _shown(begun(2, asked)).values())
    assert not begun(2, others).evaluator.showing.found, "the rows have no ids: the same names, other questions"
    assert not any(text.startswith("Indeed.") for text in _shown(begun(0, asked)).values())
    file.write_text("{")
    assert not begun(2, asked).evaluator.showing.found


def test_a_question_without_demonstrations_is_left_out_and_named(tmp_path, caplog):
    def reward(completions: Any, answer: Any, **columns: Any) -> list[float]:
        return [float(answer[0] == held_out(1)[0].answer)] * len(completions)

    asked = held_out(2)
    assert asked[0].answer != asked[1].answer
    callback = watch(make("distillation", tmp_path), questions=asked, verifier=reward, teachers=["Self-1C"])
    assert callback.evaluate()[0].questions["question"].to_pylist() == [asked[0].id]
    callback.evaluate()
    assert caplog.text.count(f"{asked[1].id!r} is left out: Self-1C: 0 of 1 correct responses") == 1


def test_what_the_student_could_not_write_it_is_asked_for_again(tmp_path):
    asked = held_out(3)
    learned = {asked[2].answer}

    def reward(completions: Any, answer: Any, **columns: Any) -> list[float]:
        return [float(answer[0] in learned)] * len(completions)

    callback = watch(make("distillation", tmp_path), questions=asked, verifier=reward, teachers=["Self-1C"])

    def names() -> list[str]:
        return callback.evaluate()[0].questions["question"].to_pylist()

    assert names() == [asked[2].id]
    shown = callback.evaluator.showing.found[asked[2].id]
    learned.add(asked[0].answer)
    assert names() == [asked[2].id, asked[0].id], "what was asked before stays in its place"
    assert callback.evaluator.showing.found[asked[2].id] == shown, "and is shown what it was shown"


def test_a_context_may_show_summaries_by_the_student(tmp_path):
    callback = watch(make("distillation", tmp_path), questions=held_out(2), teachers=["Self-Sum-1C", "Self-1C1W"])
    analysis, _ = callback.evaluate()
    assert set(analysis.nodes["teacher"].to_pylist()) == {"teacher", "Self-Sum-1C", "Self-1C1W"}
    for right, wrong in callback.evaluator.showing.found.values():
        assert (right.correct, bool(right.summary)) == (True, True)
        assert (wrong.correct, wrong.summary) == (False, None), "nobody shows it summarised"


def test_a_small_evaluation_of_many_questions_writes_demonstrations_of_few(tmp_path):
    trainer = make("distillation", tmp_path)
    callback = watch(trainer, questions=held_out(12), teachers=["Self-1C"], max_overhead=0.05)
    callback.on_train_begin(trainer.args, TrainerState(), TrainerControl())
    assert _history(callback)[0]["metrics"]["opd_align/evaluation/scale"] == 0.125
    assert [question.id for question in held_out(2)] == list(callback.evaluator.showing.found)
    assert callback.latest.questions["question"].to_pylist() == [question.id for question in held_out(2)]


def test_what_is_put_off_or_empty_is_said_once(tmp_path, caplog):
    trainer = make("distillation", tmp_path, max_steps=3)
    callback = watch(trainer, verifier=lambda completions, **_: [-1.0] * len(completions), max_overhead=0.01)
    trainer.train()
    assert [line["step"] for line in _history(callback)] == [0]
    assert "opd_align/evaluation/interval" not in _history(callback)[0]["metrics"]
    assert caplog.text.count("the evaluation due at step 1 would take more than max_overhead=0.01") == 1
    assert caplog.text.count("put off") == 1
    assert caplog.text.count("no rollout is correct (of a reward function's values, 0.5 and more mean correct)") == 1


def test_each_training_has_a_schedule_of_its_own(tmp_path):
    trainer = make("distillation", tmp_path, max_steps=1)
    callback = watch(trainer, questions=held_out(1), every_n_steps=5)
    trainer.train()
    trainer.train()
    assert [line["step"] for line in _history(callback)] == [0, 0]
    assert callback.governor.made == 1


def test_a_resumed_training_whose_evaluations_are_gone_goes_on(tmp_path, caplog):
    callback = watch(make("distillation", tmp_path), every_n_steps=3)
    (tmp_path / "checkpoint-4").mkdir()
    known = {**callback.governor.evaluated(3, 1.0, 1.0).state(), "failures": 0, "latest": "step-000003"}
    (tmp_path / "checkpoint-4" / "opd_align.json").write_text(json.dumps(known))
    callback.on_train_begin(callback.host.trainer.args, TrainerState(global_step=4), TrainerControl())
    assert "the latest evaluation before the checkpoint cannot be read" in caplog.text
    assert (callback.latest, callback.governor.due) == (None, 6)


@pytest.mark.parametrize("content", ['{"every": 3, "du', "[]", '{"every": 3}'])
def test_a_schedule_that_cannot_be_read_begins_anew(content, tmp_path, caplog):
    callback = watch(make("distillation", tmp_path), every_n_steps=3)
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "opd_align.json").write_text(content)
    callback.on_train_begin(callback.host.trainer.args, TrainerState(global_step=4), TrainerControl())
    assert "the schedule begins anew" in caplog.text
    assert callback.governor == OverheadLimit(3, None, len(held_out()), due=6, since=4)


def test_a_line_that_a_crash_left_half_written_takes_no_other_with_it(tmp_path):
    callback = AlignmentCallback(make("distillation", tmp_path), held_out(), ARITHMETIC)
    callback.folder.mkdir()
    (callback.folder / "history.jsonl").write_text('{"step": 0}\n{"step": 1, "metr')
    callback._append("history.jsonl", {"step": 2})
    callback._append("history.jsonl", {"step": 3})
    lines = (callback.folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in (lines[0], *lines[2:])] == [0, 2, 3]


def _history(callback: AlignmentCallback) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (callback.folder / "history.jsonl").read_text().splitlines()]


# -- what is refused, at once ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"every_n_steps": 0}, "at least 1"),
        ({"max_overhead": 0.0}, "share of the wall time"),
        ({"on_error": "ignore"}, "'log' or 'raise'"),
        ({"teachers": ["Self-1D"]}, "did you mean 'Self-1C'"),
        ({"teachers": [3]}, "neither a context"),
        ({"teachers": "Self-1D"}, "did you mean 'Self-1C'"),
        (
            {"questions": [{"prompt": [{"role": "system", "content": "?"}], "answer": "1"}]},
            "no user message",
        ),
        ({"teachers": ["Self-1C (source)"]}, "the student itself writes them"),
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
        ({"budget": {"targeted": 100}}, "budget is a Budget"),
        ({"objectives": ["reverse_kl"]}, "such as opd_align.ReverseKL"),
        ({"questions": [Question("long", "How many? " * 400, "3")]}, "no held-out question can be asked"),
    ],
)
def test_what_cannot_work_is_refused_before_training(given, words, tmp_path):
    trainer = make("distillation", tmp_path)
    with pytest.raises(OpdAlignError, match=words):
        watch(trainer, **given)


def test_a_teacher_of_another_tokenizer_is_refused_before_training(tmp_path):
    trainer = make("distillation", tmp_path)
    other = fresh("teacher")
    other.resize_token_embeddings(len(trainer.processing_class) - 1)
    with pytest.raises(OpdAlignError, match=r"'other' knows .* must share the student's tokenizer"):
        watch(trainer, teachers={"other": other})


def test_a_trainer_has_one_such_callback(tmp_path):
    trainer = make("distillation", tmp_path)
    watch(trainer)
    with pytest.raises(OpdAlignError, match="has an AlignmentCallback"):
        watch(trainer)
    trainer.remove_callback(AlignmentCallback)
    watch(trainer)


def test_a_student_that_cannot_sample_here_is_refused_before_training(tmp_path):
    student = fresh("student", sliding_window=16)
    student.config.layer_types = ["sliding_attention"] * student.config.num_hidden_layers
    with pytest.raises(OpdAlignError, match="every layer must attend to the whole context"):
        watch(make("distillation", tmp_path, student=student))


def test_trainers_that_cannot_be_served_are_refused_with_the_reason(tmp_path):
    from support.trainings import conversations, tokenizer
    from trl import SFTConfig, SFTTrainer

    sft = SFTTrainer(
        fresh("student"),
        SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to=[]),
        train_dataset=conversations(4),
        processing_class=tokenizer(),
    )
    with pytest.raises(OpdAlignError, match="cannot serve SFTTrainer: it has no teacher"):
        AlignmentCallback(sft, held_out(), ARITHMETIC)
    odd = make("distillation", tmp_path, repetition_penalty=1.2)
    with pytest.raises(OpdAlignError, match=r"repetition_penalty=1\.2"):
        AlignmentCallback(odd, held_out(), ARITHMETIC)
