"""The server backend against a server that misbehaves on purpose.

The stub below speaks just enough of the protocol to fail in a chosen way; what a right answer looks like is
the business of `tests/vllm`, where the server is a real one.
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

from opd_align.backends import http_pool as line_module
from opd_align.backends.http_pool import HttpSettings, ServerUnavailable
from opd_align.backends.server import ServerStudent
from opd_align.settings import Sampling

END = 9
Trouble = Callable[[dict[str, Any], int], Any]
"""From a request's body and how often it came before: None (all well), a status, or a word for a broken connection."""


class Stub(ThreadingHTTPServer):
    """Answers right, but for the trouble it is told to make; remembers what it was asked."""

    daemon_threads = True

    def __init__(self, trouble: Trouble, *, port: int = 0, context: int | None = 100) -> None:
        self.trouble, self.context = trouble, context
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
        """Clients that hang up are part of the game."""


class Handler(BaseHTTPRequestHandler):
    server: Stub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        status = self.server.trouble({}, -1)
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
        trouble = self.server.trouble(body, before)
        with self.server.lock:
            self.server.busy -= 1
        if trouble == "hang up":
            self.connection.shutdown(socket.SHUT_RDWR)
        elif trouble == "half an answer":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b'{"choices": [')
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
        elif trouble == "dribble":
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            for _ in range(40):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.05)
        elif isinstance(trouble, int):
            self._send(trouble, {"error": {"message": f"trouble {trouble} for a test"}})
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


def tokens_of(seed: int, room: int) -> tuple[list[int], str]:
    """The stub's whole language model: up to six tokens, a function of the seed."""
    word = int(mix64(np.uint64(seed)))
    tokens = [(word >> (4 * i)) % 6 for i in range(word % 6)]
    return (tokens[:room], "length") if len(tokens) >= room else ([*tokens, END], "stop")


