"""A study on a cluster: questions as work items on Ray's actors.

The driver loads no model. It hires actors, holds the run directory, counts who dies and says who waits, and joins the
parts in the questions' order. When an actor dies, Ray starts it again wherever there is room and repeats its call,
which finds on the shelf what was made. So the result is that of one process, to the byte where hardware and threads
are the same. What actors do is the business of `actors`.
"""

from __future__ import annotations

import math
import os
import socket
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from opd_align.backends.base import find_backend
from opd_align.core.collect import Progress
from opd_align.core.engine import Analysis, QuestionResult, check_inputs, combine_results, question_groups
from opd_align.runs.filesystem import PathLike, RemotePath, as_path
from opd_align.runs.rollout_store import DamagedFileWarning
from opd_align.runs.run_directory import RunDirectory, Usage
from opd_align.study.build import PreparedStudy, Study, TeacherSpec
from opd_align.study.config import ModelConfig
from opd_align.study.ray_actors import (
    ActorContext,
    EventQueue,
    GroupResult,
    ModelActor,
    Worker,
    WorkStarted,
    import_ray,
    reraise_ray_errors,
)
from opd_align.types import OpdAlignError

DEATHS = 8
"""How often the same work may lose its actor before it is given up: a machine that goes is chance, eight are not."""

PATIENCE_S = 30.0
"""How long an actor may wait for a place before the user hears of it."""

LOCAL = "local"
"""The address that starts a Ray of one's own on this machine."""

HERE = ("localhost", "127.0.0.1", "0.0.0.0", "::1")
"""Hosts that are another one on every machine."""


class PendingActorWarning(UserWarning):
    """An actor has no place on the cluster yet."""


class UnreachableHostWarning(UserWarning):
    """An address that other machines will not understand as this one does."""


@dataclass(frozen=True)
class RayCluster:
    """What to ask of Ray.

    `workers` groups of questions are worked on at a time (`None`: as many as there is room for), each on `gpus` GPUs.
    `apart` names teachers that get actors of their own, and the GPU of each, or the share of it: a model sits on one
    device. `None` GPUs: one where the cluster has any. A cluster at an address may grow: a number of workers is taken
    on trust there.
    """

    address: str = LOCAL
    workers: int | None = None
    gpus: float | None = None
    apart: Mapping[str, float | None] = field(default_factory=dict)

    def check(self, study: Study) -> None:
        """Refuses what cannot be, before anything is started."""
        asked = [each for each in (self.gpus, *self.apart.values()) if each is not None]
        if (self.workers is not None and self.workers < 1) or not all(0 <= each < math.inf for each in asked):
            raise OpdAlignError("at least one worker is needed, and GPUs cannot be negative")
        if self.gpus is not None and self.gpus > 1 and self.gpus % 1:
            raise OpdAlignError(f"a worker has a share of one GPU, or whole ones; not {self.gpus:g}")
        models = {role.name: role.model for role in study.roles}
        for name, gpus in self.apart.items():
            if name not in models:
                raise OpdAlignError(f"there is no teacher {name!r} to set apart; there are: {', '.join(models)}")
            model = models[name]
            if model is None or find_backend(model.backend).remote:
                where = "is the student with a context" if model is None else "is behind a server"
                raise OpdAlignError(f"teacher {name!r} {where}; only a model of its own can be set apart")
            if gpus is not None and gpus > 1:
                raise OpdAlignError(f"teacher {name!r} is loaded on one GPU; set it apart on 1 or less, not {gpus:g}")


