"""The configuration of a study, from YAML files and command-line flags.

A configuration holds plain values, by default those of `opd_align.settings`. It is checked as a whole before a model is
loaded; an error about an unknown key suggests the most similar known one. `Study` creates the objects that the engine
takes (student, teachers, questions, grader) from it; configuration objects are not used beyond that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from opd_align.backends.base import find_backend
from opd_align.backends.http_pool import HttpSettings, server_urls
from opd_align.backends.load_options import LoadOptions
from opd_align.core.objectives import OBJECTIVES, GeneralisedJSD, Objective
from opd_align.settings import BATCH, Budget, Method, Rules, Scoring, Settings
from opd_align.study.yaml_values import parse_yaml
from opd_align.teachers.contexts import CONTEXTS
from opd_align.types import OpdAlignError, is_valid_text, printable, shortened

T = TypeVar("T")

CONFIGS = Path(__file__).parent / "configs"

EMBEDDED_STUDENT = "embedded:student"

MAX_INTEGER = 2**53
"""Largest whole number: every tool that reads a run directory represents it exactly."""
MAX_TEXT, MAX_INSTRUCTION = 1_000, 100_000
"""Number of characters of a name or path, and of an instruction."""
MAX_NAME = 80
"""Number of characters of an unknown name that an error message shows."""


@dataclass(frozen=True)
class ModelConfig:
    """A model and how it samples. Scoring always uses local weights.

    Args:
        model: A local folder, a .gguf file, a Hub name, `embedded:student` or `embedded:teacher`.
        name: The name in results. `None`: derived from `model`.
        adapter: A PEFT adapter, as a folder or Hub name. `None`: no adapter.
        dtype: A torch dtype such as `bfloat16`; `auto`: that of the checkpoint.
        device: A torch device such as `cuda:1`; `auto`: a GPU if there is one.
        thinking: Switches the thinking mode of the chat template on or off. `None`: the template's default.
        backend: What samples: `hf`, `vllm`, `server`, or the import name of a module that defines a `Backend`.
        url: With backend `server`: the URL of the server, or of several servers of the same model.
        served_as: With backend `server`: the model's name on the server. `None`: `model`.
        http: With backend `server`: connection settings, such as timeouts.
        options: With backend `vllm`: further arguments of the vLLM engine.
        load: How it is loaded: revision, attention, quantisation, several GPUs, a vLLM engine's memory.
    """

    model: str
    name: str | None = None
    adapter: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    thinking: bool | None = None
    backend: str = "hf"
    url: Sequence[str] = ()
    served_as: str | None = None
    # Connection settings do not change results: not part of a study's name.
    http: HttpSettings = field(default_factory=HttpSettings, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)
    load: LoadOptions = field(default_factory=LoadOptions)

    def __post_init__(self) -> None:
        _check_name(self.name)
        if isinstance(self.url, str):
            object.__setattr__(self, "url", (self.url,))
        backend = find_backend(self.backend)
        if backend.remote and not self.url:
            raise OpdAlignError(f"model {self.model!r} has backend {self.backend} but no url")
        server_urls(self.url)
        if not backend.remote and (self.url or self.served_as or self.http != HttpSettings()):
            raise OpdAlignError(f"model {self.model!r} has a url, served_as or http, but its backend is {self.backend}")
        if self.adapter and not backend.adapters:
            raise OpdAlignError(
                f"model {self.model!r}: backend {self.backend} would sample without the adapter; merge it into the "
                "weights, or use a backend that supports adapters"
            )
        self.load.check(self.model, backend=self.backend, device=self.device, options=self.options)


@dataclass(frozen=True)
class TeacherConfig:
    """A teacher: a context of the student, a model, or both (another model with a context).

    Args:
        name: The name in results. `None`: the name of the context or the model.
        context: A built-in context by name, such as `Self-1C`. `None`: none, or one defined by `correct` and `wrong`.
        model: The teacher's model. `None`: the student.
        correct: For a context of your own: number of correct demonstrations in the prompt.
        wrong: For a context of your own: number of incorrect demonstrations in the prompt.
        summarised: For a context of your own: whether the demonstrations are summaries of responses.
        source: Who writes the demonstrations: `self` (the student) or `source` (the model `StudyConfig.source`).
            `None`: as defined by the context, otherwise `self`.
    """

    name: str | None = None
    context: str | None = None
    model: ModelConfig | None = None
    correct: int | None = None
    wrong: int | None = None
    summarised: bool = False
    source: str | None = None

    def __post_init__(self) -> None:
        _check_name(self.name, in_paths=False)


@dataclass(frozen=True)
class TaskConfig:
    """A built-in task, or the format of your own data.

    Args:
        name: The name of a built-in task; with `kind`, any name for your own.
        kind: For your own data: the kind of answer. `None`: a built-in task.
        question: For your own data: the field with the question.
        answer: For your own data: the field with the answer.
        choices: For your own data: the field with the answer choices. `None`: no choices.
        passage: For your own data: the field with a text that the question is about. `None`: no passage.
        instruction: For your own data: the instruction in the prompt. `None`: the default for the kind.
        hub: For your own data: the dataset on the Hub. `None`: read from a file.
        hub_config: For your own data: the configuration of the dataset. `None`: its default.
        split: The split of the dataset. `None`: the task's default.
    """

    name: str
    kind: Literal["choice", "true_false", "number", "maths"] | None = None
    question: str = "question"
    answer: str = "answer"
    choices: str | None = None
    passage: str | None = None
    instruction: str | None = None
    hub: str | None = None
    hub_config: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        if self.kind is not None:  # otherwise one of the built-in tasks
            _check_name(self.name)
        custom_keys = [key.name for key in fields(self) if key.name not in ("name", "kind", "split")]
        given = [name for name in custom_keys if getattr(self, name) != getattr(type(self), name)]
        if self.kind is None and given:
            raise OpdAlignError(f"{given[0]} is for your own data and needs a kind; {self.name!r} is a built-in task")


@dataclass(frozen=True)
class QuestionsConfig:
    """Which questions are used.

    Args:
        file: A file with questions. `None`: the task's dataset on the Hub.
        limit: The maximum number of questions. `None`: all.
        offset: How many questions are skipped at the start.
        ids: The IDs of the questions. Empty: all.
        screening: A finished screening, whose questions in `bins` are used. `None`: no screening.
        bins: Difficulty bins of the screening. `None`: medium and hard.
        seed: The seed of tasks that generate their questions.
    """

    file: str | None = None
    limit: int | None = None
    offset: int = 0
    ids: Sequence[str] = ()
    screening: str | None = None
    bins: Sequence[str] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.offset < 0 or (self.limit is not None and self.limit < 0):
            raise OpdAlignError(f"offset ({self.offset}) and limit ({self.limit}) must be at least 0")
        if self.ids and self.screening is not None:
            raise OpdAlignError("ids and screening both select questions; set only one of them")


@dataclass(frozen=True)
class SamplingConfig:
    """How completions are sampled.

    Args:
        temperature: Sampling temperature, above 0.
        top_p: Nucleus sampling: cumulative probability, in (0, 1].
        top_k: Number of most probable tokens to sample from; 0: all.
        max_tokens: Maximum length of a completion, in tokens.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 2048


