"""Both vLLM backends, against a real engine and a real server: the same checks, since they promise the same."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("vllm")
pytest.importorskip("httpx")

from support.backend_contract import check_batches_do_not_matter, check_frequencies, check_sampler, check_scorer
from tiny import CONTEXT, END, PROMPT, VOCABULARY, chi_square_p, exact_completions

from opd_align.backends import server as server_module
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.backends.http_pool import HttpSettings
from opd_align.backends.server import ServerStudent, ServerTeacher
from opd_align.backends.vllm import VLLMStudent
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Sampling
from opd_align.types import Finish, OpdAlignError, Question, Rollouts, SampleRequest, ScoreRequest

# vLLM and what it loads warn about themselves; our own code is held to `error` in the other suites.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

QUESTION = Question("q")
PREFIX = (6, 12, 6, 30)
SAMPLINGS = [
    pytest.param(Sampling(max_tokens=60), id="plain"),
    pytest.param(Sampling(temperature=0.7, max_tokens=60), id="cold"),
    pytest.param(Sampling(temperature=1.6, top_p=0.8, max_tokens=60), id="hot nucleus"),
    pytest.param(Sampling(top_k=5, max_tokens=60), id="top five"),
    pytest.param(Sampling(temperature=1.3, top_p=0.9, top_k=12, max_tokens=60), id="all at once"),
]


def prompt(question):
    return PROMPT


def request(prefix=(), n=1, first=0):
    return SampleRequest(QUESTION, np.array(prefix, np.uint32), n, first)


@pytest.fixture(params=["engine", "server"])
def make(request, model):
    """From sampling settings to a student with its scorer, once for each backend."""

    def engine(sampling, **line):
        scorer = HFStudent("tiny", model, prompt, END, sampling)
        return VLLMStudent("tiny", request.getfixturevalue("llm"), prompt, END, scorer, sampling)

    def server(sampling, **line):
        scorer = HFStudent("tiny", model, prompt, END, sampling)
        url = request.getfixturevalue("running").url
        return ServerStudent(url, "tiny", prompt, END, scorer, sampling, HttpSettings(**line))

    return {"engine": engine, "server": server}[request.param]


def rows(rollouts):
    return [tuple(rollouts.completion(row).tolist()) for row in range(len(rollouts))]


def share_equal(a: Rollouts, b: Rollouts) -> float:
    assert np.array_equal(a.key_R, b.key_R)
    return float(np.mean([x == y for x, y in zip(rows(a), rows(b), strict=True)]))


def test_the_contract_of_all_backends_is_kept(make, model):
    student, prefix = make(Sampling(temperature=1.2, max_tokens=16)), np.array(PREFIX, np.uint32)
    check_sampler(student, QUESTION, prefix=prefix)
    check_batches_do_not_matter(student, QUESTION, prefix=prefix)
    check_frequencies(student, QUESTION, prefix=prefix)
    teacher = HFTeacher("told", model, lambda question: (1, 8, 8))
    check_scorer(student, QUESTION, [teacher], completion=np.array([*PREFIX, 2], np.uint32), vocabulary=VOCABULARY)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_engines_log_probs_are_those_that_hf_scores(sampling, llm, model):
    scorer = HFStudent("tiny", model, prompt, END, sampling)
    student = VLLMStudent("tiny", llm, prompt, END, scorer, sampling)
    worst, compared = 0.0, 0
    for prefix in ((), PREFIX, tuple(range(4, 32)) * 1):
        asked = request(prefix, 20)
        params = student._params(asked, student._seeds([asked])[0])
        params.logprobs = 0
        [output] = llm.generate([{"prompt_token_ids": [*PROMPT, *prefix]}], params, use_tqdm=False)
        rollouts = Rollouts.of([[*prefix, *sample.token_ids] for sample in output.outputs])
        scored = student.token_log_probs(QUESTION, rollouts, None)
        for row, sample in enumerate(output.outputs):
            theirs = [step[token].logprob for token, step in zip(sample.token_ids, sample.logprobs, strict=True)]
            ours = scored[rollouts.offsets[row] + len(prefix) : rollouts.offsets[row + 1]]
            worst, compared = max(worst, np.abs(ours - theirs).max()), compared + len(theirs)
    assert compared > 300
    print(f"largest difference of {compared} log-probabilities: {worst:.1e}")
    assert worst < 1e-3


@pytest.mark.parametrize("prefix", [(), PREFIX], ids=["depth 0", "forced prefix"])
@pytest.mark.parametrize("sampling", [SAMPLINGS[0].values[0], SAMPLINGS[4].values[0]], ids=["plain", "all at once"])
def test_frequencies_are_the_exact_probabilities(make, model, sampling, prefix):
    sampling = Sampling(sampling.temperature, sampling.top_p, sampling.top_k, max_tokens=len(prefix) + 2)
    student = make(sampling)
    result = student.sample([request(prefix, 3000), request(prefix, 1000, first=3000)])
    assert (result.launch_R == len(prefix)).all()
    expected = exact_completions(model, sampling, prefix, 2)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-4)
    observed = Counter(row[len(prefix) :] for row in rows(result))
    assert {row[: len(prefix)] for row in rows(result)} == {tuple(prefix)}
    assert all(expected.get(outcome, 0.0) > 0 for outcome in observed)
    p = chi_square_p(observed, expected)
    print(f"chi-square p-value {p:.3f} over {len(expected)} outcomes")
    assert p > 1e-3


def test_completions_end_with_an_end_token_or_at_the_limit(make):
    """The model's own end tokens (9, 11) are no business of ours; both of ours end a completion."""
    limit = 24
    student = make(Sampling(max_tokens=limit))
    asked = [request((), 60), request(PREFIX, 60), request((4,) * limit, 3)]
    result = student.sample(asked)
    assert not result.failures
    assert np.array_equal(result.key_R, np.concatenate(student.keys(asked)))
    assert result.launch_R.tolist() == [0] * 60 + [len(PREFIX)] * 60 + [limit] * 3
    ends = Counter()
    for row, completion in enumerate(rows(result)):
        inner = completion[:-1] if result.finish_R[row] == Finish.STOPPED else completion
        assert not set(inner) & set(END)
        if result.finish_R[row] == Finish.STOPPED:
            ends[completion[-1]] += 1
        else:
            assert result.finish_R[row] == Finish.TRUNCATED
            assert len(completion) == limit
    assert set(ends) == set(END)
    assert {9, 11} & {token for completion in rows(result) for token in completion[:-1]}


