"""Configuration: from YAML and flags to a study's objects.

A configuration is plain values with the paper's defaults; it is checked as a whole before a model is loaded, and an
unknown key is answered with the nearest known one. `Study` turns it into what the engine takes: student, teachers,
questions, grader. Config objects stop here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from opd_align.backends.base import find_backend
from opd_align.backends.http_pool import HttpSettings, server_urls
from opd_align.core.objectives import OBJECTIVES, GeneralisedJSD, Objective
from opd_align.settings import BATCH, Budget, Method, Rules, Settings
from opd_align.teachers.contexts import CONTEXTS
from opd_align.types import OpdAlignError

T = TypeVar("T")

CONFIGS = Path(__file__).parent / "configs"

EMBEDDED_STUDENT = "embedded:student"


@dataclass(frozen=True)
class ModelConfig:
    """A model: `model` is a folder, a .gguf file, a Hub name, or embedded:student / embedded:teacher.

    `backend` samples: `hf`, `vllm`, `server`, or the import name of a module that defines a `Backend`. With `server`,
    `url` is the address of a server, or of several that serve the same weights, `served_as` the model's name there, and
    `http` the connection settings. Scoring always loads the weights here.
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

    def __post_init__(self) -> None:
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


@dataclass(frozen=True)
class TeacherConfig:
    """A teacher: a built-in `context` by name, or one of your own (`correct`, `wrong`, `summarised`), or an external
    `model` that reads the student's prompt, or both: another model with a context.
    """

    name: str | None = None
    context: str | None = None
    model: ModelConfig | None = None
    correct: int | None = None
    wrong: int | None = None
    summarised: bool = False
    source: str | None = None


@dataclass(frozen=True)
class TaskConfig:
    """A built-in task by `name`, or data of your own: `kind` of answer and the names of its fields."""

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
        own = [each.name for each in fields(self) if each.name not in ("name", "kind", "split")]
        given = [name for name in own if getattr(self, name) != getattr(type(self), name)]
        if self.kind is None and given:
            raise OpdAlignError(
                f"{given[0]} belongs to data of your own, which needs a kind; {self.name!r} has its own"
            )


@dataclass(frozen=True)
class QuestionsConfig:
    """Which questions: from a file or the Hub, a part of them, or those that a screening put into given bins.

    `bins` are medium and hard if not said otherwise. `seed` is for tasks that make their questions up.
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
            raise OpdAlignError(f"offset ({self.offset}) and limit ({self.limit}) count questions, from 0")
        if self.ids and self.screening is not None:
            raise OpdAlignError("ids and screening both choose the questions; give one of them")


@dataclass(frozen=True)
class SamplingConfig:
    """How completions are drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 2048


@dataclass(frozen=True)
class DemonstrationsConfig:
    """How demonstrations are looked for: `trials` responses a question at most."""

    temperature: float = 0.7
    trials: int = 60
    max_tokens: int | None = None


@dataclass(frozen=True)
class StudyConfig:
    """Everything about a run. Teachers are contexts of the student and external models; see TeacherConfig."""

    student: ModelConfig = field(default_factory=lambda: ModelConfig(EMBEDDED_STUDENT))
    teachers: Sequence[TeacherConfig] = ()
    task: TaskConfig = field(default_factory=lambda: TaskConfig("arithmetic"))
    questions: QuestionsConfig = field(default_factory=QuestionsConfig)
    source: ModelConfig | None = None
    summariser: ModelConfig | None = None
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    demonstrations: DemonstrationsConfig = field(default_factory=DemonstrationsConfig)
    rollouts: int = 32
    budget: Budget = field(default_factory=Budget)
    rules: Rules = field(default_factory=Rules)
    objectives: Sequence[str] = ("reverse_kl",)
    estimator: Method = "backup"
    shrink: bool = True
    batch: int = BATCH
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rollouts", "batch"):
            if getattr(self, name) < 1:
                raise OpdAlignError(f"{name} must be at least 1, not {getattr(self, name)}")

    def settings(self) -> Settings:
        """The engine's settings."""
        return Settings(
            [objective(name) for name in self.objectives],
            self.budget,
            self.rules,
            self.estimator,
            self.shrink,
            self.batch,
        )


def objective(name: str) -> Objective:
    """An objective by name; `jsd(0.3)` gives the generalised JSD another β."""
    named = {each.name: each for each in OBJECTIVES}
    if name in named:
        return named[name]
    if name.startswith("jsd(") and name.endswith(")"):
        try:
            return GeneralisedJSD(float(name[4:-1]))
        except ValueError:
            pass
    raise OpdAlignError(f"objectives: {_unknown('objective', name, [*named, 'jsd(β)'])}")


