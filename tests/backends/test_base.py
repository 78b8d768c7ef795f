"""What backends share: assembling rollouts, seeds and checks, and the registry through which a new one is one file."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from support.backend_contract import NOTHING, check_sampler, rows_of, tokens
from support.small_chat import save_model
from support.small_models import QUESTION

from opd_align.backends.base import (
    BACKENDS,
    EngineStudent,
    assemble_rollouts,
    check_fits,
    engine_rollouts,
    find_backend,
    first_seed,
    sample_problem,
    uniform_numbers,
)
from opd_align.settings import Sampling
from opd_align.study.build import Study
from opd_align.study.config import read_config
from opd_align.types import Failure, Finish, OpdAlignError, Question, SampleRequest

ENGINE = '''
"""An engine that always generates token 5 and then an end token; all that a further backend needs is in this file."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from opd_align.backends.base import Backend, EngineStudent, StudentSpec, check_prefix, engine_rollouts
from opd_align.types import Rollouts

BACKEND = Backend(__name__, adapters=False)


def build_student(spec: StudentSpec) -> "FiveStudent":
    scorer = spec.build_scorer()
    return FiveStudent("five", spec.prompt, scorer.end_tokens, scorer, spec.sampling)


@dataclass(frozen=True)
class FiveStudent(EngineStudent):
    name: str
    prompt: Any
    end_tokens: Any
    scorer: Any
    sampling: Any

    def __post_init__(self):
        self._check_settings(self.name)

    @property
    def fingerprint(self):
        parts = (self.name, self.sampling, self.scorer.fingerprint)
        return f"five-{blake2b(repr(parts).encode(), digest_size=16).hexdigest()}"

    def sample(self, requests):
        made = []
        for request, key_R in zip(requests, self.keys(requests), strict=True):
            check_prefix(request.prefix, self.end_tokens)
            sample = ([5, self.end_tokens[0]], "stop") if self.max_new_tokens(request) > 1 else ([5], "length")
            made.append(engine_rollouts(request, key_R.tolist(), [sample] * request.n,
                                        max_new_tokens=self.max_new_tokens(request), end_tokens=self.end_tokens,
                                        engine="five"))
        return Rollouts.join(made)
