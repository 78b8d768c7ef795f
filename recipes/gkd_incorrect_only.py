"""GKD restricted to incorrect completions.

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/gkd_incorrect_only.py --config recipes/gkd_incorrect_only/cpu_tiny.yaml
    opd-align train gkd_incorrect_only   # the same, shorter

The student samples completions, a verifier grades them, and the distillation loss is applied to incorrect ones only.

Metrics to watch: `gate/correct` (pass rate of the completions) should increase while `gate/tokens_kept` decreases.
`gate/loss_open` is the loss without the gate. `opd_align/...` shows whether the teacher's update points toward success
on held-out questions, separately for correct and incorrect rollouts: if it does so on correct ones too, this gate
discards signal, and `correct_weight` restores a part of it.

GKD generates with transformers, not with vLLM; for long completions use distillation_divergence.
"""

from dataclasses import dataclass, field

from trl import ModelConfig, get_peft_config
from trl.experimental.gkd import GKDConfig

from opd_align.training import AlignmentCallback, GatedGKDTrainer, IncorrectOnly
from opd_align.training.gates import DENOMINATORS, check_denominator
from opd_align.training.recipe import (
    QuestionArguments,
    add_schedule,
    load_student_tokenizer,
    parse_arguments,
    parse_mapping,
    print_on_rank_0,
    resolve_model,
    run_recipe,
    set_model_init_kwargs,
    with_template_defaults,
)


@dataclass
class GateArguments:
    """Arguments of the gate and of the chat template."""

    denominator: str = field(
        metadata={
            "help": "Divide the loss by: keep (all completion tokens), renormalise (sum of weights), trl (TRL's count)."
        }
    )
    unknown: str = field(default="keep", metadata={"help": "Completions that the verifier cannot grade: keep or drop."})
    correct_weight: float = field(default=0.0, metadata={"help": "Weight of the loss on correct completions."})
    chat_template_kwargs: dict | str | None = field(
        default=None,
        metadata={"help": "Arguments of the chat template, as in TRL's other trainers; GKD itself passes none."},
    )


def main() -> None:
    questions, gate_args, training, model = parse_arguments(QuestionArguments, GateArguments, GKDConfig, ModelConfig)
    task = questions.get_task()
    check_denominator(gate_args.denominator, (*DENOMINATORS, "trl"))
    template = parse_mapping("chat_template_kwargs", gate_args.chat_template_kwargs)
    gate = IncorrectOnly(task.verifier, correct_weight=gate_args.correct_weight, unknown=gate_args.unknown)
    student = resolve_model(model.model_name_or_path)
    teacher = resolve_model(training.teacher_model_name_or_path, "teacher_model_name_or_path")
    set_model_init_kwargs(training, model)
    if questions.dry_run:
        print_on_rank_0(f"GKD on {questions.task} through {gate.name}: {model.model_name_or_path}")
        return

    held_out = questions.held_out()
    trainer = GatedGKDTrainer(
        model=student,
        teacher_model=teacher,
        args=training,
        train_dataset=questions.conversation_dataset(),
        processing_class=with_template_defaults(load_student_tokenizer(training, model), template),
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
