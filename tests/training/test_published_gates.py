"""Gates from the literature: known answers by hand, and the slow twin of each."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opd_align.backends.loading import load_model
from opd_align.tasks import task
from opd_align.training.chunked_divergence import KernelCall
from opd_align.training.contrast import (
    CORRECT_HINT,
    WRONG_HINT,
    ContrastiveContexts,
    contrast,
    hinted_messages,
    sample_hints,
)
from opd_align.training.gates import GateBatch, SignAgrees, compute_weights, concatenate_batches
from opd_align.training.measures import TEACHER_MASS, measure_logits
from opd_align.training.published_gates import NAMED, EntropyDivergence, FirstPart, Teachable, named_gate
from opd_align.types import OVERLAP_TOP_K, OpdAlignError, Outcome

NOT_A_TOKEN = 7.0


def verifier(prompts, completions, **columns):
    return [1.0] * len(completions)


def a_batch(**measures):
    """Two completions of 4 and 3 tokens."""
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    values = {name: torch.tensor(rows) for name, rows in measures.items()}
    outcomes = torch.tensor([Outcome.CORRECT, Outcome.INCORRECT])
    return GateBatch(torch.arange(8).view(2, 4), mask, outcomes, values.__getitem__)


# -- teachability


def test_teachability_is_divergence_within_the_reach_of_the_student():
    """The first token diverges most, but toward tokens that the student does not consider."""
    kl = [[9.0, 2.0, 1.0, 0.5], [1.0, 3.0, 0.0, NOT_A_TOKEN]]
    mass = [[0.1, 0.9, 1.0, 1.0], [0.5, 0.9, 1.0, NOT_A_TOKEN]]  # products 0.9 1.8 1 0.5, 0.5 2.7 0
    batch = a_batch(kl=kl, teacher_mass=mass)
    assert compute_weights(Teachable(1.0), batch).tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]
    assert compute_weights(Teachable(0.5), batch).tolist() == [[1, 1, 1, 0], [0, 1, 0, 0]]
    assert compute_weights(Teachable(0.0), batch).sum() == 7


def test_the_teachers_mass_on_the_students_most_likely_tokens():
    """The student's order is that of the tokens: its 16 most likely ones are the first 16."""
    student = -torch.arange(20.0).expand(2, 20)
    teacher = torch.zeros(2, 20)
    teacher[1, 19] = math.log(21)  # 40 in all, of which 21 on the student's least likely token
    mass = measure_logits(TEACHER_MASS, student, teacher, torch.tensor([0, 0]))
    torch.testing.assert_close(mass, torch.tensor([16 / 20, 16 / 40]))


