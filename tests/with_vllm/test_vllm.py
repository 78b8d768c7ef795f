"""Both vLLM backends, on a real engine and a real server: the same checks for both."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("vllm", reason="vLLM is not installed; `make test-vllm` installs it")
pytest.importorskip("httpx")

from support.backend_contract import check_batches_do_not_matter, check_frequencies, check_sampler, check_scorer
from tiny import CONTEXT, END, PROMPT, VOCABULARY, chi_square_p, exact_completions

from opd_align.backends import server as server_module
from opd_align.backends.base import first_seed
from opd_align.backends.hf import HFStudent, HFTeacher
from opd_align.backends.http_pool import HttpSettings
from opd_align.backends.server import ServerStudent, ServerTeacher
from opd_align.backends.vllm import VLLMStudent
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Sampling
from opd_align.types import Finish, OpdAlignError, Question, Rollouts, SampleRequest, ScoreRequest

# vLLM and its dependencies emit warnings; the other suites turn warnings of our own code into errors.
pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default")]

QUESTION = Question("q")
PREFIX = (6, 12, 6, 30)
SAMPLINGS = [
    pytest.param(Sampling(max_tokens=60), id="plain"),
    pytest.param(Sampling(temperature=0.7, max_tokens=60), id="temperature 0.7"),
    pytest.param(Sampling(temperature=1.6, top_p=0.8, max_tokens=60), id="temperature 1.6, top-p"),
    pytest.param(Sampling(top_k=5, max_tokens=60), id="top-k"),
    pytest.param(Sampling(temperature=1.3, top_p=0.9, top_k=12, max_tokens=60), id="all settings"),
]


def prompt(question):
    return PROMPT


def request(prefix=(), n=1, first=0):
    return SampleRequest(QUESTION, np.array(prefix, np.uint32), n, first)


@pytest.fixture(params=["engine", "server"])
def make(request, model):
    """From sampling settings to a student with its scorer, for each backend."""

    def engine(sampling, **http):
        scorer = HFStudent("tiny", model, prompt, END, sampling)
        return VLLMStudent("tiny", request.getfixturevalue("llm"), prompt, END, scorer, sampling)

    def server(sampling, **http):
        scorer = HFStudent("tiny", model, prompt, END, sampling)
        url = request.getfixturevalue("running").url
        return ServerStudent(url, "tiny", prompt, END, scorer, sampling, HttpSettings(**http))

    return {"engine": engine, "server": server}[request.param]


def rows(rollouts):
    return [tuple(rollouts.completion(row).tolist()) for row in range(len(rollouts))]


def share_equal(a: Rollouts, b: Rollouts) -> float:
    assert np.array_equal(a.key_R, b.key_R)
    return float(np.mean([x == y for x, y in zip(rows(a), rows(b), strict=True)]))


def test_the_backend_contract_is_met(make, model):
    student, prefix = make(Sampling(temperature=1.2, max_tokens=16)), np.array(PREFIX, np.uint32)
    check_sampler(student, QUESTION, prefix=prefix)
    check_batches_do_not_matter(student, QUESTION, prefix=prefix)
    check_frequencies(student, QUESTION, prefix=prefix)
    teacher = HFTeacher("context", model, lambda question: (1, 8, 8))
    check_scorer(student, QUESTION, [teacher], completion=np.array([*PREFIX, 2], np.uint32), vocabulary=VOCABULARY)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_engines_log_probs_match_the_hf_scores(sampling, llm, model):
    scorer = HFStudent("tiny", model, prompt, END, sampling)
    student = VLLMStudent("tiny", llm, prompt, END, scorer, sampling)
    worst, compared = 0.0, 0
    for prefix in ((), PREFIX, tuple(range(4, 32)) * 1):
        sample_request = request(prefix, 20)
        params = student._params(sample_request, first_seed(sample_request, student.fingerprint, PROMPT))
        params.logprobs = 0
        [output] = llm.generate([{"prompt_token_ids": [*PROMPT, *prefix]}], params, use_tqdm=False)
        rollouts = Rollouts.of([[*prefix, *sample.token_ids] for sample in output.outputs])
        scored = student.token_log_probs(QUESTION, rollouts, None)
        for row, sample in enumerate(output.outputs):
            engine_log_p = [step[token].logprob for token, step in zip(sample.token_ids, sample.logprobs, strict=True)]
            hf_log_p = scored[rollouts.offsets[row] + len(prefix) : rollouts.offsets[row + 1]]
            worst, compared = max(worst, np.abs(hf_log_p - engine_log_p).max()), compared + len(engine_log_p)
    assert compared > 300
    print(f"largest difference of {compared} log-probabilities: {worst:.1e}")
    assert worst < 1e-3


@pytest.mark.parametrize("prefix", [(), PREFIX], ids=["depth 0", "forced prefix"])
@pytest.mark.parametrize("sampling", [SAMPLINGS[0].values[0], SAMPLINGS[4].values[0]], ids=["plain", "all settings"])
def test_frequencies_match_the_exact_probabilities(make, model, sampling, prefix):
    sampling = Sampling(sampling.temperature, sampling.top_p, sampling.top_k, max_tokens=len(prefix) + 2)
    student = make(sampling)
    expected = exact_completions(model, sampling, prefix, 2)
    assert sum(expected.values()) == pytest.approx(1, abs=1e-4)

    def p_value(first):
        result = student.sample([request(prefix, 3000, first=first), request(prefix, 1000, first=first + 3000)])
        assert (result.launch_R == len(prefix)).all()
        observed = Counter(row[len(prefix) :] for row in rows(result))
        assert {row[: len(prefix)] for row in rows(result)} == {tuple(prefix)}
        assert all(expected.get(outcome, 0.0) > 0 for outcome in observed)
        p = chi_square_p(observed, expected)
        print(f"chi-square p-value {p:.3f} over {len(expected)} outcomes")
        return p

    # Every run has other seeds (they depend on where the model is), so one test in a thousand is below by chance. A
    # second sample that has nothing to do with the first is not.
    assert p_value(0) > 1e-3 or p_value(4000) > 1e-3


def test_completions_end_with_an_end_token_or_at_the_limit(make):
    """Both of our end tokens end a completion; those of the model's generation config (9, 11) do not."""
    limit = 24
    student = make(Sampling(max_tokens=limit))
    requests = [request((), 60), request(PREFIX, 60), request((4,) * limit, 3)]
    result = student.sample(requests)
    assert not result.failures
    assert np.array_equal(result.key_R, np.concatenate(student.keys(requests)))
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


