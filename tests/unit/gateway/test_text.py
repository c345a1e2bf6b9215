"""The tokenizer as the routes use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.text import Text

OPENED = {"add_generation_prompt": True, "continue_final_message": False}


def test_a_conversation_becomes_the_tokens_of_its_template(text: Text) -> None:
    tokens = text.encode_chat([{"role": "user", "content": "hello"}], OPENED)
    assert text.decode(tokens, False) == "user: hello<eos>\nassistant: "
    assert all(type(token) is int for token in tokens)


def test_a_final_message_can_be_continued(text: Text) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "so"}]
    tokens = text.encode_chat(messages, {"add_generation_prompt": False, "continue_final_message": True})
    assert text.decode(tokens, False).endswith("assistant: so")


def test_what_the_template_refuses_is_the_clients_error(text: Text) -> None:
    with pytest.raises(RequestError, match="no tools here"):
        text.encode_chat([{"role": "tool", "content": "3"}], OPENED)


def test_a_tokenizer_without_a_template_says_so(hf_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_tokenizer, "chat_template", None)
    with pytest.raises(RequestError, match="no chat template"):
        Text(hf_tokenizer).encode_chat([{"role": "user", "content": "a"}], OPENED)


@pytest.mark.parametrize(
    ("config", "more"),
    [
        (None, 0),
        ({"vocab_size": 7}, 0),
        ({"vocab_size": 5000}, 5000),
        ({"text_config": {"vocab_size": 5000}}, 5000),
        ({"vocab_size": "many"}, 0),
    ],
)
def test_token_ids_are_below_the_larger_of_the_tokenizers_and_the_models_vocabulary(
    config: Any, more: int, hf_tokenizer: Any, tmp_path: Path
) -> None:
    hf_tokenizer.save_pretrained(tmp_path)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert Text.load(tmp_path).vocabulary_size == (more or len(hf_tokenizer))


@pytest.mark.parametrize(
    ("given", "more"),
    [(None, []), ({"eos_token_id": 3}, [3]), ({"eos_token_id": [3, 9]}, [3, 9]), ({"eos_token_id": None}, [])],
)
def test_end_of_sequence_comes_also_from_the_generation_config(
    given: Any, more: list[int], hf_tokenizer: Any, tmp_path: Path
) -> None:
    hf_tokenizer.save_pretrained(tmp_path)
    if given is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(given))
    text = Text.load(tmp_path)
    assert text.eos_ids == (hf_tokenizer.eos_token_id, *more)
    assert text.eos[0] == (hf_tokenizer.eos_token_id, "<eos>")
