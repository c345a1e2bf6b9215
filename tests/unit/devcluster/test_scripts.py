"""The scripts behind the Makefile: tags, locks, build secrets, progress, the summary of tests."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import build_configuration
import catalog
import demo
import images
import lock
import pytest
import run_tests
from singlenode.layout import ClusterError

ROOT = Path(__file__).resolve().parents[3]


def test_the_locks_fit_the_dependencies_in_pyproject() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    assert catalog.locks_are_fresh(pyproject, catalog.CONSTRAINTS.read_text()), "run `make lock`"
    assert not catalog.locks_are_fresh(pyproject.replace("rich>=14", "rich>=15"), catalog.CONSTRAINTS.read_text())


@pytest.mark.parametrize("name", [*images.ORDER])
def test_every_image_is_pinned_by_hash_and_names_no_registry(name: str) -> None:
    text = (ROOT / "images" / name / "requirements.txt").read_text()
    entries = lock.entries(text)
    assert entries
    assert all("--hash=sha256:" in entry for entry in entries.values())
    assert "://" not in text
    assert "index-url" not in text


def test_a_package_has_one_version_in_all_images() -> None:
    seen: dict[str, set[str]] = {}
    for image in catalog.IMAGES:
        for name, entry in lock.entries(image.requirements.read_text()).items():
            seen.setdefault(name, set()).add(entry.split()[0])
    assert {name: versions for name, versions in seen.items() if len(versions) > 1} == {}


def test_shared_layers_hold_what_all_images_above_have() -> None:
    for layer, above in catalog.SHARED.items():
        shared = set(lock.entries((ROOT / "images" / layer / "requirements.txt").read_text()))
        for image in above:
            assert shared <= set(lock.entries(image.requirements.read_text())), image.name


def _sources(root: Path) -> Path:
    for name in (
        "images/a/Dockerfile",
        "src/p/a.py",
        "operator/o.py",
        "examples/e.yaml",
        "pyproject.toml",
        "README.md",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ("src/p/a.py", False),
        ("examples/new.yaml", False),
        ("images/a/Dockerfile", False),
        ("src/p/__pycache__/a.pyc", True),
        ("src/x.egg-info/PKG-INFO", True),
        ("src/p/flat.abi3.so", True),
        ("docs/page.md", True),
    ],
)
def test_the_tag_follows_what_is_in_the_images(tmp_path: Path, changed: str, same: bool) -> None:
    root = _sources(tmp_path)
    before = images.content_tag(root)
    (root / changed).parent.mkdir(parents=True, exist_ok=True)
    (root / changed).write_text("changed")
    assert (images.content_tag(root) == before) is same


def test_images_pass_through_memory_only_where_there_is_plenty() -> None:
    assert images.roomy_folder("MemTotal: 99 kB\nMemAvailable:    4194304 kB\n") is None
    assert images.roomy_folder("") is None


def test_the_package_index_of_the_machine_is_found_where_pip_looks(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://mirror.example/simple\n[install]\nextra-index-url = a\n  b\n")
    assert build_configuration.package_index({}, [file]) == {
        "index-url": "https://mirror.example/simple",
        "extra-index-url": "a b",
    }
    own = build_configuration.package_index({"PIP_INDEX_URL": "https://other.example/simple"}, [file])
    assert own["index-url"] == "https://other.example/simple"
    assert build_configuration.package_index({}, []) == {}


def test_the_index_is_written_for_both_installers() -> None:
    index = {"index-url": "https://mirror.example/simple", "extra-index-url": "a b"}
    assert build_configuration.pip_configuration(index).splitlines()[1] == "index-url = https://mirror.example/simple"
    assert 'extra-index-url = ["a", "b"]' in build_configuration.uv_configuration(index)
    assert build_configuration.uv_configuration({}) == ""


def test_certificates_that_the_environment_names_come_first(tmp_path: Path) -> None:
    own = tmp_path / "ca.crt"
    own.write_text("x")
    assert build_configuration.certificates({"SSL_CERT_FILE": str(own)}) == own
    missing = build_configuration.certificates({"SSL_CERT_FILE": str(tmp_path / "none")})
    assert missing != tmp_path / "none"


RUN: dict[str, Any] = {
    "status": {
        "phase": "Running",
        "step": 10,
        "totalSteps": 40,
        "reward": {"mean": 0.328},
        "environments": [{"ready": 1, "desired": 2}, {"ready": 1, "desired": 1}],
        "checkpoint": {"step": 9},
    }
}


@pytest.mark.parametrize(
    ("run", "parts"),
    [
        (RUN, ["Running", "[#####...............] step 10/40", "reward 0.328", "environments 2/3", "step 9"]),
        ({}, ["Pending", "step 0/?", "reward -", "environments 0/0", "checkpoint -"]),
        ({"status": {"reward": None, "environments": None}}, ["Pending", "reward -"]),
        ({"status": {"checkpoint": {"step": 0}}}, ["checkpoint at step 0"]),
    ],
)
def test_the_progress_line_tells_what_is_known(run: dict[str, Any], parts: list[str]) -> None:
    line = demo.progress_line(run, 12.3)
    assert [part for part in parts if part not in line] == []


def test_without_a_terminal_only_changes_are_told() -> None:
    stream = io.StringIO()
    live = demo.LiveLine(stream)
    for seconds in (1.0, 2.0, 3.0):
        live.show(demo.progress_line(RUN, seconds))
    live.show(demo.progress_line({"status": {"phase": "Complete"}}, 4.0))
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["Running", "Complete"]


def test_the_chart_s_values_name_every_image() -> None:
    values = demo.image_values("dev-1", None)
    assert "images.registry=localhost/tinker-atropos" in values and "images.tag=dev-1" in values
    assert "images.registry=registry.example.com/team" in demo.image_values("dev-1", "registry.example.com/team/")


def test_a_cluster_of_the_person_s_own_needs_a_registry() -> None:
    with pytest.raises(ClusterError, match="DEMO_REGISTRY"):
        demo.foreign("production", None)


class Cluster(demo.Target):
    """A cluster that has the run in these states, one after the other; None = no run, "away" = no answer."""

    def __init__(self, *states: Any, own: bool = True) -> None:
        super().__init__(("kubectl", "--context", "mine"), ("helm",), None if own else "registry.example.com/team")
        object.__setattr__(self, "states", list(states))
        object.__setattr__(self, "done", [])

    def run_object(self) -> dict[str, Any] | None:
        states: Any = self.states  # type: ignore[attr-defined]
        state = states.pop(0) if len(states) > 1 else states[0]
        if state == "away":
            raise ClusterError("connection refused")
        return None if state is None else state

    def call(self, *arguments: str, check: bool = True) -> str:
        self.done.append(arguments[2])  # type: ignore[attr-defined]
        return ""


def there(phase: str, uid: str = "1", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"uid": uid, **metadata}, "status": {"phase": phase, "progress": "28/40"}}


NEW = there("Pending", "2")
STARTS: dict[str, tuple[list[Any], bool, list[str], str, str]] = {
    "no run": ([None, NEW], True, ["apply"], "2", "kubectl apply"),
    "no run, somebody else's cluster": ([None, NEW], False, ["apply"], "2", "kubectl apply"),
    "under way": ([there("Running")], True, [], "1", "is there and under way (Running, 28/40); going on with it"),
    "not looked at yet": ([{"metadata": {"uid": "1"}}], True, [], "1", "under way (Pending, no step yet)"),
    "under way in somebody else's": ([there("Running")], False, [], "1", "is there and under way"),
    "complete": ([there("Complete"), NEW], True, ["delete", "apply"], "2", "is over (Complete); replacing it"),
    "failed": ([there("Failed"), NEW], True, ["delete", "apply"], "2", "is over (Failed); replacing it"),
    "over in somebody else's": (
        [there("Failed")],
        False,
        [],
        "1",
        "is shown as it is. To have another, delete it:\n  kubectl --context mine -n default delete tar",
    ),
    "being deleted": ([there("Running", deletionTimestamp="x"), NEW], True, ["delete", "apply"], "2", "kubectl apply"),
}


@pytest.mark.parametrize(("states", "own", "done", "uid", "said"), STARTS.values(), ids=STARTS)
def test_a_demonstration_goes_on_with_a_run_that_is_there(
    states: list[Any], own: bool, done: list[str], uid: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = Cluster(*states, own=own)
    assert demo.start_run(cluster)["metadata"]["uid"] == uid
    assert cluster.done == done  # type: ignore[attr-defined]
    output = capsys.readouterr()
    assert said in output.out + output.err


WATCHES: dict[str, tuple[list[Any], str]] = {
    "to its end": ([there("Running"), "away", there("Running"), there("Complete")], ""),
    "over before": ([there("Failed")], ""),
    "deleted by somebody": ([there("Running"), None], "'quickstart' was deleted by somebody else"),
    "replaced by somebody": ([there("Running"), there("Complete", "2")], "'quickstart' was replaced by somebody else"),
}


@pytest.mark.parametrize(("states", "error"), WATCHES.values(), ids=WATCHES)
def test_whoever_watches_sees_the_same_run_to_its_end(
    states: list[Any], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.time, "sleep", lambda _: None)
    first, *later = states
    cluster = Cluster(*(later or [first]))
    if error:
        with pytest.raises(ClusterError, match=error):
            demo.watch(cluster, first, 100.0)
    else:
        assert demo.watch(cluster, first, 100.0) == states[-1]


def test_every_tier_is_a_folder_of_tests() -> None:
    for tier in run_tests.PYTEST_TIERS:
        assert (ROOT / "tests" / tier).is_dir(), tier


@pytest.mark.parametrize(
    ("outcome", "good"),
    [
        (run_tests.Outcome("unit", "why", passed=3), True),
        (run_tests.Outcome("unit", "why", passed=3, failed=1), False),
        (run_tests.Outcome("unit", "why", failed_to_run=True), False),
        (run_tests.Outcome("cluster", "no root", ran=False), True),
    ],
)
def test_the_summary_names_each_tier_with_its_reason(outcome: run_tests.Outcome, good: bool) -> None:
    text = run_tests.summary([outcome])
    assert outcome.good is good
    assert outcome.why in text
    assert ("FAILED" in text) is not good
    assert text.splitlines()[-1] == f"{outcome.passed} passed, {outcome.failed} failed, 0 skipped"


def test_results_are_counted_from_pytest_s_report(tmp_path: Path) -> None:
    report = tmp_path / "results.xml"
    report.write_text('<testsuites><testsuite tests="10" failures="1" errors="2" skipped="3"/></testsuites>')
    outcome = run_tests.Outcome("unit", "why")
    run_tests.count(outcome, report)
    assert (outcome.passed, outcome.failed, outcome.skipped) == (4, 3, 3)


def test_a_run_without_a_report_has_failed(tmp_path: Path) -> None:
    outcome = run_tests.Outcome("unit", "why")
    run_tests.count(outcome, tmp_path / "none.xml")
    assert not outcome.good


def test_a_node_without_root_is_refused_with_the_local_mode_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match=r"(?s)needs root.*make demo-local"):
        demo.built_in()
