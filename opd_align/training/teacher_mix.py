"""`TeacherMix`: several teachers in one training, each used where it helps.

Every rollout is distilled from one teacher, drawn with weights that depend on the kind of its question. Drawing was
chosen over a loss that averages all teachers: a rollout costs one teacher's forward pass however many teachers there
are, its gradient is in expectation that of the average, and the divergence of a rollout is that of a single teacher, so
gates and the chunked loss stay what they are.

Weights come from the callback's evaluations with their uncertainty: `core.random_walk` pools the readings of each
teacher and kind, `core.teacher_weights` turns the posteriors into probabilities. A teacher that surely harms on a kind
(the alarm's level) is not used there. Evaluations measure every teacher, whatever its weight, so one that was dropped
comes back when it no longer harms. All processes compute the same weights from the same analyses; draws depend on seed,
step and process only, so the trainer's own random numbers are untouched and a resumed training repeats them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np
from transformers import TrainerCallback

from opd_align.core.alarm import alarms
from opd_align.core.metrics import MIN_QUESTIONS
from opd_align.core.random_walk import filtered
from opd_align.core.teacher_weights import STRATEGIES, check_floor, teacher_weights
from opd_align.training import trl_compat
from opd_align.training.alignment_readings import ALL, ReadingLog, distillation_objective, load_json, save_json
from opd_align.training.calibrated_gate import CalibratedDivergence
from opd_align.training.gates import Gate, Product
from opd_align.training.mix_contexts import ContextPrompts, Tokens
from opd_align.training.teacher_pool import Source, TeacherPool
from opd_align.types import Floats, Ints, OpdAlignError

logger = logging.getLogger(__name__)

STATE = "opd_align_mix.json"
"""File in a checkpoint with the state of the mix."""

FIRST_ROWS = 64
"""After how many rows it is said that a context was usable for none of them."""

NONE = -1
"""The teacher of a rollout that is not distilled, since every teacher harms on its kind."""

FixedWeights = Mapping[str, float] | Mapping[str, Mapping[str, float]]


class TeacherMix:
    """Several teachers for one student; pass it as `teacher_model` to a gated trainer.

    Example:
        ```python
        mix = TeacherMix({"maths": maths_model, "code": "org/code-model"}, kind="subject")
        trainer = GatedDistillationTrainer(model, mix, args, ..., gate=Open(), denominator="keep")
        callback = AlignmentCallback(trainer, held_out_rows, reward_function)
        trainer.add_callback(callback)
        mix.follow(callback)
        trainer.train()
        ```

    Args:
        teachers: By name: a model, its folder or name on the Hub, a function that loads it, or a context such as
            "Self-1C": the student itself, with solutions from columns of the data set in its prompt. The first one must
            be a model; evaluation losses of the trainer are those with it.
        kind: Column of the data set, and of the held-out rows, with the kind of a question. `None`: one kind.
        weights: Fixed weights, by teacher or by kind and teacher; no callback is needed then. `None`: from evaluations.
        strategy: `"thompson"`: a teacher's weight is the probability that it is the best one for the kind.
            `"expected_gain"`: proportional to the expected positive part of its alignment.
        floor: Smallest weight of a teacher that does not surely harm.
        live: Whether every evaluation updates the weights; if not, those of a kind stay as they are once there is a
            known evaluation of every teacher on it.
        one_at_a_time: Whether only one teacher may be on the device. Each micro-batch then moves or loads every teacher
            that it needs, and each evaluation measures one model, in turn, and every context.
        seed: Of the draws.

    Attributes:
        weights: The present weights by kind, in the order of `names`.
    """

    def __init__(
        self,
        teachers: Mapping[str, Source],
        *,
        kind: str | None = None,
        weights: FixedWeights | None = None,
        strategy: str = "thompson",
        floor: float = 0.05,
        live: bool = True,
        one_at_a_time: bool = False,
        seed: int = 0,
    ) -> None:
        self.pool = TeacherPool(teachers, one_at_a_time=one_at_a_time)
        self.names = self.pool.names
        self.prompts = ContextPrompts(self.pool.contexts)
        if strategy not in STRATEGIES:
            raise OpdAlignError(f"strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}")
        check_floor(floor, len(self.names))
        self.kind, self.strategy, self.floor, self.live, self.seed = kind, strategy, floor, live, seed
        self.fixed = None if weights is None else _fixed_weights(self.names, kind, weights)
        self.weights: dict[str, Floats] = dict(self.fixed or {})
        self.trainer: Any = None
        self.callback: Any = None
        self.log = ReadingLog(self.names, turns=self.turns)
        self._frozen: set[str] = set()
        self._warned: set[tuple[str, ...]] = set()
        self._draws_at, self._draws = -1, 0
        self._rows, self._usable = Counter[str](), Counter[str]()

    @property
    def several(self) -> bool:
        """Whether there is a choice; with one teacher, training is as without a mix."""
        return len(self.names) > 1

    @property
    def turns(self) -> int:
        """After how many evaluations each teacher has been measured once."""
        return len(self.pool) if self.pool.one_at_a_time else 1

    # -- setup

    def attach(self, trainer: Any, gate: Gate, *, measuring_pass: bool) -> None:
        """Called by a gated trainer once it is constructed; refuses what contradicts a mix.

        Args:
            trainer: The trainer, whose `teacher_model` is the first teacher.
            gate: Its gate.
            measuring_pass: Whether the gate needs a forward pass in which the trainer cannot mix teachers.
        """
        if self.trainer is not None and self.trainer is not trainer:
            raise OpdAlignError("a TeacherMix belongs to one trainer; make another one for another trainer")
        columns = getattr(trainer.train_dataset, "column_names", None)
        if self.kind is not None and columns is not None and self.kind not in columns:
            raise OpdAlignError(
                f"kind={self.kind!r} is not a column of the data set; its columns are {', '.join(columns)}"
            )
        if self.fixed is not None and self.kind is not None:
            self._check_fixed(_values(trainer.train_dataset, self.kind))
        if self.several and measuring_pass:
            raise OpdAlignError(
                f"gate {gate.name!r} compares all tokens of a step before the loss (a quantile, or weights that depend "
                "on measures and are renormalised), which this trainer cannot do with several teachers; use a "
                "threshold, denominator='keep', or GatedGKDTrainer"
            )
        parts = gate.gates if isinstance(gate, Product) else (gate,)
        if self.several and any(isinstance(part, CalibratedDivergence) for part in parts):
            raise OpdAlignError(
                "CalibratedDivergence is calibrated for one teacher; use another gate with a TeacherMix"
            )
        self.prompts.attach(trainer)
        self.pool.attach(trainer)
        self.trainer = trainer
        trainer.add_callback(MixUpdates(self))

    def _check_fixed(self, kinds: set[str]) -> None:
        unknown = sorted(kinds - set(self.fixed or kinds))
        if unknown:
            raise OpdAlignError(
                f"the data set has questions of the kind {unknown[0]!r} and weights={{...}} has none for them; it has "
                f"weights for {', '.join(map(repr, self.fixed or ()))}"
            )

    def follow(self, callback: Any) -> None:
        """Takes the weights from this callback's evaluations; call it once, after `trainer.add_callback(callback)`."""
        if self.fixed is not None:
            raise OpdAlignError("this TeacherMix has fixed weights; leave out weights=... to follow a callback")
        if self.trainer is None or callback.adapter.trainer is not self.trainer:
            raise OpdAlignError("the callback must be that of the trainer that has this TeacherMix as teacher_model")
        if callback.outside is not None:
            raise OpdAlignError("a TeacherMix needs evaluations inside the training: AlignmentCallback(where='inside')")
        distillation_objective(callback.settings)
        kind_of = self._kinds_of(callback.evaluator.held_out.questions)
        self.log = ReadingLog(self.names, kind_of, turns=self.turns)
        if kind_of is not None:
            _alternate(callback.evaluator, kind_of)
        self.callback = callback
        self._update()
        # The last callback: what it reads has been evaluated by then.
        updates = [each for each in self.trainer.callback_handler.callbacks if isinstance(each, MixUpdates)]
        self.trainer.remove_callback(updates[0])
        self.trainer.add_callback(updates[0])

    def _kinds_of(self, questions: Sequence[Any]) -> dict[str, str] | None:
        if self.kind is None:
            return None
        missing = [question.id for question in questions if question.fields.get(self.kind) is None]
        if missing:
            raise OpdAlignError(
                f"held-out question {missing[0]!r} has no {self.kind!r}; add the column to the held-out rows too"
            )
        kinds = {question.id: str(question.fields[self.kind]) for question in questions}
        of = list(kinds.values())
        trained = set() if self.trainer.train_dataset is None else _values(self.trainer.train_dataset, self.kind)
        unknown = sorted(trained - set(of))
        if unknown:
            raise OpdAlignError(
                f"the data set has questions of the kind {unknown[0]!r} and the held-out questions have none; kinds "
                f"there: {', '.join(dict.fromkeys(of))}"
            )
        few = [kind for kind in dict.fromkeys(of) if of.count(kind) < MIN_QUESTIONS]
        if few:
            logger.warning(
                "Of the kind %r there are fewer than %d held-out questions: its weights stay equal",
                few[0],
                MIN_QUESTIONS,
            )
        return kinds

    # -- weights

    def _update(self) -> None:
        """The weights of all kinds from the readings so far."""
        if self.fixed is not None:
            return
        for kind in self.log.kinds:
            if kind in self._frozen and not self.live:
                continue
            readings = [self.log.of(name, kind) for name in self.names]
            harmful = [bool(each) and alarms(each)[-1].level == "harms" for each in readings]
            posteriors = [(filtered(each) or [None])[-1] for each in readings]
            if self.several:
                self.weights[kind] = teacher_weights(
                    posteriors, harmful, strategy=self.strategy, floor=self.floor, unmeasured=self.log.unmeasured(kind)
                )
                for name, harms in zip(self.names, harmful, strict=True):
                    if harms:
                        self._warn((name, kind), "Teacher %r harms on %s: its weight is 0", name, _said(kind))
                if all(harmful):
                    self._warn((kind,), "Every teacher harms on %s: nothing is distilled there", _said(kind))
            else:  # one teacher is always used: an AlignmentSchedule decides whether
                self.weights[kind] = np.ones(1)
            if all(any(each.known for each in one) for one in readings):
                self._frozen.add(kind)

    def _warn_of_unknown(self) -> None:
        """After an evaluation: a kind that it could not tell anything about keeps equal weights."""
        for kind in self.log.kinds if self.several else ():
            if not any(each.known for name in self.names for each in self.log.of(name, kind)):
                self._warn(
                    ("unknown", kind, ""),
                    "Nothing is known of %s after the evaluation at step %s: weights are equal there. At least %d of "
                    "them must be evaluated: if this stays, raise max_overhead, or have more of them held out",
                    _said(kind), self.log.step, MIN_QUESTIONS,
                )  # fmt: skip
            for name, unmeasured in zip(self.names, self.log.unmeasured(kind), strict=True):
                if unmeasured:
                    few = "with the solutions that it shows" if name in self.pool.contexts else "evaluated"
                    self._warn(
                        ("unmeasured", kind, name),
                        "%d evaluations could not measure teacher %r on %s (fewer than %d of them %s): until one does, "
                        "its weight is the floor (%g), or 0 if every other teacher harms",
                        self.log.evaluations, name, _said(kind), MIN_QUESTIONS, few, self.floor,
                    )  # fmt: skip

    def weights_of(self, kind: str) -> Floats:
        """The weights on questions of a kind; equal for a kind that is not known."""
        return self.weights.get(kind, np.full(len(self.names), 1 / len(self.names)))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the data set that the mix reads, besides the prompt."""
        return (*(() if self.kind is None else (self.kind,)), *self.prompts.columns)

    @property
    def reads_rows(self) -> bool:
        """Whether a teacher can only be drawn with the rows of the data set: their kind, or the prompt of a context."""
        return bool(self.columns or self.pool.contexts)

    def draw(self, rows: Sequence[Mapping[str, Any]]) -> Ints:
        """The index of the teacher of each rollout, or `NONE`.

        A context that has nothing to show for a question is left out there, and the others have its weight.

        Args:
            rows: The rows of the data set that the rollouts answer.
        """
        if self.callback is None and self.fixed is None and self.several:
            self._warn(("unfollowed",), "TeacherMix follows no callback, all weights are equal; call follow(callback)")
        kinds = [ALL if self.kind is None else str(row[self.kind]) for row in rows]
        if self.fixed is not None:
            self._check_fixed(set(kinds))  # of an iterable data set they are not known before
        step, rank = self.trainer.state.global_step, self.trainer.accelerator.process_index
        self._draws = self._draws + 1 if step == self._draws_at else 0
        self._draws_at = step
        uniform_B = np.random.default_rng([self.seed, step, rank, self._draws]).random(len(rows))
        drawn = []
        for row, kind, uniform in zip(rows, kinds, uniform_B, strict=True):
            cumulative_K = np.cumsum(self._weights_for(row, self.weights_of(kind)))
            last = int(np.searchsorted(cumulative_K, cumulative_K[-1]))  # the last teacher with a weight
            chosen = min(int(np.searchsorted(cumulative_K, uniform, side="right")), last)
            drawn.append(chosen if cumulative_K[-1] > 0 else NONE)
        return np.array(drawn, np.int64)

    def _weights_for(self, row: Mapping[str, Any], weight_K: Floats) -> Floats:
        unusable = [name in self.pool.contexts and self.prompts.prompt(name, row) is None for name in self.names]
        for name, weight, without in zip(self.names, weight_K, unusable, strict=True):
            if name in self.pool.contexts and weight > 0:
                self._rows[name] += 1
                self._usable[name] += not without
                if self._rows[name] == FIRST_ROWS and not self._usable[name]:
                    self._warn(
                        ("unusable", name),
                        "Teacher %r was usable for none of the first %d rows: they do not have the solutions that it "
                        "shows, or prompts with them are too long",
                        name, FIRST_ROWS,
                    )  # fmt: skip
        if not any(unusable):
            return weight_K
        left_K = np.where(unusable, 0.0, weight_K)
        return left_K / left_K.sum() if left_K.any() else left_K

    def context_prompts(self, rows: Sequence[Mapping[str, Any]], teacher_B: Ints) -> list[Tokens]:
        """The prompts of the rollouts whose teacher is a context; empty for the others."""
        names = [self.names[number] if number != NONE else "" for number in teacher_B]
        return [
            (self.prompts.prompt(name, row) or ()) if name in self.pool.contexts else ()
            for name, row in zip(names, rows, strict=True)
        ]

    def metrics(self) -> dict[str, float]:
        """The weights by metric key; kinds that nothing is known of are absent."""
        return {
            f"mix/{name}/{kind}/weight": float(weight)
            for kind, weight_K in self.weights.items()
            for name, weight in zip(self.names, weight_K, strict=True)
        }

    # -- evaluations

    @property
    def evaluated(self) -> Mapping[str, Any]:
        """The models that an evaluation measures: all of them, or the one whose turn it is."""
        return _Evaluated(self)

    def state_dict(self) -> dict[str, Any]:
        weights = {kind: [float(each) for each in weight_K] for kind, weight_K in self.weights.items()}
        return {**self.log.state_dict(), "names": self.names, "weights": weights, "frozen": sorted(self._frozen)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues with the state of a checkpoint; an empty one is that of a new training."""
        self.log.load_state_dict(state)
        self._frozen = set()
        if self.fixed is not None:
            return
        self.weights = {}
        frozen = state.get("frozen")
        if not self.live and isinstance(frozen, list) and tuple(state.get("names", ())) == self.names:
            self._frozen = set(frozen) & set(self.log.kinds)
            self.weights = {kind: np.array(state["weights"][kind], np.float64) for kind in self._frozen}
        self._update()

    def _warn(self, key: tuple[str, ...], message: str, *args: Any) -> None:
        if key not in self._warned:
            self._warned.add(key)
            if self.trainer is None or self.trainer.is_world_process_zero():
                logger.warning(message, *args)


