"""How long a trainer that was asked to end waits for its step."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tinker_atropos.trainer import process


@pytest.mark.parametrize(
    ("is_training", "away"), [(False, False), (False, True), (True, True)], ids=["taking over", "nobody there", "away"]
)
async def test_it_does_not_wait_for_what_may_never_come(
    monkeypatch: pytest.MonkeyPatch, is_training: bool, away: bool
) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 3600.0)
    task: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(3600))
    async with asyncio.timeout(10):  # only so that a wait ends as a failure
        await process._grace(task, SimpleNamespace(is_training=is_training), SimpleNamespace(away=away))  # type: ignore[arg-type]
    assert not task.done()
    task.cancel()


async def test_a_step_in_flight_may_end() -> None:
    task: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(0.3, "done"))
    await process._grace(task, SimpleNamespace(is_training=True), SimpleNamespace(away=False))  # type: ignore[arg-type]
    assert task.done() and task.result() == "done"


async def test_a_server_that_goes_meanwhile_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_SECONDS", 3600.0)
    task: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(3600))
    server = SimpleNamespace(away=False)
    asyncio.get_running_loop().call_later(0.3, lambda: setattr(server, "away", True))
    async with asyncio.timeout(10):
        await process._grace(task, SimpleNamespace(is_training=True), server)  # type: ignore[arg-type]
    assert not task.done()
    task.cancel()