@dataclass(frozen=True)
class DemonstrationsConfig:
    """How demonstrations are sampled.

    Args:
        temperature: Sampling temperature, above 0.
        trials: Maximum number of responses per question that are sampled to find demonstrations.
        max_tokens: Maximum length of a response, in tokens. `None`: as in `SamplingConfig`.
    """

    temperature: float = 0.7
    trials: int = 60
    max_tokens: int | None = None


@dataclass(frozen=True)
class StudyConfig:
    """The configuration of a study.

    Args:
        student: The student model.
        teachers: The teachers to compare.
        task: The task, which defines prompts and grading.
        questions: Which questions of the task are used.
        source: A model that writes demonstrations for contexts with source `source`. `None`: no such contexts.
        summariser: The model that summarises demonstrations. `None`: `source`, otherwise the student.
        sampling: How the student samples.
        scoring: In which precision, and with how much memory, paths are scored.
        demonstrations: How demonstrations are sampled.
        rollouts: Rollouts per question and context in a screening, at least 1.
        budget: How many rollouts an analysis samples per question.
        rules: Rules of the estimates and intervals.
        objectives: The distillation objectives to compare, by name; `jsd(0.3)` is the generalised JSD with β = 0.3.
        estimator: How success probabilities are estimated.
        shrink: Whether estimates are shrunk towards a prior.
        batch: Number of rollouts per request to the backend, at least 1.
        questions_per_group: Number of questions that are analyzed together, at least 1. Their rollouts are sampled in
            one call, which helps where those of one question do not fill the device.
        seed: The seed of all sampling.
    """

    student: ModelConfig = field(default_factory=lambda: ModelConfig(EMBEDDED_STUDENT))
    teachers: Sequence[TeacherConfig] = ()
    task: TaskConfig = field(default_factory=lambda: TaskConfig("arithmetic"))
    questions: QuestionsConfig = field(default_factory=QuestionsConfig)
    source: ModelConfig | None = None
    summariser: ModelConfig | None = None
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    scoring: Scoring = field(default_factory=Scoring)
    demonstrations: DemonstrationsConfig = field(default_factory=DemonstrationsConfig)
    rollouts: int = 32
    budget: Budget = field(default_factory=Budget)
    rules: Rules = field(default_factory=Rules)
    objectives: Sequence[str] = ("reverse_kl",)
    estimator: Method = "backup"
    shrink: bool = True
    batch: int = BATCH
    questions_per_group: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rollouts", "batch", "questions_per_group"):
            if getattr(self, name) < 1:
                raise OpdAlignError(f"{name} must be at least 1, not {getattr(self, name)}")

    def settings(self) -> Settings:
        """The settings of the analysis."""
        return Settings(
            [objective_by_name(name) for name in self.objectives],
            self.budget,
            self.rules,
            self.estimator,
            self.shrink,
            self.batch,
            self.questions_per_group,
        )


