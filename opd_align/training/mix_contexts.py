"""Contexts as members of a `TeacherMix`: the student itself, with demonstrations in its prompt.

The demonstrations are columns of the data set, as for `ContrastiveContexts`: `correct_hint` and `wrong_hint`, one of
each at most (`contrast.sample_hints` lets the student write them). The teacher is the student with its present weights,
in evaluation mode, as in an evaluation of the callback. A question without the demonstrations that a context shows, or
whose prompt would be too long with them, is distilled from the other members.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opd_align.backends.chat import Chat
from opd_align.teachers.contexts import CONTEXTS, SELF, Context, Demonstration
from opd_align.training.adapters import template_options
from opd_align.training.contrast import CORRECT_HINT, WRONG_HINT
from opd_align.training.held_out import PROMPT, RowPrompting
from opd_align.types import OpdAlignError, Question

Tokens = tuple[int, ...]

COMPLETION_TOKENS = "mix_completion_tokens"
"""Key of a row with the length of its completion, where a trainer knows it before a teacher is drawn."""

TEXT = ("string", "large_string", "null")
"""Types of columns of text; a column of `None` alone has the last one."""


def as_context(name: str, source: Any) -> Context | None:
    """The context that a member of a mix is, by its name in the mix; `None` for a model."""
    by_lower = {each.lower(): context for each, context in CONTEXTS.items()}
    found = by_lower.get(source.lower()) if isinstance(source, str) else source
    if not isinstance(found, Context):
        return None
    if found.source != SELF or found.summarised or max(found.correct, found.wrong) > 1:
        raise OpdAlignError(
            f"teacher {name!r} shows what a data set has no column for; contexts in a TeacherMix show one correct and "
            "one wrong solution of the student at most, such as 'Self-1C', 'Self-1W' and 'Self-1C1W'"
        )
    return Context(name, found.correct, found.wrong, write=found.write)


@dataclass
class ContextPrompts:
    """The prompts of the members that are contexts.

    Args:
        contexts: The contexts by the name of the member.
    """

    contexts: Mapping[str, Context]

    def attach(self, trainer: Any) -> None:
        """Takes tokenizer, template and lengths from the trainer; refuses what the contexts cannot be shown with."""
        if not self.contexts:
            return
        if getattr(trainer, "tools", None) or getattr(trainer, "environments", None):
            raise OpdAlignError("contexts in a TeacherMix are not supported with tools: their prompts would have none")
        known = getattr(trainer.train_dataset, "column_names", None)
        missing = [name for name in self.columns if known is not None and name not in known]
        if missing:
            raise OpdAlignError(
                f"the TeacherMix shows solutions to the student, and the data set has no column {missing[0]!r}; "
                "opd_align.training.contrast.sample_hints lets the student write them"
            )
        features = getattr(trainer.train_dataset, "features", None) or {}
        for name in self.columns:
            kind = getattr(features.get(name), "dtype", "list") if name in features else "string"
            if kind not in TEXT:
                raise OpdAlignError(
                    f"the column {name!r} must have one solution as text, or None, in each row, not {kind}"
                )
        self._chat = Chat(trainer.processing_class, options=template_options(trainer))
        longest = getattr(trainer.model.config.get_text_config(), "max_position_embeddings", None)
        args = trainer.args
        self._completion = getattr(args, "max_completion_length", None) or getattr(args, "max_new_tokens", None) or 0
        self._longest = longest
        if longest is not None and longest <= self._completion:
            raise OpdAlignError(
                f"completions of up to {self._completion} tokens leave no room for a prompt: the student can read "
                f"{longest} (max_position_embeddings); lower max_completion_length (GKD: max_new_tokens)"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the data set that the contexts read."""
        shown = ((CORRECT_HINT, "correct"), (WRONG_HINT, "wrong"))
        return tuple(name for name, of in shown if any(getattr(each, of) for each in self.contexts.values()))

    def prompt(self, name: str, row: Mapping[str, Any]) -> Tokens | None:
        """The prompt of a member for a row of the data set; `None` if the member cannot teach it."""
        context, shown = self.contexts[name], []
        for column, correct, count in ((CORRECT_HINT, True, context.correct), (WRONG_HINT, False, context.wrong)):
            if not count:
                continue
            text = row.get(column)
            if text is not None and not isinstance(text, str):
                raise OpdAlignError(
                    f"the column {column!r} must have one solution as text, or None, in each row, not a "
                    f"{type(text).__name__}"
                )
            if text is None or not text.strip():
                return None
            shown.append(Demonstration("", SELF, 0, correct, text))
        ids = RowPrompting(self._chat, context, {"": shown})(Question("", "", None, {PROMPT: row[PROMPT]}))
        length = len(ids) + row.get(COMPLETION_TOKENS, self._completion)
        return ids if self._longest is None or length <= self._longest else None


def pad_left(sequences: Sequence[Tokens], pad: int, device: Any) -> tuple[Tensor, Tensor]:
    """Sequences of tokens as one tensor, and its attention mask; padding is on the left."""
    width = max((len(each) for each in sequences), default=0)
    ids_BT = [[*[pad] * (width - len(each)), *each] for each in sequences]
    mask_BT = [[*[0] * (width - len(each)), *[1] * len(each)] for each in sequences]
    options = {"dtype": torch.long, "device": device}  # also of sequences without tokens
    return torch.tensor(ids_BT, **options), torch.tensor(mask_BT, **options)


@contextmanager
def student_as_teacher(student: torch.nn.Module) -> Iterator[None]:
    """The student without dropout within the block; its mode is restored."""
    training = student.training
    student.eval()
    try:
        yield
    finally:
        student.train(training)


def context_logits(
    student: Any, input_ids_BT: Tensor, labels_BT: Tensor, prompts: Sequence[Tokens], pad: int
) -> Tensor:
    """The student's logits after other prompts, at the positions of the original sequences; zero outside completions.

    Args:
        student: The student.
        input_ids_BT: Prompts and completions.
        labels_BT: -100 outside of the completions.
        prompts: The prompts that the student reads instead.
        pad: A token for padding.
    """
    completion_BT = labels_BT != -100
    completions = [ids[of].tolist() for ids, of in zip(input_ids_BT, completion_BT, strict=True)]
    sequences = [(*prompt, *tokens) for prompt, tokens in zip(prompts, completions, strict=True)]
    ids_BT, mask_BT = pad_left(sequences, pad, input_ids_BT.device)
    longest = max(len(tokens) for tokens in completions)
    found = student(input_ids=ids_BT, attention_mask=mask_BT, logits_to_keep=longest + 1).logits[:, :-1]
    logits_BTV: Tensor = found.new_zeros(*input_ids_BT.shape, found.shape[-1])
    for row, tokens in enumerate(completions):
        # The logits at a position are those of the next token.
        at_N = completion_BT[row].nonzero().squeeze(1) - 1
        logits_BTV[row, at_N] = found[row, found.shape[1] - len(tokens) :]
    return logits_BTV