def test_samples_are_numbered_and_a_number_is_a_sample(make):
    student = make(Sampling(max_tokens=20))
    ten = student.sample([request(PREFIX, 10)])
    assert len(set(rows(ten))) > 2  # the tiny model often ends at once; the same sample over and over it is not
    early, late = student.sample([request(PREFIX, 5)]), student.sample([request(PREFIX, 5, first=5)])
    one_by_one = student.sample([request(PREFIX, 1, first=number) for number in range(10)])
    for again in (Rollouts.join([early, late]), one_by_one):
        assert share_equal(ten, again) == 1.0
    assert share_equal(ten, student.sample([request(PREFIX, 10)])) == 1.0
    assert not set(early.key_R.tolist()) & set(late.key_R.tolist())
    assert rows(early) != rows(late)


def test_company_does_not_change_a_request(make):
    """Seeds do not depend on the batch; what is left is rounding, which may flip a near tie."""
    student = make(Sampling(max_tokens=40))
    alone = student.sample([request(PREFIX, 20)])
    crowd = [request((4, 5, 6, 7, 8)[:depth], 15) for depth in range(6)]
    together = student.sample([*crowd, request(PREFIX, 20), *crowd[:2]])
    mine = together.take(np.isin(together.key_R, alone.key_R))
    share = share_equal(alone, mine)
    print(f"{share:.0%} of the rollouts are the same tokens in company")
    assert share >= 0.9


