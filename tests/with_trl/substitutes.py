"""TRL's trainers as TRL's tests should not notice: with an open gate, or with an `AlignmentCallback`."""

from __future__ import annotations

import copy
from inspect import signature
from typing import Any

from trl import DistillationTrainer, GRPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.sdpo import SDPOTrainer

from opd_align.settings import Budget, Sampling
from opd_align.training.callback import AlignmentCallback
from opd_align.training.gates import Open
from opd_align.training.trainers.distillation import GatedDistillationTrainer
from opd_align.training.trainers.gkd import GatedGKDTrainer
from opd_align.training.trainers.grpo import GatedGRPOTrainer
from opd_align.training.trainers.sdpo import SDPOGate

QUESTIONS = [{"prompt": f"What is {number} plus one?", "answer": str(number + 1)} for number in range(2)]
DIALOGUES = [{"messages": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in QUESTIONS]


def is_short(completions: Any, **columns: Any) -> list[float]:
    return [float(len(str(completion)) % 2) for completion in completions]


class OpenGKD(GatedGKDTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, gate=Open(), denominator="trl", **kwargs)


class OpenDistillation(GatedDistillationTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, gate=Open(), denominator="keep", **kwargs)


class OpenGRPO(GatedGRPOTrainer):
    """Distillation with weight zero: GRPO's own loss. The teacher is a copy of the student."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        student = signature(GRPOTrainer).bind_partial(*args, **kwargs).arguments["model"]
        teacher = student if isinstance(student, str) else copy.deepcopy(student)
        own = {"teacher_model": teacher, "distillation_weight": 0.0, "gate": Open(), "denominator": "keep"}
        super().__init__(*args, **own, **kwargs)


class OpenSDPO(SDPOTrainer):
    """The first reward function is the gate's verifier, and no value is large enough to be correct."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = signature(SDPOTrainer).bind_partial(*args, **kwargs)
        rewards = bound.arguments.get("reward_funcs")
        functions = list(rewards) if isinstance(rewards, list) else [rewards]
        if not functions or not callable(functions[0]) or hasattr(functions[0], "forward"):
            super().__init__(*args, **kwargs)
            return
        gate = SDPOGate(functions[0], unknown="keep", correct_from=1e9)
        functions[0] = gate.reward
        bound.arguments["reward_funcs"] = functions if isinstance(rewards, list) else functions[0]
        super().__init__(*bound.args, **bound.kwargs)
        gate.attach(self)


def with_callback(kind: Any) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, *args, **kwargs)
        budget, sampling = Budget(initial=2, targeted=0), Sampling(max_tokens=4)
        rows = DIALOGUES if kind is GKDTrainer else QUESTIONS
        own = {"budget": budget, "sampling": sampling, "every_n_steps": 2, "max_overhead": None}
        self.add_callback(AlignmentCallback(self, rows, is_short, **own))

    return type(kind.__name__, (kind,), {"__init__": __init__})


PLAIN = {kind.__name__: kind for kind in (GKDTrainer, DistillationTrainer, GRPOTrainer, SDPOTrainer)}
SUBSTITUTES: dict[str, dict[str, Any]] = {
    "plain": {},
    "gate": {
        "GKDTrainer": OpenGKD,
        "DistillationTrainer": OpenDistillation,
        "GRPOTrainer": OpenGRPO,
        "SDPOTrainer": OpenSDPO,
    },
    "callback": {name: with_callback(kind) for name, kind in PLAIN.items()},
}
for name, kind in SUBSTITUTES["gate"].items():
    kind.__name__ = kind.__qualname__ = name  # TRL's model cards and error messages name the class
