"""A pool of equivalent HTTP servers: retries transient errors, balances load, and fails over to the other servers.

Connection errors, timeouts, 408, 425, 429 and 5xx are transient. A call that meets one is sent to the least loaded
healthy server at once; if none is healthy, it is retried with growing, jittered backoff until no server has responded
to anyone for longer than `patience_s`. A server that failed gets one call at a time until it responds again. All
servers of a pool must serve the same: any of them may respond, and a rejection (any other 4xx) is accepted only when a
second healthy server, if there is one, rejects the call too. A response that cannot be read, or that the caller's
`read` does not accept, is a failure of its server; after a few of them the call is given up. `Retry-After` is
respected, up to `patience_s`. A password in a URL is sent, but is in no message.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from opd_align.types import OpdAlignError, printable

logger = logging.getLogger(__name__)

INITIAL_BACKOFF_S, MAX_BACKOFF_S = 0.25, 10.0
PROBE_TIMEOUT_S = 10.0
"""How long one of several servers may take to respond to `get_from_each`."""
MAX_TIMEOUTS_WHILE_BUSY = 4
"""How many timeouts a call may wait for a server that responds to other calls: a busy server is not down, but a call
that got lost on the way would otherwise wait forever."""
MAX_LONE_FAILURES = 100
"""How often a call may fail while others succeed: then the problem is the call itself, and waiting does not help."""
MAX_INVALID_RESPONSES = 3
"""How many invalid responses a call may get: one may be an accident, a third is how the server works."""
MAX_RESPONSE_BYTES = 1 << 29
"""Far more than the largest response to a call takes; a response that never ends must not fill the memory."""
WARN_EVERY_S = 30.0
RETRY_STATUSES = {408, 425, 429}

LAST_RESPONSE_AT: dict[str, float] = {}
"""When a server last responded to any caller in this process: many workers may queue at one of them."""


class ServerUnavailable(OpdAlignError):
    """No server responded within `patience_s`."""


class InvalidResponse(OpdAlignError):
    """A server's response is not what was requested.

    Args:
        message: The server and what is wrong.
        readable: The response with its `value`, if only parts of that are invalid. `None`: it cannot be read.
    """

    def __init__(self, message: str, readable: HttpResponse | None = None) -> None:
        super().__init__(message)
        self.readable = readable


@dataclass(frozen=True)
class HttpResponse:
    """A complete response.

    Args:
        url: The address of the request, without user name and password.
        status_code: The HTTP status.
        content: The body, decompressed.
        retry_after: The header `Retry-After`. `None`: not in the response.
        value: What the caller's `read` returned for it.
    """

    url: str
    status_code: int
    content: bytes
    retry_after: str | None = None
    value: Any = None

    def json(self) -> Any:
        """The body as JSON; raises `ValueError` if it is none, or nested too deeply."""
        try:
            return json.loads(self.content)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    @property
    def excerpt(self) -> str:
        """The start of the body, printable."""
        return printable(self.content[:800].decode("utf-8", "replace")[:200])

    @property
    def error(self) -> str:
        """Status and error message, shortened to 300 characters."""
        try:
            text = self.json()["error"]["message"]
        except (ValueError, LookupError, TypeError):
            text = self.content[:2000].decode("utf-8", "replace")
        return f"HTTP {self.status_code}: {printable(' '.join(str(text).split())[:300])}"


Read = Callable[[HttpResponse], Any]


@dataclass(frozen=True)
class HttpSettings:
    """How to talk to servers.

    Args:
        concurrency: Maximum number of concurrent calls per server; at least 1.
        samples_per_call: Maximum number of rollouts per call, which is what one lost response costs; at least 1.
        timeout_s: Time limit for one complete response, in seconds. It restarts whenever the server responds to another
            call: a busy server is not down.
        patience_s: How long a failed call is retried while no server responds to any call, in seconds; 0 or more.
        api_key: Sent as bearer token; None sends none.
    """

    concurrency: int = 32
    samples_per_call: int = 64
    timeout_s: float = 900.0
    patience_s: float = 300.0
    api_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        valid_times = self.timeout_s > 0 and self.patience_s >= 0  # both False for NaN
        if self.concurrency < 1 or self.samples_per_call < 1 or not valid_times:
            raise OpdAlignError(
                "concurrency and samples_per_call must be at least 1, timeout_s above 0, patience_s 0 or more; "
                f"got {self}"
            )


def server_urls(url: str | Sequence[str]) -> tuple[str, ...]:
    """The servers' base URLs without duplicates, `/v1`, user names and passwords; rejects invalid ones."""
    return tuple(dict.fromkeys(server.base for server in _servers(url)))


