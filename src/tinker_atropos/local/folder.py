"""The folder of one run on this machine: whose it is, that one process at a time uses it, and how the run ended."""

from __future__ import annotations

import fcntl
import secrets
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import yaml
from pydantic import ValidationError

from tinker_atropos.local.programs import Folders
from tinker_atropos.protocol.progress import ProgressReport
from tinker_atropos.run import yaml_text
from tinker_atropos.run.load import API_VERSION, KIND, RunFile
from tinker_atropos.run.problems import InvalidRunError, Problem


class RunFolder:
    """A folder that holds this run and no other; made when it is not there. Held until the end of the `with`."""

    def __init__(self, folders: Folders, uid: str, lock: IO[bytes]) -> None:
        self.folders = folders
        self.uid = uid
        self._lock = lock

    @classmethod
    def take(cls, root: Path, run: RunFile, run_file: Path) -> RunFolder:
        """Raises InvalidRunError when it is no folder, somebody else's, or in use."""
        folders = Folders(root)
        try:
            if folders.run_file.exists() and run_file.exists() and folders.run_file.samefile(run_file):
                raise _refused(
                    root, "is the folder of the run file itself", "give another one; what is made goes there"
                )
            if root.is_dir() and any(root.iterdir()) and not folders.uid.exists():
                raise _refused(root, "holds other things and no run", "give an empty folder, or one that is not there")
            for folder in (folders.root, folders.logs, folders.tinker):
                folder.mkdir(parents=True, exist_ok=True)
            lock = folders.lock.open("ab")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                fix = "wait for its end, or give another folder"
                raise _refused(root, "is in use by another tinker-atropos run", fix) from None
            _check_same_run(run, folders)
            if not folders.uid.exists():
                folders.uid.write_text(str(uuid.uuid4()))
            if not folders.token.exists():
                folders.token.touch(mode=0o600)
                folders.token.write_text(secrets.token_urlsafe(32))
            folders.run_file.write_text(yaml_text.dump(_document(run)))
            return cls(folders, folders.uid.read_text().strip(), lock)
        except OSError as error:
            text = f"cannot be used: {error.strerror or error}"
            raise _refused(root, text, "give a folder that this user can write to") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    def finished(self, total_steps: int) -> ProgressReport | None:
        """The last report of a run that is complete, None for one that is not, or that is to go on for more steps."""
        try:
            report = ProgressReport.model_validate_json(self.folders.result.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        return report if report.step >= total_steps else None

    def finish(self, report: ProgressReport) -> None:
        """Remember that the run is complete."""
        self.folders.result.write_text(report.model_dump_json(by_alias=True, exclude_none=True))


def _refused(root: Path, message: str, fix: str) -> InvalidRunError:
    return InvalidRunError([Problem("--data", f"{root} {message}", fix)])


def _document(run: RunFile) -> dict[str, object]:
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": run.name}, "spec": dict(run.source)}


def _check_same_run(run: RunFile, folders: Folders) -> None:
    """A folder with an unfinished run goes on with that run; one that was changed meanwhile is another run."""
    if not folders.run_file.exists():
        return
    try:
        [before] = yaml_text.load_all(folders.run_file.read_text())
        fixed = _fixed(before["spec"])
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError):
        fix = "give another folder"
        raise _refused(folders.root, "holds a run.yaml that is no run file any more", fix) from None
    now = _fixed(run.source)
    if fixed != now:
        changed = ", ".join(sorted(f"spec.{key}" for key in {*fixed, *now} if fixed.get(key) != now.get(key)))
        fix = f"it differs in {changed}; give another folder, or the run file that it was started with"
        raise _refused(folders.root, "holds a run of another run file", fix)


MAY_CHANGE = frozenset({"replicas", "weight", "minBatchShare", "maxBatchShare", "podTemplate"})
"""Of an environment; as in a cluster."""
MAY_CHANGE_ENV = frozenset({"total_steps", "inference_weight", "min_batch_allocation"})
"""Of config.env."""


def _fixed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What of a spec makes it this run and no other."""
    kept = {key: value for key, value in spec.items() if key != "deadlines"}
    config = kept.get("config")
    if isinstance(config, Mapping) and isinstance(config.get("env"), Mapping):
        env = {key: value for key, value in config["env"].items() if key not in MAY_CHANGE_ENV}
        kept["config"] = {**config, "env": env}
    kept["environments"] = [
        {key: value for key, value in entry.items() if key not in MAY_CHANGE} for entry in spec["environments"]
    ]
    return kept
