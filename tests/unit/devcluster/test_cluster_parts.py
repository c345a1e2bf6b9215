"""What follows from a cluster's name, from files and from what the machine says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from singlenode import (
    cgroups,
    cluster,
    containers,
    control_plane,
    layout,
    network,
    node,
    packages,
    processes,
    programs,
    volumes,
)

GO_MOD = """module example

require (
	k8s.io/kubernetes v1.34.4
)

require (
	helm.sh/helm/v3 v3.19.5 // indirect
)
"""


@pytest.mark.parametrize("name", ["demo", "t1", "a", "a-b", "abcdefghijk"])
def test_a_name_that_fits_an_interface_is_taken(name: str) -> None:
    paths = layout.layout(name, environment={"HOME": "/home/someone"})
    assert len(paths.host_link) <= 15
    assert len(paths.node_link) <= 15


@pytest.mark.parametrize("name", ["", "Demo", "1a", "a_b", "a-", "abcdefghijkl", "../x"])
def test_another_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(layout.ClusterError, match="1 to 11 lower-case letters"):
        layout.layout(name, environment={"HOME": "/home/someone"})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HOME": "/home/someone"}, "/home/someone/.cache/tinker-atropos"),
        ({"HOME": "/home/someone", "XDG_CACHE_HOME": "/big"}, "/big/tinker-atropos"),
        ({"HOME": "/home/someone", "XDG_CACHE_HOME": ""}, "/home/someone/.cache/tinker-atropos"),
    ],
)
def test_the_cache_is_where_caches_are(environment: dict[str, str], expected: str) -> None:
    assert layout.cache_directory(environment) == Path(expected)


def test_clusters_side_by_side_get_different_links() -> None:
    first = layout.free_link(set())
    second = layout.free_link({first.host})
    assert {first.host, first.node}.isdisjoint({second.host, second.node})
    assert (second.host, second.node) == ("198.18.254.5", "198.18.254.6")


def test_when_all_links_are_taken_the_way_out_is_named() -> None:
    with pytest.raises(layout.ClusterError, match="take down clusters"):
        layout.free_link({layout.Link(index).host for index in range(64)})


def test_addresses_are_read_from_ip() -> None:
    listing = [{"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]}, {"ifname": "x"}, {"addr_info": [{}]}]
    assert network.addresses(json.dumps(listing)) == {"127.0.0.1"}
    assert network.addresses("") == set()


def test_versions_come_from_the_pinned_modules() -> None:
    assert programs.versions(GO_MOD) == {"kubernetes": "v1.34.4", "helm": "v3.19.5"}
    flags = programs.linker_flags(GO_MOD)
    assert "version.gitVersion=v1.34.4" in flags["devcluster"]
    assert "version.gitMinor=34" in flags["devcluster"]
    assert "internal/version.version=v3.19.5" in flags["helm"]


def test_a_module_without_kubernetes_is_named() -> None:
    with pytest.raises(layout.ClusterError, match=r"does not require k8s\.io/kubernetes"):
        programs.versions("module example\n")


def test_the_pinned_module_builds_kubernetes_1_34() -> None:
    assert programs.versions((programs.MODULE / "go.mod").read_text())["kubernetes"].startswith("v1.34.")


def _module(folder: Path) -> Path:
    for name in programs.INPUTS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


@pytest.mark.parametrize("changed", programs.INPUTS)
def test_a_change_of_any_input_is_another_build(tmp_path: Path, changed: str) -> None:
    module = _module(tmp_path)
    before = programs.cache_key(module)
    assert programs.cache_key(module) == before
    (module / changed).write_text("something else")
    assert programs.cache_key(module) != before


@pytest.mark.parametrize(
    ("text", "version"), [("go version go1.26.8 linux/amd64", (1, 26)), ("go version go1.24 linux/arm64", (1, 24))]
)
def test_go_versions(text: str, version: tuple[int, int]) -> None:
    assert programs.go_version(text) == version


@pytest.mark.parametrize(
    ("policy", "enough"),
    [
        ("golang-go:\n  Installed: (none)\n  Candidate: 2:1.19~1\n", False),
        ("golang-go:\n  Installed: (none)\n  Candidate: 2:1.24~2\n", True),
        ("golang-1.26-go:\n  Candidate: 1.26.1-1~bpo12+1\n", True),
        ("golang-go:\n  Candidate: (none)\n", False),
        ("", False),
    ],
)
def test_go_packages_that_are_new_enough(policy: str, enough: bool) -> None:
    assert programs.new_enough_candidate(policy) is enough


MOUNTS_1 = """24 1 0:22 / /sys rw - sysfs sysfs rw
30 24 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
31 24 0:27 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
32 24 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
MOUNTS_2 = "30 24 0:26 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw\n"


def test_both_layouts_of_control_groups_are_recognised() -> None:
    memory, cpuset, unified = (Path("/sys/fs/cgroup") / name for name in ("memory", "cpuset", "unified"))
    assert cgroups.hierarchies(MOUNTS_1) == ([memory, cpuset], [unified])
    assert cgroups.hierarchies(MOUNTS_2) == ([], [Path("/sys/fs/cgroup")])


def test_every_program_of_the_node_has_a_package() -> None:
    lacking = packages.missing({"/nowhere/at/all": "some-package", "sh": "dash"})
    assert lacking == {"/nowhere/at/all": "some-package"}


