"""On-policy distillation from several teachers, each used for the kinds of questions where it helps.

    accelerate launch --config_file recipes/accelerate/cpu_tiny.yaml \\
        recipes/distillation_teacher_mix.py --config recipes/distillation_teacher_mix/cpu_tiny.yaml
    opd-align train distillation_teacher_mix   # the same, shorter
    opd-align train distillation_teacher_mix --teachers maths=org/maths code=org/code --kind subject --on_harm rollback

Each rollout is distilled from one teacher. The callback measures all of them on held-out questions, and their weights
follow its evaluations, per kind of question: the value of a column of the data (of a list, its length). Teachers share
the student's vocabulary, and `teacher_model_init_kwargs` is for all of them. With `--on_harm` an `AlignmentSchedule`
decides how long to distill; it ends the training when no teacher helps any more. docs/acting.md has the details.

A teacher may be a context, such as `self=Self-1C` (not the first one): the student with a solution in its prompt. The
student writes the solutions before the training, on every process all of them.

Metrics to watch: `mix/<teacher>/<kind>/weight`, and the teachers' alignment under `opd_align/...`, which the weights
follow. With `--on_harm`: `schedule/strength`.
"""

from dataclasses import dataclass, field
from functools import partial

from transformers import AutoModelForCausalLM
from trl import DistillationConfig, ModelConfig, get_peft_config

from opd_align.core.teacher_weights import STRATEGIES, check_floor
from opd_align.teachers.contexts import CONTEXTS
from opd_align.training import AlignmentCallback, GatedDistillationTrainer, Open, TeacherMix
from opd_align.training.recipe import (
    KIND,
    QuestionArguments,
    add_schedule,
    check_choice,
    load_student_tokenizer,
    parse_arguments,
    parse_teachers,
    print_on_rank_0,
    resolve_model,
    run_recipe,
    set_model_init_kwargs,
    student_hints,
)
from opd_align.types import OpdAlignError


@dataclass
class MixArguments:
    """Arguments of the mix of teachers."""

    teachers: list[str] | None = field(
        default=None, metadata={"help": "Teachers as name=path: folders, names of models on the Hub, or contexts."}
    )
    kind: str | None = field(
        default=None,
        metadata={"help": "Column of training and held-out questions with their kind; by default all are of one kind."},
    )
    strategy: str = field(default="thompson", metadata={"help": "Weights from evaluations: thompson or expected_gain."})
    floor: float = field(default=0.05, metadata={"help": "Smallest weight of a teacher that does not surely harm."})
    live: bool = field(
        default=True, metadata={"help": "Whether weights still change once every teacher has been measured."}
    )
    one_at_a_time: bool = field(default=False, metadata={"help": "Keep one teacher on the device at a time."})


def main() -> None:
    questions, mix_args, training, model = parse_arguments(
        QuestionArguments, MixArguments, DistillationConfig, ModelConfig
    )
    task = questions.get_task()
    if training.teacher_model_name_or_path is not None:
        raise OpdAlignError("teacher_model_name_or_path is for one teacher; use teachers, as name=path")
    paths = parse_teachers(mix_args.teachers)
    check_choice("strategy", mix_args.strategy, STRATEGIES)
    check_floor(mix_args.floor, len(paths))
    student = resolve_model(model.model_name_or_path)
    set_model_init_kwargs(training, model)
    # Teachers are loaded here, not by the trainer, which refuses options of models that it does not load.
    options, training.teacher_model_init_kwargs = training.teacher_model_init_kwargs, None
    load = AutoModelForCausalLM.from_pretrained
    mix = TeacherMix(
        {name: path if path in CONTEXTS else partial(load, path, **options) for name, path in paths.items()},
        kind=None if mix_args.kind is None else KIND,
        strategy=mix_args.strategy,
        floor=mix_args.floor,
        live=mix_args.live,
        one_at_a_time=mix_args.one_at_a_time,
        seed=training.seed,
    )
    questions.check_kind(mix_args.kind)
    if questions.dry_run:
        names = ", ".join(paths)
        print_on_rank_0(f"Distillation on {questions.task} from {names}: {model.model_name_or_path}")
        return

    held_out = questions.held_out(mix_args.kind)
    hints = student_hints(questions, training, model) if mix.pool.contexts else {}
    trainer = GatedDistillationTrainer(
        model=student,
        teacher_model=mix,
        args=training,
        train_dataset=questions.prompt_dataset(hints, kind=mix_args.kind),
        processing_class=load_student_tokenizer(training, model),
        peft_config=get_peft_config(model),
        gate=Open(),
        denominator="keep",
    )
    callback = AlignmentCallback(
        trainer,
        held_out,
        task,
        every_n_steps=questions.every_n_steps,
        max_overhead=questions.max_overhead,
    )
    trainer.add_callback(callback)
    mix.follow(callback)
    add_schedule(trainer, callback, questions)
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    run_recipe(main)
