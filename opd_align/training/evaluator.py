"""One evaluation in training: the models of the trainer, with the weights of the present step.

What is done with them is in `evaluation`, which `opd-align watch` shares. Questions are split over the processes; rank
0 holds the run directory, and all end with the same `Analysis`, the one that a single process would compute. After each
stage, a failure on one process is known to all before any of them continues, so there is no deadlock. The models belong
to the trainer, and their state is restored after the evaluation.
"""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.core.engine import Analysis, check_inputs
from opd_align.settings import Settings
from opd_align.teachers.contexts import SELF, Context, context
from opd_align.teachers.demonstrations import DemonstrationWriters
from opd_align.training.adapters import TrainerAdapter
from opd_align.training.distributed import max_wait, on_all_ranks, wait_for_all_ranks
from opd_align.training.evaluation import OWN, EvaluatedModels, HeldOutEvaluation
from opd_align.training.held_out import HeldOut
from opd_align.training.memory import check_memory
from opd_align.training.model_state import (
    fsdp2_dtype,
    gathered_parameters,
    precision_name,
    preserve_model_state,
    unwrapped,
)
from opd_align.training.teacher_mix import mix_of
from opd_align.training.time_limit import TimedStudent, TimeLimit
from opd_align.training.vllm_address import Node, reachable_address
from opd_align.training.weight_sync import vllm_ready
from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

LEAVING = 1
"""Level at which ranks wait for each other before they restore the models; the callback's own is below it."""


@dataclass(frozen=True)
class TeacherSet:
    """Teachers in addition to the trainer's own.

    Args:
        contexts: The live student, with demonstrations or other text in its prompt.
        models: Models that share the student's tokenizer, by name.
    """

    contexts: tuple[Context, ...] = ()
    models: Mapping[str, Any] | None = None

    @staticmethod
    def of(adapter: TrainerAdapter, teachers: Mapping[str, Any] | Sequence[Any]) -> TeacherSet:
        """From names of contexts, contexts, and models by name; refuses what cannot teach this student."""
        if isinstance(teachers, str | Context):  # a single one
            teachers = [teachers]
        named = list(teachers.items()) if isinstance(teachers, Mapping) else [(None, teacher) for teacher in teachers]
        contexts: list[Context] = []
        models: dict[str, Any] = {}
        for name, teacher in named:
            if isinstance(teacher, str | Context):
                found = context(teacher) if isinstance(teacher, str) else teacher
                if found.source != SELF:
                    raise OpdAlignError(
                        f"context {found.name!r} uses responses of {found.source!r}; during training only responses of "
                        "the student itself are available"
                    )
                contexts.append(found if name is None else replace(found, name=name))
            elif name is not None and hasattr(teacher, "get_output_embeddings"):
                weight = teacher.get_output_embeddings().weight
                # Of a model that was loaded under ZeRO-3, the weight itself is empty.
                rows, tokens = int(getattr(weight, "ds_shape", weight.shape)[0]), len(adapter.tokenizer)
                if rows < tokens:
                    raise OpdAlignError(
                        f"teacher {name!r} has a vocabulary of {rows} tokens and the student's tokenizer has {tokens}; "
                        "a teacher must share the student's tokenizer"
                    )
                models[name] = teacher
            else:
                raise OpdAlignError(
                    f"teachers: a {type(teacher).__name__} is neither a context (such as 'Self-1C') nor a model with a "
                    "name (teachers={'Qwen3-8B': model, 'Self-1C': 'Self-1C'})"
                )
        if adapter.context is not None and not contexts:
            contexts.append(context(adapter.context))
        mix = mix_of(adapter.trainer)
        if mix is not None:
            given = {*models, *(each.name for each in contexts)}
            taken = [name for name in mix.names if name in given]
            if taken:
                raise OpdAlignError(f"teacher {taken[0]!r} is in the TeacherMix already; evaluations measure it")
            contexts += mix.pool.contexts.values()
        every: Mapping[str, Any] = models if mix is None else ChainMap(models, mix.evaluated)  # type: ignore[arg-type]
        no_teacher = adapter.teacher is None and adapter.server is None and not contexts and not every
        if no_teacher and adapter.objective.signal != "reward":
            raise OpdAlignError(f"this {adapter.kind} has no teacher; pass some, for example teachers=['Self-1C']")
        return TeacherSet(tuple(contexts), every)


@dataclass(frozen=True)
class _Named:
    name: str


@dataclass(frozen=True)
class Engine:
    """What the student samples with, and until when.

    Args:
        server: URL of the trainer's vLLM server as this rank reaches it, and the student's name there; `None` without.
        limit: The time limit of the evaluation.
    """

    server: tuple[str, str] | None
    limit: TimeLimit


