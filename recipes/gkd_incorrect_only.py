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

from trl import ModelConfig, TrlParser, get_peft_config
from trl.experimental.gkd import GKDConfig

from opd_align.training import AlignmentCallback, GatedGKDTrainer, IncorrectOnly
from opd_align.training.recipe import Questions, place, tokenizer


@dataclass
class Gated:
    """The gate."""

    denominator: str = field(metadata={"help": "keep: all completion tokens; renormalise: the sum of weights"})
    unknown: str = field(default="keep", metadata={"help": "completions that nobody could judge: keep or drop"})
    correct_weight: float = field(default=0.0, metadata={"help": "what is left of the loss on correct completions"})


def main() -> None:
    questions, gated, training, model = TrlParser((Questions, Gated, GKDConfig, ModelConfig)).parse_args_and_config()
    gate = IncorrectOnly(questions.asked.verifier, correct_weight=gated.correct_weight, unknown=gated.unknown)
    if questions.dry_run:
        print(f"GKD on {questions.task} through {gate.name}: {model.model_name_or_path}")
        return

    training.model_init_kwargs = {"dtype": model.dtype}
    trainer = GatedGKDTrainer(
        model=place(model.model_name_or_path),
        teacher_model=place(training.teacher_model_name_or_path),
        args=training,
        train_dataset=questions.dialogues(),
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
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
