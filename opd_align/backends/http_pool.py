"""Lines to servers: calls that outlive a server that goes away, and go to another one where there are several.

Connection errors, time-outs, 429 and 5xx are passing trouble. A call that meets it goes to the least loaded server that
is well, at once; where none is, it is tried again with growing, jittered pauses, until no server has answered anyone
for longer than the line's patience. A server that failed is tried by one call at a time until it answers again. All
servers of a line must serve the same: who answers is left to chance, and a refusal (any other 4xx) is believed only
when a second server that is well, if there is one, refuses too.

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
from urllib.parse import urlsplit

from opd_align.types import OpdAlignError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 10.0
GREETING_S = 10.0
"""How long one of several servers may take to say that it is there."""
LONGEST_WAIT = 4
"""How many time-outs a call may wait at a server that answers others: one that is busy is not gone, but a call that got
lost on the way would wait for ever."""
PASSED_OVER = 100
"""How often a call may fail while others are answered: then the trouble is its own, and no patience will help."""
COMPLAIN_EVERY_S = 30.0
TRY_AGAIN = {408, 425, 429}

HEARD: dict[str, float] = {}
"""When a server last answered anyone in this process: many workers may queue at one of them."""


class ServerUnavailable(OpdAlignError):
    """No server answered within the line's patience."""


@dataclass(frozen=True)
class HttpSettings:
    """How to talk to servers.

    `concurrency` bounds the calls under way at each of them, `samples_per_call` the rollouts that one lost answer
    costs. `timeout_s` is for one whole answer, from when the call was made or the server last answered another one.
    `patience_s` is how long a call that failed goes on trying while nobody gets an answer.
    """

    concurrency: int = 32
    samples_per_call: int = 64
    timeout_s: float = 900.0
    patience_s: float = 300.0
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        times = self.timeout_s > 0 and self.patience_s >= 0  # which NaN is not
        if self.concurrency < 1 or self.samples_per_call < 1 or not times:
            raise OpdAlignError(f"a line needs at least one call, one sample and a positive time-out; got {self}")


def server_urls(url: str | Sequence[str]) -> tuple[str, ...]:
    """The servers' addresses, each once, without `/v1`; refuses what is none."""
    given = [url] if isinstance(url, str) else url
    for each in given:
        try:
            parts = urlsplit(each)
            port, right = parts.port, parts.scheme in ("http", "https") and parts.hostname
        except ValueError as error:
            raise OpdAlignError(f"{each!r} is no address of a server: {error}") from None
        if not right or port == 0:
            raise OpdAlignError(f"{each!r} is no address of a server; it is written http://HOST:PORT")
    return tuple(dict.fromkeys(each.rstrip("/").removesuffix("/v1") for each in given))


@dataclass
class _Server:
    """One server as this line knows it: calls under way, failures since its last answer, and when to try it again.

    `right` is whether it can be believed by itself when it refuses something: it has done what it was asked, or
    (`False`) refused what another one did since. `None`: nobody knows yet.
    """

    base: str
    calls: int = 0
    failures: int = 0
    right: bool | None = None
    rests_until: float = 0.0
    complained_at: float = -float("inf")


@dataclass
class _Call:
    """What became of a call so far: tries, first and last failure, how many of them came between answers to others, and
    who refused it with which answer.
    """

    tries: int = 0
    down_since: float = float("inf")
    failed_at: float = float("inf")
    passed_over: int = 0
    refusers: list[_Server] = field(default_factory=list)
    refusal: Any = None