@pytest.mark.parametrize("rows", [2, 300, 600])
def test_the_mass_from_hidden_states_equals_that_from_a_loop_over_tokens(rows):
    """More tokens than fit one chunk of logits."""
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(rows, 8, generator=generator), torch.randn(rows, 5, generator=generator)]
    heads = [torch.randn(40, 8, generator=generator), torch.randn(40, 5, generator=generator)]
    tokens = torch.zeros(2, rows // 2).long()
    call = KernelCall((states[0], heads[0], None, states[1], heads[1], None, 0.5, 0.7, 1.3, None, 1.0, 5.0),
                      GateBatch(tokens, tokens == 0))  # fmt: skip
    student = (states[0].double() @ heads[0].double().T * 1.3 / 0.7).numpy()
    teacher = 5.0 * np.tanh((states[1].double() @ heads[1].double().T).numpy() / 5.0) / 0.7
    expected = []
    for own, other in zip(student, teacher, strict=True):
        top = sorted(range(40), key=lambda k, own=own: -own[k])[:OVERLAP_TOP_K]
        t = np.exp(other - other.max())
        expected.append(sum(t[k] for k in top) / t.sum())
    found = call.measure(TEACHER_MASS)
    assert found.shape == tokens.shape
    torch.testing.assert_close(found.reshape(-1).double(), torch.tensor(expected), atol=1e-5, rtol=1e-4)


# -- entropy and divergence


ENTROPY = [[0.1, 0.2, 2.0, 3.0], [0.1, 0.3, 1.0, NOT_A_TOKEN]]
KL = [[5.0, 0.0, 5.0, 0.0], [0.0, 4.0, 6.0, NOT_A_TOKEN]]


def test_where_the_student_is_sure_and_the_teacher_disagrees():
    """Median entropy 0.3, median divergence 4."""
    batch = a_batch(student_entropy=ENTROPY, kl=KL)
    assert compute_weights(EntropyDivergence(), batch).tolist() == [[1, 0, 0, 0], [0, 1, 0, 0]]
    both = compute_weights(EntropyDivergence(high_entropy=True), batch)
    assert both.tolist() == [[1, 0, 1, 1], [0, 1, 1, 0]]
    assert compute_weights(EntropyDivergence(1.0, 0.0), batch).sum() == 7


def test_quadrants_are_over_all_processes():
    batch = a_batch(student_entropy=ENTROPY, kl=KL)
    others = replace(batch, gather=lambda local: torch.cat([local, torch.full((93,), 0.05)]))
    assert compute_weights(EntropyDivergence(), others).sum() == 0  # the median entropy is 0.05


@given(seed=st.integers(0, 1000), low=st.floats(0, 1), high=st.floats(0, 1), more=st.booleans())
def test_the_quadrants_equal_a_loop_over_tokens(seed, low, high, more):
    rng = np.random.default_rng(seed)
    entropy, kl, mask = rng.random((3, 5)), rng.random((3, 5)), rng.random((3, 5)) < 0.7
    measures = {"student_entropy": torch.tensor(entropy), "kl": torch.tensor(kl)}
    batch = GateBatch(torch.zeros(3, 5), torch.tensor(mask), None, measures.__getitem__)
    found = compute_weights(EntropyDivergence(low, high, more), batch).numpy()
    if not mask.any():
        assert not found.any()
        return
    limits = [np.quantile(values[mask], at, method="higher") for values, at in ((entropy, low), (kl, high))]
    for row in range(3):
        for column in range(5):
            sure = entropy[row, column] <= limits[0]
            kept = kl[row, column] >= limits[1] if sure else more
            assert found[row, column] == float(mask[row, column] and kept)


# -- the first part


@pytest.mark.parametrize(
    ("share", "first", "second"),
    [(1 / 3, [1, 1, 0, 0], [1, 0, 0, 0]), (0.5, [1, 1, 0, 0], [1, 1, 0, 0]), (1.0, [1, 1, 1, 1], [1, 1, 1, 0])],
)
def test_the_first_part_of_each_completion(share, first, second):
    """Of 4 and 3 tokens."""
    assert compute_weights(FirstPart(share), a_batch()).tolist() == [first, second]


def test_tokens_without_a_loss_do_not_count():
    mask = torch.tensor([[0, 1, 0, 1, 1, 0]]).bool()
    batch = GateBatch(torch.zeros(1, 6), mask)
    assert compute_weights(FirstPart(), batch).tolist() == [[0, 1, 0, 0, 0, 0]]
    assert compute_weights(FirstPart(0.4), batch).tolist() == [[0, 1, 0, 1, 0, 0]]
    assert compute_weights(FirstPart(), GateBatch(torch.zeros(1, 2), torch.zeros(1, 2).bool())).sum() == 0


# -- signs


def test_tokens_on_which_teacher_and_outcome_disagree_may_keep_a_part():
    log_p = [[-2.0] * 4] * 2
    log_t = [[-1.0, -3.0, -2.0, -1.0], [-1.0, -3.0, -4.0, -2.0]]
    batch = a_batch(student_log_prob=log_p, teacher_log_prob=log_t)
    gate = SignAgrees(verifier, unknown="drop", disagree_weight=0.25)
    assert compute_weights(gate, batch).tolist() == [[1, 0.25, 1, 1], [0.25, 1, 1, 0]]
    assert gate.name == "sign_agrees+0.25disagree"
    unknown = replace(batch, outcome_B=torch.tensor([Outcome.UNKNOWN, Outcome.INCORRECT]))
    assert compute_weights(gate, unknown).tolist() == [[0, 0, 0, 0], [0.25, 1, 1, 0]]


# -- contrastive contexts


def test_the_largest_contrasts_are_kept_of_either_sign():
    scores = torch.tensor([[0.1, -3.0, 0.2, 2.0], [math.nan, math.nan, math.nan, 0.0]])
    batch = replace(a_batch(), score_BT=scores)
    assert compute_weights(ContrastiveContexts(0.6, unknown="drop"), batch).tolist() == [[0, 1, 0, 1], [0, 0, 0, 0]]
    assert compute_weights(ContrastiveContexts(1.0, unknown="keep"), batch).tolist() == [[0, 1, 0, 0], [1, 1, 1, 0]]
    whole = concatenate_batches([batch, batch], [])
    assert compute_weights(ContrastiveContexts(0.0, unknown="drop"), whole).sum() == 8
    with pytest.raises(OpdAlignError, match="needs a trainer"):
        compute_weights(ContrastiveContexts(unknown="drop"), a_batch())


def a_trainer():
    student = load_model("embedded:student")
    return SimpleNamespace(
        model_wrapped=student.model, processing_class=student.tokenizer, temperature=0.5, chat_template_kwargs=None,
        compute_loss_context_manager=torch.no_grad, args=None,
    )  # fmt: skip


def test_the_contrast_is_that_of_two_whole_prompts():
    """The slow twin: full logits of prompt and completion, one hint at a time."""
    trainer, arithmetic = a_trainer(), task("arithmetic")
    tokenizer, model = trainer.processing_class, trainer.model_wrapped
    questions = arithmetic.load(split="train", limit=3)
    prompts = [[*arithmetic.messages(question)] for question in questions]
    replies = ["First, 3 × 4 = 12.", "Answer: 12", "Answer: 7"]
    completions = [tokenizer(reply, add_special_tokens=False)["input_ids"] for reply in replies]
    columns = {CORRECT_HINT: ["3 × 4 = 12. Answer: 12"] * 2 + [None], WRONG_HINT: ["3 + 4 = 7. Answer: 7"] * 3}
    found = contrast(trainer, prompts, completions, columns)
    assert all(math.isnan(value) for value in found[2])
    assert len(found[2]) == len(completions[2])
    for row in range(2):
        sides = []
        for hint in (columns[CORRECT_HINT][row], columns[WRONG_HINT][row]):
            messages = hinted_messages(prompts[row], hint)
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            assert hint in text
            prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                log = (model(torch.tensor([[*prompt, *completions[row]]])).logits[0] / 0.5).log_softmax(-1)
            sides.append([float(log[len(prompt) - 1 + at, token]) for at, token in enumerate(completions[row])])
        np.testing.assert_allclose(found[row], np.subtract(*sides), atol=1e-4)
    assert max(abs(value) for value in found[0] + found[1]) > 0.5
    assert "hint" not in str(prompts)


def test_missing_columns_and_plain_prompts_are_refused():
    trainer = a_trainer()
    with pytest.raises(OpdAlignError, match="column 'wrong_hint'"):
        contrast(trainer, [[]], [[1]], {CORRECT_HINT: ["12"]})
    with pytest.raises(OpdAlignError, match="conversations as prompts"):
        contrast(trainer, ["Solve 3 × 4."], [[1]], {CORRECT_HINT: ["12"], WRONG_HINT: ["7"]})


def test_the_student_writes_correct_and_wrong_hints():
    student, arithmetic = load_model("embedded:student"), task("arithmetic")
    questions = arithmetic.load(split="train", limit=4)
    hints = sample_hints(student.model, student.tokenizer, arithmetic, questions, max_tokens=96, max_trials=28)
    assert list(hints) == [question.id for question in questions]
    values = {CORRECT_HINT: 1, WRONG_HINT: 0}
    seen = 0
    for question in questions:
        for column, value in values.items():
            text = hints[question.id][column]
            if text is not None:
                seen += 1
                assert arithmetic.verifier(completions=[text], answer=[question.answer]) == [value]
    assert seen >= 4


def test_hints_are_written_with_the_template_arguments_of_the_training():
    student, arithmetic = load_model("embedded:student"), task("arithmetic")
    needs = "{%- if not thinking_is_off -%}{{ raise_exception('thinking') }}{%- endif -%}"
    student.tokenizer.chat_template = needs + student.tokenizer.chat_template
    given = (student.model, student.tokenizer, arithmetic, arithmetic.load(split="train", limit=1))
    with pytest.raises(OpdAlignError, match="cannot be rendered: thinking"):
        sample_hints(*given, max_tokens=2, max_trials=1)
    assert sample_hints(*given, max_tokens=2, max_trials=1, template={"thinking_is_off": True})


# -- by name


def test_gates_have_names_for_recipes():
    for name in NAMED:
        assert named_gate(name, verifier, unknown="keep").name
    both = named_gate("incorrect_only*first_part", verifier, unknown="drop")
    assert both.name == "incorrect_only*first_0.333"
    with pytest.raises(OpdAlignError, match="did you mean 'teachable'"):
        named_gate("teachible", verifier, unknown="keep")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Teachable(1.5), r"quantile must be in \[0, 1\]"),
        (lambda: EntropyDivergence(-1.0), "entropy_quantile"),
        (lambda: EntropyDivergence(0.5, 2.0), "divergence_quantile"),
        (lambda: FirstPart(0.0), "above 0"),
        (lambda: SignAgrees(verifier, unknown="keep", disagree_weight=-0.1), "disagree_weight must be 0 or more"),
        (lambda: ContrastiveContexts(unknown="maybe"), "'keep' or 'drop'"),
        (lambda: ContrastiveContexts(unknown="keep") * ContrastiveContexts(0.1, unknown="keep"), "have a scorer"),
    ],
)
def test_invalid_gates_are_refused(make, complaint):
    with pytest.raises(OpdAlignError, match=complaint):
        make()
