"""The contract that every backend must meet, on small students; the checks are in `support.backend_contract`.

tests/with_vllm runs the same checks on vLLM's engine and server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support import backend_contract as contract
from support.small_models import END, QUESTION, llama, qwen3

from opd_align.backends.exact import ExactWorld
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.settings import Sampling
from opd_align.types import Question


@dataclass(frozen=True)
class Case:
    student: Any
    question: Question
    teachers: Any
    vocabulary: int
    prefix: Any


def exact_case() -> Case:
    world = ExactWorld.random(3, length=8, vocabulary=6)
    prefix = world.sample([contract.SampleRequest(QUESTION, contract.NOTHING, 1)]).completion(0)[:2]
    return Case(world, QUESTION, [world.tilted_teacher()], 6, prefix)


def hf_case(**sampling: Any) -> Case:
    student = HFStudent("tiny", qwen3(), lambda question: [1, 2, 3], END, Sampling(**({"max_tokens": 12} | sampling)))
    teachers = [
        HFTeacher("context", student.model, lambda question: [1, 2, 3, 4, 5]),
        HFTeacher("other", llama(seed=5), lambda question: [2]),
    ]
    return Case(student, QUESTION, teachers, 6, contract.tokens(2, 5))


CASES = {
    "exact": exact_case,
    "hf": hf_case,
    "hf-temperature": lambda: hf_case(temperature=0.6),
    "hf-top-k-p": lambda: hf_case(temperature=1.3, top_k=4, top_p=0.85),
}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    torch.set_num_threads(1)
    return CASES[request.param]()


def test_rollouts_carry_launch_keys_and_finish(case):
    contract.check_sampler(case.student, case.question, prefix=case.prefix)


def test_a_rollout_does_not_depend_on_its_batch(case):
    contract.check_batches_do_not_matter(case.student, case.question, prefix=case.prefix)


def test_token_frequencies_match_the_scorer(case):
    contract.check_frequencies(case.student, case.question, prefix=case.prefix)


def test_scores_are_distributions(case):
    teachers = case.teachers
    completion = np.append(case.prefix, case.student.end_tokens[0]).astype(np.uint32)
    contract.check_scorer(case.student, case.question, teachers, completion=completion, vocabulary=case.vocabulary)


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 3}])
def test_completion_frequencies_match_the_scorer(settings):
    student = hf_case(max_tokens=3, **settings).student
    contract.check_whole_completions(student, QUESTION, vocabulary=6, limit=3)
