"""Carries a decision out: applies objects that are due, writes the status once if it differs, deletes what is left
over."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from tinker_atropos.run import names
from tinker_atropos.run.pod_template import spec_problems
from tinker_atropos_operator.cache import RUN_KIND, Cache
from tinker_atropos_operator.job_events import refused_pod
from tinker_atropos_operator.kube import BY_KIND, RUNS, ApiError, Kube
from tinker_atropos_operator.metrics import STATUS_WRITES
from tinker_atropos_operator.plan.drift import Applied, Key, due, exists
from tinker_atropos_operator.plan.observed import Object, Observed, Run, controller_uid
from tinker_atropos_operator.plan.pods import Trouble, cut
from tinker_atropos_operator.plan.run import Delete
from tinker_atropos_operator.specs.labels import MANAGER
from tinker_atropos_operator.specs.overlay import place_in
from tinker_atropos_operator.specs.run_objects import Child

log = logging.getLogger(__name__)


class RefusedError(Exception):
    """The API server will not have an object as it is; `trouble` says so to the user."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.message)
        self.trouble = trouble


class Applier:
    """Writes to the API server for runs, and remembers what it wrote."""

    def __init__(self, kube: Kube, cache: Cache) -> None:
        self._kube = kube
        self._cache = cache
        self._memory: dict[str, dict[Key, Applied]] = defaultdict(dict)
        self._token_made: dict[str, dt.datetime] = {}

    def forget(self, uid: str) -> None:
        """The run is gone."""
        self._memory.pop(uid, None)
        self._token_made.pop(uid, None)

    def token_made(self, run: Run) -> dt.datetime | None:
        """When the run's Secret was last made, or found to be there."""
        return self._token_made.get(run.uid)

    def recheck(self, run: Run) -> None:
        """Make what cannot be seen (the Secret) again at the next opportunity, if it is gone."""
        self._memory[run.uid].pop(("Secret", names.token_secret(run.name)), None)

    async def apply(self, run: Run, children: Sequence[Child], observed: Observed, now: dt.datetime) -> int:
        """Bring the run's objects to what they should be; how many were applied. Raises RefusedError or ApiError."""
        memory = self._memory[run.uid]
        wanted = due(children, observed, memory)
        fresh = [child for child in wanted if not exists(child, observed, memory)]
        if fresh and any(child.overlay_field for child in wanted):
            # Nothing half made: the user's pod templates are judged before the first object exists.
            for child in wanted:
                if child.overlay_field:
                    await self._send(run, child, dry_run=True)
        for child in wanted:
            if child.kind == "Secret":
                self._token_made[run.uid] = now
                if child not in fresh:
                    await self._make_again(run, child)
                    memory[child.kind, child.name] = Applied(child.inputs, "", 0)
                    continue
            elif child in fresh:
                await self._ensure_not_taken(run, child)
            live = await self._send(run, child)
            metadata = live["metadata"]
            memory[child.kind, child.name] = Applied(
                child.inputs, str(metadata["uid"]), int(metadata.get("generation") or 0)
            )
            if child.kind != "Secret":
                self._cache.upsert(child.kind, live)
        return len(wanted)

    async def write_status(self, run: Run, status: Mapping[str, Any]) -> bool:
        """Write the whole status if it says anything new; True when it was written.

        The resource version guards it: a status apply looks at no uid and would go to a later run of the same name."""
        if _same(status, run.status):
            return False
        body = {
            "apiVersion": run.body.get("apiVersion", f"{RUNS.group}/{RUNS.version}"),
            "kind": RUN_KIND,
            "metadata": {
                "name": run.name,
                "namespace": run.namespace,
                "resourceVersion": run.resource_version,
            },
            "status": dict(status),
        }
        try:
            live = await self._kube.apply(RUNS, body, MANAGER, subresource="status")
        except ApiError as error:
            STATUS_WRITES.labels("conflict" if error.conflict else "error").inc()
            raise
        STATUS_WRITES.labels("written").inc()
        self._cache.upsert(RUN_KIND, live)
        return True

    async def delete(self, run: Run, deletions: Sequence[Delete]) -> None:
        """Delete leftovers; one that is gone already, or is another object by now, is left alone."""
        for deletion in deletions:
            try:
                await self._kube.delete(BY_KIND[deletion.kind], run.namespace, deletion.name, deletion.uid)
            except ApiError as error:
                if not error.not_found and not error.conflict:
                    raise

    async def why_no_pod(self, job: Object, now: dt.datetime) -> str:
        """The API server's newest sentence about a pod that a Job could not make; empty when there is none."""
        return await refused_pod(self._kube, job, now)

    async def _send(self, run: Run, child: Child, *, dry_run: bool = False) -> Mapping[str, Any]:
        try:
            return await self._kube.apply(
                BY_KIND[child.kind],
                child.object,
                MANAGER,
                # A Secret cannot be looked at first; a foreign one of that name must not be taken over.
                force=child.kind != "Secret",
                dry_run=dry_run,
            )
        except ApiError as error:
            if child.kind == "Secret" and error.conflict and error.reason == "Conflict":
                raise RefusedError(_taken(child)) from error
            if error.permanent and not error.namespace_ends:
                raise RefusedError(refusal(run, child, error)) from error
            raise

    async def _make_again(self, run: Run, child: Child) -> None:
        """Create a Secret that may be gone. One that is there is left as it is: running pods know its token."""
        try:
            await self._kube.create(BY_KIND[child.kind], run.namespace, child.object)
        except ApiError as error:
            if error.conflict:
                return
            if error.permanent and not error.namespace_ends:
                raise RefusedError(refusal(run, child, error)) from error
            raise
        log.warning(
            "the Secret %s was gone and is made again", child.name, extra={"namespace": run.namespace, "run": run.name}
        )

    async def _ensure_not_taken(self, run: Run, child: Child) -> None:
        """An object of that name which is not the run's must not be adopted."""
        try:
            live = await self._kube.get(BY_KIND[child.kind], run.namespace, child.name)
        except ApiError as error:
            if error.not_found:
                return
            raise
        if controller_uid(live) != run.uid:
            if "deletionTimestamp" in live["metadata"]:
                raise ApiError(409, "Terminating", f"an earlier {child.kind} {child.name} is still being deleted")
            raise RefusedError(_taken(child))