def analyze_with_ray(
    cluster: RayCluster,
    study: Study,
    path: PathLike,
    *,
    reuse: PathLike | None = None,
    on_phase: Callable[[str, int, int], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Analysis:
    """Like `study.analyze`, with the work done by actors of a Ray cluster."""
    study.check()
    check_inputs(study.roles, study.questions, study.config.settings())
    cluster.check(study)
    place_of_run, reused = _everywhere(path), None if reuse is None else _everywhere(reuse)
    if cluster.address != LOCAL:
        _warn_of_hosts(study)
    ray = import_ray()
    with _connected(ray, cluster.address):
        team = _Team(ray, cluster, study, (place_of_run, reused), (on_phase, on_progress))
        try:
            return team.analysis()
        finally:
            team.dismiss()


@dataclass(frozen=True)
class _Hired:
    """An actor, what it is called, and what it takes up beside a CPU."""

    name: str
    actor: Any
    gpus: float


class _Team:
    """The actors of one analysis, and what the driver does with them."""

    def __init__(
        self, ray: Any, cluster: RayCluster, study: Study, places: tuple[str, str | None], listeners: tuple[Any, Any]
    ) -> None:
        self.ray, self.study, (self.path, self.reuse) = ray, study, places
        self.on_phase, self.on_progress = listeners
        self.room = _room(ray, cluster, study)
        self.call_name = f"opd-align-{uuid4().hex[:8]}"
        self.watch = _Watch(ray)
        self.lives: dict[str, set[str]] = {}
        # Beside the driver, whose machine is the only one that it may go with.
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self.mail = self._started(EventQueue, "mail", num_cpus=0, scheduling_strategy=here).remote()
        self.hired: list[_Hired] = []
        self.apart: dict[str, str] = {}
        for at, body in enumerate(self.room.bodies):
            self._hire(ModelActor, f"teacher {body.names[0]!r}", f"body-{at}", body.gpus, body.model)
            self.apart |= dict.fromkeys(body.names, f"{self.call_name}-body-{at}")
        self.bodies = [each.name for each in self.hired]

    def _started(self, kind: type, name: str, **options: Any) -> Any:
        # Ray counts as a retry of a call also each time it knocks in vain at a machine that it does not know to be dead
        # yet, six or seven for one death. So it may try for ever, and who really dies is counted here.
        lasting = {"max_restarts": -1, "max_task_retries": -1}
        return self.ray.remote(kind).options(name=f"{self.call_name}-{name}", **lasting, **options)

    def _hire(self, kind: type, known_as: str, name: str, gpus: float, *order: Any) -> Any:
        # On another machine the same relative names mean the same files, given a shared disk.
        desk = ActorContext(known_as, os.getcwd(), f"{self.call_name}-mail")
        actor = self._started(kind, name, num_cpus=1, num_gpus=gpus).remote(desk, *order)
        self.hired.append(_Hired(known_as, actor, gpus))
        return actor

    def _worker(self, at: int) -> Any:
        order = (self.study.config, self.path, self.reuse, self.apart)
        return self._hire(Worker, f"worker {at + 1}", f"worker-{at}", self.room.gpus, *order)

    def analysis(self) -> Analysis:
        """One worker prepares, all analyse, the driver joins."""
        from ray.util import ActorPool

        first = self._worker(0)
        ready, manifest = self._prepared(first)
        ready.warn()
        with RunDirectory(self.path, manifest, reuse=self.reuse) as run:
            shown = self.ray.put(ready.demonstrations)
            units = question_groups(ready.questions, self.study.config.settings())
            # Not before: without work they would keep the room that the first one needs if its machine goes.
            others = [self._worker(at) for at in range(1, min(self.room.workers, len(units)))]
            pool: Any = ActorPool([first, *others])
            for at in range(len(units)):
                pool.submit(lambda worker, at: worker.analyze.remote(at, units[at], shown), at)
            parts: dict[int, Sequence[QuestionResult]] = {}
            spent = Usage()
            while pool.has_next():
                found = self._finished(pool)
                if found is not None:
                    parts[found.at] = found.parts
                    spent += found.spent
            analysis = combine_results(
                [part for at in sorted(parts) for part in parts[at]], self.study.config.settings()
            )
            run.finish(analysis, spent)
        return analysis

    def _prepared(self, worker: Any) -> tuple[PreparedStudy, dict[str, Any]]:
        # Demonstrations are sampled for many questions at a time, so that they are one worker's work.
        asked = worker.prepare.remote()
        while not self.ray.wait([asked], timeout=1.0)[0]:
            self._listen()
        with reraise_ray_errors(self.ray):
            ready: tuple[PreparedStudy, dict[str, Any]] = self.ray.get(asked)
        self._listen()
        return ready

    def _finished(self, pool: Any) -> GroupResult | None:
        """The next finished group, if there is one soon."""
        found: GroupResult | None = None
        try:
            with reraise_ray_errors(self.ray):
                found = pool.get_next_unordered(timeout=1.0)
        except TimeoutError as error:
            if isinstance(error, self.ray.exceptions.RayTaskError):  # a worker's own
                raise
        self._listen()
        for message in found.damage if found else ():
            warnings.warn(message, DamagedFileWarning, stacklevel=2)
        if found:  # which the teachers have survived
            for name in self.bodies:
                self.lives.pop(name, None)
        # A worker without work gives its room back: one that lost its machine may be waiting for it.
        while (idle := pool.pop_idle()) is not None:
            self.ray.kill(idle)
            self.hired = [each for each in self.hired if each.actor is not idle]
        return found

    def _listen(self) -> None:
        for message in self.ray.get(self.mail.take.remote()):
            if isinstance(message, WorkStarted):
                self._count(message)
            elif isinstance(message, Progress):
                if self.on_progress:
                    self.on_progress(message)
            elif self.on_phase:
                self.on_phase(*message)
        self.watch.look(self.hired)

    def _count(self, begun: WorkStarted) -> None:
        lives = self.lives.setdefault(begun.work, set())
        lives.add(begun.life)
        if len(lives) > DEATHS:
            raise OpdAlignError(
                f"the work on {begun.work} lost its actor {len(lives) - 1} times, which is no chance any more; is "
                "there enough memory? What is finished is kept: the same command goes on from there"
            )

    def dismiss(self) -> None:
        """Lets all actors go, also those at work: what they have finished is on the shelf."""
        for actor in (*(each.actor for each in self.hired), self.mail):
            self.ray.kill(actor)


class _Watch:
    """Says who has been waiting long for a place on the cluster, and for what."""

    def __init__(self, ray: Any) -> None:
        self.ray, self.looked = ray, 0.0
        self.since: dict[str, float] = {}
        self.told: set[str] = set()

    def look(self, hired: Sequence[_Hired]) -> None:
        """Looks every few seconds; each wait is told once."""
        now = time.monotonic()
        if now - self.looked < PATIENCE_S / 6:
            return
        self.looked = now
        waiting = {each.name: each for each in hired if self._waits(each)}
        self.since = {name: self.since.get(name, now) for name in waiting}
        self.told &= waiting.keys()
        late = [name for name, begin in self.since.items() if now - begin >= PATIENCE_S and name not in self.told]
        if late:
            self.told |= set(late)
            one, more = waiting[late[0]], f" (and {len(late) - 1} more)" if late[1:] else ""
            there, free = self.ray.cluster_resources(), self.ray.available_resources()
            rooms = " and ".join(f"{free.get(of, 0):g} of {there.get(of, 0):g} {of}s" for of in ("CPU", "GPU"))
            warnings.warn(
                f"{one.name}{more} has been waiting {PATIENCE_S:g} s for a machine that has 1 CPU and {one.gpus:g} "
                f"GPUs to spare; of all, {rooms} are free. The run goes on when there is one; interrupted, the same "
                "command with fewer --workers goes on too",
                PendingActorWarning,
                stacklevel=2,
            )

    def _waits(self, hired: _Hired) -> bool:
        # Ray's public state of actors needs its dashboard. Where this door is closed, nothing is said.
        try:
            state = self.ray._private.state.actors(hired.actor._actor_id.hex()).get("State")
        except Exception:
            return False
        return state in ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")


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


@dataclass(frozen=True)
class _Apart:
    """A model set apart, the teachers that it is, and its GPUs."""

    names: Sequence[str]
    model: ModelConfig
    gpus: float


@dataclass(frozen=True)
class _Room:
    """The most workers, the GPUs of each, and the models set apart."""

    workers: int
    gpus: float
    bodies: Sequence[_Apart]


def _room(ray: Any, cluster: RayCluster, study: Study) -> _Room:
    """What the cluster has room for; what it can never have is refused."""
    there = ray.cluster_resources()
    usual = float(there.get("GPU", 0) > 0)
    gpus = usual if cluster.gpus is None else cluster.gpus
    bodies = _bodies(cluster, study, usual)
    if cluster.workers is not None and cluster.address != LOCAL:
        return _Room(cluster.workers, gpus, bodies)
    room, left = int(there.get("CPU", 0)) - len(bodies), there.get("GPU", 0) - sum(body.gpus for body in bodies)
    if gpus:
        room = min(room, int(left / gpus))
    if room < 1 or left < 0:
        beside = f" beside {len(bodies)} models apart on {sum(body.gpus for body in bodies):g} GPUs" if bodies else ""
        hint = "" if cluster.address == LOCAL else ". If it will grow, say how many workers"
        raise OpdAlignError(
            f"the cluster has {there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs: no room for a worker on "
            f"1 CPU and {gpus:g} GPUs{beside}{hint}"
        )
    return _Room(room if cluster.workers is None else min(room, cluster.workers), gpus, bodies)


def _bodies(cluster: RayCluster, study: Study, usual: float) -> list[_Apart]:
    """Teachers that share a model share its actor, on the most that is asked for one of them."""
    sharing: dict[str, list[TeacherSpec]] = {}
    for role in study.roles:
        if role.name in cluster.apart:
            sharing.setdefault(repr(role.model), []).append(role)
    made = []
    for roles in sharing.values():
        asked = [gpus for role in roles if (gpus := cluster.apart[role.name]) is not None]
        model = roles[0].model
        assert model is not None  # Cluster.check
        made.append(_Apart([role.name for role in roles], model, max(asked, default=usual)))
    return made


def _everywhere(path: PathLike) -> str:
    """A place by a name that means the same on every machine that can reach it."""
    found = as_path(path)
    if isinstance(found, RemotePath) and found.address.startswith("memory:"):
        raise OpdAlignError(f"{found} is the memory of one process, and actors are many; give a disk or a store")
    return str(found if isinstance(found, RemotePath) else found.absolute())


def _warn_of_hosts(study: Study) -> None:
    config = study.config
    models = [config.student, config.source, config.summariser, *(role.model for role in study.roles)]
    urls = dict.fromkeys(url for model in models if model is not None for url in model.url)
    for url in urls:
        if urlsplit(url).hostname in HERE:
            warnings.warn(
                f"{url} is another server on every machine of the cluster; give an address that all of them can reach",
                UnreachableHostWarning,
                stacklevel=3,
            )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
