"""Everything that a run that goes on should have."""

from __future__ import annotations

from tinker_atropos_operator.specs.api_server import api_server
from tinker_atropos_operator.specs.configuration import config_map, token_secret
from tinker_atropos_operator.specs.environment import environment
from tinker_atropos_operator.specs.local_tinker import local_tinker
from tinker_atropos_operator.specs.run_objects import Child, RunContext
from tinker_atropos_operator.specs.services import api_server_service, local_tinker_service
from tinker_atropos_operator.specs.trainer import trainer


def lasting_children(context: RunContext) -> list[Child]:
    """What stays when the run is over, until it is deleted: the local Tinker server with the final weights."""
    if context.spec.tinker_api.local is None:
        return []
    return [token_secret(context), local_tinker_service(context), local_tinker(context)]


def running_children(context: RunContext, attempt: int) -> list[Child]:
    """All objects of a run that goes on, in the order in which they are applied."""
    wanted = [config_map(context), token_secret(context), api_server_service(context)]
    wanted += [child for child in lasting_children(context) if child.kind != "Secret"]
    wanted.append(api_server(context))
    wanted += [environment(context, entry) for entry in context.spec.environments]
    wanted.append(trainer(context, attempt))
    return wanted
