"""Servers that misbehave in more than a hundred ways: no traceback, no hang, and nothing false is accepted.

The server is a real one on this machine, which serves a model of six tokens. `FUZZ=long` adds a thousand random changes
of its answers. All seeds are fixed.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import threading
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx")
pytest.importorskip("torch")

import pyarrow.parquet as pq
from support.model_server import Misbehaviour, Raw, honest, serving
from support.small_models import END, qwen3

from opd_align.backends import http_pool
from opd_align.backends.hf import HFStudent
from opd_align.backends.http_pool import HttpSettings
from opd_align.backends.server import ServerStudent, ServerTeacher
from opd_align.runs.execute import analyze_into
from opd_align.runs.run_directory import RunDirectory
from opd_align.settings import Budget, Rules, Sampling, Settings
from opd_align.types import Finish, OpdAlignError, Outcome, Question, Rollouts, SampleRequest

VOCABULARY, MAX_TOKENS, N = 6, 6, 8
PROMPT = [2, 3]
COMPLETION = [4, 5, 2]
LONG = os.environ.get("FUZZ") == "long"
RANDOM_CHANGES = 1000 if LONG else 60
TIME_LIMIT_S = 60

Change = Callable[[Any], Any]
"""From an honest answer to another one."""

NAN, INF = float("nan"), float("inf")


def choice(**values: Any) -> Change:
    """Every choice gets other values."""
    return lambda answer: {**answer, "choices": [{**each, **values} for each in answer["choices"]]}


def tokens(make: Callable[[list[int]], Any], *, reason: Any = None) -> Change:
    """Every choice gets other token ids, and another finish reason if there is one."""

    def change(answer: Any) -> Any:
        for each in answer["choices"]:
            each["token_ids"] = make(each["token_ids"])
            each["finish_reason"] = reason or each["finish_reason"]
        return answer

    return change


def without(key: str) -> Change:
    return lambda answer: {
        **answer, "choices": [{k: v for k, v in each.items() if k != key} for each in answer["choices"]]
    }  # fmt: skip


def card(**values: Any) -> Change:
    return lambda answer: {"data": [{**answer["data"][0], **values}]}


def rows(change: Callable[[dict[str, Any]], Any]) -> Change:
    """The row of log-probabilities at the last position is another one."""

    def changed(answer: Any) -> Any:
        table = answer["choices"][0]["prompt_logprobs"]
        table[-1] = change(table[-1])
        return answer

    return changed


def log_prob(value: Any) -> Change:
    """The log-probability of the completion's own token is another one."""
    return rows(lambda row: {**row, str(COMPLETION[-1]): {"logprob": value}})


def raw(**values: Any) -> Change:
    return lambda answer: Raw(**values)


DEEP = b'{"choices":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
JUNK = [
    None,
    True,
    -1,
    0,
    3.5,
    NAN,
    INF,
    -INF,
    2**63,
    10**400,
    "",
    "abc",
    "\x1b[2J",
    "\ud800",
    [],
    [[]],
    {},
    {"a": None},
]

