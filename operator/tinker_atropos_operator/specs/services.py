"""Services of a run: names under which its pods find each other."""

from __future__ import annotations

from collections.abc import Mapping

from tinker_atropos.protocol import ports
from tinker_atropos.run import names
from tinker_atropos_operator.specs import labels
from tinker_atropos_operator.specs.run_objects import Child, RunContext, metadata


def api_server_service(context: RunContext) -> Child:
    """Trajectory server and gateway of the run."""
    numbers = {
        "trajectories": ports.TRAJECTORIES_HTTP,
        "gateway": ports.GATEWAY_HTTP,
        "grpc": ports.TRAJECTORIES_GRPC,
    }
    return _service(context, names.api_server(context.name), labels.API_SERVER, numbers)


def local_tinker_service(context: RunContext) -> Child:
    """The run's own Tinker server."""
    numbers = {"http": ports.LOCAL_TINKER_HTTP}
    return _service(context, names.local_tinker(context.name), labels.LOCAL_TINKER, numbers)


def _service(context: RunContext, name: str, component: str, numbers: Mapping[str, int]) -> Child:
    return Child(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(context, name, labels.of_run(context.name, component), sorted(numbers.items())),
            "spec": {
                "selector": labels.selector_of(context.name, component),
                # Programs wait for each other themselves. A gateway that is not ready yet must not take the trajectory
                # server in the same pod off the network: each waits for the other through this Service.
                "publishNotReadyAddresses": True,
                "ports": [
                    {"name": port, "port": number, "targetPort": number, "protocol": "TCP"}
                    for port, number in numbers.items()
                ],
            },
        }
    )
