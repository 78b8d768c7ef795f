"""Lines to servers: calls that outlive a server that goes away, and go to another one where there are several.

Connection errors, time-outs, 429 and 5xx are passing trouble. A call that meets it goes to the least loaded server that
is well, at once; where none is, it is tried again with growing, jittered pauses, until it has been kept waiting for
longer than the line's patience. A server that failed is tried by one call at a time until it answers again. All
servers of a line must serve the same: who answers is left to chance.

This room knows HTTP; what is said over the line, it does not.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
GREETING_S = 10.0
"""How long one of several servers may take to say that it is there."""
COMPLAIN_EVERY_S = 30.0
TRY_AGAIN = {408, 425, 429}


class ServerGone(OpdAlignError):
    """No server answered within the line's patience."""


@dataclass(frozen=True)
class Line:
    """How to talk to servers.

    `concurrency` bounds the calls under way at each of them, `samples_per_call` the rollouts that one lost answer
    costs. `timeout_s` is for one whole answer. `patience_s` is how long a call goes on trying after its first failure.
    """

    concurrency: int = 32
    samples_per_call: int = 64
    timeout_s: float = 900.0
    patience_s: float = 300.0
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.samples_per_call < 1 or self.timeout_s <= 0 or self.patience_s < 0:
            raise OpdAlignError(f"a line needs at least one call, one sample and a positive time-out; got {self}")


def addresses(url: str | Sequence[str]) -> tuple[str, ...]:
    """The servers' addresses, each once, without `/v1`."""
    given = [url] if isinstance(url, str) else url
    return tuple(dict.fromkeys(each.rstrip("/").removesuffix("/v1") for each in given))


@dataclass
class _Server:
    """One server as this line knows it: calls under way, failures since its last answer, and when to try it again."""

    base: str
    calls: int = 0
    failures: int = 0
    rests_until: float = 0.0
    complained_at: float = -float("inf")


class OpenLine:
    """An open line to one or several servers; use it as an asynchronous context manager."""

    def __init__(self, url: str | Sequence[str], line: Line) -> None:
        self.line = line
        self.servers = [_Server(base) for base in addresses(url)]
        # Not the global generator: a student that is asked during training must not change the run.
        self.chance = random.Random()
        self.changed = asyncio.Condition()

    async def __aenter__(self) -> OpenLine:
        httpx, key = httpx_library(), self.line.api_key
        self.client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            # We bound the calls ourselves; waiting for a connection must not eat into an answer's time.
            timeout=httpx.Timeout(self.line.timeout_s, connect=min(30.0, self.line.timeout_s), pool=None),
            limits=httpx.Limits(max_connections=self.line.concurrency * len(self.servers)),
            # Loading the certificates takes longer than many an answer, and plain http has no use for them.
            verify=any(not server.base.startswith("http://") for server in self.servers),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def from_each(self, path: str) -> list[Any]:
        """The answers of all servers that are there; where none is, that of the first to come back."""
        if len(self.servers) == 1:
            return [await self.call("GET", path)]
        greetings = (self._tried(server, GREETING_S, "GET", path, None) for server in self.servers)
        found = [response for response, _ in await asyncio.gather(*greetings) if response is not None]
        return found or [await self.call("GET", path)]

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The first answer that is not a passing trouble."""
        tries, down_since = 0, float("inf")
        while True:
            tries += 1
            async with self._least_loaded() as server:
                response, trouble = await self._tried(server, self.line.timeout_s, method, path, body)
            if response is not None:
                return response
            now = time.monotonic()
            down_since = min(down_since, now)
            pause = self._pause(tries)
            # A slow failure may outlast the patience by itself; it still gets its second try, and one at every server.
            enough = max(len(self.servers), 1 if self.line.patience_s == 0 else 2)
            if now + pause - down_since > self.line.patience_s and tries >= enough:
                raise ServerGone(
                    f"{' and '.join(each.base + path for each in self.servers)} did not answer: {tries} tries, "
                    f"{now - down_since:.0f} s since the first failure (patience {self.line.patience_s:g} s). "
                    f"Last error: {trouble}. Is the server up, and is the address right?"
                )
            if all(each.failures for each in self.servers):
                await asyncio.sleep(pause)

    @asynccontextmanager
    async def _least_loaded(self) -> AsyncIterator[_Server]:
        async with self.changed:
            while not (free := self._free()):
                await self.changed.wait()
            server = min(free, key=lambda each: (each.calls, self.chance.random()))
            server.calls += 1
        try:
            yield server
        finally:
            async with self.changed:
                server.calls -= 1
                self.changed.notify_all()

    def _free(self) -> list[_Server]:
        """Servers that take another call."""
        now, some_are_well = time.monotonic(), not all(each.failures for each in self.servers)

        def room(server: _Server) -> int:
            if not server.failures or not some_are_well:
                return self.line.concurrency
            return int(now >= server.rests_until)

        return [server for server in self.servers if server.calls < room(server)]

    async def _tried(
        self, server: _Server, timeout_s: float, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[Any, str]:
        """An answer, or `None` and what the trouble was."""
        try:
            # httpx counts a time-out from each byte; a server that dribbles must not hold us for ever.
            async with asyncio.timeout(timeout_s):
                response = await self.client.request(method, server.base + path, json=body)
            if response.status_code < 500 and response.status_code not in TRY_AGAIN:
                server.failures = 0
                return response, ""
            trouble = f"HTTP {response.status_code}: {message_of(response)}"
        except TimeoutError:
            trouble = f"no answer in {timeout_s:g} s"
        except httpx_library().TransportError as error:
            trouble = f"{type(error).__name__}: {error}"
        except httpx_library().InvalidURL as error:
            raise OpdAlignError(f"{server.base!r} is no address of a server: {error}") from None
        server.failures += 1
        now = time.monotonic()
        server.rests_until = now + self._pause(server.failures)
        if now - server.complained_at > COMPLAIN_EVERY_S:
            server.complained_at = now
            others = "the others go on" if len(self.servers) > 1 else f"trying again for {self.line.patience_s:g} s"
            logger.warning("%s%s: %s; %s", server.base, path, trouble, others)
        return None, trouble

    def _pause(self, tries: int) -> float:
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(tries - 1, 16)) * self.chance.uniform(0.5, 1.5)


def message_of(response: Any) -> str:
    """What the server says is wrong, short."""
    try:
        text = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(str(text).split())[:300]


def httpx_library() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise OpdAlignError(
            "asking a server needs httpx, which is not installed: pip install 'opd-align[server]'"
        ) from error
    return httpx
