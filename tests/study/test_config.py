"""Configuration: from plain values to a checked study; every error names its key."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from opd_align.backends.http_pool import HttpSettings
from opd_align.core.objectives import OBJECTIVES, GeneralisedJSD
from opd_align.settings import Budget, Rules
from opd_align.study.build import Study
from opd_align.study.config import (
    ModelConfig,
    QuestionsConfig,
    StudyConfig,
    TaskConfig,
    TeacherConfig,
    builtin_configs,
    objective_by_name,
    read_config,
)
from opd_align.types import OpdAlignError

EVERYTHING = """\
student: {model: org/small, name: small, adapter: runs/lora, dtype: bfloat16, device: cpu, thinking: false}
teachers:
  - Self-1C
  - org/big
  - {name: five, correct: 5, wrong: 2, summarised: true, source: source}
  - {context: Self-1C, model: {model: org/big, backend: server, url: "http://x", served_as: big, options: {a: 1}}}
task: {name: mine, kind: choice, question: q, answer: a, choices: c, passage: p, instruction: "Go {letters}", hub: o/d,
       hub_config: all, split: dev}
questions: {file: data.jsonl, limit: 20, offset: 3, ids: [x, y], bins: [easy]}
source: org/big
summariser: {model: org/big, thinking: true}
sampling: {temperature: 0.9, top_p: 0.95, top_k: 20, max_tokens: 512}
demonstrations: {temperature: 1, trials: 12, max_tokens: 256}
rollouts: 16
budget: {initial: 100, targeted: 2000, seconds: 60, allocation: adaptive, tau: 5e-2}
rules: {n_sig: 40, restrict: renormalise, seed: 3}
objectives: [reverse_kl, jsd(0.3)]
estimator: direct
shrink: false
batch: 64
seed: 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(EVERYTHING, encoding="utf-8")
    return path


def test_all_keys_are_read_from_a_file(file):
    big = ModelConfig("org/big")
    config = read_config(file)
    assert config.student == ModelConfig(
        "org/small", name="small", adapter="runs/lora", dtype="bfloat16", device="cpu", thinking=False
    )
    served = ModelConfig("org/big", backend="server", url="http://x", served_as="big", options={"a": 1})
    assert config.teachers == (
        TeacherConfig(context="Self-1C"),
        TeacherConfig(model=big),
        TeacherConfig(name="five", correct=5, wrong=2, summarised=True, source="source"),
        TeacherConfig(context="Self-1C", model=served),
    )
    assert config.task == TaskConfig("mine", "choice", "q", "a", "c", "p", "Go {letters}", "o/d", "all", "dev")
    assert config.questions == QuestionsConfig("data.jsonl", 20, 3, ("x", "y"), None, ("easy",))
    assert config.source == big
    assert config.summariser == ModelConfig("org/big", thinking=True)
    assert asdict(config.sampling) == {"temperature": 0.9, "top_p": 0.95, "top_k": 20, "max_tokens": 512}
    assert asdict(config.demonstrations) == {"temperature": 1.0, "trials": 12, "max_tokens": 256}
    assert config.budget == Budget(initial=100, targeted=2000, seconds=60.0, allocation="adaptive", tau=0.05)
    assert config.rules == Rules(n_sig=40.0, restrict="renormalise", seed=3)
    assert (config.rollouts, config.batch, config.seed, config.shrink, config.estimator) == (16, 64, 7, False, "direct")
    settings = config.settings()
    assert [objective.name for objective in settings.objectives] == ["reverse_kl", "jsd_0.3"]
    assert (settings.budget, settings.rules, settings.batch) == (config.budget, config.rules, 64)


def plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def test_a_configuration_survives_a_round_trip_through_yaml(file, tmp_path):
    config = read_config(file)
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(plain(asdict(config))), encoding="utf-8")
    assert read_config(tmp_path / "again.yaml") == config
    (tmp_path / "defaults.yaml").write_text(yaml.safe_dump(plain(asdict(StudyConfig()))), encoding="utf-8")
    assert read_config(tmp_path / "defaults.yaml") == StudyConfig()


def test_the_defaults_are_the_papers_settings(tmp_path):
    config = read_config()
    assert config == StudyConfig()
    assert (config.rollouts, config.sampling.temperature, config.budget.initial) == (32, 1.0, 200)
    assert (config.demonstrations.temperature, config.demonstrations.trials) == (0.7, 60)
    assert config.student.model == "embedded:student"
    (tmp_path / "empty.yaml").write_text("# nothing\n", encoding="utf-8")
    assert read_config(tmp_path / "empty.yaml") == config
    (tmp_path / "empty_sections.yaml").write_text("budget:\nsampling:\nquestions:\n", encoding="utf-8")
    assert read_config(tmp_path / "empty_sections.yaml") == config
    assert read_config(tmp_path / "empty_sections.yaml", ["budget.initial=9"]).budget == Budget(initial=9)


