#!/usr/bin/env python3
"""Build the project's images and bring them to a cluster: `python scripts/images.py --help`.

Docker is used where its daemon runs, else buildah, which needs neither a daemon nor a registry: Debian's base image is
then made with debootstrap. An image's tag is a hash of all that goes into it, so what has not changed is not built,
not loaded and not rolled out again.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from build_configuration import secrets
from catalog import CONSTRAINTS, IMAGES, PREFIX, ROOT, locks_are_fresh
from singlenode import cluster, containers, packages
from singlenode.layout import ClusterError, cache_directory, layout
from singlenode.progress import say, step

DEBIAN, SUITE = "debian:bookworm-slim", "bookworm"
INPUTS = ("images", "src", "operator", "examples", "pyproject.toml", "README.md", "LICENSE", ".dockerignore")
BELOW = ("build", "base", "runtime")
"""What the images stand on, in this order; the images themselves stand side by side."""
ORDER = (*BELOW, *(image.name for image in IMAGES))
AT_ONCE = 2
SECONDS = {"build": 20, "base": 20, "runtime": 20, "environment": 40, "local-tinker": 60}
"""How long an image usually takes that takes longer than 10 s."""
_LEFT_OUT = {"__pycache__"}
_BUILT_HERE = {".so"}
"""Compiled for this machine's Python; an image compiles its own."""


def content_tag(root: Path = ROOT) -> str:
    digest = hashlib.sha256()
    for path in _files(root):
        content = path.read_bytes()
        executable = os.access(path, os.X_OK)
        digest.update(f"{path.relative_to(root)} {len(content)} {executable}\n".encode() + content)
    return f"dev-{digest.hexdigest()[:12]}"


def _files(root: Path) -> Iterator[Path]:
    for name in INPUTS:
        top = root / name
        found = [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file())
        for path in found:
            parts = path.relative_to(root).parts
            if path.suffix in _BUILT_HERE:
                continue
            if not any(part in _LEFT_OUT or part.endswith(".egg-info") for part in parts):
                yield path


def reference(image: str, tag: str) -> str:
    """The name under which a node knows an image; localhost keeps everything from asking a registry for it."""
    return f"localhost/{PREFIX}/{image}:{tag}"


def _run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, capture_output=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def _must(command: list[str], what: str, environment: dict[str, str] | None = None) -> str:
    done = _run(command, env=os.environ | (environment or {}))
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-40:])
        raise ClusterError(f"{what} failed:\n{tail}")
    return done.stdout


def roomy_folder(meminfo: str) -> str | None:
    """Memory, where there is plenty, for files that live for seconds (None: the usual folder for such files).

    The images are some two gigabytes, and the disk has enough to do with the copies that stay.
    """
    available = re.search(r"MemAvailable:\s+(\d+) kB", meminfo)
    shared = Path("/dev/shm")  # noqa: S108 - a folder of random name is made in it
    plenty = available is not None and int(available.group(1)) > 10 << 20
    return str(shared) if plenty and shared.is_dir() and shutil.disk_usage(shared).free > 6 << 30 else None


class Docker:
    """A Docker daemon that the person already runs."""

    name = "docker"

    @staticmethod
    def usable() -> bool:
        return shutil.which("docker") is not None and _run(["docker", "info"]).returncode == 0

    def prepare(self) -> None:
        """Docker pulls what Dockerfiles name by itself."""

    def has(self, name: str) -> bool:
        return _run(["docker", "image", "inspect", name]).returncode == 0

    def build(self, image: str, names: list[str], arguments: list[str]) -> None:
        tags = [argument for name in names for argument in ("--tag", name)]
        file = ["--file", f"images/{image}/Dockerfile"]
        _must(["docker", "build", *file, *tags, *arguments, str(ROOT)], f"building {image}", {"DOCKER_BUILDKIT": "1"})

    def export(self, names: list[str], present: dict[str, int], sink: IO[bytes]) -> None:
        if subprocess.run(["docker", "save", *names], stdout=sink, check=False).returncode != 0:
            raise ClusterError(f"docker save {' '.join(names)} failed")

    def push(self, name: str, target: str) -> None:
        _must(["docker", "tag", name, target], f"tagging {target}")
        _must(["docker", "push", target], f"pushing {target}")


