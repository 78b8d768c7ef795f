"""Chat: from messages to the token ids of a prompt, and from generated tokens back to text.

The prompt is exactly what the tokenizer's chat template renders, generation prompt included; thinking is turned on and
off through the template's own switch. Without a chat template (a base model) messages are joined as plain text. This
module works on tokenizers and loads no models.
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
"""Names that chat templates use for their thinking switch."""

THINKING_TAGS = ("<think>", "</think>")
"""Kept in the text even if the tokenizer marks them as special: verifiers need to know where thinking ends."""


@dataclass(frozen=True)
class Chat:
    """A tokenizer and how its chat template is used.

    Args:
        tokenizer: A transformers tokenizer, with or without a chat template.
        thinking: Sets the template's thinking switch; None leaves the template's default.
        options: Further arguments of the template, such as a trainer's `chat_template_kwargs`.
    """

    tokenizer: Any
    thinking: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The token ids after which the model's response begins."""
        text = self.render(messages)
        # A template contains all special tokens; for plain text the tokenizer adds <bos> and the like.
        ids = self.tokenizer(text, add_special_tokens=not self._has_template)["input_ids"]
        return tuple(int(token) for token in ids)

    def render(self, messages: Sequence[Message]) -> str:
        """The prompt as text, special tokens included."""
        if not self._has_template:
            if self.thinking is not None:
                raise OpdAlignError("thinking cannot be set: this tokenizer has no chat template; leave thinking unset")
            return "\n\n".join(message["content"] for message in messages) + "\n\n"
        return self._rendered(messages, self._options)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of a completion without special tokens, except for thinking tags."""
        kept = [int(token) for token in tokens if int(token) not in self._skipped]
        return str(self.tokenizer.decode(kept, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_text(self, token: int) -> str:
        """The text of one token; part of a character is shown as the replacement character."""
        return str(self.tokenizer.decode([int(token)], skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def end_tokens(self, *configs: Any) -> tuple[int, ...]:
        """Tokens that end a response, as named by the given (generation) configs, the tokenizer and the template."""
        found: set[int] = set()
        for eos in (*(getattr(config, "eos_token_id", None) for config in configs), self.tokenizer.eos_token_id):
            found |= {int(token) for token in (eos if isinstance(eos, list | tuple) else [eos]) if token is not None}
        found |= self.end_of_turn()
        if not found:
            raise OpdAlignError("neither model nor tokenizer names a token that ends a response; give end_tokens")
        return tuple(sorted(found))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of vocabulary, template, thinking and options: everything that determines the token ids of a text."""
        vocabulary = sorted(self.tokenizer.get_vocab().items(), key=lambda item: item[1])
        template = [self.tokenizer.chat_template, self.thinking, *([dict(self.options)] if self.options else [])]
        content = json.dumps([vocabulary, *template], default=str)
        return blake2b(content.encode(), digest_size=16).hexdigest()

    @cached_property
    def vocabulary(self) -> int:
        """One more than the largest token id."""
        return max(self.tokenizer.get_vocab().values()) + 1

    @property
    def _has_template(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    @cached_property
    def _skipped(self) -> frozenset[int]:
        vocabulary = self.tokenizer.get_vocab()  # not convert_tokens_to_ids, which returns <unk> for a missing word
        tags = {vocabulary.get(tag) for tag in THINKING_TAGS}
        # all_special_ids has only the special tokens with a role (eos, bos, ...).
        added = {number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        return frozenset(int(token) for token in added.union(self.tokenizer.all_special_ids) if token not in tags)

    @cached_property
    def switch(self) -> str | None:
        """The name of the template's thinking switch; `None` if it has none."""
        if not self._has_template:
            return None
        probe = [{"role": "user", "content": "?"}]
        for name in SWITCHES:
            # Found by rendering, not by searching the template: a switch is what changes the output.
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
            f"thinking is {str(self.thinking).lower()}, but this chat template has no thinking switch "
            f"(tried {', '.join(SWITCHES)}); leave thinking unset"
        )

    def _rendered(self, messages: Sequence[Message], switch: Mapping[str, bool], *, prompt: bool = True) -> str:
        from jinja2.exceptions import TemplateError

        def render(conversation: Sequence[Message]) -> str:
            options = {**self.options, "tokenize": False, "add_generation_prompt": prompt, **switch}
            return str(self.tokenizer.apply_chat_template([dict(message) for message in conversation], **options))

        given: list[Any] = [message["content"] for message in messages if message["role"] == "system"]
        system = [content for content in given if isinstance(content, str)]  # not in parts
        try:
            text = render(messages)
        except TemplateError as error:
            if not system:
                raise OpdAlignError(f"the tokenizer's chat template cannot be rendered: {error}") from error
            text = ""
        if all(content.strip() in text for content in system):
            return text
        # The template does not support system messages: prepend the content to the first user message.
        first, *others = [dict(message) for message in messages if message["role"] != "system"]
        first["content"] = "\n\n".join([*system, first["content"]])
        return self._rendered([first, *others], switch, prompt=prompt)

    def end_of_turn(self) -> set[int]:
        """The added token that the template puts after an assistant message, if there is one."""
        if not self._has_template:
            return set()
        response = "opd-align"
        turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": response}]
        after = self._rendered(turns, {}, prompt=False).rpartition(response)[2].lstrip()
        ids = self.tokenizer(after, add_special_tokens=False)["input_ids"]
        # Ordinary text is not in the added vocabulary; a template's end-of-turn token is, special or not.
        return {int(ids[0])} if ids and ids[0] in self.tokenizer.added_tokens_decoder else set()
