"""A study: configurations become objects, mistakes are found before models are loaded, commands run end to end."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from support.scripted import CHAT, RIGHT, TASK, WRONG, ScriptedSampler, demonstration_writers
from support.small_chat import CHATML, END, SWITCHED, byte_tokenizer, save_model, word_tokenizer

import opd_align.study.build
from opd_align.backends.scoring import TokenizerMismatch
from opd_align.cli.main import main
from opd_align.core.metrics import teacher_difference
from opd_align.report.html import write_report
from opd_align.study.build import Study
from opd_align.study.config import read_config
from opd_align.study.prepared import SkippedQuestionsWarning
from opd_align.teachers.contexts import CONTEXTS, Context, ContextPrompt
from opd_align.teachers.screening import Screener, load_screening
from opd_align.types import OpdAlignError, Question

PENS = [
    {"id": "ann", "question": "Ann two pens", "answer": "2"},
    {"id": "bob", "question": "Bob one pens", "answer": "1"},
    {"id": "cid", "question": "Cid pens", "answer": "3"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", seed=3)


@pytest.fixture
def data(tmp_path: Path) -> str:
    file = tmp_path / "pens.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in PENS), encoding="utf-8")
    return str(file)


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test if a model is loaded."""

    def load(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(opd_align.study.build, "load_model", load)
    monkeypatch.setattr(opd_align.study.build, "load_tokenizer", load)


def make_study(data: str, *overrides: str) -> Study:
    return Study(read_config(None, ["task=gsm8k", f"questions.file={data}", *overrides]))


def study_with_teachers(data: str, *given: dict[str, Any] | str) -> Study:
    return make_study(data, f"teachers={json.dumps(list(given))}")


def test_teacher_specs_follow_the_configuration(data):
    specs = study_with_teachers(
        data,
        "self-1c1w",
        "org/Qwen3-0.6B",
        {"model": "org/big", "name": "Big"},
        {"context": "Self-1C", "model": {"model": "org/big", "name": "large"}},
        {"context": "Self-1C", "name": "mine"},
        {"name": "two", "correct": 2, "summarised": True},
        {"name": "bad", "wrong": 1, "source": "source"},
        {"context": "Self-3C", "source": "source", "name": "theirs"},
    ).teacher_specs
    assert [(spec.name, spec.model and spec.model.model) for spec in specs] == [
        ("Self-1C1W", None), ("Qwen3-0.6B", "org/Qwen3-0.6B"), ("Big", "org/big"), ("Self-1C · large", "org/big"),
        ("mine", None), ("two", None), ("bad", None), ("theirs", None),
    ]  # fmt: skip
    assert [spec.context for spec in specs] == [
        CONTEXTS["Self-1C1W"], None, None, CONTEXTS["Self-1C"], Context("mine", correct=1),
        Context("two", correct=2, summarised=True), Context("bad", wrong=1, source="source"),
        Context("theirs", correct=3, source="source"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["teachers=Self-3D"], "did you mean 'Self-3C'"),
        (["teachers=Slef-1C"], "did you mean 'Self-1C'"),
        (["teachers=Self-1C,self-1c"], "teachers: 'Self-1C' appears more than once"),
        (["teachers=org/a,other/a"], "teachers: 'a' appears more than once; give each its own name"),
        (["teachers=[{name: x}]"], "teachers: each needs a context, a model, or both"),
        (["teachers=[{correct: 1}]"], "teachers: a context of your own needs a name"),
        (["teachers=[{context: Self-1C, correct: 2}]"], "'Self-1C' is built in; remove correct"),
        (["teachers=[{context: Self-1C, summarised: true}]"], "'Self-1C' is built in"),
        (["teachers=[{model: org/a, summarised: true}]"], "summarised and source belong to a context"),
        (["teachers=[{name: x, correct: -1}]"], "counts of 0 or more"),
        (["teachers=Self-1C (source)"], "uses responses of 'source', which is not a model; set source to a model"),
        (
            ["teachers=[{name: x, correct: 1, source: me}]"],
            "responses of 'me', which is not a model; choose one of self",
        ),
        (["student=./nowhere"], "the folder './nowhere' does not exist"),
        (["source=./nowhere"], "the folder './nowhere' does not exist"),
        (["summariser=x.gguf"], "'x.gguf' does not exist"),
        (["teachers=/no/where"], "the folder '/no/where' does not exist"),
        (["student.dtype=float23"], "dtype must be one of"),
        (["sampling.temperature=0"], "sampling: temperature must be above 0"),
        (["sampling.top_p=2"], "sampling: top_p must lie in"),
        (["sampling.top_p=1e-300"], "top_p be at least 1e-06"),
        (["sampling.temperature=1e-300"], "temperature must lie in"),
        (["demonstrations.temperature=1e300"], "demonstrations: sampling: temperature must lie in"),
        (["demonstrations.temperature=0"], "demonstrations: sampling: temperature must be above 0"),
        (["demonstrations.max_tokens=0"], "demonstrations: sampling: .*max_tokens at least 1"),
        (["demonstrations.trials=0"], "at least one trial"),
        (["objectives=revers_kl"], "did you mean 'reverse_kl'"),
        (["task=gms8k"], "did you mean 'gsm8k'"),
        (["questions.file=none.jsonl"], "none.jsonl: no such file"),
        (["questions.ids=[ann, eve]"], "there is no question 'eve' in the data of task 'gsm8k'"),
        (["questions.offset=3"], r"no questions are selected from .*pens\.jsonl with offset 3 and limit None"),
        (["questions.limit=0"], r"no questions are selected from .*pens\.jsonl with offset 0 and limit 0"),
        (["student.device=meta"], "device must be auto, cpu, cuda"),
        (["teachers=[{model: {model: x, device: meta}}]"], "device must be auto, cpu, cuda"),
        (["questions.screening=nowhere"], "'nowhere' does not exist"),
    ],
)
@pytest.mark.usefixtures("unloaded")
def test_mistakes_are_found_without_a_model(data, overrides, reason):
    with pytest.raises(OpdAlignError, match=reason):
        make_study(data, *overrides).check()


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["objectives=[]"], "objectives is empty"),
        (["objectives=[jsd(0.3), jsd(0.30)]"], "objective 'jsd_0.3' appears more than once"),
        (["teachers=[]"], "objective 'reverse_kl' needs a teacher, and none was given"),
        (["teachers=[{name: reward, model: org/big}]"], "'reward' is reserved"),
    ],
)
@pytest.mark.usefixtures("unloaded")
def test_objectives_and_teachers_are_checked_without_a_model(data, folder, overrides, reason):
    study = make_study(data, f"student={folder}", "teachers=org/big", *overrides)
    study.check()
    with pytest.raises(OpdAlignError, match=reason):
        study.check_analysis()