def hide_passwords(text: str) -> str:
    """Text in which the user names and passwords of URLs are replaced by `***`."""
    return re.sub(r"(?<=://)\S*@", "***@", text)


def _servers(url: str | Sequence[str]) -> list[_Server]:
    urls = [url] if isinstance(url, str) else url
    return [_server(each) for each in dict.fromkeys(each.rstrip("/").removesuffix("/v1") for each in urls)]


def _server(url: str) -> _Server:
    # The password may contain any character, so everything up to the last @ is hidden.
    shown, has_password = re.sub(r"//.*@", "//***@", url, flags=re.DOTALL), "@" in url
    try:
        parts: SplitResult = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if has_password and "@" in parts.path:
            raise ValueError  # a slash in the password: the rest of it would count as the path
    except ValueError as error:
        reason = "special characters in a password must be percent-encoded" if has_password else error
        raise OpdAlignError(f"{shown!r} is not a valid server URL: {reason}") from None
    if not valid or parts.query or parts.fragment or printable(url) != url:
        raise OpdAlignError(f"{shown!r} is not a valid server URL; expected http://HOST:PORT")
    user, password = (unquote(part or "") for part in (parts.username, parts.password))
    base = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    return _Server(base, (user, password) if user or password else None)


@dataclass
class _Server:
    """One server: calls in flight, failures since its last response, and when to try it again.

    `closed_until` is set by `Retry-After`: until then no call is sent, while `retry_at` only says when to probe.
    `trusted` says whether its rejections are accepted without a second opinion: True once it has completed a call,
    False after it rejected a call that another server then completed, None if neither has happened.
    """

    base: str
    auth: tuple[str, str] | None = field(default=None, repr=False)
    calls: int = 0
    failures: int = 0
    trusted: bool | None = None
    retry_at: float = 0.0
    closed_until: float = 0.0
    warned_at: float = -float("inf")


@dataclass
class _Call:
    """State of one call: attempts, failures (first, last, while others succeeded), invalid responses, rejections."""

    tries: int = 0
    down_since: float = float("inf")
    failed_at: float = float("inf")
    lone_failures: int = 0
    invalid: int = 0
    rejecters: list[_Server] = field(default_factory=list)
    rejection: HttpResponse | None = None


