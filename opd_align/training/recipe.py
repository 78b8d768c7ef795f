"""What the recipes share: parsing of arguments, training and held-out questions, and model loading.

Recipes are scripts to be read and changed; boilerplate that is the same in all of them is here. Errors in the command
line or the configuration are reported in one line, before any model is loaded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import yaml
from torch import distributed
from trl import TrlParser, get_quantization_config

from opd_align.backends.load_options import LoadOptions
from opd_align.backends.loading import load_model, load_tokenizer, resolve_reference
from opd_align.tasks import TASKS, Task, task
from opd_align.tasks.task import Source
from opd_align.teachers.contexts import CONTEXTS
from opd_align.training.alignment_schedule import FOLLOW, ON_HARM, AlignmentSchedule
from opd_align.training.contrast import sample_hints
from opd_align.types import OpdAlignError, Question

NO_SCHEDULE = "none"

RANK_0_GRACE_S = 10.0
"""How long other processes wait before they report an error: rank 0 reports first if it has the same."""

# -- the command line


class _Parser(TrlParser):  # type: ignore[misc]
    def error(self, message: str) -> NoReturn:
        raise OpdAlignError(message)  # argparse would print a usage of several hundred flags before it


def parse_arguments(*dataclasses: type) -> tuple[Any, ...]:
    """The command line and its YAML file as instances of the dataclasses; refuses unknown arguments."""
    parser = _Parser(dataclasses)
    for action in parser._actions:
        if getattr(action.type, "__name__", None) == "dict":
            action.type = partial(parse_mapping, action.dest)  # TRL reads some of its mappings from YAML only
    try:
        *instances, unknown_in_file, unknown_flags = parser.parse_args_and_config(
            return_remaining_strings=True, separate_remaining_strings=True
        )
    except (ValueError, TypeError, OSError, ImportError, yaml.YAMLError) as error:
        raise OpdAlignError(" ".join(str(error).split())) from error
    for unknown, kind in ((unknown_flags, "argument"), (unknown_in_file, "key in the configuration")):
        if unknown:
            flag = unknown[0].partition("=")[0]
            similar = get_close_matches(flag, parser._option_string_actions, n=1)
            hint = f"did you mean {similar[0]}?" if similar else "see --help for all arguments"
            name = flag if kind == "argument" else flag.lstrip("-")
            raise OpdAlignError(f"unknown {kind}: {name!r}; {hint}")
    return tuple(instances)


def run_recipe(main: Callable[[], None]) -> None:
    """Runs a recipe and ends its process group; an error that its user can fix is one line, with exit code 2."""
    try:
        main()
    except OpdAlignError as error:
        if not _is_rank_0():
            # An error on all processes is reported by rank 0, whose exit ends the others; one on this process, by us.
            time.sleep(RANK_0_GRACE_S)
        print(f"opd-align: {error}", file=sys.stderr, flush=True)
        raise SystemExit(2) from None
    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()  # else its threads run while the interpreter shuts down


def print_on_rank_0(text: str) -> None:
    """Prints on the first process only."""
    if _is_rank_0():
        print(text, flush=True)


def _is_rank_0() -> bool:
    return os.environ.get("RANK", "0") == "0"


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Refuses a value that is not one of the choices."""
    if value not in choices:
        similar = get_close_matches(value, choices, n=1)
        hint = f"; did you mean {similar[0]!r}?" if similar else ""
        raise OpdAlignError(f"{name} must be one of {', '.join(choices)}, not {value!r}{hint}")


# -- questions