@contextmanager
def serving(trouble: Trouble = lambda body, before: None, **settings: Any) -> Iterator[Stub]:
    with Stub(trouble, **settings) as stub:
        thread = threading.Thread(target=stub.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield stub
        finally:
            stub.shutdown()
            thread.join()


class NoScores:
    """A scorer that nobody asks here."""

    def score(self, request: ScoreRequest, teachers: Any) -> PathScores:
        raise NotImplementedError

    def token_log_probs(self, question: Question, rollouts: Rollouts, teacher: Any) -> Any:
        raise NotImplementedError


def student(url: str | list[str], *, model: str = "student", max_tokens: int = 5, **line: Any) -> ServerStudent:
    settings = {"patience_s": 20.0, "timeout_s": 10.0, "samples_per_call": 3} | line
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
def short_pauses(monkeypatch):
    monkeypatch.setattr(line_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(line_module, "LONGEST_PAUSE_S", 0.1)


@pytest.fixture(scope="module")
def untroubled():
    """What a server that never fails gives."""
    with serving() as stub:
        return student(stub.url).sample(requests())


def test_every_rollout_asked_for_comes_back_in_order_with_prefix_and_end(untroubled):
    with serving() as stub:
        asker = student(stub.url)
        keys = np.concatenate(asker.keys(requests()))
        assert np.array_equal(untroubled.key_R, keys)
        assert untroubled.launch_R.tolist() == [0] * 7 + [1] * 7 + [2] * 7 + [5] * 7
        for row in range(len(untroubled)):
            completion, launch = untroubled.completion(row).tolist(), untroubled.launch_R[row]
            assert completion[:launch] == requests()[row // 7].prefix.tolist()
            assert (completion[-1] == END) == (untroubled.finish_R[row] == Finish.STOPPED)
            assert len(completion) <= 5 or untroubled.finish_R[row] == Finish.STOPPED
        assert set(untroubled.finish_R.tolist()) == {Finish.STOPPED, Finish.TRUNCATED}


def test_a_prefix_as_long_as_the_limit_is_truncated_without_asking():
    with serving() as stub:
        result = student(stub.url).sample(requests()[3:])
        assert result.finish_R.tolist() == [Finish.TRUNCATED] * 7
        assert not stub.bodies


def test_how_a_request_is_cut_into_calls_does_not_show(untroubled):
    with serving() as stub:
        for size in (1, 2, 7, 100):
            assert same(student(stub.url, samples_per_call=size).sample(requests()), untroubled)
        assert {body["n"] for body in stub.bodies} == {1, 2, 7}


def test_a_larger_first_gives_fresh_samples_that_continue_the_old_ones(untroubled):
    question, none = Question("q"), np.empty(0, np.uint32)
    with serving() as stub:
        asker = student(stub.url)
        late = asker.sample([SampleRequest(question, none, 4, first=3)])
        assert same(late, untroubled.take(np.arange(3, 7)))
        asker.sample([SampleRequest(question, none, 7, first=7)])
        seeds = Counter(body["seed"] + i for body in stub.bodies for i in range(body["n"]))
        assert len(seeds) == 11  # 3..6 and 7..13
        assert set(seeds.values()) == {1}


def test_the_server_is_told_everything_it_would_else_take_from_the_model():
    with serving() as stub:
        student(stub.url, api_key="secret").sample(requests()[:1])
        assert stub.headers[0]["Authorization"] == "Bearer secret"
        said = {name: stub.bodies[0][name] for name in stub.bodies[0].keys() - {"seed", "prompt", "n"}}
    assert said == {
        "model": "student", "max_tokens": 5, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "stop_token_ids": [END],
        "ignore_eos": True, "return_token_ids": True,
    }  # fmt: skip
    assert "secret" not in repr(student("http://127.0.0.1:1", api_key="secret"))


@pytest.mark.parametrize("trouble", [500, 502, 503, 429, 408, "hang up", "half an answer"])
def test_passing_trouble_leaves_no_trace(trouble, untroubled):
    with serving(lambda body, before: trouble if 0 <= before < 2 else None) as stub:
        assert same(student(stub.url).sample(requests()), untroubled)
        assert set(Counter(json.dumps(body) for body in stub.bodies).values()) == {3}


def test_trouble_at_random_leaves_no_trace(untroubled):
    rng = random.Random(1)
    kinds = [500, 429, "hang up", "half an answer", None]
    with serving(lambda body, before: rng.choice(kinds) if before >= 0 else None) as stub:
        assert same(student(stub.url, samples_per_call=1).sample(requests()), untroubled)
        assert len(stub.bodies) > 21


@pytest.mark.parametrize("hang", [1.0, "dribble"])
def test_an_answer_that_takes_too_long_is_asked_for_again(hang, untroubled):
    def slow(body, before):
        if before == 0 and hang != "dribble":
            time.sleep(hang)
        return "dribble" if before == 0 and hang == "dribble" else None

    with serving(slow) as stub:
        begun = time.monotonic()
        assert same(student(stub.url, timeout_s=0.4).sample(requests()), untroubled)
        assert time.monotonic() - begun < 10


def test_a_server_that_dies_and_comes_back_is_waited_for(untroubled):
    with serving() as stub:
        port = stub.server_address[1]
    result = []
    asker = threading.Thread(target=lambda: result.append(student(f"http://127.0.0.1:{port}").sample(requests())))
    asker.start()
    time.sleep(0.5)
    with serving(port=port):
        asker.join(timeout=20)
    assert same(result[0], untroubled)


def test_a_server_that_stays_away_ends_the_run_with_address_tries_and_reason():
    with serving() as stub:
        url = stub.url
    with pytest.raises(ServerUnavailable, match=rf"{url}/v1/models did not answer: \d+ tries.*patience 0.5 s.*Connect"):
        student(url, patience_s=0.5).sample(requests())


def test_a_server_that_only_fails_ends_the_run_and_stops_the_other_calls():
    with serving(lambda body, before: 500 if before >= 0 else None) as stub:
        with pytest.raises(
            ServerUnavailable, match=r"completions did not answer: [2-9]\d* tries.*HTTP 500: trouble 500"
        ):
            student(stub.url, patience_s=0.5).sample(requests())
        asked = len(stub.bodies)
        time.sleep(0.3)
        assert len(stub.bodies) == asked


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_refused_for_good_is_a_failure_and_the_others_go_on(status, untroubled):
    def refuse(body, before):
        return status if body.get("prompt") == [1, 2, 3] else None

    with serving(refuse) as stub:
        asker = student(stub.url)
        result = asker.sample(requests())
        refused = asker.keys(requests()[1:2])[0].tolist()
        assert [failure.key for failure in result.failures] == refused
        assert {failure.reason for failure in result.failures} == {f"HTTP {status}: trouble {status} for a test"}
        others = untroubled.take(~np.isin(untroubled.key_R, refused))
        assert same(Rollouts.join([others]), Rollouts.join([result.take(np.arange(len(result)))]))
        assert max(Counter(json.dumps(body) for body in stub.bodies).values()) == 1


def test_a_server_that_refuses_everything_stops_the_run():
    with (
        serving(lambda body, before: 400 if before >= 0 else None) as stub,
        pytest.raises(OpdAlignError, match=rf"{stub.url}/v1/completions refused all 9 requests .* HTTP 400: trouble"),
    ):
        student(stub.url).sample(requests())


@pytest.mark.parametrize(("status", "hint"), [(401, "api_key"), (403, "api_key"), (404, "url")])
def test_an_answer_that_concerns_all_requests_stops_the_run(status, hint):
    with (
        serving(lambda body, before: status if before >= 0 else None) as stub,
        pytest.raises(OpdAlignError, match=rf"HTTP {status}.*{hint}"),
    ):
        student(stub.url).sample(requests())


def test_a_wrong_model_name_is_found_before_anything_is_asked():
    with serving() as stub:
        with pytest.raises(OpdAlignError, match=r"does not serve 'studnet'; it serves \['other', 'student'\]"):
            student(stub.url, model="studnet").sample(requests())
        assert not stub.bodies


def test_a_context_too_short_is_found_before_anything_is_asked():
    with serving(context=6) as stub:
        assert student(stub.url).context_length == 6
        with pytest.raises(OpdAlignError, match=r"2 prompt tokens and up to 5 new ones do not fit .*\(6\)"):
            student(stub.url).sample(requests())
        assert not stub.bodies
    with serving(context=7) as stub:
        assert len(student(stub.url).sample(requests())) == 28


def test_a_server_that_does_not_tell_its_context_is_believed(untroubled):
    with serving(context=None) as stub:
        assert student(stub.url).context_length is None
        assert same(student(stub.url).sample(requests()), untroubled)


def test_a_server_without_token_ids_is_refused():
    with serving() as stub:
        stub.cut_token_ids = True
        with pytest.raises(OpdAlignError, match="return_token_ids"):
            student(stub.url).sample(requests())


def test_a_stop_at_a_token_that_ends_nothing_is_a_failure():
    with serving() as stub:
        stub.wrong_token = True
        result = student(stub.url).sample(requests())
    assert set(result.finish_R.tolist()) == {Finish.TRUNCATED}
    assert {failure.reason for failure in result.failures} == {"the server ended the rollout with 'stop' at token 7"}
    assert len(result) + len(result.failures) == 28


@pytest.mark.parametrize("places", [1, 3])
def test_no_more_calls_are_under_way_than_the_line_allows(places, untroubled):
    with serving() as stub:
        stub.pause_s = 0.02
        assert same(student(stub.url, samples_per_call=1, concurrency=places).sample(requests()), untroubled)
        assert stub.busiest == places


def test_the_address_may_end_in_v1_and_is_no_part_of_the_fingerprint(untroubled):
    with serving() as stub:
        assert same(student(stub.url + "/v1/").sample(requests()), untroubled)
    assert student("http://127.0.0.1:1").fingerprint == student("http://127.0.0.1:2").fingerprint
    assert student("http://127.0.0.1:1").fingerprint != student("http://127.0.0.1:1", max_tokens=6).fingerprint


# -- several servers ------------------------------------------------------------------------------------------


def test_calls_go_to_the_least_loaded_server(untroubled):
    with serving() as one, serving() as two:
        one.pause_s = two.pause_s = 0.02
        asker = student([one.url, two.url + "/v1", one.url], samples_per_call=1, concurrency=3)
        assert same(asker.sample(requests()), untroubled)
        assert len(one.bodies) + len(two.bodies) == 21
        assert min(len(one.bodies), len(two.bodies)) >= 8
        assert one.busiest == two.busiest == 3
        assert asker.fingerprint == student(one.url).fingerprint


def test_a_slow_server_gets_less(untroubled):
    with serving() as slow, serving() as fast:
        slow.pause_s, fast.pause_s = 0.2, 0.005
        assert same(student([slow.url, fast.url], samples_per_call=1, concurrency=2).sample(requests()), untroubled)
        assert len(slow.bodies) < 6 < len(fast.bodies)


def test_a_server_that_is_away_from_the_start_is_done_without(untroubled, caplog):
    with serving() as gone:
        away = gone.url
    with serving() as there:
        assert same(student([away, there.url], samples_per_call=1).sample(requests()), untroubled)
        assert student([away, there.url]).context_length == 100
        assert len(there.bodies) == 21
    assert f"{away}/v1/models: ConnectError" in caplog.text
    assert "the others go on" in caplog.text


@pytest.mark.parametrize("trouble", [500, "hang up", "half an answer"])
def test_what_a_dying_server_had_goes_to_the_others(trouble, untroubled):
    asked = Counter()

    def dying(body, before):
        asked["all"] += before >= 0
        return trouble if before >= 0 and asked["all"] > 4 else None

    with serving(dying) as one, serving() as two:
        two.pause_s = 0.02
        begun = time.monotonic()
        asker = student([one.url, two.url], samples_per_call=1, concurrency=3, patience_s=60)
        assert same(asker.sample(requests()), untroubled)
        assert time.monotonic() - begun < 10
        # Those under way when it died, and then one at a time to see whether it is back.
        assert 4 < len(one.bodies) < 21
        assert len(two.bodies) == 17


def test_a_server_that_comes_back_is_used_again(untroubled):
    back = threading.Event()
    with serving(lambda body, before: None if back.is_set() or before < 0 else 503) as one, serving() as two:
        two.pause_s = 0.05
        threading.Timer(0.3, back.set).start()
        made = student([one.url, two.url], samples_per_call=1, concurrency=1).sample(requests(14))
        assert len(two.bodies) < 42  # some of them were made by the first
        assert same(made, student(two.url).sample(requests(14)))


def test_when_all_servers_are_gone_the_run_ends_with_their_addresses():
    with serving() as one, serving() as two:
        urls = [one.url, two.url]
    with pytest.raises(
        ServerUnavailable, match=rf"{urls[0]}/v1/models and {urls[1]}/v1/models did not answer: \d+ tries.*Connect"
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


def test_it_can_be_asked_from_within_a_running_loop(untroubled):
    async def notebook(url):
        return student(url).sample(requests())

    with serving() as stub:
        assert same(asyncio.run(notebook(stub.url)), untroubled)


def test_asking_leaves_the_global_generator_alone():
    state = random.getstate()
    with serving(lambda body, before: 500 if before == 0 else None) as stub:
        student(stub.url).sample(requests())
    assert random.getstate() == state


def test_nothing_to_do_asks_nobody():
    assert len(student("http://127.0.0.1:1").sample([])) == 0
    assert len(student("http://127.0.0.1:1").sample(requests(n=0))) == 0


def test_bad_settings_are_refused_in_the_users_words():
    with pytest.raises(OpdAlignError, match=r"temperature 0\.01 or above"):
        ServerStudent("http://127.0.0.1:1", "m", lambda q: [1], (END,), NoScores(), Sampling(temperature=0.001))
    hotter = NoScores()
    hotter.sampling = Sampling(temperature=2.0)
    with pytest.raises(OpdAlignError, match="another distribution"):
        ServerStudent("http://127.0.0.1:1", "m", lambda q: [1], (END,), hotter, Sampling())
    with pytest.raises(OpdAlignError, match="a line needs"):
        HttpSettings(concurrency=0)
    ended = SampleRequest(Question("q"), np.array([END], np.uint32), 1)
    with pytest.raises(OpdAlignError, match="cannot hold an end-of-sequence token"):
        student("http://127.0.0.1:1").sample([ended])
    with pytest.raises(OpdAlignError, match="is no address"):
        student("http://127.0.0.1:port").sample(requests())
