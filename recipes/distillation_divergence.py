"""On-policy distillation restricted to tokens where student and teacher diverge.

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/distillation_divergence.py --config recipes/distillation_divergence/cpu_tiny.yaml
    opd-align train distillation_divergence   # the same, shorter

How the threshold is chosen: `divergence: calibrated` uses the callback's evaluations to find the threshold with the
best measured signal, and keeps all tokens until a filter is better with statistical confidence. `divergence: quantile`
keeps a fixed share of the tokens of each step (which takes an additional forward pass), `divergence: threshold` the
tokens above a fixed number of nats.

Metrics to watch: `gate/threshold` and `gate/calibrated_open` (1 as long as no threshold was found), `gate/tokens_kept`,
`gate/kept_divergence` compared with `gate/loss_open`, and the divergence filter under `opd_align/...`.
"""

from dataclasses import dataclass, field

from trl import DistillationConfig, ModelConfig, get_peft_config

from opd_align.training import AlignmentCallback, CalibratedDivergence, DivergenceAbove, GatedDistillationTrainer
from opd_align.training.gates import check_denominator
from opd_align.training.recipe import (
    QuestionArguments,
    add_schedule,
    check_choice,
    load_student_tokenizer,
    parse_arguments,
    print_on_rank_0,
    resolve_model,
    run_recipe,
    set_model_init_kwargs,
)
from opd_align.types import OpdAlignError


@dataclass
class GateArguments:
    """Arguments of the gate."""

    denominator: str = field(
        metadata={"help": "Divide the loss by: keep (all completion tokens) or renormalise (sum of weights)."}
    )
    divergence: str = field(
        default="calibrated", metadata={"help": "How tokens are selected: calibrated, quantile or threshold."}
    )
    measure: str = field(default="kl", metadata={"help": "Measure: kl, js, student_entropy or teacher_entropy."})
    at: float | None = field(default=None, metadata={"help": "The quantile, or the threshold in nats."})


def main() -> None:
    questions, gate_args, training, model = parse_arguments(
        QuestionArguments, GateArguments, DistillationConfig, ModelConfig
    )
    task = questions.get_task()
    check_denominator(gate_args.denominator)
    check_choice("divergence", gate_args.divergence, ("calibrated", "quantile", "threshold"))
    if (gate_args.at is None) != (gate_args.divergence == "calibrated"):
        raise OpdAlignError(
            "at is required for a quantile or a threshold only; "
            f"divergence is {gate_args.divergence}, at is {gate_args.at}"
        )
    if gate_args.divergence == "calibrated":
        gate = CalibratedDivergence(measure=gate_args.measure)
    else:
        gate = DivergenceAbove(**{gate_args.divergence: gate_args.at}, measure=gate_args.measure)
    student = resolve_model(model.model_name_or_path)
    teacher = resolve_model(training.teacher_model_name_or_path, "teacher_model_name_or_path")
    set_model_init_kwargs(training, model)
    if questions.dry_run:
        print_on_rank_0(f"Distillation on {questions.task} through {gate.name}: {model.model_name_or_path}")
        return

    held_out = questions.held_out()
    trainer = GatedDistillationTrainer(
        model=student,
        teacher_model=teacher,
        args=training,
        train_dataset=questions.prompt_dataset(),
        processing_class=load_student_tokenizer(training, model),
        peft_config=get_peft_config(model),
        gate=gate,
        denominator=gate_args.denominator,
    )
    callback = AlignmentCallback(
        trainer,
        held_out,
        task,
        every_n_steps=questions.every_n_steps,
        max_overhead=questions.max_overhead,
    )
    trainer.add_callback(callback)
    if isinstance(gate, CalibratedDivergence):
        gate.follow(callback)
    add_schedule(trainer, callback, questions)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    run_recipe(main)