# Answers to any request.
TRANSPORT: dict[str, Change] = {
    "deep JSON": raw(content=DEEP),
    "no JSON": raw(content=b"<html>Bad Gateway</html>"),
    "empty": raw(content=b""),
    "binary": raw(content=bytes(range(256))),
    "UTF-16": raw(content='{"choices": []}'.encode("utf-16")),
    "invalid UTF-8": raw(content=b'{"choices": ["\xff\xfe"]}'),
    "escape sequences": raw(content=b"\x1b[2J\x1b]0;title\x07\x9b31m"),
    "bad gzip": raw(content=b"this is not gzip", headers=(("Content-Encoding", "gzip"),)),
    "half of a gzip": raw(content=gzip.compress(b"{}" * 999)[:20], headers=(("Content-Encoding", "gzip"),)),
    "gzip of garbage": raw(content=gzip.compress(b"\x00" * 99_999), headers=(("Content-Encoding", "gzip"),)),
    "bad deflate": raw(content=b"\xff" * 50, headers=(("Content-Encoding", "deflate"),)),
    "unknown encoding": raw(content=b"\xff" * 50, headers=(("Content-Encoding", "x-none"),)),
    "unknown charset": raw(content=b"\xff" * 50, headers=(("Content-Type", "application/json; charset=klingon"),)),
    "null": raw(content=b"null"),
    "number": raw(content=b"7"),
    "long number": raw(content=b'{"choices": ' + b"9" * 5000 + b"}"),
    "list": raw(content=b"[]"),
    "string": raw(content=b'"choices"'),
    "no content": raw(status=204),
    "redirect": raw(status=302, headers=(("Location", "http://127.0.0.1:1/"),)),
    "redirect to itself": raw(status=308, headers=(("Location", "/v1/completions"),)),
    "partial content": raw(status=206, content=b"{}"),
    "status 999": raw(status=999, content=b"{}"),
    "too short": raw(content=b'{"choices": [', length=1000),
    "too long": raw(content=b'{"choices": []}', length=3),
    "negative length": raw(head=b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}"),
    "two lengths": raw(head=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 9\r\n\r\n{}"),
    "no HTTP": raw(head=b"SSH-2.0-OpenSSH_9.6\r\n"),
    "HTTP/9": raw(head=b"HTTP/9.9 200 OK\r\n\r\n"),
    "endless header": raw(head=b"HTTP/1.1 200 OK\r\nX: " + b"a" * 500_000),
    "bad chunks": raw(head=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n"),
    "header with NUL": raw(head=b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 2\r\n\r\n{}"),
    "error with escapes": raw(status=500, content=b'{"error": {"message": "\\u001b[2J \\ud800"}}'),
    "error as a list": raw(status=500, content=b'{"error": []}'),
    "error as deep JSON": raw(status=500, content=DEEP),
    "rejection with escapes": raw(status=400, content=b'{"error": {"message": "\\u001b[2J \\ud800"}}'),
    "rejection as deep JSON": raw(status=422, content=DEEP),
    "retry never": raw(status=503, headers=(("Retry-After", "99999999999999999999"),)),
    "retry at a bad date": raw(status=429, headers=(("Retry-After", "Wed, 99 Foo 0000"),)),
    "retry in negative time": raw(status=429, headers=(("Retry-After", "-5"),)),
    "retry after a word": raw(status=503, headers=(("Retry-After", "²"),)),
}

SAMPLES: dict[str, Change] = {
    "floats": tokens(lambda ids: [float(each) for each in ids]),
    "strings": tokens(lambda ids: [str(each) for each in ids]),
    "booleans": tokens(lambda ids: [True] * len(ids)),
    "nulls": tokens(lambda ids: [None, *ids[1:]]),
    "nested ids": tokens(lambda ids: [ids]),
    "deeply nested ids": tokens(lambda ids: [[[[[ids]]]]]),
    "NaN ids": tokens(lambda ids: [NAN, *ids[1:]]),
    "infinite ids": tokens(lambda ids: [INF, *ids[1:]]),
    "objects as ids": tokens(lambda ids: [{"id": each} for each in ids]),
    "id -1": tokens(lambda ids: [-1, *ids[1:]]),
    "id 6": tokens(lambda ids: [VOCABULARY, *ids[1:]]),
    "id 2^31": tokens(lambda ids: [2**31, *ids[1:]]),
    "id 2^32": tokens(lambda ids: [2**32, *ids[1:]]),
    "id 2^64": tokens(lambda ids: [2**64, *ids[1:]]),
    "id 10^400": tokens(lambda ids: [10**400, *ids[1:]]),
    "id -2^63": tokens(lambda ids: [-(2**63), *ids[1:]]),
    "end inside": tokens(lambda ids: [4, 0, 4, 0], reason="stop"),
    "two ends": tokens(lambda ids: [4, 1, 0], reason="stop"),
    "end at the limit": tokens(lambda ids: [4] * (MAX_TOKENS - 1) + [0], reason="length"),
    "three times max_tokens": tokens(lambda ids: [4] * (3 * MAX_TOKENS), reason="length"),
    "one over max_tokens": tokens(lambda ids: [4] * MAX_TOKENS + [0], reason="stop"),
    "a hundred thousand tokens": tokens(lambda ids: [4] * 100_000, reason="length"),
    "length after 2": tokens(lambda ids: [4, 5], reason="length"),
    "length after 0": tokens(lambda ids: [], reason="length"),
    "stop without tokens": tokens(lambda ids: [], reason="stop"),
    "stop without an end": tokens(lambda ids: [4, 5], reason="stop"),
    "abort": tokens(lambda ids: ids, reason="abort"),
    "reason tool_calls": tokens(lambda ids: ids, reason="tool_calls"),
    "reason STOP": tokens(lambda ids: ids, reason="STOP"),
    "reason with escapes": tokens(lambda ids: ids, reason="\x1b[2J"),
    "reason is a surrogate": tokens(lambda ids: ids, reason="\ud800"),
    "reason is a list": tokens(lambda ids: ids, reason=["stop"]),
    "reason is an object": tokens(lambda ids: ids, reason={"stop": True}),
    "reason null": choice(finish_reason=None),
    "no reason": without("finish_reason"),
    "no ids": without("token_ids"),
    "ids null": choice(token_ids=None),
    "ids as text": choice(token_ids="4, 5"),
    "ids as a number": choice(token_ids=45),
    "ids as an object": choice(token_ids={"0": 4}),
    "no index": without("index"),
    "index 0 for all": choice(index=0),
    "index true": choice(index=True),
    "index as text": choice(index="0"),
    "index null": choice(index=None),
    "index a list": choice(index=[0]),
    "index from 1": lambda a: {"choices": [{**each, "index": each["index"] + 1} for each in a["choices"]]},
    "index as floats": lambda a: {"choices": [{**each, "index": float(each["index"])} for each in a["choices"]]},
    "one choice too few": lambda answer: {"choices": answer["choices"][:-1]},
    "one choice twice": lambda answer: {"choices": [*answer["choices"], answer["choices"][0]]},
    "one choice more": lambda answer: {"choices": [*answer["choices"], {**answer["choices"][0], "index": N}]},
    "no choices": lambda answer: {"choices": []},
    "choices null": lambda answer: {"choices": None},
    "choices an object": lambda answer: {"choices": {str(i): each for i, each in enumerate(answer["choices"])}},
    "choices of null": lambda answer: {"choices": [None] * N},
    "choices of text": lambda answer: {"choices": ["4"] * N},
    "other prompt": choice(prompt_token_ids=[0, *PROMPT]),
    "prompt as text": choice(prompt_token_ids="2 3"),
    "error in 200": lambda answer: {"error": {"message": "out of memory"}},
}

MODELS: dict[str, Change] = {
    "max_model_len abc": card(max_model_len="abc"),
    "max_model_len '64'": card(max_model_len="64"),
    "max_model_len 64.5": card(max_model_len=64.5),
    "max_model_len NaN": card(max_model_len=NAN),
    "max_model_len infinite": card(max_model_len=INF),
    "max_model_len true": card(max_model_len=True),
    "max_model_len 0": card(max_model_len=0),
    "max_model_len -1": card(max_model_len=-1),
    "max_model_len list": card(max_model_len=[64]),
    "max_model_len object": card(max_model_len={"a": 64}),
    "max_model_len 3": card(max_model_len=3),
    "id null": card(id=None),
    "id list": card(id=["student"]),
    "id number": card(id=7),
    "id with escapes": card(id="\x1b[2J"),
    "id surrogate": card(id="\ud800"),
    "ids of several types": lambda answer: {"data": [{"id": each} for each in (None, 7, "x", 1.5)]},
    "a thousand models": lambda answer: {"data": [{"id": f"model-{i}"} for i in range(1000)]},
    "no data": lambda answer: {},
    "data null": lambda answer: {"data": None},
    "data of null": lambda answer: {"data": [None]},
    "data of text": lambda answer: {"data": ["student"]},
    "data an object": lambda answer: {"data": {"id": "student"}},
}

LOG_PROBS: dict[str, Change] = {
    "log-prob NaN": log_prob(NAN),
    "log-prob -inf": log_prob(-INF),
    "log-prob +inf": log_prob(INF),
    "log-prob +5": log_prob(5.0),
    "log-prob +0.01": log_prob(0.01),
    "log-prob null": log_prob(None),
    "log-prob text": log_prob("-1.0"),
    "log-prob true": log_prob(True),
    "log-prob list": log_prob([-1.0]),
    "log-prob -10^400": log_prob(-(10**400)),
    "mass above 1": rows(lambda row: {str(token): {"logprob": -0.1} for token in range(VOCABULARY)}),
    "mass 1 twice": rows(lambda row: {"2": {"logprob": 0.0}, "3": {"logprob": 0.0}}),
    "token -1": rows(lambda row: {**row, "-1": {"logprob": -9.0}}),
    "token 2^32": rows(lambda row: {**row, str(2**32): {"logprob": -9.0}}),
    "token 10^400": rows(lambda row: {**row, str(10**400): {"logprob": -9.0}}),
    "token 02": rows(lambda row: {**row, "02": {"logprob": -9.0}}),
    "token ' 2'": rows(lambda row: {**row, " 2": {"logprob": -9.0}}),
    "token 1_0": rows(lambda row: {**row, "1_0": {"logprob": -9.0}}),
    "token ²": rows(lambda row: {**row, "²": {"logprob": -9.0}}),
    "token with escapes": rows(lambda row: {**row, "\x1b[2J": {"logprob": -9.0}}),
    "token empty": rows(lambda row: {**row, "": {"logprob": -9.0}}),
    "own token missing": rows(lambda row: {k: v for k, v in row.items() if k != str(COMPLETION[-1])}),
    "too few tokens": rows(lambda row: {str(COMPLETION[-1]): row[str(COMPLETION[-1])]}),
    "row null": rows(lambda row: None),
    "row empty": rows(lambda row: {}),
    "row a list": rows(lambda row: [row]),
    "row of numbers": rows(lambda row: dict.fromkeys(row, -1.0)),
    "row without logprob": rows(lambda row: {key: {"rank": 1} for key in row}),
    "one position less": lambda a: {"choices": [{"prompt_logprobs": a["choices"][0]["prompt_logprobs"][:-1]}]},
    "one position more": lambda a: {"choices": [{"prompt_logprobs": [None, *a["choices"][0]["prompt_logprobs"]]}]},
    "positions null": choice(prompt_logprobs=None),
    "positions text": choice(prompt_logprobs="abcde"),
    "positions an object": choice(prompt_logprobs={"0": {}}),
    "no positions": without("prompt_logprobs"),
    "no choice": lambda answer: {"choices": []},
}


@pytest.fixture(scope="module")
def model() -> Any:
    return qwen3()


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "INITIAL_BACKOFF_S", 0.002)
    monkeypatch.setattr(http_pool, "MAX_BACKOFF_S", 0.01)


def prompt(question: Question) -> list[int]:
    return PROMPT


def student(model: Any, url: str) -> ServerStudent:
    sampling = Sampling(max_tokens=MAX_TOKENS)
    http = HttpSettings(patience_s=0.05, timeout_s=20.0, concurrency=4)
    scorer = HFStudent("student", model, prompt, END, sampling)
    return ServerStudent(url, "student", prompt, END, scorer, sampling, http)


def teacher(url: str) -> ServerTeacher:
    return ServerTeacher("teacher", url, "student", prompt, top=4, http=HttpSettings(patience_s=0.05, timeout_s=20.0))


def on(path: str, change: Change) -> Misbehaviour:
    def misbehave(at: str, body: dict[str, Any], answer: Any) -> Any:
        return change(answer) if at == path else answer

    return misbehave


def outcome(work: Callable[[], Any]) -> Any:
    """The result or the `OpdAlignError`; fails for a hang and for any other exception."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIME_LIMIT_S)
    assert found, f"no result in {TIME_LIMIT_S} s"
    if isinstance(found[0], BaseException) and not isinstance(found[0], OpdAlignError):
        raise AssertionError(f"{type(found[0]).__name__}: {found[0]}") from found[0]
    return found[0]


def check_message(text: str, url: str) -> None:
    assert url in text
    assert len(text) < 1500
    assert text.isprintable()


def check_rollouts(result: Rollouts, url: str) -> None:
    """Every requested rollout is valid or a failure with a reason that names the server."""
    assert len(result) + len(result.failures) == N
    for row in range(len(result)):
        ids, stopped = result.completion(row).tolist(), result.finish_R[row] == Finish.STOPPED
        assert all(0 <= each < VOCABULARY for each in ids)
        assert len(ids) == MAX_TOKENS or stopped
        assert len(ids) <= MAX_TOKENS
        assert [each in END for each in ids] == [False] * (len(ids) - 1) + [stopped]
    for failure in result.failures:
        check_message(failure.reason, url)


REQUEST = [SampleRequest(Question("q"), np.empty(0, np.uint32), N)]
CASES = [
    *(("samples", name, on("/v1/completions", change)) for name, change in (TRANSPORT | SAMPLES).items()),
    *(("models", name, on("/v1/models", change)) for name, change in (TRANSPORT | MODELS).items()),
    *(("log-probs", name, on("/v1/completions", change)) for name, change in (TRANSPORT | LOG_PROBS).items()),
]


def test_there_are_more_than_a_hundred_misbehaviours() -> None:
    assert len(TRANSPORT | SAMPLES | MODELS | LOG_PROBS) >= 150
    assert len(CASES) >= 200


@pytest.mark.parametrize(("kind", "misbehave"), [pytest.param(a, c, id=f"{a}: {b}") for a, b, c in CASES])
def test_a_misbehaviour_is_an_error_in_one_line(
    kind: str, misbehave: Misbehaviour, model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(model, misbehave) as server:
        if kind == "log-probs":
            found = outcome(lambda: teacher(server.url).top_log_probs(Question("q"), COMPLETION))
        else:
            found = outcome(lambda: student(model, server.url).sample(REQUEST))
        assert isinstance(found, OpdAlignError), found
        check_message(str(found), server.url)
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("name", SAMPLES)
def test_one_invalid_sample_among_others_is_a_failure(name: str, model: Any) -> None:
    """The other samples of the response are those of an honest server; a response that is no list of samples fails."""

    def misbehave(path: str, body: dict[str, Any], answer: Any) -> Any:
        if path == "/v1/models":
            return answer
        changed = SAMPLES[name](deepcopy(answer)).get("choices")
        usable = isinstance(changed, list) and len(changed) == N and isinstance(changed[3], dict)
        return {"choices": [*answer["choices"][:3], changed[3], *answer["choices"][4:]] if usable else changed}

    with serving(model) as server:
        expected = student(model, server.url).sample(REQUEST)
        server.misbehave = misbehave
        found = outcome(lambda: student(model, server.url).sample(REQUEST))
        if isinstance(found, OpdAlignError):
            check_message(str(found), server.url)
            return
        check_rollouts(found, server.url)
        keys = [failure.key for failure in found.failures]
        assert len(keys) <= 1
        others = np.flatnonzero(~np.isin(expected.key_R, keys))
        assert [found.completion(i).tolist() for i in range(len(found))] == [
            expected.completion(i).tolist() for i in others
        ]


def test_honest_answers_are_accepted(model: Any) -> None:
    with serving(model) as server:
        check_rollouts(student(model, server.url).sample(REQUEST), server.url)
        assert not student(model, server.url).sample(REQUEST).failures
        top = teacher(server.url).top_log_probs(Question("q"), COMPLETION)
        expected = [server.log_probs([*PROMPT, *COMPLETION[:i]]) for i in range(len(COMPLETION))]
    for ids, values, log_p in zip(top.token_TK, top.log_t_TK, expected, strict=True):
        np.testing.assert_allclose(values, log_p[ids])


def changed_somewhere(value: Any, rng: random.Random) -> Any:
    """A copy in which one random part is replaced, removed or repeated."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        if rng.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: changed_somewhere(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        kind = rng.random()
        middle = [] if kind < 0.1 else [value[at]] * 2 if kind < 0.2 else [changed_somewhere(value[at], rng)]
        return [*value[:at], *middle, *value[at + 1 :]]
    return rng.choice(JUNK)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "log-probs"])
