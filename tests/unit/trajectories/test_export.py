"""A run's export is a store that can be audited and served from; whole, or not there."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.audit import command
from tinker_atropos.trajectories.export import SUMMARY, DirectoryExport, ExportError
from tinker_atropos.trajectories.ledger import Ledger, fold
from tinker_atropos.trajectories.settings import Settings
from tinker_atropos.trajectories.store.embedded import EmbeddedStore

PAYLOADS = {5: b"five" * 100, 6: b"six"}


def post(ledger: Ledger, number: int) -> None:
    fields = {"id": number, "env": "e", "n": 4, "tok": 9, "smp": 3, "at": 1.0, "len": 10}
    ledger.apply({"t": "stored", **fields})


def trained() -> Ledger:
    """Four groups trained and covered, one dropped by its batch, two left over."""
    ledger = Ledger()
    ledger.apply(ledger.take_over(Settings(run_id="uid", batch_size=8, base_model="m"), "t", None, 1.0))
    for number in range(1, 7):
        post(ledger, number)
    for step in (1, 2):
        for event in ledger.lease(1, step, 100.0, 2.0):
            ledger.apply(event)
        batch = ledger.batches[step]
        dropped = {batch.groups[1]: "no_logprobs"} if step == 2 else {}
        for event in ledger.acknowledge(1, batch.lease_id, step, False, dropped):
            ledger.apply(event)
    state = pb.State(
        step=2, checkpoint_path="tinker://x/weights/final", sampler_path="tinker://x/sampler_weights/final"
    )
    for event in ledger.cover(1, state):
        ledger.apply(event)
    assert ledger.living() == set(PAYLOADS)
    return ledger


async def payloads(**more: bytes) -> AsyncIterator[tuple[int, bytes]]:
    for number, payload in PAYLOADS.items():
        yield number, payload


async def test_it_is_a_store_that_opens_with_the_same_ledger_and_payloads(tmp_path: Path) -> None:
    ledger = trained()
    await DirectoryExport(tmp_path / "runs" / "run-uid").write(ledger, payloads(), 5.0)
    store = EmbeddedStore(tmp_path / "runs" / "run-uid", fold)
    recovered = await store.open()
    assert recovered.snapshot == ledger.to_snapshot() and list(recovered.entries) == []
    assert await store.read([6, 5]) == [PAYLOADS[6], PAYLOADS[5]]
    await store.append(b'{"t":"started"}')
    await store.close()
    assert list((tmp_path / "runs").iterdir()) == [tmp_path / "runs" / "run-uid"]


async def test_it_is_audited(tmp_path: Path) -> None:
    await DirectoryExport(tmp_path / "run").write(trained(), payloads(), 5.0)
    result = CliRunner().invoke(command, [str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    for line in (
        "6 groups acknowledged, 2 steps trained",
        "e: 3 covered",
        "e: 2 queued",
        "dropped because no_logprobs: 1",
    ):
        assert line in result.output


async def test_people_read_what_became_of_the_run(tmp_path: Path) -> None:
    await DirectoryExport(tmp_path / "run").write(trained(), payloads(), 5.0)
    assert json.loads((tmp_path / "run" / SUMMARY).read_text()) == {
        "run": "uid",
        "base_model": "m",
        "step": 2,
        "epoch": 1,
        "checkpoint": "tinker://x/weights/final",
        "sampler_weights": "tinker://x/sampler_weights/final",
        "ledger": {"stored": 6, "queued": 2, "leased": 0, "trained": 3, "covered": 3, "dropped": 1},
        "dropped": {"no_logprobs": 1},
        "exported_at": 5.0,
    }


async def test_a_later_one_replaces_it_and_nothing_new_needs_none(tmp_path: Path) -> None:
    ledger, export = trained(), DirectoryExport(tmp_path / "run")
    assert export.due(ledger)
    await export.write(ledger, payloads(), 5.0)
    assert not export.due(ledger)
    post(ledger, 7)
    assert export.due(ledger)
    await export.write(ledger, payloads(), 6.0)
    assert json.loads((tmp_path / "run" / SUMMARY).read_text())["ledger"]["stored"] == 7
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


async def test_without_a_trainer_there_is_no_run_to_export(tmp_path: Path) -> None:
    assert not DirectoryExport(tmp_path / "run").due(Ledger())


@pytest.mark.parametrize("left", [".run.part", ".run.old"])
async def test_what_a_killed_one_left_behind_is_no_hindrance(tmp_path: Path, left: str) -> None:
    (tmp_path / left / "inner").mkdir(parents=True)
    await DirectoryExport(tmp_path / "run").write(trained(), payloads(), 5.0)
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


@pytest.mark.parametrize("kind", ["a file", "a folder of somebody else"])
async def test_what_is_no_export_is_not_overwritten(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "run"
    if kind == "a file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "notes").write_text("mine")
    with pytest.raises(ExportError, match="is there already and is no export; give a folder of its own"):
        await DirectoryExport(target).write(trained(), payloads(), 5.0)
    assert (target if kind == "a file" else target / "notes").read_text() == "mine"


async def test_a_place_that_cannot_be_written_is_named_and_the_last_export_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    export = DirectoryExport(tmp_path / "file" / "run")
    with pytest.raises(ExportError, match=r"cannot write the export .*/file/run: Not a directory"):
        await export.write(trained(), payloads(), 5.0)
    assert export.due(trained())

    async def torn() -> AsyncIterator[tuple[int, bytes]]:
        yield 5, b"x"
        raise OSError(28, "No space left on device")

    export = DirectoryExport(tmp_path / "run")
    await export.write(trained(), payloads(), 5.0)
    before: dict[str, Any] = json.loads((tmp_path / "run" / SUMMARY).read_text())
    with pytest.raises(ExportError, match="No space left"):
        await export.write(trained(), torn(), 6.0)
    assert json.loads((tmp_path / "run" / SUMMARY).read_text()) == before
