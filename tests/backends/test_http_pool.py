"""The HTTP pool against servers that are down, busy or wrong: which is used, which is trusted, when to give up."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from opd_align.backends import http_pool
from opd_align.backends.http_pool import (
    HttpPool,
    HttpResponse,
    HttpSettings,
    InvalidResponse,
    ServerUnavailable,
    hide_passwords,
    server_urls,
)
from opd_align.types import OpdAlignError

pytest.importorskip("httpx")

DOWN = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "INITIAL_BACKOFF_S", 0.002)
    monkeypatch.setattr(http_pool, "MAX_BACKOFF_S", 0.05)


@asynccontextmanager
async def serving(respond: Callable[[str], tuple[int, float]], concurrency: int = 1000) -> AsyncIterator[str]:
    """A server that responds to a body with a status after a pause, a limited number at a time."""
    free, tasks = asyncio.Semaphore(concurrency), set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with closing(writer), suppress(OSError, EOFError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
                status, pause_s = respond((await reader.readexactly(int(length.split(b":")[1]))).decode())
                async with free:
                    await asyncio.sleep(pause_s)
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\n{}" % status)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


def healthy(body: str) -> tuple[int, float]:
    return 200, 0.1


def rejecting(body: str) -> tuple[int, float]:
    return 400, 0.0


async def statuses(urls: list[str], calls: int, **settings: float) -> Counter[int]:
    async with HttpPool(urls, HttpSettings(**settings)) as pool:  # type: ignore[arg-type]
        responses = await asyncio.gather(*(pool.call("POST", "/x", {"number": number}) for number in range(calls)))
    return Counter(response.status_code for response in responses)


def test_a_server_that_is_down_does_not_matter_while_another_responds() -> None:
    async def work() -> Counter[int]:
        async with serving(lambda body: (200, 0.3)) as url:
            return await statuses([url, DOWN], 20, concurrency=4, patience_s=0.2)

    assert asyncio.run(work()) == {200: 20}


def test_a_busy_server_is_not_treated_as_down() -> None:
    """Calls wait in its queue for longer than timeout_s, but other calls get responses all the time."""

    async def work() -> Counter[int]:
        async with serving(healthy, concurrency=4) as url:
            return await statuses([url], 40, concurrency=32, timeout_s=0.3, patience_s=0.1)

    assert asyncio.run(work()) == {200: 40}


def test_a_call_lost_at_a_busy_server_is_retried() -> None:
    received = Counter[str]()

    def losing(body: str) -> tuple[int, float]:
        received[body] += 1
        return 200, 100.0 if '"number":0' in body and received[body] == 1 else 0.1

    async def work() -> Counter[int]:
        async with serving(losing) as url:
            return await statuses([url], 60, concurrency=2, timeout_s=0.3)

    assert asyncio.run(work()) == {200: 60}


def test_a_server_that_rejects_everything_loses_no_calls() -> None:
    async def work() -> Counter[int]:
        async with serving(healthy) as good, serving(rejecting) as bad:
            return await statuses([good, bad], 200, concurrency=16)

    assert asyncio.run(work()) == {200: 200}


def test_a_server_that_was_wrong_is_not_trusted_while_the_others_are_down() -> None:
    received = Counter[str]()

    def shaky(body: str) -> tuple[int, float]:
        received["all"] += 1
        return 503 if 3 < received["all"] < 30 else 200, 0.02

    async def work() -> Counter[int]:
        async with serving(shaky) as good, serving(rejecting) as bad:
            return await statuses([good, bad], 60, concurrency=4, patience_s=20.0)

    assert asyncio.run(work()) == {200: 60}


def test_a_rejection_is_accepted_if_a_second_server_agrees_or_none_is_healthy() -> None:
    def picky(body: str) -> tuple[int, float]:
        return 400 if '"number":7' in body else 200, 0.0

    async def work(*others: str) -> Counter[int]:
        async with serving(picky) as one, serving(picky) as two:
            return await statuses([one, *(others or [two])], 10, concurrency=2)

    assert asyncio.run(work()) == {200: 9, 400: 1}
    assert asyncio.run(work(DOWN)) == {200: 9, 400: 1}


def test_a_call_that_fails_while_others_succeed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_pool, "MAX_LONE_FAILURES", 5)

    def picky(body: str) -> tuple[int, float]:
        number = json.loads(body)["number"]
        return (200, 0.05 * number) if number else (500, 0.0)

    async def work() -> Counter[int]:
        async with serving(picky) as url:
            return await statuses([url], 40, concurrency=40, patience_s=5.0)

    with pytest.raises(
        ServerUnavailable, match=r"responded to other calls, but one call failed \d+ times. Last error: HTTP 500"
    ):
        asyncio.run(work())


def test_a_run_ends_when_no_server_responds() -> None:
    with pytest.raises(
        ServerUnavailable, match=r"\d+ attempts, \d+ s without a response \(patience_s 0.2\).*timeout_s"
    ):
        asyncio.run(statuses([DOWN], 3, patience_s=0.2))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost:8000/v1", "ftp://host", "http://", "http://h:99999"])
def test_invalid_urls_are_rejected(url: str) -> None:
    with pytest.raises(OpdAlignError, match="is not a valid server URL"):
        server_urls([url])


@pytest.mark.parametrize(
    "url",
    [
        "http://me:cret/x@host:1",
        "http://me:1/ret@host",
        "http://me:cret@host:99999",
        "http://me:c#ret@h",
        "ftp://me:cret@host",
        "http://a@cret@",
    ],
)
def test_an_error_about_a_url_does_not_show_its_password(url: str) -> None:
    with pytest.raises(OpdAlignError, match="is not a valid server URL") as error:
        server_urls([url])
    assert "ret" not in str(error.value)


def test_urls_are_returned_without_user_and_password() -> None:
    assert server_urls(["http://me:secret@host:8000/v1/", "http://host:8000"]) == ("http://host:8000",)
    assert hide_passwords("see http://a:b@host/x, or not") == "see http://***@host/x, or not"


@asynccontextmanager
async def raw_server(*responses: bytes) -> AsyncIterator[tuple[str, list[float]]]:
    """Sends the given responses one after the other, the last again and again; with the times of the requests."""
    times: list[float] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, EOFError):
            await reader.readuntil(b"\r\n\r\n")
            times.append(time.monotonic())
            writer.write(responses[min(len(times), len(responses)) - 1])
            await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", times


def response(status: int, content: bytes = b"{}", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(content)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + content


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("form", ["seconds", "date"])
def test_retry_after_is_respected_by_all_calls(status: int, form: str) -> None:
    async def work() -> list[float]:
        value = "1" if form == "seconds" else format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)
        async with raw_server(response(status, b"{}", f"Retry-After: {value}"), response(200)) as (url, times):
            assert await statuses([url], 3, concurrency=1, patience_s=20.0) == {200: 3}
            return times

    times = asyncio.run(work())
    assert len(times) == 4
    assert times[1] - times[0] > 0.9  # the others wait as well, which would otherwise be sent at once


def test_retry_after_beyond_the_patience_is_shortened() -> None:
    async def work() -> Counter[int]:
        async with raw_server(response(503, b"{}", "Retry-After: 86400")) as (url, _):
            return await statuses([url], 3, patience_s=0.2)

    with pytest.raises(ServerUnavailable, match="did not respond"):
        asyncio.run(asyncio.wait_for(work(), 30))


def test_while_one_server_asks_to_wait_the_others_are_used() -> None:
    async def work() -> tuple[Counter[int], int]:
        busy = raw_server(response(429, b"{}", "Retry-After: 60"))
        async with busy as (url, times), serving(lambda body: (200, 0.0)) as other:
            return await statuses([url, other], 20, concurrency=1, patience_s=100.0), len(times)

    assert asyncio.run(asyncio.wait_for(work(), 30)) == ({200: 20}, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (response(200, b"no gzip", "Content-Encoding: gzip"), "cannot be decompressed"),
        (response(200, gzip.compress(bytes(1 << 20)), "Content-Encoding: gzip"), "sent more than 0 MiB"),
    ],
)
def test_a_body_that_cannot_be_read_is_an_invalid_response(
    data: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_pool, "MAX_RESPONSE_BYTES", 1 << 18)

    async def work() -> int:
        async with raw_server(data) as (url, times):
            with pytest.raises(InvalidResponse, match=message):
                await statuses([url], 1, patience_s=20.0)
            return len(times)

    assert asyncio.run(work()) == http_pool.MAX_INVALID_RESPONSES


def test_an_invalid_response_is_replaced_by_that_of_another_server() -> None:
    def read(response: HttpResponse) -> str:
        if response.content != b"good":
            raise InvalidResponse("bad")
        return "read"

    async def work() -> list[str]:
        async with (
            raw_server(response(200, b"bad")) as (bad, _),
            raw_server(response(200, b"good")) as (good, _),
            HttpPool([bad, good], HttpSettings()) as pool,
        ):
            calls = [pool.call("POST", "/x", {}, read=read) for _ in range(20)]
            return [each.value for each in await asyncio.gather(*calls)]

    assert asyncio.run(work()) == ["read"] * 20


def test_nan_is_not_a_valid_timeout() -> None:
    with pytest.raises(OpdAlignError, match="timeout_s above 0"):
        HttpSettings(timeout_s=float("nan"))