def test_a_sample_depends_on_its_number_only(make):
    student = make(Sampling(max_tokens=20))
    forty = student.sample([request(PREFIX, 40)])
    # The tiny model ends at once in half of the samples. All 40 are alike by chance less than once in 10¹⁰ runs.
    assert len(set(rows(forty))) > 2
    early, late = student.sample([request(PREFIX, 20)]), student.sample([request(PREFIX, 20, first=20)])
    one_by_one = student.sample([request(PREFIX, 1, first=number) for number in range(40)])
    for again in (Rollouts.join([early, late]), one_by_one, student.sample([request(PREFIX, 40)])):
        assert share_equal(forty, again) >= 0.95  # in another batch, rounding may flip a near tie
    assert not set(early.key_R.tolist()) & set(late.key_R.tolist())
    assert rows(early) != rows(late)


def test_other_requests_in_the_batch_do_not_change_a_request(make):
    """Seeds do not depend on the batch; rounding may still flip a near tie."""
    student = make(Sampling(max_tokens=40))
    alone = student.sample([request(PREFIX, 20)])
    others = [request((4, 5, 6, 7, 8)[:depth], 15) for depth in range(6)]
    batch = student.sample([*others, request(PREFIX, 20), *others[:2]])
    batched = batch.take(np.isin(batch.key_R, alone.key_R))
    share = share_equal(alone, batched)
    print(f"{share:.0%} of the rollouts have the same tokens in a larger batch")
    assert share >= 0.9


def test_a_prompt_that_does_not_fit_is_rejected_before_sampling(make):
    with pytest.raises(
        OpdAlignError, match=rf"3 prompt tokens and up to {CONTEXT} new ones do not fit .*\({CONTEXT}\)"
    ):
        make(Sampling(max_tokens=CONTEXT)).sample([request((), 2)])
    assert len(make(Sampling(max_tokens=CONTEXT - 3)).sample([request((4,) * (CONTEXT - 5), 2)])) == 2


