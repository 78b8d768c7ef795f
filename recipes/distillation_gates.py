"""On-policy distillation with a gate from the literature, selected by name.

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/distillation_gates.py --config recipes/distillation_gates/cpu_tiny.yaml --gate teachable
    opd-align train distillation_gates --gate teachable   # the same, shorter

Gates: teachable, entropy_divergence, sign_agrees, first_part, contrastive_contexts, and divergence, incorrect_only and
open for comparison; `incorrect_only*teachable` is the product of two. docs/gates.md has what each one keeps, its
reference and its cost. contrastive_contexts needs a correct and a wrong solution of each training question: the student
writes them before the training (every process all of them), and questions without both follow `unknown`.

Metrics to watch: `gate/tokens_kept`, `gate/kept_divergence` compared with `gate/loss_open`, and `gated/alignment`
beside `alignment/mean` under `opd_align/...`: a gate that helps keeps tokens of higher alignment.
"""

from dataclasses import dataclass, field

from trl import DistillationConfig, ModelConfig, get_peft_config

from opd_align.training import AlignmentCallback, GatedDistillationTrainer
from opd_align.training.gates import check_denominator
from opd_align.training.published_gates import named_gate
from opd_align.training.recipe import (
    QuestionArguments,
    add_schedule,
    load_student_tokenizer,
    parse_arguments,
    print_on_rank_0,
    resolve_model,
    run_recipe,
    set_model_init_kwargs,
    student_hints,
)


@dataclass
class GateArguments:
    """Arguments of the gate."""

    denominator: str = field(
        metadata={"help": "Divide the loss by: keep (all completion tokens) or renormalise (sum of weights)."}
    )
    gate: str = field(default="teachable", metadata={"help": "Name of the gate, or a product such as a*b."})
    unknown: str = field(
        default="keep", metadata={"help": "Completions of unknown outcome, or questions without hints: keep or drop."}
    )


def main() -> None:
    questions, gate_args, training, model = parse_arguments(
        QuestionArguments, GateArguments, DistillationConfig, ModelConfig
    )
    task = questions.get_task()
    check_denominator(gate_args.denominator)
    gate = named_gate(gate_args.gate, task.verifier, unknown=gate_args.unknown)
    student = resolve_model(model.model_name_or_path)
    teacher = resolve_model(training.teacher_model_name_or_path, "teacher_model_name_or_path")
    set_model_init_kwargs(training, model)
    if questions.dry_run:
        print_on_rank_0(f"Distillation on {questions.task} through {gate.name}: {model.model_name_or_path}")
        return

    held_out = questions.held_out()
    hints = student_hints(questions, training, model) if gate.scorer is not None else {}
    trainer = GatedDistillationTrainer(
        model=student,
        teacher_model=teacher,
        args=training,
        train_dataset=questions.prompt_dataset(hints),
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
    add_schedule(trainer, callback, questions)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    run_recipe(main)
