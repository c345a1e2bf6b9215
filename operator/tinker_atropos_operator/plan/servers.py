"""Do the run's own servers stand: the API server, and the local Tinker server where there is one?"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from tinker_atropos.run import names
from tinker_atropos.run.model import RunSpec
from tinker_atropos_operator.plan.observed import Object, Observed, Run, name_of
from tinker_atropos_operator.plan.pods import Trouble, all_troubles
from tinker_atropos_operator.plan.refusals import refused_pods
from tinker_atropos_operator.specs import labels


@dataclass(frozen=True)
class ServerState:
    """One server of the run."""

    what: str
    ready: bool
    troubles: Sequence[Trouble] = ()


def api_server_state(run: str, observed: Observed, now: dt.datetime) -> ServerState:
    return _state("API server", names.api_server(run), labels.API_SERVER, observed, now)


def local_tinker_state(run: str, spec: RunSpec, observed: Observed, now: dt.datetime) -> ServerState | None:
    """None when the run uses a Tinker API that is not its own."""
    if spec.tinker_api.local is None:
        return None
    return _state("local Tinker server", names.local_tinker(run), labels.LOCAL_TINKER, observed, now)


def _state(what: str, name: str, component: str, observed: Observed, now: dt.datetime) -> ServerState:
    live = observed.deployments.get(name)
    ready = live is not None and int((live.get("status") or {}).get("readyReplicas") or 0) > 0
    if ready:
        return ServerState(what, ready)
    troubles = [*all_troubles(observed.pods_of(component), now), *refused_pods(live, f"the {what}")]
    return ServerState(what, ready, troubles)


def running_pod(observed: Observed, component: str) -> Object | None:
    """Newest pod of a server that has run."""
    pods = [
        pod
        for pod in observed.pods_of(component)
        if (pod.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    return pods[-1] if pods else None


def local_tinker_record(run: Run, spec: RunSpec, observed: Observed) -> dict[str, str] | None:
    """The pod whose volume holds the weights, for the status: the first one that ran, as long as it is there."""
    if spec.tinker_api.local is None:
        return None
    recorded = run.status.get("localTinker")
    if recorded and not volume_dies_with_pod(spec):
        return dict(recorded)
    return _record(recorded, labels.LOCAL_TINKER, observed)


def api_server_record(run: Run, spec: RunSpec, observed: Observed) -> dict[str, str] | None:
    """The pod whose volume holds the queue, for the status; None when the queue outlives its pod."""
    if spec.api_server.store.type != "Embedded" or not volume_dies_with_pod(spec):
        return None
    return _record(run.status.get("apiServer"), labels.API_SERVER, observed)


def store_lost(run: Run, spec: RunSpec, observed: Observed) -> list[Object]:
    """What is told when the pod that held the queue is gone and its volume with it, once for each pod."""
    recorded, now = run.status.get("apiServer"), api_server_record(run, spec, observed)
    if not recorded or now is None or recorded.get("uid") == now["uid"] or not run.status.get("runningTime"):
        return []
    step = (run.status.get("checkpoint") or {}).get("step", 0)
    message = (
        f"the API server's pod {recorded.get('pod')} is gone, and with its emptyDir the queue and the ledger; the run "
        f"goes on from step {step}; in a new run a persistentVolumeClaim in apiServer.store.volume survives this"
    )
    return [{"reason": "StoreLost", "message": message}]


def _record(recorded: Object | None, component: str, observed: Observed) -> dict[str, str] | None:
    if recorded and _lives(recorded, component, observed):
        return dict(recorded)
    pod = running_pod(observed, component)
    if pod is not None:
        return {"pod": name_of(pod), "uid": str(pod["metadata"]["uid"])}
    return dict(recorded) if recorded else None


def volume_dies_with_pod(spec: RunSpec) -> bool:
    return "emptyDir" in spec.api_server.store.volume


def _lives(recorded: Object, component: str, observed: Observed) -> bool:
    return any(str(pod["metadata"]["uid"]) == recorded.get("uid") for pod in observed.pods_of(component))


def weights_lost(run: Run, spec: RunSpec, observed: Observed) -> str | None:
    """Message when the pod that held the run's weights is gone and its volume with it; None when they are there.

    Another pod that runs in its place is the sign: a pod that was not seen yet, or one about to come back, is none."""
    recorded = run.status.get("localTinker")
    if spec.tinker_api.local is None or not recorded or not volume_dies_with_pod(spec):
        return None
    lives = _lives(recorded, labels.LOCAL_TINKER, observed)
    if not run.status.get("step") or lives or running_pod(observed, labels.LOCAL_TINKER) is None:
        return None
    return (
        f"the local Tinker server's pod {recorded.get('pod')} is gone, and with its emptyDir the weights of step "
        f"{run.status.get('step')}; start a new run, with a persistentVolumeClaim in "
        "apiServer.store.volume to survive this"
    )
