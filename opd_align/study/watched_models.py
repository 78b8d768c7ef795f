"""The models of a watcher: teachers that stay loaded, and the student of one checkpoint at a time.

Everything that could make results differ from those of the training is set as it was there: precision, attention,
tokenizer and chat template. What would be wrong for every checkpoint (another tokenizer, a teacher with other weights)
is raised as `CannotWatch`, before anything is sampled.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from opd_align.backends.base import find_backend
from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.backends.loading import LoadedModel, check_model, load_model, load_tokenizer, update_with_weights
from opd_align.backends.scoring import TokenizerMismatch, check_tokenizers
from opd_align.study.checkpoints import Checkpoint
from opd_align.study.watch_failures import CannotWatch
from opd_align.training.evaluation import EvaluatedModels, HeldOutEvaluation
from opd_align.training.model_state import precision_name
from opd_align.training.time_limit import TimedStudent, TimeLimit
from opd_align.training.watch_spec import TeacherRef, WatchSpec
from opd_align.types import OpdAlignError

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The student of one checkpoint.

    Args:
        model: The model, in eval mode.
        chat: Its tokenizer and chat template.
        precision: The precision of its forward passes, in words.
    """

    model: Any
    chat: Chat
    precision: str


class WatchedModels:
    """Loads teachers once, and students one after the other.

    Args:
        spec: What is evaluated.
    """

    def __init__(self, spec: WatchSpec) -> None:
        self.spec = spec
        self._teachers: dict[str, LoadedModel] = {}
        self._chat: Chat | None = None

    def load_teachers(self) -> None:
        """Loads the teachers that are models; refuses one whose weights are not those of the training.

        A device that does not exist is refused too, also the student's: it would be wrong for every checkpoint.
        """
        for device in {self.spec.device, *(ref.device for ref in self.spec.teachers if ref.model is not None)}:
            _check_device(device)
        for ref in self.spec.teachers:
            if ref.model is None or ref.name in self._teachers:
                continue
            options: dict[str, Any] = {"dtype": ref.dtype, "device": ref.device, "load": ref.load}
            loaded = load_model(ref.model, adapter=ref.adapter, name=ref.name, **options)
            _set_attention(loaded.model, ref.attention)
            if ref.digest is not None:
                found = update_with_weights(blake2b(digest_size=16), loaded.model).hexdigest()
                if found != ref.digest:
                    raise CannotWatch(
                        f"teacher {ref.name!r} at {ref.model!r} does not have the weights that the training uses; save "
                        "the teacher of the training with save_pretrained, and load it from there"
                    )
            self._teachers[ref.name] = loaded

    @contextmanager
    def student(self, checkpoint: Checkpoint) -> Iterator[LoadedCheckpoint]:
        """The student of a checkpoint, in the precision of the training's loss; its memory is freed afterwards."""
        import torch

        loaded = self._load(checkpoint)
        model = loaded.model
        _read_from_disk(model)
        _set_attention(model, self.spec.attention)
        mixed: Any = nullcontext()
        if self.spec.autocast is not None:
            mixed = torch.autocast(model.device.type, dtype=getattr(torch, self.spec.autocast))
        try:
            chat = self._checked_chat(checkpoint, loaded)
            with torch.no_grad(), mixed:
                yield LoadedCheckpoint(model, chat, precision_name(model))
        finally:
            del loaded, model
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def evaluated(self, evaluation: HeldOutEvaluation, loaded: LoadedCheckpoint, limit: TimeLimit) -> EvaluatedModels:
        """Student, writers of demonstrations and teachers of one evaluation."""
        ends = loaded.chat.end_tokens(loaded.model.config, loaded.model.generation_config)

        def student_with(prompt: Any) -> TimedStudent:
            sampling = self.spec.sampling
            return TimedStudent(
                HFStudent("student", loaded.model, prompt, ends, sampling, before_step=limit.check, precision="native"),
                limit,
            )

        student = student_with(evaluation.prompting())
        summarising = student_with(evaluation.plain_prompt) if evaluation.needs_summaries else None
        teachers = [self._teacher(ref, evaluation, loaded.model) for ref in self.spec.teachers]
        return EvaluatedModels(student, evaluation.writers(student, summarising), teachers, loaded.precision)

    def check(self, evaluation: HeldOutEvaluation, student: Any) -> None:
        """Refuses a student that cannot be sampled, and questions none of which fits its context."""
        try:
            student.check()
        except OpdAlignError as error:
            raise CannotWatch(str(error)) from error
        reasons = evaluation.exclude_too_long(student)
        if len(reasons) == len(evaluation.held_out.questions):
            raise CannotWatch(f"no held-out question is usable; the last one: {[*reasons.values()][-1]}")

    def _teacher(self, ref: TeacherRef, evaluation: HeldOutEvaluation, student: Any) -> Any:
        prompt = evaluation.prompting(ref.context)
        if ref.served is not None:
            return find_backend(ref.backend).build_teacher(ref.name, ref.served, prompt)
        if ref.url is not None:
            from opd_align.backends.server import ServerTeacher

            return ServerTeacher(ref.name, ref.url, ref.served_as or ref.name, prompt)
        # As in the training: the update that is measured is the one that the loss makes, in its precision.
        return HFTeacher(ref.name, student if ref.model is None else self._teachers[ref.name].model, prompt, "native")

    def _load(self, checkpoint: Checkpoint) -> LoadedModel:
        spec, folder = self.spec, str(checkpoint.folder)
        options: dict[str, Any] = {"dtype": spec.dtype, "device": spec.device, "load": spec.load, "name": "student"}
        if checkpoint.is_adapter:
            base = spec.base or _base_of(checkpoint)
            try:
                check_model(base)
            except OpdAlignError as error:
                raise CannotWatch(f"{checkpoint.name}, the model of its adapter: {error}") from error
            return load_model(base, adapter=folder, **options)
        has_tokenizer = any((checkpoint.folder / name).is_file() for name in TOKENIZER_FILES)
        if not has_tokenizer and spec.tokenizer is None:
            raise CannotWatch(
                f"{checkpoint.name} has no tokenizer; name the model that the training started from: --student"
            )
        tokenizer = folder if has_tokenizer else spec.tokenizer
        return load_model(folder, tokenizer=tokenizer, **options)

    def _checked_chat(self, checkpoint: Checkpoint, loaded: LoadedModel) -> Chat:
        """The tokenizer of the training and its template; refuses a checkpoint or a teacher that has another one."""
        if self._chat is None:
            spec = self.spec
            tokenizer = loaded.tokenizer if spec.tokenizer is None else load_tokenizer(spec.tokenizer)
            try:
                if loaded.tokenizer is not tokenizer and not checkpoint.is_adapter:
                    check_tokenizers(loaded.tokenizer, tokenizer, str(spec.tokenizer))
                for ref in spec.teachers:
                    if ref.name in self._teachers:
                        check_tokenizers(tokenizer, self._teachers[ref.name].tokenizer, ref.name)
            except TokenizerMismatch as error:
                raise CannotWatch(f"{checkpoint.name}: {error}") from error
            self._chat = Chat(tokenizer, spec.thinking, spec.template)
            self._chat.prompt([{"role": "user", "content": "?"}])
        rows, tokens = int(loaded.model.get_output_embeddings().weight.shape[0]), len(self._chat.tokenizer)
        if rows < tokens:
            raise CannotWatch(
                f"{checkpoint.name} has a vocabulary of {rows} tokens and its tokenizer has {tokens}; pass the model "
                "that the training started from: --student"
            )
        return self._chat


def _check_device(device: str) -> None:
    import torch

    check_model("embedded:student", device=device)  # whether it is the name of a device
    try:
        torch.empty(1, device="cpu" if device == "auto" else device)
    except (RuntimeError, AssertionError) as error:  # torch reports a device it was not built for with an assertion
        raise CannotWatch(f"there is no device {device!r} here: {str(error).splitlines()[0]}") from error


def _set_attention(model: Any, name: str | None) -> None:
    """The attention that the training uses: another one rounds differently."""
    if name is not None and getattr(model.config, "_attn_implementation", None) != name:
        model.set_attn_implementation(name)


def _read_from_disk(model: Any) -> None:
    """Makes weights that are a view of their file a copy: the training may overwrite or remove the file."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def _base_of(checkpoint: Checkpoint) -> str:
    named = json.loads((checkpoint.folder / "adapter_config.json").read_bytes()).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise CannotWatch(
            f"{checkpoint.name} does not name the model of its adapter; name the one that the training started from: "
            "--student"
        )
    return named


def on_device(spec: WatchSpec, device: str) -> WatchSpec:
    """The same, with all models on one device."""
    teachers = tuple(replace(teacher, device=device) for teacher in spec.teachers)
    return replace(spec, device=device, teachers=teachers)
