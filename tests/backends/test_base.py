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
            made.append(engine_rollouts(request, key_R.tolist(), [sample] * request.n, end_tokens=self.end_tokens,
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
    request = SampleRequest(QUESTION, tokens(4), 6)
    samples = [([5, 0], "stop"), ([5, 6], "length"), ([5, 6], "stop"), ([], "stop"), ([5], "abort"), ([0], "length")]
    rollouts = engine_rollouts(request, range(6), samples, end_tokens=(0, 1), engine="the engine")
    assert rows_of(rollouts) == [(4, 5, 0), (4, 5, 6), (4, 0)]
    assert rollouts.finish_R.tolist() == [Finish.STOPPED, Finish.TRUNCATED, Finish.TRUNCATED]
    assert rollouts.key_R.tolist() == [0, 1, 5]
    assert {failure.key: failure.reason for failure in rollouts.failures} == {
        2: "the engine ended the rollout with 'stop' at token 6",
        3: "the engine ended the rollout with 'stop'",
        4: "the engine ended the rollout with 'abort'",
    }
    full = engine_rollouts(request, [1, 2], None, end_tokens=(0,), engine="the engine")
    assert rows_of(full) == [(4,), (4,)]
    assert full.finish_R.tolist() == [Finish.TRUNCATED] * 2


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
