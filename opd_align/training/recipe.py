"""What the recipes share: their command line, the questions they train on and hold out, and how models are loaded.

Recipes are scripts that people read and change; what is the same in all of them and teaches nothing is here. What is
wrong with a command line or a configuration is said in one line, before any model is loaded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import yaml
from trl import TrlParser, get_quantization_config

from opd_align.backends.loading import load_tokenizer, resolve_reference
from opd_align.tasks import TASKS, Task, task
from opd_align.types import OpdAlignError, Question

GRACE_S = 10.0

# -- the command line


class _Parser(TrlParser):  # type: ignore[misc]
    def error(self, message: str) -> NoReturn:
        raise OpdAlignError(message)  # argparse would print several hundred flags before it


def told(*kinds: type) -> tuple[Any, ...]:
    """What the command line and its YAML file say, one record for each kind; refuses what nobody reads."""
    parser = _Parser(kinds)
    for action in parser._actions:
        if getattr(action.type, "__name__", None) == "dict":
            action.type = partial(mapping, action.dest)  # TRL takes some of its mappings from YAML only
    try:
        *records, in_file, on_line = parser.parse_args_and_config(
            return_remaining_strings=True, separate_remaining_strings=True
        )
    except (ValueError, TypeError, OSError, ImportError, yaml.YAMLError) as error:
        raise OpdAlignError(" ".join(str(error).split())) from error
    for where, unread in (("", on_line), (" in the configuration", in_file)):
        if unread:
            name = unread[0].partition("=")[0]
            near = get_close_matches(name, parser._option_string_actions, n=1)
            hint = f"did you mean {near[0]}?" if near else "--help lists all of them"
            raise OpdAlignError(f"there is no {name if not where else name.lstrip('-')!r}{where}; {hint}")
    return tuple(records)


def start(main: Callable[[], None]) -> None:
    """Runs a recipe; what its user can put right ends it in one line and exit code 2."""
    try:
        main()
    except OpdAlignError as error:
        if not _first():
            # What is wrong for all is said by the first process, whose end ends the others; what is wrong here, by us.
            time.sleep(GRACE_S)
        print(f"opd-align: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None


def announce(what: str) -> None:
    """Says it once, however many processes there are."""
    if _first():
        print(what, flush=True)


def _first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuses what is none of the choices."""
    if value not in choices:
        near = get_close_matches(value, choices, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise OpdAlignError(f"{name} is one of {', '.join(choices)}, not {value!r}{hint}")


# -- questions


@dataclass
class Questions:
    """Questions to train on and to hold out; fields as TRL's parser takes them."""

    task: str = field(default="arithmetic", metadata={"help": f"one of {', '.join(TASKS)}"})
    train_file: str | None = field(default=None, metadata={"help": "JSON lines, CSV or Parquet instead of the Hub"})
    held_out_file: str | None = field(default=None, metadata={"help": "the same for the held-out questions"})
    train_split: str = field(default="train", metadata={"help": "split to train on"})
    train_questions: int = field(default=2000, metadata={"help": "at most so many"})
    held_out_questions: int = field(default=8, metadata={"help": "of the task's test split, for the callback"})
    every_n_steps: int = field(default=50, metadata={"help": "steps between the callback's evaluations"})
    max_overhead: float = field(default=0.05, metadata={"help": "share of the wall time that evaluations may take"})
    dry_run: bool = field(default=False, metadata={"help": "say what would be done, and stop before any model"})

    def __post_init__(self) -> None:
        task(self.task)
        for name in ("train_questions", "held_out_questions", "every_n_steps"):
            if getattr(self, name) < 1:
                raise OpdAlignError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.max_overhead <= 1:
            raise OpdAlignError(
                f"max_overhead is a share of the wall time, above 0 and at most 1, not {self.max_overhead}"
            )

    @property
    def asked(self) -> Task:
        return task(self.task)

    def held_out(self) -> list[Question]:
        return _answered(self.asked.load(self.held_out_file, limit=self.held_out_questions))

    def prompts(self) -> Any:
        """A data set for trainers whose student writes: the conversation so far, the gold answer."""
        from datasets import Dataset

        rows = [{"prompt": self.asked.messages(question), **_columns(question)} for question in self._trained_on()]
        return Dataset.from_list(rows)

    def dialogues(self) -> Any:
        """A data set for GKD, which wants a reply in each row; with `lmbda: 1` it is never read."""
        from datasets import Dataset

        rows = []
        for question in self._trained_on():
            reply = {"role": "assistant", "content": f"Answer: {question.answer}"}
            rows.append({"messages": [*self.asked.messages(question), reply], **_columns(question)})
        return Dataset.from_list(rows)

    def _trained_on(self) -> list[Question]:
        return _answered(self.asked.load(self.train_file, split=self.train_split, limit=self.train_questions))


def _columns(question: Question) -> dict[str, Any]:
    choices = question.fields.get("choices")
    return {"answer": question.answer, **({"choices": list(choices)} if choices else {})}


def _answered(questions: list[Question]) -> list[Question]:
    answered = [question for question in questions if question.answer is not None]
    if not answered:
        raise OpdAlignError("none of the questions has an answer, so nothing can be verified")
    return answered


# -- models


def place(reference: str | None, key: str = "model_name_or_path") -> str:
    """A model's folder or Hub name; `embedded:student` and `embedded:teacher` ship with the package."""
    if not reference:
        raise OpdAlignError(f"no model is named; give {key}")
    found, options = resolve_reference(reference)
    if options:
        raise OpdAlignError(
            f"{reference!r} cannot be trained on; give {key} a folder or the name of a model on the Hub"
        )
    return found


def load_as_told(training: Any, model: Any) -> None:
    """Puts what `ModelConfig` says of loading where TRL's trainers look for it.

    The configuration's own `model_init_kwargs` have the last word, as in TRL's scripts. A teacher is loaded like the
    student but never quantised unasked: it would no longer be the one that was to be learnt from.
    """
    if model.model_revision != "main" and Path(place(model.model_name_or_path)).is_dir():
        raise OpdAlignError(f"model_revision is for models on the Hub; {model.model_name_or_path!r} is a folder")
    quantised = get_quantization_config(model) if _quantisable(model) else None
    own = {"revision": model.model_revision, "quantization_config": quantised, **_in_common(training, model)}
    training.model_init_kwargs = _known(own) | (training.model_init_kwargs or {})
    if hasattr(training, "teacher_model_init_kwargs"):
        training.teacher_model_init_kwargs = for_teacher(training, model, training.teacher_model_init_kwargs)


def for_teacher(training: Any, model: Any, given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """How a teacher is loaded; `given` has the last word, on the command line as JSON."""
    own = {"revision": getattr(training, "teacher_model_revision", None), **_in_common(training, model)}
    return _known(own) | mapping("teacher_model_init_kwargs", given)


def tokenizer(training: Any, model: Any) -> Any:
    """The student's tokenizer, of the revision that is trained."""
    chosen = training.model_init_kwargs or {}
    options = {name: chosen[name] for name in ("revision", "trust_remote_code") if name in chosen}
    return load_tokenizer(model.model_name_or_path, **options)


def with_template_defaults(tokenizer: Any, arguments: Mapping[str, Any]) -> Any:
    """The tokenizer, its chat template changed to take these arguments where a caller gives none.

    For trainers that pass no arguments to the template: GKD's collator. Whoever asks the template later (the callback,
    and users of the saved model) gets the same prompts as the training, and can still overrule it by an argument.
    """
    if arguments and not isinstance(tokenizer.chat_template, str):
        raise OpdAlignError("chat_template_kwargs were given, but the model's tokenizer has no chat template")
    # Jinja reads Python's literals.
    defaults = [
        f"{{%- set {name} = {name} if {name} is defined else {value!r} %}}" for name, value in arguments.items()
    ]
    if defaults:
        tokenizer.chat_template = "".join(defaults) + tokenizer.chat_template
    return tokenizer


def mapping(name: str, given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """A setting that is a mapping in YAML and JSON on the command line."""
    try:
        read = json.loads(given) if isinstance(given, str) else given or {}
    except ValueError:
        read = None
    if not isinstance(read, Mapping):
        raise OpdAlignError(f"{name} is a mapping, on the command line as JSON, not {given!r}")
    return dict(read)


def _in_common(training: Any, model: Any) -> dict[str, Any]:
    return {
        "trust_remote_code": training.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }


def _quantisable(model: Any) -> bool:
    if not (model.load_in_4bit or model.load_in_8bit):
        return False
    if not model.use_peft:
        raise OpdAlignError("quantised weights cannot be trained, only an adapter beside them; add --use_peft")
    if find_spec("bitsandbytes") is None:
        raise OpdAlignError("load_in_4bit and load_in_8bit need bitsandbytes: pip install bitsandbytes")
    return True


def _known(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
