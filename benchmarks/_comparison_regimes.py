"""What `comparison.py` trains: teachers of five kinds, and for each the arms that are compared.

Noise on the weights is another one for each seed, so a regime is not one lucky or unlucky teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from _prediction_models import by_question, plain
from _prediction_teachers import _noisy

from opd_align.backends.loading import load_model
from opd_align.tasks import task

ARITHMETIC = task("arithmetic")
SHORT = {"steps": 24, "every": 6, "questions": 32, "initial": 32, "targeted": 64}
"""Steps, steps between evaluations, and what `AlignmentCallback` evaluates: questions and rollouts of each."""

RUIN = {"steps": 80, "every": 10, "questions": 32, "initial": 32, "targeted": 128, "sigma": 0.4}
COMMON = {"batch": 16, "learning_rate": 3e-4, "accuracy_questions": 256, "max_completion_length": 96}
NOISE_SEED = 11
"""Noise of the first training; those of the other seeds follow."""

GATES: Mapping[str, str] = {
    "incorrect": "tokens of incorrect rollouts",
    "divergence": "20 % of the tokens with the largest KL",
    "both": "tokens of incorrect rollouts that are among the 20 % with the largest KL",
    "sign_agrees": "tokens on which teacher and outcome agree",
    "teachable": "20 % of the tokens with the largest KL × teacher's mass on the student's top tokens",
    "entropy_divergence": "tokens of low entropy and large KL",
    "first_part": "the first third of each rollout",
    "contrastive": "20 % of the tokens that depend most on whether a hint is correct",
}
ORACLES: Mapping[str, str] = {
    "oracle_sign": "oracle: tokens at which the update was measured to point toward success",
    "oracle_soft": "oracle: all tokens, weighted by the probability that the update points toward success",
    "oracle_rollout": "oracle: rollouts on which the update was measured to raise success",
}
ORACLE_ROLLOUTS = 96
"""Rollouts of each completion that an oracle measures success with."""

CONTROL = "control_"
CONTROLLED: Mapping[str, str] = {
    "incorrect": "random rollouts, as many as are incorrect",
    "divergence": "20 % of the tokens at random",
    "both": "random tokens, as many as `both`",
    "sign_agrees": "random tokens, as many as `sign_agrees`",
    "entropy_divergence": "random tokens, as many as `entropy_divergence`",
    "first_part": "random tokens, as many as `first_part`",
}
SAME_CONTROL: Mapping[str, str] = {"teachable": "divergence", "contrastive": "divergence"}
"""Gates that keep as many tokens as another one, with whose control they are compared."""

SCHEDULES: Mapping[str, str] = {
    "stop": '`AlignmentSchedule(on_harm="stop")`',
    "rollback": '`AlignmentSchedule(on_harm="rollback")`',
    "stop_pass_rate": '`AlignmentSchedule(on_harm="stop", follow="pass_rate")`: looks at the pass rate on the '
    "callback's questions",
    "rollback_pass_rate": '`AlignmentSchedule(on_harm="rollback", follow="pass_rate")`: looks at the pass rate on the '
    "callback's questions",
    "early_stopping": "ordinary early stopping: the best evaluation by the pass rate on the callback's questions, "
    "after the whole training",
}
"""Arms that are read from the ungated training: until a schedule acts, a training with it is that without it."""

REWARDED: Mapping[str, str] = {
    "grpo_distill": "incorrect rollouts; GRPO on correct ones",
    "grpo": "nothing; GRPO on all rollouts",
    "handover": 'as `grpo_distill`, with `AlignmentSchedule(on_harm="zero")`: what the teacher gives up, GRPO gets',
}
"""Arms with rewards."""

ARM_TEXTS: Mapping[str, str] = {
    "ungated": "all tokens",
    **GATES,
    **{f"{CONTROL}{name}": f"control: {text}" for name, text in CONTROLLED.items()},
    **ORACLES,
    **SCHEDULES,
    **REWARDED,
    "A": "teacher A alone",
    "B": "teacher B alone",
    "equal": "both teachers with equal weights",
    "mix": "`TeacherMix`: weights by kind of question from the callback's evaluations",
}


def control_of(gate: str) -> str | None:
    """The arm that keeps as many tokens at random; `None` for gates without one."""
    name = SAME_CONTROL.get(gate, gate)
    return f"{CONTROL}{name}" if name in CONTROLLED else None


@dataclass(frozen=True)
class Regime:
    """Teachers and what is compared with them.

    Args:
        title: Heading of its section.
        text: The teacher, for a reader of the results.
        settings: See `SHORT`.
        trained: Arms that are trainings of their own; the first one is the reference of all differences.
        derived: Arms that are read from the reference's training.
        target: Accuracy of the table of tokens and steps.
    """

    title: str
    text: str
    settings: Mapping[str, Any]
    trained: Sequence[str]
    derived: Sequence[str]
    target: float

    @property
    def reference(self) -> str:
        return self.trained[0]


_GATED = ("ungated", *GATES, *ORACLES, *(f"{CONTROL}{name}" for name in CONTROLLED))

REGIMES: Mapping[str, Regime] = {
    "good": Regime(
        "A good teacher", "`embedded:teacher`, right on 0.96 of the questions.", SHORT, _GATED, tuple(SCHEDULES), 0.75
    ),
    "noisy": Regime(
        "A noisy teacher",
        "`embedded:teacher` with noise of 0.3 standard deviations on its weights, other noise for each seed; right on "
        "about 0.27 of the questions, less often than the student.",
        {**SHORT, "sigma": 0.3},
        _GATED,
        tuple(SCHEDULES),
        0.65,
    ),
    "harmful": Regime(
        "A harmful teacher",
        "`embedded:careless`, the student fine-tuned on its own wrong solutions; right on 0.34 of the questions.",
        SHORT,
        _GATED,
        tuple(SCHEDULES),
        0.6,
    ),
    "harmful_128": Regime(
        "The same harmful teacher, evaluated on 128 questions",
        "`AlignmentCallback` has 128 held-out questions instead of 32, so a schedule is told earlier and more surely.",
        {**SHORT, "steps": 12, "questions": 128},
        ("ungated",),
        tuple(SCHEDULES),
        0.6,
    ),
    "ruin": Regime(
        "A teacher that helps first and ruins later",
        "`embedded:teacher` with noise of 0.4 standard deviations on its weights, other noise for each seed; right on "
        "none to 0.02 of the questions.",
        {**RUIN},
        ("ungated",),
        tuple(SCHEDULES),
        0.6,
    ),
    "reward": Regime(
        "GRPO and a teacher that helps first and ruins later",
        "The same teacher, beside rewards (`GatedGRPOTrainer`): 4 rollouts of each of 4 questions per step.",
        {**RUIN, "steps": 60, "generations": 4},
        ("handover", "grpo_distill", "grpo"),
        (),
        0.6,
    ),
    "mixture": Regime(
        "Two teachers, each right on one kind of question",
        "On questions of two steps teacher A is `embedded:teacher` and teacher B `embedded:careless`; on questions of "
        "three steps it is the other way round. 69 % of the questions have two steps.",
        {"steps": 40, "every": 20, "questions": 128, "initial": 32, "targeted": 64},
        ("mix", "A", "B", "equal"),
        (),
        0.75,
    ),
}


def kind_of(question: Any) -> str:
    return "three" if "Then" in question.text else "two"


def row_of(question: Any) -> dict[str, Any]:
    return {"prompt": ARITHMETIC.messages(question), "answer": question.answer, "kind": kind_of(question)}


def of_both_kinds(n: int, *, offset: int) -> list[Any]:
    """Held-out questions, as many of each kind."""
    questions = ARITHMETIC.load(split="test", limit=8 * n, offset=offset)
    return [each for kind in ("two", "three") for each in [q for q in questions if kind_of(q) == kind][: n // 2]]


def teachers_of(regime: str, seed: int, tokenizer: Any) -> dict[str, Any]:
    """The teachers of a training by name."""

    def embedded(name: str) -> Any:
        return load_model(f"embedded:{name}").model.requires_grad_(False)

    if "sigma" in REGIMES[regime].settings:
        return {"noisy": _noisy(embedded("teacher"), REGIMES[regime].settings["sigma"], NOISE_SEED + seed)}
    if regime != "mixture":
        return {"teacher": embedded("teacher" if regime == "good" else "careless")}

    def is_two_step(tokens: Any) -> bool:
        return "Then" not in tokenizer.decode(list(tokens)).partition("<|im_start|>assistant\n")[0]

    good, bad = plain(embedded("teacher")), plain(embedded("careless"))
    return {"A": by_question(good, bad, is_two_step), "B": by_question(bad, good, is_two_step)}
