"""A study on a Ray cluster: groups of questions are analyzed by actors.

The driver loads no model. It starts the actors, opens the run directory, counts actor deaths, reports pending actors,
and combines the results in the order of the questions. When an actor dies, Ray restarts it where resources are
available and repeats its call, which finds finished rollouts in the run directory. The result is therefore that of a
single process, to the byte where hardware and number of threads are the same. `ray_actors` has the code of the actors.
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
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import uuid4

from opd_align.backends.base import find_backend
from opd_align.backends.http_pool import server_urls
from opd_align.core.collect import Progress
from opd_align.core.engine import Analysis, check_inputs
from opd_align.runs.execute import Group, GroupResults, execute_run
from opd_align.runs.filesystem import AnyPath, PathLike, RemotePath, as_path
from opd_align.runs.rollout_store import DamagedFileWarning
from opd_align.runs.run_directory import RunDirectory, Usage
from opd_align.study.build import Study
from opd_align.study.config import ModelConfig
from opd_align.study.prepared import PreparedStudy
from opd_align.study.ray_actors import (
    ActorContext,
    EventQueue,
    ModelActor,
    ModelActorHandle,
    import_ray,
    reraise_ray_errors,
)
from opd_align.study.teacher_specs import TeacherSpec
from opd_align.study.worker import Worker, WorkerResult, WorkStarted
from opd_align.types import OpdAlignError

T = TypeVar("T")

MAX_ACTOR_DEATHS = 8
"""How often the same work may lose its actor before the run is stopped: the cause is then not a lost machine."""

PENDING_WARNING_S = 30.0
"""Actors that are pending for longer than this are reported."""

LOCAL = "local"
"""The address that starts a new Ray instance on this machine."""

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "0.0.0.0", "::1")
"""Hosts that refer to a different machine on every machine."""


class PendingActorWarning(UserWarning):
    """An actor is waiting for resources of the cluster."""


class UnreachableHostWarning(UserWarning):
    """A server URL that other machines of the cluster cannot reach."""


@dataclass(frozen=True)
class RayCluster:
    """Which Ray cluster to use, and how.

    Args:
        address: Address of a running cluster (`"auto"`, or host:port). `"local"`: start Ray on this machine.
        workers: How many groups of questions are analyzed at the same time. `None`: as many as the cluster has
            resources for. For a cluster at an address the number is not checked, since the cluster may grow.
        gpus_per_worker: GPUs of each worker: a fraction of one GPU, or a whole number. `None`: 1 if the cluster has
            GPUs, otherwise 0.
        teacher_actors: Teachers that run in their own actor, by name, and the GPUs of each (at most 1, since a model is
            loaded on one device). `None` GPUs: 1 if the cluster has GPUs, otherwise 0.
    """

    address: str = LOCAL
    workers: int | None = None
    gpus_per_worker: float | None = None
    teacher_actors: Mapping[str, float | None] = field(default_factory=dict)

    def check(self, study: Study) -> None:
        """Raises `OpdAlignError` for invalid values, before anything is started."""
        gpu_counts = [gpus for gpus in (self.gpus_per_worker, *self.teacher_actors.values()) if gpus is not None]
        if (self.workers is not None and self.workers < 1) or not all(0 <= gpus < math.inf for gpus in gpu_counts):
            raise OpdAlignError("the number of workers must be at least 1, and the number of GPUs at least 0")
        if self.gpus_per_worker is not None and self.gpus_per_worker > 1 and self.gpus_per_worker % 1:
            raise OpdAlignError(
                f"GPUs per worker must be a fraction of one GPU or a whole number, not {self.gpus_per_worker:g}"
            )
        self._check_devices(study)
        models = {spec.name: spec.model for spec in study.teacher_specs}
        for name, gpus in self.teacher_actors.items():
            if name not in models:
                raise OpdAlignError(
                    f"cannot run teacher {name!r} in its own actor: there is no such teacher; available: "
                    f"{', '.join(models)}"
                )
            model = models[name]
            if model is None or find_backend(model.backend).remote:
                reason = "it is the student with a context" if model is None else "it runs on a server"
                raise OpdAlignError(
                    f"cannot run teacher {name!r} in its own actor: {reason}; only teachers with their own weights can"
                )
            if gpus is not None and gpus > 1:
                raise OpdAlignError(
                    f"teacher {name!r} is loaded on one GPU; its actor can have at most 1 GPU, not {gpus:g}"
                )

    def _check_devices(self, study: Study) -> None:
        """A worker numbers its GPUs from 0, however many the machine has."""
        seen = math.ceil(self.gpus_per_worker or 1)
        apart = {spec.name for spec in study.teacher_specs if spec.name in self.teacher_actors}
        models = [study.config.student, *(spec.model for spec in study.teacher_specs if spec.name not in apart)]
        for model in filter(None, models):
            number = model.device.partition(":")[2]
            if number and int(number) >= seen:
                raise OpdAlignError(
                    f"model {model.model!r} has device {model.device}, but a worker sees GPUs 0 to {seen - 1} only; "
                    f"set --gpus-per-worker {int(number) + 1}, leave the device out, or use --teacher-actors"
                )


def analyze_with_ray(
    cluster: RayCluster,
    study: Study,
    path: PathLike,
    *,
    reuse: PathLike | None = None,
    on_phase: Callable[[str, int, int], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_prepared: Callable[[PreparedStudy], None] | None = None,
) -> Analysis:
    """Like `study.analyze`, on the actors of a Ray cluster."""
    study.check()
    settings = study.config.settings()
    check_inputs(study.teacher_specs, study.usable_questions, settings)
    cluster.check(study)
    run_path, reuse_path = _shared_address(path), None if reuse is None else _shared_address(reuse)
    if cluster.address != LOCAL:
        _warn_about_loopback_urls(study)
    ray = import_ray()
    with _connected(ray, cluster.address):
        executor = RayExecutor(ray, cluster, study, (run_path, reuse_path), (on_phase, on_progress))
        try:
            prepared, manifest = executor.prepare()
            prepared.warn()
            if on_prepared:
                on_prepared(prepared)
            return execute_run(
                executor, lambda: RunDirectory(run_path, manifest, reuse=reuse_path), prepared.questions, settings
            )[0]
        finally:
            executor.shutdown()


@dataclass(frozen=True)
class _StartedActor:
    """An actor, its name in messages, and its GPUs (each actor also has one CPU)."""

    name: str
    actor: Any
    gpus: float


class RayExecutor:
    """Analyzes groups of questions on Ray actors.

    Args:
        ray: The `ray` module, connected to a cluster.
        cluster: How many workers and GPUs to use.
        study: The study; its models are only loaded by the actors.
        paths: The run directory and the one to reuse, as addresses that are valid on every machine.
        callbacks: `on_phase` and `on_progress` of the caller; each may be `None`.
    """

    def __init__(
        self, ray: Any, cluster: RayCluster, study: Study, paths: tuple[str, str | None], callbacks: tuple[Any, Any]
    ) -> None:
        self.ray, self.study, (self.path, self.reuse) = ray, study, paths
        self.on_phase, self.on_progress = callbacks
        self.allocation = _allocate(ray, cluster, study)
        self.name_prefix = f"opd-align-{uuid4().hex[:8]}"
        self.pending = _PendingActors(ray)
        self.processes: dict[str, set[str]] = {}
        # On the driver's node: the queue is only needed as long as the driver lives.
        driver_node = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self.events = self._actor_class(EventQueue, "events", num_cpus=0, scheduling_strategy=driver_node).remote()
        self.actors: list[_StartedActor] = []
        self.model_actors: dict[str, ModelActorHandle] = {}
        for index, spec in enumerate(self.allocation.model_actors):
            name, precision = f"teacher {spec.names[0]!r}", self.study.config.scoring.precision
            self._start_actor(ModelActor, name, f"model-{index}", spec.gpus, spec.model, precision)
            self.model_actors |= dict.fromkeys(spec.names, ModelActorHandle(f"{self.name_prefix}-model-{index}"))
        self.model_actor_names = [started.name for started in self.actors]
        self.first_worker = self._start_worker(0)
        self.demonstrations: Any = None

    def _actor_class(self, kind: type, name: str, **options: Any) -> Any:
        # Ray also counts a retry each time it calls a machine that it does not know to be dead yet, six or seven for
        # one death. So retries are unlimited, and actor deaths are counted here.
        unlimited = {"max_restarts": -1, "max_task_retries": -1}
        return self.ray.remote(kind).options(name=f"{self.name_prefix}-{name}", **unlimited, **options)

    def _start_actor(self, kind: type, display_name: str, name: str, gpus: float, *arguments: Any) -> Any:
        # Given a shared disk, relative paths then mean the same files on every machine.
        context = ActorContext(display_name, os.getcwd(), f"{self.name_prefix}-events")
        actor = self._actor_class(kind, name, num_cpus=1, num_gpus=gpus).remote(context, *arguments)
        self.actors.append(_StartedActor(display_name, actor, gpus))
        return actor

    def _start_worker(self, index: int) -> Any:
        share = min(self.allocation.gpus_per_worker or 1.0, 1.0)
        arguments = (self.study.config, self.path, self.reuse, self.model_actors, share)
        return self._start_actor(
            Worker, f"worker {index + 1}", f"worker-{index}", self.allocation.gpus_per_worker, *arguments
        )

    def prepare(self) -> tuple[PreparedStudy, dict[str, Any]]:
        """Prepares the study on one worker; returns it with the manifest of the run."""
        # Demonstrations are sampled for many questions at a time, so a single worker does it.
        call = self.first_worker.prepare.remote()
        while not self.ray.wait([call], timeout=1.0)[0]:
            self._process_events()
        with reraise_ray_errors(self.ray):
            prepared, manifest = self.ray.get(call)
        self._process_events()
        self.demonstrations = self.ray.put(prepared.demonstrations)
        return prepared, manifest

    def on_main_process(self, function: Callable[[], T]) -> T:
        """Calls the function in the driver."""
        return function()

    def analyze_groups(self, path: AnyPath, groups: Sequence[Group]) -> GroupResults:
        """Analyzes the groups on the workers."""
        from ray.util import ActorPool

        # Started only now: idle workers would hold the resources that the first one needs if its machine is lost.
        others = [self._start_worker(index) for index in range(1, min(self.allocation.workers, len(groups)))]
        pool: Any = ActorPool([self.first_worker, *others])
        for index in range(len(groups)):
            pool.submit(lambda worker, index: worker.analyze.remote(index, groups[index], self.demonstrations), index)
        finished: dict[int, GroupResults] = {}
        while pool.has_next():
            result = self._next_result(pool)
            if result is not None:
                finished[result.index] = result.done
        results = [group for index in sorted(finished) for group in finished[index].results]
        return GroupResults(results, sum((done.usage for done in finished.values()), Usage()))

    def _next_result(self, pool: Any) -> WorkerResult | None:
        """The next finished group, or `None` if there is none within a second."""
        result: WorkerResult | None = None
        try:
            with reraise_ray_errors(self.ray):
                result = pool.get_next_unordered(timeout=1.0)
        except TimeoutError as error:
            if isinstance(error, self.ray.exceptions.RayTaskError):  # raised by the worker's own code
                raise
        self._process_events()
        for message in result.damaged_files if result else ():
            warnings.warn(message, DamagedFileWarning, stacklevel=2)
        if result:  # the model actors were alive for it
            for name in self.model_actor_names:
                self.processes.pop(name, None)
        # An idle worker releases its resources: one that lost its machine may be waiting for them.
        while (idle := pool.pop_idle()) is not None:
            self.ray.kill(idle)
            self.actors = [started for started in self.actors if started.actor is not idle]
        return result

    def _process_events(self) -> None:
        for event in self.ray.get(self.events.take.remote()):
            if isinstance(event, WorkStarted):
                self._count_deaths(event)
            elif isinstance(event, Progress):
                if self.on_progress:
                    self.on_progress(event)
            elif self.on_phase:
                self.on_phase(*event)
        self.pending.check(self.actors)

    def _count_deaths(self, event: WorkStarted) -> None:
        processes = self.processes.setdefault(event.work, set())
        processes.add(event.process)
        if len(processes) > MAX_ACTOR_DEATHS:
            raise OpdAlignError(
                f"the actor for {event.work} died {len(processes) - 1} times, the run is stopped; is there enough "
                "memory? Finished work is stored: run the same command again to resume"
            )

    def shutdown(self) -> None:
        """Kills all actors, also busy ones: what they have finished is on disk."""
        for actor in (*(started.actor for started in self.actors), self.events):
            self.ray.kill(actor)


class _PendingActors:
    """Warns about actors that have been pending for a long time, and the resources they need."""

    def __init__(self, ray: Any) -> None:
        self.ray, self.last_check = ray, 0.0
        self.pending_since: dict[str, float] = {}
        self.reported: set[str] = set()

    def check(self, actors: Sequence[_StartedActor]) -> None:
        """Checks every few seconds; each wait is reported once."""
        now = time.monotonic()
        if now - self.last_check < PENDING_WARNING_S / 6:
            return
        self.last_check = now
        pending = {started.name: started for started in actors if self._is_pending(started)}
        self.pending_since = {name: self.pending_since.get(name, now) for name in pending}
        self.reported &= pending.keys()
        overdue = [
            name
            for name, since in self.pending_since.items()
            if now - since >= PENDING_WARNING_S and name not in self.reported
        ]
        if overdue:
            self.reported |= set(overdue)
            first, more = pending[overdue[0]], f" (and {len(overdue) - 1} more)" if overdue[1:] else ""
            total, free = self.ray.cluster_resources(), self.ray.available_resources()
            available = " and ".join(
                f"{free.get(kind, 0):g} of {total.get(kind, 0):g} {kind}s" for kind in ("CPU", "GPU")
            )
            warnings.warn(
                f"{first.name}{more} has been pending for {PENDING_WARNING_S:g} s; it needs a machine with 1 CPU and "
                f"{first.gpus:g} GPUs available, and {available} of the cluster are free. The run continues when "
                "resources are available; you can also interrupt it and run the same command with fewer --workers",
                PendingActorWarning,
                stacklevel=2,
            )

    def _is_pending(self, started: _StartedActor) -> bool:
        # Ray's public API for actor states needs its dashboard. If the private one is missing, nothing is reported.
        try:
            state = self.ray._private.state.actors(started.actor._actor_id.hex()).get("State")
        except Exception:
            return False
        return state in ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "RESTARTING")


@contextmanager
def _connected(ray: Any, address: str) -> Iterator[None]:
    """Connects to a cluster; an existing connection is used and left open."""
    if ray.is_initialized():
        yield
        return
    try:
        host, colon, port = address.rpartition(":")
        if colon and port.isdecimal() and "/" not in host:
            # Ray would terminate this process if nothing listens there.
            socket.create_connection((host, int(port)), timeout=10).close()
        # Output of the actors (progress bars of model loading and the like) stays in Ray's logs.
        options = {"include_dashboard": False} if address == LOCAL else {}
        ray.init(address, log_to_driver=False, logging_level="warning", **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise OpdAlignError(
            f"cannot connect to a Ray cluster at {address!r}: {_first_line(error)}; start one with ray start --head, "
            "or omit the address to use only this machine"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class _ModelActorSpec:
    """A model with its own actor, the names of the teachers that use it, and its GPUs."""

    names: Sequence[str]
    model: ModelConfig
    gpus: float


@dataclass(frozen=True)
class _Allocation:
    """The maximum number of workers, the GPUs of each, and the models with their own actors."""

    workers: int
    gpus_per_worker: float
    model_actors: Sequence[_ModelActorSpec]


def _allocate(ray: Any, cluster: RayCluster, study: Study) -> _Allocation:
    """How many workers the cluster has resources for; raises `OpdAlignError` if there are none."""
    resources = ray.cluster_resources()
    default_gpus = float(resources.get("GPU", 0) > 0)
    gpus = default_gpus if cluster.gpus_per_worker is None else cluster.gpus_per_worker
    model_actors = _model_actor_specs(cluster, study, default_gpus)
    if cluster.workers is not None and cluster.address != LOCAL:
        return _Allocation(cluster.workers, gpus, model_actors)
    model_gpus = sum(spec.gpus for spec in model_actors)
    workers, free_gpus = int(resources.get("CPU", 0)) - len(model_actors), resources.get("GPU", 0) - model_gpus
    if gpus:
        workers = min(workers, int(free_gpus / gpus))
    if workers < 1 or free_gpus < 0:
        besides = f" in addition to {len(model_actors)} teacher actors with {model_gpus:g} GPUs" if model_actors else ""
        hint = "" if cluster.address == LOCAL else "; if the cluster will grow, give the number of workers"
        raise OpdAlignError(
            f"the cluster has {resources.get('CPU', 0):g} CPUs and {resources.get('GPU', 0):g} GPUs, not enough for a "
            f"worker with 1 CPU and {gpus:g} GPUs{besides}{hint}"
        )
    return _Allocation(workers if cluster.workers is None else min(workers, cluster.workers), gpus, model_actors)


def _model_actor_specs(cluster: RayCluster, study: Study, default_gpus: float) -> list[_ModelActorSpec]:
    """One actor per model: teachers that share a model share it, with the largest number of GPUs requested for it."""
    by_model: dict[str, list[TeacherSpec]] = {}
    for spec in study.teacher_specs:
        if spec.name in cluster.teacher_actors:
            by_model.setdefault(repr(spec.model), []).append(spec)
    actors = []
    for specs in by_model.values():
        requested = [gpus for spec in specs if (gpus := cluster.teacher_actors[spec.name]) is not None]
        model = specs[0].model
        assert model is not None  # checked by RayCluster.check
        actors.append(_ModelActorSpec([spec.name for spec in specs], model, max(requested, default=default_gpus)))
    return actors


def _shared_address(path: PathLike) -> str:
    """An address that means the same on every machine that can reach it."""
    location = as_path(path)
    if isinstance(location, RemotePath) and location.address.startswith("memory:"):
        raise OpdAlignError(f"{location} is in the memory of one process; use a disk or an object store with Ray")
    return str(location if isinstance(location, RemotePath) else location.absolute())


def _warn_about_loopback_urls(study: Study) -> None:
    config = study.config
    models = [config.student, config.source, config.summariser, *(spec.model for spec in study.teacher_specs)]
    urls = dict.fromkeys(url for model in models if model is not None for url in server_urls(model.url))
    for url in urls:
        if urlsplit(url).hostname in LOOPBACK_HOSTS:
            warnings.warn(
                f"{url} refers to a different server on every machine of the cluster; use an address that all machines "
                "can reach",
                UnreachableHostWarning,
                stacklevel=3,
            )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
