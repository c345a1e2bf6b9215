#!/usr/bin/env python3
"""The demonstration: a real run on a real cluster, watched to its end. `make demo` and `make demo-down` call this.

Only the built-in cluster, which it makes itself, is ever touched, unless DEMO_CONTEXT names a context of the
kubeconfig; images then go to the registry that DEMO_REGISTRY names.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, TextIO

import images
from catalog import ROOT
from singlenode import cluster, node, programs
from singlenode.layout import ClusterError, cache_directory
from singlenode.progress import say, step

CLUSTER = "demo"
RELEASE, CHART, SYSTEM = "tinker-atropos", ROOT / "charts" / "tinker-atropos", "tinker-atropos-system"
RUN_FILE, RUN, NAMESPACE = ROOT / "examples" / "quickstart.yaml", "quickstart", "default"
LOCAL_MODE = "the local mode needs neither root nor a cluster: make demo-local"
TERMINAL = ("Complete", "Failed")
USUALLY = "2-3 min"


@dataclass(frozen=True)
class Target:
    """A cluster and the programs that talk to it."""

    kubectl: tuple[str, ...]
    helm: tuple[str, ...]
    registry: str | None
    """None = the built-in cluster, whose images come from this machine."""

    def call(self, *arguments: str, check: bool = True) -> str:
        done = subprocess.run([*self.kubectl, *arguments], capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise ClusterError(f"kubectl {' '.join(arguments)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    @property
    def own(self) -> bool:
        """The built-in cluster, in which everything was made by demonstrations."""
        return self.registry is None

    def run_object(self) -> dict[str, Any] | None:
        """None = there is no such run. Raises ClusterError when the API server does not say."""
        text = self.call("-n", NAMESPACE, "get", "tar", RUN, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found


def foreign(context: str, registry: str | None) -> Target:
    """A cluster of the person's own, named by them."""
    if not registry:
        raise ClusterError(
            f"DEMO_CONTEXT={context} is a cluster of your own, which needs the images from a registry: "
            "set DEMO_REGISTRY to one that it can pull from, such as DEMO_REGISTRY=registry.example.com/team"
        )
    own = {name: shutil.which(name) for name in ("kubectl", "helm")}
    if not all(own.values()):
        built = programs.ensure()
        own = {name: built.path(name) for name in own}
    say(f"using context {context} of your kubeconfig, with {own['kubectl']} and {own['helm']}")
    return Target((str(own["kubectl"]), "--context", context), (str(own["helm"]), "--kube-context", context), registry)


def built_in() -> Target:
    try:
        node.check_machine()
        if not programs.built():
            programs.find_go()
    except ClusterError as error:
        offer = "" if "make demo-local" in str(error) else f"\n{LOCAL_MODE}"
        raise ClusterError(f"{error}{offer}") from error
    up = cluster.up(CLUSTER, cluster.NODE)
    kubeconfig = ("--kubeconfig", up.kubeconfig)
    return Target((up.program("kubectl"), *kubeconfig), (up.program("helm"), *kubeconfig), None)


def image_values(tag: str, registry: str | None) -> list[str]:
    """The chart's values that name the images just built."""
    place = registry.rstrip("/") if registry else images.reference("", "").rpartition("/")[0]
    return ["--set-string", f"images.registry={place}", "--set-string", f"images.tag={tag}"]