def objective_by_name(name: str) -> Objective:
    """A built-in objective; `jsd(0.3)` is the generalised JSD with β = 0.3."""
    by_name = {objective.name: objective for objective in OBJECTIVES}
    if name in by_name:
        return by_name[name]
    if name.startswith("jsd(") and name.endswith(")"):
        try:
            return GeneralisedJSD(float(name[4:-1]))
        except ValueError:
            pass
    raise OpdAlignError(f"objectives: {_unknown('objective', name, [*by_name, 'jsd(β)'])}")


def read_config(file: str | Path | None = None, overrides: Sequence[str] = ()) -> StudyConfig:
    """Reads a YAML file, or a built-in configuration by its name, and applies overrides.

    Args:
        file: The YAML file or the name. `None`: the defaults.
        overrides: `key=value`, with dots for nested keys: `budget.initial=100`. Later ones take precedence.
    """
    tree: dict[str, Any] = {}
    if file is not None:
        tree = _read_tree(_config_file(file))
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign:
            raise OpdAlignError(f"an override must have the form key=value, not {shortened(override)}")
        try:
            value = parse_yaml(text)
        except OpdAlignError as error:
            raise OpdAlignError(f"the value of {shortened(key)} is {shortened(text)}: {error}") from error
        _set(tree, key.strip().split("."), value)
    if isinstance(tree.get("student"), dict):
        tree["student"].setdefault("model", EMBEDDED_STUDENT)
    return parse_dataclass(StudyConfig, tree, "")