@pytest.mark.usefixtures("unloaded")
def test_a_valid_study_is_checked_without_a_model(data, folder):
    good = make_study(data, f"student={folder}", "teachers=Self-1C,Self-1C (source),org/big", "source=org/huge")
    good.check()
    assert [question.id for question in good.questions] == ["ann", "bob", "cid"]
    assert good.task is not None
    assert good.name.startswith("gsm8k-tiny-")
    assert (
        good.name
        == make_study(data, f"student={folder}", "teachers=Self-1C,Self-1C (source),org/big", "source=org/huge").name
    )
    assert good.name != make_study(data, f"student={folder}").name


@pytest.mark.parametrize(
    ("overrides", "ids"),
    [
        ([], ["ann", "bob", "cid"]),
        (["questions.limit=2"], ["ann", "bob"]),
        (["questions.offset=1"], ["bob", "cid"]),
        (["questions.offset=1", "questions.limit=1"], ["bob"]),
        (["questions.ids=[cid, ann]"], ["cid", "ann"]),
        (["questions.ids=[cid, ann]", "questions.offset=1"], ["ann"]),
    ],
)
def test_questions_are_selected_by_id_offset_and_limit(data, overrides, ids):
    assert [question.id for question in make_study(data, *overrides).questions] == ids


def test_own_data_is_read_by_kind_and_columns(tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('{"q": "?", "a": "B", "c": ["x", "y"]}\n', encoding="utf-8")
    own = "task={name: own, kind: choice, question: q, answer: a, choices: c, instruction: 'One of {letters}:'}"
    study = Study(read_config(None, [own, f"questions={file}"]))
    (question,) = study.questions
    assert (question.text, question.answer) == ("?", "B")
    assert study.task.messages(question)[-1]["content"] == "One of AB:\n\n?\n\nA) x\nB) y"


def test_questions_are_selected_by_the_bins_of_a_screening(data, tmp_path):
    wins = {"ann": 10, "bob": 2, "cid": 0}

    def script(question: Question, prompt: str, number: int) -> Any:
        right = replace(RIGHT, text=f"Answer: {question.answer}")
        return right if number < wins[question.id] else WRONG

    student = ScriptedSampler("student", script, ContextPrompt(CHAT, TASK))
    screened = str(tmp_path / "screened")
    Screener(student, student.prompt, [], demonstration_writers(script), rollouts=10).run(
        screened, make_study(data).questions
    )

    def selected_ids(bins: str, *more: str) -> list[str]:
        study = make_study(data, f"questions.screening={screened}", f"questions.bins={bins}", *more)
        return [question.id for question in study.questions]

    assert selected_ids("easy") == ["ann"]
    assert selected_ids("hard, easy") == ["ann", "bob"]
    assert selected_ids("extremely hard") == ["cid"]
    assert selected_ids("hard, easy", "questions.offset=1") == ["bob"]
    with pytest.raises(OpdAlignError, match=r"no question of .* is in the bins medium"):
        selected_ids("medium")
    with pytest.raises(OpdAlignError, match="there is no bin 'esay'"):
        selected_ids("esay")


def test_a_context_shared_by_two_models_is_screened_once(data):
    study = study_with_teachers(data, "Self-1C", {"context": "Self-1C", "model": "org/big"}, "org/big")
    assert study.contexts == [CONTEXTS["Self-1C"]]
    assert len(study.teacher_specs) == 3


def test_a_teacher_with_another_tokenizer_is_rejected_with_an_example(data, folder, tmp_path):
    other = save_model(tmp_path / "other", tokenizer=word_tokenizer(words=("Ann", "Zoe", "Cid", "pens", "one", "two")))
    study = make_study(data, f"student={folder}", f"teachers={other}")
    with pytest.raises(TokenizerMismatch, match=r"teacher 'other' .* \(id 4 is 'Zoe' there, 'Bob' here\)"):
        study.teachers({})


def test_a_teacher_is_the_student_with_a_context_or_another_model(data, folder, tmp_path):
    big = save_model(tmp_path / "big", seed=9)
    study = make_study(data, f"student={folder}", f"teachers=Self-1C,{big}")
    question = study.questions[0]
    demonstrations = {question.id: CONTEXTS["Self-1C"].placeholders(question)}
    itself, other = study.teachers(demonstrations)
    assert (itself.name, other.name) == ("Self-1C", "big")
    assert itself.model is study.student.model
    assert other.model is not itself.model
    assert other.prompt(question) == study.student.prompt(question)
    assert len(itself.prompt(question)) > len(other.prompt(question))
    assert "{correct response 1}" in itself.prompt.text(question)


def test_thinking_follows_the_student_if_the_template_supports_it(data, tmp_path):
    kinds = {"switched": byte_tokenizer(SWITCHED), "plain": byte_tokenizer(CHATML), "base": byte_tokenizer(None)}
    for name, tokenizer in kinds.items():
        save_model(tmp_path / name, tokenizer=tokenizer)
    study = make_study(
        data,
        f"student={{model: {tmp_path / 'switched'}, thinking: false}}",
        f"source={tmp_path / 'plain'}",
        f"summariser={{model: {tmp_path / 'switched'}, name: s}}",
        f"teachers=[{tmp_path / 'base'}, {{name: t, model: {{model: {tmp_path / 'switched'}, thinking: true}}}}]",
    )
    base, thinking = (spec.model for spec in study.teacher_specs)
    modes = [
        study._chat(model).thinking for model in (study.config.student, study.config.source, study.config.summariser)
    ]
    assert modes == [False, None, False]
    assert [study._chat(model).thinking for model in (base, thinking)] == [None, True]


def test_fingerprints_do_not_depend_on_the_order_of_access(data, folder):
    named = [
        f"student={{model: {folder}, name: a}}",
        f"source={{model: {folder}, name: b}}",
        "teachers=Self-1C (source)",
    ]
    first, second = make_study(data, *named), make_study(data, *named)
    fingerprints = [first.student.fingerprint, first.writers.sources["source"].sampler.fingerprint]
    assert [second.writers.sources["source"].sampler.fingerprint, second.student.fingerprint] == fingerprints[::-1]
    assert first.student.model is first.writers.sources["source"].sampler.model  # weights are loaded once
    assert (first.student.name, first.writers.sources["source"].sampler.name) == ("a", "b")


def test_demonstration_writers_have_their_own_sampling_settings_and_context_limits(data, folder):
    study = make_study(
        data, f"student={folder}", "teachers=Self-Sum-1C", "sampling.max_tokens=6", "demonstrations.max_tokens=400",
        "seed=4", "batch=32",
    )  # fmt: skip
    assert (study.student.sampling.temperature, study.student.sampling.max_tokens, study.student.sampling.seed) == (
        1.0,
        6,
        4,
    )
    writer, summariser = study.writers.sources["self"], study.writers.summariser
    for source in (writer, summariser):
        assert (source.sampler.sampling.temperature, source.sampler.sampling.max_tokens) == (0.7, 400)
    assert study.student.end_tokens == (study.chat.tokenizer.convert_tokens_to_ids(END),)
    assert writer.skip_reason(study.questions[0]) is None
    assert "do not fit the context of 'tiny' (512)" in writer.skip_reason(Question("long", "pens " * 200, "1"))
    assert "do not fit" in summariser.skip_reason(Question("long", "pens " * 200))
    assert study.screen().batch == 32
    assert make_study(data, f"student={folder}").screen().batch == 512


def test_thinking_without_template_support_is_rejected_before_weights_are_loaded(data, folder, monkeypatch):
    def load(*_: object, **__: object) -> None:
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(opd_align.study.build, "load_model", load)
    with pytest.raises(OpdAlignError, match="no thinking switch"):
        _ = make_study(data, f"student={{model: {folder}, thinking: true}}").student


def test_demonstrations_of_a_screening_are_reused_only_for_the_same_writers(data, folder, tmp_path):
    settings = ["teachers=[{name: bad, wrong: 1}]", "sampling.max_tokens=8", "rollouts=4"]
    screened = tmp_path / "screened"
    study = make_study(data, f"student={folder}", *settings)
    study.screen().run(screened, study.questions)
    found = load_screening(screened)[1]
    assert all(responses for responses in found.values())
    overrides = ["questions.bins=easy,medium,hard,extremely hard", f"questions.screening={screened}", *settings]
    assert make_study(data, f"student={folder}", *overrides).collect_demonstrations(tmp_path / "same") == found
    assert not (tmp_path / "same").exists()
    other = save_model(tmp_path / "other", seed=8)
    assert make_study(data, f"student={other}", *overrides).collect_demonstrations(tmp_path / "other-run") != found
    assert (tmp_path / "other-run").is_dir()
    warm = make_study(data, f"student={folder}", *overrides, "demonstrations.temperature=1.5")
    assert warm.collect_demonstrations(tmp_path / "warm") != found


def rows_file(tmp_path: Path, *rows: dict[str, Any]) -> str:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


UNUSABLE = [
    {"id": "open", "question": "Cid", "answer": None},
    {"id": "odd", "question": "?", "answer": "Paris"},
    {"id": "again", "question": "Ann two pens", "answer": "2"},
]


def test_unusable_and_too_long_questions_are_skipped_with_the_reason(folder, tmp_path):
    file = rows_file(tmp_path, PENS[0], *UNUSABLE, {"id": "long", "question": "pens " * 500, "answer": "1"})
    study = make_study(file, f"student={folder}", "teachers=[{name: bad, wrong: 1}]", "sampling.max_tokens=8")
    with pytest.warns(
        SkippedQuestionsWarning, match=r"3 of 5 questions are skipped: 'open': no answer to compare with"
    ):
        study.check()
    assert study.unusable_questions == {
        "open": "no answer to compare with",
        "odd": "the answer 'Paris' cannot be read as a number",
        "again": "same question and answer as 'ann'",
    }
    found = study.collect_demonstrations(tmp_path / "run")
    reasons = study.skipped_questions(found)
    assert reasons.keys() == {"long"}
    assert reasons["long"].endswith("prompt tokens and up to 8 new ones do not fit the context of 'tiny' (512)")
    assert found["ann"]
    assert "open" not in found


@pytest.mark.usefixtures("unloaded")
def test_data_without_a_usable_question_is_refused_before_a_model_is_loaded(tmp_path):
    with pytest.raises(
        OpdAlignError, match=r"none of 2 can be used; 'open': no answer.*task\.answer .* and task\.kind"
    ):
        make_study(rows_file(tmp_path, *UNUSABLE[:2])).check()


def test_if_no_question_is_left_the_trials_and_the_remedy_are_named(data, folder, tmp_path):
    # The student does not know that "Cid" has 3 pens: its 4 responses are wrong.
    study = make_study(
        data, f"student={folder}", "teachers=Self-3C", "questions.ids=[cid]", "sampling.max_tokens=2",
        "demonstrations.trials=4",
    )  # fmt: skip
    with pytest.raises(OpdAlignError) as caught:
        study.prepare(tmp_path / "run")
    assert str(caught.value).startswith(
        "no question is left to analyze: Self-3C: 0 of 3 correct responses by 'self' (1 of 1 questions)."
    )
    assert "more than 4 responses per question (--set demonstrations.trials=16)" in str(caught.value)


@pytest.mark.filterwarnings("default::opd_align.study.build.SkippedQuestionsWarning")
def test_a_context_that_is_missing_does_not_drop_the_question_for_other_teachers(folder, data, tmp_path, monkeypatch):
    big = save_model(tmp_path / "big", seed=9)
    small = ["sampling.max_tokens=4", "budget.initial=40", "budget.targeted=200", "rules.n_sig=1", "questions.limit=2"]
    study = make_study(data, f"student={folder}", f"teachers=Self-1C,{big}", *small)
    ann = study.questions[0]
    demonstrations = {"ann": CONTEXTS["Self-1C"].placeholders(ann)}
    monkeypatch.setattr(Study, "collect_demonstrations", lambda *_, **__: demonstrations)
    assert study.skipped_questions(demonstrations) == {}
    with pytest.warns(SkippedQuestionsWarning, match=r"question 'bob' is analyzed without Self-1C: 0 of 1 correct"):
        analysis = study.analyze(tmp_path / "run")
    rows = {(row["question"], row["teacher"]) for row in analysis.nodes.select(["question", "teacher"]).to_pylist()}
    assert rows == {("ann", "Self-1C"), ("ann", "big"), ("bob", "big")}
    known = {
        name: [not isnan(row["t"][0]) for row in analysis.children.to_pylist() if row["question"] == name]
        for name in ("ann", "bob")
    }
    assert all(known["ann"])
    assert not any(known["bob"])
    assert all(not isnan(row["t"][1]) for row in analysis.children.to_pylist())
    assert write_report(analysis, tmp_path / "report.html", title="x").stat().st_size > 10_000
    difference = teacher_difference(analysis.nodes, "big", "Self-1C", "reverse_kl")
    assert difference.n == 1
    before = (tmp_path / "run" / "nodes.parquet").read_bytes()
    study.analyze(tmp_path / "run")
    assert (tmp_path / "run" / "nodes.parquet").read_bytes() == before


# -- end to end ------------------------------------------------------------------------------------------------


def command(name: str, folder: str, data: str, *more: str) -> list[str]:
    return [
        name, "--student", folder, "--task", "gsm8k", "--data", data, "--teachers", "Self-1C,Self-1C1W",
        "--set", "rollouts=12", "--set", "sampling.max_tokens=8", "--set", "student.device=cpu", *more,
    ]  # fmt: skip


def test_screen_writes_tables_and_samples_nothing_the_second_time(folder, data, tmp_path, capsys, monkeypatch):
    out = str(tmp_path / "screened")
    assert main(command("screen", folder, data, "--out", out)) == 0
    first = capsys.readouterr().out
    words = " ".join(first.split())  # titles of narrow tables are wrapped
    for word in ("Questions with at least one correct demonstration", "Screening results", "Self-1C1W", "Baseline"):
        assert word in words
    screening, found = load_screening(out)
    assert screening.questions == ["ann", "bob", "cid"]
    assert {row["rollouts"] for row in screening.passes.to_pylist()} == {12}
    rates = screening.pass_rate("Baseline")
    assert 0 < sum(rates.values()) < 3  # neither always wrong nor always right
    assert any(shown.correct and "Answer:" in shown.text for responses in found.values() for shown in responses)

    def never(*_: object) -> None:
        raise AssertionError("sampled again")

    monkeypatch.setattr("opd_align.backends.hf.HFStudent.sample", never)
    assert main(command("screen", folder, data, "--out", out)) == 0
    assert capsys.readouterr().out == first
    assert main(command("screen", folder, data, "--out", out, "--set", "rollouts=13")) == 2
    assert "settings.rollouts: 12 in the directory, 13 now" in capsys.readouterr().err


def test_show_prompt_prints_the_prompts_of_student_and_teachers(folder, data, capsys):
    assert main(command("show-prompt", folder, data, "--limit", "1")) == 0
    output = capsys.readouterr().out
    heads = [line for line in output.splitlines() if line.startswith("── ")]
    assert [head.split(" · ")[:2] for head in heads] == [
        ["── ann", name] for name in ("student", "Self-1C", "Self-1C1W")
    ]
    student, one, mixed = output.split("── ann")[1:]
    assert "<|im_start|>user\nSolve the following math problem." in student
    assert student.rstrip("\n").endswith("Ann two pens<|im_end|>\n<|im_start|>assistant")
    assert 'This is a correct response to the question:\n"""\n{correct response 1}\n"""' in one
    assert 'WRONG (do NOT imitate):\n"""\n{wrong response 1}\n"""' in mixed
    count = int(heads[0].split(" · ")[2].removesuffix(" tokens"))
    assert count == len(make_study(data, f"student={folder}").student_prompt(make_study(data).questions[0]))


def test_the_directory_of_another_run_is_rejected_before_demonstrations_are_sampled(tmp_path, capsys, monkeypatch):
    small = ["analyze", "--limit", "1", "--initial", "8", "--targeted", "8", "--out", str(tmp_path / "run")]
    assert main([*small, "--teachers", "embedded:teacher"]) == 0
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    monkeypatch.setattr(
        opd_align.study.build, "collect_demonstrations", lambda *_, **__: pytest.fail("demonstrations were sampled")
    )
    for more in (["--teachers", "Self-1C"], ["--teachers", "embedded:teacher", "--initial", "9"], ["--limit", "0"]):
        assert main([*small, *more]) == 2
    assert main([*small, "--teachers", "Self-1C"]) == 2
    assert "teachers.Self-1C: absent in the directory, null now" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
