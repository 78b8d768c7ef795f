"""Commands and flags that other tools have, answered with those of this one.

A parser with one-line errors: what was given, what it is called here, and where to read more.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

COMMANDS = {
    "analyse": "analyze", "analysis": "analyze", "run": "analyze", "eval": "analyze", "evaluate": "analyze",
    "start": "analyze", "check": "doctor", "validate": "doctor", "view": "report", "show": "report", "diff": "compare",
    "monitor": "dashboard", "serve": "dashboard", "prompt": "show-prompt", "dpo": "export",
}  # fmt: skip
"""What people type → our command."""

FLAGS = {
    "--model": "--student", "--model_name_or_path": "--student", "--model_args": "--student",
    "--pretrained": "--student", "-m": "--student", "--teacher": "--teachers", "--teacher_model": "--teachers",
    "--teacher_model_name_or_path": "--teachers", "--contexts": "--teachers", "--tasks": "--task",
    "--benchmark": "--task", "--dataset": "--task", "--dataset_name": "--task", "--data_files": "--data",
    "--questions": "--data", "--input": "--data", "--output_path": "--out", "--output_dir": "--out",
    "--output": "--out", "-o": "--out", "--log_dir": "--out", "--num_samples": "--limit", "--num_questions": "--limit",
    "--max_samples": "--limit", "--num_generations": "--initial", "--num_rollouts": "--initial",
    "--rollouts_per_question": "--initial", "--batch_size": "--batch", "--per_device_eval_batch_size": "--batch",
    "--loss": "--objectives", "--losses": "--objectives", "--objective": "--objectives", "--beta": "--objectives",
    "--engine_type": "--backend", "--use_vllm": "--backend", "--inference": "--backend", "--resume": "--out",
    "--num_workers": "--workers", "--random_seed": "--seed", "--config_file": "--config",
    "--temperature": "--set sampling.temperature=...", "--top_p": "--set sampling.top_p=...",
    "--top_k": "--set sampling.top_k=...", "--max_tokens": "--set sampling.max_tokens=...",
    "--max_new_tokens": "--set sampling.max_tokens=...", "--max_completion_length": "--set sampling.max_tokens=...",
    "--device": "--set student.device=...", "--dtype": "--set student.dtype=...",
    "--num_fewshot": "--teachers (contexts such as Self-1C show demonstrations)",
}  # fmt: skip
"""What people type, with underscores → our flag."""


class Parser(argparse.ArgumentParser):
    """An argument parser that names the command or flag that was probably meant."""

    def error(self, message: str) -> NoReturn:
        found = re.search(r"argument COMMAND: invalid choice: '(.*?)' ", message)
        if found:
            message = unknown_command(found[1], list(commands_of(self)))
        self.exit(2, f"opd-align: {message}\nRun `{self.prog} --help` for the options.\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        known, rest = self.parse_known_args(args, namespace)
        if rest:
            parser = commands_of(self).get(getattr(known, "command", None) or "", self)
            given = [text for text in (sys.argv[1:] if args is None else args) if text.startswith("-")]
            flag = next((text for text in rest if text in given), rest[0])
            parser.error(unknown_flag(flag, flags_of(parser), parser.prog.removeprefix("opd-align ")))
        return known


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The commands of a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    """The flags of a parser, in their order."""
    return [flag for action in parser._actions for flag in action.option_strings]


def unknown_command(name: str, commands: Sequence[str]) -> str:
    """An error message about a command that does not exist."""
    near = [COMMANDS[name.lower()]] if name.lower() in COMMANDS else get_close_matches(name.lower(), commands, 1, 0.6)
    if near:
        return f"there is no command {name!r}; did you mean: opd-align {near[0]}"
    return f"there is no command {name!r}; available: {', '.join(commands)}"


def unknown_flag(given: str, flags: Sequence[str], command: str) -> str:
    """An error message about an argument that does not exist."""
    name, _, value = given.partition("=")
    if not name.startswith("-"):
        return f"unexpected argument {given!r}"
    ours = FLAGS.get(name.replace("-", "_").replace("__", "--", 1) if name.startswith("--") else name)
    if ours is not None and ours.split()[0] in flags:
        return f"{command} has no {name}; use {f'{ours} {value}' if value and ' ' not in ours else ours}"
    hyphens = name.replace("_", "-")
    near = [hyphens] if hyphens in flags else get_close_matches(hyphens, flags, 1, 0.7)
    return f"{command} has no {name}" + (f"; did you mean {near[0]}?" if near else "")
