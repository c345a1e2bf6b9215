"""Why a Job has no pod: its controller says so in Events only, where a Deployment has a condition for it."""

from __future__ import annotations

import datetime as dt
from typing import Any

from tinker_atropos_operator.kube import EVENTS, ApiError, Kube
from tinker_atropos_operator.plan.observed import Object, parse_time

FRESH_SECONDS = 900.0
"""The controller tries again within ten minutes, so an older Event is of something that is over."""


async def refused_pod(kube: Kube, job: Object, now: dt.datetime) -> str:
    """The newest sentence about a pod of that Job that could not be made; empty when there is none."""
    metadata = job["metadata"]
    query = {"fieldSelector": f"regarding.uid={metadata['uid']},reason=FailedCreate", "limit": "50"}
    try:
        answer = await kube.request("GET", EVENTS.path(str(metadata["namespace"])), query=query, resource=EVENTS.plural)
    except ApiError:
        return ""  # it is an explanation only: without the right to read Events the run goes on all the same
    found = [(_time(event), str(event.get("note", ""))) for event in answer.get("items") or ()]
    told = max(found, default=None)
    if told is None or (now - told[0]).total_seconds() > FRESH_SECONDS:
        return ""
    return told[1]


def _time(event: dict[str, Any]) -> dt.datetime:
    series = event.get("series") or {}
    text = series.get("lastObservedTime") or event.get("deprecatedLastTimestamp") or event.get("eventTime")
    return parse_time(str(text or event["metadata"]["creationTimestamp"]))
