"""The tokenizer's way: from a directory or a server into an archive."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tinker_atropos.gateway.tokenizer_files import TokenizerError, pack, resolve


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return tar.getnames()


def test_only_the_tokenizers_files_travel(tmp_path: Path) -> None:
    for name in (
        "tokenizer.json",
        "tokenizer_config.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "config.json",
    ):
        (tmp_path / name).write_text("{}")
    for name in ("model.safetensors", "README.md", ".gitattributes"):
        (tmp_path / name).write_text("x")
    (tmp_path / "tokenizer-folder").mkdir()
    assert names(pack(tmp_path)) == sorted(
        ["tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "chat_template.jinja", "config.json"]
    )


def test_links_travel_as_files(tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("content")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "tokenizer.json").symlink_to(tmp_path / "blob")
    with tarfile.open(fileobj=io.BytesIO(pack(tmp_path / "snapshot"))) as tar:
        (member,) = tar.getmembers()
        assert member.isreg()
        file = tar.extractfile(member)
        assert file is not None
        assert file.read() == b"content"


def test_packing_is_reproducible(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    assert pack(tmp_path) == pack(tmp_path)


async def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert await resolve(str(tmp_path), "http://127.0.0.1:1", tmp_path / "work") == tmp_path


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="/absent"):
        await resolve("/absent", None, tmp_path)


@asynccontextmanager
async def serving(*answers: web.Response) -> AsyncIterator[str]:
    waiting = list(answers)

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        assert request.path == "/local/v1/tokenizer"
        return waiting.pop(0)

    runner = web.ServerRunner(web.Server(handler))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def tar(*entries: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as file:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


async def test_the_local_tinker_server_is_asked_until_it_answers(tmp_path: Path) -> None:
    archive = tar(("tokenizer.json", b"{}"), ("../evil", b"x"))
    work = tmp_path / "work"
    work.mkdir()
    async with serving(web.Response(status=503), web.Response(body=archive, content_type="application/x-tar")) as url:
        assert await resolve("tinker-atropos/tiny", url, work) == work
    assert sorted(path.name for path in work.iterdir()) == ["evil", "tokenizer.json"]
    assert not (tmp_path / "evil").exists()
