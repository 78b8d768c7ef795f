"""Self-distillation: the teacher is the student with a correct solution in its prompt (Self-1C).

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/self_distillation_contexts.py --config recipes/self_distillation_contexts/cpu_tiny.yaml
    opd-align train self_distillation_contexts   # the same, shorter

SDPO samples a group of completions per question. A correct one becomes the demonstration in the teacher's prompt (with
the wording of the paper), and the other completions of the group are distilled toward that teacher; the gate excludes
those that are correct themselves. With `teacher_model_kind: live` the teacher has the student's present weights: no
second model is kept in memory, and the callback evaluates the teacher that is trained with. TRL's default, `ema`, keeps
an averaged copy (with `--use_peft` a second adapter, which the callback does not support).

Metrics to watch: `gate/correct` (pass rate), `self_distillation/success_group_fraction` (questions with a correct
completion), `gate/sequences_kept`, `sdpo/distillation_loss`, and the alignment of the context under `opd_align/...`. A
demonstration that does not help the student gives a teacher that does not either; check with `opd-align screen`.
"""

from dataclasses import dataclass, field

from trl import ModelConfig, get_peft_config
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from opd_align.teachers.contexts import SELF, Demonstration, paper_template
from opd_align.training import AlignmentCallback, SDPOGate
from opd_align.training.recipe import (
    NO_SCHEDULE,
    QuestionArguments,
    load_student_tokenizer,
    parse_arguments,
    print_on_rank_0,
    resolve_model,
    run_recipe,
    set_model_init_kwargs,
)
from opd_align.types import OpdAlignError, Question


@dataclass
class GateArguments:
    """Arguments of the gate."""

    unknown: str = field(default="drop", metadata={"help": "Completions that the verifier cannot grade: keep or drop."})


def main() -> None:
    questions, gate_args, training, model = parse_arguments(QuestionArguments, GateArguments, SDPOConfig, ModelConfig)
    task = questions.get_task()
    if questions.on_harm != NO_SCHEDULE:
        raise OpdAlignError(
            "on_harm is not supported with SDPO, whose loss has no strength that a schedule could lower"
        )
    gate = SDPOGate(task.verifier, unknown=gate_args.unknown)

    # The paper's prompt as SDPO's templates: SDPO inserts the question and the solution.
    solution = Demonstration("", SELF, 0, True, "{successful_previous_attempt}")
    training.solution_template = paper_template(Question(""), "", [solution])
    training.reprompt_template = "{prompt}{solution}{feedback}"
    student = resolve_model(model.model_name_or_path)
    set_model_init_kwargs(training, model)
    if questions.dry_run:
        print_on_rank_0(f"SDPO on {questions.task} through {gate.gate.name}: {model.model_name_or_path}")
        return

    held_out = questions.held_out()
    trainer = SDPOTrainer(
        model=student,
        reward_funcs=[gate.reward],
        args=training,
        train_dataset=questions.prompt_dataset(),
        processing_class=load_student_tokenizer(training, model),
        peft_config=get_peft_config(model),
    )
    gate.attach(trainer)
    callback = AlignmentCallback(
        trainer,
        held_out,
        task,
        every_n_steps=questions.every_n_steps,
        max_overhead=questions.max_overhead,
    )
    trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    run_recipe(main)