def test_a_prompt_that_does_not_fit_is_refused_before_sampling(make):
    with pytest.raises(
        OpdAlignError, match=rf"3 prompt tokens and up to {CONTEXT} new ones do not fit .*\({CONTEXT}\)"
    ):
        make(Sampling(max_tokens=CONTEXT)).sample([request((), 2)])
    assert len(make(Sampling(max_tokens=CONTEXT - 3)).sample([request((4,) * (CONTEXT - 5), 2)])) == 2


def test_the_scorer_is_asked_for_scores(make):
    student = make(Sampling(max_tokens=8))
    rollouts = student.sample([request((), 4)])
    assert np.array_equal(
        student.token_log_probs(QUESTION, rollouts, None), student.scorer.token_log_probs(QUESTION, rollouts, None)
    )
    with pytest.raises(OpdAlignError, match="another distribution"):
        type(student)(*([student.url, "tiny"] if hasattr(student, "url") else ["tiny", student.llm]),
                      prompt, END, student.scorer, Sampling(temperature=0.5))  # fmt: skip


def test_the_server_says_what_it_serves(running, model):
    scorer = HFStudent("tiny", model, prompt, END, Sampling())
    assert ServerStudent(running.url, "tiny", prompt, END, scorer, Sampling()).context_length == CONTEXT
    with pytest.raises(OpdAlignError, match=r"does not serve 'tinny'; it serves \['tiny'\]"):
        _ = ServerStudent(running.url, "tinny", prompt, END, scorer, Sampling()).context_length


def test_a_request_that_the_server_refuses_is_a_failure(running, model, monkeypatch):
    """A prompt beyond the context, of which a server that keeps its context to itself gives no warning."""

    async def keeps_it_to_itself(session):
        return None

    monkeypatch.setattr(server_module._Session, "context_length", keeps_it_to_itself)
    long = SampleRequest(Question("long"), np.empty(0, np.uint32), 2)
    sampling = Sampling(max_tokens=8)
    scorer = HFStudent("tiny", model, prompt, END, sampling)
    student = ServerStudent(
        running.url, "tiny", lambda question: PROMPT * (200 if question.id == "long" else 1), END, scorer, sampling
    )
    result = student.sample([request((), 3), long, request(PREFIX, 3)])
    assert len(result) == 6
    assert [failure.key for failure in result.failures] == student.keys([long])[0].tolist()
    assert all(failure.reason.startswith("HTTP 400") for failure in result.failures)
    assert all(str(CONTEXT) in failure.reason for failure in result.failures)


def test_a_token_that_the_engine_does_not_know_is_refused_before_it_dies_of_it(llm, model):
    scorer = HFStudent("tiny", model, prompt, END, Sampling(max_tokens=8))
    student = VLLMStudent("tiny", llm, prompt, END, scorer, Sampling(max_tokens=8))
    with pytest.raises(OpdAlignError, match=r"token 5000 .* vocabulary of 'tiny' \(32\)"):
        student.sample([request((), 3), request((5000,), 2)])
    assert len(student.sample([request((), 3)])) == 3


