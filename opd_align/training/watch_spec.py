"""What `opd-align watch` needs to know of a training: questions, verifier, sampling, objectives, teachers.

The callback writes it to `OUTPUT_DIR/opd_align/watch` with `where="outside"`; for trainings without the callback it
comes from the configuration of a study (`study.watch_config`). Models are named, not stored: a watcher loads the
teachers itself, and checks by a digest of their weights that they are the ones of the training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from opd_align.backends.base import ModelSpec
from opd_align.backends.load_options import LoadOptions
from opd_align.runs.filesystem import write_atomic
from opd_align.settings import Sampling, Settings
from opd_align.teachers.contexts import Context
from opd_align.training.portable import from_json, to_json
from opd_align.training.rewards import CORRECT_FROM, TIMEOUT_S
from opd_align.types import OpdAlignError, Question

FOLDER, SPEC, TOKENIZER = "watch", "spec.json", "tokenizer"
FORMAT = 1


@dataclass(frozen=True)
class TeacherRef:
    """A teacher that another process can load.

    Args:
        name: Its name in results.
        context: What its prompt has in addition to the student's. `None`: nothing.
        model: Folder or Hub name of its model. `None`: the student, or behind a server.
        adapter: A PEFT adapter of it. `None`: none.
        dtype: The dtype of its weights.
        device: Its torch device; "auto" is a GPU if there is one.
        attention: Its attention implementation. `None`: that of transformers.
        url: Its vLLM server. `None`: no server.
        served_as: Its name on that server.
        served: Its server as a configuration describes it: several addresses, an API key. `None`: that at `url`.
        backend: The kind of its server.
        digest: A digest of its weights. `None`: not known.
        load: How its model is loaded. `None`: as transformers does.
    """

    name: str
    context: Context | None = None
    model: str | None = None
    adapter: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    attention: str | None = None
    url: str | None = None
    served_as: str | None = None
    served: ModelSpec | None = None
    backend: str = "server"
    digest: str | None = None
    load: LoadOptions | None = None


@dataclass(frozen=True)
class WatchSpec:
    """A training, as far as its evaluation depends on it.

    Args:
        questions: The held-out questions.
        verifier: A task, the verifier of one, or a reward function.
        sampling: How the student samples.
        settings: Settings of the analysis.
        teachers: The teachers, in the order of the results.
        correct_from: The smallest value of the verifier that means correct.
        timeout_s: Time limit of one call of the verifier, in seconds.
        tokenizer: Folder or Hub name of the student's tokenizer. `None`: the one in each checkpoint.
        template: Arguments of the chat template.
        thinking: Sets the template's thinking switch; `None`: the template's default.
        dtype: The dtype of the student's weights; "auto": that of the checkpoint, float32 on a CPU.
        device: The student's torch device.
        attention: The student's attention implementation. `None`: that of transformers.
        autocast: The dtype of mixed precision in which the loss is computed. `None`: the weights' own.
        load: How checkpoints are loaded. `None`: as transformers does.
        base: The model that adapters in checkpoints belong to. `None`: the one that they name.
        trainer: Class name of the trainer; empty if it is not known.
        loss_recognised: Whether the objectives are the trainer's whole loss.
        wandb: Run id, project and entity of the training on W&B. `None`: it does not report there.
        alerts_on: Names of the teachers that cause alerts. `None`: all.
    """

    questions: tuple[Question, ...]
    verifier: Any
    sampling: Sampling
    settings: Settings
    teachers: tuple[TeacherRef, ...]
    correct_from: float = CORRECT_FROM
    timeout_s: float = TIMEOUT_S
    tokenizer: str | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    thinking: bool | None = None
    dtype: str = "auto"
    device: str = "auto"
    attention: str | None = None
    autocast: str | None = None
    load: LoadOptions | None = None
    base: str | None = None
    trainer: str = ""
    loss_recognised: bool = True
    wandb: Mapping[str, Any] | None = None
    alerts_on: tuple[str, ...] | None = None

    @property
    def contexts(self) -> list[Context]:
        return [teacher.context for teacher in self.teachers if teacher.context is not None]

    def as_json(self) -> dict[str, Any]:
        """As JSON; refuses what another process could not read, and says which part it is."""
        parts = {name: to_json(getattr(self, name), f"where='outside', {name}") for name in self.__dataclass_fields__}
        return {"format": FORMAT, **parts}


def write_spec(folder: Path, spec: WatchSpec) -> None:
    """Writes the description of a training; `folder` is the folder `opd_align` in its output directory."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FOLDER / SPEC, json.dumps(spec.as_json(), ensure_ascii=False, indent=1).encode())


def spec_digest(folder: Path) -> str | None:
    """Identifies what a training says is to be evaluated, whatever its run on W&B; `None` if it says nothing."""
    try:
        stored = json.loads((folder / FOLDER / SPEC).read_bytes())
        stored.pop("wandb", None)
    except (OSError, ValueError, AttributeError):
        return None
    return blake2b(json.dumps(stored, sort_keys=True).encode(), digest_size=16).hexdigest()


def read_spec(folder: Path) -> WatchSpec | None:
    """The description that the callback wrote; `None` if there is none. Raises `OpdAlignError` if it is damaged."""
    file = folder / FOLDER / SPEC
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if stored.pop("format") != FORMAT:
            raise OpdAlignError(f"{str(file)!r} was written by another version of opd-align; use the same one for both")
        spec = WatchSpec(**{name: from_json(value) for name, value in stored.items()})
        spec = replace(spec, tokenizer=str(folder / FOLDER / TOKENIZER))  # wherever this directory is mounted
    except FileNotFoundError:
        return None
    except OpdAlignError as error:
        raise OpdAlignError(f"cannot use {str(file)!r}: {error}") from error
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise OpdAlignError(
            f"cannot read {str(file)!r} ({error!r}); it is written when a training with "
            "AlignmentCallback(..., where='outside') starts"
        ) from error
    return spec