class _Evaluated(Mapping[str, Any]):
    """A view of the teachers of a mix: models are loaded when they are looked up."""

    def __init__(self, mix: TeacherMix) -> None:
        self.mix = mix

    def _names(self) -> tuple[str, ...]:
        names, log = tuple(self.mix.pool), self.mix.log  # contexts are evaluated with the student
        if not self.mix.pool.one_at_a_time:
            return names
        # The one that was measured least often: each in turn.
        count = {name: sum(len(each) for (of, _), each in log.readings.items() if of == name) for name in names}
        return (min(names, key=lambda name: (count[name], names.index(name))),)

    def __getitem__(self, name: str) -> Any:
        return self.mix.pool[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())


class MixUpdates(TrainerCallback):
    """Updates the weights of a mix after evaluations, logs them, and stores them in checkpoints."""

    def __init__(self, mix: TeacherMix) -> None:
        self.mix = mix

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        callback, handler = self.mix.callback, self.mix.trainer.callback_handler
        if callback is not None and not any(each is callback for each in handler.callbacks):
            raise OpdAlignError(
                "the TeacherMix follows a callback that the trainer does not have, so it would never be evaluated; "
                "call trainer.add_callback(callback) before mix.follow(callback)"
            )
        self.mix.load_state_dict(load_json(self.mix.trainer, state, STATE, "the mix of teachers"))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._take()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        metrics = trl_compat.train_metrics(self.mix.trainer)
        for key, value in self.mix.metrics().items():  # those that this step was made with
            metrics[key].append(value)
        self._take()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        save_json(self.mix.trainer, state, STATE, self.mix.state_dict())

    def _take(self) -> None:
        if self.mix.callback is not None and self.mix.log.take(self.mix.callback):
            self.mix._update()
            self.mix._warn_of_unknown()