class Evaluator:
    """Evaluations of one training; every method that computes is called by all processes together.

    Args:
        adapter: The trainer.
        held_out: The questions and their verifier.
        teacher_set: Teachers in addition to the trainer's own.
        folder: Where run directories and demonstrations are stored.
    """

    def __init__(self, adapter: TrainerAdapter, held_out: HeldOut, teacher_set: TeacherSet, folder: Path) -> None:
        self.adapter, self.held_out, self.teacher_set, self.folder = adapter, held_out, teacher_set, folder
        self.chat = Chat(adapter.tokenizer, options=adapter.template)
        self.evaluation = HeldOutEvaluation(
            held_out, teacher_set.contexts, self.chat, max_tokens=adapter.sampling.max_tokens, folder=folder,
            rank=self.rank, world=self.world,
        )  # fmt: skip
        self.demonstrations = self.evaluation.demonstrations
        self.precision: str | None = None

    @property
    def num_selected(self) -> int:
        """Number of questions of the latest evaluation."""
        return self.evaluation.num_selected

    def check(self, settings: Settings) -> None:
        """Refuses what would fail at every evaluation; logs the questions that will be excluded."""
        adapter = self.adapter
        check_inputs([_Named(name) for name in self.teachers], self.held_out.questions, settings)
        model = adapter.trainer.model
        ends = self.chat.end_tokens(model.config, model.generation_config)
        student = HFStudent("student", model, self.held_out.prompting(self.chat), ends, adapter.sampling)
        if adapter.vllm is None:
            student.check()
        reasons = self.evaluation.exclude_too_long(student)
        if len(reasons) == len(self.held_out.questions):
            raise OpdAlignError(f"no held-out question is usable; the last one: {[*reasons.values()][-1]}")

    @property
    def teachers(self) -> list[str]:
        """Their names, the trainer's own first; a self-distillation trainer's own is the student in a context."""
        adapter, contexts = self.adapter, [context.name for context in self.teacher_set.contexts]
        own = (adapter.teacher is not None and adapter.context is None) or adapter.server is not None
        return [*([OWN] if own else contexts), *(self.teacher_set.models or {}), *(contexts if own else [])]

    @property
    def distilled(self) -> list[str]:
        """The teachers that the trainer learns from; the others are only measured."""
        adapter, mix = self.adapter, mix_of(self.adapter.trainer)
        if mix is not None:
            return list(mix.names)
        own = adapter.teacher is not None or adapter.server is not None or adapter.context is not None
        return self.teachers[:1] if own else []

    @property
    def rank(self) -> int:
        return int(self.adapter.trainer.accelerator.process_index)

    @property
    def world(self) -> int:
        return int(self.adapter.trainer.accelerator.num_processes)

    def evaluate(
        self, settings: Settings, step: int, scale: float = 1.0, *, time_limit_s: float | None = None
    ) -> tuple[Analysis, str]:
        """The analysis at this step on a share `scale` of the questions, and the name of its run directory.

        Args:
            settings: Settings of the analysis; `questions_per_group` is the largest group.
            step: The present step.
            scale: Share of the questions, above 0 and at most 1.
            time_limit_s: After so many seconds sampling ends. `None`: only `Budget.seconds` limits it.
        """
        limit = self.evaluation.time_limit(settings, scale, time_limit_s)
        ddp_timeout_s = self.adapter.trainer.args.ddp_timeout
        with max_wait(ddp_timeout_s, limit.seconds), self.borrowed_models(limit) as (student, writers, teachers):
            models = EvaluatedModels(student, writers, teachers, self.precision)
            return self.evaluation.run(models, settings, step, scale)

    @contextmanager
    def borrowed_models(self, limit: TimeLimit | None = None) -> Iterator[tuple[Any, DemonstrationWriters, list[Any]]]:
        """The student, the student as writer of demonstrations, and the teachers; state is restored on exit.

        Every stage ends on all ranks before the next one begins on any of them, and all ranks leave together: a rank
        that fails inside the block waits for the others, which learn of it at their next stage.
        """
        adapter, trainer, limit = self.adapter, self.adapter.trainer, limit or TimeLimit()
        accelerator = trainer.accelerator
        # Teachers that were loaded under ZeRO-3 are sharded too, whoever loaded them.
        models = [adapter.student, *self._own_teacher, *(self.teacher_set.models or {}).values()]

        def enter(context: Any, stage: str) -> Any:
            entered: list[Any] = []  # not sent to the other ranks
            on_all_ranks(lambda: entered.append(stack.enter_context(context)), stage)
            return entered[0]

        failure: Exception | None = None
        with ExitStack() as stack:
            try:
                # First, since syncing, gathering and their failures change the models too.
                preserved = preserve_model_state(
                    *(unwrapped(accelerator, model) for model in models), tokenizer=adapter.tokenizer
                )
                enter(preserved, "saving the state of the models")
                stack.enter_context(vllm_ready(trainer, on_all_ranks))
                on_all_ranks(lambda: self._check_memory(models), "memory")
                student, *teachers = enter(gathered_parameters(accelerator, *models), "gathering weights")
                stack.enter_context(adapter.loss_precision())
                self._note_precision(student)
                engine = Engine(self._server(), limit)
                loaded: list[Any] = []
                on_all_ranks(lambda: loaded.extend(self._models(student, teachers, engine)), "loading")
                yield loaded[0], loaded[1], loaded[2]
            except Exception as error:
                failure = error
            # A rank that closes its contexts does so when all ranks do: some of them may be collective.
            _, failure = wait_for_all_ranks("end of the evaluation", LEAVING, None, failure)
            if failure is not None:
                raise failure

    def _note_precision(self, model: Any) -> None:
        """Keeps the precision in which student and teachers are scored, for the manifest, and logs it once."""
        precision = precision_name(model)
        if precision != self.precision and self.rank == 0:
            logger.info("Scoring in the precision of the trainer's loss: %s", precision)
        self.precision = precision

    @property
    def _own_teacher(self) -> list[Any]:
        return [self.adapter.teacher] if self.adapter.teacher is not None else []

    def _check_memory(self, models: Sequence[Any]) -> None:
        vllm, accelerator = self.adapter.vllm, self.adapter.trainer.accelerator
        colocated = vllm is not None and vllm.mode == "colocate"
        check_memory(accelerator.device, models, dtype=fsdp2_dtype(accelerator), beside_vllm=colocated)

    def _server(self) -> tuple[str, str] | None:
        """URL and served name of the student on the trainer's vLLM server, as this rank reaches it."""
        vllm = self.adapter.vllm
        if vllm is None or vllm.mode != "server":
            return None
        client = getattr(vllm, "vllm_client", None)  # on the first process only
        known = on_all_ranks(
            lambda: (Node.current(), None if client is None else (client.base_url, client.model)), "address of vLLM"
        )
        url, served = known[0][1] or ("", "")
        return reachable_address(url, known[0][0], known[self.rank][0]), served

    def _models(
        self, model: Any, teachers: Sequence[Any], engine: Engine
    ) -> tuple[Any, DemonstrationWriters, list[Any]]:
        student = TimedStudent(self._student(model, self.held_out.prompting(self.chat), engine), engine.limit)
        return student, self._demonstration_writers(model, student, engine), self._teachers(model, teachers)

    def _student(self, model: Any, prompt: Any, engine: Engine) -> Any:
        adapter, vllm = self.adapter, self.adapter.vllm
        ends = self.chat.end_tokens(model.config, model.generation_config)
        local = HFStudent(
            "student", model, prompt, ends, adapter.sampling, before_step=engine.limit.check, precision="native"
        )
        # With tensor parallelism all ranks of a group must send the same requests, but each has questions of its own.
        if vllm is None or (vllm.mode == "colocate" and vllm.tensor_parallel_size > 1):
            return local
        if engine.server is None:
            from opd_align.backends.vllm import VLLMStudent, too_few_sequences

            few = model.device.type == "cuda" and too_few_sequences(vllm.llm, local.rows_at_a_time)
            if few and local.unsupported is None:
                logger.info("Sampling with transformers: the trainer's vLLM engine decodes too few sequences at a time")
                return local
            return VLLMStudent("student", vllm.llm, prompt, ends, local, adapter.sampling)
        from opd_align.backends.server import ServerStudent

        return ServerStudent(*engine.server, prompt, ends, local, adapter.sampling)

    def _teachers(self, model: Any, gathered: Sequence[Any]) -> list[Any]:
        """The teachers; `gathered` are the models of the trainer's own, if it has one, and of those in addition."""
        adapter, prompt = self.adapter, self.held_out.prompting(self.chat)
        own, extra = gathered[: len(self._own_teacher)], gathered[len(self._own_teacher) :]
        teachers: list[Any] = []
        if adapter.context is None:  # the teacher of a self-distillation trainer has a context, see below
            teachers += [HFTeacher(OWN, own_model, prompt, "native") for own_model in own]
        if adapter.server is not None:
            from opd_align.backends.server import ServerTeacher

            teachers.append(ServerTeacher(OWN, adapter.server, adapter.trainer.teacher_client.model, prompt))
        names = self.teacher_set.models or {}
        teachers += [HFTeacher(name, each, prompt, "native") for name, each in zip(names, extra, strict=True)]
        context_model = own[0] if own and adapter.context is not None else model
        for own_context in self.teacher_set.contexts:
            with_context = self.evaluation.prompting(own_context)
            teachers.append(HFTeacher(own_context.name, context_model, with_context, "native"))
        return teachers

    def _demonstration_writers(self, model: Any, student: Any, engine: Engine) -> DemonstrationWriters:
        summarising = None
        if self.evaluation.needs_summaries:
            summarising = TimedStudent(self._student(model, self.evaluation.plain_prompt, engine), engine.limit)
        return self.evaluation.writers(student, summarising, self.adapter.trainer.state)