class HttpPool:
    """An open line to one or several servers; use it as an asynchronous context manager."""

    def __init__(self, url: str | Sequence[str], line: HttpSettings) -> None:
        self.line = line
        self.servers = [_Server(base) for base in server_urls(url)]
        # Not the global generator: a student that is asked during training must not change the run.
        self.chance = random.Random()
        self.changed = asyncio.Condition()

    async def __aenter__(self) -> HttpPool:
        httpx, key = import_httpx(), self.line.api_key
        self.client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            # We bound calls and answers ourselves; waiting for a connection must not eat into an answer's time.
            timeout=httpx.Timeout(None, connect=min(30.0, self.line.timeout_s)),
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
        call = _Call()
        while True:
            async with self._least_loaded(call) as server:
                if server is None:  # nobody is left who might see it otherwise
                    refuser, told = call.refusers[0], _told(call.refusal)
                    if len(call.refusers) > 1 or self._right(refuser):
                        return call.refusal
                    self._failed(refuser, path, told)
                    await self._waited(call, path, told)
                    call.refusers, call.refusal = [], None
                    continue
                call.tries += 1
                response, trouble = await self._tried(server, self.line.timeout_s, method, path, body)
            if response is None and call.refusal is None:
                await self._waited(call, path, trouble)
            elif response is not None and response.status_code >= 400:
                call.refusal, call.refusers = response, [*call.refusers, server]
            elif response is not None:
                for each in call.refusers:
                    each.right = False
                    self._failed(each, path, f"{_told(call.refusal)}, to what {server.base} answers")
                return response

    async def _waited(self, call: _Call, path: str, trouble: str) -> None:
        """After a failure: gives up, or pauses where no server is well."""
        now, pause = time.monotonic(), self._pause(call.tries)
        heard_at = max(HEARD.get(each.base, 0.0) for each in self.servers)
        call.passed_over += heard_at > call.failed_at
        call.down_since, call.failed_at = min(call.down_since, now), now
        quiet_since = max(call.down_since, heard_at)
        if call.passed_over >= PASSED_OVER:
            raise ServerUnavailable(
                f"{' and '.join(each.base + path for each in self.servers)} answered others, but failed {call.tries} "
                f"times at one call. Last error: {trouble}"
            )
        # A slow failure may outlast the patience by itself; it still gets its second try, and one at every server.
        enough = max(len(self.servers), 1 if self.line.patience_s == 0 else 2)
        if now + pause - quiet_since > self.line.patience_s and call.tries >= enough:
            raise ServerUnavailable(
                f"{' and '.join(each.base + path for each in self.servers)} did not answer: {call.tries} tries, "
                f"{now - quiet_since:.0f} s without an answer (patience {self.line.patience_s:g} s). "
                f"Last error: {trouble}. Is the server up, and is the address right? "
                "Answers that only take long need a longer timeout_s or a lower concurrency of the line"
            )
        if all(each.failures for each in self.servers):
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _least_loaded(self, call: _Call) -> AsyncIterator[_Server | None]:
        """A slot for a call; `None` where it was refused, and no other server can be asked what it thinks."""
        async with self.changed:
            while not (free := self._free(call)):
                if call.refusers and not self._others(call):
                    break
                await self.changed.wait()
            server = min(free, key=lambda each: (each.calls, self.chance.random()), default=None)
            if server is not None:
                server.calls += 1
        try:
            yield server
        finally:
            if server is not None:
                async with self.changed:
                    server.calls -= 1
                    self.changed.notify_all()

    def _others(self, call: _Call) -> list[_Server]:
        """Servers whose word on a refused call is worth having: two that agree are believed."""
        well = [each for each in self.servers if not each.failures and each not in call.refusers]
        return well if len(call.refusers) < 2 else []

    def _right(self, server: _Server) -> bool:
        return len(self.servers) == 1 or server.right is True

    def _free(self, call: _Call) -> list[_Server]:
        """Servers that take this call."""
        now, some_are_well = time.monotonic(), not all(each.failures for each in self.servers)

        def room(server: _Server) -> int:
            if not server.failures or not some_are_well:
                return self.line.concurrency
            # Whoever has failed already is not made to find out who is still away.
            return int(now >= server.rests_until and not call.tries)

        asked = self._others(call) if call.refusers else self.servers
        return [server for server in asked if server.calls < room(server)]

    async def _tried(
        self, server: _Server, timeout_s: float, method: str, path: str, body: dict[str, Any] | None
    ) -> tuple[Any, str]:
        """An answer, or `None` and what the trouble was."""
        try:
            response = await self._answer(server, timeout_s, method, path, body)
            status = response.status_code
            refused = 400 <= status < 500 and status not in TRY_AGAIN
            if status < 400:
                server.failures = 0
                server.right = True if method == "POST" else server.right  # a greeting proves little
            if status < 400 or (refused and self._right(server)):
                HEARD[server.base] = time.monotonic()
            if status < 400 or (refused and server.right is not False):
                return response, ""
            trouble = _told(response)
        except TimeoutError:
            trouble = f"no answer in {timeout_s:g} s"
        except import_httpx().TransportError as error:
            trouble = f"{type(error).__name__}: {error}"
        except import_httpx().InvalidURL as error:
            raise OpdAlignError(f"{server.base!r} is no address of a server: {error}") from None
        self._failed(server, path, trouble)
        return None, trouble

    async def _answer(
        self, server: _Server, timeout_s: float, method: str, path: str, body: dict[str, Any] | None
    ) -> Any:
        """An answer, waited for as long as the server answers others; httpx would count from each byte."""
        begin = time.monotonic()
        asked = asyncio.ensure_future(self.client.request(method, server.base + path, json=body))
        try:
            while not asked.done():
                until = min(max(begin, HEARD.get(server.base, 0.0)), begin + (LONGEST_WAIT - 1) * timeout_s) + timeout_s
                if time.monotonic() >= until:
                    raise TimeoutError
                await asyncio.wait({asked}, timeout=until - time.monotonic())
            return asked.result()
        finally:
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    def _failed(self, server: _Server, path: str, trouble: str) -> None:
        server.failures += 1
        now = time.monotonic()
        server.rests_until = now + self._pause(server.failures)
        if now - server.complained_at > COMPLAIN_EVERY_S:
            server.complained_at = now
            others = "the others go on" if len(self.servers) > 1 else f"trying again for {self.line.patience_s:g} s"
            logger.warning("%s%s: %s; %s", server.base, path, trouble, others)

    def _pause(self, tries: int) -> float:
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(tries - 1, 16)) * self.chance.uniform(0.5, 1.5)


def _told(response: Any) -> str:
    return f"HTTP {response.status_code}: {error_message(response)}"


def error_message(response: Any) -> str:
    """What the server says is wrong, short."""
    try:
        text = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = response.text
    return " ".join(str(text).split())[:300]


def import_httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise OpdAlignError(
            "asking a server needs httpx, which is not installed: pip install 'opd-align[server]'"
        ) from error
    return httpx