def _read_tree(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a name that no file can have
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise OpdAlignError(f"cannot read the configuration {shortened(str(file), 500)}: {reason}") from error
    try:
        tree = parse_yaml(text)
    except OpdAlignError as error:
        raise OpdAlignError(f"{str(file)!r}: {error}") from error
    if not isinstance(tree, dict | None):
        raise OpdAlignError(f"{str(file)!r} must contain keys and values, not {type(tree).__name__}")
    return tree or {}


def builtin_configs() -> dict[str, Path]:
    """The configurations that are part of the package, by name."""
    return {file.stem: file for file in sorted(CONFIGS.glob("*.yaml"))}


def _config_file(name: str | Path) -> Path:
    path = Path(name)
    if os.path.isfile(path) or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    known = builtin_configs()
    if str(name) not in known:
        raise OpdAlignError(f"{_unknown('configuration', str(name), list(known))} (or pass a YAML file)")
    return known[str(name)]


def _set(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *parents, last = path
    for key in parents:
        if tree.get(key) is None:
            tree[key] = {}
        inner = tree[key]
        if isinstance(inner, str):  # the short form, such as the name of a model
            inner = tree[key] = {_short_form(key): inner}
        if not isinstance(inner, dict):
            raise OpdAlignError(f"{'.'.join(path)}: {key!r} is {shortened(inner)}, which has no keys")
        tree = inner
    tree[last] = value


def _short_form(key: str) -> str:
    return {"task": "name", "questions": "file"}.get(key, "model")


def parse_dataclass(kind: type[T], tree: Any, at: str) -> T:
    """A dataclass from plain values; every error names the key, with the prefix `at`."""
    if not isinstance(tree, Mapping):
        raise OpdAlignError(f"{at.rstrip('.') or 'the configuration'}: expected keys and values, got {shortened(tree)}")
    hints = get_type_hints(kind)
    known = {key.name: key for key in fields(kind)}  # type: ignore[arg-type]
    for key in tree:
        if key not in known:
            raise OpdAlignError(_unknown("key", key if isinstance(key, str) else shortened(key), list(known), at))
    for name, key_field in known.items():
        if name not in tree and key_field.default is MISSING and key_field.default_factory is MISSING:
            raise OpdAlignError(f"{at}{name} is missing")
    values = {key: _parse_value(hints[key], value, f"{at}{key}") for key, value in tree.items()}
    try:
        return kind(**values)
    except OpdAlignError as error:
        prefix = f"{at.rstrip('.')}: " if at and not str(error).startswith(f"{at.rstrip('.')}: ") else ""
        raise OpdAlignError(f"{prefix}{error}") from error


def _parse_value(hint: Any, value: Any, at: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        (hint,) = [argument for argument in arguments if argument is not NoneType]
        return _parse_value(hint, value, at)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            name = value if isinstance(value, str) else shortened(value)
            raise OpdAlignError(f"{at}: {_unknown('value', name, [str(argument) for argument in arguments])}")
        return value
    if isinstance(hint, type) and is_dataclass(hint):
        # A key without a value is a section whose lines were all removed.
        return parse_dataclass(hint, {} if value is None else _long_form(hint, value), f"{at}.")
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping | None):
            raise OpdAlignError(f"{at}: expected keys and values, got {shortened(value)}")
        return dict(value or {})
    if origin is not None and issubclass(origin, Sequence):
        if value is None:  # an empty value in YAML
            value = []
        if isinstance(value, str):
            value = [item.strip() for item in value.split(",") if item.strip()]
        if not isinstance(value, list | tuple):
            raise OpdAlignError(f"{at}: expected a list, got {shortened(value)}")
        return tuple(_parse_value(arguments[0], item, f"{at}[{index}]") for index, item in enumerate(value))
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):  # YAML parses 1e-3 as a string
            return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        got = "a value of another type" if at.endswith(".api_key") else shortened(value)  # a key is never printed
        raise OpdAlignError(f"{at}: expected {_type_description(hint)}, got {got}")
    if hint is int and not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise OpdAlignError(f"{at}: {shortened(value)} is too large")
    if hint is str and not is_valid_text(value):
        raise OpdAlignError(f"{at}: {shortened(value)} contains characters that are not valid in text")
    if hint is str and len(value) > (MAX_INSTRUCTION if at == "task.instruction" else MAX_TEXT):
        raise OpdAlignError(f"{at}: {shortened(value)} is too long ({len(value):,} characters)")
    return value


def _long_form(kind: type, value: Any) -> Any:
    """Expands the short form: a model, task, teacher or file given by its name."""
    if not isinstance(value, str):
        return value
    if kind is TeacherConfig:
        # A name that resembles a context is a misspelled context: as a model it would be searched on the Hub.
        near = get_close_matches(value.lower(), [name.lower() for name in CONTEXTS], 1, 0.7)
        return {"context": value} if near or value.lower().startswith("self") else {"model": value}
    return {{ModelConfig: "model", TaskConfig: "name", QuestionsConfig: "file"}.get(kind, "name"): value}


def _check_name(name: str | None, *, in_paths: bool = True) -> None:
    """Names are printed; those of student and task are also part of the run directory's name."""
    if name is None:
        return
    if not name.strip() or printable(name) != name:
        raise OpdAlignError(f"{name!r} is not a valid name: it is empty or has control characters")
    if in_paths and (name.startswith(".") or "/" in name or "\\" in name):
        raise OpdAlignError(f"{name!r} is not a valid name: it must not start with a dot or contain slashes")


def _type_description(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, kind.__name__)


def _unknown(what: str, name: str, valid: Sequence[str], at: str = "") -> str:
    name = name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..."
    # Compared without the common prefix `at`, which would make all names similar.
    near = get_close_matches(name, valid, 1, 0.5)
    hint = f"; did you mean {at + near[0]!r}?" if near else "."
    return f"unknown {what} {at + name!r}{hint} Available: {', '.join(at + option for option in valid)}"
