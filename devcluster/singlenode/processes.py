"""Start and end the cluster's own processes, and only those.

A process is remembered with the moment it started: a number that the machine has given to somebody else since is
left alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from singlenode.layout import ClusterError, Layout


def started_at(pid: int) -> str | None:
    """The kernel's start time of a living process, which together with its number names it for good."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def start(layout: Layout, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    layout.processes.mkdir(parents=True, exist_ok=True)
    layout.logs.mkdir(parents=True, exist_ok=True)
    with (layout.logs / f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=layout.root,
            env=os.environ | (environment or {}),
        )
    (layout.processes / name).write_text(f"{process.pid} {started_at(process.pid) or ''}\n")


def _recorded(layout: Layout, name: str) -> int | None:
    try:
        pid, _, start_time = (layout.processes / name).read_text().strip().partition(" ")
        number = int(pid)
    except (OSError, ValueError):
        return None
    return number if start_time and started_at(number) == start_time else None


def alive(layout: Layout, name: str) -> bool:
    return _recorded(layout, name) is not None


def recorded(layout: Layout) -> list[str]:
    return sorted(p.name for p in layout.processes.iterdir()) if layout.processes.is_dir() else []


def log_tail(layout: Layout, name: str, lines: int = 15) -> str:
    try:
        return "\n".join((layout.logs / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"


def require(layout: Layout, name: str) -> None:
    """Turn a program that has died into an error that shows its last words."""
    if not alive(layout, name):
        raise ClusterError(f"{name} ended right after its start; its last lines:\n{log_tail(layout, name)}")


def stop(layout: Layout, name: str, patience: float = 10.0) -> None:
    """End one process and wait until it is gone: what it holds (ports, mounts, the namespace) is free only then."""
    pid = _recorded(layout, name)
    if pid is not None:
        end([pid], patience)
    (layout.processes / name).unlink(missing_ok=True)


def end(pids: Sequence[int], patience: float) -> None:
    """Ask the processes to end, wait, and insist."""
    born = {pid: started_at(pid) for pid in pids}
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid, start_time in born.items():
            if start_time and started_at(pid) == start_time:
                try:
                    os.kill(pid, sign)
                except ProcessLookupError:
                    continue
        deadline = time.monotonic() + patience
        while any(s and started_at(p) == s for p, s in born.items()):
            if time.monotonic() > deadline:
                break
            _reap(born)
            time.sleep(0.05)
        else:
            return
    left = ", ".join(str(pid) for pid, start_time in born.items() if start_time and started_at(pid) == start_time)
    raise ClusterError(f"process {left} cannot be ended")


def _reap(pids: Iterable[int]) -> None:
    """Collect those that are children of this very process, which would otherwise stay as zombies."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
