"""Flags and commands of other tools are answered with ours; shells and editors are told every name."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from opd_align.cli.main import _parser, main
from opd_align.cli.suggestions import COMMANDS, FLAGS, commands_of, flags_of
from opd_align.study.config import StudyConfig, builtin_configs, read_config
from opd_align.study.schema import argument_descriptions, config_schema
from opd_align.types import OpdAlignError


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("analyze --model gpt2", "opd-align: analyze has no --model; use --student"),
        ("analyze --tasks gsm8k", "opd-align: analyze has no --tasks; use --task"),
        ("analyze --output_path=runs/x", "opd-align: analyze has no --output_path; use --out runs/x"),
        ("analyze --output-dir x", "opd-align: analyze has no --output-dir; use --out"),
        ("analyze --temperature 0.7", "use --set sampling.temperature=..."),
        ("analyze --until_decided", "did you mean --until-decided?"),
        ("analyze --limitt 3", "did you mean --limit?"),
        ("analyze --xyzzy", "opd-align: analyze has no --xyzzy\n"),
        ("analyze something", "unexpected argument 'something'"),
        ("report runs/x --model y", "opd-align: report has no --model\n"),
        ("analyse", "there is no command 'analyse'; did you mean: opd-align analyze"),
        ("reprot", "did you mean: opd-align report"),
        ("xyzzy", "there is no command 'xyzzy'; available: analyze, "),
    ],
)
def test_what_people_try_is_answered_in_a_line(command, answer, capsys):
    with pytest.raises(SystemExit) as end:
        main(command.split())
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert answer in err
    assert err.count("\n") == 2
    assert err.splitlines()[1].endswith("--help` for the options.")


def test_every_suggestion_exists():
    commands = commands_of(_parser())
    assert set(COMMANDS.values()) <= set(commands)
    assert not set(COMMANDS) & set(commands)
    flags = flags_of(commands["analyze"])
    assert {flag.split()[0] for flag in FLAGS.values()} <= set(flags)
    assert not {name.replace("_", "-") for name in FLAGS} & set(flags)
    for flag in FLAGS.values():
        if flag.startswith("--set "):
            read_config(None, [flag.removeprefix("--set ").replace("...", "auto" if "student" in flag else "1")])


# -- completion ----------------------------------------------------------------------------------------------------


def completion(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("opd-align ana", {"analyze"}),
        ("opd-align analyze --until", {"--until-decided"}),
        ("opd-align analyze --allocation ", {"paper", "adaptive"}),
        ("opd-align analyze --task gsm", {"gsm8k"}),
        ("opd-align export --p", {"--pivotal", "--preferences", "--pairs-per-decision"}),
        ("opd-align completion --z", set()),
    ],
)
def test_bash_completes(line, expected, capsys, tmp_path):
    script = tmp_path / "completion.sh"
    script.write_text(completion("bash", capsys))
    words = line.split(" ")
    code = f"""
        source {script}
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
        _opd_align; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_flag(shell, capsys, tmp_path):
    script = completion(shell, capsys)
    for name, command in commands_of(_parser()).items():
        assert name in script
        for flag in flags_of(command):
            assert flag in script or (shell == "fish" and f"-l {flag.lstrip('-')}" in script) or len(flag) == 2
    if shutil.which(shell):
        file = tmp_path / "completion"
        file.write_text(script)
        subprocess.run([shell, "-n", str(file)], check=True, capture_output=True)


# -- schema --------------------------------------------------------------------------------------------------------


def test_the_schema_has_every_key_with_its_description():
    schema = config_schema()
    assert list(schema["properties"]) == list(StudyConfig.__dataclass_fields__)
    for name, section in {"": schema, **schema["$defs"]}.items():
        properties = (section if "properties" in section else section["anyOf"][1])["properties"]
        assert properties
        assert all(entry.get("description") for entry in properties.values()), name
    assert schema["$defs"]["Budget"]["properties"]["initial"]["default"] == 200


def test_descriptions_are_read_over_several_lines():
    text = (
        "Title.\n\n    Args:\n        a: One\n            line.\n        b: Two.\n\n    Returns:\n        c: no\n    "
    )
    assert argument_descriptions(text) == {"a": "One line.", "b": "Two."}


VALID = [
    "{}", "student: gpt2", "student: {backend: vllm}", "teachers: Self-1C,gpt2", "teachers: [Self-1C, {model: gpt2}]",
    "task: gsm8k", "budget: {initial: 10, targeted: null}", "rules: {tau: 1e-3}", "questions: data.jsonl",
    "objectives: reverse_kl,jsd(0.3)", "sampling:", "questions: {ids: [a, b], limit: 3}", "source: null",
]  # fmt: skip
INVALID = [
    "studnet: gpt2", "budget: {initail: 10}", "budget: {initial: many}", "budget: {allocation: greedy}",
    "task: {kind: number}", "shrink: maybe", "teachers: [{nme: x}]", "seed: 1.5", "estimator: best",
]  # fmt: skip


@pytest.mark.parametrize("text", [*VALID, *INVALID, *map(str, builtin_configs().values())])
def test_the_schema_accepts_what_the_configuration_accepts(text, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    file = Path(text)
    if not text.startswith("/"):
        file = tmp_path / "config.yaml"
        file.write_text(text)
    validator = jsonschema.Draft202012Validator(config_schema())
    accepted = validator.is_valid(yaml.safe_load(file.read_text(encoding="utf-8")))
    try:
        read_config(file)
        assert accepted
        assert text not in INVALID
    except OpdAlignError:
        assert not accepted
        assert text in INVALID


def test_the_schema_is_printed_as_json(capsys):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == config_schema()
