"""Do the run's own servers stand: the API server, and the local Tinker server where there is one?"""

from __future__ import annotations

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


def api_server_state(run: str, observed: Observed) -> ServerState:
    return _state("API server", names.api_server(run), labels.API_SERVER, observed)


def local_tinker_state(run: str, spec: RunSpec, observed: Observed) -> ServerState | None:
    """None when the run uses a Tinker API that is not its own."""
    if spec.tinker_api.local is None:
        return None
    return _state("local Tinker server", names.local_tinker(run), labels.LOCAL_TINKER, observed)


def _state(what: str, name: str, component: str, observed: Observed) -> ServerState:
    live = observed.deployments.get(name)
    ready = live is not None and int((live.get("status") or {}).get("readyReplicas") or 0) > 0
    if ready:
        return ServerState(what, ready)
    troubles = [*all_troubles(observed.pods_of(component)), *refused_pods(live, f"the {what}")]
    return ServerState(what, ready, troubles)


def local_tinker_pod(observed: Observed) -> Object | None:
    """Newest pod of the local Tinker server that has run."""
    pods = [
        pod
        for pod in observed.pods_of(labels.LOCAL_TINKER)
        if (pod.get("status") or {}).get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    return pods[-1] if pods else None


def local_tinker_record(run: Run, spec: RunSpec, observed: Observed) -> dict[str, str] | None:
    """The pod whose volume holds the weights, for the status: the first one that ran, as long as it is there."""
    if spec.tinker_api.local is None:
        return None
    recorded = run.status.get("localTinker")
    if recorded and (not weights_die_with_pod(spec) or recorded_pod_lives(recorded, observed)):
        return dict(recorded)
    pod = local_tinker_pod(observed)
    if pod is not None:
        return {"pod": name_of(pod), "uid": str(pod["metadata"]["uid"])}
    return dict(recorded) if recorded else None


def weights_die_with_pod(spec: RunSpec) -> bool:
    return "emptyDir" in spec.api_server.store.volume


def recorded_pod_lives(recorded: Object, observed: Observed) -> bool:
    return any(str(pod["metadata"]["uid"]) == recorded.get("uid") for pod in observed.pods_of(labels.LOCAL_TINKER))


def weights_lost(run: Run, spec: RunSpec, observed: Observed) -> str | None:
    """Message when the pod that held the run's weights is gone and its volume with it; None when they are there.

    Another pod that runs in its place is the sign: a pod that was not seen yet, or one about to come back, is none."""
    recorded = run.status.get("localTinker")
    if spec.tinker_api.local is None or not recorded or not weights_die_with_pod(spec):
        return None
    if not run.status.get("step") or recorded_pod_lives(recorded, observed) or local_tinker_pod(observed) is None:
        return None
    return (
        f"the local Tinker server's pod {recorded.get('pod')} is gone, and with its emptyDir the weights of step "
        f"{run.status.get('step')}; start a new run, with a persistentVolumeClaim in "
        "apiServer.store.volume to survive this"
    )
