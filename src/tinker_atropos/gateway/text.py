"""The model's tokenizer: text to tokens, messages to tokens by its chat template, tokens to text."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.libraries import IMPORTING

T = TypeVar("T")


class Text:
    """A loaded tokenizer. Its methods block; `run` takes them off the event loop."""

    def __init__(self, tokenizer: Any, extra_eos_ids: Sequence[int] = (), model_vocabulary: int = 0) -> None:
        self._tokenizer = tokenizer
        self.vocabulary_size = max(len(tokenizer), model_vocabulary)
        """Token ids are below it. A model may know a few more than its tokenizer: it is padded to a round number."""
        own = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
        self.eos_ids: tuple[int, ...] = tuple(dict.fromkeys([*own, *extra_eos_ids]))
        self.special: tuple[str, ...] = tuple(sorted(tokenizer.all_special_tokens, key=len, reverse=True))
        self._token_texts: dict[int, str] = {}
        # One thread: tokenizers change their truncation state while encoding and refuse to be entered twice.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")

    @classmethod
    def load(cls, directory: Path) -> Text:
        # It would print that there is no PyTorch, which nobody here needs.
        os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
        with IMPORTING:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(str(directory))
        return cls(tokenizer, _generation_eos(directory), _model_vocabulary(directory))

    async def run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    @property
    def eos(self) -> list[tuple[int, str]]:
        return [(token, self.token_text(token)) for token in self.eos_ids]

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def encode_chat(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> list[int]:
        """Tokens of a conversation. options: what the template is given beside the messages."""
        if not getattr(self._tokenizer, "chat_template", None):
            raise RequestError("the model's tokenizer has no chat template; use /v1/completions", param="messages")
        try:
            # The text, then its tokens: the template writes the special tokens itself.
            text = self._tokenizer.apply_chat_template(messages, tokenize=False, **options)
        except Exception as error:  # templates raise what they like, and it is the conversation that they refuse
            raise RequestError(f"messages: the chat template refuses them: {error}", param="messages") from error
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=skip_special_tokens))

    def token_text(self, token: int) -> str:
        text = self._token_texts.get(token)
        if text is None:
            text = self._token_texts[token] = self.decode([token], False)
        return text


def _model_vocabulary(directory: Path) -> int:
    """Size of the model's vocabulary by its config.json, also of one that reads more than text; 0 = not there."""
    try:
        config = json.loads((directory / "config.json").read_text())
        size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return 0
    return size if type(size) is int else 0


def _generation_eos(directory: Path) -> list[int]:
    """End-of-sequence ids of generation_config.json: chat models often have one more than their tokenizer says."""
    try:
        given = json.loads((directory / "generation_config.json").read_text()).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        return []
    values = given if isinstance(given, list) else [given]
    return [value for value in values if type(value) is int]