def test_random_changes_of_answers_never_pass_as_invalid_rollouts(path: str, model: Any) -> None:
    rng = random.Random(19)
    with serving(model) as server:
        for number in range(RANDOM_CHANGES // 3):
            change = random.Random(rng.random())
            state = change.getstate()

            def misbehave(at: str, body: dict[str, Any], answer: Any, change=change, state=state) -> Any:
                if (at == "/v1/models") != (path == "/v1/models"):
                    return answer
                change.setstate(state)  # the same change for every attempt
                return changed_somewhere(answer, change)

            server.misbehave = misbehave
            if path == "log-probs":
                found = outcome(lambda: teacher(server.url).top_log_probs(Question("q"), COMPLETION))
            else:
                found = outcome(lambda: student(model, server.url).sample(REQUEST))
            if isinstance(found, OpdAlignError):
                check_message(str(found), server.url)
            elif path == "log-probs":
                assert np.isfinite(found.log_t_TK).all(), number
                assert (found.log_t_TK <= 0).all(), number
                assert ((found.token_TK >= 0) & (found.token_TK < 2**32)).all(), number
                assert all(
                    sum({t: np.exp(v) for t, v in zip(*row, strict=True)}.values()) < 1.01
                    for row in zip(found.token_TK.tolist(), found.log_t_TK.tolist(), strict=True)
                )
            else:
                check_rollouts(found, server.url)


# -- run directories ------------------------------------------------------------------------------------------


class EvenGrader:
    """A completion is correct if the sum of its tokens is even; truncated ones are incorrect."""

    def grade(self, question: Question, rollouts: Rollouts) -> Any:
        even = [int(rollouts.completion(row).sum()) % 2 == 0 for row in range(len(rollouts))]
        stopped = rollouts.finish_R == Finish.STOPPED
        return np.where(np.asarray(even, bool) & stopped, Outcome.CORRECT, Outcome.INCORRECT).astype(np.int8)


# With `adaptive`, each question has a batch for each round; with `paper`, one batch.
BUDGET = Budget(initial=24, targeted=60, n_min=10, by_update=4, by_gap=4, correct_paths=1, incorrect_paths=1, rounds=3)


def analyze(model: Any, url: str, folder: Any, allocation: Any) -> Any:
    questions = [Question("a"), Question("b")]
    settings = Settings(budget=replace(BUDGET, allocation=allocation), rules=Rules(n_sig=2.0))
    return analyze_into(folder, student(model, url), [teacher(url)], questions, EvenGrader(), settings=settings)


def check_counts(folder: Any) -> int:
    """Every requested rollout is on disk once, as a rollout or as a failure; returns the number of failures."""
    rows = [row for shard in (folder / "rollouts").glob("*.parquet") for row in pq.read_table(shard).to_pylist()]
    # Not the ends that were graded without sampling: all of their tokens are forced.
    rows = [row for row in rows if row["reason"] or row["launch"] < len(row["tokens"]) or row["tokens"][-1] not in END]
    assert len({(row["question"], row["key"]) for row in rows}) == len(rows)
    records = RunDirectory.load(folder).questions.to_pylist()
    assert len(records) == 2
    for record in records:
        own = [row for row in rows if row["question"] == record["question"]]
        failures = [row for row in own if row["reason"]]
        assert all("127.0.0.1" in row["reason"] for row in failures)
        assert record["failed"] == len(failures)
        assert record["initial"] == sum(row["launch"] == 0 for row in own)
        assert len(own) == BUDGET.initial + record["targeted"]
    return sum(record["failed"] for record in records)


@pytest.mark.parametrize(
    "name", ["id 2^32", "id 6", "end inside", "length after 2", "nulls", "no ids", "deep JSON", "log-prob NaN"]
)
@pytest.mark.parametrize("honest_calls", [0, 1, 3] if LONG else [1])
@pytest.mark.parametrize("allocation", ["paper", "adaptive"])
def test_after_a_misbehaving_server_a_run_directory_works_with_an_honest_one(
    allocation: str, honest_calls: int, name: str, model: Any, tmp_path: Any
) -> None:
    """Where a batch had valid samples too, the others stay failed: the rounds after it were planned without them."""
    change = (TRANSPORT | SAMPLES | LOG_PROBS)[name]

    def misbehave(path: str, body: dict[str, Any], answer: Any) -> Any:
        concerned = path == "/v1/completions" and ("prompt_logprobs" in body) == (name in LOG_PROBS)
        return change(answer) if concerned and server.calls > honest_calls else answer

    def changed_last_row(answer: Any) -> Any:
        table = answer["choices"][0]["prompt_logprobs"]
        first = next(iter(table[-1]))
        table[-1] = {**table[-1], first: {"logprob": NAN}}
        return answer

    if name in LOG_PROBS:
        change = changed_last_row
    with serving(model, misbehave) as server:
        found = outcome(lambda: analyze(model, server.url, tmp_path / "run", allocation))
        assert isinstance(found, OpdAlignError)
        check_message(str(found), server.url)
        server.misbehave = honest
        analyze(model, server.url, tmp_path / "run", allocation)
        analyze(model, server.url, tmp_path / "fresh", allocation)
    assert len(RunDirectory.load(tmp_path / "run").nodes)
    assert check_counts(tmp_path / "fresh") == 0
    if check_counts(tmp_path / "run"):
        assert (allocation, name) == ("adaptive", "length after 2")  # right where two tokens were left to sample
    else:
        assert pq.read_table(tmp_path / "run/nodes.parquet").equals(pq.read_table(tmp_path / "fresh/nodes.parquet"))


def every_seventh_invalid(path: str, body: dict[str, Any], answer: Any) -> Any:
    if path == "/v1/completions" and "n" in body:
        for each in answer["choices"]:
            if (body["seed"] + each["index"]) % 7 == 0:
                each["token_ids"][0] = 2**31
    return answer


@pytest.mark.parametrize("allocation", ["paper", "adaptive"])
def test_an_interrupted_run_with_failures_ends_like_one_without_interruption(
    allocation: str, model: Any, tmp_path: Any
) -> None:
    with serving(model, every_seventh_invalid) as server:
        whole = analyze(model, server.url, tmp_path / "whole", allocation)
        calls, server.calls = server.calls, 0

        def down_halfway(path: str, body: dict[str, Any], answer: Any) -> Any:
            return Raw(status=503) if server.calls > calls // 2 else every_seventh_invalid(path, body, answer)

        server.misbehave = down_halfway
        assert isinstance(outcome(lambda: analyze(model, server.url, tmp_path / "run", allocation)), OpdAlignError)
        server.misbehave = every_seventh_invalid
        resumed = analyze(model, server.url, tmp_path / "run", allocation)
    assert resumed.nodes.equals(whole.nodes)
    assert resumed.questions.equals(whole.questions)
    assert check_counts(tmp_path / "run") == check_counts(tmp_path / "whole") > 0


@pytest.mark.parametrize("allocation", ["paper", "adaptive"])
def test_invalid_samples_are_counted_in_the_results(allocation: str, model: Any, tmp_path: Any) -> None:
    """Every seventh sample is invalid: the run goes on with the others, and says how many failed."""
    with serving(model, every_seventh_invalid) as server:
        result = analyze(model, server.url, tmp_path / "run", allocation)
        assert all(0 < record["failed"] < 24 for record in result.questions.to_pylist())
        server.misbehave = honest
        again = analyze(model, server.url, tmp_path / "run", allocation)
    assert again.nodes.equals(result.nodes)
    assert check_counts(tmp_path / "run") == sum(result.questions["failed"].to_pylist())
    shards = list((tmp_path / "run/rollouts").rglob("*.parquet"))
    assert shards
    for shard in shards:
        table = pq.read_table(shard)
        assert all(max(ids) < VOCABULARY for ids in table["tokens"].to_pylist() if ids)
        reasons = {reason for reason in table["reason"].to_pylist() if reason}
        assert all(server.url in reason and "outside the vocabulary (6)" in reason for reason in reasons)


def test_json_of_the_cases_is_what_it_says() -> None:
    """The answers must reach the client: Python's JSON writes NaN, and escapes lone surrogates."""
    for value in JUNK:
        json.dumps(value)