@dataclass
class QuestionArguments:
    """Training and held-out questions, and how often the callback evaluates.

    Args:
        task: Name of a built-in task.
        train_file: JSON lines, CSV or Parquet file with training questions; `None`: the task's data set on the Hub.
        held_out_file: The same for the held-out questions.
        train_split: Split of the data set to train on.
        train_questions: Maximum number of training questions.
        held_out_questions: Number of held-out questions.
        every_n_steps: Steps between evaluations of the callback.
        max_overhead: Share of the wall time that evaluations may take, above 0 and at most 1.
        on_harm: What an `AlignmentSchedule` does when the teacher no longer helps; "none": there is no schedule.
        follow: What that schedule follows: "alignment" or "pass_rate".
        dry_run: Check all arguments and stop before any model is loaded.
    """

    task: str = field(
        default="arithmetic",
        metadata={"help": f"Task: {', '.join(TASKS)}."},
    )
    train_file: str | None = field(
        default=None,
        metadata={
            "help": "JSON lines, CSV or Parquet file with training questions, instead of the data set on the Hub."
        },
    )
    held_out_file: str | None = field(
        default=None,
        metadata={
            "help": "JSON lines, CSV or Parquet file with held-out questions, instead of the data set on the Hub."
        },
    )
    train_split: str = field(default="train", metadata={"help": "Split to train on."})
    train_questions: int = field(default=2000, metadata={"help": "Maximum number of training questions."})
    held_out_questions: int = field(
        default=8, metadata={"help": "Number of held-out questions for the callback, from the task's test split."}
    )
    every_n_steps: int = field(default=50, metadata={"help": "Steps between evaluations of the callback."})
    max_overhead: float = field(default=0.05, metadata={"help": "Share of the wall time that evaluations may take."})
    on_harm: str = field(
        default=NO_SCHEDULE,
        metadata={"help": "When the teacher no longer helps: rollback, stop, zero (docs/acting.md), or none."},
    )
    follow: str = field(
        default="alignment",
        metadata={"help": "What --on_harm follows: alignment, or pass_rate (docs/acting.md)."},
    )
    dry_run: bool = field(default=False, metadata={"help": "Check all arguments and stop before loading any model."})

    def __post_init__(self) -> None:
        task(self.task)
        for name in ("train_questions", "held_out_questions", "every_n_steps"):
            if getattr(self, name) < 1:
                raise OpdAlignError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 < self.max_overhead <= 1:
            raise OpdAlignError(
                f"max_overhead must be a share of the wall time, above 0 and at most 1, not {self.max_overhead}"
            )

        check_choice("on_harm", self.on_harm, (NO_SCHEDULE, *ON_HARM))
        check_choice("follow", self.follow, FOLLOW)
        if self.follow == "pass_rate" and self.on_harm not in ("rollback", "stop"):
            raise OpdAlignError(
                f"follow='pass_rate' needs on_harm='rollback' or 'stop', not {self.on_harm!r}: it decides when to end"
            )

    def get_task(self) -> Task:
        return task(self.task)

    def held_out(self, kind: str | None = None) -> list[Question]:
        return self._load(self.held_out_file, kind, limit=self.held_out_questions)

    def prompt_dataset(self, columns: Mapping[str, Mapping[str, Any]] | None = None, *, kind: str | None = None) -> Any:
        """A data set of prompts and gold answers, for trainers that sample all completions.

        Args:
            columns: Further columns by question id; every question has them, or none.
            kind: Column of the questions whose value becomes the column `kind`.
        """
        from datasets import Dataset

        chosen = self.get_task()
        return Dataset.from_list(
            [
                {"prompt": chosen.messages(question), **_columns(question), **(columns[question.id] if columns else {})}
                for question in self.training_questions(kind)
            ]
        )

    def conversation_dataset(self) -> Any:
        """A data set for GKD, which needs a reply in each row; with `lmbda: 1` the replies are not used."""
        from datasets import Dataset

        chosen, rows = self.get_task(), []
        for question in self.training_questions():
            reply = {"role": "assistant", "content": f"Answer: {question.answer}"}
            rows.append({"messages": [*chosen.messages(question), reply], **_columns(question)})
        return Dataset.from_list(rows)

    def training_questions(self, kind: str | None = None) -> list[Question]:
        return self._load(self.train_file, kind, split=self.train_split, limit=self.train_questions)

    def check_kind(self, kind: str | None) -> None:
        """Refuses a column that not all questions have; without one they are not read."""
        if kind is not None:
            self.held_out(kind)
            self.training_questions(kind)

    def _load(self, file: str | None, kind: str | None, **options: Any) -> list[Question]:
        chosen = self.get_task()
        if kind is not None:  # also a column that the task itself does not read
            source = chosen.source or Source()
            chosen = replace(chosen, source=replace(source, fields={kind: kind, **source.fields}))
        questions = _with_answers(chosen.load(file, **options))
        return questions if kind is None else [_with_kind(question, kind) for question in questions]


KIND = "kind"
"""Field of the questions, and column of the data set, with the kind of a question."""


def _with_kind(question: Question, kind: str) -> Question:
    value = question.fields.get(kind)
    if value is None:
        known = ", ".join(question.fields) or "none"
        raise OpdAlignError(f"question {question.id!r} has no column {kind!r} for its kind; it has {known}")
    of = len(value) if isinstance(value, list | tuple) else value
    return replace(question, fields={**question.fields, KIND: str(of)})


def _columns(question: Question) -> dict[str, Any]:
    fields = question.fields
    choices = {"choices": list(fields["choices"])} if fields.get("choices") else {}
    return {"answer": question.answer, **choices, **({KIND: fields[KIND]} if KIND in fields else {})}


def _with_answers(questions: list[Question]) -> list[Question]:
    answered = [question for question in questions if question.answer is not None]
    if not answered:
        raise OpdAlignError("none of the questions has an answer, so completions cannot be verified")
    return answered


# -- acting on alignment


def add_schedule(trainer: Any, callback: Any, questions: QuestionArguments) -> None:
    """Adds an `AlignmentSchedule` that follows this callback, if `on_harm` asks for one."""
    if questions.on_harm != NO_SCHEDULE:
        schedule = AlignmentSchedule(callback, on_harm=questions.on_harm, follow=questions.follow)  # type: ignore[arg-type]
        trainer.add_callback(schedule)


