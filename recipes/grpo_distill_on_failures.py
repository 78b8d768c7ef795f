"""GRPO where the student succeeded, a teacher where it failed.

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/grpo_distill_on_failures.py --config recipes/grpo_distill_on_failures/cpu_tiny.yaml
    opd-align train grpo_distill_on_failures                  # the same

Correct rollouts keep GRPO's advantage; incorrect ones lose it and are pulled toward the teacher instead, also in groups
where all failed and GRPO alone would learn nothing. The exact loss is in the docstring of `GatedGRPOTrainer`.

What to look at: `reward` (pass rate), `frac_reward_zero_std` (groups without a reward signal: what the teacher makes up
for), `gate/sequences_kept`, `gate/loss` (the teacher's term) beside `loss` (both), and `entropy`.
"""

from dataclasses import dataclass, field

from transformers import AutoModelForCausalLM
from trl import GRPOConfig, ModelConfig, get_peft_config

from opd_align.training import AlignmentCallback, GatedGRPOTrainer, IncorrectOnly
from opd_align.training.gates import check_denominator
from opd_align.training.recipe import Questions, announce, for_teacher, load_as_told, place, start, tokenizer, told


@dataclass
class Gated:
    """The gate and its teacher."""

    denominator: str = field(metadata={"help": "keep: all completion tokens; renormalise: the sum of weights"})
    teacher_model_name_or_path: str | None = field(default=None, metadata={"help": "folder or Hub name"})
    teacher_model_init_kwargs: dict | str | None = field(
        default=None, metadata={"help": "how to load the teacher, where not like the student: dtype, revision, ..."}
    )
    unknown: str = field(default="drop", metadata={"help": "completions that nobody could judge: keep or drop"})
    distillation_weight: float = field(default=1.0, metadata={"help": "of the teacher's term"})
    distillation_beta: float = field(default=1.0, metadata={"help": "0: KL(teacher, student), 1: KL(student, teacher)"})


def main() -> None:
    questions, gated, training, model = told(Questions, Gated, GRPOConfig, ModelConfig)
    check_denominator(gated.denominator)
    verifier = questions.asked.verifier
    gate = IncorrectOnly(verifier, unknown=gated.unknown)
    student = place(model.model_name_or_path)
    teacher = place(gated.teacher_model_name_or_path, "teacher_model_name_or_path")
    load_as_told(training, model)
    like_the_student = for_teacher(training, model, gated.teacher_model_init_kwargs)
    if questions.dry_run:
        announce(f"GRPO on {questions.task}, distilling through {gate.name}: {model.model_name_or_path}")
        return

    held_out = questions.held_out()
    trainer = GatedGRPOTrainer(
        model=student,
        teacher_model=AutoModelForCausalLM.from_pretrained(teacher, **like_the_student),
        reward_funcs=[verifier],
        args=training,
        train_dataset=questions.prompts(),
        processing_class=tokenizer(training, model),
        peft_config=get_peft_config(model),
        gate=gate,
        denominator=gated.denominator,
        distillation_weight=gated.distillation_weight,
        distillation_beta=gated.distillation_beta,
    )
    callback = AlignmentCallback(
        trainer,
        held_out,
        questions.asked,
        every_n_steps=questions.every_n_steps,
        max_overhead=questions.max_overhead,
    )
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    start(main)
