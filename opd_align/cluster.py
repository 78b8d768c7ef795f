"""A study on a cluster: questions as work items on Ray's actors.

A worker is an actor with a study of its own, made from the same plain configuration: sampler, scorers, grader. It
writes its rollouts to the run's shelf. When it dies, Ray starts it again wherever there is room and repeats its call,
which finds on the shelf what was made. The driver loads no model: it holds the run directory and joins the parts in
the questions' order. So the result is that of one process, to the byte where hardware and threads are the same.

A teacher too large to sit beside the student is an actor of its own. Its body reads there; its last hidden states come
back (and once its output layer), never logits: scores are as exact as if it sat here.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from opd_align.config import ModelConfig, StudyConfig
from opd_align.engine import Analysis, Part, analyze_group, groups, joined
from opd_align.manifest import describe
from opd_align.place import Address, Remote, place
from opd_align.search import DONE, Progress
from opd_align.shelf import DamagedFile, Recorded, Shelf
from opd_align.store import RunDirectory, Spent
from opd_align.study import Prepared, Study
from opd_align.teachers import Demonstration, Prompting
from opd_align.types import Floats, OpdAlignError, Question, Rollouts, Tokens

RETRIES = 8
"""How often the same call may lose its actor before it is given up: a machine that goes is chance, nine are not."""

LOCAL = "local"
"""The address that starts a Ray of one's own on this machine."""


@dataclass(frozen=True)
class Cluster:
    """What to ask of Ray.

    `workers` questions are worked on at a time (`None`: as many as there is room for), each on `gpus` GPUs. `apart`
    names teachers that get actors of their own, and the GPUs of each. `None` GPUs: one where the cluster has any.
    """

    address: str = LOCAL
    workers: int | None = None
    gpus: float | None = None
    apart: Mapping[str, float | None] = field(default_factory=dict)

    def check(self, study: Study) -> None:
        """Refuses what cannot be, before anything is started."""
        asked = [each for each in (self.gpus, *self.apart.values()) if each is not None]
        if (self.workers is not None and self.workers < 1) or min(asked, default=0) < 0:
            raise OpdAlignError("at least one worker is needed, and GPUs cannot be negative")
        models = {role.name: role.model for role in study.roles}
        for name in self.apart:
            if name not in models:
                raise OpdAlignError(f"there is no teacher {name!r} to set apart; there are: {', '.join(models)}")
            model = models[name]
            if model is None or model.backend == "server":
                where = "is the student with a context" if model is None else "is behind a server"
                raise OpdAlignError(f"teacher {name!r} {where}; only a model of its own can be set apart")


