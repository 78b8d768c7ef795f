"""One evaluation: the engine on the trainer's student, as it is at this step.

Questions are split over the processes; each works on its own, shares the run directory's shelf, and all end with the
same `Analysis`: the one that a single process would have made. What goes wrong on one process is known to all before
any of them goes on, so none waits for another. The models are borrowed; what is computed is the engine's business.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.core.engine import Analysis, check_inputs
from opd_align.runs.execute import LocalExecutor, execute_run
from opd_align.runs.manifest import RunMismatch, describe
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Settings
from opd_align.teachers.contexts import SELF, Context, context
from opd_align.teachers.demonstrations import DemonstrationSource, DemonstrationWriters, NoGrading, TrialBudget
from opd_align.teachers.eligibility import prompts_too_long
from opd_align.training.adapters import TrainerAdapter
from opd_align.training.demonstration_cache import DemonstrationCache
from opd_align.training.distributed import EvaluationFailed, RankExecutor, on_all_ranks
from opd_align.training.held_out import HeldOut
from opd_align.training.model_state import gathered_parameters, preserve_model_state
from opd_align.training.overhead import FEWEST
from opd_align.types import OpdAlignError, Question

logger = logging.getLogger(__name__)

OWN = "teacher"
"""What the trainer's own teacher is called."""

ROUNDS = 3
"""How often an evaluation looks for other questions where the student could not write demonstrations."""


@dataclass(frozen=True)
class TeacherSet:
    """Teachers beside the trainer's own: contexts of the live student, and models of the same tokenizer by name."""

    contexts: tuple[Context, ...] = ()
    models: Mapping[str, Any] | None = None

    @staticmethod
    def of(host: TrainerAdapter, teachers: Mapping[str, Any] | Sequence[Any]) -> TeacherSet:
        """From names of contexts, contexts, and models by name; refuses what cannot teach this student."""
        if isinstance(teachers, str | Context):  # one alone
            teachers = [teachers]
        named = list(teachers.items()) if isinstance(teachers, Mapping) else [(None, each) for each in teachers]
        contexts, models = [], {}
        for name, given in named:
            if isinstance(given, str | Context):
                found = context(given) if isinstance(given, str) else given
                if found.source != SELF:
                    raise OpdAlignError(
                        f"context {found.name!r} shows responses by {found.source!r}; in training the student itself "
                        "writes them"
                    )
                contexts.append(found if name is None else replace(found, name=name))
            elif name is not None and hasattr(given, "get_output_embeddings"):
                rows, tokens = int(given.get_output_embeddings().weight.shape[0]), len(host.tokenizer)
                if rows < tokens:
                    raise OpdAlignError(
                        f"teacher {name!r} knows {rows} tokens and the student's tokenizer has {tokens}; a teacher "
                        "must share the student's tokenizer"
                    )
                models[name] = given
            else:
                raise OpdAlignError(
                    f"teachers: a {type(given).__name__} is neither a context (such as 'Self-1C') nor a model with a "
                    "name (teachers={'Qwen3-8B': model, 'Self-1C': 'Self-1C'})"
                )
        if host.context is not None and not contexts:
            contexts.append(context(host.context))
        untaught = host.teacher is None and host.server is None and not contexts and not models
        if untaught and host.objective.signal != "reward":
            raise OpdAlignError(f"this {host.kind} has no teacher; give some: teachers=['Self-1C']")
        return TeacherSet(tuple(contexts), models)


@dataclass(frozen=True)
class _Named:
    name: str


