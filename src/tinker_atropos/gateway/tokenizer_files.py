"""Where the tokenizer comes from: resolved once for the whole run, handed out as a tar archive."""

from __future__ import annotations

import asyncio
import fnmatch
import io
import logging
import tarfile
from pathlib import Path

import aiohttp

from tinker_atropos.gateway.libraries import IMPORTING

FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*.tiktoken",
    "spiece.model",
    "sentencepiece*",
    "config.json",
    "generation_config.json",
)
"""What belongs to a tokenizer in a directory that may hold a whole model."""

MIRRORS = {"meta-llama/Llama-3": "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"}
"""Gated repositories (by the beginning of their name) whose tokenizer the Tinker SDK takes from elsewhere."""

_LARGEST = 512 * 2**20
_LONGEST_DELAY = 10.0
_LOG_EVERY = 15.0

_log = logging.getLogger(__name__)


class TokenizerError(Exception):
    """There is no such tokenizer; the message says what to change."""


async def resolve(name: str, tinker_base_url: str | None, work: Path) -> Path:
    """Directory with the files of tokenizer `name`: itself a directory, or from the local Tinker server, or a hub.

    Waits while a server that should have it does not answer. work: an empty directory that this may fill.
    """
    given = Path(name)
    if given.is_dir():
        return given
    if name.startswith(("/", "./", "../", "~")):
        raise TokenizerError(f"the tokenizer's directory {name} does not exist")
    loop = asyncio.get_running_loop()
    pause, said = 0.2, loop.time()
    while True:
        try:
            if tinker_base_url and await _from_local_tinker(tinker_base_url, work):
                return work
            return await asyncio.to_thread(_from_hub, name)
        except _NotNowError as error:
            if loop.time() - said >= _LOG_EVERY:
                said = loop.time()
                _log.warning("waiting for the tokenizer %s: %s", name, error)
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_DELAY)


def pack(directory: Path) -> bytes:
    """The tokenizer's files as a tar archive, reproducibly."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(directory.iterdir()):
            if path.is_file() and any(fnmatch.fnmatch(path.name, pattern) for pattern in FILES):
                content = path.read_bytes()  # hub snapshots hold symbolic links: the content travels, not the link
                entry = tarfile.TarInfo(path.name)
                entry.size, entry.mode = len(content), 0o644
                tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class _NotNowError(Exception):
    """May work later."""


async def _from_local_tinker(base_url: str, work: Path) -> bool:
    """Whether the Tinker server is one that hands out its tokenizer; then its files are in `work`."""
    url = f"{base_url.rstrip('/')}/local/v1/tokenizer"
    try:
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(url) as answer:
            if answer.status >= 500 or answer.status == 429:
                raise _NotNowError(f"GET {url}: status {answer.status}")
            if answer.status != 200 or "tar" not in answer.content_type:
                return False  # the hosted service, or another one that speaks its API
            archive = await answer.read()
    except (aiohttp.ClientError, TimeoutError) as error:
        raise _NotNowError(f"GET {url}: {type(error).__name__}: {error}") from error
    await asyncio.to_thread(_unpack, archive, work)
    return True


def _unpack(archive: bytes, work: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
        for member in tar:
            source = tar.extractfile(member) if member.isreg() and member.size <= _LARGEST else None
            if source is not None:
                (work / Path(member.name).name).write_bytes(source.read())  # flat: no path can lead anywhere else


def _from_hub(name: str) -> Path:
    with IMPORTING:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )

    repository = name.split(":", maxsplit=1)[0]  # org/name:peft:131072 is the same tokenizer
    mirror = next((target for start, target in MIRRORS.items() if repository.startswith(start)), None)
    for candidate in filter(None, (repository, mirror)):
        try:
            return Path(snapshot_download(candidate, allow_patterns=list(FILES)))
        except (GatedRepoError, RepositoryNotFoundError) as error:
            if candidate == (mirror or repository):
                raise TokenizerError(
                    f"the hub does not give out the tokenizer {name}: {_first_line(error)}; "
                    "set env.tokenizer_name to one that it does, or to a directory"
                ) from error
        except HFValidationError as error:
            raise TokenizerError(
                f"{name} is neither a directory nor a name on the hub: {_first_line(error)}"
            ) from error
        except (LocalEntryNotFoundError, OSError) as error:
            raise _NotNowError(_first_line(error)) from error
    raise AssertionError("unreachable")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
