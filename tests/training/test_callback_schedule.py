"""The callback's schedule: resuming, demonstrations that are kept, skipped evaluations, files after a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from support.trainings import ARITHMETIC, add_alignment, held_out, make
from transformers import TrainerControl, TrainerState

from opd_align import AlignmentCallback
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


def test_a_resumed_training_continues_the_schedule(tmp_path):
    first = make("distillation", tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
    before = add_alignment(first, every_n_steps=3)
    first.train()
    assert [line["step"] for line in _history(before)] == [0, 3]
    state = json.loads((tmp_path / "checkpoint-2" / "opd_align.json").read_text())
    assert state["next_step"] == 3
    assert state["num_evaluations"] == 1
    assert state["latest"] == "step-000000"
    second = make("distillation", tmp_path, max_steps=7)
    after = add_alignment(second, every_n_steps=3)
    found = []
    after._evaluate, evaluate = lambda *given: (found.append(after.latest), evaluate(*given)), after._evaluate
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [line["step"] for line in _history(after)] == [0, 3, 3, 6]
    # As pandas: for Arrow, tables with unknown values (NaN) differ from themselves.
    stored = RunDirectory.load(tmp_path / "opd_align" / "step-000000")
    assert found[0].nodes.to_pandas().equals(stored.nodes.to_pandas())
    assert after.schedule.num_evaluations == 3
    assert after.schedule.evaluation_s > state["evaluation_s"] > 0


def _first_texts(callback: AlignmentCallback) -> dict[str, str]:
    return {name: found[0].text for name, found in callback.evaluator.demonstrations.by_question.items() if found}


def test_only_a_resumed_training_of_the_same_questions_reuses_demonstrations(tmp_path):
    def rows_of(questions: Any) -> list[dict[str, Any]]:
        return [{"prompt": ARITHMETIC.messages(each), "answer": each.answer} for each in questions]

    def started(step: int, questions: Any) -> AlignmentCallback:
        callback = add_alignment(
            make("distillation", tmp_path), questions=questions, teachers=["Self-1C"], every_n_steps=5
        )
        callback.on_train_begin(callback.adapter.trainer.args, TrainerState(global_step=step), TrainerControl())
        return callback

    rows, others = rows_of(held_out(2)), rows_of(held_out(4)[2:])
    first = started(0, rows)
    assert len(_first_texts(first)) == 2
    file = first.folder / "demonstrations.json"
    file.write_text(file.read_text().replace('"text": "', '"text": "Indeed. '))
    assert all(text.startswith("Indeed.") for text in _first_texts(started(2, rows)).values())
    assert not started(2, others).evaluator.demonstrations.by_question, (
        "rows without ids get the same ids, but these are other questions"
    )
    assert not any(text.startswith("Indeed.") for text in _first_texts(started(0, rows)).values())
    file.write_text("{")
    assert not started(2, rows).evaluator.demonstrations.by_question


def test_a_question_without_demonstrations_is_excluded_and_logged(tmp_path, caplog):
    def reward(completions: Any, answer: Any, **columns: Any) -> list[float]:
        return [float(answer[0] == held_out(1)[0].answer)] * len(completions)

    questions = held_out(2)
    assert questions[0].answer != questions[1].answer
    callback = add_alignment(make("distillation", tmp_path), questions=questions, verifier=reward, teachers=["Self-1C"])
    assert callback.evaluate()[0].questions["question"].to_pylist() == [questions[0].id]
    callback.evaluate()
    assert caplog.text.count(f"question {questions[1].id!r}: Self-1C: 0 of 1 correct responses") == 1


def test_demonstrations_that_could_not_be_written_are_tried_again(tmp_path):
    questions = held_out(3)
    learned = {questions[2].answer}

    def reward(completions: Any, answer: Any, **columns: Any) -> list[float]:
        return [float(answer[0] in learned)] * len(completions)

    callback = add_alignment(make("distillation", tmp_path), questions=questions, verifier=reward, teachers=["Self-1C"])

    def names() -> list[str]:
        return callback.evaluate()[0].questions["question"].to_pylist()

    assert names() == [questions[2].id]
    first = callback.evaluator.demonstrations.by_question[questions[2].id]
    learned.add(questions[0].answer)
    assert names() == [questions[2].id, questions[0].id], "earlier questions keep their place"
    assert callback.evaluator.demonstrations.by_question[questions[2].id] == first, "and their demonstrations"


def test_contexts_with_summaries_by_the_student(tmp_path):
    callback = add_alignment(
        make("distillation", tmp_path), questions=held_out(2), teachers=["Self-Sum-1C", "Self-1C1W"]
    )
    analysis, _ = callback.evaluate()
    assert set(analysis.nodes["teacher"].to_pylist()) == {"teacher", "Self-Sum-1C", "Self-1C1W"}
    for found in callback.evaluator.demonstrations.by_question.values():
        right, wrong = (next(each for each in found if each.correct is kind) for kind in (True, False))
        assert (right.correct, bool(right.summary)) == (True, True)
        assert (wrong.correct, wrong.summary) == (False, None), "no context uses its summary"


def test_a_small_evaluation_writes_demonstrations_of_its_questions_only(tmp_path):
    trainer = make("distillation", tmp_path)
    callback = add_alignment(trainer, questions=held_out(12), teachers=["Self-1C"], max_overhead=0.05)
    callback.on_train_begin(trainer.args, TrainerState(), TrainerControl())
    assert _history(callback)[0]["metrics"]["opd_align/evaluation/scale"] == pytest.approx(1 / 3)
    assert [question.id for question in held_out(4)] == list(callback.evaluator.demonstrations.by_question)
    assert callback.latest.questions["question"].to_pylist() == [question.id for question in held_out(4)]


def test_skipped_and_empty_evaluations_are_logged_once(tmp_path, caplog):
    trainer = make("distillation", tmp_path, max_steps=3)
    callback = add_alignment(trainer, verifier=lambda completions, **_: [-1.0] * len(completions), max_overhead=0.01)
    trainer.train()
    assert [line["step"] for line in _history(callback)] == [0]
    assert "opd_align/evaluation/interval" not in _history(callback)[0]["metrics"]
    assert caplog.text.count("Skipping evaluation at step 1 (would exceed max_overhead=0.01); next at about step") == 1
    assert caplog.text.count("Skipping evaluation") == 1
    assert caplog.text.count("no rollout is correct (values of a reward function of 0.5 and more mean correct)") == 1


def test_each_training_starts_a_new_schedule(tmp_path):
    trainer = make("distillation", tmp_path, max_steps=1)
    callback = add_alignment(trainer, questions=held_out(1), every_n_steps=5)
    trainer.train()
    trainer.train()
    assert [line["step"] for line in _history(callback)] == [0, 0]
    assert callback.schedule.num_evaluations == 1


def test_a_resumed_training_without_its_evaluations_continues(tmp_path, caplog):
    callback = add_alignment(make("distillation", tmp_path), every_n_steps=3)
    (tmp_path / "checkpoint-4").mkdir()
    known = {**callback.schedule.add_evaluation(3, 1.0, 1.0).state_dict(), "failures": 0, "latest": "step-000003"}
    (tmp_path / "checkpoint-4" / "opd_align.json").write_text(json.dumps(known))
    callback.on_train_begin(callback.adapter.trainer.args, TrainerState(global_step=4), TrainerControl())
    assert "Cannot read the latest evaluation before the checkpoint" in caplog.text
    assert (callback.latest, callback.schedule.next_step) == (None, 6)


@pytest.mark.parametrize("content", ['{"every_n_steps": 3, "next', "[]", "null", "3"])
def test_an_unreadable_schedule_starts_anew(content, tmp_path, caplog):
    callback = add_alignment(make("distillation", tmp_path), every_n_steps=3)
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "opd_align.json").write_text(content)
    callback.on_train_begin(callback.adapter.trainer.args, TrainerState(global_step=4), TrainerControl())
    assert "starting a new evaluation schedule" in caplog.text
    assert callback.schedule == OverheadLimit(3, None, len(held_out()), next_step=6, start_step=4)


def test_invalid_values_of_a_schedule_are_named_once_and_ignored(tmp_path, caplog):
    trainer = make("distillation", tmp_path)
    callback = add_alignment(trainer, every_n_steps=3, max_overhead=0.5)
    (tmp_path / "checkpoint-4").mkdir()
    known = callback.schedule.add_training(9.0).add_evaluation(3, 1.0, 2.0).state_dict()
    stored = {**known, "training_s": None, "last_step": "three", "failures": "many", "latest": 7}
    (tmp_path / "checkpoint-4" / "opd_align.json").write_text(json.dumps(stored))
    callback.on_train_begin(trainer.args, TrainerState(global_step=4), TrainerControl())
    lines = [record.getMessage() for record in caplog.records if "Ignoring invalid values" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].endswith("training_s=None, last_step='three', failures='many', latest=7")
    schedule = callback.schedule
    assert (schedule.next_step, schedule.num_evaluations, schedule.full_evaluation_s) == (6, 1, 2.0), "these are valid"
    assert (schedule.evaluation_s, schedule.start_step, schedule.last_step) == (0.0, 4, None)
    assert (callback.failures, callback.latest) == (0, None)
    callback.on_step_end(trainer.args, TrainerState(global_step=5), TrainerControl())
    assert schedule.add_training(1.0).training_s >= 1.0


def test_an_incomplete_line_after_a_crash_does_not_spoil_the_next(tmp_path):
    callback = AlignmentCallback(make("distillation", tmp_path), held_out(), ARITHMETIC)
    callback.folder.mkdir()
    (callback.folder / "history.jsonl").write_text('{"step": 0}\n{"step": 1, "metr')
    callback._append("history.jsonl", {"step": 2})
    callback._append("history.jsonl", {"step": 3})
    lines = (callback.folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in (lines[0], *lines[2:])] == [0, 2, 3]


def _history(callback: AlignmentCallback) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (callback.folder / "history.jsonl").read_text().splitlines()]