class Evaluator:
    """Evaluations of one training; made by all processes together."""

    def __init__(self, host: TrainerAdapter, held_out: HeldOut, faculty: TeacherSet, folder: Path) -> None:
        self.host, self.held_out, self.faculty, self.folder = host, held_out, faculty, folder
        self.chat = Chat(host.tokenizer, options=host.template)
        self.showing = DemonstrationCache(faculty.contexts, held_out.questions, folder)
        self.named: set[str] = set()

    def check(self, settings: Settings) -> None:
        """Refuses what would fail at every evaluation; names the questions that will be left out."""
        host = self.host
        check_inputs([_Named(name) for name in self.teachers], self.held_out.questions, settings)
        model = host.trainer.model
        ends = self.chat.end_tokens(model.config, model.generation_config)
        student = HFStudent("student", model, self.held_out.prompting(self.chat), ends, host.sampling)
        if host.vllm is None:
            student.check()
        reasons = prompts_too_long(student, self.held_out.questions, host.sampling.max_tokens)
        self._name(reasons)
        if len(reasons) == len(self.held_out.questions):
            raise OpdAlignError(f"no held-out question can be asked; the last one: {[*reasons.values()][-1]}")

    @property
    def teachers(self) -> list[str]:
        """Their names, the trainer's own first: a self-distilling trainer's own is the student in a context."""
        host, contexts = self.host, [each.name for each in self.faculty.contexts]
        own = (host.teacher is not None and host.context is None) or host.server is not None
        return [*([OWN] if own else contexts), *(self.faculty.models or {}), *(contexts if own else [])]

    @property
    def rank(self) -> int:
        return int(self.host.trainer.accelerator.process_index)

    @property
    def world(self) -> int:
        return int(self.host.trainer.accelerator.num_processes)

    def evaluate(self, settings: Settings, step: int, scale: float = 1.0) -> tuple[Analysis, str]:
        """The analysis at this step on a share `scale` of the questions, and the name of its run directory.

        The questions of a smaller share are also in a larger one. Fewer questions save more time than fewer rollouts
        per question, since a batch takes as long as its longest rollout, and the estimates stay as precise.
        """
        with self._at_hand() as (student, cast, teachers):
            questions = self._asked(student, cast, teachers, scale)
            grader = cast.sources[SELF].grader

            def open_directory() -> RunDirectory:
                manifest = describe(student, teachers, questions, grader, settings)
                return self._directory(f"step-{step:06d}", manifest)

            local = LocalExecutor(student, teachers, grader, settings)
            executor = RankExecutor(local, self.rank, self.world)
            analysis, path = execute_run(executor, open_directory, questions, settings)
            return analysis, path.name

    def _directory(self, name: str, manifest: Mapping[str, Any]) -> RunDirectory:
        """A run directory of that name, or of one beside it where another run has it: a training that went back."""
        number = 1
        while True:
            try:
                return RunDirectory(self.folder / (name if number == 1 else f"{name}-{number}"), manifest)
            except RunMismatch:
                number += 1

    @contextmanager
    def _at_hand(self) -> Iterator[tuple[Any, DemonstrationWriters, list[Any]]]:
        """The student, the student as one who writes demonstrations, and its teachers; borrowed from the trainer."""
        host, trainer = self.host, self.host.trainer
        others = [host.teacher] if host.teacher is not None else []
        extra = self.faculty.models or {}
        with (
            self._generating(),
            gathered_parameters(trainer.accelerator, host.student, *others) as (model, *own),
            preserve_model_state(model, *own, *extra.values(), tokenizer=host.tokenizer),
            trainer.compute_loss_context_manager(),
        ):
            student = self._student(model, self.held_out.prompting(self.chat))
            yield student, self._cast(model, student), self._teachers(model, own)

    @contextmanager
    def _generating(self) -> Iterator[None]:
        """The trainer's vLLM, if it has one, with the weights of this step; as it was afterwards."""
        vllm, trainer = self.host.vllm, self.host.trainer
        if vllm is None:
            yield
            return
        vllm.sync_weights()
        # The trainer need not do it again: the next generation is made with these very weights.
        trainer._last_loaded_step = trainer.state.global_step
        sleeps = vllm.mode == "colocate" and vllm.enable_sleep_mode
        if sleeps:
            vllm.llm.wake_up(tags=["kv_cache"])
        try:
            yield
        finally:
            if sleeps:
                vllm.llm.sleep(level=2)
                vllm._llm_weights_sleeping = True

    def _student(self, model: Any, prompt: Any) -> Any:
        host = self.host
        ends = self.chat.end_tokens(model.config, model.generation_config)
        local = HFStudent("student", model, prompt, ends, host.sampling)
        # With tensor parallelism an engine answers only when its whole group asks the same: sample here instead.
        if host.vllm is None or (host.vllm.mode == "colocate" and host.vllm.tensor_parallel_size > 1):
            return local
        if host.vllm.mode == "colocate":
            from opd_align.backends.vllm import VLLMStudent

            return VLLMStudent("student", host.vllm.llm, prompt, ends, local, host.sampling)
        from opd_align.backends.server import ServerStudent

        client = getattr(host.vllm, "vllm_client", None)  # on the first process only
        url, served = on_all_ranks(lambda: (client.base_url, client.model) if client is not None else ("", ""))[0]
        return ServerStudent(url, served, prompt, ends, local, host.sampling)

    def _teachers(self, model: Any, own: Sequence[Any]) -> list[Any]:
        host, plain = self.host, self.held_out.prompting(self.chat)
        teachers: list[Any] = []
        if host.context is None:  # a self-distilling trainer's teacher reads a context, below
            teachers += [HFTeacher(OWN, each, plain) for each in own]
        if host.server is not None:
            from opd_align.backends.server import ServerTeacher

            teachers.append(ServerTeacher(OWN, host.server, host.trainer.teacher_client.model, plain))
        teachers += [HFTeacher(name, each, plain) for name, each in (self.faculty.models or {}).items()]
        speaker = own[0] if own and host.context is not None else model
        for each in self.faculty.contexts:
            teachers.append(HFTeacher(each.name, speaker, self.held_out.prompting(self.chat, each, self.showing.found)))
        return teachers

    def _cast(self, model: Any, student: Any) -> DemonstrationWriters:
        """Who writes demonstrations, and who summarises them: the student, as it is now."""
        grader = self.held_out.grader(self.chat, student.end_tokens, self.host.trainer.state)
        source = DemonstrationSource(SELF, student, self.chat.decode, grader)
        summariser = None
        if any(each.summarised for each in self.faculty.contexts):
            scribe = self._student(model, self._asked_plainly)
            summariser = DemonstrationSource("summariser", scribe, self.chat.decode, NoGrading())
        return DemonstrationWriters({SELF: source}, summariser, TrialBudget())

    def _asked_plainly(self, question: Question) -> tuple[int, ...]:
        return self.chat.prompt([{"role": "user", "content": question.text}])

    def _asked(self, student: Any, cast: DemonstrationWriters, teachers: Sequence[Any], scale: float) -> list[Question]:
        """A share of the questions that all can be asked; a comparison leaves the others out for everybody.

        Those that were asked before come first. Where the student cannot write what a context shows, others take the
        question's place, for a few rounds: each costs as many trials as a whole evaluation at worst.
        """
        room = self.host.sampling.max_tokens
        reasons = prompts_too_long(student, self.held_out.questions, room)
        able = [question for question in self.held_out.questions if question.id not in reasons]
        wanted = max(FEWEST, ceil(scale * len(able)))
        waiting, asked, rounds = self.showing.in_turn(able), list[Question](), 0
        while waiting and len(asked) < wanted and rounds < ROUNDS:
            count = wanted - len(asked)
            turn, waiting = waiting[:count], waiting[count:]
            rounds += self.showing.write(cast, turn, self.rank, self.world)
            reasons |= self.showing.lacking(turn)
            for speaker in teachers:
                reasons |= prompts_too_long(
                    speaker, [question for question in turn if question.id not in reasons], room
                )
            asked += [question for question in turn if question.id not in reasons]
        self._name(reasons)
        if not asked:
            raise EvaluationFailed(f"no held-out question can be asked; the last one: {[*reasons.values()][-1]}")
        return asked

    def _name(self, reasons: Mapping[str, str]) -> None:
        """Says which questions are left out, each once."""
        for name, reason in reasons.items():
            if name not in self.named:
                logger.warning("held-out question %r is left out: %s", name, reason)
        self.named |= reasons.keys()
