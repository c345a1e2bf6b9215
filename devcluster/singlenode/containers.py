"""containerd with everything of its own below the cluster's folder, and the images in it."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from contextlib import suppress
from pathlib import Path

from singlenode import network, processes
from singlenode.control_plane import wait_until
from singlenode.layout import NODE_POD_RANGE, ClusterError, Layout
from singlenode.packages import CNI_PLUGINS
from singlenode.programs import Programs

PAUSE_IMAGE = "localhost/pause:1"
_CRI = 'plugins."io.containerd.grpc.v1.cri"'


def configuration(layout: Layout, snapshotter: str) -> str:
    return "\n".join(
        [
            "version = 2",
            f'root = "{layout.containerd / "root"}"',
            f'state = "{layout.containerd / "state"}"',
            'disabled_plugins = ["io.containerd.internal.v1.opt"]',
            "[grpc]",
            f'  address = "{layout.containerd_socket}"',
            f"[{_CRI}]",
            "  restrict_oom_score_adj = true  # lowering it needs a capability that containers lack",
            "  netns_mounts_under_state_dir = true",
            f'  sandbox_image = "{PAUSE_IMAGE}"',
            f"[{_CRI}.cni]",
            f'  bin_dir = "{CNI_PLUGINS}"',
            f'  conf_dir = "{layout.config / "cni"}"',
            f"[{_CRI}.containerd]",
            f'  snapshotter = "{snapshotter}"',
            "",
        ]
    )


def pod_network(layout: Layout) -> dict[str, object]:
    """The CNI chain: a bridge in the node's namespace, addresses handed out from a folder of the cluster."""
    return {
        "cniVersion": "0.4.0",
        "name": layout.network_namespace,
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(layout.root / "addresses"),
                    "ranges": [[{"subnet": NODE_POD_RANGE}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }


def pick_snapshotter(directory: Path) -> str:
    """overlayfs where the kernel can do it on this file system (not inside most containers), else plain copies."""
    trial = directory / "overlay-trial"
    for part in ("lower", "upper", "work", "merged"):
        (trial / part).mkdir(parents=True, exist_ok=True)
    options = ",".join(f"{layer}dir={trial / layer}" for layer in ("lower", "upper", "work"))
    mounted = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(trial / "merged")], capture_output=True, check=False
    )
    if mounted.returncode == 0:
        subprocess.run(["umount", str(trial / "merged")], check=False)
    shutil.rmtree(trial, ignore_errors=True)
    return "overlayfs" if mounted.returncode == 0 else "native"


def store(layout: Layout) -> Path:
    """Where images wait between two clusters: importing two gigabytes and deleting them again takes minutes."""
    return layout.root.parent.parent / "image-store"


def _adopt_images(layout: Layout) -> bool:
    """Take over the images that an earlier cluster has left, if no other cluster has."""
    try:
        store(layout).rename(layout.containerd / "root")
    except OSError:
        return False
    return True


def park_images(layout: Layout) -> None:
    """Leave the images of a cluster that has ended to the next one; nothing but images stays.

    Called while containerd still runs and no container does. What cannot be cleaned is not left behind: the caller
    removes the cluster's folder, and this only moves a clean store out of it.
    """
    if not processes.alive(layout, "containerd"):
        return
    for kind in ("tasks", "containers"):
        names = _ctr(layout, kind, "ls", "-q").stdout.split()
        if names:
            _ctr(layout, kind, "rm", *(["--force"] if kind == "tasks" else []), *names)
    outdated = _outdated(images(layout), _loaded_tag(layout))
    if outdated:
        _ctr(layout, "images", "rm", "--sync", *outdated)
    clean = not _ctr(layout, "containers", "ls", "-q").stdout.split() and _ctr(layout, "version").returncode == 0
    processes.stop(layout, "containerd")
    unmount_below(layout.root)
    root = layout.containerd / "root"
    shutil.rmtree(root / "io.containerd.grpc.v1.cri", ignore_errors=True)
    if clean and not store(layout).exists():
        with suppress(OSError):  # another cluster was quicker
            root.rename(store(layout))


def _loaded_tag(layout: Layout) -> str:
    mark = layout.root / "loaded-tag"
    return mark.read_text().strip() if mark.exists() else ""


def mark_loaded(layout: Layout, tag: str) -> None:
    """Remember which images are the present ones; others need not wait for the next cluster."""
    (layout.root / "loaded-tag").write_text(tag + "\n")


def _outdated(names: list[str], tag: str) -> list[str]:
    """The project's images of other tags than the present one."""
    return [name for name in names if "/tinker-atropos/" in name and tag and not name.endswith(f":{tag}")]