def mix_of(trainer: Any) -> TeacherMix | None:
    """The mix that a trainer distills from; `None` without one."""
    return getattr(trainer, "_teacher_mix", None)


def _alternate(evaluator: Any, kind_of: Mapping[str, str]) -> None:
    """Small evaluations take the first held-out questions: now they are of each kind in turn."""
    turn_of, seen = {}, Counter[str]()
    for question in evaluator.held_out.questions:
        turn_of[question.id] = seen[kind_of[question.id]]
        seen[kind_of[question.id]] += 1
    questions = tuple(sorted(evaluator.held_out.questions, key=lambda question: turn_of[question.id]))
    evaluator.held_out = evaluator.evaluation.held_out = replace(evaluator.held_out, questions=questions)


def _said(kind: str) -> str:
    return "all questions" if kind == ALL else f"questions of the kind {kind!r}"


def _values(data: Any, column: str) -> set[str]:
    try:
        return {str(value) for value in data[column]}
    except (TypeError, KeyError, NotImplementedError):  # an iterable data set
        return set()


def _fixed_weights(names: Sequence[str], kind: str | None, given: FixedWeights) -> dict[str, Floats]:
    nested = bool(given) and all(isinstance(each, Mapping) for each in given.values())
    if nested and kind is None:
        raise OpdAlignError("weights are given by kind of question; say which column has it: kind='...'")
    if not nested and kind is not None:
        raise OpdAlignError(f"weights must be given by kind of question ({kind!r}) and teacher")
    by_kind: Mapping[str, Any] = given if nested else {ALL: given}
    found = {}
    for of, weights in by_kind.items():
        unknown = [name for name in weights if name not in names]
        if unknown:
            raise OpdAlignError(f"weights name the teacher {unknown[0]!r}; the teachers are {', '.join(names)}")
        weight_K = np.array([float(weights.get(name, 0.0)) for name in names])
        if not (np.isfinite(weight_K).all() and (weight_K >= 0).all() and isfinite(weight_K.sum()) and weight_K.any()):
            raise OpdAlignError(
                f"weights must be finite, 0 or more, and one of them above 0, not {dict(weights)} ({_said(of)})"
            )
        found[str(of)] = weight_K / weight_K.sum()
    return found
