"""The programs that come from Go modules: built once, kept outside the clone under a hash of what they are made of."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from singlenode.layout import ClusterError, cache_directory
from singlenode.progress import say

MODULE = Path(__file__).resolve().parent.parent
INPUTS = ("go.mod", "go.sum", "main.go", "pause/main.go")
LINKED = (
    "coredns",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
SMALLEST_GO = (1, 24)
_PROGRESS_EVERY = 10.0


@dataclass(frozen=True)
class Programs:
    """A folder in which every program can be called by its name."""

    directory: Path

    def path(self, name: str) -> str:
        return str(self.directory / name)


def versions(go_mod: str) -> dict[str, str]:
    """The versions that go.mod pins for what has to know its own version."""

    def pinned(module: str) -> str:
        found = re.search(rf"^\s+{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
        if not found:
            raise ClusterError(f"devcluster/go.mod does not require {module}; the node cannot be built")
        return found.group(1)

    return {"kubernetes": pinned("k8s.io/kubernetes"), "helm": pinned("helm.sh/helm/v3")}


def linker_flags(go_mod: str) -> dict[str, str]:
    """Without these the server calls itself v0.0.0-master and every chart's kubeVersion refuses it."""
    pinned = versions(go_mod)
    major, minor = pinned["kubernetes"].removeprefix("v").split(".")[:2]
    node = {"gitVersion": pinned["kubernetes"], "gitMajor": major, "gitMinor": minor}
    helm = "helm.sh/helm/v3"
    return {
        "pause": "-s -w",
        "devcluster": " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{k}={v}" for k, v in node.items())]),
        "helm": " ".join(
            [
                "-s -w",
                f"-X {helm}/internal/version.version={pinned['helm']}",
                f"-X {helm}/pkg/lint/rules.k8sVersionMajor={major} -X {helm}/pkg/lint/rules.k8sVersionMinor={minor}",
                f"-X {helm}/pkg/chartutil.k8sVersionMajor={major} -X {helm}/pkg/chartutil.k8sVersionMinor={minor}",
            ]
        ),
    }


def cache_key(module: Path = MODULE) -> str:
    digest = hashlib.sha256()
    for name in INPUTS:
        content = (module / name).read_bytes()
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)
    digest.update(f"{os.uname().machine}".encode())
    return digest.hexdigest()[:16]


def go_version(text: str) -> tuple[int, int]:
    found = re.search(r"go(\d+)\.(\d+)", text)
    if not found:
        raise ClusterError(f"`go version` answered {text.strip()!r}, which names no version")
    return int(found.group(1)), int(found.group(2))


def find_go() -> str:
    """The Go command, also where a fresh install has not reached PATH yet."""
    needed = f"{SMALLEST_GO[0]}.{SMALLEST_GO[1]}"
    newest = (0, 0)
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", *_distribution_gos()):
        if candidate and Path(candidate).exists():
            answer = subprocess.run([candidate, "version"], capture_output=True, text=True, check=False)
            if answer.returncode == 0:
                version = go_version(answer.stdout)
                if version >= SMALLEST_GO:
                    return candidate
                newest = max(newest, version)
    found = f"only Go {newest[0]}.{newest[1]}" if newest > (0, 0) else "no Go"
    raise ClusterError(
        f"Kubernetes is built from source here and {found} was found: install Go {needed} or newer "
        "and put it on PATH (any distribution of Go will do), then run the same command again"
    )


def new_enough_candidate(policy: str) -> bool:
    """Whether `apt-cache policy` of a Go package offers one that can build the programs."""
    found = re.search(r"Candidate:\s*(?:\d+:)?(\d+)\.(\d+)", policy)
    return found is not None and (int(found.group(1)), int(found.group(2))) >= SMALLEST_GO


def built(module: Path = MODULE) -> bool:
    """Whether everything is there already, so that no Go is needed."""
    return (cache_directory() / "programs" / cache_key(module) / "complete").exists()


def _distribution_gos() -> list[str]:
    return sorted((str(p) for p in Path("/usr/lib").glob("go-1.*/bin/go")), reverse=True)


def ensure(module: Path = MODULE) -> Programs:
    """Build what is missing; a second caller waits for the first one instead of compiling the same again."""
    directory = cache_directory() / "programs" / cache_key(module)
    if not (directory / "complete").exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with (directory.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (directory / "complete").exists():
                _build(module, directory)
    _point_at(directory)
    return Programs(directory)


def _build(module: Path, directory: Path) -> None:
    go = find_go()
    flags = linker_flags((module / "go.mod").read_text())
    directory.mkdir(exist_ok=True)
    environment = os.environ | {"CGO_ENABLED": "0", "GOGC": "400", "GOFLAGS": "-buildvcs=false"}
    say(
        "building Kubernetes, etcd, CoreDNS, kubectl and helm from source "
        "(once; usually 6-7 min on 2 cores, 20 s with a warm Go cache) ..."
    )
    started = time.monotonic()
    total = _package_count(go, module, environment)
    for program, package in (("devcluster", "."), ("helm", "helm.sh/helm/v3/cmd/helm"), ("pause", "./pause")):
        command = [go, "build", "-v", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags", flags[program]]
        target = directory / f".{program}.new"
        _run_build([*command, "-o", str(target), package], module, environment, total, started)
        target.rename(directory / program)
    for name in LINKED:
        link = directory / name
        link.unlink(missing_ok=True)
        link.symlink_to("devcluster")
    (directory / "complete").touch()
    say(f"built the cluster's programs in {time.monotonic() - started:.0f} s")


def _package_count(go: str, module: Path, environment: dict[str, str]) -> int:
    command = [go, "list", "-deps", "."]
    listed = subprocess.run(command, cwd=module, env=environment, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        said = listed.stderr.strip()[-2000:]
        raise ClusterError(
            f"the node's Go modules could not be fetched; `{' '.join(command)}` in {module} said:\n{said}"
        )
    return len(listed.stdout.splitlines())


def _run_build(command: list[str], module: Path, environment: dict[str, str], total: int, started: float) -> None:
    """Run one `go build -v`: it names each package that it compiles, which is all the progress Go can show."""
    compiled = 0
    told = time.monotonic()
    tail: list[str] = []
    with subprocess.Popen(
        command, cwd=module, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            compiled += 1
            tail = [*tail[-40:], line.rstrip()]
            if time.monotonic() - told > _PROGRESS_EVERY:
                told = time.monotonic()
                say(f"  compiled {compiled} of at most {total} packages after {told - started:.0f} s")
    if process.returncode != 0:
        raise ClusterError(f"`{' '.join(command[:3])} ...` failed in {module}:\n" + "\n".join(tail))


def _point_at(directory: Path) -> None:
    """Keep <cache>/bin pointing at the programs built last, for people's PATH; the project itself uses full paths."""
    link = cache_directory() / "bin"
    if link.is_symlink() and link.readlink() == directory:
        return
    fresh = link.with_name(f".bin.{os.getpid()}")
    fresh.symlink_to(directory)
    fresh.rename(link)