class HttpPool:
    """Connections to one or several equivalent servers; an asynchronous context manager.

    Args:
        url: Base URL of a server, or of several.
        settings: Concurrency, timeouts and API key.
    """

    def __init__(self, url: str | Sequence[str], settings: HttpSettings) -> None:
        self.settings = settings
        self.servers = _servers(url)
        # Not the global generator: evaluating a student during training must not change the training run.
        self.random = random.Random()
        self.changed = asyncio.Condition()

    async def __aenter__(self) -> HttpPool:
        httpx, key = import_httpx(), self.settings.api_key
        self.client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            # Calls and responses are limited here; waiting for a connection must not count against a response's time.
            timeout=httpx.Timeout(None, connect=min(30.0, self.settings.timeout_s)),
            limits=httpx.Limits(max_connections=self.settings.concurrency * len(self.servers)),
            # Loading the certificates takes longer than many a response, and plain http does not use them.
            verify=any(not server.base.startswith("http://") for server in self.servers),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()

    async def get_from_each(self, path: str) -> list[HttpResponse]:
        """The responses of all servers that are up; if none is, that of the first to come back."""
        if len(self.servers) == 1:
            return [await self.call("GET", path)]
        probes = (self._attempt(server, PROBE_TIMEOUT_S, "GET", path, None) for server in self.servers)
        found = [response for response, _ in await asyncio.gather(*probes) if response is not None]
        return found or [await self.call("GET", path)]

    async def call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, read: Read | None = None
    ) -> HttpResponse:
        """The first response that is not a transient error.

        Args:
            method: `GET` or `POST`.
            path: The path after the base URL.
            body: Sent as JSON. `None`: no body.
            read: From a response with status 200 to the response's `value`; raises `InvalidResponse` for one that it
                does not accept.
        """
        call = _Call()
        while True:
            async with self._least_loaded(call) as server:
                if server is None:  # no other server left to ask about the rejection
                    assert call.rejection is not None
                    rejecter, reason = call.rejecters[0], call.rejection.error
                    if len(call.rejecters) > 1 or self._trusted(rejecter):
                        return call.rejection
                    self._record_failure(rejecter, path, reason)
                    await self._give_up_or_wait(call, path, reason)
                    call.rejecters, call.rejection = [], None
                    continue
                call.tries += 1
                response, problem = await self._attempt(server, self.settings.timeout_s, method, path, body, read)
            call.invalid += isinstance(problem, InvalidResponse)
            if response is None and call.rejection is None:
                await self._give_up_or_wait(call, path, problem)
            elif response is not None and response.status_code >= 400:
                call.rejection, call.rejecters = response, [*call.rejecters, server]
            elif response is not None:
                for rejecter in call.rejecters:
                    assert call.rejection is not None
                    rejecter.trusted = False
                    reason = f"{call.rejection.error}, for a call that {server.base} completed"
                    self._record_failure(rejecter, path, reason)
                return response

    async def _give_up_or_wait(self, call: _Call, path: str, problem: str | InvalidResponse) -> None:
        """After a failure: raises `ServerUnavailable` or the `InvalidResponse`, or waits if no server is healthy."""
        if isinstance(problem, InvalidResponse) and call.invalid >= MAX_INVALID_RESPONSES:
            raise problem
        now, pause = time.monotonic(), self._backoff(call.tries)
        last_response_at = max(LAST_RESPONSE_AT.get(server.base, 0.0) for server in self.servers)
        call.lone_failures += last_response_at > call.failed_at
        call.down_since, call.failed_at = min(call.down_since, now), now
        silent_since = max(call.down_since, last_response_at)
        urls = " and ".join(server.base + path for server in self.servers)
        if call.lone_failures >= MAX_LONE_FAILURES:
            raise ServerUnavailable(
                f"{urls} responded to other calls, but one call failed {call.tries} times. Last error: {problem}"
            )
        # A slow failure may outlast the patience by itself; it still gets a second attempt, and one at every server.
        min_tries = max(len(self.servers), 1 if self.settings.patience_s == 0 else 2)
        if now + pause - silent_since > self.settings.patience_s and call.tries >= min_tries:
            if isinstance(problem, InvalidResponse):
                raise problem
            raise ServerUnavailable(
                f"{urls} did not respond: {call.tries} attempts, {now - silent_since:.0f} s without a response "
                f"(patience_s {self.settings.patience_s:g}). Last error: {problem}. Is the server up, and is the url "
                "right? If responses only take long, raise timeout_s or lower concurrency"
            )
        if all(server.failures for server in self.servers):
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _least_loaded(self, call: _Call) -> AsyncIterator[_Server | None]:
        """A slot for a call; `None` if the call was rejected and no other server can confirm that."""
        async with self.changed:
            while not (free := self._free(call)):
                if call.rejecters and not self._second_opinions(call):
                    break
                await self._change()
            server = min(free, key=lambda each: (each.calls, self.random.random()), default=None)
            if server is not None:
                server.calls += 1
        try:
            yield server
        finally:
            if server is not None:
                async with self.changed:
                    server.calls -= 1
                    self.changed.notify_all()

    async def _change(self) -> None:
        """Waits until a call ends, or a server that asked to wait takes calls again."""
        now = time.monotonic()
        opening = [server.closed_until - now for server in self.servers if server.closed_until > now]
        with suppress(TimeoutError):
            async with asyncio.timeout(min(opening, default=None)):
                await self.changed.wait()

    def _second_opinions(self, call: _Call) -> list[_Server]:
        """Healthy servers that could confirm a rejection; none once two servers agree."""
        healthy = [server for server in self.servers if not server.failures and server not in call.rejecters]
        return healthy if len(call.rejecters) < 2 else []

    def _trusted(self, server: _Server) -> bool:
        return len(self.servers) == 1 or server.trusted is True

    def _free(self, call: _Call) -> list[_Server]:
        """Servers that can take this call now."""
        now, some_healthy = time.monotonic(), not all(server.failures for server in self.servers)

        def max_calls(server: _Server) -> int:
            if server.closed_until > now:
                return 0
            if not server.failures or not some_healthy:
                return self.settings.concurrency
            # A call that has failed already is not used to probe a server that may still be down.
            return int(now >= server.retry_at and not call.tries)

        candidates = self._second_opinions(call) if call.rejecters else self.servers
        return [server for server in candidates if server.calls < max_calls(server)]

    async def _attempt(
        self, server: _Server, timeout_s: float, method: str, path: str, body: Any, read: Read | None = None
    ) -> tuple[HttpResponse | None, str | InvalidResponse]:
        """A response, or `None` and the error, which is transient or an invalid response."""
        httpx, wait_s = import_httpx(), 0.0
        problem: str | InvalidResponse
        try:
            response = await self._response(server, timeout_s, method, path, body)
            status = response.status_code
            if status == 200 and read is not None:
                response = replace(response, value=read(response))
            rejected = 400 <= status < 500 and status not in RETRY_STATUSES
            if status < 400:
                server.failures = 0
                server.trusted = True if method == "POST" else server.trusted  # a GET of the model list proves little
            if status < 400 or (rejected and self._trusted(server)):
                LAST_RESPONSE_AT[server.base] = time.monotonic()
            if status < 400 or (rejected and server.trusted is not False):
                return response, ""
            problem, wait_s = response.error, _seconds(response.retry_after)
        except TimeoutError:
            problem = f"no response in {timeout_s:g} s"
        except InvalidResponse as error:
            problem = error
        except httpx.DecodingError as error:
            problem = InvalidResponse(f"{server.base}{path} sent a body that cannot be decompressed: {error}")
        except httpx.RequestError as error:
            problem = f"{type(error).__name__}: {printable(str(error))}"
        except (httpx.InvalidURL, UnicodeError) as error:
            raise OpdAlignError(f"{server.base!r} is not a valid server URL: {error}") from None
        self._record_failure(server, path, problem, wait_s)
        return None, problem

    async def _response(self, server: _Server, timeout_s: float, method: str, path: str, body: Any) -> HttpResponse:
        """A response, awaited as long as the server responds to other calls; httpx's timeout restarts at each byte."""
        start = time.monotonic()
        pending = asyncio.ensure_future(self._fetch(server, method, path, body))
        latest_start = start + (MAX_TIMEOUTS_WHILE_BUSY - 1) * timeout_s
        try:
            while not pending.done():
                until = min(max(start, LAST_RESPONSE_AT.get(server.base, 0.0)), latest_start) + timeout_s
                if time.monotonic() >= until:
                    raise TimeoutError
                await asyncio.wait({pending}, timeout=until - time.monotonic())
            return pending.result()
        finally:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)

    async def _fetch(self, server: _Server, method: str, path: str, body: Any) -> HttpResponse:
        url, content = server.base + path, bytearray()
        async with self.client.stream(method, url, json=body, auth=server.auth) as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_RESPONSE_BYTES:
                    raise InvalidResponse(f"{url} sent more than {MAX_RESPONSE_BYTES >> 20} MiB")
            return HttpResponse(url, response.status_code, bytes(content), response.headers.get("retry-after"))

    def _record_failure(self, server: _Server, path: str, problem: str | InvalidResponse, wait_s: float = 0.0) -> None:
        server.failures += 1
        now, wait_s = time.monotonic(), min(wait_s, self.settings.patience_s)
        server.closed_until = now + wait_s
        server.retry_at = now + max(self._backoff(server.failures), wait_s)
        if now - server.warned_at > WARN_EVERY_S:
            server.warned_at = now
            several = len(self.servers) > 1
            action = "using the other servers" if several else f"retrying for {self.settings.patience_s:g} s"
            if wait_s:
                action += f", after the {wait_s:g} s that it asked to wait"
            if isinstance(problem, InvalidResponse):
                logger.warning("invalid response: %s; %s", problem, action)
            else:
                logger.warning("%s%s: %s; %s", server.base, path, problem, action)

    def _backoff(self, tries: int) -> float:
        return min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2 ** min(tries - 1, 16)) * self.random.uniform(0.5, 1.5)


def _seconds(retry_after: str | None) -> float:
    """How long a server asks to wait: the header has a number of seconds or a date; 0 if there is none."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError, OSError):
        return 0.0


def import_httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise OpdAlignError(
            "sending requests to a server needs httpx, which is not installed: pip install 'opd-align[server]'"
        ) from error
    return httpx