def test_later_overrides_take_precedence(file):
    config = read_config(file, ["budget.initial=7", "budget.initial=8", "rules.confidence=9e-1", "seed=1"])
    assert config.budget == Budget(initial=8, targeted=2000, seconds=60.0, allocation="adaptive", tau=0.05)
    assert config.rules.confidence == 0.9
    assert (config.seed, config.rollouts) == (1, 16)


@pytest.mark.parametrize(
    ("override", "get", "expected"),
    [
        ("student=org/other", lambda c: c.student, ModelConfig("org/other")),
        ("student.thinking=true", lambda c: c.student, ModelConfig("embedded:student", thinking=True)),
        ("source=org/big", lambda c: c.source, ModelConfig("org/big")),
        ("source=null", lambda c: c.source, None),
        ("task=boolq", lambda c: c.task, TaskConfig("boolq")),
        ("questions=q.jsonl", lambda c: c.questions, QuestionsConfig(file="q.jsonl")),
        ("questions.bins=hard, extremely hard", lambda c: c.questions.bins, ("hard", "extremely hard")),
        ("questions.ids=[a]", lambda c: c.questions.ids, ("a",)),
        (
            "teachers=Self-1C, Self-1C (source)",
            lambda c: [t.context for t in c.teachers],
            ["Self-1C", "Self-1C (source)"],
        ),
        ("teachers=self-sum-1c,org/big", lambda c: [t.model and t.model.model for t in c.teachers], [None, "org/big"]),
        ("teachers=[]", lambda c: c.teachers, ()),
        ("objectives=forward_kl,reverse_kl", lambda c: c.objectives, ("forward_kl", "reverse_kl")),
        (" budget.tau =0.1", lambda c: c.budget.tau, 0.1),
        ("sampling.temperature=1", lambda c: c.sampling.temperature, 1.0),
        ("questions.file=a=b.jsonl", lambda c: c.questions.file, "a=b.jsonl"),
    ],
)
def test_short_forms(override, get, expected):
    assert get(read_config(None, [override])) == expected


def test_overrides_can_extend_a_short_form():
    config = read_config(None, ["student=org/x", "student.thinking=false", "task=mmlu", "task.split=dev"])
    assert config.student == ModelConfig("org/x", thinking=False)
    assert config.task == TaskConfig("mmlu", split="dev")


@pytest.mark.parametrize("typed", ["Slef-1C", "Self-1D", "selfsum1c", "sefl-sum-1c1w"])
def test_a_misspelled_context_is_not_a_model(typed):
    (teacher,) = read_config(None, [f"teachers={typed}"]).teachers
    assert teacher == TeacherConfig(context=typed)  # resolving it suggests the most similar one