def analyze_on(
    cluster: Cluster,
    study: Study,
    path: Address,
    *,
    reuse: Address | None = None,
    on_phase: Callable[[str, int, int], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Analysis:
    """Like `study.analyze`, with the work done by actors of a Ray cluster."""
    study.check()
    cluster.check(study)
    ray = _ray()
    with _connected(ray, cluster.address):
        reused = None if reuse is None else _everywhere(reuse)
        team = _Team(ray, cluster, study, _everywhere(path), reused, (on_phase, on_progress))
        try:
            return team.analysis()
        finally:
            team.dismiss()


class _Team:
    """The actors of one analysis, and what the driver does with them."""

    def __init__(
        self, ray: Any, cluster: Cluster, study: Study, path: str, reuse: str | None, listeners: tuple[Any, Any]
    ) -> None:
        from ray.util.queue import Queue

        self.ray, self.study, self.path, self.reuse = ray, study, path, reuse
        self.on_phase, self.on_progress = listeners
        workers, gpus, apart_gpus = _room(ray, cluster, len(study.questions))
        self.mail = Queue(actor_options={"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1})
        self.bodies: dict[str, Any] = {}
        apart = {}
        for role in study.roles:
            if role.name in cluster.apart:
                model = repr(role.model)  # teachers that share a model share its actor
                if model not in self.bodies:
                    self.bodies[model] = self._actor(Body, apart_gpus[role.name], role.model)
                apart[role.name] = self.bodies[model]
        order = (study.config, path, reuse, apart, self.mail)
        self.workers = [self._actor(Worker, gpus, *order) for _ in range(workers)]

    def _actor(self, kind: type, gpus: float, *order: Any) -> Any:
        # On another machine the same relative names mean the same files, given a shared disk.
        options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": RETRIES}
        return self.ray.remote(kind).options(**options).remote(os.getcwd(), *order)

    def analysis(self) -> Analysis:
        """One worker prepares, all analyse, the driver joins."""
        from ray.util import ActorPool

        ready, manifest = self._prepared()
        ready.warn()
        with RunDirectory(self.path, manifest, reuse=self.reuse) as run:
            shown = self.ray.put(ready.demonstrations)
            pool: Any = ActorPool(self.workers)
            units = groups(ready.questions, self.study.config.settings())
            for at in range(len(units)):
                pool.submit(lambda worker, at: worker.analyze.remote(at, units[at], shown), at)
            parts: dict[int, Sequence[Part]] = {}
            spent = Spent()
            while pool.has_next():
                found = self._finished(pool)
                if found is not None:
                    parts[found.at] = found.parts
                    spent += found.spent
            analysis = joined([part for at in sorted(parts) for part in parts[at]], self.study.config.settings())
            run.finish(analysis, spent)
        return analysis

    def _prepared(self) -> tuple[Prepared, dict[str, Any]]:
        # Demonstrations are sampled for many questions at a time, so that they are one worker's work.
        asked = self.workers[0].prepare.remote()
        while not self.ray.wait([asked], timeout=1.0)[0]:
            self._listen()
        with _spoken(self.ray):
            ready: tuple[Prepared, dict[str, Any]] = self.ray.get(asked)
        self._listen()
        return ready

    def _finished(self, pool: Any) -> Finished | None:
        """The next finished question, if there is one soon."""
        found: Finished | None = None
        with suppress(_NotYet), _spoken(self.ray):
            found = pool.get_next_unordered(timeout=1.0)
        self._listen()
        for message in found.damage if found else ():
            warnings.warn(message, DamagedFile, stacklevel=2)
        # A worker without work gives its room back: one that lost its machine may be waiting for it.
        while (idle := pool.pop_idle()) is not None:
            self.ray.kill(idle)
        return found

    def _listen(self) -> None:
        for message in self.mail.get_nowait_batch(self.mail.qsize()):
            if isinstance(message, Progress):
                if self.on_progress:
                    self.on_progress(message)
            elif self.on_phase:
                self.on_phase(*message)

    def dismiss(self) -> None:
        """Lets all actors go, also those at work: what they have finished is on the shelf."""
        for actor in (*self.workers, *self.bodies.values(), self.mail.actor):
            self.ray.kill(actor)


@dataclass(frozen=True)
class Finished:
    """What a worker has to tell about a group of questions: their parts, what that took, and files found damaged."""

    at: int
    parts: Sequence[Part]
    spent: Spent
    damage: Sequence[str]


class Worker:
    """An actor that works on one group of questions at a time."""

    def __init__(
        self, folder: str, config: StudyConfig, path: str, reuse: str | None, apart: Mapping[str, Any], mail: Any
    ) -> None:
        _enter(folder)
        self.path, self.mail = place(path), mail
        bodies = {name: _Body(actor) for name, actor in apart.items()}
        self.study = Study(config, {name: body.teacher for name, body in bodies.items()})
        self.shelf = Shelf(path, reuse=reuse)

    def prepare(self) -> tuple[Prepared, dict[str, Any]]:
        """What the analysis starts from, and the manifest of the run."""
        study = self.study
        ready = study.prepared(self.path, lambda *phase: self.mail.put(phase))
        teachers = study.teachers(ready.demonstrations)
        return ready, describe(study.student, teachers, ready.questions, study.grader, study.config.settings())

    def analyze(
        self, at: int, questions: Sequence[Question], demonstrations: Mapping[str, Sequence[Demonstration]]
    ) -> Finished:
        """One group of questions, as far as it is not on the shelf yet."""
        begin, study = time.monotonic(), self.study
        recorded = Recorded(self.shelf, study.student, study.grader)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always", DamagedFile)
            parts = analyze_group(
                recorded, study.teachers(demonstrations), questions, recorded, settings=study.config.settings(),
                on_progress=self.mail.put,
            )  # fmt: skip
        damage = [str(each.message) for each in heard if each.category is DamagedFile]
        for question in questions:
            self.mail.put(Progress(question.id, DONE, 1, 1))
        return Finished(at, parts, Spent(recorded.tokens, time.monotonic() - begin), damage)


class Body:
    """An actor that is a teacher's model: it reads completions after prompts, and tells what scoring needs of that."""

    def __init__(self, folder: str, model: ModelConfig) -> None:
        from opd_align.backends.hf import HFTeacher
        from opd_align.models import load_model

        _enter(folder)
        loaded = load_model(model.model, adapter=model.adapter, dtype=model.dtype, device=model.device)
        self.model = loaded.model
        teacher = HFTeacher(loaded.name, self.model, lambda question: ())
        self.told = teacher.fingerprint, teacher.context_length

    def about(self) -> tuple[str, int | None]:
        """Fingerprint and context length."""
        return self.told

    def head(self, name: str) -> Any:
        """The output layer, on the CPU; any few tokens will do to see that it is one."""
        from copy import deepcopy

        from opd_align.scoring import Side, output_layer

        return deepcopy(output_layer(Side(name, self.model, range(4)))).cpu()

    def hidden_states(self, name: str, prompt: Sequence[int], completion: Tokens) -> Any:
        """The last hidden state before each token of the completion, on the CPU."""
        import torch

        from opd_align.scoring import Side, hidden_states

        with torch.no_grad():
            # A view would take the prompt's states along.
            return hidden_states(Side(name, self.model, prompt), [completion]).cpu().clone()

    def token_log_probs(self, name: str, prompt: Sequence[int], rollouts: Rollouts, temperature: float) -> Floats:
        """Log-probability of every token of every rollout, flat."""
        from opd_align.scoring import Sampling, Side, rollout_log_probs

        return rollout_log_probs(Side(name, self.model, prompt), rollouts, Sampling(temperature))


@dataclass(frozen=True)
class _Body:
    """A teacher's model in another process, as a worker knows it; its output layer is fetched once."""

    actor: Any

    def teacher(self, name: str, prompt: Prompting, temperature: float) -> AfarTeacher:
        return AfarTeacher(name, prompt, temperature, self)

    def ask(self, method: str, *arguments: Any) -> Any:
        ray = _ray()
        with _spoken(ray):
            return ray.get(getattr(self.actor, method).remote(*arguments))

    @cached_property
    def about(self) -> tuple[str, int | None]:
        told: tuple[str, int | None] = self.ask("about")
        return told

    @cached_property
    def heads(self) -> dict[Any, Any]:
        return {}


@dataclass(frozen=True)
class AfarTeacher:
    """A teacher whose model is an actor of its own; what it reads is written here."""

    name: str
    prompt: Prompting
    temperature: float
    body: _Body

    @property
    def fingerprint(self) -> str:
        return self.body.about[0]

    @property
    def context_length(self) -> int | None:
        return self.body.about[1]

    def head(self, device: Any) -> Any:
        """The output layer on a device."""
        if device not in self.body.heads:
            self.body.heads[device] = self.body.ask("head", self.name).to(device)
        return self.body.heads[device]

    def hidden_states(self, question: Question, completion: Tokens) -> Any:
        """The last hidden state before each token of a completion."""
        return self.body.ask("hidden_states", self.name, list(self.prompt(question)), completion)

    def token_log_probs(self, question: Question, rollouts: Rollouts) -> Floats:
        """Log-probability of every token of every rollout, flat."""
        return self.body.ask("token_log_probs", self.name, list(self.prompt(question)), rollouts, self.temperature)


class _NotYet(Exception):
    """No question has been finished lately."""


@contextmanager
def _spoken(ray: Any) -> Iterator[None]:
    """What went wrong in an actor, as if it had happened here."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:  # comes first: it may pass for the error that it carries
        if isinstance(error.cause, OpdAlignError):
            raise error.cause from None
        raise
    except ray.exceptions.RayActorError as error:
        raise OpdAlignError(
            f"an actor died {RETRIES + 1} times at the same work, which is no chance any more ({_first_line(error)}); "
            "is there enough memory? What is finished is kept: the same command goes on from there"
        ) from error
    except TimeoutError:
        raise _NotYet from None


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """A connection to a cluster; one that was there before is used, and stays."""
    if ray.is_initialized():
        yield
        return
    try:
        host, colon, port = address.rpartition(":")
        if colon and port.isdecimal() and "/" not in host:
            # Ray itself would end this process where nobody answers.
            socket.create_connection((host, int(port)), timeout=10).close()
        # What actors print (loading bars and the like) stays in Ray's logs.
        options = {"include_dashboard": False} if address == LOCAL else {}
        ray.init(address, log_to_driver=False, logging_level="warning", **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise OpdAlignError(
            f"cannot reach a Ray cluster at {address!r}: {_first_line(error)}; start one with ray start --head, or "
            "leave the address out to use this machine alone"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _room(ray: Any, cluster: Cluster, questions: int) -> tuple[int, float, dict[str, float]]:
    """How many workers there are, the GPUs of each, and those of each teacher apart."""
    there = ray.cluster_resources()
    usual = float(there.get("GPU", 0) > 0)
    gpus = usual if cluster.gpus is None else cluster.gpus
    apart = {name: usual if asked is None else asked for name, asked in cluster.apart.items()}
    if cluster.workers is not None:  # taken on trust: a cluster may grow
        return min(cluster.workers, questions), gpus, apart
    room = int(there.get("CPU", 0)) - len(apart)
    if gpus:
        room = min(room, int((there.get("GPU", 0) - sum(apart.values())) / gpus))
    if room < 1:
        raise OpdAlignError(
            f"the cluster has {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs; with {len(apart)} teachers"
            f" apart there is no room for a worker on 1 CPU and {gpus:g} GPUs. If it will grow, say how many workers"
        )
    return min(room, questions), gpus, apart


def _everywhere(path: Address) -> str:
    """A place by a name that means the same on every machine that can reach it."""
    found = place(path)
    return str(found if isinstance(found, Remote) else found.absolute())


def _enter(folder: str) -> None:
    with suppress(OSError):  # a machine without that folder has no use for relative names
        os.chdir(folder)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise OpdAlignError("a cluster needs Ray: pip install 'opd-align[ray]'") from error
    return ray
