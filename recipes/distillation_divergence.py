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

from trl import DistillationConfig, ModelConfig, TrlParser, get_peft_config

from opd_align.training import AlignmentCallback, CalibratedDivergence, DivergenceAbove, GatedDistillationTrainer
from opd_align.training.recipe import Questions, place, tokenizer


@dataclass
class Gated:
    """The gate."""

    denominator: str = field(metadata={"help": "keep: all completion tokens; renormalise: the sum of weights"})
    divergence: str = field(default="calibrated", metadata={"help": "calibrated, quantile or threshold"})
    measure: str = field(default="kl", metadata={"help": "kl, js, student_entropy or teacher_entropy"})
    at: float | None = field(default=None, metadata={"help": "the quantile, or the threshold in nats"})


def main() -> None:
    parser = TrlParser((Questions, Gated, DistillationConfig, ModelConfig))
    questions, gated, training, model = parser.parse_args_and_config()
    if gated.divergence == "calibrated":
        gate = CalibratedDivergence(measure=gated.measure)
    else:
        gate = DivergenceAbove(**{gated.divergence: gated.at}, measure=gated.measure)
    if questions.dry_run:
        print(f"Distillation on {questions.task} through {gate.name}: {model.model_name_or_path}")
        return

    training.model_init_kwargs = {"dtype": model.dtype}
    trainer = GatedDistillationTrainer(
        model=place(model.model_name_or_path),
        teacher_model=place(training.teacher_model_name_or_path),
        args=training,
        train_dataset=questions.prompts(),
        processing_class=tokenizer(model.model_name_or_path),
        peft_config=get_peft_config(model),
        gate=gate,
        denominator=gated.denominator,
    )
    callback = AlignmentCallback(
        trainer,
        questions.held_out(),
        questions.asked,
        every_n_steps=questions.every_n_steps,
        max_overhead=questions.max_overhead,
    )
    trainer.add_callback(callback)
    if isinstance(gate, CalibratedDivergence):
        gate.follow(callback)
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
