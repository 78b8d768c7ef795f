"""Whether a study fits the GPUs, and which model goes where, known before anything is loaded or paid for.

One process has the student (its weights for scoring, and what samples), the teachers and the models that write
demonstrations, on one or several GPUs; several processes work on different questions. The student is on the first GPU
of its process, teachers are apart on the others where there are any. vLLM gets the memory that nothing else needs,
unless the configuration says how much. Everything is computed from configs (`model_sizes`); no GPU is needed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from opd_align.backends.base import find_backend
from opd_align.backends.loading import short_name
from opd_align.study.config import ModelConfig, StudyConfig
from opd_align.study.hardware import GIB, Gpu, visible_gpus
from opd_align.study.model_sizes import ModelSize, model_size
from opd_align.study.teacher_specs import TeacherSpec, teacher_spec
from opd_align.types import OpdAlignError

PROMPT_TOKENS = 1024
"""Room for a question with its instruction."""
SUMMARY_TOKENS = 1024
"""Room for the summary of a demonstration."""
RESERVE_BYTES = 2 * GIB
"""Per GPU: CUDA context, libraries, fragments; at most a tenth of it."""
CHUNK_BYTES = 2 * GIB
"""Per GPU with a model that scores: probabilities of one chunk of positions; at most a tenth of it."""
MAX_FLOAT32_PARAMETERS = 5_000_000_000
"""Larger models are scored with their output layer in float32 only; that of `backends.precision`, which needs torch."""
ENGINE_TOKENS, ENGINE_ROWS, GRAPH_BYTES = 8192, 1024, GIB
"""What vLLM holds beside weights and KV cache: a prefill of so many tokens, the logits of so many rows, CUDA graphs."""
MAX_UTILIZATION = 0.9
FULL_BATCH = 256
"""Rollouts at once beyond which more hardly make a GPU faster."""

Key = tuple[str, str | None, str, str]


@dataclass(frozen=True)
class Use:
    """Memory on one GPU, and what for."""

    what: str
    bytes: int


@dataclass(frozen=True)
class GpuPlan:
    """What is on one GPU of a process."""

    gpu: Gpu
    uses: Sequence[Use]

    @property
    def needed_bytes(self) -> int:
        return sum(use.bytes for use in self.uses)

    @property
    def missing_bytes(self) -> int:
        """By how much the GPU is too small; 0 if it is not."""
        return max(self.needed_bytes - self.gpu.free_bytes, 0)


@dataclass(frozen=True)
class MemoryPlan:
    """The plan of one process; all processes are alike.

    Args:
        gpus: What is on each GPU of the process.
        processes: How many processes there is hardware for.
        devices: Model → its device in the process.
        utilization: Model → vLLM's share of the first GPU.
        rollouts_at_once: How many completions of full length the student samples at a time. `None`: a server does.
        completion_tokens: Length of such a completion, prompt included.
        n_gpus: Number of GPUs that the plan was made for.
        from_table: Models whose configs could not be reached, so that published sizes were used.
    """

    gpus: Sequence[GpuPlan]
    processes: int
    devices: Mapping[Key, str]
    utilization: Mapping[Key, float]
    rollouts_at_once: int | None
    completion_tokens: int
    n_gpus: int
    from_table: Sequence[str] = ()

    @property
    def fits(self) -> bool:
        return self.rollouts_at_once != 0 and not any(gpu.missing_bytes for gpu in self.gpus)

    @property
    def _rank(self) -> tuple[int, int, int]:
        """Higher is better: it fits; more rollouts at once on all GPUs together; fewer GPUs per process."""
        rollouts = FULL_BATCH if self.rollouts_at_once is None else min(self.rollouts_at_once, FULL_BATCH)
        missing = 0 if self.fits else sum(gpu.missing_bytes for gpu in self.gpus) + 1
        return -missing, self.processes * rollouts, -len(self.gpus)


def plan_memory(
    config: StudyConfig, gpus: Sequence[Gpu], *, one_process: bool = False, apart: Collection[str] = ()
) -> MemoryPlan:
    """The best plan for some GPUs: how many processes, how many GPUs each, which model on which.

    Args:
        config: The study.
        gpus: The GPUs; a process gets adjacent ones.
        one_process: Whether there is a single process, which may use all of them.
        apart: Names of teachers whose models are loaded in another process.
    """
    loads = list(_loads(config, apart))
    first = max((load.fewest_gpus for load in loads), default=1)
    if first > len(gpus):
        wrong = next(load.model for load in loads if load.fewest_gpus == first)
        setting = f"tensor_parallel_size {first}" if wrong.device == "auto" else f"device {wrong.device}"
        visible = "1 GPU is" if len(gpus) == 1 else f"{len(gpus)} GPUs are"
        raise OpdAlignError(
            f"model {wrong.model!r} has {setting}, but {visible} visible, numbered from 0; leave the setting out, or "
            "give each process more GPUs"
        )
    plans = []
    for count in range(first, len(gpus) + 1):
        # With GPUs of different sizes, all processes must fit the smallest.
        teams = [gpus[at : at + count] for at in range(0, len(gpus) - count + 1, count)][: 1 if one_process else None]
        team = min(teams, key=lambda team: sum(gpu.free_bytes for gpu in team))
        plans.append(replace(_planned(config, loads, team, len(teams)), n_gpus=len(gpus)))
    return max(plans, key=lambda plan: plan._rank)


def check_memory(plan: MemoryPlan) -> None:
    """Raises `OpdAlignError` with what takes the memory and what to change, if a plan does not fit."""
    if plan.fits:
        return
    worst = max(range(len(plan.gpus)), key=lambda index: plan.gpus[index].missing_bytes)
    gpu = plan.gpus[worst]
    uses = ", ".join(f"{use.what} {_gib(use.bytes)}" for use in sorted(gpu.uses, key=lambda use: -use.bytes))
    short = (
        f"{_gib(gpu.missing_bytes)} GiB are missing"
        if gpu.missing_bytes
        else "what is left for sampling has no room for one context: set student.load.max_model_len to prompt and "
        f"completion ({plan.completion_tokens:,} tokens), or free some of it"
    )
    raise OpdAlignError(
        f"the study does not fit: GPU {worst} has {_gib(gpu.gpu.free_bytes)} GiB free, {short} (in GiB: {uses}). Use "
        "more GPUs per process, fewer or smaller teachers, a quantised checkpoint, or a smaller sampling.max_tokens; "
        "--dry-run --hardware 2x80 prints the plan for other GPUs"
    )


def placed(config: StudyConfig, plan: MemoryPlan) -> StudyConfig:
    """The same study with the devices and vLLM's memory of a plan, where the configuration leaves them open."""

    def place(model: ModelConfig) -> ModelConfig:
        device, share = plan.devices.get(_key(model)), plan.utilization.get(_key(model))
        if device not in (None, "cuda:0") and model.device == "auto":
            model = replace(model, device=str(device))
        if share is not None and _utilization(model) is None:
            model = replace(model, load=replace(model.load, gpu_memory_utilization=share))
        return model

    teachers = [
        teacher if teacher.model is None else replace(teacher, model=place(teacher.model))
        for teacher in config.teachers
    ]
    return replace(
        config,
        student=place(config.student),
        teachers=tuple(teachers),
        source=config.source and place(config.source),
        summariser=config.summariser and place(config.summariser),
    )


