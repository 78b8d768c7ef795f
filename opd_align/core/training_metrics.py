"""The metrics that are logged about a training itself: what evaluations cost, what they say together, what a gate does.

Records only; `core.metric_registry` has all metrics, and says how keys are formed.
"""

from __future__ import annotations

from opd_align.core.metric_schema import Metric

EVALUATION_METRICS = (
    Metric("evaluation", "seconds", "Wall time of the evaluation.", "seconds", "lower",
        charts={"Seconds per evaluation": ""}, column="seconds"),
    Metric("evaluation", "overhead_share", "Share of the training's wall time spent on evaluations so far.", "share",
        "lower", charts={"Share of wall time": ""}),
    Metric("evaluation", "scale",
        "Share of the held-out questions that were evaluated, reduced to respect `max_overhead`.", "share", "higher",
        charts={"Evaluation size": ""}),
    Metric("evaluation", "interval", "Training steps since the previous evaluation; absent at the first one.", "steps",
        "lower", charts={"Steps since last evaluation": ""}),
    Metric("evaluation", "failures", "Number of evaluations that have failed so far.", "evaluations", "lower",
        charts={"Failed evaluations": ""}),
    Metric("evaluation", "verifier_failures",
        "Number of verifier calls that raised or timed out so far; their completions count as unknown.", "calls",
        "lower"),
    Metric("evaluation", "without_demonstration",
        "1 if there is no result because the student could not write a demonstration for any question yet.", "0 or 1",
        "lower"),
    Metric("evaluation", "loss_recognised",
        "1 if the objective is the trainer's loss, or was passed as `objectives`; 0 if part of the loss is not "
        "evaluated, such as an overridden `compute_loss`, a KL penalty, other completions or another reward.", "0 or 1",
        "higher"),
    Metric("evaluation", "delay",
        "Time from the checkpoint to its result; only for evaluations outside the training (`opd-align watch`).",
        "seconds", "lower"),
    Metric("evaluation", "staleness",
        "Steps that the training was ahead of the checkpoint when its result was written; only for evaluations outside "
        "the training.", "steps", "lower"),
)  # fmt: skip

ALARM_METRICS = (
    Metric("teacher", "alarm/p_helps",
        "Probability that the SR-weighted alignment is above zero, given this evaluation and all earlier ones.",
        "probability", "higher", needs_teacher=True, charts={"Probability that the teacher helps": ""}),
    Metric("teacher", "alarm/level",
        "State of the alarm: 1 helps, 0 unsure, −1 fades (it has helped and no longer does), −2 harms.", "level",
        "higher", bounds=(-2, 1), needs_teacher=True),
    Metric("teacher", "alarm/alignment",
        "SR-weighted alignment, filtered: earlier evaluations count as far as they still can.", "cosine", "higher",
        needs_teacher=True, ends=("alarm/low", "alarm/high"), charts={"Alignment over all evaluations": ""}),
    Metric("teacher", "alarm/low", "Lower end of the 95 % interval of `alarm/alignment`.", "cosine", "higher",
        needs_teacher=True),
    Metric("teacher", "alarm/high", "Upper end of the 95 % interval of `alarm/alignment`.", "cosine", "higher",
        needs_teacher=True),
)  # fmt: skip
"""What `core.alarm` makes of all evaluations of a training so far; absent for objectives without a teacher."""

GATE_METRICS = (
    Metric("gate", "sequences_kept", "Share of completions with at least one token that is distilled.", "share",
        charts={"What the gate distills": "completions"}),
    Metric("gate", "tokens_kept", "Share of completion tokens that are distilled.", "share",
        charts={"What the gate distills": "tokens"}),
    Metric("gate", "tokens_distilled", "Sum of the token weights.", "tokens"),
    Metric("gate", "denominator", "Number that the summed distillation loss is divided by.", "tokens"),
    Metric("gate", "renormalised",
        "1 if the denominator is the sum of the token weights, 0 if it is the number of tokens.", "0 or 1"),
    Metric("gate", "loss", "Distillation loss with the gate.", "nats", "lower",
        charts={"Distillation loss with the gate": "with the gate"}),
    Metric("gate", "loss_open", "Distillation loss without the gate: mean divergence over all completion tokens.",
        "nats", "lower",
        charts={"Distillation loss with the gate": "without"}),
    Metric("gate", "kept_divergence",
        "Weighted mean divergence of the distilled tokens; absent if no token is distilled.", "nats",
        charts={"Divergence of distilled tokens": "mean"}),
    Metric("gate", "correct", "Share of completions that are correct.", "share", "higher",
        charts={"Verdicts of the verifier": "correct"}),
    Metric("gate", "unknown", "Share of completions that the verifier could not grade.", "share", "lower",
        charts={"Verdicts of the verifier": "not graded"}),
    Metric("gate", "verifier_failures", "Verifier calls that raised or timed out.", "calls", "lower"),
    Metric("gate", "threshold",
        "Divergence from which on a calibrated gate distills a token; absent while the gate is open.", "nats",
        charts={"Divergence of distilled tokens": "threshold"}),
    Metric("gate", "calibrated_open",
        "1 while a calibrated gate distills all tokens, because no filter has a significant gain.", "0 or 1"),
)  # fmt: skip

SCHEDULE_METRICS = (
    Metric("schedule", "strength", "Strength of the distillation loss that `AlignmentSchedule` asks for.", "share"),
    Metric("schedule", "p_helps",
        "Probability that the teacher helps, as the schedule sees it; absent before the first known evaluation.",
        "probability", "higher"),
)  # fmt: skip

MIX_METRICS = (
    Metric("mix", "weight", "Probability with which `TeacherMix` uses the teacher on questions of the kind.",
        "probability"),
)  # fmt: skip