def test_scores_come_from_the_scorer(make):
    student = make(Sampling(max_tokens=8))
    rollouts = student.sample([request((), 4)])
    assert np.array_equal(
        student.token_log_probs(QUESTION, rollouts, None), student.scorer.token_log_probs(QUESTION, rollouts, None)
    )
    with pytest.raises(OpdAlignError, match="another distribution"):
        type(student)(*([student.url, "tiny"] if hasattr(student, "url") else ["tiny", student.llm]),
                      prompt, END, student.scorer, Sampling(temperature=0.5))  # fmt: skip


def test_model_name_and_context_are_checked_with_the_server(running, model):
    scorer = HFStudent("tiny", model, prompt, END, Sampling())
    assert ServerStudent(running.url, "tiny", prompt, END, scorer, Sampling()).context_length == CONTEXT
    with pytest.raises(OpdAlignError, match=r"does not serve 'tinny'; it serves \['tiny'\]"):
        _ = ServerStudent(running.url, "tinny", prompt, END, scorer, Sampling()).context_length


def test_a_request_that_the_server_rejects_is_a_failure(running, model, monkeypatch):
    """A prompt longer than the context of a server that does not report its context length."""

    async def not_reported(client):
        return None

    monkeypatch.setattr(server_module._Client, "context_length", not_reported)
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


def test_a_token_outside_the_vocabulary_is_rejected_before_it_kills_the_engine(llm, model):
    scorer = HFStudent("tiny", model, prompt, END, Sampling(max_tokens=8))
    student = VLLMStudent("tiny", llm, prompt, END, scorer, Sampling(max_tokens=8))
    with pytest.raises(OpdAlignError, match=r"token 5000 .* vocabulary of 'tiny' \(32\)"):
        student.sample([request((), 3), request((5000,), 2)])
    assert len(student.sample([request((), 3)])) == 3


