"""Checks of a trainer before `train()`: a minute on a few completions instead of a training that goes wrong.

The trainer is used as `AlignmentCallback` uses it: its state and all random number generators are restored, so that a
training after the checks is bit-identical to one without them. Nothing is written to disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from opd_align.backends import probes
from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFTeacher
from opd_align.backends.loading import load_tokenizer
from opd_align.backends.probes import ProbeUnavailable, Sampled
from opd_align.backends.scoring import check_tokenizers
from opd_align.backends.server import ServerTeacher
from opd_align.settings import Sampling
from opd_align.teachers.demonstrations import DemonstrationWriters, collect_demonstrations
from opd_align.teachers.eligibility import missing_demonstrations, prompts_too_long
from opd_align.teachers.findings import Finding, SetupReport, guarded
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
    check_student_chat,
    check_teacher_reading,
    check_temperature,
    check_top_k,
    check_truncation,
    check_verifier,
    sample_questions,
)
from opd_align.training.adapters import TrainerAdapter, adapt_trainer
from opd_align.training.evaluation import OWN
from opd_align.training.evaluator import Evaluator, TeacherSet
from opd_align.training.held_out import HeldOut
from opd_align.training.model_state import autocast_dtype, is_zero3, preserve_rng_state
from opd_align.training.rewards import CORRECT_FROM
from opd_align.types import OpdAlignError, Question

TRIALS = 16
"""Trials per question to find demonstrations."""

COUNTED_ROWS = 32
"""Rows of the training data whose completion tokens are counted."""

MAX_SCALE_ERROR = 0.05
"""Relative error of the loss's denominator up to which it is not warned about."""

COUNTS_COMPLETIONS = ("DistillationTrainer", "GRPOTrainer")
"""Trainers whose loss is known to be divided by what they generated."""


def check_trainer_setup(
    trainer: Any,
    questions: Iterable[Any] | None = None,
    verifier: Any = None,
    *,
    teachers: Mapping[str, Any] | Sequence[Any] = (),
    teacher_tokenizer: Any = None,
    sampling: Sampling | None = None,
    correct_from: float = CORRECT_FROM,
    n_questions: int = 4,
    n_rollouts: int = 8,
) -> SetupReport:
    """Checks a trainer before `train()`; in a distributed training, all processes call it.

    Example:
        ```python
        report = check_trainer_setup(trainer, held_out_rows, reward_function)
        print(report)
        report.raise_for_failures()
        ```

    Args:
        trainer: A TRL trainer that `AlignmentCallback` supports.
        questions: Questions or rows, as for `AlignmentCallback`. `None`: the first rows of the training data.
        verifier: Decides which completions are correct, as for `AlignmentCallback`. `None`: correctness is not checked.
        teachers: Teachers in addition to the trainer's own, as for `AlignmentCallback`.
        teacher_tokenizer: The tokenizer of the trainer's teacher. `None`: that in the teacher's folder, if it is local.
        sampling: How the student samples. `None`: the trainer's own settings.
        correct_from: The smallest value of a reward function that means correct.
        n_questions: Number of questions to sample, at least 1.
        n_rollouts: Number of completions per question, at least 1.
    """
    if n_questions < 1 or n_rollouts < 1:
        raise OpdAlignError(f"at least one question and one rollout are needed, not {n_questions} and {n_rollouts}")
    try:
        adapter = adapt_trainer(trainer, sampling)
        teacher_set = TeacherSet.of(adapter, teachers)
        rows = list(islice(trainer.train_dataset, n_questions)) if questions is None else list(questions)
        held_out = HeldOut.of(rows, verifier or _no_verdict, correct_from=correct_from)
    except OpdAlignError as error:
        return SetupReport((Finding("FAIL", "trainer", str(error)),))
    evaluator = Evaluator(adapter, held_out, teacher_set, Path(trainer.args.output_dir))
    checks = _TrainerChecks(adapter, evaluator, verifier, teacher_tokenizer, n_questions, n_rollouts)
    with preserve_rng_state():
        return SetupReport(tuple(checks.run()))


def _no_verdict(completions: Sequence[Any], **columns: Any) -> list[None]:
    return [None] * len(completions)


