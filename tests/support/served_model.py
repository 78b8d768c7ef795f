"""A language model behind HTTP, as vLLM serves it: sampling by seed, and log-probabilities of a prompt."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch


class ModelServer(ThreadingHTTPServer):
    """Serves a transformers model under a name.

    Args:
        model: The model.
        name: The name under which it is served.
        heat: Factor of every requested temperature: 1 is an honest server.
        forget_seeds: Whether the same request gives other samples each time.
    """

    daemon_threads = True

    def __init__(self, model: Any, name: str, *, heat: float = 1.0, forget_seeds: bool = False) -> None:
        self.model, self.name, self.heat, self.forget_seeds = model, name, heat, forget_seeds
        self.lock, self.requests = threading.Lock(), 0
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @torch.no_grad()
    def samples(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        seeds = [body["seed"] + index + 10**6 * self.requests * self.forget_seeds for index in range(body["n"])]
        generators = [torch.Generator().manual_seed(seed % 2**63) for seed in seeds]
        ids = torch.tensor([body["prompt"]] * body["n"])
        drawn: list[list[int]] = [[] for _ in seeds]
        ended = [False] * len(seeds)
        inputs, cache = ids, None
        for _ in range(body["max_tokens"]):
            output = self.model(input_ids=inputs, past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            p = (output.logits[:, -1].float() / (body["temperature"] * self.heat)).softmax(-1)
            pairs = zip(p, generators, strict=True)
            inputs = torch.stack([torch.multinomial(row, 1, generator=generator) for row, generator in pairs])
            for row, token in enumerate(inputs[:, 0].tolist()):
                if not ended[row]:
                    drawn[row].append(token)
                    ended[row] = token in body["stop_token_ids"]
            if all(ended):
                break
        return [
            {"index": row, "token_ids": tokens, "finish_reason": "stop" if ended[row] else "length", "text": ""}
            for row, tokens in enumerate(drawn)
        ]

    @torch.no_grad()
    def prompt_log_probs(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        tokens, top = body["prompt"], body["prompt_logprobs"]
        log_p = self.model(input_ids=torch.tensor([tokens])).logits[0, :-1].float().log_softmax(-1)
        rows: list[Any] = [None]
        for values, own in zip(log_p, tokens[1:], strict=True):
            known = dict.fromkeys([own, *values.topk(top).indices.tolist()])
            rows.append({str(token): {"logprob": float(values[token])} for token in known})
        return [{"index": 0, "prompt_logprobs": rows, "token_ids": [0], "finish_reason": "length", "text": ""}]


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def do_GET(self) -> None:
        self._send({"data": [{"id": self.server.name, "max_model_len": 1024}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests += 1
            asked = self.server.prompt_log_probs if "prompt_logprobs" in body else self.server.samples
            choices = asked(body)
        self._send({"choices": choices})

    def _send(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(model: Any, name: str = "served", **options: Any) -> Iterator[str]:
    """The URL of a server that runs within the block."""
    server = ModelServer(model, name, **options)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
