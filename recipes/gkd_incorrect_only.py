"""GKD on the rollouts that failed.

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/gkd_incorrect_only.py --config recipes/gkd_incorrect_only/cpu_tiny.yaml
    opd-align train gkd_incorrect_only                        # the same

The student writes, a verifier judges, and only what it got wrong is pulled toward the teacher. What to look at:
`gate/correct` (pass rate of the rollouts) should rise, and with it `gate/tokens_kept` falls: there is less left to
teach. `gate/loss_open` beside `gate/loss` shows what was left out. `opd_align/...` says whether the teacher's update
points to success on held-out questions, on correct and on incorrect rollouts: if it does so on correct ones too, this
gate throws signal away, and `correct_weight` lets a part of it back in.

GKD generates with transformers, not with vLLM: for long completions use distillation_divergence.
"""

from dataclasses import dataclass, field

from trl import ModelConfig, get_peft_config
from trl.experimental.gkd import GKDConfig

from opd_align.training import AlignmentCallback, GatedGKDTrainer, IncorrectOnly
from opd_align.training.gates import DENOMINATORS, check_denominator
from opd_align.training.recipe import (
    Questions,
    announce,
    load_as_told,
    mapping,
    place,
    start,
    tokenizer,
    told,
    with_template_defaults,
)


@dataclass
class Gated:
    """The gate."""

    denominator: str = field(
        metadata={"help": "keep: all completion tokens; renormalise: the sum of weights; trl: TRL's own count"}
    )
    unknown: str = field(default="keep", metadata={"help": "completions that nobody could judge: keep or drop"})
    correct_weight: float = field(default=0.0, metadata={"help": "what is left of the loss on correct completions"})
    chat_template_kwargs: dict | str | None = field(
        default=None, metadata={"help": "for the chat template, as TRL's other trainers take them; GKD passes it none"}
    )


def main() -> None:
    questions, gated, training, model = told(Questions, Gated, GKDConfig, ModelConfig)
    check_denominator(gated.denominator, (*DENOMINATORS, "trl"))
    template = mapping("chat_template_kwargs", gated.chat_template_kwargs)
    gate = IncorrectOnly(questions.asked.verifier, correct_weight=gated.correct_weight, unknown=gated.unknown)
    student = place(model.model_name_or_path)
    teacher = place(training.teacher_model_name_or_path, "teacher_model_name_or_path")
    load_as_told(training, model)
    if questions.dry_run:
        announce(f"GKD on {questions.task} through {gate.name}: {model.model_name_or_path}")
        return

    held_out = questions.held_out()
    trainer = GatedGKDTrainer(
        model=student,
        teacher_model=teacher,
        args=training,
        train_dataset=questions.dialogues(),
        processing_class=with_template_defaults(tokenizer(training, model), template),
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
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    start(main)