def start(layout: Layout, programs: Programs) -> None:
    """Start containerd, on the images of an earlier cluster where there are some and they are sound."""
    layout.containerd.mkdir(exist_ok=True)
    adopted = _adopt_images(layout)
    try:
        _start(layout, programs)
    except ClusterError:
        if not adopted:
            raise
        processes.stop(layout, "containerd")
        unmount_below(layout.root)
        shutil.rmtree(layout.containerd)
        layout.containerd.mkdir()
        _start(layout, programs)


def _start(layout: Layout, programs: Programs) -> None:
    (layout.config / "cni").mkdir(parents=True, exist_ok=True)
    (layout.config / "cni" / "10-pods.conflist").write_text(json.dumps(pod_network(layout), indent=1))
    config = layout.config / "containerd.toml"
    config.write_text(configuration(layout, pick_snapshotter(layout.containerd)))
    processes.start(layout, "containerd", [*network.inside(layout), "containerd", "-c", str(config)])
    wait_until(lambda: _ctr(layout, "version").returncode == 0, "containerd's readiness", layout, ("containerd",), 30.0)
    archive = layout.root / "pause.tar"
    archive.write_bytes(pause_archive(Path(programs.path("pause")).read_bytes()))
    load_archive(layout, archive)
    archive.unlink()


def _ctr(layout: Layout, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["ctr", "-a", str(layout.containerd_socket), "-n", "k8s.io", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def importer(layout: Layout) -> subprocess.Popen[bytes]:
    """A process that imports the images of the OCI or Docker archive that is written to its stdin."""
    command = ["ctr", "-a", str(layout.containerd_socket), "-n", "k8s.io", "images", "import", "-"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish_import(importing: subprocess.Popen[bytes]) -> None:
    _, said = importing.communicate()
    if importing.returncode != 0:
        raise ClusterError(f"the images could not be imported into the node: {said.decode(errors='replace').strip()}")


def load_archive(layout: Layout, archive: Path) -> None:
    importing = importer(layout)
    assert importing.stdin is not None
    with archive.open("rb") as source, suppress(BrokenPipeError):  # its own error says why it stopped reading
        shutil.copyfileobj(source, importing.stdin, 1 << 20)
    finish_import(importing)


def images(layout: Layout) -> list[str]:
    """The names of the images that the node has."""
    return [name for name in _ctr(layout, "images", "ls", "-q").stdout.split() if not name.startswith("sha256:")]


def pause_archive(program: bytes) -> bytes:
    """The smallest of images, made by hand: one static program in one layer, as an OCI archive."""

    def tar(files: dict[str, tuple[bytes, int]]) -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
            for path, (content, mode) in files.items():
                entry = tarfile.TarInfo(path)
                entry.size, entry.mode = len(content), mode
                archive.addfile(entry, io.BytesIO(content))
        return buffer.getvalue()

    blobs: dict[str, tuple[bytes, int]] = {}

    def blob(kind: str, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = (content, 0o644)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    layer = blob("layer.v1.tar", tar({"pause": (program, 0o755)}))
    image = {
        "architecture": "amd64" if _is_amd64(program) else "arm64",
        "os": "linux",
        "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(image).encode()),
        "layers": [layer],
    }
    entry = blob("manifest.v1+json", json.dumps(manifest).encode())
    entry["annotations"] = {"org.opencontainers.image.ref.name": PAUSE_IMAGE}
    blobs["index.json"] = (json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(), 0o644)
    blobs["oci-layout"] = (b'{"imageLayoutVersion": "1.0.0"}', 0o644)
    return tar(blobs)


def _is_amd64(program: bytes) -> bool:
    """The machine field of an ELF header."""
    return program[18:20] == b"\x3e\x00"


def shims(layout: Layout) -> list[int]:
    """The helper processes that hold this cluster's containers: they outlive containerd and name its socket."""
    socket = str(layout.containerd_socket).encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"containerd-shim" in arguments[0] and socket in arguments:
                found.append(int(entry.name))
    return found


def unmount_below(directory: Path) -> None:
    """Release every mount below a folder, the innermost first."""
    below = f"{directory}/"
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((p for p in points if p.startswith(below)), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False)


def blobs(layout: Layout) -> dict[str, int]:
    """Digest and size of everything in the node's content store: what an import may leave out."""
    store = layout.containerd / "root" / "io.containerd.content.v1.content" / "blobs" / "sha256"
    return {blob.name: blob.stat().st_size for blob in store.iterdir()} if store.is_dir() else {}