'''


@pytest.fixture
def engine_file(tmp_path, monkeypatch):
    """A module `five_engine`, one file outside the package, on the import path."""
    (tmp_path / "five_engine.py").write_text(ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "five_engine"
    sys.modules.pop("five_engine", None)


def test_a_backend_in_one_file_is_used_by_name_from_a_configuration(engine_file, tmp_path):
    overrides = [f"student={save_model(tmp_path / 'model')}", f"student.backend={engine_file}", "questions.limit=1"]
    study = Study(read_config(None, [*overrides, "sampling.max_tokens=8"]))
    study.check()
    student = study.student
    assert type(student).__module__ == engine_file
    (question,) = study.questions
    rollouts = student.sample([SampleRequest(question, NOTHING, 3)])
    assert rows_of(rollouts) == [(5, student.end_tokens[0])] * 3
    check_sampler(student, question, prefix=tokens(5, 6))
    assert np.isfinite(student.token_log_probs(question, rollouts, None)).all()
    with pytest.raises(OpdAlignError, match=r"backend five_engine would sample without the adapter"):
        read_config(None, [*overrides, "student.adapter=x"])


@pytest.mark.parametrize("name", BACKENDS)
def test_built_in_backends_have_the_functions_that_the_registry_calls(name):
    from importlib import import_module

    module = import_module(find_backend(name).module)
    assert callable(module.build_student)
    assert hasattr(module, "build_teacher") == find_backend(name).remote


@pytest.mark.parametrize("name", ["vlm", "json", "no.such.module", "os.path", "", "a b", ".hf"])
def test_an_unknown_backend_is_reported_with_the_known_ones(name):
    with pytest.raises(OpdAlignError, match=r"unknown backend .* There are: hf, vllm, server"):
        find_backend(name)


def test_looking_up_a_built_in_backend_does_not_import_it():
    import subprocess

    code = (
        "import sys; from opd_align.study.config import read_config; "
        "read_config(None, ['student.backend=vllm']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_rollouts_are_prefix_and_new_tokens():
    failure = Failure(9, "lost")
    rollouts = assemble_rollouts(
        [tokens(1, 2), NOTHING],
        [[3], [4, 5]],
        key=[7, 8],
        finish=[Finish.TRUNCATED, Finish.STOPPED],
        failures=[failure],
    )
    assert rows_of(rollouts) == [(1, 2, 3), (4, 5)]
    assert rollouts.launch_R.tolist() == [2, 0]
    assert rollouts.key_R.tolist() == [7, 8]
    assert rollouts.finish_R.tolist() == [Finish.TRUNCATED, Finish.STOPPED]
    assert rollouts.failures == (failure,)
    assert len(assemble_rollouts([], [], key=[], finish=[])) == 0


def test_finish_reasons_of_an_engine_become_finish_flags_or_failures():
    request = SampleRequest(QUESTION, tokens(4), 5)
    samples = [([5, 0], "stop"), ([5, 6], "length"), ([5, 6], "stop"), ([], "stop"), ([5], "abort")]
    settings = {"max_new_tokens": 2, "end_tokens": (0, 1), "engine": "the engine"}
    rollouts = engine_rollouts(request, range(5), samples, **settings)
    assert rows_of(rollouts) == [(4, 5, 0), (4, 5, 6)]
    assert rollouts.finish_R.tolist() == [Finish.STOPPED, Finish.TRUNCATED]
    assert rollouts.key_R.tolist() == [0, 1]
    assert {failure.key: failure.reason for failure in rollouts.failures} == {
        2: "the engine ended the rollout with 'stop' at token 6",
        3: "the engine ended the rollout with 'stop'",
        4: "the engine ended the rollout with 'abort'",
    }
    full = engine_rollouts(request, [1, 2], None, **settings)
    assert rows_of(full) == [(4,), (4,)]
    assert full.finish_R.tolist() == [Finish.TRUNCATED] * 2


@pytest.mark.parametrize(
    ("new_tokens", "reason", "problem"),
    [
        ([5, 6, 7], "length", None),
        ([5, 0], "stop", None),
        ([1], "stop", None),
        ([5, 0, 6], "length", "returned the end-of-sequence token 0 inside a rollout"),
        ([5, 6, 0], "length", "returned the end-of-sequence token 0 inside a rollout"),
        ([1, 0], "stop", "returned the end-of-sequence token 1 inside a rollout"),
        ([5, 6, 7, 0], "stop", "returned 4 tokens, more than max_tokens (3)"),
        ([5] * 9, "length", "returned 9 tokens, more than max_tokens (3)"),
        ([5, 6], "length", "ended the rollout with 'length' after 2 tokens, before max_tokens (3)"),
        ([], "length", "ended the rollout with 'length' after 0 tokens"),
        ([5, 10, 0], "stop", "returned token 10, which is outside the vocabulary (10)"),
        ([5, -1, 0], "stop", "returned token -1, which is outside the vocabulary (10)"),
        ([5, 2**70, 0], "stop", "returned token 1180591620717411303424, which is outside"),
        ([5, 6.0, 0], "stop", "returned 6.0 as a token id"),
        ([5, True, 0], "stop", "returned True as a token id"),
        ([5, None, 0], "stop", "returned None as a token id"),
        ([5, "6", 0], "stop", "returned '6' as a token id"),
        ([5, [6], 0], "stop", "returned [6] as a token id"),
        ([[[[[[[[[]]]]]]]], 0], "stop", "as a token id"),
        ("50", "stop", "returned '50' in place of a list of token ids"),
        (None, "stop", "returned None in place of a list of token ids"),
        ([5, 6, 7], None, "ended the rollout with None"),
        ([5, 6, 7], {"a": "\x1b[2J"}, "ended the rollout with {'a': '\\x1b[2J'}"),
    ],
)
def test_samples_that_were_not_requested_are_described(new_tokens, reason, problem):
    found = sample_problem(new_tokens, reason, max_new_tokens=3, end_tokens=(0, 1), vocabulary=10)
    assert found == problem if problem is None else problem in found


def test_without_a_known_vocabulary_token_ids_must_fit_into_32_bits():
    settings = {"max_new_tokens": 1, "end_tokens": (0,), "vocabulary": None}
    assert sample_problem([2**32 - 1], "length", **settings) is None
    assert "outside the vocabulary (4294967296)" in sample_problem([2**32], "length", **settings)


def test_a_sample_has_the_same_seed_however_it_is_requested():
    request = SampleRequest(QUESTION, tokens(4), 10)
    seed = first_seed(request, "f", [1, 2])
    assert 0 <= seed < 2**62
    assert first_seed(replace(request, n=3, first=7), "f", [1, 2]) == seed + 7
    others = [
        first_seed(request, "g", [1, 2]),
        first_seed(request, "f", [1, 3]),
        first_seed(replace(request, prefix=tokens(5)), "f", [1, 2]),
        first_seed(replace(request, question=Question("other")), "f", [1, 2]),
    ]
    assert len({seed, *others}) == 5


def test_uniform_numbers_depend_on_key_and_position_only():
    key_B, position_B = np.arange(20_000, dtype=np.uint64), np.zeros(20_000, np.int64)
    drawn_B = uniform_numbers(key_B, position_B)
    assert ((drawn_B >= 0) & (drawn_B < 1)).all()
    assert abs(drawn_B.mean() - 0.5) < 0.01
    np.testing.assert_array_equal(uniform_numbers(key_B[7:8], position_B[:1]), drawn_B[7:8])
    assert (uniform_numbers(key_B, position_B + 1) != drawn_B).all()


def test_a_prompt_that_does_not_fit_is_reported():
    check_fits(QUESTION, [1, 2], 5, 7, "'m'")
    check_fits(QUESTION, [1, 2], 5, None, "'m'")
    with pytest.raises(OpdAlignError, match=r"'q': 2 prompt tokens and up to 5 new ones do not fit .* 'm' \(6\)"):
        check_fits(QUESTION, [1, 2], 5, 6, "'m'")


@dataclass(frozen=True)
class Engine(EngineStudent):
    scorer: object
    sampling: Sampling = field(default_factory=Sampling)
    end_tokens: tuple[int, ...] = (0,)
    fingerprint = "engine"

    def sample(self, requests):
        raise NotImplementedError


def test_scorer_and_engine_must_have_the_same_settings():
    Engine(Engine(None))._check_settings("m")
    Engine(None)._check_settings("m", min_temperature=1.0)
    for scorer in (Engine(None, Sampling(temperature=0.5)), Engine(None, end_tokens=(0, 1))):
        with pytest.raises(OpdAlignError, match="another distribution"):
            Engine(scorer)._check_settings("m")
    with pytest.raises(OpdAlignError, match=r"at temperature 1\.5 or above, not 1\.0"):
        Engine(None)._check_settings("m", min_temperature=1.5)
