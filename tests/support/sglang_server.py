"""A local HTTP server that answers like SGLang's native API, with a small model: `/generate` and `/v1/models`.

It follows SGLang where that differs from vLLM: the length is checked before the end, `ignore_eos` switches off
`stop_token_ids`, answers to a batch are a list, and the first position of `input_token_logprobs` has no value.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from opd_align.types import mix64
from support.model_server import Misbehaviour, ModelServer, honest


class SGLangServer(ModelServer):
    """Records the bodies of all requests to `/generate`."""

    def __init__(self, model: Any, misbehave: Misbehaviour = honest) -> None:
        self.bodies: list[dict[str, Any]] = []
        super().__init__(model, misbehave)

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        if path != "/generate":
            return super().answer(path, body)
        with self._mutex:
            self.bodies.append(body)
            if isinstance(body["input_ids"][0], int):
                return self._item(body["input_ids"], body["sampling_params"], body)
            pairs = zip(body["input_ids"], body["sampling_params"], strict=True)
            return [self._item(tokens, params, body) for tokens, params in pairs]

    def _item(self, context: list[int], params: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        tokens, reason = self._draw(context, params)
        meta: dict[str, Any] = {
            "id": "0", "prompt_tokens": len(context), "completion_tokens": len(tokens), "finish_reason": reason,
        }  # fmt: skip
        if body.get("return_logprob"):
            meta["output_token_logprobs"] = [
                [self._value([*context, *tokens[:at]], token), token, None] for at, token in enumerate(tokens)
            ]
            start = body.get("logprob_start_len", -1)
            if start >= 0:
                meta["input_token_logprobs"] = [[None, context[start], None]] + [
                    [self._value(context[:at], context[at]), context[at], None] for at in range(start + 1, len(context))
                ]
            top = body.get("top_logprobs_num", 0)
            if start >= 0 and top:
                meta["input_top_logprobs"] = [None] + [
                    self._most_likely(context[:at], top) for at in range(start + 1, len(context))
                ]
        return {"text": "", "output_ids": list(tokens), "meta_info": meta}

    def _draw(self, context: list[int], params: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        tokens: list[int] = []
        while True:
            word = int(mix64(np.uint64(params.get("sampling_seed", 0)) ^ mix64(np.uint64(len(tokens)))))
            mass = np.exp(self.log_probs([*context, *tokens]) / params["temperature"])
            cumulative = np.cumsum(mass)
            tokens.append(int(np.searchsorted(cumulative / cumulative[-1], (word >> 11) * 2.0**-53, side="right")))
            if len(tokens) >= params["max_new_tokens"]:
                return tokens, {"type": "length", "length": params["max_new_tokens"]}
            if not params.get("ignore_eos") and tokens[-1] in params.get("stop_token_ids", ()):
                return tokens, {"type": "stop", "matched": tokens[-1]}

    def _value(self, context: list[int], token: int) -> float:
        return float(self.log_probs(context)[token])

    def _most_likely(self, context: list[int], top: int) -> list[list[Any]]:
        likely = np.argsort(-self.log_probs(context))[:top].tolist()
        return [[self._value(context, token), token, None] for token in likely]


@contextmanager
def serving_sglang(model: Any, misbehave: Misbehaviour = honest) -> Iterator[SGLangServer]:
    with SGLangServer(model, misbehave) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