def placed_on_visible_gpus(
    config: StudyConfig, *, share: float | None = None, apart: Collection[str] = ()
) -> StudyConfig:
    """The study with its models on the GPUs that this process sees; unchanged where there are none.

    Raises `OpdAlignError` if it does not fit, or names a device that this process does not see.

    Args:
        config: The study.
        share: Share of each GPU that this process may use, whether it is free already or not: the memory of a process
            that died is freed a little later. `None`: what is free.
        apart: Names of teachers whose models are loaded in another process.
    """
    gpus = visible_gpus()
    if share is not None:
        gpus = [replace(gpu, free_bytes=round(share * gpu.total_bytes)) for gpu in gpus]
    if not gpus or not _torch_sees_gpus():
        return config
    plan = plan_memory(config, gpus, one_process=True, apart=apart)
    check_memory(plan)
    return placed(config, plan)


def _torch_sees_gpus() -> bool:
    """Whether models would be loaded on a GPU; creates no CUDA context."""
    import torch

    return torch.cuda.is_available()


# -- what is loaded ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Load:
    """A model that a process loads.

    Args:
        model: Its configuration.
        size: Its size.
        precision: In which precision it scores; see `Scoring`.
        samples: Whether it samples here, in contrast to teachers.
        student: Whether it is the student.
        score_tokens: Length of what it scores, for each teacher with this model and for the student.
    """

    model: ModelConfig
    size: ModelSize
    precision: str
    samples: bool
    student: bool
    score_tokens: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.model.name or short_name(self.model.model)

    @property
    def on_gpu(self) -> bool:
        return self.model.device != "cpu"

    @property
    def fixed(self) -> int | None:
        """The GPU that the configuration names, or that sampling requires; `None`: any."""
        if self.model.device != "auto":
            return int(self.model.device.partition(":")[2] or 0)
        return 0 if self.samples or self.student or self.divided else None

    @property
    def divided(self) -> bool:
        """Whether its weights are divided over all GPUs of the process."""
        return self.model.load.device_map is not None

    @property
    def engine_gpus(self) -> int:
        """How many GPUs its vLLM engine is divided over; 0 without an engine."""
        arguments = dict(self.model.options) | self.model.load.engine_arguments
        return int(arguments.get("tensor_parallel_size", 1)) if self.samples and self.model.backend == "vllm" else 0

    @property
    def fewest_gpus(self) -> int:
        """How many GPUs a process must have for it."""
        return max(1 + (self.fixed or 0), self.engine_gpus)

    @property
    def weights(self) -> int:
        return self.size.weight_bytes(self.model.dtype)

    @property
    def _is_float32(self) -> bool:
        return self.size.dtype_bytes(self.model.dtype) == 4

    @property
    def _in_float32(self) -> bool:
        small = self.size.parameters <= MAX_FLOAT32_PARAMETERS and self.size.quantised_bits is None
        return self.precision == "float32" or (self.precision == "auto" and small)

    @property
    def forward(self) -> int:
        """Its forward pass; in float32, with a converted copy of one layer."""
        dtype = "float32" if self._in_float32 else self.model.dtype
        copy = self.size.layer_bytes(dtype) if self._in_float32 and not self._is_float32 else 0
        return self.size.forward_bytes(max(self.score_tokens, default=0), dtype) + copy

    @property
    def head(self) -> int:
        """A copy of its output layer in float32, which all models have at the same time."""
        return 0 if self.precision == "native" or self._is_float32 else self.size.head_bytes("float32")

    def hidden(self, completion_tokens: int) -> int:
        """Hidden states along a completion, of all teachers with this model and of the student."""
        dtype = "float32" if self._in_float32 else self.model.dtype
        return len(self.score_tokens) * self.size.hidden_bytes(completion_tokens, dtype)


