"""The Ray actors of a study beside its workers (`worker`): events, and models of their own.

Constructors of actors do no work: errors then occur in a call and are reported as in a run without actors. Actors find
each other by name; `ray` starts them and collects the results.

A teacher that is too large for the worker's device runs in its own actor. That actor computes the last hidden states,
which are sent to the worker (with the output layer, once), never logits: scores are exactly those of a local model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import uuid4

from opd_align.settings import Precision
from opd_align.study.config import ModelConfig
from opd_align.study.worker import WorkStarted
from opd_align.teachers.contexts import ContextPrompt
from opd_align.types import Floats, OpdAlignError, Question, Rollouts, Tokens


class EventQueue:
    """An actor that stores events of other actors until the driver takes them."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def put(self, event: Any) -> None:
        """Adds an event."""
        self.events.append(event)

    def take(self) -> list[Any]:
        """Removes and returns all events."""
        events, self.events = self.events, []
        return events


@dataclass(frozen=True)
class ActorContext:
    """What an actor needs to know about the run.

    Args:
        name: The actor's name in messages.
        folder: The working directory, from which relative paths start.
        events: The name of the `EventQueue` actor; not its handle, because Ray warns about restartable actors whose
            arguments contain handles of other actors.
    """

    name: str
    folder: str
    events: str

    def enter(self) -> ActorContext:
        """Changes to the working directory; on a machine that does not have it, relative paths cannot be used."""
        with suppress(OSError):
            os.chdir(self.folder)
        return self

    def send(self, event: Any) -> None:
        """Sends an event to the driver; waits until it is in the queue, so that it is not lost if the actor dies."""
        import_ray().get(self._queue.put.remote(event))

    @cached_property
    def _queue(self) -> Any:
        return import_ray().get_actor(self.events)


class ModelActor:
    """An actor that holds a teacher's model and computes what scoring needs from it.

    Args:
        context: What the actor needs to know about the run.
        model: The model to load, at the first call.
        precision: The precision in which the teacher is scored.
    """

    def __init__(self, context: ActorContext, model: ModelConfig, precision: Precision = "auto") -> None:
        self.context, self.config, self.precision = context.enter(), model, precision

    @cached_property
    def model(self) -> Any:
        from opd_align.backends.loading import load_model

        self.context.send(WorkStarted(self.context.name, uuid4().hex))
        config = self.config
        return load_model(
            config.model, adapter=config.adapter, dtype=config.dtype, device=config.device, load=config.load
        ).model

    @cached_property
    def _info(self) -> tuple[str, int | None]:
        from opd_align.backends.hf import HFTeacher

        teacher = HFTeacher(self.context.name, self.model, lambda question: (), self.precision)
        return teacher.fingerprint, teacher.context_length

    def info(self) -> tuple[str, int | None]:
        """Fingerprint and context length."""
        return self._info

    def head(self, name: str) -> Any:
        """The output layer, on the CPU; the prompt is only used to check the layer."""
        from copy import deepcopy

        from opd_align.backends.precision import scoring_precision
        from opd_align.backends.scoring import PromptedModel, output_layer

        head = deepcopy(output_layer(PromptedModel(name, self.model, range(4)))).cpu()
        return head if scoring_precision(self.model, self.precision) == "native" else head.float()

    def hidden_states(self, name: str, prompt: Sequence[int], completion: Tokens) -> Any:
        """The last hidden state before each token of the completion, on the CPU."""
        import torch

        from opd_align.backends.scoring import PromptedModel, hidden_states

        with torch.no_grad():
            # A view would also send the prompt's states.
            return hidden_states(PromptedModel(name, self.model, prompt, self.precision), [completion]).cpu().clone()

    def token_log_probs(self, name: str, prompt: Sequence[int], rollouts: Rollouts, temperature: float) -> Floats:
        """Log-probability of every token of every rollout, flat."""
        from opd_align.backends.scoring import PromptedModel, rollout_log_probs
        from opd_align.settings import Sampling

        return rollout_log_probs(
            PromptedModel(name, self.model, prompt, self.precision), rollouts, Sampling(temperature)
        )


@dataclass(frozen=True)
class ModelActorHandle:
    """A worker's handle of a `ModelActor`; the output layer is fetched once per device.

    Args:
        name: The name of the actor.
    """

    name: str

    def teacher(self, name: str, prompt: ContextPrompt, temperature: float) -> ActorTeacher:
        """A teacher with this model."""
        return ActorTeacher(name, prompt, temperature, self)

    def load(self) -> None:
        """Loads the model in its actor now, rather than at the first score."""
        _ = self.info

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the actor and waits for its result."""
        ray = import_ray()
        with reraise_ray_errors(ray):
            return ray.get(getattr(self._actor, method).remote(*arguments))

    @cached_property
    def info(self) -> tuple[str, int | None]:
        fingerprint, context_length = self.call("info")
        return fingerprint, context_length

    @cached_property
    def heads(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def _actor(self) -> Any:
        return import_ray().get_actor(self.name)


@dataclass(frozen=True)
class ActorTeacher:
    """A teacher whose model runs in its own actor; its prompts are built in the worker.

    Args:
        name: The teacher's name.
        prompt: Builds the prompt of a question.
        temperature: The sampling temperature, which token log-probabilities use.
        actor: The handle of the model's actor.
    """

    name: str
    prompt: ContextPrompt
    temperature: float
    actor: ModelActorHandle

    @property
    def fingerprint(self) -> str:
        return self.actor.info[0]

    @property
    def context_length(self) -> int | None:
        return self.actor.info[1]

    def head(self, device: Any) -> Any:
        """The output layer on a device."""
        if device not in self.actor.heads:
            self.actor.heads[device] = self.actor.call("head", self.name).to(device)
        return self.actor.heads[device]

    def hidden_states(self, question: Question, completion: Tokens) -> Any:
        """The last hidden state before each token of a completion."""
        return self.actor.call("hidden_states", self.name, list(self.prompt(question)), completion)

    def score_inputs(self, question: Question, completion: Tokens, device: Any) -> Any:
        """What scoring needs along a completion: hidden states and output layer, both on `device`."""
        from opd_align.backends.scoring import RemoteTeacher

        return RemoteTeacher(self.name, self.head(device), self.hidden_states(question, completion).to(device))

    def token_log_probs(self, question: Question, rollouts: Rollouts) -> Floats:
        """Log-probability of every token of every rollout, flat."""
        return self.actor.call("token_log_probs", self.name, list(self.prompt(question)), rollouts, self.temperature)


@contextmanager
def reraise_ray_errors(ray: Any) -> Iterator[None]:
    """Raises errors of an actor as if they had occurred in this process."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:  # first: it may also be an instance of the error that it wraps
        if isinstance(error.cause, OpdAlignError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        # Actors that die are restarted; this one could not be created, or was killed from outside.
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise OpdAlignError(
            f"an actor was lost and cannot be restarted: {reason.strip()} Finished work is stored: run the same "
            "command again to resume"
        ) from error


def import_ray() -> Any:
    """The `ray` module; raises `OpdAlignError` if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise OpdAlignError("--engine ray needs Ray: pip install 'opd-align[ray]'") from error
    return ray
