"""A tokenizer with one token per character, as small as one can be and still real."""

from __future__ import annotations

import string
from typing import Any

import pytest

from tinker_atropos.gateway.text import Text

SPECIAL = ("<pad>", "<bos>", "<eos>", "<end>")
CHARACTERS = string.ascii_letters + string.digits + " \n.,:!?/+="
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@pytest.fixture(scope="session")
def hf_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *CHARACTERS))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<pad>"))
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=["<end>"],
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="session")
def text(hf_tokenizer: Any) -> Text:
    return Text(hf_tokenizer)
