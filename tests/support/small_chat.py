"""Small tokenizers: one token per byte or word, a few special ones, and the usual kinds of chat templates."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

START, END = "<|im_start|>", "<|im_end|>"

CHATML = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# As in Qwen3: thinking is on by default; if it is off, the prompt ends with an empty thinking block.
SWITCHED = (
    CHATML
    + """\
{%- if add_generation_prompt and enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}"""
)

# Other templates call the switch `thinking`, and it is off by default.
OTHER_SWITCH = CHATML + "{%- if add_generation_prompt and thinking %}<think>\n{% endif %}"

NO_SYSTEM = """\
{%- for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

DROPS_SYSTEM = """\
{%- for message in messages %}{% if message.role != 'system' %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def byte_tokenizer(
    template: str | None = CHATML,
    *,
    eos: str | None = "<|endoftext|>",
    special: tuple[str, ...] = ("<|endoftext|>", START, END),
    plain: tuple[str, ...] = (),
    bos: str | None = None,
    unk: str | None = None,
) -> Any:
    """One token per byte; `special` and `plain` are added tokens, and only eos, bos and unk have a role."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in plain])
    if bos is not None:
        from tokenizers.processors import TemplateProcessing

        tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, special.index(bos) + 256)]
        )
    roles = {name: text for name, text in (("eos_token", eos), ("bos_token", bos), ("unk_token", unk)) if text}
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)
    made.chat_template = template
    return made


ANSWERS = ("\nAnswer: 1", "\nAnswer: 2", "\nAnswer: 3")


def word_tokenizer(
    template: str | None = CHATML, words: tuple[str, ...] = ("Ann", "Bob", "Cid", "pens", "one", "two")
) -> Any:
    """A dozen words, three of which are whole answers: even a random model often generates one of them."""
    special = ["<unk>", START, END]
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ANSWERS])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token=END)
    made.chat_template = template
    return made


def save_model(folder: Any, *, seed: int = 0, tokenizer: Any = None) -> str:
    """Saves a random Qwen3 and its tokenizer in a folder; returns its path."""
    from support.small_models import qwen3

    tokenizer = tokenizer or word_tokenizer()
    model = qwen3(seed=seed, vocab_size=len(tokenizer), max_position_embeddings=512)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