def test_no_rollouts_are_lost_when_the_server_is_killed(running, model):
    sampling = Sampling(max_tokens=200)
    scorer = HFStudent("tiny", model, prompt, END, sampling)
    http = HttpSettings(concurrency=6, samples_per_call=4, patience_s=240)
    student = ServerStudent(running.url, "tiny", prompt, END, scorer, sampling, http)
    requests = [request((4 + number % 28, 5 + number // 28), 12) for number in range(100)]
    expected = student.sample(requests)
    before, result = running.finished(), []
    thread = threading.Thread(target=lambda: result.append(student.sample(requests)))
    thread.start()
    while running.finished() - before < len(expected) // 4:
        time.sleep(0.02)
    made = running.finished() - before
    running.kill()
    assert thread.is_alive()
    time.sleep(2)
    running.start()
    running.wait()
    thread.join(timeout=240)
    assert len(expected) == 1200
    assert made < 1200
    # The new server samples only what the old one had not returned.
    again = running.finished()
    print(f"{made} rollouts before the kill, {again} after it")
    assert again <= 1200 - made + 2 * http.concurrency * http.samples_per_call
    assert not result[0].failures
    assert len(np.unique(result[0].key_R)) == 1200
    share = share_equal(expected, result[0])
    print(f"{share:.1%} of the rollouts have the same tokens as without the kill")
    assert share >= 0.9


def test_a_run_survives_the_loss_of_one_of_two_servers(tmp_path, embedded_servers):
    """Its requests go to the other server, and the result is that of an undisturbed run."""
    killed, surviving = embedded_servers
    command = [
        sys.executable, "-m", "opd_align.cli", "analyze", "--backend", "server", "--limit", "1", "--initial", "300",
        "--targeted", "900", "--n-sig", "10", "--teachers", "embedded:teacher", "--batch", "300",
        "--set", "student.served_as=tiny",
    ]  # fmt: skip

    def command_for(name, *servers):
        urls = ",".join(server.url for server in servers)
        return [*command, "--out", str(tmp_path / name), "--set", f"student.url={urls}"]

    with subprocess.Popen(
        command_for("killed", killed, surviving), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as run:
        while killed.finished() < 100:
            assert run.poll() is None, run.stdout.read().decode()[-2000:]
            time.sleep(0.02)
        killed.kill()
        made = len(list((tmp_path / "killed" / "rollouts").glob("*.parquet")))
        output, _ = run.communicate(timeout=240)
    assert run.returncode == 0, output.decode()[-2000:]
    assert made < 4  # of the four batches that the analysis requests
    (record,) = RunDirectory.load(tmp_path / "killed").questions.to_pylist()
    assert (record["initial"], record["targeted"], record["failed"]) == (300, 900, 0)
    done = subprocess.run(command_for("undisturbed", surviving), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    natural = {}
    for name in ("killed", "undisturbed"):
        files = (tmp_path / name / "rollouts").glob("*.parquet")
        rows = [row for file in files for row in pq.read_table(file).to_pylist() if row["launch"] == 0]
        natural[name] = {row["key"]: row["tokens"] for row in rows}
    assert len(natural["killed"]) == 300
    assert natural["killed"].keys() == natural["undisturbed"].keys()
    share = np.mean([natural["undisturbed"][key] == tokens for key, tokens in natural["killed"].items()])
    print(f"{share:.1%} of the rollouts have the same tokens as without the kill")
    assert share >= 0.9


def test_the_embedded_student_is_analyzed_with_vllm(tmp_path):
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
    # The student solves about half of its problems; with a wrong prompt or tokenizer it would solve none.
    assert 0.05 < record["pass_rate"] < 1


def test_a_run_killed_with_its_engine_running_leaves_no_process_and_resumes(tmp_path):
    """SIGKILL to the run alone: vLLM's EngineCore would stay, with its memory."""
    command = [
        sys.executable, "-m", "opd_align.cli", "analyze", "--backend", "vllm", "--limit", "1", "--initial", "60",
        "--targeted", "600", "--batch", "20", "--n-sig", "10", "--teachers", "embedded:teacher",
        "--out", str(tmp_path / "run"),
        "--set", "student.dtype=float32", "--set", "student.options={max_model_len: 512, enforce_eager: true}",
    ]  # fmt: skip
    with (tmp_path / "log.txt").open("wb") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log)
    rollouts, until = tmp_path / "run" / "rollouts", time.monotonic() + 400
    while len([*rollouts.glob("*.parquet")]) < 2:
        assert run.poll() is None, (tmp_path / "log.txt").read_text()[-2000:]
        assert time.monotonic() < until
        time.sleep(0.05)
    family = descendants(run.pid)
    assert any("EngineCore" in title for title in family.values()), family
    run.kill()
    run.wait()
    while left := [pid for pid in family if is_alive(pid)]:
        assert time.monotonic() < until, left
        time.sleep(0.1)
    made = {file.name for file in rollouts.glob("*.parquet")}
    assert not (tmp_path / "run" / "summary.json").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert made < {file.name for file in rollouts.glob("*.parquet")}
    assert "sampler and scorer" in (tmp_path / "run" / "provenance.json").read_text()


def descendants(pid: int) -> dict[int, str]:
    """The living processes that a process started, directly or not: number → command line."""
    parents = {int(entry.name): state[1] for entry in Path("/proc").glob("[0-9]*") if (state := state_of(entry.name))}
    family = {pid}
    for _ in parents:
        family |= {child for child, parent in parents.items() if parent in family}
    return {
        each: Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        for each in family - {pid}
        if is_alive(each)
    }


def state_of(pid: int | str) -> tuple[str, int] | None:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return state, int(parent)


def is_alive(pid: int) -> bool:
    state = state_of(pid)
    return state is not None and state[0] not in "ZX"


def test_a_teacher_behind_a_server_scores_like_a_local_one(running, model):
    student = HFStudent("tiny", model, prompt, END, Sampling(max_tokens=40))
    rollouts = student.sample([request(PREFIX, 3)])
    local, remote = HFTeacher("local", model, prompt), ServerTeacher("remote", running.url, "tiny", prompt)
    completion = rollouts.completion(0)
    score_request = ScoreRequest(QUESTION, completion, np.empty(0, np.int64), np.empty(0, np.uint32), 0.02)
    scores = student.score(score_request, [local, remote])
    expected, actual = scores.teachers["local"], scores.teachers["remote"]
    likely = expected.log_t_C > np.log(0.02)
    assert likely.sum() > len(completion)
    np.testing.assert_allclose(actual.log_t_C[likely], expected.log_t_C[likely], atol=1e-3)
    assert (actual.kl_T < 1e-2).all()
    flat = student.token_log_probs(QUESTION, rollouts, remote)
    np.testing.assert_allclose(flat, student.token_log_probs(QUESTION, rollouts, local), atol=1e-3)
    assert remote.context_length == CONTEXT