@pytest.mark.parametrize("named", ["embedded:teacher", "Qwen/Qwen3-8B", "./models/1c", "gpt2", "model.gguf"])
def test_a_model_is_not_a_context(named):
    assert read_config(None, [f"teachers={named}"]).teachers == (TeacherConfig(model=ModelConfig(named)),)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("studnet=x", "unknown key 'studnet'; did you mean 'student'?"),
        ("budget.intial=3", "unknown key 'budget.intial'; did you mean 'budget.initial'?"),
        ("student.tihnking=true", "unknown key 'student.tihnking'; did you mean 'student.thinking'?"),
        ("teachers=[{contxt: Self-1C}]", "unknown key 'teachers[0].contxt'; did you mean 'teachers[0].context'?"),
        ("teachers=[Self-1C, {model: {modle: x}}]", "unknown key 'teachers[1].model.modle'"),
        ("student.backend=vlm", "student: unknown backend 'vlm'; did you mean 'vllm'?"),
        ("estimator=bakcup", "estimator: unknown value 'bakcup'; did you mean 'backup'?"),
        ("budget.allocation=adaptiv", "budget.allocation: unknown value 'adaptiv'; did you mean 'adaptive'?"),
        ("task={name: x, kind: numbr}", "task.kind: unknown value 'numbr'; did you mean 'number'?"),
        ("source={name: x}", "source.model is missing"),
        ("task={kind: number}", "task.name is missing"),
        ("rollouts=many", "rollouts: expected a whole number, got 'many'"),
        ("rollouts=1.5", "rollouts: expected a whole number, got 1.5"),
        ("rollouts=true", "rollouts: expected a whole number, got True"),
        ("rollouts=null", "rollouts: expected a whole number, got None"),
        ("sampling.temperature=hot", "sampling.temperature: expected a number, got 'hot'"),
        ("sampling.temperature=true", "sampling.temperature: expected a number, got True"),
        ("shrink=1", "shrink: expected true or false, got 1"),
        ("student.thinking=maybe", "student.thinking: expected true or false, got 'maybe'"),
        ("student.name=3", "student.name: expected text, got 3"),
        ("student.options=abc", "student.options: expected keys and values, got 'abc'"),
        ("questions.ids=[1]", "questions.ids[0]: expected text, got 1"),
        ("questions.ids=7", "questions.ids: expected a list, got 7"),
        ("budget=3", "budget: expected keys and values, got 3"),
        ("seed.deep=3", None),
        ("objectives.x=3", "objectives: expected a list"),
        ("budget.initial=0", "budget: initial must be at least 1, not 0"),
        ("budget.tau=2", "budget: tau must lie between 0 and 1"),
        ("rollouts=0", "rollouts must be at least 1, not 0"),
        ("batch=-1", "batch must be at least 1, not -1"),
        ("questions.limit=-1", "questions: offset (0) and limit (-1) must be at least 0"),
        ("questions.offset=-1", "questions: offset (-1)"),
        ("questions={ids: [a], screening: runs/x}", "questions: ids and screening both select"),
        ("student.backend=server", "student: model 'embedded:student' has backend server but no url"),
        ("student.url=http://x", "student: model 'embedded:student' has a url, served_as or http, but its backend"),
        ("student.http.timeout_s=5", "student: model 'embedded:student' has a url, served_as or http, but its backend"),
        ("student.http.patince_s=5", "unknown key 'student.http.patince_s'; did you mean 'student.http.patience_s'?"),
        ("student.http.concurrency=0", "student.http: concurrency and samples_per_call must be at least 1"),
        ("student.url=127.0.0.1:8000", "student: '127.0.0.1:8000' is not a valid server URL"),
        ("student={model: x, backend: vllm, adapter: y}", "student: model 'x': backend vllm would sample without"),
        ("task={name: boolq, instruction: Go}", "task: instruction is for your own data and needs a kind"),
        ("budget.initial", "an override must have the form key=value, not 'budget.initial'"),
        ("seed=[1", "the value of 'seed' is '[1': not YAML: "),
        ("seed=2020-13-45", "the value of 'seed' is '2020-13-45': a value cannot be read: month must be in 1..12"),
        ("seed=2020-12-24", "seed: expected a whole number, got datetime.date(2020, 12, 24)"),
        ("seed=0b_", "the value of 'seed' is '0b_': a value cannot be read"),
        ("seed=" + "9" * 5000, "a value cannot be read: Exceeds the limit"),
        ("seed=0x" + "9" * 5000, "seed: <int> is too large"),
        ("seed=99999999999999999999", "seed: 99999999999999999999 is too large"),
        ("rules.n_sig=1" + "0" * 400, "rules.n_sig: expected a number"),
        ("seed=" + "[" * 2000, "lists or sections are nested too deeply"),
        ("student.options=" + "[" * 40 + "]" * 40, "lists or sections are nested too deeply"),
        ("student.options=&a {b: *a}", "nested too deeply"),
        ("seed=!!timestamp x", "the value of 'seed' is '!!timestamp x': a value cannot be read"),
        ("seed=!!bool x", "the value of 'seed' is '!!bool x': a value cannot be read"),
        ("seed=!!python/name:os.system", "not YAML: could not determine a constructor"),
        ("budget={initial: 3, initial: 4}", "the key 'initial' appears more than once (line 1)"),
        ('student.name="\\ud800"', r"student.name: '\ud800' contains characters that are not valid"),
        ('student.name="\\0"', "contains characters that are not valid"),
        ("x" * 5000 + "=1", "unknown key 'xxxxxxxx"),
        ("estimator=[backup]", "estimator: unknown value"),
        ("rules.draws=1000000000", "rules: draws must lie in [1, 100000]"),
    ],
)  # fmt: skip
def test_every_error_names_the_key(override, message):
    overrides = ["seed=1", override] if message is None else [override]
    with pytest.raises(OpdAlignError) as caught:
        read_config(None, overrides)
    assert (message or "seed.deep: 'seed' is 1, which has no keys") in str(caught.value)
    assert "budget: budget:" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_an_unknown_key_lists_the_available_ones():
    with pytest.raises(OpdAlignError) as caught:
        read_config(None, ["sampling.zzz=1"])
    assert "did you mean" not in str(caught.value)
    assert "sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_tokens" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: [1", "not YAML: .*line 1, column 6"),
        ("seed: 1\nseed: 2\n", "the key 'seed' appears more than once \\(line 2\\)"),
        (
            "a: &a [1]\n"
            + "".join(
                f"{y}: &{y} [*{x}, *{x}, *{x}, *{x}]\n" for x, y in zip("abcdefghijk", "bcdefghijkl", strict=True)
            ),
            "more than 100,000 values",
        ),
        ("- a\n- b", "must contain keys and values, not list"),
        ("just words", "not str"),
        ("1: 2", "'1'"),
    ],
)
def test_a_file_that_is_not_a_configuration_is_rejected(tmp_path, content, message):
    path = tmp_path / "c.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(OpdAlignError, match=message):
        read_config(path)


