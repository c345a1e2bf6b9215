"""The tokenizer's archive is unpacked completely or not at all, and never outside its directory."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from tinker_atropos.relay import archive
from tinker_atropos.relay.archive import BadArchiveError, unpack


def tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for info, content in members:
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def member(
    name: str, content: bytes = b"x", kind: bytes = tarfile.REGTYPE, link: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = link
    return info, content if kind == tarfile.REGTYPE else b""


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_files_arrive(tmp_path: Path) -> None:
    names = unpack(tar(member("tokenizer.json", b"{}"), member("sub/vocab.txt", b"a\n")), tmp_path / "new" / "dir")
    assert names == ["tokenizer.json", "sub/vocab.txt"]
    assert files(tmp_path / "new" / "dir") == {"tokenizer.json": b"{}", "sub/vocab.txt": b"a\n"}


def test_older_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"old")
    unpack(tar(member("tokenizer.json", b"new")), tmp_path)
    assert files(tmp_path) == {"tokenizer.json": b"new"}


def test_files_do_not_take_the_archives_rights(tmp_path: Path) -> None:
    info, content = member("tokenizer.json")
    info.mode = 0o4777
    unpack(tar((info, content)), tmp_path)
    assert (tmp_path / "tokenizer.json").stat().st_mode & 0o7111 == 0


@pytest.mark.parametrize(
    ("behaviour", "bad"),
    [
        ("absolute path", member("/tmp/evil")),
        ("parent directory", member("../evil")),
        ("parent directory further in", member("a/../../evil")),
        ("backslash path", member("..\\evil")),
        ("symbolic link", member("link", kind=tarfile.SYMTYPE, link="/etc/passwd")),
        ("hard link", member("link", kind=tarfile.LNKTYPE, link="tokenizer.json")),
        ("device", member("null", kind=tarfile.CHRTYPE)),
        ("pipe", member("pipe", kind=tarfile.FIFOTYPE)),
    ],
)
def test_refuses(behaviour: str, bad: tuple[tarfile.TarInfo, bytes], tmp_path: Path) -> None:
    directory = tmp_path / "tokenizer"
    with pytest.raises(BadArchiveError):
        unpack(tar(member("tokenizer.json"), bad), directory)
    assert files(tmp_path) == {}, f"{behaviour}: nothing may be left, not even the good file"


def test_refuses_what_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(BadArchiveError, match="tar"):
        unpack(b"<html>sorry</html>" * 100, tmp_path)


def test_refuses_an_empty_archive(tmp_path: Path) -> None:
    with pytest.raises(BadArchiveError, match="no file"):
        unpack(tar(), tmp_path)


def test_refuses_an_archive_cut_short(tmp_path: Path) -> None:
    whole = tar(member("tokenizer.json", b"x" * 5000))
    with pytest.raises(BadArchiveError):
        unpack(whole[:2000], tmp_path)
    assert files(tmp_path) == {}


def test_refuses_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "LARGEST", 10)
    with pytest.raises(BadArchiveError, match="not a tokenizer"):
        unpack(tar(member("a", b"123456"), member("b", b"123456")), tmp_path)
    assert files(tmp_path) == {}