MAX_REFUSAL = 2000
_SCHEMA_ERROR = re.compile(r"^failed to (create typed patch|convert new) object[^:]*?(\([^)]*\))?: (errors:)?\s*")


def _schema_errors(message: str) -> list[str]:
    """The errors of a message about an object that does not fit the schema, `.spec.template.…: …` each."""
    lines = _SCHEMA_ERROR.sub("", message).splitlines()
    return [line.strip().removeprefix(".") for line in lines if line.strip()]


def _in_the_run_file(child: Child, text: str) -> str:
    """A sentence about a place of the object as one about the run file."""
    path, colon, rest = text.partition(": ")
    inner = path.removeprefix("spec.template.")
    if inner.partition("[")[0] in ("labels", "annotations"):
        inner = f"metadata.{inner}"  # the API server leaves that out of its paths
    if not colon or inner == path:
        return f"spec.{child.overlay_field}: {text}"
    if child.overlay is None:
        return f"spec.{child.overlay_field}: {inner}: {rest}"
    place = place_in(child.overlay, child.object["spec"]["template"], inner)
    return f"spec.{child.overlay_field}{f'.{place}' if place else ''}: {rest}"


def _same(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    return dict(new) == dict(old)


def _taken(child: Child) -> Trouble:
    return Trouble(
        "NameTaken",
        f"your config: a {child.kind} named {child.name} exists already and does not belong to this "
        "run; delete it, or give "
        "the run another name",
        "",
    )


def refusal(run: Run, child: Child, error: ApiError) -> Trouble:
    """What a refusal of the API server means to the user.

    It is the judge of pod templates, for it may be newer than this program's table of fields; what it refuses is said
    in the words of `tinker-atropos validate`, and with the run file's own paths where those do not know it."""
    said = cut("; ".join(error.causes) or error.message)
    if child.overlay_field and error.status in (400, 422, 500):
        known = [f"spec.{problem}" for problem in spec_problems(run.spec)]
        if not any(sentence.startswith(f"spec.{child.overlay_field}") for sentence in known):
            known += [_in_the_run_file(child, text) for text in error.causes or _schema_errors(error.message)]
        return Trouble("InvalidPodTemplate", f"your config: {cut('; '.join(known), MAX_REFUSAL)}", "")
    if error.status == 403:
        return Trouble(
            "Forbidden",
            f"the API server forbids to make {child.kind} {child.name}: {said}; ask whoever manages the cluster",
            "",
        )
    return Trouble(
        "ObjectRefused", f"this project: the API server refuses {child.kind} {child.name}: {said}; report this", ""
    )