def parse_teachers(given: Sequence[str] | Mapping[str, str] | str | None) -> dict[str, str]:
    """Teachers by name, from `name=path` (in YAML also a mapping): folders, names on the Hub, or names of contexts."""
    found: dict[str, str] = {}
    if isinstance(given, Mapping):
        given = [f"{name}={path or ''}" for name, path in given.items()]
    for each in [given] if isinstance(given, str) else given or ():
        name, equals, path = str(each).partition("=")
        if not equals or not name.strip():
            raise OpdAlignError(f"teachers must be given as name=path, not {each!r}")
        if name.strip() in found:
            raise OpdAlignError(f"there are two teachers with the name {name.strip()!r}")
        path = path.strip()
        shown = {context.lower(): context for context in CONTEXTS}.get(path.lower())
        found[name.strip()] = shown or resolve_model(path, "teachers")
    if not found:
        raise OpdAlignError("no teachers given; set teachers to one or more name=path")
    return found


# -- models


def resolve_model(reference: str | None, key: str = "model_name_or_path") -> str:
    """A model's folder or Hub name; `embedded:student` and `embedded:teacher` ship with the package."""
    if not reference:
        raise OpdAlignError(f"no model given; set {key}")
    found, options = resolve_reference(reference)
    if options:
        raise OpdAlignError(
            f"{reference!r} cannot be used for training; set {key} to a folder or to the name of a model on the Hub"
        )
    return found


def set_model_init_kwargs(training: Any, model: Any) -> None:
    """Copies the loading options of `ModelConfig` to the training arguments, where TRL's trainers read them.

    The configuration's own `model_init_kwargs` take precedence, as in TRL's scripts. The teacher gets the student's
    options, but quantization only if `teacher_model_init_kwargs` asks for it: it would change what is distilled.
    """
    if model.model_revision != "main" and Path(resolve_model(model.model_name_or_path)).is_dir():
        raise OpdAlignError(f"model_revision applies to models on the Hub; {model.model_name_or_path!r} is a folder")
    quantization = get_quantization_config(model) if _check_quantization(model) else None
    own = {"revision": model.model_revision, "quantization_config": quantization, **_common_options(training, model)}
    training.model_init_kwargs = _without_none(own) | (training.model_init_kwargs or {})
    if hasattr(training, "teacher_model_init_kwargs"):
        training.teacher_model_init_kwargs = teacher_init_kwargs(training, model, training.teacher_model_init_kwargs)


def teacher_init_kwargs(training: Any, model: Any, given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """The teacher's loading options; those in `given` (on the command line as JSON) take precedence."""
    own = {"revision": getattr(training, "teacher_model_revision", None), **_common_options(training, model)}
    return _without_none(own) | parse_mapping("teacher_model_init_kwargs", given)


def load_student_tokenizer(training: Any, model: Any) -> Any:
    """The student's tokenizer, from the same revision as the model."""
    chosen = training.model_init_kwargs or {}
    options = {name: chosen[name] for name in ("revision", "trust_remote_code") if name in chosen}
    return load_tokenizer(model.model_name_or_path, **options)


def student_hints(questions: QuestionArguments, training: Any, model: Any) -> dict[str, dict[str, str | None]]:
    """Solutions of the training questions that the student writes, with the training's prompts and loading options."""
    chosen, names = training.model_init_kwargs or {}, ("revision", "trust_remote_code", "attn_implementation")
    quantization: Any = "4bit" if model.load_in_4bit else "8bit" if model.load_in_8bit else None
    options = LoadOptions(quantization=quantization, **{name: chosen[name] for name in names if name in chosen})
    dtype = str(chosen.get("dtype", "auto")).removeprefix("torch.")
    loaded = load_model(model.model_name_or_path, dtype=dtype, load=options)
    return sample_hints(
        loaded.model,
        loaded.tokenizer,
        questions.get_task(),
        questions.training_questions(),
        max_tokens=training.max_completion_length,
        template=training.chat_template_kwargs,
    )


def with_template_defaults(tokenizer: Any, arguments: Mapping[str, Any]) -> Any:
    """The tokenizer with a chat template that has these arguments as defaults.

    For trainers that pass no arguments to the template, such as GKD. Later users of the tokenizer (the callback, and
    users of the saved model) get the same prompts as the training, and can still override the defaults.
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


def parse_mapping(name: str, given: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """A setting that is a mapping in YAML and JSON on the command line."""
    try:
        read = json.loads(given) if isinstance(given, str) else given or {}
    except ValueError:
        read = None
    if not isinstance(read, Mapping):
        raise OpdAlignError(f"{name} must be a mapping, on the command line as JSON, not {given!r}")
    return dict(read)


def _common_options(training: Any, model: Any) -> dict[str, Any]:
    return {
        "trust_remote_code": training.trust_remote_code,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
    }


def _check_quantization(model: Any) -> bool:
    if not (model.load_in_4bit or model.load_in_8bit):
        return False
    if not model.use_peft:
        raise OpdAlignError("quantized weights cannot be trained, only an adapter on top of them; add --use_peft")
    if find_spec("bitsandbytes") is None:
        raise OpdAlignError("load_in_4bit and load_in_8bit require bitsandbytes: pip install bitsandbytes")
    return True


def _without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
