"""Checkpoints on disk: whole or absent after any crash, gone when their time is over, never outside the data folder."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinker_atropos.local_tinker import checkpoints as module
from tinker_atropos.local_tinker.checkpoints import Checkpoints, parse_path
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.lora import LoraSettings

PATH = "tinker://s:train:0/weights/step-1"


class Clock:
    def __init__(self) -> None:
        self.now = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def __call__(self) -> dt.datetime:
        return self.now

    def forward(self, **by: float) -> None:
        self.now += dt.timedelta(**by)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(root: Path, clock: Clock) -> Checkpoints:
    return Checkpoints(root, clock)


def tensors(value: float) -> dict[str, Any]:
    return {"a": np.full(3, value, np.float32)}


def save(store: Checkpoints, value: float = 1.0, path: str = PATH, **fields: Any) -> Any:
    return store.save(path, base_model="b", lora=LoraSettings(4), adapter=tensors(value), **fields)


def value_of(store: Checkpoints, path: str = PATH) -> float:
    return float(store.load(store.find(path), optimizer=False).adapter["a"][0])


def test_another_process_finds_all_of_it(tmp_path: Path, clock: Clock) -> None:
    record = save(
        opened(tmp_path, clock), moments=(tensors(2.0), tensors(3.0)), step=7, ttl=3600, user_metadata={"k": "v"}
    )
    store = opened(tmp_path, clock)
    assert store.find(PATH) == record
    assert (record.step, record.lora.rank, record.user_metadata) == (7, 4, {"k": "v"})
    contents = store.load(record, optimizer=True)
    assert contents.first is not None
    assert contents.second is not None
    assert [float(part["a"][0]) for part in (contents.adapter, contents.first, contents.second)] == [1.0, 2.0, 3.0]
    assert store.load(record, optimizer=False).first is None


def test_name_in_use_is_refused_unless_overwritten(tmp_path: Path, clock: Clock) -> None:
    store = opened(tmp_path, clock)
    save(store, 1.0)
    with pytest.raises(UserError, match="already exists"):
        save(store, 2.0, overwrite=False)
    assert value_of(store) == 1.0
    save(store, 2.0)
    assert value_of(store) == value_of(opened(tmp_path, clock)) == 2.0
    folders = [path for path in (tmp_path / "runs/s:train:0/weights").iterdir() if path.is_dir()]
    assert len(folders) == 1


@pytest.mark.parametrize("dies_in", ["_write", "_sync", "rename"])
def test_death_while_saving_leaves_the_old_checkpoint(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, dies_in: str
) -> None:
    save(opened(tmp_path, clock), 1.0)
    store = opened(tmp_path, clock)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if dies_in == "rename":
            patch.setattr(Path, "replace", die)
        else:
            patch.setattr(module, dies_in, die)
        with pytest.raises(KeyboardInterrupt):
            save(store, 2.0)
    after = opened(tmp_path, clock)
    assert value_of(after) == 1.0
    assert len(list((tmp_path / "runs/s:train:0/weights").iterdir())) == 2, "leftovers are gone"


def test_time_to_live(tmp_path: Path, clock: Clock) -> None:
    store = opened(tmp_path, clock)
    save(store, ttl=3600)
    save(store, path="tinker://s:train:0/weights/kept")
    clock.forward(seconds=3599)
    assert store.expire() == []
    clock.forward(seconds=1)
    with pytest.raises(UserError, match="expired"):
        store.find(PATH)
    assert [record.name for record in store.listed()] == ["kept"]
    assert [record.path for record in store.expire()] == [PATH]
    assert not list((tmp_path / "runs/s:train:0/weights").glob("step-1*"))


def test_time_to_live_can_be_changed_and_taken_away(tmp_path: Path, clock: Clock) -> None:
    store = opened(tmp_path, clock)
    save(store, ttl=3600)
    clock.forward(minutes=30)
    store.set_ttl(PATH, 3600)
    clock.forward(minutes=45)
    assert store.find(PATH).expires is not None
    store.set_ttl(PATH, None)
    clock.forward(days=10000)
    assert opened(tmp_path, clock).find(PATH).expires is None


@pytest.mark.parametrize("ttl", [0, 3599, 10 * 366 * 24 * 3600])
def test_time_to_live_out_of_range_changes_nothing(tmp_path: Path, clock: Clock, ttl: int) -> None:
    store = opened(tmp_path, clock)
    with pytest.raises(UserError, match=f"ttl_seconds: {ttl}"):
        save(store, ttl=ttl)
    assert store.listed() == []
    assert not list(tmp_path.rglob("*.safetensors"))


def test_an_expired_name_is_free_again(tmp_path: Path, clock: Clock) -> None:
    store = opened(tmp_path, clock)
    save(store, 1.0, ttl=3600)
    clock.forward(hours=2)
    save(store, 2.0, overwrite=False)
    assert value_of(store) == 2.0


def test_deletion(tmp_path: Path, clock: Clock) -> None:
    store = opened(tmp_path, clock)
    save(store)
    store.delete(PATH)
    with pytest.raises(UserError) as gone:
        store.delete(PATH)
    assert gone.value.status == 404
    assert opened(tmp_path, clock).listed() == []


def test_a_deletion_cut_short_is_finished_at_start(tmp_path: Path, clock: Clock) -> None:
    record = save(opened(tmp_path, clock))
    (tmp_path / "runs/s:train:0/weights/step-1.json").unlink()
    opened(tmp_path, clock)
    assert not (tmp_path / "runs/s:train:0/weights" / record.folder).exists()


def test_snapshots_are_not_listed_and_go_with_their_session(tmp_path: Path, clock: Clock) -> None:
    store = opened(tmp_path, clock)
    for session in ("s", "t"):
        save(store, path=f"tinker://{session}:train:0/snapshots/sampler-1")
    save(store)
    assert [record.path for record in store.listed()] == [PATH]
    store.delete_snapshots("s:")
    store.find("tinker://t:train:0/snapshots/sampler-1")
    with pytest.raises(UserError):
        store.find("tinker://s:train:0/snapshots/sampler-1")


def test_lists_are_in_time_order_and_by_run(tmp_path: Path, clock: Clock) -> None:
    store = opened(tmp_path, clock)
    for name in ("b", "a"):
        save(store, path=f"tinker://s:train:0/weights/{name}")
        clock.forward(seconds=1)
    save(store, path="tinker://s:train:1/sampler_weights/c")
    assert [record.name for record in store.listed()] == ["b", "a", "c"]
    assert [record.name for record in store.listed("s:train:1")] == ["c"]


@pytest.mark.parametrize(
    "path",
    [
        "s/weights/a",
        "tinker://s/weights",
        "tinker://s/weights/a/b",
        "tinker://s/other/a",
        "tinker://../weights/a",
        "tinker://s/weights/..",
        "tinker://s/weights/.hidden",
        "tinker://s/weights/",
        "tinker://s/weights/a b",
        "tinker://s/weights/" + "a" * 201,
    ],
)
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(UserError, match="not of the form"):
        parse_path(path)
