"""Is the run's token Secret still there? It is never read, so pods that do not start are the only sign that it is not.

Making it again when it is there changes nothing. It is tried soon, while the kubelet still looks often, then less and
less often: a pod may wait for another volume for hours."""

from __future__ import annotations

import datetime as dt

from tinker_atropos_operator.plan.observed import Object, Observed, condition, is_true, parse_time

FIRST_SECONDS = 3.0
"""A pod whose volumes are there does not wait longer than this, on a node with time to spare."""
LEAST_PAUSE = 5.0


def seconds_to_check(observed: Observed, last: dt.datetime | None, now: dt.datetime) -> float | None:
    """Seconds until the Secret is to be made again in case it is gone, 0 = now; None when every pod has begun to run.
    last: when that was done last."""
    since = min((moment for pod in observed.pods if (moment := _waits_since(pod)) is not None), default=None)
    if since is None:
        return None
    due = since + dt.timedelta(seconds=FIRST_SECONDS)
    if last is not None and last >= due:
        due = last + max(dt.timedelta(seconds=LEAST_PAUSE), (last - since) / 2)
    return max(0.0, (due - now).total_seconds())


def _waits_since(pod: Object) -> dt.datetime | None:
    """Since when a node has the pod without a single container of it having begun; None when that is not so."""
    status = pod.get("status") or {}
    scheduled = condition(pod, "PodScheduled")
    if status.get("phase") != "Pending" or "deletionTimestamp" in pod["metadata"] or scheduled is None:
        return None
    if scheduled.get("status") != "True" or not scheduled.get("lastTransitionTime"):
        return None
    entries = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    waits = [(entry.get("state") or {}).get("waiting") for entry in entries]
    if any(waiting is None for waiting in waits):
        return None
    # Volumes come before the first image: what waits for one has the Secret, unless a variable is made from it.
    unmade = any(waiting.get("reason") == "CreateContainerConfigError" for waiting in waits if waiting)
    if is_true(pod, "PodReadyToStartContainers") and not unmade:
        return None
    return parse_time(str(scheduled["lastTransitionTime"]))
