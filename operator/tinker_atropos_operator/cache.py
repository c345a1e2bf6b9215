"""The operator's view of the cluster: runs, what they own, and pods, found by owner without searching.

Fed by watch events, by lists, and by the answers to the operator's own writes, so that it reads its own writes at
once. Older versions of an object never replace newer ones, whichever way they come."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tinker_atropos_operator.metrics import CACHED
from tinker_atropos_operator.plan.observed import Object, Observed, Run, controller_uid, label, name_of
from tinker_atropos_operator.specs import labels

RunKey = tuple[str, str]
"""Namespace and name of a run."""

RUN_KIND = "TinkerAtroposRun"
_TOMBSTONES = 10_000


class Cache:
    """Objects by kind, namespace and name; children and pods also by the run that their labels name."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[RunKey, dict[str, Any]]] = defaultdict(dict)
        self._by_run: dict[RunKey, dict[tuple[str, str], dict[str, Any]]] = defaultdict(dict)
        self._gone: OrderedDict[str, None] = OrderedDict()
        self._clock = 0
        self._stored_at: dict[str, int] = {}

    def mark(self) -> int:
        """A point in the cache's own time, for `replace`."""
        self._clock += 1
        return self._clock

    def upsert(self, kind: str, body: Object) -> bool:
        """Store a version of an object; False when it is not news."""
        metadata = body["metadata"]
        uid, key = str(metadata["uid"]), (str(metadata["namespace"]), str(metadata["name"]))
        if uid in self._gone:
            return False
        present = self._objects[kind].get(key)
        if present is not None and present["metadata"]["uid"] == uid and not _newer(body, present):
            self._stored_at[uid] = self.mark()
            return False
        if present is not None:
            self._forget(kind, key, present)
        trimmed = _trimmed(kind, body)
        self._objects[kind][key] = trimmed
        self._stored_at[uid] = self.mark()
        run = owner_key(kind, trimmed)
        if run is not None and kind != RUN_KIND:
            self._by_run[run][(kind, key[1])] = trimmed
        CACHED.labels(kind).set(len(self._objects[kind]))
        return True

    def remove(self, kind: str, body: Object) -> None:
        """The object is gone for good; late news of it are ignored."""
        metadata = body["metadata"]
        uid, key = str(metadata["uid"]), (str(metadata["namespace"]), str(metadata["name"]))
        self._gone[uid] = None
        if len(self._gone) > _TOMBSTONES:
            self._gone.popitem(last=False)
        present = self._objects[kind].get(key)
        if present is not None and present["metadata"]["uid"] == uid:
            self._forget(kind, key, present)
            CACHED.labels(kind).set(len(self._objects[kind]))

    def replace(self, kind: str, listed: Iterable[Object], since: int, namespaces: Iterable[str] | None) -> set[RunKey]:
        """Take over a whole list that was begun at the mark `since`; the runs whose objects differ.

        What was stored after the list began is kept: the list may be too old to know it."""
        changed: set[RunKey] = set()
        seen: set[str] = set()
        for body in listed:
            seen.add(str(body["metadata"]["uid"]))
            if self.upsert(kind, body):
                run = owner_key(kind, body)
                if run is not None:
                    changed.add(run)
        scope = None if namespaces is None else set(namespaces)
        for key, present in list(self._objects[kind].items()):
            uid = str(present["metadata"]["uid"])
            if uid in seen or self._stored_at.get(uid, 0) > since or (scope is not None and key[0] not in scope):
                continue
            run = owner_key(kind, present)
            if run is not None:
                changed.add(run)
            self.remove(kind, present)
        return changed

    def run(self, key: RunKey) -> Run | None:
        body = self._objects[RUN_KIND].get(key)
        return None if body is None else Run(body)

    def runs(self) -> Iterator[Run]:
        return (Run(body) for body in list(self._objects[RUN_KIND].values()))

    def get(self, kind: str, namespace: str, name: str) -> Mapping[str, Any] | None:
        return self._objects[kind].get((namespace, name))

    def observed(self, run: Run) -> Observed:
        """What that very run object owns; leftovers of an earlier one with its name are not in it."""
        found: dict[str, dict[str, Object]] = defaultdict(dict)
        everything = self._by_run.get((run.namespace, run.name), {})
        for (kind, name), body in everything.items():
            if kind != "Pod" and controller_uid(body) == run.uid:
                found[kind][name] = body
        jobs = {str(job["metadata"]["uid"]) for job in found["Job"].values()}
        pods = [body for (kind, _), body in everything.items() if kind == "Pod" and _is_of(body, run, jobs)]
        return Observed(
            found["Deployment"], found["Job"], found["Service"], found["ConfigMap"], sorted(pods, key=name_of)
        )

    def trainer_pod(self, run: Run, uid: str) -> Object | None:
        """A pod of one of the run's trainer Jobs, by its uid."""
        for pod in self.observed(run).pods_of(labels.TRAINER):
            if pod["metadata"]["uid"] == uid:
                return pod
        return None

    def _forget(self, kind: str, key: RunKey, present: Object) -> None:
        del self._objects[kind][key]
        self._stored_at.pop(str(present["metadata"]["uid"]), None)
        run = owner_key(kind, present)
        if run is not None and run in self._by_run:
            self._by_run[run].pop((kind, key[1]), None)
            if not self._by_run[run]:
                del self._by_run[run]


