"""On-policy distillation on the tokens where student and teacher diverge.

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/distillation_divergence.py --config recipes/distillation_divergence/cpu_tiny.yaml
    opd-align train distillation_divergence                   # the same

How far apart must they be? `divergence: calibrated` asks the callback: it takes the threshold at which the measured
signal of the kept tokens is best, and stays open until a filter surely gains. `divergence: quantile` keeps a fixed
share of each step's tokens (and looks at the step before training on it: one more forward pass), `threshold` a fixed
number of nats.

What to look at: `gate/threshold` and `gate/calibrated_open` (did calibration find anything?), `gate/tokens_kept`,
`gate/kept_divergence` beside `gate/loss_open`, and the divergence filter under `opd_align/...`.
"""

from dataclasses import dataclass, field

from trl import DistillationConfig, ModelConfig, get_peft_config

from opd_align.training import AlignmentCallback, CalibratedDivergence, DivergenceAbove, GatedDistillationTrainer
from opd_align.training.gates import check_denominator
from opd_align.training.recipe import Questions, announce, check_choice, load_as_told, place, start, tokenizer, told
from opd_align.types import OpdAlignError


@dataclass
class Gated:
    """The gate."""

    denominator: str = field(metadata={"help": "keep: all completion tokens; renormalise: the sum of weights"})
    divergence: str = field(default="calibrated", metadata={"help": "calibrated, quantile or threshold"})
    measure: str = field(default="kl", metadata={"help": "kl, js, student_entropy or teacher_entropy"})
    at: float | None = field(default=None, metadata={"help": "the quantile, or the threshold in nats"})


def main() -> None:
    questions, gated, training, model = told(Questions, Gated, DistillationConfig, ModelConfig)
    check_denominator(gated.denominator)
    check_choice("divergence", gated.divergence, ("calibrated", "quantile", "threshold"))
    if (gated.at is None) != (gated.divergence == "calibrated"):
        raise OpdAlignError(f"at is for a quantile or a threshold; divergence is {gated.divergence}, at is {gated.at}")
    if gated.divergence == "calibrated":
        gate = CalibratedDivergence(measure=gated.measure)
    else:
        gate = DivergenceAbove(**{gated.divergence: gated.at}, measure=gated.measure)
    student = place(model.model_name_or_path)
    teacher = place(training.teacher_model_name_or_path, "teacher_model_name_or_path")
    load_as_told(training, model)
    if questions.dry_run:
        announce(f"Distillation on {questions.task} through {gate.name}: {model.model_name_or_path}")
        return

    held_out = questions.held_out()
    trainer = GatedDistillationTrainer(
        model=student,
        teacher_model=teacher,
        args=training,
        train_dataset=questions.prompts(),
        processing_class=tokenizer(training, model),
        peft_config=get_peft_config(model),
        gate=gate,
        denominator=gated.denominator,
    )
    callback = AlignmentCallback(
        trainer,
        held_out,
        questions.asked,
        every_n_steps=questions.every_n_steps,
        max_overhead=questions.max_overhead,
    )
    trainer.add_callback(callback)
    if isinstance(gate, CalibratedDivergence):
        gate.follow(callback)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    start(main)