def test_a_server_killed_in_mid_run_loses_nothing(running, model):
    sampling = Sampling(max_tokens=200)
    scorer = HFStudent("tiny", model, prompt, END, sampling)
    line = HttpSettings(concurrency=6, samples_per_call=4, patience_s=240)
    student = ServerStudent(running.url, "tiny", prompt, END, scorer, sampling, line)
    asked = [request((4 + number % 28, 5 + number // 28), 12) for number in range(100)]
    untroubled = student.sample(asked)
    before, result = running.finished(), []
    asker = threading.Thread(target=lambda: result.append(student.sample(asked)))
    asker.start()
    while running.finished() - before < len(untroubled) // 4:
        time.sleep(0.02)
    made = running.finished() - before
    running.kill()
    assert asker.is_alive()
    time.sleep(2)
    running.start()
    running.wait()
    asker.join(timeout=240)
    assert len(untroubled) == 1200
    assert made < 1200
    # The new server made what the old one had not delivered; were nothing kept, it would have had to make all.
    again = running.finished()
    print(f"{made} rollouts before the kill, {again} after it")
    assert again <= 1200 - made + 2 * line.concurrency * line.samples_per_call
    assert not result[0].failures
    assert len(np.unique(result[0].key_R)) == 1200
    share = share_equal(untroubled, result[0])
    print(f"{share:.1%} of the rollouts are the same tokens as without the kill")
    assert share >= 0.9


def test_two_servers_one_of_which_is_killed(tmp_path, second_and_third):
    """Its requests go to the other one, and the run ends as if nothing had been."""
    doomed, lasting = second_and_third
    command = [
        sys.executable, "-m", "opd_align.cli", "analyze", "--backend", "server", "--limit", "1", "--initial", "300",
        "--targeted", "900", "--n-sig", "10", "--teachers", "embedded:teacher", "--batch", "300",
        "--set", "student.served_as=tiny",
    ]  # fmt: skip

    def ran(name, *servers):
        urls = ",".join(server.url for server in servers)
        return [*command, "--out", str(tmp_path / name), "--set", f"student.url={urls}"]

    with subprocess.Popen(ran("killed", doomed, lasting), stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
        while doomed.finished() < 100:
            assert run.poll() is None, run.stdout.read().decode()[-2000:]
            time.sleep(0.02)
        doomed.kill()
        made = len(list((tmp_path / "killed" / "rollouts").glob("*.parquet")))
        shown, _ = run.communicate(timeout=240)
    assert run.returncode == 0, shown.decode()[-2000:]
    assert made < 4  # of the four batches that the engine asks for
    (record,) = RunDirectory.load(tmp_path / "killed").questions.to_pylist()
    assert (record["initial"], record["targeted"], record["failed"]) == (300, 900, 0)
    done = subprocess.run(ran("untroubled", lasting), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    natural = {}
    for name in ("killed", "untroubled"):
        files = (tmp_path / name / "rollouts").glob("*.parquet")
        rows = [row for file in files for row in pq.read_table(file).to_pylist() if row["launch"] == 0]
        natural[name] = {row["key"]: row["tokens"] for row in rows}
    assert len(natural["killed"]) == 300
    assert natural["killed"].keys() == natural["untroubled"].keys()
    share = np.mean([natural["untroubled"][key] == tokens for key, tokens in natural["killed"].items()])
    print(f"{share:.1%} of the rollouts are the same tokens as without the kill")
    assert share >= 0.9


def test_the_embedded_student_is_analysed_with_vllm(tmp_path):
    command = [
        sys.executable, "-m", "opd_align.cli", "analyze", "--backend", "vllm", "--limit", "1", "--initial", "60",
        "--targeted", "200", "--n-sig", "10", "--teachers", "embedded:teacher", "--out", str(tmp_path / "run"),
        "--set", "student.dtype=float32", "--set", "student.options={max_model_len: 512, enforce_eager: true}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "report         file://" in done.stdout
    analysis = RunDirectory.load(tmp_path / "run")
    (record,) = analysis.questions.to_pylist()
    assert record["targeted"] == 200
    # The student solves its problems about half of the time; a wrong prompt or tokenizer would give nothing.
    assert 0.05 < record["pass_rate"] < 1


def test_a_teacher_behind_the_server_is_the_teacher(running, model):
    student = HFStudent("tiny", model, prompt, END, Sampling(max_tokens=40))
    asked = request(PREFIX, 3)
    rollouts = student.sample([asked])
    near, far = HFTeacher("here", model, prompt), ServerTeacher("there", running.url, "tiny", prompt)
    completion = rollouts.completion(0)
    scored = ScoreRequest(QUESTION, completion, np.empty(0, np.int64), np.empty(0, np.uint32), 0.02)
    scores = student.score(scored, [near, far])
    here, there = scores.teachers["here"], scores.teachers["there"]
    likely = here.log_t_C > np.log(0.02)
    assert likely.sum() > len(completion)
    np.testing.assert_allclose(there.log_t_C[likely], here.log_t_C[likely], atol=1e-3)
    assert (there.kl_T < 1e-2).all()
    flat = student.token_log_probs(QUESTION, rollouts, far)
    np.testing.assert_allclose(flat, student.token_log_probs(QUESTION, rollouts, near), atol=1e-3)
    assert far.context_length == CONTEXT