def owner_key(kind: str, body: Object) -> RunKey | None:
    """The run that an object is or belongs to."""
    namespace = str(body["metadata"]["namespace"])
    if kind == RUN_KIND:
        return namespace, name_of(body)
    run = label(body, labels.RUN)
    return None if run is None else (namespace, run)


def _is_of(pod: Object, run: Run, jobs: set[str]) -> bool:
    """Trainer pods must belong to one of the run's Jobs; pods of a Deployment carry a run's uid nowhere but are
    younger."""
    if label(pod, labels.COMPONENT) == labels.TRAINER:
        return controller_uid(pod) in jobs
    return str(pod["metadata"].get("creationTimestamp", "")) >= str(run.metadata.get("creationTimestamp", ""))


def _newer(new: Object, old: Object) -> bool:
    """Versions of one object are numbers that grow."""
    try:
        return int(new["metadata"]["resourceVersion"]) > int(old["metadata"]["resourceVersion"])
    except (KeyError, ValueError):
        return bool(new["metadata"].get("resourceVersion") != old["metadata"].get("resourceVersion"))


def _trimmed(kind: str, body: Object) -> dict[str, Any]:
    """The parts that decisions read: most of a pod and all managedFields are only weight."""
    metadata = {key: value for key, value in body["metadata"].items() if key != "managedFields"}
    annotations = metadata.get("annotations")
    if annotations and "kubectl.kubernetes.io/last-applied-configuration" in annotations:
        metadata["annotations"] = {
            key: value
            for key, value in annotations.items()
            if key != "kubectl.kubernetes.io/last-applied-configuration"
        }
    kept: dict[str, Any] = {**body, "kind": kind, "metadata": metadata}
    spec = body.get("spec")
    if kind == "Pod" and spec:
        kept["spec"] = {
            part: [_container(entry) for entry in spec.get(part) or ()] for part in ("initContainers", "containers")
        }
    elif kind in ("Deployment", "Job") and spec:
        kept["spec"] = {key: value for key, value in spec.items() if key != "template"}
    return kept


def _container(entry: Object) -> dict[str, Any]:
    """Of a pod's container: what it is, and which Secrets it wants."""
    kept = {"name": entry.get("name"), "image": entry.get("image")}
    secret = [variable for variable in entry.get("env") or () if "secretKeyRef" in (variable.get("valueFrom") or {})]
    whole = [source for source in entry.get("envFrom") or () if "secretRef" in source]
    return {**kept, **({"env": secret} if secret else {}), **({"envFrom": whole} if whole else {})}
