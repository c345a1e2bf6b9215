"""The tiny model's tokenizer: what goes in comes out, for transformers too, without a network."""

from __future__ import annotations

import io
import string
import tarfile
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tinker_atropos.local_tinker.tiny_model import CONFIG
from tinker_atropos.local_tinker.tokenizer import Vocabulary, pack, write_character_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made: Path = tmp_path_factory.mktemp("tokenizer")
    write_character_tokenizer(made)
    return made


@pytest.fixture(scope="module")
def loaded(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(str(folder))


@pytest.mark.parametrize(
    "text", ["12+7=19", "a b\nc", "  two  spaces ", string.printable[:95] + "\n\t", "What's 2+3? It's {5}!", ""]
)
def test_round_trip(loaded: Any, text: str) -> None:
    ids = loaded.encode(text)
    assert ids[0] == loaded.bos_token_id
    assert len(ids) == len(text) + 1
    assert loaded.decode(ids, skip_special_tokens=True) == text
    assert loaded.encode(text, add_special_tokens=False) == ids[1:]


def test_foreign_characters_are_unknown_not_lost(loaded: Any) -> None:
    assert loaded.encode("aéb", add_special_tokens=False)[1] == loaded.unk_token_id


def test_special_tokens_agree_with_the_model(loaded: Any) -> None:
    given = (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id)
    assert given == (CONFIG["bos_token_id"], CONFIG["eos_token_id"], CONFIG["pad_token_id"])
    assert len(loaded) == CONFIG["vocab_size"]
    assert 64 <= len(loaded) <= 128


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([("user", "12+7=")], "<bos>12+7="),
        ([("user", "12+7="), ("assistant", "19")], "<bos>12+7=19<eos>"),
        ([("system", "Add."), ("user", "1+1=")], "<bos>Add.\n1+1="),
    ],
)
def test_chat_template(loaded: Any, messages: list[tuple[str, str]], text: str) -> None:
    chat = [{"role": role, "content": content} for role, content in messages]
    assert loaded.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == text


def test_prompt_of_a_chat_is_a_prefix_of_the_whole(loaded: Any) -> None:
    """Environments find the mask of an answer this way."""
    chat = [{"role": "user", "content": "12+7="}, {"role": "assistant", "content": "19"}]
    whole = loaded.apply_chat_template(chat, return_dict=False)
    prompt = loaded.apply_chat_template(chat[:1], add_generation_prompt=True, return_dict=False)
    assert whole[: len(prompt)] == prompt
    assert loaded.decode(whole[len(prompt) :]) == "19<eos>"


def test_tokens_that_hold_a_text(folder: Path) -> None:
    vocabulary = Vocabulary(folder)
    (newline,) = vocabulary.tokens_holding("\n")
    assert vocabulary.decode([newline]) == "\n"
    assert vocabulary.tokens_holding("ab") == frozenset()
    assert vocabulary.size == CONFIG["vocab_size"]


def test_archive_is_the_same_every_time_and_complete(folder: Path) -> None:
    packed = pack(folder)
    assert packed == pack(folder)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        assert archive.getnames() == ["tokenizer.json", "tokenizer_config.json"]
