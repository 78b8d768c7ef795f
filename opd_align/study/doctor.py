"""`opd-align doctor`: checks of a study before it is paid for, on a few completions of a few questions.

Cheap checks come first, and each finding is yielded as soon as it is known. Nothing is written to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opd_align.backends.base import find_backend
from opd_align.backends.chat import Chat
from opd_align.backends.loading import generation_configs, load_model, resolve_reference, weight_bytes
from opd_align.settings import Sampling
from opd_align.study.build import SOURCE, Study
from opd_align.study.config import ModelConfig
from opd_align.study.teacher_specs import TeacherSpec
from opd_align.tasks import TextGrader
from opd_align.teachers.contexts import Demonstration
from opd_align.teachers.demonstrations import collect_demonstrations
from opd_align.teachers.eligibility import missing_demonstrations, prompts_too_long
from opd_align.teachers.findings import Finding, guarded
from opd_align.teachers.screening import load_screening
from opd_align.teachers.setup_checks import (
    ChatSetup,
    check_chats_agree,
    check_demonstrations,
    check_determinism,
    check_padding,
    check_pass_rate,
    check_precision,
    check_prompt_length,
    check_sampling_gap,
    check_server_gap,
    check_student_chat,
    check_teacher_reading,
    check_temperature,
    check_top_k,
    check_truncation,
    check_verifier,
    sample_questions,
)
from opd_align.types import OpdAlignError, Question

if TYPE_CHECKING:  # imports torch
    from opd_align.backends.probes import Sampled

TRIALS = 16
"""Trials per question to find demonstrations; a run may use more."""

MAX_LOCAL_BYTES = 2 << 30
"""Size up to which a served teacher's weights are also loaded here, to compare the two."""


def check_study(study: Study, *, n_questions: int = 4, n_rollouts: int = 8) -> Iterator[Finding]:
    """The findings about a study, cheapest checks first.

    Args:
        study: The study.
        n_questions: The number of questions to sample, at least 1.
        n_rollouts: The number of completions per question, at least 1.
    """
    if n_questions < 1 or n_rollouts < 1:
        raise OpdAlignError(f"at least one question and one rollout are needed, not {n_questions} and {n_rollouts}")
    configuration = guarded("configuration", lambda: _configuration(study))
    yield from configuration
    if configuration[0].level == "FAIL":
        return
    questions = study.questions[:n_questions]
    remote = [spec.name for spec in study.teacher_specs if _is_remote(spec.model)]
    yield from guarded("temperature", lambda: check_temperature(_sampling(study), top_k_teachers=remote))
    # Tokenizers only: no weights are loaded yet.
    chats = guarded("chat template", lambda: _chat_templates(study))
    yield from chats
    yield from guarded("vocabulary", lambda: _tokenizers(study))
    student_chat = _chat_setup(study, study.config.student, "student")
    grader = TextGrader(study.task, study.chat.decode, student_chat.end_tokens)
    yield from guarded("verifier", lambda: check_verifier(grader, student_chat, study.questions))
    samples: list[Sampled] = []

    def sample() -> list[Finding]:
        samples.extend(sample_questions(study.student, questions, n_rollouts, study.grader))
        return []

    failed = guarded("student", sample)
    yield from failed
    if failed:
        return
    yield from _sample_checks(study, samples)
    demonstrations: dict[str, Sequence[Demonstration]] = {}
    yield from guarded("demonstrations", lambda: _demonstrations(study, questions, demonstrations))
    teachers: list[Any] = []
    failed = guarded("teachers", lambda: _load_teachers(study, demonstrations, teachers))
    yield from failed
    yield from guarded("context length", lambda: _prompt_length(study, teachers, questions))
    for teacher, spec in zip(teachers, study.teacher_specs, strict=False):
        yield from _TeacherChecks(study, teacher, spec, samples).run()


def _configuration(study: Study) -> Finding:
    if study.teacher_specs:
        study.check_analysis()
    else:  # as for a screening
        study.check()
    teachers = ", ".join(spec.name for spec in study.teacher_specs) or "none"
    return Finding(
        "OK", "configuration",
        f"student {study.config.student.model}, teachers {teachers}, {len(study.questions):,} questions of task "
        f"{study.task.name}",
    )  # fmt: skip


def _sampling(study: Study) -> Sampling:
    config = study.config.sampling
    return Sampling(config.temperature, config.top_p, config.top_k, config.max_tokens, study.config.seed)


