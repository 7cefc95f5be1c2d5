"""Prompt rendering on small tokenizers built in memory."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gainstage.policies.language.tokens import (
    StreamDecoder,
    decode,
    encode_prompt,
    encode_text,
    encode_turn,
    end_ids,
    opener,
    set_chat_template,
    template_is_append_only,
)

CHATML = (
    "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }}</s> {% endfor %}"
    "{% if add_generation_prompt %}<s>assistant {% endif %}"
)


def words(template=None, first="<s>", last=""):
    """Word-level tokenizer: `<s>` 1, `</s>` 2, user 3, assistant 4, `:` 5, hi 6, hello 7."""
    vocabulary = {w: i for i, w in enumerate(["<unk>", "<s>", "</s>", "user", "assistant", ":", "hi", "hello", "tool"])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if first:
        core.post_processor = processors.TemplateProcessing(
            single=f"{first} $A {last}".strip(), special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>" if first else None,
        eos_token="</s>",
        unk_token="<unk>",
        additional_special_tokens=[] if first else ["<s>"],
    )
    tokenizer.chat_template = template
    return tokenizer


def bytes_tokenizer():
    """One token a byte."""
    alphabet = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


TEMPLATE = (
    "<s> {% for m in messages %}{{ m['role'] }} {{ m['content'] }} : {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


def test_opener_stands_once_when_template_and_post_processor_both_write_it():
    tokenizer = words(TEMPLATE)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hello"}], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer(rendered)["input_ids"][:2] == [1, 1]  # the fault this guards against
    assert encode_prompt(tokenizer, [{"role": "user", "content": "hello"}]) == [1, 3, 7, 5, 4]


def test_conversation_equals_the_ordinary_rendering():
    tokenizer = words(TEMPLATE)
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "hi hi"},
    ]
    ordinary = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert encode_prompt(tokenizer, messages) == list(ordinary)


def test_plain_string_gets_the_opener_once():
    tokenizer = words()
    assert encode_prompt(tokenizer, "hi") == [1, 6]
    assert encode_prompt(tokenizer, "<s> hi") == [1, 6]
    assert encode_text(tokenizer, "hi", start=False) == [6]


def test_end_token_of_the_post_processor_does_not_close_a_prompt():
    tokenizer = words(last="</s>")
    assert tokenizer("hi")["input_ids"] == [1, 6, 2]
    assert encode_prompt(tokenizer, "hi") == [1, 6]


def test_tokenizer_without_opener_gets_none():
    tokenizer = words(first="")
    assert opener(tokenizer) == []
    assert encode_prompt(tokenizer, "hi") == [6]


def test_chat_true_wraps_a_string_and_false_joins_messages():
    tokenizer = words(TEMPLATE)
    assert encode_prompt(tokenizer, "hello", chat=True) == [1, 3, 7, 5, 4]
    messages = [{"role": "system", "content": "hi"}, {"role": "user", "content": "hello"}]
    assert encode_prompt(tokenizer, messages, chat=False) == [1, 6, 7]
    assert encode_prompt(words(), messages) == [1, 6, 7]  # no template: plain text


def test_final_assistant_message_is_continued():
    tokenizer = words(TEMPLATE)
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    assert encode_prompt(tokenizer, messages) == [1, 3, 6, 5, 4, 7]


@pytest.mark.parametrize(
    ("prompt", "match"),
    [([], "no message"), ([{"content": "hi"}], "message 0"), ([{"role": "user"}], "neither 'content'")],
)
def test_malformed_conversations_are_named(prompt, match):
    with pytest.raises(ValueError, match=match):
        encode_prompt(words(TEMPLATE), prompt)


def test_missing_template_and_empty_prompt_are_errors():
    with pytest.raises(ValueError, match="no chat template"):
        encode_prompt(words(), [{"role": "user", "content": "hi"}], chat=True)
    with pytest.raises(ValueError, match="empty"):
        encode_prompt(words(first=""), "")
    assert encode_prompt(words(), "") == [1]


def test_template_is_stored_on_the_tokenizer_and_saved(tmp_path):
    tokenizer = words("{{ 'hi' }}")
    set_chat_template(tokenizer, TEMPLATE)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>"]})
    asked = [{"role": "user", "content": "hi"}]
    ids = encode_prompt(tokenizer, asked)
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again.chat_template == TEMPLATE
    assert list(again.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)) == ids
    assert again.convert_tokens_to_ids("<think>") == tokenizer.convert_tokens_to_ids("<think>")


def test_template_from_a_file(tmp_path):
    tokenizer = words()
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    set_chat_template(tokenizer, str(tmp_path / "t.jinja"))
    assert tokenizer.chat_template == TEMPLATE
    with pytest.raises(ValueError, match="neither"):
        set_chat_template(tokenizer, "missing.jinja")


def test_append_only_check():
    assert template_is_append_only(words(CHATML))
    assert template_is_append_only(words())
    numbered = "{{ messages | length }} " + CHATML
    assert not template_is_append_only(words(numbered))
    forgetful = (
        "{% for m in messages %}<s>{{ m['role'] }} {% if loop.last %}{{ m['content'] }}{% else %}"
        "{{ m['content'].split('</think>')[-1].strip() }}{% endif %}</s> {% endfor %}"
        "{% if add_generation_prompt %}<s>assistant {% endif %}"
    )
    assert not template_is_append_only(words(forgetful))


def test_turn_is_appended_as_ids():
    tokenizer = words(CHATML)
    asked = [{"role": "user", "content": "hi"}]
    talk = [*asked, {"role": "assistant", "content": "hello"}]
    added = [{"role": "tool", "content": "hi"}]
    sampled = [7, 2]
    ids = encode_prompt(tokenizer, asked) + sampled + encode_turn(tokenizer, talk, added, ended=True)
    assert ids == encode_prompt(tokenizer, [*talk, *added])
    open_end = encode_prompt(tokenizer, asked) + [7] + encode_turn(tokenizer, talk, added, ended=False)
    assert open_end == ids
    with pytest.raises(ValueError, match="assistant"):
        encode_turn(tokenizer, asked, added, ended=True)


def test_end_ids_hold_what_the_template_writes_after_an_answer():
    tokenizer = words(CHATML.replace("</s>", "<end>"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<end>"]})
    assert end_ids(tokenizer) == {2, tokenizer.convert_tokens_to_ids("<end>")}
    assert end_ids(words(TEMPLATE)) == {2}  # a template that writes an ordinary token there adds none


def test_characters_that_span_tokens():
    tokenizer = bytes_tokenizer()
    text = "a👍é"
    ids = encode_text(tokenizer, text)
    assert len(ids) == 7
    assert decode(tokenizer, ids) == text
    stream = StreamDecoder(tokenizer)
    pieces = [stream.push(i) for i in ids] + [stream.flush()]
    assert pieces == ["a", "", "", "", "👍", "", "é", ""]
    cut = StreamDecoder(tokenizer)
    assert "".join(cut.push(i) for i in ids[:3]) + cut.flush() == "a\ufffd"
