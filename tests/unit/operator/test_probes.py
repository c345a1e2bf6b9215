"""Alive is who works."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tinker_atropos_operator import probes
from tinker_atropos_operator.kube import ApiError
from tinker_atropos_operator.probes import Canary, Health
from tinker_atropos_operator.settings import Settings


class Writes:
    """The API server: takes the canary, and tells of it or not."""

    def __init__(self, *, delivers: bool, away: bool = False) -> None:
        self.canary: Canary | None = None
        self.delivers = delivers
        self.away = away
        self.version = 0

    async def apply(self, _: Any, body: dict[str, Any], __: str) -> dict[str, Any]:
        if self.away:
            raise ApiError(0, "", "away")
        self.version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self.version)}
        if self.delivers:
            assert self.canary is not None
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, self.canary.seen, metadata["namespace"], metadata["name"], str(self.version))
        return {"metadata": metadata}


@pytest.mark.parametrize(
    ("delivers", "away", "dead"),
    [(True, False, False), (False, False, True), (False, True, False)],
    ids=["the watch delivers", "the watch is dead", "the API server is away, which no restart would mend"],
)
async def test_the_canary(monkeypatch: pytest.MonkeyPatch, delivers: bool, away: bool, dead: bool) -> None:
    monkeypatch.setattr(probes, "CANARY_LATE", 0.2)
    writes = Writes(delivers=delivers, away=away)
    canary = Canary(writes, Settings("ns", "me"))  # type: ignore[arg-type]
    writes.canary = canary
    health = Health(lambda: 0.0)
    health.canary = canary
    for turn in range(2):
        await canary._once(turn)
    assert (health.why_dead() is not None) == dead


async def test_one_late_canary_is_a_watch_that_reconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "CANARY_LATE", 0.2)
    writes = Writes(delivers=False)
    canary = Canary(writes, Settings("ns", "me"))  # type: ignore[arg-type]
    writes.canary = canary
    await canary._once(1)
    assert canary.misses == 1
    writes.delivers = True
    await canary._once(2)
    assert canary.misses == 0


async def test_news_of_the_canary_that_come_before_the_answer_to_its_write_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "CANARY_LATE", 0.2)

    class Quick(Writes):
        async def apply(self, resource: Any, body: dict[str, Any], manager: str) -> dict[str, Any]:
            answer = await super().apply(resource, body, manager)
            assert self.canary is not None
            self.canary.seen("ns", body["metadata"]["name"], answer["metadata"]["resourceVersion"])
            return answer

    writes = Quick(delivers=False)
    canary = Canary(writes, Settings("ns", "me"))  # type: ignore[arg-type]
    writes.canary = canary
    await canary._once(1)
    assert canary.misses == 0


@pytest.mark.parametrize(("seconds", "dead"), [(0, False), (299, False), (301, True)])
def test_work_that_never_ends_is_death(seconds: float, dead: bool) -> None:
    assert (Health(lambda: seconds).why_dead() is not None) == dead