def _is_remote(model: ModelConfig | None) -> bool:
    return model is not None and find_backend(model.backend).remote


def _chat(study: Study, model: ModelConfig) -> Chat:
    return study.chat if model is study.config.student else study.prompt_of(TeacherSpec("", None, model)).chat


def _chat_setup(study: Study, model: ModelConfig, name: str) -> ChatSetup:
    chat = _chat(study, model)
    return ChatSetup(name, chat, chat.end_tokens(*generation_configs(model.model, **model.load.source)))


def _chat_templates(study: Study) -> Iterator[Finding]:
    student = _chat_setup(study, study.config.student, "student")
    yield check_student_chat(student)
    others = {f"teacher {spec.name!r}": spec.model for spec in study.teacher_specs if spec.model is not None}
    if study.config.source is not None and any(context.source == SOURCE for context in study.contexts):
        others["the source of demonstrations"] = study.config.source
    for name, model in others.items():
        yield check_chats_agree(student, _chat_setup(study, model, name))


def _tokenizers(study: Study) -> Iterator[Finding]:
    from opd_align.backends.scoring import TokenizerMismatch, check_tokenizers

    for spec in study.teacher_specs:
        if spec.model is None:
            continue
        try:
            check_tokenizers(study.chat.tokenizer, study.prompt_of(spec).chat.tokenizer, spec.name)
        except TokenizerMismatch as error:
            yield Finding("FAIL", "vocabulary", str(error))


def _sample_checks(study: Study, samples: Sequence[Sampled]) -> Iterator[Finding]:
    from opd_align.backends import probes

    student = study.student
    yield from guarded("truncation", lambda: check_truncation(samples, study.config.sampling.max_tokens))
    yield from guarded("pass rate", lambda: check_pass_rate(samples))
    yield from guarded("determinism", lambda: check_determinism(student, samples))
    yield from guarded("sampling", lambda: check_sampling_gap(probes.sampling_gap(student, samples)))
    local = getattr(student, "scorer", student)
    yield from guarded("vocabulary", lambda: _padding(study, "student", local, study.config.student, samples))
    if _is_remote(study.config.student):
        yield from guarded("server log-probs", lambda: _server_gap("student", student, local, samples))


def _padding(study: Study, name: str, local: Any, model: ModelConfig, samples: Sequence[Sampled]) -> Finding:
    from opd_align.backends import probes

    rows = int(local.model.get_output_embeddings().weight.shape[0])
    n_tokens = max(_chat(study, model).tokenizer.get_vocab().values()) + 1
    sampled = _readable(local, samples)
    prompted = probes.prompted(local.model, local.prompt, sampled.question, name)
    return check_padding(name, rows, n_tokens, probes.padding_mass(prompted, sampled.rollouts.completion(0), n_tokens))


def _server_gap(name: str, server: Any, local: Any, samples: Sequence[Sampled]) -> Finding:
    from opd_align.backends import probes

    sampled = _readable(server, samples)
    prompted = probes.prompted(local.model, server.prompt, sampled.question, name)
    return check_server_gap(name, probes.server_gap(server, prompted, sampled))


def _readable(model: Any, samples: Sequence[Sampled]) -> Sampled:
    """The first question with completions that the model can be asked; a context may lack demonstrations for it."""
    from opd_align.backends.probes import ProbeUnavailable

    reason = "no completions"
    for sampled in samples:
        try:
            model.prompt(sampled.question)
        except OpdAlignError as error:
            reason = str(error)
            continue
        if len(sampled.rollouts):
            return sampled
    raise ProbeUnavailable(reason)


def _demonstrations(
    study: Study, questions: Sequence[Question], collected: dict[str, Sequence[Demonstration]]
) -> list[Finding]:
    """Samples demonstrations into `collected`, or takes them from the screening that selected the questions."""
    needed = [context for context in study.contexts if context.correct + context.wrong]
    if not needed:
        return []
    max_trials = study.config.demonstrations.trials
    trials = min(max_trials, TRIALS)
    if study.config.questions.screening is not None:
        collected.update(load_screening(study.config.questions.screening)[1])
    if missing_demonstrations(questions, needed, collected):
        writers = replace(study.writers, trials=replace(study.writers.trials, max_trials=trials))
        collected.update(collect_demonstrations(writers, needed, questions))
    missing = missing_demonstrations(questions, needed, collected, study.writers)
    return [check_demonstrations(missing, questions, trials, max_trials)]