def _key(model: ModelConfig) -> Key:
    return model.model, model.adapter, model.dtype, model.device


def _utilization(model: ModelConfig) -> float | None:
    share = (dict(model.options) | model.load.engine_arguments).get("gpu_memory_utilization")
    return None if share is None else float(share)


def _loads(config: StudyConfig, apart: Collection[str]) -> Iterator[_Load]:
    """Every model that is loaded in this process, once; the student first."""
    found: dict[Key, _Load] = {}
    precision = config.scoring.precision

    def add(model: ModelConfig, *, samples: bool, student: bool = False) -> _Load:
        key = _key(model)
        if key not in found:
            found[key] = _Load(model, model_size(model.model, model.load), precision, samples, student)
        elif samples and not found[key].samples:
            found[key] = replace(found[key], samples=True)
        return found[key]

    specs = [teacher_spec(teacher) for teacher in config.teachers]
    longest = config.sampling.max_tokens
    student = add(config.student, samples=not find_backend(config.student.backend).remote, student=True)
    student.score_tokens.append(_capped(PROMPT_TOKENS + longest, student.size))
    for spec in specs:
        model = spec.model or config.student
        if spec.model is None or not (find_backend(model.backend).remote or spec.name in apart):
            load = add(model, samples=False)
            load.score_tokens.append(_capped(_prompt_tokens(spec, config) + longest, load.size))
    sources = {spec.context.source for spec in specs if spec.context and spec.context.correct + spec.context.wrong}
    summarised = any(spec.context.summarised for spec in specs if spec.context)
    for writer, used in ((config.source, "source" in sources), (config.summariser or config.source, summarised)):
        if writer is not None and used and not find_backend(writer.backend).remote:
            add(writer, samples=True)
    yield from (load for load in found.values() if load.on_gpu)


