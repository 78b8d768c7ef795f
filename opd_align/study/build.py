"""A study: what a configuration names, as objects.

Names are resolved and questions read before any model is loaded, so that a mistake costs a second. The same student,
prompts and writers of demonstrations serve a screening and an analysis; models that are named twice are loaded once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any

from opd_align.backends.chat import Chat
from opd_align.backends.loading import (
    LoadedModel,
    check_model,
    generation_configs,
    load_model,
    load_tokenizer,
    place_of,
    short_name,
)
from opd_align.core.engine import Analysis
from opd_align.runs.execute import analyze_into
from opd_align.runs.filesystem import AnyPath, PathLike, as_path
from opd_align.runs.manifest import check_same_run_early, read_manifest
from opd_align.runs.run_directory import DEMONSTRATIONS, MANIFEST, RunDirectory, has_results
from opd_align.study.config import ModelConfig, StudyConfig, TeacherConfig
from opd_align.tasks import Task, TextGrader, own_task, task
from opd_align.teachers.contexts import SELF, Context, ContextPrompt, Demonstration, context, unavailable
from opd_align.teachers.demonstrations import (
    DemonstrationSource,
    DemonstrationWriters,
    NoGrading,
    TrialBudget,
    demonstrate,
)
from opd_align.teachers.screening import (
    Screen,
    demonstrations_manifest,
    load_screening,
    recorded_cast,
    unanswered,
    unfit,
    unserved,
)
from opd_align.types import OpdAlignError, Question

SOURCE = "source"


class SkippedQuestionsWarning(UserWarning):
    """A question that cannot be compared, and why."""


@dataclass(frozen=True)
class TeacherSpec:
    """A teacher before its model is loaded; without a model it is the student."""

    name: str
    context: Context | None
    model: ModelConfig | None


@dataclass(frozen=True)
class PreparedStudy:
    """What an analysis starts from: what the teachers are shown, which questions are asked, which are not, and why."""

    demonstrations: Mapping[str, Sequence[Demonstration]]
    questions: Sequence[Question]
    left_out: Mapping[str, str]

    def warn(self) -> None:
        """Names the questions that cannot be compared fairly."""
        for name, reason in self.left_out.items():
            warnings.warn(f"question {name!r} is left out: {reason}", SkippedQuestionsWarning, stacklevel=3)


@dataclass(frozen=True)
class Study:
    """A configuration's objects, made when they are first asked for; `task`, `questions` and `roles` need no model.

    `elsewhere` has, by the names of teachers, what makes a teacher whose model is loaded in another process.
    """

    config: StudyConfig
    elsewhere: Mapping[str, Callable[[str, ContextPrompt, float], Any]] = field(default_factory=dict)

    def check(self) -> None:
        """Everything that can go wrong before a model is loaded."""
        self.config.settings()
        TrialBudget(most=self.config.demonstrations.trials)
        self._sampling()
        self._sampling(demo=True)
        for model in (self.config.student, self.config.source, self.config.summariser, *(r.model for r in self.roles)):
            if model is not None:
                check_model(model.model, dtype=model.dtype)
        givers = [SELF] if self.config.source is None else [SELF, SOURCE]
        for each in self.contexts:
            if each.source not in givers and each.correct + each.wrong:
                hint = "give the key source a model" if each.source == SOURCE else f"choose one of {', '.join(givers)}"
                raise OpdAlignError(
                    f"context {each.name!r} shows responses by {each.source!r}, which is no model; {hint}"
                )
        names = [role.name for role in self.roles]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise OpdAlignError(f"teachers: {twice[0]!r} appears more than once; give each its own name")
        if not self.questions:
            raise OpdAlignError("questions: there are none")

    @property
    def name(self) -> str:
        """Task, student and a digest of the whole configuration: the same study, the same name."""
        told = blake2b(repr(self.config).encode(), digest_size=3).hexdigest()
        student = self.config.student.name or short_name(self.config.student.model)
        return f"{self.config.task.name}-{student}-{told}"

    @cached_property
    def task(self) -> Task:
        chosen = self.config.task
        if chosen.kind is None:
            return task(chosen.name)
        optional = {
            "instruction": chosen.instruction, "hub": chosen.hub, "config": chosen.hub_config, "split": chosen.split,
        }  # fmt: skip
        return own_task(
            chosen.name,
            kind=chosen.kind,
            question=chosen.question,
            answer=chosen.answer,
            choices=chosen.choices,
            passage=chosen.passage,
            **{name: value for name, value in optional.items() if value is not None},
        )

    @cached_property
    def questions(self) -> list[Question]:
        chosen = self.config.questions
        wanted, bins = list(chosen.ids), chosen.bins or ("medium", "hard")
        if chosen.screening is None and chosen.bins is not None:
            raise OpdAlignError("questions: bins choose from a screening; give one (--questions-from)")
        if chosen.screening is not None:
            wanted = load_screening(chosen.screening)[0].selected(bins)
            if not wanted:
                raise OpdAlignError(f"no question of {chosen.screening!r} is in the bins {', '.join(bins)}")
        if not wanted:
            return self._read(chosen.limit, chosen.offset)
        by_id = {question.id: question for question in self._read(None, 0)}
        unknown = [name for name in wanted if name not in by_id]
        if unknown:
            raise OpdAlignError(
                f"questions: there is no question {unknown[0]!r} in the data of task {self.task.name!r}"
            )
        found = [by_id[name] for name in wanted]
        return found[chosen.offset :][: chosen.limit]

    def _read(self, limit: int | None, offset: int) -> list[Question]:
        chosen = self.config.questions
        return self.task.load(chosen.file, split=self.config.task.split, limit=limit, offset=offset, seed=chosen.seed)

    @cached_property
    def roles(self) -> list[TeacherSpec]:
        return [_role(teacher) for teacher in self.config.teachers]

    @property
    def contexts(self) -> list[Context]:
        # Two models may teach with the same context; it is screened, and its demonstrations collected, once.
        return list(dict.fromkeys(role.context for role in self.roles if role.context is not None))

    @cached_property
    def chat(self) -> Chat:
        return self._chat(self.config.student)

    @cached_property
    def prompting(self) -> ContextPrompt:
        return ContextPrompt(self.chat, self.task)

    @cached_property
    def student(self) -> Any:
        return self._sampler(self.config.student, self.prompting, self._sampling(), scored=True)

    @property
    def local(self) -> list[ModelConfig]:
        """The models whose weights are loaded here, each once: a server's are not."""
        writers = [self.config.source, self.config.summariser]
        served = [model for model in (*writers, *(role.model for role in self.roles)) if model is not None]
        models = [self.config.student, *(model for model in served if model.backend != "server")]
        return list({model.model: model for model in models}.values())

    @property
    def grader(self) -> TextGrader:
        return TextGrader(self.task, self.chat.said, self.student.end_tokens)

    @property
    def known(self) -> dict[str, Any]:
        """What a run's manifest will say that can be told without a model: tokenizer, grader, names of the teachers."""
        grader = TextGrader(self.task, self.chat.said, ()).fingerprint
        teachers = dict.fromkeys(role.name for role in self.roles)
        return {"tokenizer": self.prompting.tokenizer_hash, "grader": grader, "teachers": teachers}

    @cached_property
    def cast(self) -> DemonstrationWriters:
        """Who writes demonstrations, as far as the contexts need them."""
        chosen = self.config.demonstrations
        needed = {each.source for each in self.contexts if each.correct + each.wrong}
        sources = {}
        for name, model in ((SELF, self.config.student), (SOURCE, self.config.source)):
            if name in needed and model is not None:
                sources[name] = self._source(name, model)
        summariser = None
        if any(each.summarised for each in self.contexts):
            model = self.config.summariser or self.config.source or self.config.student
            chat = self._chat(model)
            sampler = self._sampler(
                model,
                lambda question: chat.prompt([{"role": "user", "content": question.text}]),
                self._sampling(demo=True),
            )
            summariser = DemonstrationSource("summariser", sampler, chat.said, NoGrading(), _limit(sampler))
        cast = DemonstrationWriters(sources, summariser, TrialBudget(most=chosen.trials))
        cast.check(self.contexts)
        return cast

    def screen(self, **options: Any) -> Screen:
        """The screening of the student under all contexts."""
        options = {"rollouts": self.config.rollouts, "batch": min(self.config.batch, Screen.batch), **options}
        return Screen(self.student, self.prompting, self.contexts, self.cast, **options)

    def teachers(self, demonstrations: Mapping[str, Sequence[Demonstration]]) -> list[Any]:
        """The teachers, with the demonstrations in their prompts."""
        from opd_align.backends.hf import HFTeacher
        from opd_align.backends.scoring import check_tokenizers
        from opd_align.backends.server import ServerTeacher

        made: list[Any] = []
        for role in self.roles:
            model = role.model or self.config.student
            prompting = replace(self.prompting_of(role), demonstrations=demonstrations)
            if role.model is not None:
                check_tokenizers(self.chat.tokenizer, prompting.chat.tokenizer, role.name)
            if role.model is not None and model.backend == "server":
                served = model.served_as or model.model
                made.append(ServerTeacher(role.name, model.url, served, prompting, line=model.line))
                continue
            if role.name in self.elsewhere:
                made.append(self.elsewhere[role.name](role.name, prompting, self.config.sampling.temperature))
                continue
            made.append(HFTeacher(role.name, self._loaded(model).model, prompting))
        return made

    def prompting_of(self, role: TeacherSpec | None) -> ContextPrompt:
        """How a teacher is asked, demonstrations aside; `None` is the student."""
        if role is None:
            return self.prompting
        return ContextPrompt(self._chat(role.model or self.config.student), self.task, role.context)

    def demonstrated(
        self, path: AnyPath, on_progress: Callable[[str, int, int], None] | None = None
    ) -> dict[str, list[Demonstration]]:
        """What the contexts need: from the screening that the questions came from, or collected into `path`."""
        if not any(each.correct + each.wrong for each in self.contexts):
            return {}
        # Where no reply can be judged, every trial would be spent in vain.
        open_ones = unanswered(self.task, self.questions)
        asked = [question for question in self.questions if question.id not in open_ones]
        manifest = demonstrations_manifest(self.cast, self.contexts, self.questions)
        if self.config.questions.screening is not None:
            found = load_screening(self.config.questions.screening)[1]
            if self._wrote(as_path(self.config.questions.screening), manifest) and not unavailable(
                asked, self.contexts, found
            ):
                return found
        with RunDirectory(path, manifest) as run:
            return demonstrate(recorded_cast(run, self.cast), self.contexts, asked, on_progress=on_progress)

    def _wrote(self, screening: AnyPath, mine: Mapping[str, Any]) -> bool:
        """Whether a screening's demonstrations are by the same writers as those of this study."""
        theirs = read_manifest(screening / "manifest.json") or {}
        same = mine["summariser"] in (None, theirs.get("summariser"))
        return same and mine["sources"].items() <= theirs.get("sources", {}).items()

    def left_out(self, demonstrations: Mapping[str, Sequence[Demonstration]]) -> dict[str, str]:
        """Question → why it cannot be compared: a demonstration is missing, or a prompt does not fit."""
        room = self.config.sampling.max_tokens
        lacking = unserved(self.cast, self.contexts, self.questions, demonstrations)
        reasons = {name: f"{context}: {reason}" for name, by in lacking.items() for context, reason in by.items()}
        reasons |= unanswered(self.task, self.questions)
        for speaker in (self.student, *self.teachers(demonstrations)):
            able = [question for question in self.questions if question.id not in reasons]
            reasons |= unfit(speaker, able, room)
        return reasons

    def prepared(self, path: AnyPath, on_phase: Callable[[str, int, int], None] | None = None) -> PreparedStudy:
        """Demonstrations, collected into the run directory, and the questions that can be compared fairly.

        Another run's directory is refused before that, as far as it can be told from what needs no model.
        """
        stored = read_manifest(path / MANIFEST)
        if stored is not None and stored.get("kind") == "analysis" and has_results(path):
            check_same_run_early(path, stored, self.known, settings=self.config.settings(), questions=self.questions)
        demonstrations = self.demonstrated(path / DEMONSTRATIONS, on_phase)
        left_out = self.left_out(demonstrations)
        asked = [question for question in self.questions if question.id not in left_out]
        if not asked:
            raise OpdAlignError(f"no question is left to analyse; the last one: {[*left_out.values()][-1]}")
        return PreparedStudy(demonstrations, asked, left_out)

    def analyze(self, path: PathLike, **options: Any) -> Analysis:
        """Demonstrations, then the analysis, both in a run directory: new, or continued where it was left.

        Questions that cannot be compared fairly are left out, and named in a warning.
        """
        ready = self.prepared(as_path(path), options.pop("on_phase", None))
        ready.warn()
        teachers, settings = self.teachers(ready.demonstrations), self.config.settings()
        return analyze_into(path, self.student, teachers, ready.questions, self.grader, settings=settings, **options)

    def _chat(self, model: ModelConfig) -> Chat:
        if model.thinking is not None or model is self.config.student:
            return Chat(self._tokenizer(model), model.thinking)
        # The student's wish, where this model's template knows how.
        plain = Chat(self._tokenizer(model))
        return replace(plain, thinking=self.config.student.thinking) if plain.switch else plain

    def _source(self, name: str, model: ModelConfig) -> DemonstrationSource:
        chat = self._chat(model)
        sampler = self._sampler(model, ContextPrompt(chat, self.task), self._sampling(demo=True))
        return DemonstrationSource(
            name, sampler, chat.said, TextGrader(self.task, chat.said, sampler.end_tokens), _limit(sampler)
        )

    def _sampling(self, *, demo: bool = False) -> Any:
        from opd_align.settings import Sampling

        plain, shown = self.config.sampling, self.config.demonstrations
        sampling = Sampling(plain.temperature, plain.top_p, plain.top_k, plain.max_tokens, self.config.seed)
        if not demo:
            return sampling
        room = plain.max_tokens if shown.max_tokens is None else shown.max_tokens
        try:
            return replace(sampling, temperature=shown.temperature, max_tokens=room)
        except OpdAlignError as error:
            raise OpdAlignError(f"demonstrations: {error}") from error

    def _sampler(self, model: ModelConfig, prompt: Any, sampling: Any, *, scored: bool = False) -> Any:
        # A template that does not know thinking, or cannot be rendered, is found before weights are loaded.
        self._chat(model).prompt([{"role": "user", "content": "?"}])
        if model.backend == "server" and not scored:
            return self._served(model, prompt, sampling, self._chat(model).ends(*generation_configs(model.model)), None)
        from opd_align.backends.hf import HFStudent

        loaded = self._loaded(model)
        ends = self._chat(model).ends(*loaded.configs)
        # Weights are shared between those who use them, names are not: the name is part of every rollout's key.
        local = HFStudent(model.name or short_name(model.model), loaded.model, prompt, ends, sampling)
        if model.backend == "hf":
            return local
        if model.backend == "server":
            return self._served(model, prompt, sampling, ends, local)
        from opd_align.backends.vllm import VLLMStudent

        return VLLMStudent(local.name, self._engine(model), prompt, ends, local, sampling)

    def _served(self, model: ModelConfig, prompt: Any, sampling: Any, ends: tuple[int, ...], scorer: Any) -> Any:
        """A sampler behind a server; one that only writes demonstrations needs no scorer, and no weights here."""
        from opd_align.backends.server import ServerStudent

        return ServerStudent(model.url, model.served_as or model.model, prompt, ends, scorer, sampling, model.line)

    def _tokenizer(self, model: ModelConfig) -> Any:
        return self._once(("tokenizer", model.model), lambda: load_tokenizer(model.model))

    def _loaded(self, model: ModelConfig) -> LoadedModel:
        return self._once(
            ("weights", model.model, model.adapter, model.dtype, model.device),
            lambda: load_model(model.model, adapter=model.adapter, dtype=model.dtype, device=model.device),
        )

    def _engine(self, model: ModelConfig) -> Any:
        from opd_align.backends.vllm import vllm_engine

        options = ({} if model.dtype == "auto" else {"dtype": model.dtype}) | dict(model.options)
        return self._once(
            ("engine", model.model, repr(options)), lambda: vllm_engine(place_of(model.model)[0], **options)
        )

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @cached_property
    def _made(self) -> dict[Any, Any]:
        return {}


