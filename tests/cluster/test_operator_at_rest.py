"""An operator with nothing to do writes nothing."""

from __future__ import annotations

import time
from typing import Any

from cluster_runs import versions
from real_cluster import DEPLOYMENT, SYSTEM, Namespace

OPERATOR_USER = f"system:serviceaccount:{SYSTEM}:{DEPLOYMENT}"
REST_SECONDS = 120


def is_housekeeping(entry: dict[str, Any]) -> bool:
    """The election's Lease, and the canary that shows whether the watches still deliver."""
    target = entry["objectRef"]
    return target["resource"] == "leases" or (target["resource"] == "configmaps" and "canary" in target["name"])


def test_in_two_minutes_it_writes_nothing(shared: Namespace, at_rest: Any) -> None:
    time.sleep(max(0.0, at_rest.since + REST_SECONDS - time.monotonic()))
    requests = shared.cluster.writes_by(OPERATOR_USER, at_rest.audit_size)
    assert requests, "the operator was not even there"
    writes = [entry for entry in requests if entry["verb"] not in ("get", "list", "watch")]
    assert [entry for entry in writes if not is_housekeeping(entry)] == []
    assert versions(shared) == at_rest.versions