def _prompt_tokens(spec: TeacherSpec, config: StudyConfig) -> int:
    if spec.context is None:
        return PROMPT_TOKENS
    written = config.demonstrations.max_tokens or config.sampling.max_tokens
    per_demonstration = SUMMARY_TOKENS if spec.context.summarised else written
    return PROMPT_TOKENS + (spec.context.correct + spec.context.wrong) * per_demonstration


def _capped(tokens: int, size: ModelSize) -> int:
    """A context that is longer than the model's is refused, so it needs no memory."""
    return tokens if size.context_length is None else min(tokens, size.context_length)


# -- where it goes ----------------------------------------------------------------------------------------------------


def _planned(config: StudyConfig, loads: Sequence[_Load], gpus: Sequence[Gpu], processes: int) -> MemoryPlan:
    completion, row_tokens = config.sampling.max_tokens, PROMPT_TOKENS + config.sampling.max_tokens
    given = config.scoring.memory_gib
    chunk = [_at_most_a_tenth(CHUNK_BYTES, gpu) if given is None else round(given * GIB) for gpu in gpus]
    place = _places(loads, gpus, completion)
    uses: list[list[Use]] = []
    for index in range(len(gpus)):
        here = [load for load in loads if place[_key(load.model)] == index]
        own = [Use(f"{load.name} weights", load.weights) for load in here if not load.divided]
        own += [Use(f"{load.name} weights", load.weights // len(gpus)) for load in loads if load.divided]
        if scoring := [load for load in here if load.score_tokens]:
            own.append(Use("hidden states", sum(load.hidden(completion) for load in scoring)))
            # First the models read the path one after the other, then all output layers work on chunks of it.
            heads = sum(load.head for load in scoring) + chunk[index]
            own.append(Use("scoring", max(heads, *(load.forward for load in scoring))))
        own.append(Use("reserve", _at_most_a_tenth(RESERVE_BYTES, gpus[index])))
        uses.append(own)
    samplers = [load for load in loads if load.samples]
    # An engine needs the same share of each of its GPUs: what is left of the fullest.
    engines = range(max((load.engine_gpus for load in samplers), default=1) or 1)
    full = max(engines, key=lambda index: sum(use.bytes for use in uses[index]) - gpus[index].free_bytes)
    shares, rows = _shares(samplers, gpus[full], sum(use.bytes for use in uses[full]), row_tokens)
    for load in samplers:
        for index in range(max(load.engine_gpus, 1)):
            uses[index] += _sampling_uses(load, shares, rows, gpus[index], row_tokens)
    student = next((load for load in samplers if load.student), None)
    return MemoryPlan(
        [GpuPlan(gpu, tuple(own)) for gpu, own in zip(gpus, uses, strict=True)],
        processes,
        {_key(load.model): f"cuda:{place[_key(load.model)]}" for load in loads if not load.divided},
        shares,
        None if student is None else rows[_key(student.model)],
        row_tokens if student is None else _capped(row_tokens, student.size),
        len(gpus),
        tuple(load.name for load in loads if load.size.from_table),
    )


def _at_most_a_tenth(size: int, gpu: Gpu) -> int:
    return min(size, gpu.total_bytes // 10)


def _places(loads: Sequence[_Load], gpus: Sequence[Gpu], completion_tokens: int) -> dict[Key, int]:
    """Model → GPU: the largest first, each where most is free, and on the first GPU only if it fits nowhere else."""
    place = {_key(load.model): load.fixed for load in loads if load.fixed is not None}
    free = [gpu.free_bytes - _at_most_a_tenth(RESERVE_BYTES, gpu) for gpu in gpus]

    def need(load: _Load) -> int:
        # Forward passes come one after the other, so this is a little too much for all but the largest model.
        weights = 0 if load.divided else load.weights
        return weights + load.hidden(completion_tokens) + max(load.forward, load.head + CHUNK_BYTES)

    divided = sum(load.weights for load in loads if load.divided) // len(gpus)
    free = [size - divided for size in free]
    engines = max((load.engine_gpus for load in loads), default=1)
    for load in loads:
        if load.fixed is not None:
            free[load.fixed] -= need(load)
    for load in sorted((load for load in loads if load.fixed is None), key=need, reverse=True):
        others = [index for index in range(max(engines, 1), len(gpus)) if free[index] >= need(load)]
        index = max(others, key=lambda index: free[index]) if others else 0
        place[_key(load.model)] = index
        free[index] -= need(load)
    return place


def _shares(
    samplers: Sequence[_Load], gpu: Gpu, used_bytes: int, row_tokens: int
) -> tuple[dict[Key, float], dict[Key, int]]:
    """vLLM's share of the GPU for every engine, and how many completions of full length each sampler has room for."""
    shares = {_key(load.model): share for load in samplers if (share := _engine_share(load)) is not None}
    left = gpu.free_bytes - used_bytes - sum(round(share * gpu.total_bytes) for share in shares.values())
    open_samplers = [load for load in samplers if _key(load.model) not in shares]
    each = max(left, 0) / max(len(open_samplers), 1)
    rows: dict[Key, int] = {}
    for load in samplers:
        key, row = _key(load.model), _row_bytes(load, row_tokens)
        if load.model.backend != "vllm":
            rows[key] = int(each // row)
            continue
        if key not in shares:
            shares[key] = max(math.floor(100 * min(each / gpu.total_bytes, MAX_UTILIZATION)) / 100, 0.01)
        cache = shares[key] * gpu.total_bytes - _engine_bytes(load)
        # vLLM refuses a KV cache that is smaller than one context of `max_model_len`.
        context = _model_len(load) * load.size.kv_bytes_per_token(load.model.dtype) // load.engine_gpus
        rows[key] = 0 if cache < context else int(cache // row)
    return shares, rows


def _engine_share(load: _Load) -> float | None:
    return _utilization(load.model) if load.model.backend == "vllm" else None


def _model_len(load: _Load) -> int:
    given = (dict(load.model.options) | load.model.load.engine_arguments).get("max_model_len")
    return int(given or load.size.context_length or 0)


def _row_bytes(load: _Load, row_tokens: int) -> int:
    return _capped(row_tokens, load.size) * load.size.kv_bytes_per_token(load.model.dtype) // max(load.engine_gpus, 1)


def _engine_bytes(load: _Load) -> int:
    """What vLLM holds on each of its GPUs beside its KV cache."""
    size, dtype = load.size, load.model.dtype
    logits = 2 * 4 * ENGINE_ROWS * size.vocabulary
    weights = size.weight_bytes(dtype) // load.engine_gpus
    return weights + size.forward_bytes(ENGINE_TOKENS, dtype) + logits + GRAPH_BYTES


def _sampling_uses(
    load: _Load, shares: Mapping[Key, float], rows: Mapping[Key, int], gpu: Gpu, row_tokens: int
) -> Iterator[Use]:
    key = _key(load.model)
    if load.model.backend != "vllm":
        yield Use(f"{load.name} KV cache", max(min(rows[key], FULL_BATCH), 1) * _row_bytes(load, row_tokens))
        return
    share = round(shares[key] * gpu.total_bytes)
    engine = min(_engine_bytes(load), share)
    yield Use(f"{load.name} in vLLM", engine)
    yield Use(f"{load.name} KV cache in vLLM", share - engine)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
