"""Unpacking the tokenizer that the gateway sends, so that nothing outside the directory can be touched by it."""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from pathlib import Path, PurePosixPath

LARGEST = 512 * 2**20
"""Bytes of all files together; the largest tokenizers in use are some ten MB."""

MOST_FILES = 1000


class BadArchiveError(Exception):
    """The tar file is not a tokenizer that may be unpacked; the message says why."""


def unpack(archive: bytes, directory: Path) -> list[str]:
    """Put the files of a tar archive into `directory`, all or nothing, and return their names.

    The directory may be a mounted volume, which cannot be replaced: then the files are moved into it one by one after
    all of them are written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    incoming = Path(tempfile.mkdtemp(prefix=".incoming-", dir=directory))
    try:
        names = _write(archive, incoming)
        for name in names:
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (incoming / name).replace(target)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    return names


def _write(archive: bytes, incoming: Path) -> list[str]:
    names: list[str] = []
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:*") as tar:
            for member in tar:
                if member.isdir():
                    continue
                name = _safe_name(member)
                total += member.size
                if total > LARGEST or len(names) >= MOST_FILES:
                    raise BadArchiveError(
                        f"the archive holds more than {MOST_FILES} files or {LARGEST // 2**20} MB: not a tokenizer"
                    )
                source = tar.extractfile(member)
                assert source is not None  # regular files only, see _safe_name
                target = incoming / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as file:
                    shutil.copyfileobj(source, file)
                names.append(name)
    except tarfile.TarError as error:
        raise BadArchiveError(f"not a readable tar archive: {error}") from error
    if not names:
        raise BadArchiveError("the archive holds no file")
    return names


def _safe_name(member: tarfile.TarInfo) -> str:
    if not member.isreg():
        raise BadArchiveError(f"{member.name!r} is no regular file")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in member.name or "\0" in member.name:
        raise BadArchiveError(f"{member.name!r} leads out of the directory")
    return str(path)
