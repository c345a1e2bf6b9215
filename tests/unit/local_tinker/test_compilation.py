"""Where compiled programs go, and how many processors are really there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinker_atropos.local_tinker import compilation
from tinker_atropos.local_tinker.compilation import cache_folder, fingerprint, processors


@pytest.mark.parametrize(
    ("quota", "available", "expected"),
    [
        (None, 8, 8),
        ("max 100000", 8, 8),
        ("200000 100000\n", 8, 2),
        ("150000 100000", 8, 2),
        ("50000 100000", 8, 1),
        ("900000 100000", 4, 4),
    ],
    ids=["no cgroup", "no limit", "two", "one and a half", "half", "more than there are"],
)
def test_processors(quota: str | None, available: int, expected: int) -> None:
    assert processors(quota, available) == expected


def test_another_processor_has_another_cache() -> None:
    assert fingerprint("flags: avx2") != fingerprint("flags: avx512f")


@pytest.mark.parametrize("writable", [True, False])
def test_cache_is_beside_the_model_or_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writable: bool) -> None:
    model, data = tmp_path / "model", tmp_path / "data"
    data.mkdir()
    model.mkdir()
    beside = cache_folder(model, data)
    assert beside.parent == model
    beside.mkdir()
    (beside / "program").write_text("x")
    monkeypatch.setattr(compilation.os, "access", lambda *_: writable)
    folder = cache_folder(model, data)
    assert folder.parent == (model if writable else data)
    assert (folder / "program").read_text() == "x"
