"""Contrastive contexts: which tokens depend on whether a hint is correct.

The student reads each completion twice more, after its prompt with a correct solution and after the same prompt with a
wrong one. What any hint changes (shorter sentences, for example) is in both; the difference is what the solution itself
changes. After Pan et al., 2026, RLCSD: Reinforcement Learning with Contrastive On-Policy Self-Distillation
(arXiv:2606.11709), who multiply advantages by it; here it selects the tokens that are distilled.

Hints are columns of the data set, so that every trainer can use them; `sample_hints` lets the student write them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from opd_align.backends.chat import Chat
from opd_align.backends.hf import HFStudent
from opd_align.settings import Sampling
from opd_align.tasks import Task
from opd_align.tasks.grading import TextGrader
from opd_align.teachers.contexts import (
    CONTEXTS,
    SELF,
    Context,
    ContextPrompt,
    Demonstration,
    change_text,
    paper_template,
)
from opd_align.teachers.demonstrations import DemonstrationSource, TrialBudget, collect_from_source
from opd_align.training.gate_runtime import evaluation_mode
from opd_align.training.gates import Gate, GateBatch, Scorer, Unknown, check_share, global_quantile
from opd_align.types import OpdAlignError, Question

CORRECT_HINT, WRONG_HINT = "correct_hint", "wrong_hint"
"""Columns of the data set with a correct and a wrong solution of the row's question, or `None`."""


@dataclass(frozen=True)
class ContrastiveContexts(Gate):
    """Keeps the tokens whose probability depends most on whether a hint in the prompt is correct.

    The contrast of a token is the gap between hinted and plain student under a correct hint (context `Self-1C`), minus
    that under a wrong one (`Self-1W`, but in the words of `Self-1C`: a solution announced as wrong is avoided), so
    log p(token | correct hint) − log p(token | wrong hint). Kept are the largest absolute values.

    Each completion takes two more forward passes of the student, without gradients and one completion at a time.
    Evaluations of `AlignmentCallback` cannot compute it, so they log nothing under `gated/`.

    Args:
        quantile: Smallest |contrast| that is kept, as a quantile over the tokens of one optimizer step for which it is
            known.
        unknown: Whether to "keep" or "drop" completions of questions without a correct and a wrong hint.
    """

    quantile: float = 0.8
    unknown: Unknown = field(kw_only=True)

    def __post_init__(self) -> None:
        check_share("quantile", self.quantile)
        if self.unknown not in ("keep", "drop"):
            raise OpdAlignError(f"unknown must be 'keep' or 'drop' (questions without hints), not {self.unknown!r}")

    @property
    def name(self) -> str:
        return f"contrast>=q{self.quantile:g}"

    @property
    def needs_global_batch(self) -> bool:
        return True

    @property
    def scorer(self) -> Scorer:  # type: ignore[override]
        return contrast

    def __call__(self, batch: GateBatch) -> Tensor:
        if batch.score_BT is None:
            raise OpdAlignError("this gate needs a trainer, which scores completions once they are generated")
        size_BT = batch.score_BT.abs()
        known_BT = batch.mask_BT & ~size_BT.isnan()
        threshold = global_quantile(replace(batch, mask_BT=known_BT), size_BT, self.quantile)
        return ((size_BT >= threshold) & known_BT).float() + (batch.mask_BT & ~known_BT) * float(self.unknown == "keep")


def contrast(
    trainer: Any, prompts: Sequence[Any], token_ids: Sequence[Sequence[int]], columns: Mapping[str, Sequence[Any]]
) -> list[list[float]]:
    """log p(token | correct hint) − log p(token | wrong hint) for every token; NaN for rows without both hints."""
    for name in (CORRECT_HINT, WRONG_HINT):
        if name not in columns:
            raise OpdAlignError(f"the gate needs the data set's column {name!r}, with a solution of each question")
    if any(isinstance(prompt, str) for prompt in prompts):
        raise OpdAlignError("contrastive contexts need conversations as prompts: hints are added to the user's message")
    prompt_ids = _prompt_ids(trainer)
    temperature = float(getattr(trainer, "temperature", None) or trainer.args.temperature)
    found = []
    with evaluation_mode(trainer.model_wrapped), trainer.compute_loss_context_manager():
        for prompt, tokens, right, wrong in zip(
            prompts, token_ids, columns[CORRECT_HINT], columns[WRONG_HINT], strict=True
        ):
            known = isinstance(right, str) and isinstance(wrong, str)
            # Without hints too: under ZeRO-3 and FSDP all processes make the same number of passes.
            hinted = [prompt_ids(hinted_messages(prompt, hint if known else "")) for hint in (right, wrong)]
            sides = [_log_probs(trainer.model_wrapped, ids, tokens, temperature) for ids in hinted]
            found.append((sides[0] - sides[1]).tolist() if known else [math.nan] * len(tokens))
    return found


def hinted_messages(messages: Sequence[Mapping[str, Any]], hint: str) -> list[dict[str, Any]]:
    """A conversation with a solution in its last user message, announced as correct."""
    changed = [dict(message) for message in messages]
    user = next(message for message in reversed(changed) if message["role"] == "user")
    shown = [Demonstration("", SELF, 0, True, hint)]
    user["content"] = change_text(user["content"], lambda text: paper_template(Question(""), text, shown))
    return changed


def _prompt_ids(trainer: Any) -> Callable[[Sequence[Mapping[str, Any]]], list[int]]:
    options = dict(getattr(trainer, "chat_template_kwargs", None) or {})
    tokenizer = trainer.processing_class

    def render(messages: Sequence[Mapping[str, Any]]) -> list[int]:
        text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False, **options)
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return render


def _log_probs(model: Any, prompt: Sequence[int], completion: Sequence[int], temperature: float) -> Tensor:
    device = next(model.parameters()).device
    ids_1T = torch.tensor([[*prompt, *completion]], device=device)
    length = len(completion)
    logits_TV = model(input_ids=ids_1T, logits_to_keep=length + 1).logits[0, -length - 1 : -1].float() / temperature
    return logits_TV.log_softmax(-1).gather(-1, ids_1T[0, -length:, None])[:, 0] if length else logits_TV.new_zeros(0)


def sample_hints(
    model: Any,
    tokenizer: Any,
    task: Task,
    questions: Sequence[Question],
    *,
    max_tokens: int,
    max_trials: int = 12,
    template: Mapping[str, Any] | None = None,
) -> dict[str, dict[str, str | None]]:
    """For each question id, a correct and a wrong solution of the student (`None` where none was found), as columns.

    Args:
        model: The student.
        tokenizer: Its tokenizer.
        task: Task that formats and verifies the questions.
        questions: The questions.
        max_tokens: Longest solution that is sampled.
        max_trials: Most solutions that are sampled per question.
        template: Arguments of the chat template, as the training has them (`chat_template_kwargs`).
    """
    chat = Chat(tokenizer, options=template or {})
    ends = chat.end_tokens(model.config)
    with evaluation_mode(model):
        sampler = HFStudent(SELF, model, ContextPrompt(chat, task), ends, Sampling(max_tokens=max_tokens))
        source = DemonstrationSource(SELF, sampler, chat.decode, TextGrader(task, chat.decode, ends))
        found = collect_from_source(source, questions, correct=1, wrong=1, trials=TrialBudget(max_trials))
    shown: dict[str, Context] = {CORRECT_HINT: CONTEXTS["Self-1C"], WRONG_HINT: CONTEXTS["Self-1W"]}
    return {
        question.id: {
            column: next((demo.text for demo in context.select(found[question.id])), None)
            for column, context in shown.items()
        }
        for question in questions
    }