def test_the_pause_archive_is_an_image_with_one_layer(tmp_path: Path) -> None:
    import io
    import tarfile

    program = b"\x7fELF" + bytes(14) + b"\x3e\x00" + b"rest"
    with tarfile.open(fileobj=io.BytesIO(containers.pause_archive(program))) as archive:

        def read(name: str) -> bytes:
            member = archive.extractfile(name)
            assert member is not None
            return member.read()

        index = json.loads(read("index.json"))
        assert index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"] == containers.PAUSE_IMAGE
        manifest = json.loads(read("blobs/sha256/" + index["manifests"][0]["digest"].removeprefix("sha256:")))
        config = json.loads(read("blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")))
        assert config["architecture"] == "amd64"
        assert config["rootfs"]["diff_ids"] == [layer["digest"] for layer in manifest["layers"]]
        layer = read("blobs/sha256/" + manifest["layers"][0]["digest"].removeprefix("sha256:"))
    with tarfile.open(fileobj=io.BytesIO(layer)) as files:
        assert files.getnames() == ["pause"]
        assert files.getmember("pause").mode == 0o755


def test_only_the_present_images_wait_for_the_next_cluster() -> None:
    names = ["localhost/tinker-atropos/operator:dev-1", "localhost/tinker-atropos/operator:dev-2", "localhost/pause:1"]
    assert containers._outdated(names, "dev-2") == ["localhost/tinker-atropos/operator:dev-1"]
    assert containers._outdated(names, "") == []


def test_every_file_of_a_cluster_is_below_its_folder() -> None:
    paths = layout.Layout("demo", Path("/clusters/demo"))
    configuration = containers.configuration(paths, "overlayfs")
    assert 'address = "/clusters/demo/containerd.sock"' in configuration
    assert "restrict_oom_score_adj = true" in configuration
    kubelet = node.kubelet_configuration(paths, "198.18.254.2", cgroup_v1=True)
    assert kubelet["cgroupRoot"] == "/tinker-atropos-demo"
    assert kubelet["failCgroupV1"] is False
    assert str(kubelet["podLogsDir"]).startswith("/clusters/demo/")


def test_a_node_without_a_way_out_forwards_no_names() -> None:
    paths = layout.Layout("demo", Path("/clusters/demo"))
    assert "forward" not in node.dns_configuration(paths, "198.18.254.2", "")
    assert "forward . /etc/resolv.conf" in node.dns_configuration(paths, "198.18.254.2", "forward . /etc/resolv.conf")


def test_writes_are_audited_and_reads_are_not() -> None:
    rules: Any = control_plane.AUDIT_POLICY["rules"]
    assert set(rules[0]["verbs"]) == {"create", "update", "patch", "delete", "deletecollection"}
    assert rules[-1] == {"level": "None"}


def _claim(**changes: Any) -> dict[str, Any]:
    claim: dict[str, Any] = {
        "metadata": {"uid": "u1", "name": "data", "namespace": "ns"},
        "spec": {
            "storageClassName": "local",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
        "status": {"phase": "Pending"},
    }
    for part, values in changes.items():
        claim[part] = claim[part] | values
    return claim


@pytest.mark.parametrize(
    ("claim", "wants"),
    [
        (_claim(), True),
        (_claim(status={"phase": "Bound"}), False),
        (_claim(spec={"storageClassName": "other"}), False),
        (_claim(spec={"volumeName": "chosen-by-hand"}), False),
        (_claim(metadata={"deletionTimestamp": "now"}), False),
    ],
    ids=["pending", "bound", "another class", "volume named", "being deleted"],
)
def test_which_claims_get_a_volume(claim: dict[str, Any], wants: bool) -> None:
    assert volumes.wants_volume(claim) is wants


def test_a_volume_is_bound_to_its_claim_alone() -> None:
    volume = volumes.volume_for(_claim(), Path("/volumes"))
    assert volume["spec"]["claimRef"]["uid"] == "u1"
    assert volume["spec"]["local"]["path"] == "/volumes/pvc-u1"
    assert volumes.released({**volume, "status": {"phase": "Released"}})
    assert not volumes.released({**volume, "status": {"phase": "Bound"}})


@pytest.fixture
def paths(tmp_path: Path) -> layout.Layout:
    return layout.Layout("demo", tmp_path)


def test_a_started_process_is_known_until_it_has_been_stopped(paths: layout.Layout) -> None:
    processes.start(paths, "sleeper", [sys.executable, "-c", "import time; time.sleep(60)"])
    assert processes.alive(paths, "sleeper")
    processes.stop(paths, "sleeper")
    assert not processes.alive(paths, "sleeper")
    assert processes.recorded(paths) == []


def test_a_process_that_ignores_the_request_is_ended_all_the_same(paths: layout.Layout) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
    )
    processes.start(paths, "deaf", [sys.executable, "-c", code])
    control_plane.wait_until(lambda: "deaf" in processes.log_tail(paths, "deaf"), "the start", paths, ("deaf",))
    processes.stop(paths, "deaf", patience=0.3)
    assert not processes.alive(paths, "deaf")


def test_a_number_that_belongs_to_somebody_else_now_is_left_alone(paths: layout.Layout) -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        paths.processes.mkdir()
        (paths.processes / "kubelet").write_text(f"{stranger.pid} 1\n")
        assert not processes.alive(paths, "kubelet")
        processes.stop(paths, "kubelet")
        assert stranger.poll() is None
    finally:
        os.kill(stranger.pid, signal.SIGKILL)
        stranger.wait()


def test_a_program_that_died_is_reported_with_its_last_words(paths: layout.Layout) -> None:
    processes.start(paths, "etcd", [sys.executable, "-c", "raise SystemExit('the disk is full')"])
    with pytest.raises(layout.ClusterError, match=r"(?s)etcd ended right after its start.*the disk is full"):
        control_plane.wait_until(lambda: False, "readiness", paths, ("etcd",), patience=30.0)


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(layout.ClusterError, match="XDG_CACHE_HOME"):
        cluster.down("none")