def _load_teachers(
    study: Study, demonstrations: Mapping[str, Sequence[Demonstration]], teachers: list[Any]
) -> list[Finding]:
    teachers.extend(study.teachers(demonstrations))
    return []


def _prompt_length(study: Study, teachers: Sequence[Any], questions: Sequence[Question]) -> Finding:
    max_tokens = study.config.sampling.max_tokens
    too_long = prompts_too_long(study.student, questions, max_tokens)
    perhaps: dict[str, str] = {}
    for teacher in teachers:
        readable = [question for question in questions if _has_prompt(teacher, question)]
        too_long |= prompts_too_long(teacher, readable, 1)
        # A teacher only reads completions that were sampled, and few are as long as the limit.
        perhaps |= prompts_too_long(teacher, readable, max_tokens)
    return check_prompt_length(too_long, perhaps, len(questions))


def _is_small(model: ModelConfig) -> bool:
    """Whether a model is on this machine and small enough to be loaded just for a comparison."""
    on_hub = resolve_reference(model.model)[0] == model.model and not Path(model.model).exists()
    return not on_hub and weight_bytes(model.model, dtype=model.dtype, device=model.device) <= MAX_LOCAL_BYTES


def _has_prompt(model: Any, question: Question) -> bool:
    try:
        model.prompt(question)
    except OpdAlignError:
        return False
    return True


@dataclass(frozen=True)
class _TeacherChecks:
    """The checks of one teacher on the student's completions."""

    study: Study
    teacher: Any
    spec: TeacherSpec
    samples: Sequence[Sampled]

    def run(self) -> Iterator[Finding]:
        name = self.teacher.name
        checks: dict[str, Callable[[], Finding]] = {"teacher": self._reading}
        if _is_remote(self.spec.model):
            checks |= {"top-k mass": self._top_k, "server log-probs": self._server}
        else:
            if self.spec.model is not None:
                padding = partial(_padding, self.study, name, self.teacher, self.spec.model, self.samples)
                checks["vocabulary"] = padding
            checks["precision"] = self._precision
        for check, run in checks.items():
            yield from guarded(check, run)

    def _reading(self) -> Finding:
        _readable(self.teacher, self.samples)
        readable = [each for each in self.samples if len(each.rollouts) and _has_prompt(self.teacher, each.question)]
        return check_teacher_reading(self.study.student, self.teacher, readable)

    def _top_k(self) -> Finding:
        from opd_align.backends import probes

        sampled = _readable(self.teacher, self.samples)
        bias = probes.top_k_bias(self.study.student, self.teacher, sampled.question, sampled.rollouts.completion(0))
        return check_top_k(self.teacher.name, bias)

    def _server(self) -> Finding:
        from opd_align.backends import probes

        model = self.spec.model
        if model is None:
            raise OpdAlignError("a teacher behind a server has a model")
        same_as_student = model.model == self.study.config.student.model
        if not same_as_student and not _is_small(model):
            raise probes.ProbeUnavailable(
                f"{self.teacher.name}: the weights of {model.model} are not loaded here; compare the server once with "
                "local weights"
            )
        local: Any = getattr(self.study.student, "scorer", self.study.student)
        if not same_as_student:
            local = load_model(
                model.model, adapter=model.adapter, dtype=model.dtype, device=model.device, load=model.load
            )
        return _server_gap(self.teacher.name, self.teacher, local, self.samples)

    def _precision(self) -> Finding:
        from opd_align.backends import probes

        student = getattr(self.study.student, "scorer", self.study.student)
        dtypes = sorted({_scored_dtype(each) for each in (student, self.teacher)})
        dtype = " and ".join(dtypes)
        if dtypes == ["float32"]:
            return check_precision(self.teacher.name, dtype, None)
        sampled = _readable(self.teacher, self.samples)
        cosine = probes.update_cosine(
            probes.prompted(student.model, student.prompt, sampled.question, "student", student.precision),
            probes.prompted(
                self.teacher.model, self.teacher.prompt, sampled.question, self.teacher.name, self.teacher.precision
            ),
            sampled.rollouts.completion(0),
            temperature=self.study.config.sampling.temperature,
        )
        return check_precision(self.teacher.name, dtype, cosine)


def _scored_dtype(model: Any) -> str:
    """The dtype in which a student or teacher is scored, such as `bfloat16`."""
    from opd_align.backends.precision import scoring_precision, stored_dtype

    precision, stored = scoring_precision(model.model, model.precision), stored_dtype(model.model)
    return {"native": stored, "head": f"{stored} with a float32 output layer"}.get(precision, precision)
