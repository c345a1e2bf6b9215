"""The tokenizer as a folder of files: made for the tiny model, read for stop strings, served to other programs."""

from __future__ import annotations

import io
import json
import string
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, processors

from tinker_atropos.local_tinker.errors import UserError

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "config.json",
)

PAD, BOS, EOS, UNKNOWN = "<pad>", "<bos>", "<eos>", "<unk>"
SPECIALS = (PAD, BOS, EOS, UNKNOWN)
CHARACTERS = "\n\t" + " " + string.digits + string.ascii_letters + string.punctuation

# A turn is its bare text: the tiny model has seen `12+7=` and nothing of roles.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{% if message['role'] == 'system' %}{{ '\\n' }}{% elif message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)


def write_character_tokenizer(directory: Path) -> None:
    """One token per printable ASCII character, newline and tab; everything else is `<unk>`."""
    vocabulary = {token: index for index, token in enumerate((*SPECIALS, *CHARACTERS))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, vocabulary[BOS])]
    )
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 4096,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")


class Vocabulary:
    """What the server itself needs of a tokenizer: texts of tokens, for stop strings."""

    def __init__(self, directory: Path) -> None:
        path = directory / "tokenizer.json"
        if not path.exists():
            raise UserError(f"--model {directory}: no tokenizer.json there; the folder must hold a fast tokenizer")
        self._tokenizer = Tokenizer.from_file(str(path))
        self._texts: list[str] | None = None

    @property
    def size(self) -> int:
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens; special tokens have none."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def tokens_holding(self, text: str) -> frozenset[int]:
        """Every token whose own text holds `text`: these end a row at once, inside the compiled loop."""
        if self._texts is None:
            self._texts = [self.decode([token]) for token in range(self.size)]
        return frozenset(token for token, own in enumerate(self._texts) if text in own)


def pack(directory: Path) -> bytes:
    """The tokenizer's files as a tar archive: the same bytes for the same files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in FILES:
            path = directory / name
            if not path.is_file():
                continue
            content = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o644, 0
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