def _limit(sampler: Any) -> Callable[[Question], str | None]:
    """Why a question does not fit a sampler's context."""
    room = sampler.sampling.max_tokens
    # Known once: a server would be asked again for every question.
    known = cache(lambda: _Asked(sampler.name, sampler.prompt, sampler.context_length))
    return lambda question: unfit(known(), [question], room).get(question.id)


@dataclass(frozen=True)
class _Asked:
    name: str
    prompt: Callable[[Question], Sequence[int]]
    context_length: int | None


def _role(teacher: TeacherConfig) -> TeacherSpec:
    own = teacher.correct is not None or teacher.wrong is not None
    shown: Context | None = None
    if teacher.context is not None:
        if own or teacher.summarised:
            raise OpdAlignError(
                f"teachers: {teacher.context!r} is built in; leave out correct, wrong and summarised, or the context"
            )
        shown = context(teacher.context)
    elif own:
        if not teacher.name:
            raise OpdAlignError("teachers: a context of your own needs a name")
        shown = Context(
            teacher.name, teacher.correct or 0, teacher.wrong or 0, teacher.summarised, teacher.source or SELF
        )
    elif teacher.model is None:
        raise OpdAlignError("teachers: each needs a context, a model, or both")
    elif teacher.summarised or teacher.source:
        raise OpdAlignError("teachers: summarised and source belong to a context; say how many correct and wrong ones")
    if teacher.name and shown is not None:
        shown = replace(shown, name=teacher.name)
    if shown is not None and teacher.source and teacher.context:
        shown = replace(shown, source=teacher.source)
    model = teacher.model
    fallback = model.name or short_name(model.model) if model else ""
    name = teacher.name or (shown.name if shown else fallback)
    if shown is not None and model is not None and not teacher.name:
        name = f"{shown.name} · {fallback}"
    return TeacherSpec(name, shown, model)
