"""The dashboard, served to the person who sits at this machine.

It listens on the loopback address only, answers GET on four kinds of paths and opens nothing but run directories that
the training names. A site elsewhere whose name is made to point here (DNS rebinding) is refused by the name it asks
for. What is served is made by `report.dashboard`; this room knows addresses and when something is new.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from opd_align.report.dashboard import dashboard_html, state, step_report, tokens
from opd_align.report.history import HISTORY, RUN, TRAINING, read_training
from opd_align.runs.filesystem import write_atomic
from opd_align.runs.run_directory import SUMMARY
from opd_align.types import OpdAlignError

ADDRESS = "127.0.0.1"
NAMES = {ADDRESS, "localhost", "::1"}
"""What a browser on this machine calls it; the port may be another one, that of a tunnel."""
PATIENCE_S = 2.0
HEADERS = {
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


class DashboardState:
    """A training's dashboard as bytes, made anew where its files have changed."""

    def __init__(self, folder: Path, *, title: str) -> None:
        self.folder, self.title = folder, title
        self._mutex = threading.Lock()
        self._state: tuple[Any, bytes] = (None, b"")

    def page(self) -> bytes:
        return dashboard_html(self.folder, title=self.title, live=True).encode()

    def state(self) -> bytes:
        with self._mutex:
            sign = self.sign()
            if self._state[0] != sign:
                self._state = sign, _json(state(read_training(self.folder)))
            return self._state[1]

    def view(self, run: str) -> bytes:
        return _json(tokens(self.folder, run))

    def report(self, run: str) -> bytes:
        return step_report(self.folder, run).encode()

    def write(self, file: Path) -> Path:
        """Puts the page into a file, whole; as such it asks no server."""
        try:
            write_atomic(file.absolute(), dashboard_html(self.folder, title=self.title).encode())
        except OSError as error:
            raise OpdAlignError(
                f"cannot write the dashboard to {str(file)!r}: {error.strerror}; choose another place with --out"
            ) from error
        return file

    def sign(self) -> Any:
        """Another value whenever there is something new to show."""
        files = [file.stat() for name in (HISTORY, TRAINING) if (file := self.folder / name).is_file()]
        runs = sorted(file.parent.name for file in self.folder.glob(f"step-*/{SUMMARY}"))
        return [(file.st_ino, file.st_mtime_ns, file.st_size) for file in files], runs


class DashboardServer:
    """Serves a board on this machine while it is open; use it as a context manager."""

    def __init__(self, board: DashboardState, port: int = 0) -> None:
        if not 0 <= port <= 65535:
            raise OpdAlignError(f"there is no port {port}; choose one from 1 to 65535, or none for a free one")
        self._board = board
        try:
            self._http = _Http((ADDRESS, port), _handler(board))
        except OSError as error:
            raise OpdAlignError(
                f"cannot serve on port {port}: {error.strerror}; leave --port away to get a free one"
            ) from error
        self.url = f"http://{ADDRESS}:{self._http.server_address[1]}/"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True)

    def __enter__(self) -> DashboardServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def follow(self, page: Path) -> None:
        """Writes the page again whenever there is news, until somebody interrupts."""
        seen, wait = self._board.sign(), threading.Event()
        while not wait.wait(PATIENCE_S):
            now = self._board.sign()
            if now != seen:
                seen = now
                try:
                    self._board.write(page)
                except OpdAlignError as error:  # the disk is full, say: whoever looks at the served page need not care
                    print(f"opd-align: {error}", file=sys.stderr)


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):  # a browser that left
            super().handle_error(request, client_address)


def _handler(board: DashboardState) -> type[BaseHTTPRequestHandler]:
    routes: tuple[tuple[str, str, Callable[..., bytes]], ...] = (
        ("/", HTML, board.page),
        (r"/state\.json", JSON, board.state),
        (rf"/view/({RUN.pattern})\.json", JSON, board.view),
        (rf"/step/({RUN.pattern})", HTML, board.report),
    )

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "opd-align", ""
        timeout = 30  # seconds that a silent connection is kept

        def do_GET(self) -> None:
            if not _is_ours(self.headers.get("Host", "")):
                return self.answer(HTTPStatus.FORBIDDEN, TEXT, b"this dashboard answers to localhost only\n")
            for pattern, kind, make in routes:
                found = re.fullmatch(pattern, self.path)
                if found:
                    try:
                        return self.answer(HTTPStatus.OK, kind, make(*found.groups()))
                    except OpdAlignError as error:
                        return self.answer(HTTPStatus.NOT_FOUND, TEXT, f"{error}\n".encode())
            self.answer(HTTPStatus.NOT_FOUND, TEXT, b"there is no such page\n")

        def answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            headers = {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}
            if status == HTTPStatus.OK:
                headers["ETag"] = f'"{sha256(body).hexdigest()[:32]}"'
                if self.headers.get("If-None-Match") == headers["ETag"]:
                    status, body = HTTPStatus.NOT_MODIFIED, b""
                    del headers["Content-Length"]  # it would be that of the body that is not sent
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Says nothing: a line a poll would bury what the terminal has to say."""

    return Handler


def _is_ours(host: str) -> bool:
    try:
        return urlsplit(f"//{host}").hostname in NAMES
    except ValueError:
        return False


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
