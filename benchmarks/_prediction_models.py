"""Teachers as one body and one linear output layer, whatever they are made of.

`DistillationTrainer` and the scoring of a path both use hidden states and the output layer separately, so a teacher
that is not a plain model is written in that form: a temperature divides the output layer, a bias is the output layer's,
a combination of the logits of two models has both hidden states side by side. A teacher that reads a context, or that
changes with the question, finds the question in the prompt, so it needs no support from the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class LinearTeacher(nn.Module):
    """A causal language model with the parts that trainers and scoring use.

    Args:
        body: From token ids to hidden states.
        config: Configuration of the model that it is made of.
        weight: Weight of the output layer.
        bias: Bias of the output layer.
        parts: The transformers models whose logits it adds up, each with its factor, for sampling with their caches;
            empty if the logits depend on the question in another way.
    """

    def __init__(
        self,
        body: nn.Module,
        config: Any,
        weight: Tensor,
        bias: Tensor | None = None,
        parts: Sequence[tuple[Any, float]] = (),
    ) -> None:
        super().__init__()
        self.body, self.config, self.parts = body, config, list(parts)
        self.head = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
        self.head.weight.data.copy_(weight)
        if bias is not None:
            self.head.bias.data.copy_(bias)
        self.requires_grad_(False).eval()

    @property
    def base_model(self) -> nn.Module:
        return self.body

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        hidden = self.body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return SimpleNamespace(logits=self.head(hidden))


class SideBySide(nn.Module):
    """The hidden states of several bodies, concatenated."""

    def __init__(self, bodies: Sequence[nn.Module]) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        states = [body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state for body in self.bodies]
        return SimpleNamespace(last_hidden_state=torch.cat(states, -1))


class ByQuestion(nn.Module):
    """Concatenated hidden states of two bodies; those of the body that is not used on a row's question are zero."""

    def __init__(self, first: nn.Module, second: nn.Module, uses_first: Callable[[Sequence[int]], bool]) -> None:
        super().__init__()
        self.bodies = nn.ModuleList([first, second])
        self.uses_first = uses_first

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        both = [body(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state for body in self.bodies]
        first_B11 = torch.tensor([self.uses_first(row) for row in input_ids.tolist()])[:, None, None]
        states = [both[0].masked_fill(~first_B11, 0.0), both[1].masked_fill(first_B11, 0.0)]
        return SimpleNamespace(last_hidden_state=torch.cat(states, -1))


class WithContext(nn.Module):
    """A body that reads another prompt for each question, with a demonstration in it.

    Args:
        body: The body of the model.
        prompts: From the student's prompt to the teacher's, as token ids.
        opening: The tokens that open a response; the first time they occur, the student's prompt ends.
    """

    def __init__(
        self, body: nn.Module, prompts: Mapping[tuple[int, ...], tuple[int, ...]], opening: Sequence[int]
    ) -> None:
        super().__init__()
        self.body, self.prompts, self.opening = body, prompts, list(opening)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        first_B = mask.argmax(1).tolist()
        rows, spans = [], []
        for row, (tokens, first) in enumerate(zip(input_ids.tolist(), first_B, strict=True)):
            end = _end_of(self.opening, tokens, first)
            if end is None:  # not a conversation: scoring checks a model on a few tokens
                return self.body(input_ids=input_ids, attention_mask=attention_mask)
            prompt = self.prompts[tuple(tokens[first:end])]
            rows.append([*prompt, *tokens[end:]])
            # Hidden states from the last token of the prompt on predict the completion.
            spans.append((row, end - 1, len(prompt) - 1, len(tokens) - end + 1))
        width = max(map(len, rows))
        padded = torch.tensor([[*tokens, *[0] * (width - len(tokens))] for tokens in rows])
        # Causal, and padded on the right: no mask is needed.
        own = self.body(input_ids=padded, use_cache=False).last_hidden_state
        states = own.new_zeros(*input_ids.shape, own.shape[-1])
        for row, to, at, length in spans:
            states[row, to : to + length] = own[row, at : at + length]
        return SimpleNamespace(last_hidden_state=states)


def _end_of(opening: list[int], tokens: list[int], start: int) -> int | None:
    size = len(opening)
    for at in range(start, len(tokens) - size + 1):
        if tokens[at : at + size] == opening:
            return at + size
    return None


def plain(model: Any) -> LinearTeacher:
    """A transformers model as it is."""
    return LinearTeacher(model.base_model, model.config, model.get_output_embeddings().weight, parts=[(model, 1.0)])


def tempered(model: LinearTeacher, temperature: float) -> LinearTeacher:
    """Logits divided by a temperature."""
    parts = [(each, factor / temperature) for each, factor in model.parts]
    return LinearTeacher(model.body, model.config, model.head.weight / temperature, parts=parts)


def biased(model: LinearTeacher, tokens: Sequence[int], bias: float) -> LinearTeacher:
    """A constant added to the logits of some tokens."""
    values = torch.zeros(model.head.weight.shape[0])
    values[list(tokens)] = bias
    return LinearTeacher(model.body, model.config, model.head.weight, values, model.parts)


def combined(models: Sequence[LinearTeacher], factors: Sequence[float]) -> LinearTeacher:
    """A weighted sum of the logits of several models."""
    weights = [factor * model.head.weight for model, factor in zip(models, factors, strict=True)]
    parts = [(each, factor * own) for model, factor in zip(models, factors, strict=True) for each, own in model.parts]
    body = SideBySide([model.body for model in models])
    return LinearTeacher(body, models[0].config, torch.cat(weights, 1), parts=parts)


def by_question(
    first: LinearTeacher, second: LinearTeacher, uses_first: Callable[[Sequence[int]], bool]
) -> LinearTeacher:
    """One model on some questions, another one on the others."""
    if any(model.head.bias is not None for model in (first, second)):
        raise ValueError("a mixture of models with a bias is not supported")
    weight = torch.cat([first.head.weight, second.head.weight], 1)
    return LinearTeacher(ByQuestion(first.body, second.body, uses_first), first.config, weight)


def sample(teacher: LinearTeacher, prompts: Sequence[Sequence[int]], *, max_tokens: int, end: int, seed: int) -> Tensor:
    """One completion per prompt at temperature 1, padded with the end token; for teachers that have `parts`."""
    width = max(map(len, prompts))
    ids = torch.tensor([[*[0] * (width - len(prompt)), *prompt] for prompt in prompts])
    mask = torch.tensor([[*[0] * (width - len(prompt)), *[1] * len(prompt)] for prompt in prompts])
    generator = torch.Generator().manual_seed(seed)
    caches: list[Any] = [None] * len(teacher.parts)
    given, drawn = ids, []
    with torch.no_grad():
        for _ in range(max_tokens):
            logits = torch.zeros(len(prompts), teacher.head.weight.shape[0])
            for number, (model, factor) in enumerate(teacher.parts):
                out = model(input_ids=given, attention_mask=mask, past_key_values=caches[number], use_cache=True)
                caches[number] = out.past_key_values
                logits += factor * out.logits[:, -1]
            if teacher.head.bias is not None:
                logits += teacher.head.bias
            given = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            if drawn:
                given = torch.where(drawn[-1] == end, drawn[-1], given)
            drawn.append(given)
            mask = torch.cat([mask, torch.ones_like(given)], 1)
            if bool((given == end).all()):
                break
    return torch.cat(drawn, 1)
