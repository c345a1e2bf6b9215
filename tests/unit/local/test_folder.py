"""Whose a run's folder is, and what is said when it is not this run's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tinker_atropos.local.folder import RunFolder
from tinker_atropos.protocol.progress import ProgressReport
from tinker_atropos.run.load import RunFile, convert
from tinker_atropos.run.problems import InvalidRunError


def run(**spec: Any) -> RunFile:
    head = {"apiVersion": "tinker-atropos.dev/v1alpha1", "kind": "TinkerAtroposRun", "metadata": {"name": "r"}}
    base = {"tinkerAPI": {"local": {}}, "environments": [{"name": "a", "command": ["x"]}]}
    return convert({**head, "spec": {**base, **spec}}, "r")


def test_it_is_made_and_kept(tmp_path: Path) -> None:
    root = tmp_path / "new" / "data"
    with RunFolder.take(root, run(), tmp_path / "run.yaml") as first:
        assert first.finished(50) is None
        token = first.folders.token.read_text()
        assert first.folders.token.stat().st_mode & 0o777 == 0o600
    with RunFolder.take(root, run(), tmp_path / "run.yaml") as second:
        assert (second.uid, second.folders.token.read_text()) == (first.uid, token)


def test_a_complete_run_is_remembered_with_its_weights(tmp_path: Path) -> None:
    report = ProgressReport(run_uid="u", phase="Complete", step=5, total_steps=5, sampler_weights="tinker://x/final")
    with RunFolder.take(tmp_path / "data", run(), tmp_path / "run.yaml") as folder:
        folder.finish(report)
    with RunFolder.take(tmp_path / "data", run(), tmp_path / "run.yaml") as folder:
        assert folder.finished(5) == report
        assert folder.finished(6) is None, "it is to go on"


def test_a_torn_record_of_the_end_is_none(tmp_path: Path) -> None:
    with RunFolder.take(tmp_path / "data", run(), tmp_path / "run.yaml") as folder:
        folder.folders.result.write_text('{"step":')
        assert folder.finished(50) is None


def empty(root: Path) -> None:
    root.mkdir()


def somebody_elses(root: Path) -> None:
    root.mkdir()
    (root / "thesis.tex").write_text("")


def a_file(root: Path) -> None:
    root.write_text("")


def another_run(root: Path) -> None:
    with RunFolder.take(root, run(checkpoints={"every": 3}), root.parent / "run.yaml"):
        pass


def a_spoilt_run(root: Path) -> None:
    with RunFolder.take(root, run(), root.parent / "run.yaml") as folder:
        folder.folders.run_file.write_text("gone: [")


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a folder with other things": (somebody_elses, "holds other things and no run; give an empty folder"),
    "a file": (a_file, "cannot be used: File exists"),
    "another run": (
        another_run,
        "holds a run of another run file; it differs in spec.checkpoints; give another folder",
    ),
    "a run that was spoilt": (a_spoilt_run, "holds a run.yaml that is no run file any more"),
}


@pytest.mark.parametrize(("prepare", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, prepare: Callable[[Path], None], message: str) -> None:
    root = tmp_path / "data"
    prepare(root)
    with pytest.raises(InvalidRunError) as caught:
        RunFolder.take(root, run(), tmp_path / "run.yaml")
    assert str(caught.value).startswith(f"--data: {root} {message}")


def test_the_folder_of_the_run_file_is_refused_and_the_file_kept(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("# mine\n")
    with pytest.raises(InvalidRunError, match="is the folder of the run file itself"):
        RunFolder.take(tmp_path, run(), file)
    assert file.read_text() == "# mine\n"


CHANGES = {
    "more steps": {"config": {"env": {"total_steps": 60}}},
    "another weight": {"environments": [{"name": "a", "command": ["x"], "weight": 2}]},
    "more instances": {"environments": [{"name": "a", "command": ["x"], "replicas": 3}]},
    "more patience": {"deadlines": {"startup": "1h"}},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_what_may_change_in_a_cluster_may_change_here(tmp_path: Path, changes: dict[str, Any]) -> None:
    before = {**changes, "config": {"env": {}}} if "config" in changes else {}
    with RunFolder.take(tmp_path / "data", run(**before), tmp_path / "run.yaml") as first:
        pass
    with RunFolder.take(tmp_path / "data", run(**changes), tmp_path / "run.yaml") as second:
        assert second.uid == first.uid


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    empty(tmp_path / "data")
    with RunFolder.take(tmp_path / "data", run(), tmp_path / "run.yaml") as folder:
        assert folder.folders.run_file.exists()


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    with (
        RunFolder.take(tmp_path / "data", run(), tmp_path / "run.yaml"),
        pytest.raises(InvalidRunError, match="is in use by another tinker-atropos run"),
    ):
        RunFolder.take(tmp_path / "data", run(), tmp_path / "run.yaml")
    with RunFolder.take(tmp_path / "data", run(), tmp_path / "run.yaml"):
        pass
