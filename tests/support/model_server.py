"""A local HTTP server that answers like a vLLM server, with a small model, and misbehaves on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import torch

from opd_align.types import mix64


@dataclass(frozen=True)
class Raw:
    """A response that is sent as it is.

    Args:
        content: The body.
        status: The HTTP status.
        headers: Headers in addition to the length.
        length: The length that is announced. `None`: the true one.
        head: Sent in place of status line and headers. `None`: regular ones.
    """

    content: bytes = b""
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = None
    head: bytes | None = None


Misbehaviour = Callable[[str, dict[str, Any], Any], Any]
"""From the path, the request's body and the honest answer to the answer: a value that is sent as JSON, or `Raw`."""


def honest(path: str, body: dict[str, Any], answer: Any) -> Any:
    return answer


class ModelServer(ThreadingHTTPServer):
    """Serves a causal language model under the name "student".

    Args:
        model: The model.
        misbehave: Changes the answers; may be replaced while the server runs.
    """

    daemon_threads = True

    def __init__(self, model: Any, misbehave: Misbehaviour = honest) -> None:
        self.model, self.misbehave, self.calls = model, misbehave, 0
        self._log_probs: dict[tuple[int, ...], np.ndarray] = {}
        self._mutex = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/models":
            return {
                "object": "list",
                "data": [{"id": "student", "max_model_len": self.model.config.max_position_embeddings}],
            }
        with self._mutex:
            self.calls += 1
            return {"id": "cmpl-1", "model": "student", "choices": self._choices(body)}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients close connections."""

    def _choices(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        prompt = body["prompt"]
        if "prompt_logprobs" in body:
            rows = [None, *(self._top(prompt[:i], prompt[i], body["prompt_logprobs"]) for i in range(1, len(prompt)))]
            return [{"index": 0, "text": "", "finish_reason": "length", "prompt_logprobs": rows}]
        return [self._sample(prompt, body, index) for index in range(body["n"])]

    def _sample(self, prompt: list[int], body: dict[str, Any], index: int) -> dict[str, Any]:
        tokens: list[int] = []
        reason = "length"
        while len(tokens) < body["max_tokens"]:
            word = int(mix64(np.uint64(body["seed"] + index) ^ mix64(np.uint64(len(tokens)))))
            cumulative = np.cumsum(np.exp(self.log_probs([*prompt, *tokens])))
            tokens.append(int(np.searchsorted(cumulative / cumulative[-1], (word >> 11) * 2.0**-53, side="right")))
            if tokens[-1] in body["stop_token_ids"]:
                reason = "stop"
                break
        return {"index": index, "text": "", "token_ids": tokens, "prompt_token_ids": prompt, "finish_reason": reason}

    def _top(self, context: list[int], token: int, top: int) -> dict[str, Any]:
        log_p = self.log_probs(context)
        likely = np.argsort(-log_p)[:top].tolist()
        return {str(each): {"logprob": float(log_p[each]), "rank": 1} for each in dict.fromkeys([token, *likely])}

    def log_probs(self, context: list[int]) -> np.ndarray:
        key = tuple(context)
        if key not in self._log_probs:
            with torch.no_grad():
                logits = self.model(torch.tensor([context])).logits[0, -1]
            self._log_probs[key] = torch.log_softmax(logits.double(), -1).numpy()
        return self._log_probs[key]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self._respond({})

    def do_POST(self) -> None:
        self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _respond(self, body: dict[str, Any]) -> None:
        answer = self.server.misbehave(self.path, body, self.server.answer(self.path, body))
        raw = answer if isinstance(answer, Raw) else Raw(json.dumps(answer).encode())
        if raw.head is not None:
            self.wfile.write(raw.head + raw.content)
            self.close_connection = True
            return
        self.send_response(raw.status)
        for name, value in raw.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw.content) if raw.length is None else raw.length))
        self.end_headers()
        self.wfile.write(raw.content)
        if raw.length is not None:
            self.close_connection = True


@contextmanager
def serving(model: Any, misbehave: Misbehaviour = honest) -> Iterator[ModelServer]:
    with ModelServer(model, misbehave) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
