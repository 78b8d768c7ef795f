"""Configurations, fuzzed: every one is read as written or refused in one line; nothing else happens.

`FUZZ=long` runs all 2,400 cases; without it, a part with the same seeds.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fuzzing import cases, is_nan, mutated, outcome

import opd_align.cli.commands
from opd_align.cli.main import main
from opd_align.study.build import Study
from opd_align.study.config import StudyConfig, builtin_configs, read_config

# Values that no key accepts.
NEVER = [
    "2020-13-45",
    "0b_",
    "[" * 100_000,
    "9" * 5000,
    "!!bool x",
    "!!timestamp x",
    "{a: 1, a: 2}",
    '"\\0"',
    "&a [*a]",
    "\t- x: [",
]
NO_INTEGER = ["x", "1.5", "true", "[1]", "{}", "2020-01-01", "1e3", "99999999999999999999", "0x" + "f" * 5000, ".nan"]
NO_NUMBER = ["x", "true", "[1]", "{}", "2020-01-01", "1" + "0" * 400]
NO_TEXT = ["1", "1.5", "true", "[x]", "{a: b}", "2020-01-01", '"\\ud800"']
NO_FLAG = ["1", "0", "'yes'", "[true]", "x"]

# Key → YAML texts that it accepts, and texts that it refuses.
KEYS: dict[str, tuple[list[str], list[str]]] = {
    "seed": (["0", "7", "0x1F", "0b11", "1_000"], [*NO_INTEGER, "null"]),
    "rollouts": (["1", "64"], [*NO_INTEGER, "0", "-1", "null"]),
    "batch": (["1", "4096"], [*NO_INTEGER, "0", "-5", "null"]),
    "shrink": (["true", "no"], [*NO_FLAG, "null"]),
    "estimator": (["backup", "direct", "pooled"], ["bakcup", "1", "[backup]", "{}", "null", "x" * 4000]),
    "objectives": (
        ["reverse_kl", "[forward_kl, reverse_kl]", "jsd(0.3)"],
        ["revers_kl", "[1]", "7", "jsd(2)", "jsd(nan)"],
    ),
    "budget.initial": (["1", "300"], [*NO_INTEGER, "0", "-1", "null"]),
    "budget.targeted": (["0", "500", "null"], [*NO_INTEGER, "-1"]),
    "budget.seconds": (["0", "1.5", "1e3", "null"], [*NO_NUMBER, "-1", ".nan"]),
    "budget.allocation": (["paper", "adaptive"], ["papre", "1", "null"]),
    "budget.tau": (["0.5", "5e-2"], [*NO_NUMBER, "0", "1", "-0.5", ".nan", ".inf"]),
    "budget.n_min": (["1", "50"], [*NO_INTEGER, "0", "null"]),
    "budget.by_gap": (["0", "5"], [*NO_INTEGER, "-1", "null"]),
    "rules.n_sig": (["0.5", "40"], [*NO_NUMBER, "0", "-1", ".nan", ".inf", "null"]),
    "rules.draws": (["1", "200"], [*NO_INTEGER, "0", "1000000000", "null"]),
    "rules.confidence": (["0.9"], [*NO_NUMBER, "0.5", "1", ".nan", "null"]),
    "rules.restrict": (["renormalise", "full"], ["none", "true", "null"]),
    "sampling.temperature": (["0.7", "1"], [*NO_NUMBER, "0", "-1", ".nan", ".inf", "null"]),
    "sampling.top_p": (["1", "0.9"], [*NO_NUMBER, "0", "1.1", ".nan", "null"]),
    "sampling.top_k": (["0", "20"], [*NO_INTEGER, "-1", "null"]),
    "sampling.max_tokens": (["1", "64"], [*NO_INTEGER, "0", "null"]),
    "demonstrations.trials": (["1", "12"], [*NO_INTEGER, "0", "null"]),
    "demonstrations.max_tokens": (["16", "null"], [*NO_INTEGER, "0"]),
    "student.name": (["mine", "null", "'1'"], NO_TEXT),
    "student.dtype": (["auto", "float32", "bfloat16"], [*NO_TEXT, "float23", "int8", "null"]),
    "student.device": (["auto", "cpu", "'cuda:1'"], [*NO_TEXT, "meta", "gpu", "''", "'cuda:x'", "null"]),
    "student.thinking": (["true", "false", "null"], [*NO_FLAG]),
    "student.backend": (["hf"], [*NO_TEXT, "vlm", "server", "no.such.module", "''", "null"]),
    "student.model": (
        ["embedded:student"],
        [*NO_TEXT, "embedded:x", "./no/where", "a b c", "x.gguf", "~nobody/x", "x" * 5000, "null"],
    ),
    "student.options": (["{}", "{a: 1}", "null"], ["1", "abc", "[1]"]),
    "student.adpter": ([], ["x"]),
    "teachers": (
        ["Self-1C", "[embedded:teacher]", "[]", "null"],
        ["Self-1D", "[Self-1C, Self-1C]", "[{correct: 1}]", "[{}]", "7", "[[]]", "[{name: x, correct: -1}]"],
    ),
    "source": (["embedded:teacher", "null"], ["{name: x}", "[x]", "7", "./nowhere"]),
    "task": (
        ["arithmetic", "{name: arithmetic, split: train}"],
        [
            "arithmetics",
            "7",
            "[x]",
            "{kind: number}",
            "{name: x, kind: numbr}",
            "{name: mine, kind: number}",
            "{name: boolq, answer: x}",
            "{name: arithmetic, split: dev}",
        ],
    ),
    "questions.limit": (["1", "3"], [*NO_INTEGER, "0", "-1", "1000000000"]),
    "questions.offset": (["0", "5"], [*NO_INTEGER, "-1", "1000000000", "null"]),
    "questions.file": (["null"], [*NO_TEXT, "no.jsonl", "x" * 5000, "no.txt", "/", "''"]),
    "questions.seed": (["3"], [*NO_INTEGER, "null"]),
    "questions.bins": (["null"], ["hard", "7", "[1]"]),
    "questions.screening": (["null"], ["nowhere", "1"]),
    "sede": ([], ["1"]),
    "": ([], ["1"]),
    "budget..initial": ([], ["1"]),
}


EMPTY = '""'


def read_raw(text: str) -> Any:
    return yaml.safe_load(text)


def known_case(seed: int, folder: Path) -> tuple[Path | None, list[str], dict[str, str], bool]:
    """A configuration as file and overrides, its values by key, and whether it is valid."""
    rng = random.Random(f"config {seed}")
    names = rng.sample([key for key in KEYS if KEYS[key][0]], rng.randint(1, 6))
    values = {key: rng.choice(KEYS[key][0]) for key in names}
    wrong = rng.random() < 0.6
    if wrong:
        key = rng.choice(list(KEYS))
        values[key] = rng.choice([*KEYS[key][1], *(NEVER if KEYS[key][0] else [])])
    if "questions.limit" not in values:
        values["questions.limit"] = "2"
    flags = [f"{key}={value}" for key, value in values.items() if rng.random() < 0.5]
    chosen = {flag.partition("=")[0] for flag in flags}
    lines = [line for key, value in values.items() if key not in chosen for line in nested_lines(key, value)]
    if not lines:
        return None, flags, values, not wrong
    file = folder / f"{seed}.yaml"
    file.write_text("\n".join(merged(lines)), encoding="utf-8")
    return file, flags, values, not wrong


def nested_lines(key: str, value: str) -> list[tuple[str, str, str]]:
    section, dot, name = key.partition(".")
    return [(section, name, value) if dot else ("", section, value)]


def merged(lines: list[tuple[str, str, str]]) -> list[str]:
    """The lines of a YAML file, with the keys of each section together."""
    text: list[str] = []
    for section in dict.fromkeys(section for section, _, _ in lines):
        indent = "  " if section else ""
        text += [f"{section}:"] if section else []
        text += [f"{indent}{name or EMPTY}: {value}" for own, name, value in lines if own == section]
    return text


def value_at(config: StudyConfig, key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return value


def says(got: Any, written: Any) -> bool:
    """Whether a value of the configuration is what the YAML text says."""
    if is_dataclass(got):
        if isinstance(written, str):  # the short form
            return written in [getattr(got, each.name) for each in fields(got)] or says_model(got, written)
        return written is None or all(says(getattr(got, key), value) for key, value in written.items())
    if isinstance(got, tuple):
        if isinstance(written, str):
            written = [item.strip() for item in written.split(",") if item.strip()]
        written = written or []
        return len(got) == len(written) and all(says(*pair) for pair in zip(got, written, strict=True))
    if isinstance(got, Mapping):
        return dict(got) == (written or {})
    if isinstance(got, float):
        return got == float(written) or (is_nan(got) and is_nan(float(written)))
    return bool(got == written and type(got) is type(written))


def says_model(got: Any, written: str) -> bool:
    model = getattr(got, "model", None)
    return getattr(got, "context", None) == written or getattr(model, "model", None) == written


def test_a_configuration_is_accepted_exactly_if_all_its_values_are_valid(tmp_path):
    accepted = refused = 0
    for seed in cases(500, 1200):
        file, flags, values, valid = known_case(seed, tmp_path)

        def checked(file: Path | None = file, flags: list[str] = flags) -> StudyConfig:
            config = read_config(file, flags)
            Study(config).check()
            return config

        config, message = outcome((seed, values if len(str(values)) < 500 else ""), checked)
        assert (config is not None) == valid, f"case {seed}: {str(values)[:500]}: {message or 'accepted'}"
        if config is not None:
            accepted += 1
            for key, text in values.items():
                assert says(value_at(config, key), read_raw(text)), f"case {seed}: {key}={text}"
        else:
            refused += 1
    assert min(accepted, refused) > 50


PIECES = [
    b"0b_",
    b"2020-13-45",
    b"&a ",
    b"*a",
    b"[",
    b"]",
    b"{",
    b"}",
    b": ",
    b"\n  ",
    b"\n- ",
    b"!!int ",
    b"!!python/name:os.x ",
    b"<<: *a\n",
    b"\t",
    b"\x00",
    b"\xff",
    b"\xed\xa0\x80",
    b'"\\ud800"',
    b"%YAML 9.9\n",
    b"---\n",
    b"...\n",
    b"|\n",
    b"? ",
    b"#",
    b"'",
    b'"',
    b"\xe2\x80\xa8",
    b"\xef\xbb\xbf",
    b"[" * 2000,
    b"9" * 5000,
    b"null",
    b"~",
    b".nan",
    b"1e400",
    b"0x_",
    b"12:30:45",
    b"seed: 1\n",
    b"student: x\n",
    b"<<: {seed: 1}\n",
    b"=",
    b"!!set {a}",
    b"!!binary x",
    b"!!omap [a: 1]",
    b"\x1b[31m",
    b"@",
    b"`",
]


def test_a_damaged_file_is_read_as_written_or_refused(tmp_path):
    originals = [file.read_bytes() for file in builtin_configs().values()]
    assert originals
    accepted = 0
    for seed in cases(200, 1000):
        rng = random.Random(f"text {seed}")
        text = mutated(rng.choice(originals), rng, PIECES)
        file = tmp_path / "damaged.yaml"
        file.write_bytes(text)
        config, _ = outcome(seed, lambda file=file: read_config(file))
        if config is not None:
            accepted += 1
            tree = yaml.safe_load(text.decode("utf-8-sig")) or {}
            assert all(says(getattr(config, key), value) for key, value in tree.items()), f"case {seed}"
    assert accepted > 5


VALUES = [
    "",
    "0",
    "-1",
    "1",
    "x",
    "nan",
    "1e400",
    "9" * 30,
    "\udcff",
    "a\nb",
    "[",
    "{",
    "../x",
    "~",
    "=",
    "''",
    "\x1b[31m",
    "x" * 5000,
    "seed=1",
]
FLAGS = [
    "--limit",
    "--seed",
    "--initial",
    "--targeted",
    "--seconds",
    "--n-sig",
    "--batch",
    "--workers",
    "--task",
    "--data",
    "--teachers",
    "--student",
    "--backend",
    "--estimator",
    "--allocation",
    "--objectives",
    "--config",
    "--bins",
    "--questions-from",
    "--set",
    "--reuse",
    "--gpus",
    "--hardware",
    "--processes",
    "--tokens-per-second",
    "--dollars-per-gpu-hour",
    "--calibrate-from",
]


def test_a_command_line_ends_with_a_plan_or_with_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    planned: list[Study] = []
    monkeypatch.setattr(opd_align.cli.commands, "_print_plan", lambda args, study: planned.append(study) or 0)
    refused = 0
    for seed in cases(80, 200):
        rng = random.Random(f"flags {seed}")
        flags = [text for _ in range(rng.randint(1, 3)) for text in (rng.choice(FLAGS), rng.choice(VALUES))]

        def run(flags: list[str] = flags) -> int:
            try:
                return main(["analyze", "--limit", "2", "--dry-run", "--out", str(tmp_path / "run"), *flags])
            except SystemExit as end:  # argparse
                return int(end.code or 0)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code, message = outcome((seed, str(flags)[:300]), run)
        shown = capsys.readouterr().err
        assert message is None, "main reports errors itself"
        assert "Traceback" not in shown
        assert code in (0, 2), f"case {seed}: {flags}"
        refused += code == 2
    assert planned
    assert refused > 20
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", sorted(key for key, (valid, _) in KEYS.items() if valid))
def test_the_table_of_keys_exists_in_the_configuration(key):
    assert value_at(StudyConfig(), key) is not Ellipsis