def read_config(file: str | Path | None = None, overrides: Sequence[str] = ()) -> StudyConfig:
    """A configuration from a YAML file or one that ships, by its name; then overrides.

    An override is written `key=value`, with dots for depth: `budget.initial=100`.
    """
    import yaml

    tree: dict[str, Any] = {}
    if file is not None:
        file = _config_file(file)
        try:
            tree = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        except OSError as error:
            raise OpdAlignError(f"cannot read the configuration {str(file)!r}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise OpdAlignError(f"{str(file)!r} is not YAML: {error}") from error
        if not isinstance(tree, dict):
            raise OpdAlignError(f"{str(file)!r} must hold keys and values, not {type(tree).__name__}")
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign:
            raise OpdAlignError(f"an override is written key=value, not {override!r}")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise OpdAlignError(f"the value of {key!r} is not YAML: {text!r}") from error
        _set(tree, key.strip().split("."), value)
    if isinstance(tree.get("student"), dict):
        tree["student"].setdefault("model", EMBEDDED_STUDENT)
    return built(StudyConfig, tree, "")


def shipped() -> dict[str, Path]:
    """The configurations that come with the package, by name."""
    return {file.stem: file for file in sorted(CONFIGS.glob("*.yaml"))}


def _config_file(named: str | Path) -> Path:
    path = Path(named)
    if path.is_file() or path.suffix in (".yaml", ".yml") or len(path.parts) > 1:
        return path
    known = shipped()
    if str(named) not in known:
        raise OpdAlignError(f"{_unknown('configuration', str(named), list(known))} (or give a YAML file)")
    return known[str(named)]


def _set(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *above, last = path
    for key in above:
        if tree.get(key) is None:
            tree[key] = {}
        inner = tree[key]
        if isinstance(inner, str):  # a model by its name alone
            inner = tree[key] = {_short_form(key): inner}
        if not isinstance(inner, dict):
            raise OpdAlignError(f"{'.'.join(path)}: {key!r} holds {inner!r}, which has no keys")
        tree = inner
    tree[last] = value


def _short_form(key: str) -> str:
    return {"task": "name", "questions": "file"}.get(key, "model")


def built(kind: type[T], tree: Any, at: str) -> T:
    """A dataclass from plain values; every complaint names the key."""
    if not isinstance(tree, Mapping):
        raise OpdAlignError(f"{at.rstrip('.') or 'the configuration'}: expected keys and values, got {tree!r}")
    hints = get_type_hints(kind)
    known = {each.name: each for each in fields(kind)}  # type: ignore[arg-type]
    for key in tree:
        if key not in known:
            raise OpdAlignError(_unknown("key", str(key), list(known), at))
    for name, each in known.items():
        if name not in tree and each.default is MISSING and each.default_factory is MISSING:
            raise OpdAlignError(f"{at}{name} is missing")
    values = {key: _value(hints[key], value, f"{at}{key}") for key, value in tree.items()}
    try:
        return kind(**values)
    except OpdAlignError as error:
        prefix = f"{at.rstrip('.')}: " if at and not str(error).startswith(f"{at.rstrip('.')}: ") else ""
        raise OpdAlignError(f"{prefix}{error}") from error


def _value(hint: Any, value: Any, at: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        (hint,) = [each for each in arguments if each is not NoneType]
        return _value(hint, value, at)
    if origin is Literal:
        if value not in arguments:
            raise OpdAlignError(f"{at}: {_unknown('value', str(value), [str(each) for each in arguments])}")
        return value
    if isinstance(hint, type) and is_dataclass(hint):
        # A key with nothing after it is a section whose lines were all taken out.
        return built(hint, {} if value is None else _long_form(hint, value), f"{at}.")
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping | None):
            raise OpdAlignError(f"{at}: expected keys and values, got {value!r}")
        return dict(value or {})
    if origin is not None and issubclass(origin, Sequence):
        if value is None:  # an empty value of YAML
            value = []
        if isinstance(value, str):
            value = [each.strip() for each in value.split(",") if each.strip()]
        if not isinstance(value, list | tuple):
            raise OpdAlignError(f"{at}: expected a list, got {value!r}")
        return tuple(_value(arguments[0], each, f"{at}[{number}]") for number, each in enumerate(value))
    if hint is float and isinstance(value, int | str) and not isinstance(value, bool):
        with suppress(ValueError):  # YAML reads 1e-3 as text
            return float(value)
    if isinstance(hint, type) and (not isinstance(value, hint) or (hint is int and isinstance(value, bool))):
        raise OpdAlignError(f"{at}: expected {_spoken(hint)}, got {value!r}")
    return value


def _long_form(kind: type, value: Any) -> Any:
    """A model, task, teacher or file may be given by its name alone."""
    if not isinstance(value, str):
        return value
    if kind is TeacherConfig:
        # What is nearly a context is a context mistyped: as a model it would be looked for on the Hub.
        near = get_close_matches(value.lower(), [name.lower() for name in CONTEXTS], 1, 0.7)
        return {"context": value} if near or value.lower().startswith("self") else {"model": value}
    return {{ModelConfig: "model", TaskConfig: "name", QuestionsConfig: "file"}.get(kind, "name"): value}


def _spoken(kind: type) -> str:
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false"}.get(kind, kind.__name__)


def _unknown(what: str, name: str, valid: Sequence[str], at: str = "") -> str:
    # Compared without `at`, which all have in common: that would make anything near.
    near = get_close_matches(name, valid, 1, 0.5)
    hint = f"; did you mean {at + near[0]!r}?" if near else "."
    return f"unknown {what} {at + name!r}{hint} There are: {', '.join(at + each for each in valid)}"
