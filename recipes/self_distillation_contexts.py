"""The student as its own teacher, shown a solution that worked (Self-1C); failed rollouts learn from it.

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/self_distillation_contexts.py --config recipes/self_distillation_contexts/cpu_tiny.yaml
    opd-align train self_distillation_contexts                # the same

SDPO samples a group of rollouts a question. Where one of them is correct, it becomes the demonstration in the teacher's
prompt, in the paper's words, and the others are distilled toward what the student says after reading it; the gate
leaves out those that were right by themselves. `teacher_model_kind: live` makes the teacher the student as it stands:
no second model is held, and what the callback measures is what is trained on. TRL's default, `ema`, holds an averaged
copy (with `--use_peft`, a second adapter, which the callback does not serve).

What to look at: `gate/correct` (pass rate), `self_distillation/success_group_fraction` (questions with something to
show), `gate/sequences_kept`, `sdpo/distillation_loss`, and the context's alignment under `opd_align/...`: a
demonstration that does not help (screen first: `opd-align screen`) makes a teacher that does not either.
"""

from dataclasses import dataclass, field

from trl import ModelConfig, get_peft_config
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

from opd_align.teachers.contexts import SELF, Demonstration, paper_template
from opd_align.training import AlignmentCallback, SDPOGate
from opd_align.training.recipe import Questions, announce, load_as_told, place, start, tokenizer, told
from opd_align.types import Question


@dataclass
class Gated:
    """The gate."""

    unknown: str = field(default="drop", metadata={"help": "completions that nobody could judge: keep or drop"})


def main() -> None:
    questions, gated, training, model = told(Questions, Gated, SDPOConfig, ModelConfig)
    gate = SDPOGate(questions.asked.verifier, unknown=gated.unknown)

    # The paper's prompt, cut where SDPO puts in the question and the solution.
    solution = Demonstration("", SELF, 0, True, "{successful_previous_attempt}")
    training.solution_template = paper_template(Question(""), "", [solution])
    training.reprompt_template = "{prompt}{solution}{feedback}"
    student = place(model.model_name_or_path)
    load_as_told(training, model)
    if questions.dry_run:
        announce(f"SDPO on {questions.task} through {gate.gate.name}: {model.model_name_or_path}")
        return

    held_out = questions.held_out()
    trainer = SDPOTrainer(
        model=student,
        reward_funcs=[gate.reward],
        args=training,
        train_dataset=questions.prompts(),
        processing_class=tokenizer(training, model),
        peft_config=get_peft_config(model),
    )
    gate.attach(trainer)
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
