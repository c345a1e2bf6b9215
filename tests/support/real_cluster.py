"""A cluster with a real node for tests: kubectl, helm and namespaces of their own, through the project's binaries."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_reader import ClusterReader, Object

SYSTEM = "tinker-atropos-system"
DEPLOYMENT = "tinker-atropos-operator"


class RealCluster:
    """The cluster as its administrator sees it."""

    def __init__(self, kubeconfig: str, audit_log: str, kubectl: str, helm: str, state: Path) -> None:
        self.kubeconfig = kubeconfig
        self.audit_log = Path(audit_log)
        self.state = state
        self.tag = ""
        self.kubectl_program = kubectl
        self.helm_program = helm
        self.reader = ClusterReader(Path(kubeconfig))

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """kubectl, whatever its exit status."""
        command = [self.kubectl_program, "--kubeconfig", self.kubeconfig, *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """kubectl's output; a failure fails the test with what kubectl said."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr or done.stdout}"
        return done.stdout

    def helm(self, *arguments: str) -> str:
        command = [self.helm_program, *arguments, "--kubeconfig", self.kubeconfig]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def writes_by(self, user: str, since_bytes: int = 0) -> list[Object]:
        """Write requests of a user in the audit log, from an offset that `audit_size` gave earlier."""
        with self.audit_log.open("rb") as log:
            log.seek(since_bytes)
            lines = [json.loads(line) for line in log.read().splitlines() if line.endswith(b"}")]
        return [line for line in lines if line["user"]["username"] == user]

    def audit_size(self) -> int:
        return self.audit_log.stat().st_size

    @contextmanager
    def namespace(self) -> Iterator[Namespace]:
        """A new one, which enforces the `restricted` level; it is deleted in the end."""
        name = f"test-{uuid.uuid4().hex[:8]}"
        self.kubectl("create", "namespace", name)
        self.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        space = Namespace(self, name)
        space.eventually("the default service account", lambda: space.get("serviceaccounts", "default"))
        try:
            yield space
        finally:
            self.run("delete", "namespace", name, "--wait=false")


class Namespace:
    """One test's namespace: everything a run owns is in it, and it goes with the test."""

    def __init__(self, cluster: RealCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        return self.cluster.run("-n", self.name, *arguments, stdin=stdin)

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.cluster.kubectl("-n", self.name, *arguments, stdin=stdin)

    def get(self, plural: str, name: str) -> Object | None:
        """The object, or None where there is none."""
        return self.cluster.reader.get(plural, name, self.name)

    def must_get(self, plural: str, name: str) -> Object:
        found = self.get(plural, name)
        assert found is not None, f"no {name} among the {plural} of {self.name}"
        return found

    def list(self, plural: str, selector: str = "") -> list[Object]:
        return self.cluster.reader.list(plural, self.name, selector)

    def apply(self, *objects: Object) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def eventually(self, what: str, check: Callable[[], Any], seconds: float = 60.0, pause: float = 0.5) -> Any:
        """Ask until the answer is true; the answer. Fails naming what was waited for, with the namespace's state."""
        until = time.monotonic() + seconds
        while True:
            seen = check()
            if seen:
                return seen
            if time.monotonic() > until:
                raise AssertionError(f"never came within {seconds:.0f} s: {what}\n{self.state()}")
            time.sleep(pause)

    def state(self) -> str:
        """What a person would look at first when something is wrong."""
        parts = []
        for arguments in (
            ("get", "tar,deploy,job,pod", "-o", "wide"),
            ("get", "events", "--sort-by=.lastTimestamp"),
            ("get", "tar", "-o", "jsonpath={range .items[*]}{.metadata.name}{'\\n'}{.status}{'\\n'}{end}"),
        ):
            parts.append(f"$ kubectl {' '.join(arguments)}\n{self.run(*arguments).stdout[-6000:]}")
        for pod in self.list("pods"):
            name = pod["metadata"]["name"]
            log = self.run("logs", name, "--all-containers", "--prefix", "--tail=15").stdout[-4000:]
            parts.append(f"$ kubectl logs {name}\n{log}")
        logs = self.cluster.run("-n", SYSTEM, "logs", f"deployment/{DEPLOYMENT}", "--tail=30").stdout[-6000:]
        parts.append(f"$ kubectl -n {SYSTEM} logs deployment/{DEPLOYMENT}\n{logs}")
        return "\n".join(parts)
