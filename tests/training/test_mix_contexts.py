"""Contexts as members of a mix: prompts, draws, and the loss against autograd of TRL's divergence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from support.gated_runs import dialogues, gkd, models, prompts, trained
from support.trainings import ARITHMETIC, TINY, held_out
from transformers import set_seed
from trl import DistillationConfig
from trl.experimental.gkd import GKDTrainer

from opd_align.backends.loading import load_model, load_tokenizer
from opd_align.teachers.contexts import Context
from opd_align.training import (
    AlignmentCallback,
    GatedDistillationTrainer,
    GatedGKDTrainer,
    GatedGRPOTrainer,
    Open,
    TeacherMix,
)
from opd_align.training.contrast import CORRECT_HINT, hinted_messages
from opd_align.training.gate_runtime import token_lists
from opd_align.training.mix_contexts import COMPLETION_TOKENS, ContextPrompts, as_context, pad_left
from opd_align.training.teacher_mix import NONE
from opd_align.training.trainers.gkd import COLUMNS
from opd_align.training.trainers.mixed_loss import take_student_states
from opd_align.types import OpdAlignError

BETA = 0.5


def with_hints(rows, without=()):
    """Rows with a solution of their question; some have none."""
    hints = [
        None if n in without else f"There are {row['answer']}.\nAnswer: {row['answer']}" for n, row in enumerate(rows)
    ]
    return rows.add_column(CORRECT_HINT, hints)


def mix_of_both(**options):
    return TeacherMix({"model": models()["teacher_model"], "Self-1C": "Self-1C"}, **options)


def attached(mix, longest=512, columns=(CORRECT_HINT,), data=None, tools=None):
    """A mix whose prompts are those of a trainer."""
    tokenizer = load_tokenizer("embedded:student")
    text = SimpleNamespace(max_position_embeddings=longest)
    mix.prompts.attach(
        SimpleNamespace(
            processing_class=tokenizer, train_dataset=data or SimpleNamespace(column_names=list(columns)), tools=tools,
            model=SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: text)),
            args=SimpleNamespace(max_completion_length=96),
        )
    )  # fmt: skip
    state = SimpleNamespace(global_step=0)
    mix.trainer = SimpleNamespace(
        state=state, accelerator=SimpleNamespace(process_index=0), is_world_process_zero=lambda: True
    )
    return mix, tokenizer


def expected_prompt(tokenizer, row):
    hinted = hinted_messages(row["prompt"], row[CORRECT_HINT])
    return tuple(tokenizer.apply_chat_template(hinted, add_generation_prompt=True, return_dict=False))


def test_questions_without_a_demonstration_are_left_to_the_others():
    mix, tokenizer = attached(mix_of_both(weights={"model": 1.0, "Self-1C": 3.0}))
    rows = list(with_hints(prompts(4), without=[1, 3]))
    drawn = np.array([mix.draw(rows) for _ in range(400)])
    assert not drawn[:, [1, 3]].any()
    assert drawn[:, [0, 2]].mean() == pytest.approx(0.75, abs=0.05)
    found = mix.context_prompts(rows, np.array([1, 0, NONE, 0]))
    assert found == [expected_prompt(tokenizer, rows[0]), (), (), ()]
    only, _ = attached(mix_of_both(weights={"Self-1C": 1.0}))
    assert only.draw(rows).tolist() == [1, NONE, 1, NONE], "no other member has a weight"


def test_prompts_that_are_too_long_are_left_to_the_others():
    rows = list(with_hints(prompts(1)))
    length = len(expected_prompt(load_tokenizer("embedded:student"), rows[0]))
    for spare, usable in ((0, True), (-1, False)):
        mix, _ = attached(mix_of_both(), longest=length + 96 + spare)
        assert (mix.prompts.prompt("Self-1C", rows[0]) is not None) is usable


def test_columns_are_checked():
    with pytest.raises(OpdAlignError, match=r"the data set has no column 'correct_hint'; .*sample_hints"):
        attached(mix_of_both(), columns=("prompt",))
    both = ContextPrompts({"x": as_context("x", "Self-1C1W")})
    assert both.columns == ("correct_hint", "wrong_hint")
    assert mix_of_both(kind="subject").columns == ("subject", "correct_hint")
    attached(TeacherMix({"a": models()["teacher_model"]}), columns=())


@pytest.mark.parametrize("hint", ["", "  \n", None])
def test_a_blank_solution_is_none(hint):
    mix, _ = attached(mix_of_both())
    assert mix.prompts.prompt("Self-1C", {**prompts(1)[0], CORRECT_HINT: hint}) is None


def test_solutions_must_be_text():
    mix, _ = attached(mix_of_both())
    with pytest.raises(OpdAlignError, match=r"'correct_hint' must have one solution as text, or None.* not a list"):
        mix.prompts.prompt("Self-1C", {**prompts(1)[0], CORRECT_HINT: ["a", "b"]})
    lists = Dataset.from_list([{"prompt": "a", CORRECT_HINT: ["a"]}])
    with pytest.raises(OpdAlignError, match=r"'correct_hint' must have one solution as text, or None.* not"):
        attached(mix_of_both(), data=lists)
    for hint in ("a", None):
        attached(mix_of_both(), data=Dataset.from_list([{"prompt": "a", CORRECT_HINT: hint}]))


def test_what_contexts_cannot_be_shown_with_is_refused():
    with pytest.raises(OpdAlignError, match=r"completions of up to 96 tokens leave no room .* can read 96"):
        attached(mix_of_both(), longest=96)
    with pytest.raises(OpdAlignError, match="contexts in a TeacherMix are not supported with tools"):
        attached(mix_of_both(), tools=[print])


def test_a_context_that_is_never_usable_is_said_once(caplog):
    rows = list(with_hints(prompts(4), without=range(4)))
    mix, _ = attached(mix_of_both(weights={"model": 1.0, "Self-1C": 3.0}))
    for _ in range(15):
        mix.draw(rows)
    assert not caplog.messages
    for _ in range(20):
        mix.draw(rows)
    (said,) = caplog.messages
    assert said.startswith("Teacher 'Self-1C' was usable for none of the first 64 rows: they do not have the solutions")
    caplog.clear()
    unused, _ = attached(mix_of_both(weights={"model": 1.0}))
    for _ in range(20):
        unused.draw(rows)
    assert not caplog.messages, "it has no weight"


def test_the_length_of_a_known_completion_counts():
    rows = list(with_hints(prompts(1)))
    length = len(expected_prompt(load_tokenizer("embedded:student"), rows[0]))
    mix, _ = attached(mix_of_both(), longest=length + 96)
    for tokens, usable in ((97, False), (96, True), (1, True)):
        assert (mix.prompts.prompt("Self-1C", {**rows[0], COMPLETION_TOKENS: tokens}) is not None) is usable


def test_content_in_parts_keeps_its_parts():
    image, text = {"type": "image"}, {"type": "text", "text": "How many?"}
    plain = [{"role": "user", "content": "How many?"}]
    added = hinted_messages(plain, "Answer: 4")[0]["content"]
    parts = hinted_messages([{"role": "user", "content": [image, text]}], "Answer: 4")[0]["content"]
    assert parts == [image, {"type": "text", "text": added}]
    assert text["text"] == "How many?"
    with pytest.raises(OpdAlignError, match="no text that a context could be added to"):
        hinted_messages([{"role": "user", "content": [image]}], "Answer: 4")
    mix, tokenizer = attached(mix_of_both())
    expected = mix.prompts.prompt("Self-1C", {"prompt": plain, CORRECT_HINT: "Answer: 4"})
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "message.content", "(message.content if message.content is string else message.content[0].text)"
    )
    rows = {"prompt": [{"role": "user", "content": [text]}], CORRECT_HINT: "Answer: 4"}
    assert mix.prompts.prompt("Self-1C", rows) == expected


def test_padding():
    ids, mask = pad_left([(5, 6), (), (7,)], 0, "cpu")
    assert ids.tolist() == [[5, 6], [0, 0], [0, 7]]
    assert mask.tolist() == [[1, 1], [0, 0], [0, 1]]
    empty, _ = pad_left([(), ()], 0, "cpu")
    assert empty.shape == (2, 0)
    assert empty.dtype == torch.long


def test_grpo_refuses_contexts(tmp_path):
    from trl import GRPOConfig

    made = models() | {"teacher_model": mix_of_both()}
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    with pytest.raises(OpdAlignError, match="contexts in a TeacherMix are not supported by GatedGRPOTrainer"):
        GatedGRPOTrainer(
            args=args, train_dataset=prompts(4), reward_funcs=[ARITHMETIC.verifier], gate=Open(), denominator="keep",
            **made,
        )  # fmt: skip


def test_a_loss_that_asks_for_the_teacher_first_is_refused():
    student, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    accelerator = SimpleNamespace(unwrap_model=lambda model, keep_torch_compile: model)
    trainer = SimpleNamespace(accelerator=accelerator, model=student, _student_states=torch.ones(1))
    with pytest.raises(OpdAlignError, match="asked for a teacher's hidden states before the student's"):
        take_student_states(trainer, other)
    assert take_student_states(trainer, student).item() == 1
    assert take_student_states(trainer, student) is take_student_states(trainer, other) is None, "used once"


# -- trainings

DRAWN = [1, 0, 1, 1]


def autograd(sequences, drawn, temperature=1.0):
    """Gradients of the mean divergence, one completion at a time: prompt, prompt with the hint, completion."""
    student, frozen = load_model("embedded:student").model, load_model("embedded:student").model.eval()
    teachers = (models()["teacher_model"].eval(), frozen)
    total, tokens = 0.0, 0
    for (prompt, hinted, completion), number in zip(sequences, drawn, strict=True):

        def logits(model, before, completion=completion):
            ids = torch.tensor([[*before, *completion]])
            return model(input_ids=ids).logits[:, len(before) - 1 : -1] / temperature

        with torch.no_grad():
            taught = logits(teachers[number], hinted if number else prompt)
        total += GKDTrainer.generalized_jsd_loss(logits(student, prompt), taught, beta=BETA, reduction="none").sum()
        tokens += len(completion)
    (total / tokens).backward()
    return float(total / tokens), {name: weight.grad for name, weight in student.named_parameters()}


def assert_known(run, sequences, temperature=1.0):
    assert len({len(prompt) for prompt, _, _ in sequences}) > 1, "prompts of different lengths"
    loss, gradients = autograd(sequences, DRAWN, temperature)
    assert run.logs[0]["loss"] == pytest.approx(loss, rel=1e-4)
    assert loss > 1e-4
    for name, gradient in run.gradients[0].items():
        torch.testing.assert_close(gradient, gradients[name], rtol=1e-3, atol=2e-6)
    assert run.trainer.model.training


@pytest.mark.training
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {"gradient_checkpointing": False},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": False, "torch_compile": True, "torch_compile_backend": "eager"},
    ],
    ids=["plain", "checkpointing", "compiled"],
)
def test_distillation_has_the_gradient_of_the_student_with_the_hint(options, tmp_path, monkeypatch):
    monkeypatch.setattr(TeacherMix, "draw", lambda mix, rows: np.array(DRAWN))
    seen, rows = [], with_hints(prompts())

    class Recording(GatedDistillationTrainer):
        def _generate_and_score_completions(self, inputs):
            seen.append((inputs, super()._generate_and_score_completions(inputs)))
            return seen[-1][1]

    set_seed(1)
    args = DistillationConfig(
        str(tmp_path), use_cpu=True, bf16=False, report_to="none", logging_steps=1, save_strategy="no", max_steps=1,
        per_device_train_batch_size=4, max_completion_length=24, max_grad_norm=0.0, beta=BETA, temperature=0.8,
        **options,
    )  # fmt: skip
    made = models() | {"teacher_model": mix_of_both()}
    run = trained(Recording(args=args, train_dataset=rows, gate=Open(), denominator="keep", **made))
    inputs, generated = seen[0]
    plain = token_lists(generated["prompt_ids"], generated["prompt_mask"])
    completions = token_lists(generated["completion_ids"], generated["completion_mask"])
    hinted = [expected_prompt(made["processing_class"], row) for row in inputs]
    assert_known(run, list(zip(plain, hinted, completions, strict=True)), temperature=0.8)


@pytest.mark.training
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("lmbda", [0.0, 1.0])
def test_gkd_has_the_gradient_of_the_student_with_the_hint(lmbda, tmp_path, monkeypatch):
    monkeypatch.setattr(TeacherMix, "draw", lambda mix, rows: np.array(DRAWN))
    seen = []

    class Recording(GatedGKDTrainer):
        def compute_loss(self, model, inputs, *args, **kwargs):
            seen.append(inputs)
            return super().compute_loss(model, inputs, *args, **kwargs)

    options = {"max_steps": 1, "lmbda": lmbda, "beta": BETA}
    own = {"teacher_model": mix_of_both(), "gate": Open(), "denominator": "keep"}
    run = gkd(Recording, tmp_path, data=with_hints(dialogues()), options=options, **own)
    (batch,) = seen
    tokenizer, sequences = run.trainer.processing_class, []
    for number, dialogue in enumerate(batch[COLUMNS]["messages"]):
        row = {"prompt": dialogue[:-1], CORRECT_HINT: batch[COLUMNS][CORRECT_HINT][number]}
        plain = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        completion = batch["labels"][number][batch["labels"][number] != -100].tolist()
        sequences.append((plain, expected_prompt(tokenizer, row), completion))
    assert_known(run, sequences)


@pytest.mark.training
@pytest.mark.filterwarnings("ignore")
def test_gkd_with_a_context_that_shows_no_solutions(tmp_path):
    careful = Context("careful", write=lambda question, message, shown: f"{message}\nThink carefully.")
    mix = TeacherMix({"model": models()["teacher_model"], "careful": careful}, weights={"careful": 1.0})
    own = {"teacher_model": mix, "gate": Open(), "denominator": "keep"}
    run = gkd(GatedGKDTrainer, tmp_path, data=dialogues(), options={"max_steps": 1, "lmbda": 0.0}, **own)
    assert run.logs[0]["loss"] > 0


@pytest.mark.training
@pytest.mark.filterwarnings("ignore")
def test_a_context_is_measured_by_the_callback_and_weighted(tmp_path):
    set_seed(1)
    args = DistillationConfig(
        str(tmp_path), use_cpu=True, bf16=False, report_to="none", logging_steps=1, save_strategy="no", max_steps=1,
        per_device_train_batch_size=4, max_completion_length=72, max_grad_norm=0.0,
    )  # fmt: skip
    mix = mix_of_both()
    rows = Dataset.from_list(list(with_hints(prompts(8), without=[2])))
    own = models() | {"teacher_model": mix, "gate": Open(), "denominator": "keep"}
    trainer = GatedDistillationTrainer(args=args, train_dataset=rows, **own)
    options = {"every_n_steps": 1, "budget": TINY, "max_overhead": None, "on_error": "raise"}
    with pytest.raises(OpdAlignError, match="'Self-1C' is in the TeacherMix already"):
        AlignmentCallback(trainer, held_out(5), ARITHMETIC, teachers=["Self-1C"], **options)
    callback = AlignmentCallback(trainer, held_out(5), ARITHMETIC, **options)
    trainer.add_callback(callback)
    mix.follow(callback)
    assert sorted(callback.teachers) == ["Self-1C", "model"]
    assert callback.evaluator.distilled == ["model", "Self-1C"]
    trainer.train()
    assert len(mix.log.of("Self-1C")) == len(mix.log.of("model")) == 2
    assert mix.weights["all"].sum() == pytest.approx(1)
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert {"mix/Self-1C/all/weight", "mix/model/all/weight"} <= set(logged[0])
