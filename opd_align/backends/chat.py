"""Chat: from messages to the token ids that a model reads, and from its tokens back to text.

The prompt is what the tokenizer's own chat template makes of the messages, generation prompt included, and nothing
else; thinking is switched by the template's own switch. A tokenizer without a template (a base model) reads a plain
form. This room knows tokenizers, not models, tasks or teachers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

from opd_align.types import OpdAlignError

Message = Mapping[str, str]
"""Role and content, as chat templates take them."""

SWITCHES = ("enable_thinking", "thinking")
"""What templates call their switch for thinking."""

THOUGHT = ("<think>", "</think>")
"""Kept in the text even where a tokenizer counts them as special: verifiers need to know where thinking ends."""


@dataclass(frozen=True)
class Chat:
    """A tokenizer with its way of talking. `thinking` turns the template's switch; `None` leaves it as it is.

    `options` go to the template as they are: what a trainer calls its chat template's arguments.
    """

    tokenizer: Any
    thinking: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids after which the model's reply begins."""
        text = self.shown(messages)
        # A template writes every special token itself; the plain form leaves <bos> and the like to the tokenizer.
        ids = self.tokenizer(text, add_special_tokens=not self._has_template)["input_ids"]
        return tuple(int(token) for token in ids)

    def shown(self, messages: Sequence[Message]) -> str:
        """The same as text, special tokens written out."""
        if not self._has_template:
            if self.thinking is not None:
                raise OpdAlignError("thinking cannot be switched: this tokenizer has no chat template; leave it out")
            return "\n\n".join(message["content"] for message in messages) + "\n\n"
        return self._rendered(messages, self._options)

    def said(self, tokens: Iterable[int]) -> str:
        """The text of a completion, without special tokens; marks of thinking stay."""
        kept = [int(token) for token in tokens if int(token) not in self._silent]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_text(self, token: int) -> str:
        """What one token looks like by itself; half a character shows as the replacement character."""
        return str(self.tokenizer.decode([int(token)], skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def ends(self, *configs: Any) -> tuple[int, ...]:
        """Tokens that end a reply: those of the given (generation) configs, the tokenizer's, the template's own."""
        found: set[int] = set()
        for named in (*(getattr(config, "eos_token_id", None) for config in configs), self.tokenizer.eos_token_id):
            found |= {
                int(token) for token in (named if isinstance(named, list | tuple) else [named]) if token is not None
            }
        if self._has_template:
            found |= self._end_of_turn()
        if not found:
            raise OpdAlignError("neither model nor tokenizer names a token that ends a reply; give end_tokens")
        return tuple(sorted(found))

    @cached_property
    def fingerprint(self) -> str:
        """Vocabulary, template and thinking: what decides which ids a text becomes."""
        vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1])
        talk = [self.tokenizer.chat_template, self.thinking, *([dict(self.options)] if self.options else [])]
        told = json.dumps([vocabulary, *talk], default=str)
        return blake2b(told.encode(), digest_size=16).hexdigest()

    @property
    def _has_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    @cached_property
    def _silent(self) -> frozenset[int]:
        vocabulary = self.tokenizer.get_vocab()  # not convert_tokens_to_ids, which calls a word it lacks <unk>
        spoken = {vocabulary.get(mark) for mark in THOUGHT}
        # Not every special token has a role (eos, bos, ...) by which all_special_ids would know it.
        added = {number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        return frozenset(int(token) for token in added.union(self.tokenizer.all_special_ids) if token not in spoken)

    @cached_property
    def switch(self) -> str | None:
        """What the template calls its switch for thinking; `None` if it has none."""
        if not self._has_template:
            return None
        probe = [{"role": "user", "content": "?"}]
        for name in SWITCHES:
            # Not by reading the template: a switch is what makes a difference when it is turned.
            if self._rendered(probe, {name: True}) != self._rendered(probe, {name: False}):
                return name
        return None

    @cached_property
    def _options(self) -> dict[str, bool]:
        if self.thinking is None:
            return {}
        if self.switch is not None:
            return {self.switch: self.thinking}
        raise OpdAlignError(
            f"thinking: {str(self.thinking).lower()} was asked for, but this chat template has no such switch "
            f"(tried {', '.join(SWITCHES)}); leave it out"
        )

    def _rendered(self, messages: Sequence[Message], switch: Mapping[str, bool], *, reply: bool = True) -> str:
        from jinja2.exceptions import TemplateError

        def render(conversation: Sequence[Message]) -> str:
            options = {**self.options, "tokenize": False, "add_generation_prompt": reply, **switch}
            return str(self.tokenizer.apply_chat_template([dict(message) for message in conversation], **options))

        system = [message["content"] for message in messages if message["role"] == "system"]
        try:
            text = render(messages)
        except TemplateError as error:
            if not system:
                raise OpdAlignError(f"the tokenizer's chat template cannot be rendered: {error}") from error
            text = ""
        if all(content.strip() in text for content in system):
            return text
        # The template has no place for a system message: it goes before the user's first words.
        first, *others = [dict(message) for message in messages if message["role"] != "system"]
        first["content"] = "\n\n".join([*system, first["content"]])
        return self._rendered([first, *others], switch, reply=reply)

    def _end_of_turn(self) -> set[int]:
        """The added token that the template puts after a reply, if it puts one there."""
        mark = "opd-align"
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
        after = self._rendered(turns, {}, reply=False).rpartition(mark)[2].lstrip()
        ids = self.tokenizer(after, add_special_tokens=False)["input_ids"]
        # Words of the text are not in the added vocabulary; a mark of the template is, special or not.
        return {int(ids[0])} if ids and ids[0] in self.tokenizer.added_tokens_decoder else set()