def test_a_file_that_cannot_be_read_is_reported(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(OpdAlignError, match="cannot read the configuration") as caught:
            read_config(path)
        assert str(path) in str(caught.value)
    (tmp_path / "latin.yaml").write_bytes(b"seed: 1 # \xe9\n")
    with pytest.raises(OpdAlignError, match=r"latin\.yaml"):
        read_config(tmp_path / "latin.yaml")


def test_an_override_does_not_change_another_section_that_shares_an_anchor(tmp_path):
    (tmp_path / "c.yaml").write_text("student: &m {model: org/x}\nsource: *m\n", encoding="utf-8")
    config = read_config(tmp_path / "c.yaml", ["student.name=mine"])
    assert (config.student.name, config.source) == ("mine", ModelConfig("org/x"))


def test_builtin_configurations_are_found_by_name():
    assert "demo" in builtin_configs()
    assert read_config("demo") == read_config(builtin_configs()["demo"])
    with pytest.raises(OpdAlignError, match=r"unknown configuration 'demoo'; did you mean 'demo'\?"):
        read_config("demoo")


@pytest.mark.parametrize("name", sorted(builtin_configs()))
def test_every_builtin_configuration_is_a_valid_study(name):
    from opd_align.study.build import Study

    study = Study(read_config(name))
    assert (
        len(study.teacher_specs) == len({spec.name for spec in study.teacher_specs}) == len(study.config.teachers) > 0
    )
    assert study.config.settings().budget.initial == (100 if name == "demo" else 200)


@pytest.mark.parametrize("name", [objective.name for objective in OBJECTIVES])
def test_objectives_are_found_by_name(name):
    assert objective_by_name(name).name == name


def test_jsd_takes_beta_in_parentheses():
    assert objective_by_name("jsd(0.3)") == GeneralisedJSD(0.3)
    for wrong in ("jsd(x)", "jsd()", "jsd(2)", "revers_kl"):
        with pytest.raises(OpdAlignError, match="objectives: unknown objective"):
            objective_by_name(wrong)
    with pytest.raises(OpdAlignError, match=r"did you mean 'reverse_kl'\?"):
        read_config(None, ["objectives=revers_kl"]).settings()


def test_connection_settings_are_not_part_of_the_study_name() -> None:
    served = ["student.backend=server", "student.url=http://x:1"]
    http = {"concurrency": 4, "timeout_s": 3600, "patience_s": 60, "api_key": "secret"}
    plain = Study(read_config(None, served))
    tuned = Study(read_config(None, [*served, *(f"student.http.{key}={value}" for key, value in http.items())]))
    assert tuned.config.student.http == HttpSettings(4, timeout_s=3600.0, patience_s=60.0, api_key="secret")
    assert tuned.name == plain.name
    assert "secret" not in repr(tuned)
    sampler = tuned._sampler(tuned.config.student, list, tuned._sampling())
    assert sampler.http == tuned.config.student.http


def test_memory_for_scoring_is_a_finite_number_of_bytes():
    assert read_config(None, ["scoring.memory_gib=0.5"]).scoring.memory_gib == 0.5
    for value in ("1e300", ".inf", ".nan", "0"):
        with pytest.raises(OpdAlignError, match="memory_gib must be above 0 and at most 1,000,000"):
            read_config(None, [f"scoring.memory_gib={value}"])