def install_operator(target: Target, tag: str) -> None:
    with step("installing the operator with helm", "5-15 s"):
        command = [
            *target.helm,
            "upgrade",
            "--install",
            RELEASE,
            str(CHART),
            "--namespace",
            SYSTEM,
            "--create-namespace",
        ]
        done = subprocess.run(
            [*command, *image_values(tag, target.registry)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise ClusterError(f"helm could not install the operator: {done.stderr.strip()}")
        wait_for_operator(target, tag, 180.0)


def wait_for_operator(target: Target, tag: str, patience: float) -> None:
    """Until the new operator is ready; one that keeps dying is shown at once instead of after the patience."""
    deadline = time.monotonic() + patience
    while True:
        rollout = ("rollout", "status", f"deployment/{RELEASE}-operator", "--timeout=2s")
        if "successfully rolled out" in target.call("-n", SYSTEM, *rollout, check=False):
            return
        pods = json.loads(target.call("-n", SYSTEM, "get", "pods", "-o", "json"))["items"]
        for pod in pods:
            new = any(container["image"].endswith(f":{tag}") for container in pod["spec"]["containers"])
            restarts = sum(state["restartCount"] for state in pod["status"].get("containerStatuses", []))
            if new and (restarts > 1 or time.monotonic() > deadline):
                listing = target.call("-n", SYSTEM, "get", "pods", check=False)
                log = target.call("-n", SYSTEM, "logs", pod["metadata"]["name"], "--tail=20", check=False)
                raise ClusterError(f"the operator does not become ready:\n{listing}{log}")


def start_run(target: Target) -> dict[str, Any]:
    """The run to watch: the one that is there, unless it is over in a cluster that is the demonstration's own."""
    run = target.run_object()
    if run is not None and not ("deletionTimestamp" in run["metadata"] and target.own):
        phase, progress = phase_of(run), run.get("status", {}).get("progress") or "no step yet"
        if phase not in TERMINAL:
            say(f"run {RUN!r} is there and under way ({phase}, {progress}); going on with it")
            return run
        if not target.own:
            say(
                f"run {RUN!r} is there and over ({phase}); it is shown as it is. To have another, delete it:\n"
                f"  kubectl {' '.join(target.kubectl[1:])} -n {NAMESPACE} delete tar {RUN}"
            )
            return run
        say(f"run {RUN!r} of an earlier demonstration is over ({phase}); replacing it with a new one")
    if run is not None:
        target.call("-n", NAMESPACE, "delete", "tar", RUN, "--wait", "--cascade=foreground", "--timeout=120s")
    say(f"kubectl apply -f {RUN_FILE.relative_to(ROOT)}")
    target.call("-n", NAMESPACE, "apply", "-f", str(RUN_FILE))
    made = target.run_object()
    if made is None:
        raise ClusterError(f"run {RUN!r} was deleted as soon as it was made; `make demo` starts another one")
    return made


def phase_of(run: dict[str, Any]) -> str:
    return run.get("status", {}).get("phase") or "Pending"


def progress_line(run: dict[str, Any], seconds: float) -> str:
    """Phase, step, reward, environments and checkpoint, in one line."""
    status = run.get("status", {})
    done, total = status.get("step") or 0, status.get("totalSteps") or 0
    filled = round(20 * done / total) if total else 0
    reward = (status.get("reward") or {}).get("mean")
    environments = status.get("environments") or []
    ready, desired = (sum(e.get(key) or 0 for e in environments) for key in ("ready", "desired"))
    saved = (status.get("checkpoint") or {}).get("step")
    parts = [
        f"{seconds:4.0f} s",
        f"{phase_of(run):<10}",
        f"[{'#' * filled}{'.' * (20 - filled)}] step {done}/{total or '?'}",
        "reward -    " if reward is None else f"reward {reward:.3f}",
        f"environments {ready}/{desired}",
        "checkpoint -" if saved is None else f"checkpoint at step {saved}",
    ]
    return "  ".join(parts)


class LiveLine:
    """One line that rewrites itself on a terminal; elsewhere a new line when something has changed."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._told = ""

    def show(self, line: str) -> None:
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + line[:width].ljust(width))
        else:
            unchanged = line[line.find("s") :]
            if unchanged == self._told:
                return
            self._told = unchanged
            self._stream.write(line + "\n")
        self._stream.flush()

    def end(self) -> None:
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()


def watch(target: Target, run: dict[str, Any], patience: float) -> dict[str, Any]:
    """Follow the run until it has ended; whoever looks sees what `kubectl get tar -w` would show, and more."""
    say(f"watching run {RUN!r} (usually {USUALLY}; Ctrl-C stops watching, not the run)")
    live = LiveLine(sys.stderr)
    started = time.monotonic()
    try:
        while True:
            live.show(progress_line(run, time.monotonic() - started))
            if phase_of(run) in TERMINAL:
                return run
            if time.monotonic() - started > patience:
                raise ClusterError(f"run {RUN!r} has not ended within {patience:.0f} s; its state:\n{describe(target)}")
            time.sleep(1)
            run = look_again(target, run)
    finally:
        live.end()


def look_again(target: Target, run: dict[str, Any]) -> dict[str, Any]:
    """The same run as it is now. Raises ClusterError when it is another one, or gone."""
    try:
        now = target.run_object()
    except ClusterError:
        return run  # the API server is away for a moment
    if now is None:
        raise ClusterError(f"run {RUN!r} was deleted by somebody else; `make demo` starts it again")
    if now["metadata"]["uid"] != run["metadata"]["uid"]:
        raise ClusterError(
            f"run {RUN!r} was replaced by somebody else with another run of that name; `make demo` watches that one"
        )
    return now


def describe(target: Target) -> str:
    pods = target.call("-n", NAMESPACE, "get", "pods", "-o", "wide", check=False)
    try:
        run = target.run_object() or {}
    except ClusterError as error:
        return f"  {error}\n{pods}"
    conditions = "".join(
        f"  {c['type']}={c['status']} {c.get('reason', '')}: {c.get('message', '')}\n"
        for c in run.get("status", {}).get("conditions", [])
    )
    return f"{conditions}{pods}"


def how_to_look(target: Target) -> str:
    if not target.own:
        return f"  kubectl {' '.join(target.kubectl[1:])} -n {NAMESPACE} get tar"
    return (
        f"  export KUBECONFIG={target.kubectl[2]}\n"
        f"  export PATH={cache_directory() / 'bin'}:$PATH        # kubectl and helm of the built-in cluster\n"
        f"  kubectl get tar                          # the run\n"
        f"  kubectl get tar {RUN} -o yaml       # all that its status tells\n"
        f"  kubectl describe tar {RUN}          # with events\n"
        f"  kubectl get all,configmap,secret         # what the operator made for it\n"
        f"  kubectl -n {SYSTEM} logs deployment/{RELEASE}-operator\n"
        f"  make demo-down                           # remove cluster and all"
    )


def report(target: Target, run: dict[str, Any]) -> int:
    status = run.get("status", {})
    print(target.call("-n", NAMESPACE, "get", "tar", RUN, "-o", "wide", check=False))
    if status.get("phase") != "Complete":
        print(f"The run has failed.\n{describe(target)}\nLook around:\n{how_to_look(target)}")
        return 1
    print(f"Complete: {status.get('progress')} steps, mean reward {(status.get('reward') or {}).get('mean')}")
    print(f"Final weights: {status.get('samplerWeights')}")
    print("  (kept by the run's local Tinker server until the run is deleted; any Tinker client can sample from them)")
    print(f"Look around:\n{how_to_look(target)}")
    return 0


def target_of(arguments: argparse.Namespace) -> Target:
    return foreign(arguments.context, arguments.registry) if arguments.context else built_in()


def up(arguments: argparse.Namespace) -> int:
    target = target_of(arguments)
    builder = images.pick_builder()
    tag = images.push(builder, target.registry) if target.registry else images.load(builder, CLUSTER)
    install_operator(target, tag)
    return report(target, watch(target, start_run(target), arguments.patience))


def down(arguments: argparse.Namespace) -> int:
    if not arguments.context:
        if os.geteuid() != 0:
            raise ClusterError("the built-in cluster is root's: run the same command as root")
        say(f"cluster {CLUSTER!r} is gone" if cluster.down(CLUSTER) else f"there is no cluster {CLUSTER!r}")
        say("what took long to make is kept for the next time; `make clean-cache` removes that too")
        return 0
    target = foreign(arguments.context, arguments.registry or "-")
    target.call("-n", NAMESPACE, "delete", "tar", RUN, "--ignore-not-found", "--cascade=foreground", check=False)
    uninstall = [*target.helm, "uninstall", RELEASE, "--namespace", SYSTEM, "--ignore-not-found"]
    subprocess.run(uninstall, check=False)
    say(
        "the run and the operator are gone; the CustomResourceDefinition is kept, since runs of others may depend on it"
    )
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="demo", description="A real run on a real cluster, watched to its end.")
    top.add_argument("command", choices=("up", "down"))
    environment = os.environ
    top.add_argument(
        "--context", default=environment.get("DEMO_CONTEXT"), help="a context of your kubeconfig to use instead"
    )
    top.add_argument("--registry", default=environment.get("DEMO_REGISTRY"), help="where its images are pushed")
    top.add_argument("--patience", type=float, default=1800.0, help="give up watching after so many seconds")
    return top


def main() -> int:
    arguments = parser().parse_args()
    try:
        return up(arguments) if arguments.command == "up" else down(arguments)
    except ClusterError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        say("interrupted; `make demo` goes on from here, `make demo-down` removes everything")
        return 130


if __name__ == "__main__":
    sys.exit(main())