class Buildah:
    """Debian's buildah with chroot isolation: builds Dockerfiles as they are, without a daemon."""

    name = "buildah"

    def prepare(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("building images needs a running Docker daemon, or root for buildah")
        packages.ensure(packages.IMAGES, "building images")
        if not self.has(DEBIAN):
            with step("making Debian's base image with debootstrap", "40-70 s"):
                self._bootstrap()

    def _bootstrap(self) -> None:
        with tempfile.TemporaryDirectory(prefix="debootstrap-") as folder:
            base = Path(folder) / "root"
            what = ["--variant=minbase", "--include=ca-certificates", SUITE, str(base)]
            _must(["debootstrap", *what], "debootstrap", {"PATH": packages.search_path()})
            for cached in ("var/cache/apt/archives", "var/lib/apt/lists"):
                for file in (base / cached).glob("*"):
                    if file.is_file():
                        file.unlink()
            container = _must(["buildah", "from", "scratch"], "buildah from").strip()
            _must(["buildah", "add", "--quiet", container, str(base), "/"], "adding the base files")
            _must(["buildah", "config", "--cmd", "/bin/bash", container], "buildah config")
            _must(
                ["buildah", "commit", "--rm", "--quiet", container, f"docker.io/library/{DEBIAN}"],
                "committing the base image",
            )

    def has(self, name: str) -> bool:
        return _run(["buildah", "inspect", "--type", "image", name]).returncode == 0

    def build(self, image: str, names: list[str], arguments: list[str]) -> None:
        tags = [argument for name in names for argument in ("--tag", name)]
        options = ["--layers", "--pull-never", "--file", str(ROOT / "images" / image / "Dockerfile")]
        _must(
            ["buildah", "build", *options, *tags, *arguments, str(ROOT)],
            f"building {image}",
            {"BUILDAH_ISOLATION": "chroot"},
        )

    def export(self, names: list[str], present: dict[str, int], sink: IO[bytes]) -> None:
        """All images as one OCI archive, shared layers once, without the blobs that the node already has.

        Nothing is compressed: gzip would take several times longer than all the rest. A blob that is there already is
        not copied, so what the node has is stood in for by an empty (sparse) file of the same size.
        """
        memory = roomy_folder(Path("/proc/meminfo").read_text())
        with tempfile.TemporaryDirectory(prefix="images-", dir=memory) as folder:
            oci = Path(folder)
            blobs = oci / "blobs" / "sha256"
            blobs.mkdir(parents=True)
            for digest, size in present.items():
                with (blobs / digest).open("wb") as stand_in:
                    stand_in.truncate(size)
            for name in names:
                copy = ["skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers"]
                _must([*copy, f"containers-storage:{name}", f"oci:{oci}:{name}"], f"exporting {name}")
            with tarfile.open(fileobj=sink, mode="w|", bufsize=1 << 20) as tar:
                for file in ("oci-layout", "index.json"):
                    tar.add(oci / file, file)
                for blob in sorted(blobs.iterdir()):
                    if blob.name not in present:
                        tar.add(blob, f"blobs/sha256/{blob.name}")

    def push(self, name: str, target: str) -> None:
        _must(["buildah", "push", "--quiet", name, f"docker://{target}"], f"pushing {target}")


def pick_builder() -> Docker | Buildah:
    return Docker() if Docker.usable() else Buildah()


@contextmanager
def _alone() -> Iterator[None]:
    """One build at a time: a second one waits and then finds everything made."""
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(builder: Docker | Buildah) -> str:
    """Make every image that is not there under the tag of the present sources; answers with the tag."""
    tag = content_tag()
    with _alone():
        if all(builder.has(reference(image.name, tag)) for image in IMAGES):
            say(f"images {tag} are already built")
            return tag
        if not locks_are_fresh((ROOT / "pyproject.toml").read_text(), CONSTRAINTS.read_text()):
            raise ClusterError(
                "the dependencies in pyproject.toml have changed since they were pinned: run `make lock`"
            )
        builder.prepare()
        started = time.monotonic()
        say(f"building images {tag} with {builder.name} (usually 4-6 min the first time, 20 s later) ...")
        with tempfile.TemporaryDirectory(prefix="build-") as folder:
            arguments = secrets(Path(folder))

            def make(name: str, *more: str) -> None:
                with step(f"  image {name}", f"{SECONDS.get(name, 10)} s"):
                    builder.build(name, [f"{PREFIX}/{name}", *more], arguments)

            for name in BELOW:
                make(name)
            _side_by_side(
                partial(make, image.name, reference(image.name, tag))
                for image in sorted(IMAGES, key=lambda image: SECONDS.get(image.name, 0), reverse=True)
            )
        say(f"built the images in {time.monotonic() - started:.0f} s")
    return tag


def _side_by_side(tasks: Iterable[Callable[[], None]]) -> None:
    """All of them; after the first that fails no other begins."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for done in [pool.submit(task) for task in tasks]:
                done.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def load(builder: Docker | Buildah, name: str) -> str:
    """Bring the images of the present sources into a cluster's node; answers with the tag."""
    tag = build(builder)
    wanted = [reference(image.name, tag) for image in IMAGES]
    found = cluster.find(name)
    if found is None or found.kind != cluster.NODE:
        raise ClusterError(f"there is no cluster {name!r} with a node up; make it with `devcluster up --name {name}`")
    containers.mark_loaded(layout(name), tag)
    missing = sorted(set(wanted) - set(containers.images(layout(name))))
    if not missing:
        say(f"images {tag} are already in cluster {name!r}")
        return tag
    with step(f"loading {len(missing)} images into cluster {name!r}", "60-90 s the first time, 5-10 s later"):
        importing = containers.importer(layout(name))
        assert importing.stdin is not None
        with suppress(BrokenPipeError):  # its own error says why it stopped reading
            builder.export(missing, containers.blobs(layout(name)), importing.stdin)
        containers.finish_import(importing)
    return tag


def push(builder: Docker | Buildah, registry: str) -> str:
    tag = build(builder)
    for image in IMAGES:
        target = f"{registry.rstrip('/')}/{image.name}:{tag}"
        with step(f"pushing {target}", "10-60 s"):
            builder.push(reference(image.name, tag), target)
    say(f"for the chart: --set images.registry={registry.rstrip('/')} --set images.tag={tag}")
    return tag


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="images", description="Build the project's images; every command prints their tag."
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("tag", help="print the tag of the present sources, building nothing")
    commands.add_parser("build", help="build what is not built yet")
    loading = commands.add_parser("load", help="build, and import into the built-in cluster")
    loading.add_argument("--name", default="demo", help="which cluster (default: %(default)s)")
    pushing = commands.add_parser("push", help="build, and push to a registry")
    pushing.add_argument("registry", help="where to, such as registry.example.com/team")
    return top


def main() -> int:
    arguments = parser().parse_args()
    try:
        if arguments.command == "tag":
            print(content_tag())
        elif arguments.command == "build":
            print(build(pick_builder()))
        elif arguments.command == "load":
            print(load(pick_builder(), arguments.name))
        else:
            print(push(pick_builder(), arguments.registry))
    except ClusterError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("images: interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
