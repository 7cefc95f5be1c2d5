"""The tokenizer of the embedded model: one token a character, in Hugging Face format."""

from __future__ import annotations

import string
from typing import Any

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"
CHARACTERS = "\n" + "".join(sorted(string.printable[:95]))
"""Line feed and all printable ASCII characters; every digit is a token of its own."""

VOCABULARY = {token: index for index, token in enumerate([PAD, END, UNKNOWN, *CHARACTERS])}

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}" + END + "{% endif %}{% endfor %}"
)
"""Contents one after the other, the end token behind each answer: append-only, and a lone question is its own text."""


def encode(text: str) -> list[int]:
    """The ids of a text, as the tokenizer gives them (faster for many short texts)."""
    unknown = VOCABULARY[UNKNOWN]
    return [VOCABULARY.get(character, unknown) for character in text]


def build_tokenizer() -> Any:
    """A `PreTrainedTokenizerFast` over `VOCABULARY`: no token is added in front, text round-trips unchanged."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.WordLevel(VOCABULARY, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer
