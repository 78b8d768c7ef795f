"""The server backend against a stub server with injected faults.

The stub implements just enough of the protocol to fail in a chosen way; `tests/with_vllm` uses a real vLLM server.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from opd_align.types import Finish, OpdAlignError, PathScores, Question, Rollouts, SampleRequest, ScoreRequest, mix64

pytest.importorskip("httpx")
pytest.importorskip("torch")

from opd_align.backends import http_pool
from opd_align.backends.http_pool import HttpSettings, ServerUnavailable
from opd_align.backends.server import ServerStudent
from opd_align.settings import Sampling

END = 9
Fault = Callable[[dict[str, Any], int], Any]
"""From a request's body and how often it was received before: None (no fault), a status, or a kind of broken
connection. A GET has an empty body and the count -1."""


class Stub(ThreadingHTTPServer):
    """Responds correctly except for the injected faults; records the requests."""

    daemon_threads = True

    def __init__(self, fault: Fault, *, port: int = 0, context: int | None = 100) -> None:
        self.fault, self.context = fault, context
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock, self.busy, self.busiest = threading.Lock(), 0, 0
        self.pause_s = 0.0
        self.cut_token_ids = self.wrong_token = False
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that close the connection are expected."""


class Handler(BaseHTTPRequestHandler):
    server: Stub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        status = self.server.fault({}, -1)
        card = {"id": "student", "max_model_len": self.server.context}
        self._send(status if isinstance(status, int) else 200, {"data": [card, {"id": "other"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            before = sum(old == body for old in self.server.bodies)
            self.server.bodies.append(body)
            self.server.headers.append(dict(self.headers))
            self.server.busy += 1
            self.server.busiest = max(self.server.busiest, self.server.busy)
        time.sleep(self.server.pause_s)
        fault = self.server.fault(body, before)
        with self.server.lock:
            self.server.busy -= 1
        if fault == "close":
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "half a response":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": [')
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "slow bytes":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(40):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
        elif isinstance(fault, int):
            self._send(fault, {"error": {"message": f"injected fault {fault}"}})
        else:
            self._send(200, {"choices": [self._choice(body, i) for i in reversed(range(body["n"]))]})

    def _choice(self, body: dict[str, Any], index: int) -> dict[str, Any]:
        tokens, reason = tokens_of(body["seed"] + index, body["max_tokens"])
        if self.server.wrong_token and reason == "stop":
            tokens = [*tokens[:-1], 7]
        choice = {"index": index, "token_ids": tokens, "finish_reason": reason, "text": ""}
        return choice if not self.server.cut_token_ids else {**choice, "token_ids": None}

    def _send(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def tokens_of(seed: int, max_tokens: int) -> tuple[list[int], str]:
    """The stub's language model: up to six tokens, a function of the seed."""
    word = int(mix64(np.uint64(seed)))
    tokens = [(word >> (4 * i)) % 6 for i in range(word % 6)]
    return (tokens[:max_tokens], "length") if len(tokens) >= max_tokens else ([*tokens, END], "stop")


@contextmanager
def serving(fault: Fault = lambda body, before: None, **settings: Any) -> Iterator[Stub]:
    with Stub(fault, **settings) as stub:
        thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield stub
        finally:
            stub.shutdown()
            thread.join()


class NoScores:
    """A scorer that is never called here."""

    def score(self, request: ScoreRequest, teachers: Any) -> PathScores:
        raise NotImplementedError

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any) -> Any:
        raise NotImplementedError


def student(url: str | list[str], *, model: str = "student", max_tokens: int = 5, **http: Any) -> ServerStudent:
    settings = {"patience_s": 20.0, "timeout_s": 10.0, "samples_per_call": 3} | http
    return ServerStudent(
        url,
        model,
        lambda question: [1, 2],
        (END,),
        NoScores(),
        Sampling(max_tokens=max_tokens),
        HttpSettings(**settings),
    )


def requests(n: int = 7) -> list[SampleRequest]:
    prefixes = [[], [3], [3, 4], [5, 5, 5, 5, 5]]
    return [SampleRequest(Question("q"), np.array(prefix, np.uint32), n) for prefix in prefixes]


def same(a: Rollouts, b: Rollouts) -> bool:
    columns = ("tokens", "offsets", "launch_R", "outcome_R", "finish_R", "key_R")
    return a.failures == b.failures and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch):
    monkeypatch.setattr(http_pool, "INITIAL_BACKOFF_S", 0.01)
    monkeypatch.setattr(http_pool, "MAX_BACKOFF_S", 0.1)


@pytest.fixture(scope="module")
def expected():
    """The rollouts of a server without faults."""
    with serving() as stub:
        return student(stub.url).sample(requests())


def test_all_requested_rollouts_are_returned_in_order_with_prefix_and_end(expected):
    with serving() as stub:
        client = student(stub.url)
        keys = np.concatenate(client.keys(requests()))
        assert np.array_equal(expected.key_R, keys)
        assert expected.launch_R.tolist() == [0] * 7 + [1] * 7 + [2] * 7 + [5] * 7
        for row in range(len(expected)):
            completion, launch = expected.completion(row).tolist(), expected.launch_R[row]
            assert completion[:launch] == requests()[row // 7].prefix.tolist()
            assert (completion[-1] == END) == (expected.finish_R[row] == Finish.STOPPED)
            assert len(completion) <= 5 or expected.finish_R[row] == Finish.STOPPED
        assert set(expected.finish_R.tolist()) == {Finish.STOPPED, Finish.TRUNCATED}


def test_a_prefix_of_maximum_length_is_truncated_without_a_request():
    with serving() as stub:
        result = student(stub.url).sample(requests()[3:])
        assert result.finish_R.tolist() == [Finish.TRUNCATED] * 7
        assert not stub.bodies


def test_results_do_not_depend_on_samples_per_call(expected):
    with serving() as stub:
        for size in (1, 2, 7, 100):
            assert same(student(stub.url, samples_per_call=size).sample(requests()), expected)
        assert {body["n"] for body in stub.bodies} == {1, 2, 7}


def test_a_larger_first_gives_the_following_samples(expected):
    question, none = Question("q"), np.empty(0, np.uint32)
    with serving() as stub:
        client = student(stub.url)
        late = client.sample([SampleRequest(question, none, 4, first=3)])
        assert same(late, expected.take(np.arange(3, 7)))
        client.sample([SampleRequest(question, none, 7, first=7)])
        seeds = Counter(body["seed"] + i for body in stub.bodies for i in range(body["n"]))
        assert len(seeds) == 11  # 3..6 and 7..13
        assert set(seeds.values()) == {1}


def test_requests_set_everything_the_server_would_take_from_the_generation_config():
    with serving() as stub:
        student(stub.url, api_key="secret").sample(requests()[:1])
        assert stub.headers[0]["Authorization"] == "Bearer secret"
        body = {name: stub.bodies[0][name] for name in stub.bodies[0].keys() - {"seed", "prompt", "n"}}
    assert body == {
        "model": "student", "max_tokens": 5, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop_token_ids": [END],
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    assert "secret" not in repr(student("http://127.0.0.1:1", api_key="secret"))


@pytest.mark.parametrize("fault", [500, 502, 503, 429, 408, "close", "half a response"])
def test_transient_errors_do_not_change_results(fault, expected):
    with serving(lambda body, before: fault if 0 <= before < 2 else None) as stub:
        assert same(student(stub.url).sample(requests()), expected)
        assert set(Counter(json.dumps(body) for body in stub.bodies).values()) == {3}


def test_random_errors_do_not_change_results(expected):
    rng = random.Random(1)
    kinds = [500, 429, "close", "half a response", None]
    with serving(lambda body, before: rng.choice(kinds) if before >= 0 else None) as stub:
        assert same(student(stub.url, samples_per_call=1).sample(requests()), expected)
        assert len(stub.bodies) > 21


@pytest.mark.parametrize("delay", [1.0, "slow bytes"])
def test_a_response_that_takes_too_long_is_retried(delay, expected):
    def slow(body, before):
        if before == 0 and delay != "slow bytes":
            time.sleep(delay)
        return "slow bytes" if before == 0 and delay == "slow bytes" else None

    with serving(slow) as stub:
        start = time.monotonic()
        assert same(student(stub.url, timeout_s=0.4).sample(requests()), expected)
        assert time.monotonic() - start < 10


def test_a_server_that_goes_down_and_comes_back_is_waited_for(expected):
    with serving() as stub:
        port = stub.server_address[1]
    result = []
    client = threading.Thread(target=lambda: result.append(student(f"http://127.0.0.1:{port}").sample(requests())))
    client.start()
    time.sleep(0.5)
    with serving(port=port):
        client.join(timeout=20)
    assert same(result[0], expected)


def test_a_server_that_stays_down_ends_the_run_with_url_attempts_and_error():
    with serving() as stub:
        url = stub.url
    with pytest.raises(
        ServerUnavailable, match=rf"{url}/v1/models did not respond: \d+ attempts.*patience_s 0.5.*Connect"
    ):
        student(url, patience_s=0.5).sample(requests())


def test_a_server_that_always_fails_ends_the_run_and_cancels_other_calls():
    with serving(lambda body, before: 500 if before >= 0 else None) as stub:
        with pytest.raises(
            ServerUnavailable, match=r"completions did not respond: [2-9]\d* attempts.*HTTP 500: injected fault 500"
        ):
            student(stub.url, patience_s=0.5).sample(requests())
        received = len(stub.bodies)
        time.sleep(0.3)
        assert len(stub.bodies) == received


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_rejected_request_becomes_failures_and_the_others_continue(status, expected):
    def reject(body, before):
        return status if body.get("prompt") == [1, 2, 3] else None

    with serving(reject) as stub:
        client = student(stub.url)
        result = client.sample(requests())
        rejected = client.keys(requests()[1:2])[0].tolist()
        assert [failure.key for failure in result.failures] == rejected
        assert {failure.reason for failure in result.failures} == {f"HTTP {status}: injected fault {status}"}
        others = expected.take(~np.isin(expected.key_R, rejected))
        assert same(Rollouts.join([others]), Rollouts.join([result.take(np.arange(len(result)))]))
        assert max(Counter(json.dumps(body) for body in stub.bodies).values()) == 1


def test_a_server_that_rejects_everything_stops_the_run():
    with (
        serving(lambda body, before: 400 if before >= 0 else None) as stub,
        pytest.raises(
            OpdAlignError, match=rf"{stub.url}/v1/completions rejected all 9 requests .* HTTP 400: injected fault"
        ),
    ):
        student(stub.url).sample(requests())


@pytest.mark.parametrize(("status", "hint"), [(401, "api_key"), (403, "api_key"), (404, "url")])
def test_an_error_that_concerns_all_requests_stops_the_run(status, hint):
    with (
        serving(lambda body, before: status if before >= 0 else None) as stub,
        pytest.raises(OpdAlignError, match=rf"HTTP {status}.*{hint}"),
    ):
        student(stub.url).sample(requests())


def test_a_wrong_model_name_is_reported_before_sampling():
    with serving() as stub:
        with pytest.raises(OpdAlignError, match=r"does not serve 'studnet'; it serves \['other', 'student'\]"):
            student(stub.url, model="studnet").sample(requests())
        assert not stub.bodies


def test_a_context_that_is_too_short_is_reported_before_sampling():
    with serving(context=6) as stub:
        assert student(stub.url).context_length == 6
        with pytest.raises(OpdAlignError, match=r"2 prompt tokens and up to 5 new ones do not fit .*\(6\)"):
            student(stub.url).sample(requests())
        assert not stub.bodies
    with serving(context=7) as stub:
        assert len(student(stub.url).sample(requests())) == 28


def test_a_server_may_leave_out_its_context_length(expected):
    with serving(context=None) as stub:
        assert student(stub.url).context_length is None
        assert same(student(stub.url).sample(requests()), expected)


def test_a_server_without_token_ids_is_rejected():
    with serving() as stub:
        stub.cut_token_ids = True
        with pytest.raises(OpdAlignError, match="return_token_ids"):
            student(stub.url).sample(requests())


def test_a_stop_at_a_token_that_is_not_an_end_token_is_a_failure():
    with serving() as stub:
        stub.wrong_token = True
        result = student(stub.url).sample(requests())
    assert set(result.finish_R.tolist()) == {Finish.TRUNCATED}
    assert {failure.reason for failure in result.failures} == {
        f"{stub.url}/v1/completions ended the rollout with 'stop' at token 7"
    }
    assert len(result) + len(result.failures) == 28


@pytest.mark.parametrize("concurrency", [1, 3])
def test_concurrency_limits_the_calls_in_flight(concurrency, expected):
    with serving() as stub:
        stub.pause_s = 0.02
        assert same(student(stub.url, samples_per_call=1, concurrency=concurrency).sample(requests()), expected)
        assert stub.busiest == concurrency


def test_the_url_may_end_in_v1_and_is_not_in_the_fingerprint(expected):
    with serving() as stub:
        assert same(student(stub.url + "/v1/").sample(requests()), expected)
    assert student("http://127.0.0.1:1").fingerprint == student("http://127.0.0.1:2").fingerprint
    assert student("http://127.0.0.1:1").fingerprint != student("http://127.0.0.1:1", max_tokens=6).fingerprint


# -- several servers ------------------------------------------------------------------------------------------


def test_calls_go_to_the_least_loaded_server(expected):
    with serving() as one, serving() as two:
        one.pause_s = two.pause_s = 0.1  # long enough that calls overlap on a busy machine
        client = student([one.url, two.url + "/v1", one.url], samples_per_call=1, concurrency=3)
        assert same(client.sample(requests()), expected)
        assert len(one.bodies) + len(two.bodies) == 21
        assert min(len(one.bodies), len(two.bodies)) >= 8
        assert one.busiest == two.busiest == 3
        assert client.fingerprint == student(one.url).fingerprint


def test_a_slow_server_gets_fewer_calls(expected):
    with serving() as slow, serving() as fast:
        slow.pause_s, fast.pause_s = 0.2, 0.005
        assert same(student([slow.url, fast.url], samples_per_call=1, concurrency=2).sample(requests()), expected)
        assert len(slow.bodies) < 6 < len(fast.bodies)


def test_a_server_that_is_down_from_the_start_is_skipped(expected, caplog):
    with serving() as stopped:
        down = stopped.url
    with serving() as up:
        assert same(student([down, up.url], samples_per_call=1).sample(requests()), expected)
        assert student([down, up.url]).context_length == 100
        assert len(up.bodies) == 21
    assert f"{down}/v1/models: ConnectError" in caplog.text
    assert "using the other servers" in caplog.text


@pytest.mark.parametrize("fault", [500, "close", "half a response"])
def test_calls_of_a_failing_server_go_to_the_others(fault, expected):
    received = Counter()

    def failing(body, before):
        received["all"] += before >= 0
        return fault if before >= 0 and received["all"] > 4 else None

    with serving(failing) as one, serving() as two:
        two.pause_s = 0.02
        start = time.monotonic()
        client = student([one.url, two.url], samples_per_call=1, concurrency=3, patience_s=60)
        assert same(client.sample(requests()), expected)
        assert time.monotonic() - start < 10
        # Those in flight when it failed, and then one at a time to probe whether it is back.
        assert 4 < len(one.bodies) < 21
        assert len(two.bodies) == 17


def test_a_server_that_comes_back_is_used_again(expected):
    back = threading.Event()
    with serving(lambda body, before: None if back.is_set() or before < 0 else 503) as one, serving() as two:
        two.pause_s = 0.05
        threading.Timer(0.3, back.set).start()
        actual = student([one.url, two.url], samples_per_call=1, concurrency=1).sample(requests(14))
        assert len(two.bodies) < 42  # the first server made some of them
        assert same(actual, student(two.url).sample(requests(14)))


def test_when_all_servers_are_down_the_error_has_their_urls():
    with serving() as one, serving() as two:
        urls = [one.url, two.url]
    with pytest.raises(
        ServerUnavailable, match=rf"{urls[0]}/v1/models and {urls[1]}/v1/models did not respond: \d+ attempts.*Connect"
    ):
        student(urls, patience_s=0.3).sample(requests())
    with pytest.raises(OpdAlignError, match="has no server"):
        student([])


def test_every_server_must_serve_the_model_and_the_shortest_context_counts():
    with serving() as one, serving(context=7) as two:
        assert student([one.url, two.url]).context_length == 7
        two.context = None
        assert student([one.url, two.url]).context_length == 100
        with pytest.raises(OpdAlignError, match="does not serve 'studnet'"):
            student([one.url, two.url], model="studnet").sample(requests())
        assert not one.bodies + two.bodies


def test_sampling_works_inside_a_running_event_loop(expected):
    async def notebook(url):
        return student(url).sample(requests())

    with serving() as stub:
        assert same(asyncio.run(notebook(stub.url)), expected)


def test_requests_do_not_use_the_global_generator():
    state = random.getstate()
    with serving(lambda body, before: 500 if before == 0 else None) as stub:
        student(stub.url).sample(requests())
    assert random.getstate() == state


def test_no_requests_contact_no_server():
    assert len(student("http://127.0.0.1:1").sample([])) == 0
    assert len(student("http://127.0.0.1:1").sample(requests(n=0))) == 0


def test_invalid_settings_are_reported():
    with pytest.raises(OpdAlignError, match=r"temperature 0\.01 or above"):
        ServerStudent("http://127.0.0.1:1", "m", lambda q: [1], (END,), NoScores(), Sampling(temperature=0.001))
    hotter = NoScores()
    hotter.sampling = Sampling(temperature=2.0)
    with pytest.raises(OpdAlignError, match="another distribution"):
        ServerStudent("http://127.0.0.1:1", "m", lambda q: [1], (END,), hotter, Sampling())
    with pytest.raises(OpdAlignError, match="must be at least 1"):
        HttpSettings(concurrency=0)
    ended = SampleRequest(Question("q"), np.array([END], np.uint32), 1)
    with pytest.raises(OpdAlignError, match="cannot contain an end-of-sequence token"):
        student("http://127.0.0.1:1").sample([ended])
    with pytest.raises(OpdAlignError, match="is not a valid server URL"):
        student("http://127.0.0.1:port").sample(requests())


# -- responses that were not requested --------------------------------------------------------------------------


class FixedScores(NoScores):
    """A scorer that gives every token the same probability."""

    vocabulary = 10

    def __init__(self, probability: float) -> None:
        self.probability = probability

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any) -> Any:
        return np.full(len(rollouts.tokens), np.log(self.probability))


def scored(url: str, probability: float, **http: Any) -> ServerStudent:
    client = student(url, **http)
    return ServerStudent(url, "student", client.prompt, (END,), FixedScores(probability), client.sampling, client.http)


@pytest.mark.parametrize(("probability", "accepted"), [(0.2, False), (0.999, True)])
def test_samples_that_are_all_equal_must_be_likely(probability, accepted, monkeypatch):
    monkeypatch.setattr(Handler, "_choice", lambda self, body, index: {
        "index": index, "token_ids": [3, 4, END], "finish_reason": "stop"
    })  # fmt: skip
    request = [SampleRequest(Question("q"), np.empty(0, np.uint32), 12)]
    with serving() as stub:
        if accepted:
            assert len(scored(stub.url, probability).sample(request)) == 12
        else:
            with pytest.raises(OpdAlignError, match=f"{stub.url}.* returned the same 3 tokens in 12 of 12 samples"):
                scored(stub.url, probability).sample(request)


def test_the_same_request_twice_in_a_batch_may_have_the_same_samples(monkeypatch):
    """Long completions by seed: equal seeds give equal tokens, which is no sign of a cache."""
    monkeypatch.setattr(Handler, "_choice", lambda self, body, index: {
        "index": index, "token_ids": [3 + (body["seed"] + index + depth) % 4 for depth in range(39)] + [END],
        "finish_reason": "stop",
    })  # fmt: skip
    request = SampleRequest(Question("q"), np.empty(0, np.uint32), 2)
    with serving() as stub:
        client = scored(stub.url, 0.2)
        patient = ServerStudent(
            stub.url, "student", client.prompt, (END,), client.scorer, Sampling(max_tokens=40), client.http
        )
        assert len(patient.sample([request, request])) == 4


def test_a_student_that_only_samples_warns_about_equal_samples(monkeypatch, caplog):
    monkeypatch.setattr(Handler, "_choice", lambda self, body, index: {
        "index": index, "token_ids": [3, 4, END], "finish_reason": "stop"
    })  # fmt: skip
    with serving() as stub:
        client = student(stub.url)
        sampler = ServerStudent(stub.url, "student", client.prompt, (END,), None, client.sampling, client.http)
        assert len(sampler.sample([SampleRequest(Question("q"), np.empty(0, np.uint32), 4)])) == 4
    assert f"{stub.url}/v1/completions returned the same 3 tokens in 4 of 4 samples of question 'q'" in caplog.text


def test_an_invalid_sample_is_requested_again_elsewhere(expected, monkeypatch, caplog):
    """One server returns ids of another vocabulary, the other is honest: all rollouts are those of the honest one."""
    honest = Handler._choice

    def choice(self, body, index):
        sample = honest(self, body, index)
        return {**sample, "token_ids": [5000]} if self.server is liar else sample

    monkeypatch.setattr(Handler, "_choice", choice)
    with serving() as liar, serving() as other:
        client = scored([liar.url, other.url], 0.5)
        result = client.sample(requests())
        assert not result.failures
        assert [row.tolist() for row in np.split(result.tokens, result.offsets[1:-1])] == [
            row.tolist() for row in np.split(student(other.url).sample(requests()).tokens, result.offsets[1:-1])
        ]
    assert f"{liar.url}/v1/completions returned token 5000, which is outside the vocabulary (10)" in caplog.text


def test_passwords_are_sent_but_not_shown(expected, caplog):
    with serving(lambda body, before: 503 if before == 0 else None) as stub:
        url = stub.url.replace("http://", "http://me:se%40cret@")
        client = student(url)
        assert same(client.sample(requests()), expected)
        assert stub.headers[0]["Authorization"] == "Basic bWU6c2VAY3JldA=="
        assert "503" in caplog.text
        with pytest.raises(OpdAlignError, match="does not serve") as error:
            student(url, model="other-model").sample(requests())
    with pytest.raises(ServerUnavailable) as down:
        student(url, patience_s=0.0).sample(requests())
    for text in (caplog.text, str(error.value), str(down.value), repr(client)):
        assert "cret" not in text
    assert stub.url in str(down.value)
