"""Lines to servers that are away, busy or wrong: who is asked, who is believed, and when to give up."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress

import pytest

from opd_align.backends import http_pool as line_module
from opd_align.backends.http_pool import HttpPool, HttpSettings, ServerUnavailable, server_urls
from opd_align.types import OpdAlignError

pytest.importorskip("httpx")

AWAY = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "FIRST_PAUSE_S", 0.002)
    monkeypatch.setattr(line_module, "LONGEST_PAUSE_S", 0.05)


@asynccontextmanager
async def serving(answer: Callable[[str], tuple[int, float]], places: int = 1000) -> AsyncIterator[str]:
    """A server that answers a body with a status after a pause, so many at a time, whether clients wait or not."""
    free, tasks = asyncio.Semaphore(places), set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with closing(writer), suppress(OSError, EOFError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
                status, pause_s = answer((await reader.readexactly(int(length.split(b":")[1]))).decode())
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


def well(body: str) -> tuple[int, float]:
    return 200, 0.1


def wrong(body: str) -> tuple[int, float]:
    return 400, 0.0


async def answers(urls: list[str], calls: int, **line: float) -> Counter[int]:
    async with HttpPool(urls, HttpSettings(**line)) as opened:  # type: ignore[arg-type]
        found = await asyncio.gather(*(opened.call("POST", "/x", {"number": number}) for number in range(calls)))
    return Counter(response.status_code for response in found)


def test_a_server_that_is_away_ends_nothing_while_another_answers() -> None:
    async def work() -> Counter[int]:
        async with serving(lambda body: (200, 0.3)) as url:
            return await answers([url, AWAY], 20, concurrency=4, patience_s=0.2)

    assert asyncio.run(work()) == {200: 20}


def test_a_server_that_is_busy_is_not_gone() -> None:
    """Calls queue there for longer than an answer may take, but others are answered all the while."""

    async def work() -> Counter[int]:
        async with serving(well, places=4) as url:
            return await answers([url], 40, concurrency=32, timeout_s=0.3, patience_s=0.1)

    assert asyncio.run(work()) == {200: 40}


def test_a_call_that_got_lost_at_a_busy_server_is_made_again() -> None:
    asked = Counter[str]()

    def losing(body: str) -> tuple[int, float]:
        asked[body] += 1
        return 200, 100.0 if '"number":0' in body and asked[body] == 1 else 0.1

    async def work() -> Counter[int]:
        async with serving(losing) as url:
            return await answers([url], 60, concurrency=2, timeout_s=0.3)

    assert asyncio.run(work()) == {200: 60}


def test_a_server_that_refuses_everything_swallows_nothing() -> None:
    async def work() -> Counter[int]:
        async with serving(well) as good, serving(wrong) as bad:
            return await answers([good, bad], 200, concurrency=16)

    assert asyncio.run(work()) == {200: 200}


def test_whoever_was_wrong_is_not_believed_while_the_others_are_away() -> None:
    asked = Counter[str]()

    def shaky(body: str) -> tuple[int, float]:
        asked["all"] += 1
        return 503 if 3 < asked["all"] < 30 else 200, 0.02

    async def work() -> Counter[int]:
        async with serving(shaky) as good, serving(wrong) as bad:
            return await answers([good, bad], 60, concurrency=4, patience_s=20.0)

    assert asyncio.run(work()) == {200: 60}


def test_a_refusal_is_believed_when_a_second_server_agrees_or_none_can_be_asked() -> None:
    def picky(body: str) -> tuple[int, float]:
        return 400 if '"number":7' in body else 200, 0.0

    async def work(*others: str) -> Counter[int]:
        async with serving(picky) as one, serving(picky) as two:
            return await answers([one, *(others or [two])], 10, concurrency=2)

    assert asyncio.run(work()) == {200: 9, 400: 1}
    assert asyncio.run(work(AWAY)) == {200: 9, 400: 1}


def test_a_call_that_alone_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_module, "PASSED_OVER", 5)

    def picky(body: str) -> tuple[int, float]:
        number = json.loads(body)["number"]
        return (200, 0.05 * number) if number else (500, 0.0)

    async def work() -> Counter[int]:
        async with serving(picky) as url:
            return await answers([url], 40, concurrency=40, patience_s=5.0)

    with pytest.raises(
        ServerUnavailable, match=r"answered others, but failed \d+ times at one call. Last error: HTTP 500"
    ):
        asyncio.run(work())


def test_nobody_answering_ends_the_run() -> None:
    with pytest.raises(ServerUnavailable, match=r"\d+ tries, \d+ s without an answer \(patience 0.2 s\).*timeout_s"):
        asyncio.run(answers([AWAY], 3, patience_s=0.2))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "localhost:8000/v1", "ftp://host", "http://", "http://h:99999"])
def test_what_is_no_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(OpdAlignError, match="is no address of a server"):
        server_urls([url])


def test_the_times_of_a_line_are_numbers() -> None:
    with pytest.raises(OpdAlignError, match="a line needs"):
        HttpSettings(timeout_s=float("nan"))