class _TrainerChecks:
    def __init__(
        self,
        adapter: TrainerAdapter,
        evaluator: Evaluator,
        verifier: Any,
        teacher_tokenizer: Any,
        n_questions: int,
        n_rollouts: int,
    ) -> None:
        self.adapter, self.evaluator, self.verifier = adapter, evaluator, verifier
        self.teacher_tokenizer, self.n_rollouts = teacher_tokenizer, n_rollouts
        self.trainer, self.held_out = adapter.trainer, evaluator.held_out
        self.questions: Sequence[Question] = evaluator.held_out.questions[:n_questions]
        self.samples: list[Sampled] = []
        self.chat = ChatSetup("student", evaluator.chat, _end_tokens(self.trainer))

    def run(self) -> Iterator[Finding]:
        yield from guarded("temperature", self._temperature)
        yield from guarded("chat template", lambda: check_student_chat(self.chat))
        yield from guarded("chat template", self._teacher_chat)
        yield from guarded("padding", self._pad_token)
        yield from guarded("verifier", self._verifier)
        yield from guarded("dropout", self._dropout)
        # One block: sharded weights are gathered, and vLLM gets the present weights, once.
        with self.evaluator.borrowed_models() as (student, writers, teachers):
            failed = guarded("student", lambda: self._sample(student))
            yield from failed
            if not failed:
                yield from self._model_checks(student, writers, teachers)

    def _model_checks(self, student: Any, writers: DemonstrationWriters, teachers: Sequence[Any]) -> Iterator[Finding]:
        samples, local = self.samples, getattr(student, "scorer", student)
        yield from guarded("truncation", lambda: check_truncation(samples, self.adapter.sampling.max_tokens))
        if self.verifier is None:
            yield Finding("SKIP", "pass rate", "not checked: no verifier was given")
        else:
            yield from guarded("pass rate", lambda: check_pass_rate(samples))
        yield from guarded("denominator", self._denominator)
        yield from guarded("determinism", lambda: check_determinism(student, samples))
        yield from guarded("sampling", lambda: check_sampling_gap(probes.sampling_gap(student, samples)))
        yield from guarded("vocabulary", lambda: self._padding("student", local))
        yield from guarded("demonstrations", lambda: self._demonstrations(writers))
        yield from guarded("context length", lambda: self._prompt_length(student, teachers))
        for teacher in teachers:
            readable = [each for each in samples if len(each.rollouts) and _has_prompt(teacher, each.question)]
            yield from self._teacher(student, local, teacher, readable)

    def _teacher(self, student: Any, local: Any, teacher: Any, samples: Sequence[Sampled]) -> Iterator[Finding]:
        if not samples:
            yield Finding("SKIP", "teacher", f"{teacher.name} was not checked: demonstrations are missing")
            return
        yield from guarded("teacher", lambda: check_teacher_reading(student, teacher, samples))
        sampled = samples[0]
        if isinstance(teacher, ServerTeacher):
            completion = sampled.rollouts.completion(0)
            yield from guarded(
                "top-k mass",
                lambda: check_top_k(teacher.name, probes.top_k_bias(student, teacher, sampled.question, completion)),
            )
        elif isinstance(teacher, HFTeacher):
            if teacher.model is not local.model:
                yield from guarded("vocabulary", lambda: self._padding(teacher.name, teacher))
            yield from guarded("precision", lambda: self._precision(local, teacher, sampled))

    def _sample(self, student: Any) -> list[Finding]:
        grader = self.held_out.grader(self.evaluator.chat, student.end_tokens, self.trainer.state)
        self.samples += sample_questions(student, self.questions, self.n_rollouts, grader)
        return []

    @property
    def _loss_temperature(self) -> float:
        # GKD samples at its temperature but computes the loss at 1; the others use it for both.
        return 1.0 if self.adapter.kind == "GKDTrainer" else self.adapter.sampling.temperature

    def _temperature(self) -> list[Finding]:
        sampling = self.adapter.sampling
        remote = [OWN] if self.adapter.server is not None else []
        return check_temperature(sampling, loss_temperature=self._loss_temperature, top_k_teachers=remote)

    def _teacher_chat(self) -> list[Finding]:
        """The trainer's teacher reads the student's tokens: it must have the same ones, and expect the same form."""
        teacher = self.adapter.teacher
        if teacher is None or self.adapter.context is not None:
            return []
        teacher = self.trainer.accelerator.unwrap_model(teacher, keep_torch_compile=False)
        tokenizer = self.teacher_tokenizer
        folder = str(getattr(teacher, "name_or_path", "") or "")
        if tokenizer is None and Path(folder).is_dir():
            tokenizer = load_tokenizer(folder)
        if tokenizer is None:
            raise ProbeUnavailable("the tokenizer of the teacher is not known; pass teacher_tokenizer")
        check_tokenizers(self.adapter.tokenizer, tokenizer, OWN)
        options = {name: value for name, value in self.adapter.template.items() if name != "chat_template"}
        chat = Chat(tokenizer, options=options)
        setup = ChatSetup(OWN, chat, chat.end_tokens(teacher.config, teacher.generation_config))
        return [check_chats_agree(self.chat, setup)]

    def _pad_token(self) -> Finding:
        pad = self.adapter.tokenizer.pad_token_id
        rows = int(self.trainer.accelerator.unwrap_model(self.trainer.model).get_input_embeddings().weight.shape[0])
        if is_zero3(self.trainer.accelerator):  # weights are sharded here, shapes are not known
            rows = int(self.trainer.model.config.get_text_config().vocab_size)
        if pad is None:
            return Finding(
                "FAIL", "padding", "the tokenizer has no padding token, so completions cannot be batched",
                "set tokenizer.pad_token",
            )  # fmt: skip
        text = self.adapter.tokenizer.convert_ids_to_tokens(pad)
        if pad >= rows:
            return Finding(
                "FAIL", "padding", f"the padding token {text!r} has id {pad}, but the model has {rows} embeddings",
                "set tokenizer.pad_token to a token of the vocabulary, or resize the embeddings",
            )  # fmt: skip
        return Finding("OK", "padding", f"token {text!r}, id {pad} of {rows:,}")

    def _verifier(self) -> list[Finding]:
        if self.verifier is None:
            return [Finding("SKIP", "verifier", "not checked: no verifier was given")]
        if all(question.answer is None for question in self.held_out.questions):
            return [Finding("SKIP", "verifier", "not checked: the rows have no column 'answer'")]
        grader = self.held_out.grader(self.evaluator.chat, self.chat.end_tokens, self.trainer.state)
        finding = check_verifier(grader, self.chat, self.questions)
        own_format = not hasattr(self.held_out.verifier.function, "canonical")
        if own_format and finding.level == "FAIL" and "counts as correct" not in finding.found:
            finding = replace(finding, level="WARN")  # a reward function may require a form that is not tried here
        return [finding]

    def _dropout(self) -> Finding:
        found = {
            f"{name.rpartition('.')[2] or type(module).__name__} {rate:g}": None
            for name, module in self.trainer.model.named_modules()
            for rate in (getattr(module, "p", 0.0) if "Dropout" in type(module).__name__ else 0.0,
                         getattr(module, "attention_dropout", 0.0))
            if isinstance(rate, float) and rate > 0
        }  # fmt: skip
        if not found:
            return Finding("OK", "dropout", "none")
        return Finding(
            "WARN", "dropout",
            f"{', '.join(found)}: the loss sees other probabilities than those that sampled, different in every pass",
            "set disable_dropout=True, and attention_dropout and lora_dropout to 0 in the model's configs",
        )  # fmt: skip

    def _denominator(self) -> Finding:
        """TRL 1.16 counts GKD's tokens before the student generates, and not for all processes."""
        trainer, kind = self.trainer, self.adapter.kind
        runtime = getattr(trainer, "_gate_runtime", None)
        if kind in COUNTS_COMPLETIONS or (runtime is not None and runtime.denominator != "trl"):
            return Finding("OK", "denominator", f"{type(trainer).__name__} counts the tokens that it generates")
        if kind != "GKDTrainer":
            raise ProbeUnavailable(f"what {kind} divides its loss by is not known")
        world = int(trainer.accelerator.num_processes)
        on_policy = trainer.lmbda > 0 or trainer.seq_kd
        in_data, sampled = self._tokens_in_data(), self._tokens_sampled() if on_policy else 0.0
        scale = (sampled / in_data if on_policy else 1.0) / world
        if abs(scale - 1) <= MAX_SCALE_ERROR:
            return Finding("OK", "denominator", "the loss is divided by the number of tokens that it is computed on")
        reasons = [f"{in_data:.0f} tokens per completion of the data set, while those that the student samples have "
                   f"{sampled:.0f}"] * on_policy + [f"the tokens of all {world} processes"] * (world > 1)  # fmt: skip
        return Finding(
            "WARN", "denominator",
            f"GKDTrainer of TRL {version('trl')} divides the loss by {' and by '.join(reasons)}: "
            f"{'on-policy steps are' if on_policy else 'it is'} scaled by {scale:.2f}, as a learning rate would be",
            "use opd_align.training.GatedGKDTrainer with gate=Open() and denominator='keep', or DistillationTrainer",
        )  # fmt: skip

    def _tokens_in_data(self) -> float:
        rows = list(islice(self.trainer.train_dataset, COUNTED_ROWS))
        labels = self.trainer.data_collator(rows)["labels"]
        return max(float((labels != -100).sum()), 1.0) / len(rows)

    def _tokens_sampled(self) -> float:
        rollouts = [each.rollouts for each in self.samples]
        return sum(len(each.tokens) for each in rollouts) / max(sum(map(len, rollouts)), 1)

    def _padding(self, name: str, local: Any) -> Finding:
        sampled = next(each for each in self.samples if len(each.rollouts))
        n_tokens = max(self.adapter.tokenizer.get_vocab().values()) + 1
        rows = int(local.model.get_output_embeddings().weight.shape[0])
        prompted = probes.prompted(local.model, local.prompt, sampled.question, name)
        mass = probes.padding_mass(prompted, sampled.rollouts.completion(0), n_tokens)
        return check_padding(name, rows, n_tokens, mass)

    def _demonstrations(self, writers: DemonstrationWriters) -> list[Finding]:
        contexts = self.evaluator.demonstrations.contexts
        if not contexts:
            return []
        if self.verifier is None:
            raise ProbeUnavailable(f"{contexts[0].name} shows verified responses, and no verifier was given")
        trials = min(writers.trials.max_trials, TRIALS)
        limited = replace(writers, trials=replace(writers.trials, max_trials=trials))
        found = self.evaluator.demonstrations.by_question  # the teachers' prompts read it
        found.update(collect_demonstrations(limited, contexts, self.questions))
        missing = missing_demonstrations(self.questions, contexts, found)
        return [check_demonstrations(missing, self.questions, trials, writers.trials.max_trials)]

    def _prompt_length(self, student: Any, teachers: Sequence[Any]) -> Finding:
        too_long: dict[str, str] = {}
        for model in (student, *teachers):
            readable = [question for question in self.questions if _has_prompt(model, question)]
            too_long |= prompts_too_long(model, readable, self.adapter.sampling.max_tokens)
        return check_prompt_length(too_long, {}, len(self.questions))

    def _precision(self, local: Any, teacher: HFTeacher, sampled: Sampled) -> Finding:
        mixed = autocast_dtype(local.model)
        dtypes = sorted({str(model.dtype).removeprefix("torch.") for model in (local.model, teacher.model)})
        if mixed is None and dtypes == ["float32"]:
            return check_precision(teacher.name, "float32", None)
        if is_zero3(self.trainer.accelerator):
            raise ProbeUnavailable("weights that are sharded over processes are not copied")
        cosine = probes.update_cosine(
            probes.prompted(local.model, local.prompt, sampled.question, "student"),
            probes.prompted(teacher.model, teacher.prompt, sampled.question, teacher.name),
            sampled.rollouts.completion(0),
            temperature=self._loss_temperature,
        )
        names = " and ".join(dtypes) + (f" with {mixed} autocast" if mixed else "")
        return check_precision(teacher.name, names, cosine)


def _end_tokens(trainer: Any) -> tuple[int, ...]:
    """The tokens at which the trainer stops generating."""
    ends = getattr(trainer, "eos_token_ids", None)
    if ends is None:
        config = getattr(trainer, "generation_config", None) or trainer.model.generation_config
        ends = config.eos_token_id if config.eos_token_id is not None else trainer.processing_class.eos_token_id
    return tuple(sorted(ends if isinstance(ends, list | tuple | set) else [ends]))


def _has_prompt(model: Any, question: Question) -> bool:
    try:
        model.prompt(question)
    except OpdAlignError:
        return False
    return True
