"""A study: the objects that a configuration names.

Names are resolved and questions are read before any model is loaded, so that mistakes are found within a second. A
screening and an analysis use the same student, prompts and demonstration writers; a model that is named twice is loaded
once.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from hashlib import blake2b
from typing import Any

from opd_align.backends.base import StudentSpec, find_backend
from opd_align.backends.chat import Chat
from opd_align.backends.loading import (
    LoadedModel,
    check_model,
    load_model,
    load_tokenizer,
    short_name,
)
from opd_align.core.engine import Analysis, check_settings
from opd_align.runs.execute import analyze_into
from opd_align.runs.filesystem import AnyPath, PathLike, as_path
from opd_align.runs.manifest import check_same_run_early, read_manifest
from opd_align.runs.run_directory import DEMONSTRATIONS, MANIFEST, RunDirectory, has_results
from opd_align.study.config import ModelConfig, StudyConfig
from opd_align.study.prepared import PreparedStudy, SkippedQuestionsWarning
from opd_align.study.teacher_specs import TeacherSpec, teacher_spec
from opd_align.tasks import Task, TextGrader, custom_task, task
from opd_align.teachers.contexts import SELF, Context, ContextPrompt, Demonstration
from opd_align.teachers.demonstrations import (
    DemonstrationSource,
    DemonstrationWriters,
    NoGrading,
    TrialBudget,
    collect_demonstrations,
)
from opd_align.teachers.eligibility import missing_demonstrations, prompts_too_long, unusable_questions
from opd_align.teachers.screening import (
    Screener,
    demonstrations_manifest,
    load_screening,
    recorded_writers,
)
from opd_align.types import OpdAlignError, Question

SOURCE = "source"
SHOWN = 3
"""Number of skipped questions that a warning names."""


@dataclass(frozen=True)
class Study:
    """The objects of a configuration, created when first used; `task`, `questions` and `teacher_specs` need no model.

    Args:
        config: The configuration.
        teacher_factories: For teachers whose models are loaded in other processes: name → function that creates the
            teacher from its name, its prompt and the sampling temperature.
    """

    config: StudyConfig
    teacher_factories: Mapping[str, Callable[[str, ContextPrompt, float], Any]] = field(default_factory=dict)

    def check(self) -> None:
        """Raises `OpdAlignError` for every mistake that can be found before a model is loaded."""
        self.config.settings()
        TrialBudget(max_trials=self.config.demonstrations.trials)
        self._sampling()
        self._sampling(demo=True)
        for model in (
            self.config.student,
            self.config.source,
            self.config.summariser,
            *(t.model for t in self.teacher_specs),
        ):
            if model is not None:
                check_model(model.model, dtype=model.dtype, device=model.device)
        sources = [SELF] if self.config.source is None else [SELF, SOURCE]
        for used in self.contexts:
            if used.source not in sources and used.correct + used.wrong:
                hint = "set source to a model" if used.source == SOURCE else f"choose one of {', '.join(sources)}"
                raise OpdAlignError(
                    f"context {used.name!r} uses responses of {used.source!r}, which is not a model; {hint}"
                )
        names = [spec.name for spec in self.teacher_specs]
        duplicates = [name for name in names if names.count(name) > 1]
        if duplicates:
            raise OpdAlignError(f"teachers: {duplicates[0]!r} appears more than once; give each its own name")
        if not self.questions:
            config = self.config.questions
            raise OpdAlignError(
                f"questions: no questions are selected from {config.file or f'task {self.task.name!r}'} with offset "
                f"{config.offset} and limit {config.limit}"
            )
        if not self.usable_questions:
            name, reason = next(iter(self.unusable_questions.items()))
            source = self.task.source
            column = "answer" if source is None else source.fields.get("answer", "answer")
            raise OpdAlignError(
                f"questions: none of {len(self.questions)} can be used; {name!r}: {reason}. Check task.answer (the "
                f"field with the answer, now {column!r}) and task.kind"
            )
        self._warn_about_unusable_questions()

    def check_analysis(self) -> None:
        """What `check` does, and whether objectives and teachers go together."""
        self.check()
        check_settings([spec.name for spec in self.teacher_specs], self.config.settings())

    @property
    def name(self) -> str:
        """Task, student and a digest of the configuration: equal configurations have equal names."""
        digest = blake2b(repr(self.config).encode(), digest_size=3).hexdigest()
        student = self.config.student.name or short_name(self.config.student.model)
        return f"{self.config.task.name}-{student}-{digest}"

    @cached_property
    def task(self) -> Task:
        config = self.config.task
        if config.kind is None:
            return task(config.name)
        optional = {
            "instruction": config.instruction, "hub": config.hub, "config": config.hub_config, "split": config.split,
        }  # fmt: skip
        return custom_task(
            config.name,
            kind=config.kind,
            question=config.question,
            answer=config.answer,
            choices=config.choices,
            passage=config.passage,
            **{name: value for name, value in optional.items() if value is not None},
        )

    @cached_property
    def questions(self) -> list[Question]:
        config = self.config.questions
        ids, bins = list(config.ids), config.bins or ("medium", "hard")
        if config.screening is None and config.bins is not None:
            raise OpdAlignError("questions: bins select from a screening; give one (--questions-from)")
        if config.screening is not None:
            ids = load_screening(config.screening)[0].selected(bins)
            if not ids:
                raise OpdAlignError(f"no question of {config.screening!r} is in the bins {', '.join(bins)}")
        if not ids:
            return self._read_questions(config.limit, config.offset)
        by_id = {question.id: question for question in self._read_questions(None, 0)}
        unknown = [name for name in ids if name not in by_id]
        if unknown:
            raise OpdAlignError(
                f"questions: there is no question {unknown[0]!r} in the data of task {self.task.name!r}"
            )
        selected = [by_id[name] for name in ids]
        return selected[config.offset :][: config.limit]

    @cached_property
    def unusable_questions(self) -> dict[str, str]:
        """Questions that are of no use with any teacher: ID → reason. Known without a model."""
        return unusable_questions(self.task, self.questions)

    @cached_property
    def usable_questions(self) -> list[Question]:
        """The questions with an answer that the verifier can read, without repetitions."""
        return [question for question in self.questions if question.id not in self.unusable_questions]

    def _warn_about_unusable_questions(self) -> None:
        unusable = self.unusable_questions
        if not unusable:
            return
        shown = [f"{name!r}: {reason}" for name, reason in list(unusable.items())[:SHOWN]]
        more = f"; and {len(unusable) - SHOWN} more" if len(unusable) > SHOWN else ""
        text = f"{len(unusable)} of {len(self.questions)} questions are skipped: {'; '.join(shown)}{more}"
        warnings.warn(text, SkippedQuestionsWarning, stacklevel=3)

    def _read_questions(self, limit: int | None, offset: int) -> list[Question]:
        config = self.config.questions
        return self.task.load(config.file, split=self.config.task.split, limit=limit, offset=offset, seed=config.seed)

    @cached_property
    def teacher_specs(self) -> list[TeacherSpec]:
        return [teacher_spec(teacher) for teacher in self.config.teachers]

    @property
    def contexts(self) -> list[Context]:
        # Several teachers may have the same context; it is screened, and its demonstrations are collected, once.
        return list(dict.fromkeys(spec.context for spec in self.teacher_specs if spec.context is not None))

    @cached_property
    def chat(self) -> Chat:
        return self._chat(self.config.student)

    @cached_property
    def student_prompt(self) -> ContextPrompt:
        return ContextPrompt(self.chat, self.task)

    @cached_property
    def student(self) -> Any:
        return self._sampler(self.config.student, self.student_prompt, self._sampling(), scored=True)

    @property
    def local_models(self) -> list[ModelConfig]:
        """The models whose weights are loaded by this study, each once; those on servers are not."""
        writers = [self.config.source, self.config.summariser]
        served = [model for model in (*writers, *(spec.model for spec in self.teacher_specs)) if model is not None]
        models = [self.config.student, *(model for model in served if not find_backend(model.backend).remote)]
        return list({model.model: model for model in models}.values())

    @property
    def grader(self) -> TextGrader:
        return TextGrader(self.task, self.chat.decode, self.student.end_tokens)

    @property
    def known_manifest(self) -> dict[str, Any]:
        """The part of a run's manifest that is known without a model: tokenizer, grader, names of the teachers."""
        grader = TextGrader(self.task, self.chat.decode, ()).fingerprint
        teachers = dict.fromkeys(spec.name for spec in self.teacher_specs)
        return {"tokenizer": self.student_prompt.tokenizer_hash, "grader": grader, "teachers": teachers}

    @cached_property
    def writers(self) -> DemonstrationWriters:
        """The models that write demonstrations, as far as the contexts need them."""
        needed = {context.source for context in self.contexts if context.correct + context.wrong}
        sources = {}
        for name, model in ((SELF, self.config.student), (SOURCE, self.config.source)):
            if name in needed and model is not None:
                sources[name] = self._source(name, model)
        summariser = None
        if any(context.summarised for context in self.contexts):
            model = self.config.summariser or self.config.source or self.config.student
            chat = self._chat(model)
            sampler = self._sampler(
                model,
                lambda question: chat.prompt([{"role": "user", "content": question.text}]),
                self._sampling(demo=True),
            )
            summariser = DemonstrationSource("summariser", sampler, chat.decode, NoGrading(), _limit(sampler))
        writers = DemonstrationWriters(sources, summariser, TrialBudget(max_trials=self.config.demonstrations.trials))
        writers.check(self.contexts)
        return writers

    def screen(self, **options: Any) -> Screener:
        """A screening of the student with all contexts."""
        options = {"rollouts": self.config.rollouts, "batch": min(self.config.batch, Screener.batch), **options}
        return Screener(self.student, self.student_prompt, self.contexts, self.writers, **options)

    def teachers(self, demonstrations: Mapping[str, Sequence[Demonstration]]) -> list[Any]:
        """The teachers, with the demonstrations in their prompts."""
        from opd_align.backends.hf import HFTeacher
        from opd_align.backends.scoring import check_tokenizers

        made: list[Any] = []
        for role in self.teacher_specs:
            model = role.model or self.config.student
            prompting = replace(self.prompt_of(role), demonstrations=demonstrations)
            if role.model is not None:
                check_tokenizers(self.chat.tokenizer, prompting.chat.tokenizer, role.name)
            backend = find_backend(model.backend)
            if role.model is not None and backend.remote:
                made.append(backend.build_teacher(role.name, model, prompting))
                continue
            if role.name in self.teacher_factories:
                made.append(self.teacher_factories[role.name](role.name, prompting, self.config.sampling.temperature))
                continue
            made.append(HFTeacher(role.name, self._loaded(model).model, prompting, self.config.scoring.precision))
        return [self._within_context(teacher, teacher.context_length) for teacher in made]

    def _within_context(self, teacher: Any, length: int | None) -> Any:
        """The teacher with a prompt that leaves room for the longest completion, if short demonstrations allow it."""
        if length is None:
            return teacher
        preferred = length - self.config.sampling.max_tokens
        return replace(teacher, prompt=replace(teacher.prompt, max_length=length, preferred_length=preferred))

    def prompt_of(self, spec: TeacherSpec | None) -> ContextPrompt:
        """The prompt of a teacher, without demonstrations; `None` is the student."""
        if spec is None:
            return self.student_prompt
        return ContextPrompt(self._chat(spec.model or self.config.student), self.task, spec.context)

    def collect_demonstrations(
        self, path: AnyPath, on_progress: Callable[[str, int, int], None] | None = None, *, extend: bool = False
    ) -> dict[str, list[Demonstration]]:
        """What the contexts need: from the screening that selected the questions, or sampled into `path`.

        With `extend`, `path` may have those of the first questions already.
        """
        if not any(context.correct + context.wrong for context in self.contexts):
            return {}
        questions = self.usable_questions
        manifest = demonstrations_manifest(self.writers, self.contexts, questions)
        if self.config.questions.screening is not None:
            screened = load_screening(self.config.questions.screening)[1]
            if self._has_same_writers(
                as_path(self.config.questions.screening), manifest
            ) and not missing_demonstrations(questions, self.contexts, screened):
                return screened

        def of_first(n: int) -> dict[str, Any]:
            return demonstrations_manifest(self.writers, self.contexts, questions[:n])

        with RunDirectory(path, manifest, shorter=of_first if extend else None) as run:
            return collect_demonstrations(
                recorded_writers(run, self.writers), self.contexts, questions, on_progress=on_progress
            )

    def _has_same_writers(self, screening: AnyPath, manifest: Mapping[str, Any]) -> bool:
        """Whether the demonstrations of a screening were written by the models of this study."""
        stored = read_manifest(screening / MANIFEST) or {}
        same_summariser = manifest["summariser"] in (None, stored.get("summariser"))
        return same_summariser and manifest["sources"].items() <= stored.get("sources", {}).items()

    def unavailable_teachers(self, demonstrations: Mapping[str, Sequence[Demonstration]]) -> dict[str, dict[str, str]]:
        """Question ID → teacher → why it cannot be used there: a demonstration is missing, or a prompt is too long."""
        missing = missing_demonstrations(self.usable_questions, self.contexts, demonstrations, self.writers)
        found: dict[str, dict[str, str]] = {}
        for spec, teacher in zip(self.teacher_specs, self.teachers(demonstrations), strict=True):
            for question in self.usable_questions:
                reason = missing.get(question.id, {}).get(spec.context.name if spec.context else "")
                if reason or (reason := teacher.prompt.unavailable(question)):
                    found.setdefault(question.id, {})[spec.name] = reason
        return found

    def skipped_questions(self, demonstrations: Mapping[str, Sequence[Demonstration]]) -> dict[str, str]:
        """Question ID → why it cannot be analyzed: it does not fit the student's context, or no teacher is left."""
        return self._skipped(self.unavailable_teachers(demonstrations))

    def _skipped(self, unavailable: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        reasons = prompts_too_long(self.student, self.usable_questions, self.config.sampling.max_tokens)
        for name, by_teacher in unavailable.items():
            if len(by_teacher) == len(self.teacher_specs) and name not in reasons:
                reasons[name] = "; ".join(f"{teacher}: {reason}" for teacher, reason in by_teacher.items())
        return reasons

    def prepare(
        self, path: AnyPath, on_phase: Callable[[str, int, int], None] | None = None, *, extend: bool = False
    ) -> PreparedStudy:
        """Collects demonstrations into the run directory and selects the questions that can be compared.

        A directory of another run is rejected first, as far as that is known without loading a model. With `extend`,
        it may contain the same run on the first questions.
        """
        stored = read_manifest(path / MANIFEST)
        if stored is not None and stored.get("kind") == "analysis" and has_results(path):
            check_same_run_early(
                path, stored, self.known_manifest, settings=self.config.settings(), questions=self.usable_questions
            )
        demonstrations = self.collect_demonstrations(path / DEMONSTRATIONS, on_phase, extend=extend)
        unavailable = self.unavailable_teachers(demonstrations)
        skipped = self._skipped(unavailable)
        questions = [question for question in self.usable_questions if question.id not in skipped]
        if not questions:
            raise OpdAlignError(self._no_question_left(skipped))
        partly = {question.id: unavailable[question.id] for question in questions if question.id in unavailable}
        return PreparedStudy(demonstrations, questions, skipped, partly)

    def _no_question_left(self, skipped: Mapping[str, str]) -> str:
        counts = Counter(reason for reason in skipped.values())
        listed = "; ".join(f"{reason} ({count} of {len(skipped)} questions)" for reason, count in counts.most_common(3))
        trials = self.config.demonstrations.trials
        remedies = []
        if "responses by" in listed:
            remedies.append(
                f"sample more than {trials} responses per question (--set demonstrations.trials={4 * trials}), choose "
                "questions that the student solves sometimes (opd-align screen), or remove that teacher"
            )
        if "do not fit the context" in listed:
            remedies.append("allow fewer new tokens (--set sampling.max_tokens=...), or leave out long questions")
        return f"no question is left to analyze: {listed}. To change that: {'; '.join(remedies) or 'see the reasons'}"

    def analyze(self, path: PathLike, **options: Any) -> Analysis:
        """Collects demonstrations, then analyzes, both in a run directory, which is new or resumed.

        Questions that cannot be compared are skipped with a warning. `options` are those of `analyze_into`, and
        `on_phase`, which is called with the progress of preparation, and `on_prepared`, called with its result.
        """
        on_prepared = options.pop("on_prepared", None)
        extend = bool(options.get("extend"))
        prepared = self.prepare(as_path(path), options.pop("on_phase", None), extend=extend)
        prepared.warn()
        if on_prepared:
            on_prepared(prepared)
        teachers, settings = self.teachers(prepared.demonstrations), self.config.settings()
        return analyze_into(path, self.student, teachers, prepared.questions, self.grader, settings=settings, **options)

    def limited(self, n: int) -> Study:
        """The same study on its first `n` questions, with the models that are loaded already."""
        stage = replace(self, config=replace(self.config, questions=replace(self.config.questions, limit=n)))
        shared = ("_made", "task", "teacher_specs", "chat", "student_prompt", "student", "writers")
        self.__dict__.setdefault("_made", {})
        stage.__dict__.update({name: self.__dict__[name] for name in shared if name in self.__dict__})
        stage.__dict__["questions"] = self.questions[:n]
        return stage

    def _chat(self, model: ModelConfig) -> Chat:
        if model.thinking is not None or model is self.config.student:
            return Chat(self._tokenizer(model), model.thinking)
        # The student's setting, if this model's chat template supports it.
        plain = Chat(self._tokenizer(model))
        return replace(plain, thinking=self.config.student.thinking) if plain.switch else plain

    def _source(self, name: str, model: ModelConfig) -> DemonstrationSource:
        chat = self._chat(model)
        sampler = self._sampler(model, ContextPrompt(chat, self.task), self._sampling(demo=True))
        return DemonstrationSource(
            name, sampler, chat.decode, TextGrader(self.task, chat.decode, sampler.end_tokens), _limit(sampler)
        )

    def _sampling(self, *, demo: bool = False) -> Any:
        from opd_align.settings import Sampling

        config, demonstrations = self.config.sampling, self.config.demonstrations
        sampling = Sampling(config.temperature, config.top_p, config.top_k, config.max_tokens, self.config.seed)
        if not demo:
            return sampling
        max_tokens = config.max_tokens if demonstrations.max_tokens is None else demonstrations.max_tokens
        try:
            return replace(sampling, temperature=demonstrations.temperature, max_tokens=max_tokens)
        except OpdAlignError as error:
            raise OpdAlignError(f"demonstrations: {error}") from error

    def _sampler(self, model: ModelConfig, prompt: Any, sampling: Any, *, scored: bool = False) -> Any:
        chat = self._chat(model)
        # Rejects a chat template that cannot be rendered, or has no thinking switch, before weights are loaded.
        chat.prompt([{"role": "user", "content": "?"}])
        return find_backend(model.backend).build_student(
            StudentSpec(
                model,
                prompt,
                sampling,
                scored=scored,
                end_tokens=chat.end_tokens,
                load_model=lambda: self._loaded(model),
                cached=self._once,
                scoring=self.config.scoring,
            )
        )

    def _tokenizer(self, model: ModelConfig) -> Any:
        source = model.load.source
        return self._once(("tokenizer", model.model, repr(source)), lambda: load_tokenizer(model.model, **source))

    def _loaded(self, model: ModelConfig) -> LoadedModel:
        return self._once(
            ("weights", model.model, model.adapter, model.dtype, model.device, model.load),
            lambda: load_model(
                model.model, adapter=model.adapter, dtype=model.dtype, device=model.device, load=model.load
            ),
        )

    def _once(self, key: Any, make: Any) -> Any:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    @cached_property
    def _made(self) -> dict[Any, Any]:
        return {}

    def made(self, key: Any) -> Any:
        """What backends have cached under a key; `None` if it was not created here."""
        return self._made.get(key)


def _limit(sampler: Any) -> Callable[[Question], str | None]:
    """A function that says why a question does not fit a sampler's context; `None` if it fits."""
    max_tokens = sampler.sampling.max_tokens
    # Cached: `context_length` of a server sends a request.
    limits = cache(lambda: _ContextLimits(sampler.name, sampler.prompt, sampler.context_length))
    return lambda question: prompts_too_long(limits(), [question], max_tokens).get(question.id)


@dataclass(frozen=True)
class _ContextLimits:
    name: str
    prompt: Callable[[Question], Sequence[int]]
    context_length: int | None
