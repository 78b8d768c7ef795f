"""GRPO on correct completions, distillation on incorrect ones.

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/grpo_distill_on_failures.py --config recipes/grpo_distill_on_failures/cpu_tiny.yaml
    opd-align train grpo_distill_on_failures   # the same, shorter

Correct completions keep GRPO's advantage. For incorrect ones the advantage is set to zero and the teacher is distilled
instead, also in groups without any correct completion, where GRPO alone has no gradient. The loss is given in the
docstring of `GatedGRPOTrainer`.

Metrics to watch: `reward` (pass rate), `frac_reward_zero_std` (groups without a reward signal, where only the teacher
contributes), `gate/sequences_kept`, `gate/loss` (the distillation term), `loss` (both terms) and `entropy`.
"""

from dataclasses import dataclass, field

from transformers import AutoModelForCausalLM
from trl import GRPOConfig, ModelConfig, get_peft_config

from opd_align.training import AlignmentCallback, GatedGRPOTrainer, IncorrectOnly
from opd_align.training.gates import check_denominator
from opd_align.training.recipe import (
    QuestionArguments,
    add_schedule,
    load_student_tokenizer,
    parse_arguments,
    print_on_rank_0,
    resolve_model,
    run_recipe,
    set_model_init_kwargs,
    teacher_init_kwargs,
)


@dataclass
class GateArguments:
    """Arguments of the gate and its teacher."""

    denominator: str = field(
        metadata={"help": "Divide the loss by: keep (all completion tokens) or renormalise (sum of weights)."}
    )
    teacher_model_name_or_path: str | None = field(
        default=None, metadata={"help": "Teacher: a folder or the name of a model on the Hub."}
    )
    teacher_model_init_kwargs: dict | str | None = field(
        default=None,
        metadata={"help": "Loading options of the teacher that differ from the student's: dtype, revision, ..."},
    )
    unknown: str = field(default="drop", metadata={"help": "Completions that the verifier cannot grade: keep or drop."})
    distillation_weight: float = field(default=1.0, metadata={"help": "Weight of the distillation term."})
    distillation_beta: float = field(
        default=1.0, metadata={"help": "Divergence: 0 is KL(teacher, student), 1 is KL(student, teacher)."}
    )


def main() -> None:
    questions, gate_args, training, model = parse_arguments(QuestionArguments, GateArguments, GRPOConfig, ModelConfig)
    task = questions.get_task()
    check_denominator(gate_args.denominator)
    verifier = task.verifier
    gate = IncorrectOnly(verifier, unknown=gate_args.unknown)
    student = resolve_model(model.model_name_or_path)
    teacher = resolve_model(gate_args.teacher_model_name_or_path, "teacher_model_name_or_path")
    set_model_init_kwargs(training, model)
    teacher_options = teacher_init_kwargs(training, model, gate_args.teacher_model_init_kwargs)
    if questions.dry_run:
        print_on_rank_0(f"GRPO on {questions.task}, distilling through {gate.name}: {model.model_name_or_path}")
        return

    held_out = questions.held_out()
    trainer = GatedGRPOTrainer(
        model=student,
        teacher_model=AutoModelForCausalLM.from_pretrained(teacher, **teacher_options),
        reward_funcs=[verifier],
        args=training,
        train_dataset=questions.prompt_dataset(),
        processing_class=load_student_tokenizer(training, model),
        peft_config=get_peft_config(model),
        gate=gate,
        denominator=gate_args.denominator,
        distillation_weight=gate_args.distillation_weight,
        distillation_beta=gate_args.distillation_beta,
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
