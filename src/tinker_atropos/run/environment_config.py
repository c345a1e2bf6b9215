"""The configuration file that an Atropos environment is started with, made from the run file.

The environment sees only its relay on loopback, so the file is the same for every replica. Several values are not free:
they are what makes unmodified environments live through restarts and keeps them from throwing rollouts away (each one
says why below). A run file may not change those; everything else in `config.env` passes through unchanged.
"""

from __future__ import annotations

from typing import Any

from tinker_atropos.run.model import Environment, RunSpec

FIXED_KEYS = frozenset(
    {
        "rollout_server_url",
        "tokenizer_name",
        "use_wandb",
        "wandb_name",
        "total_steps",
        "eval_handling",
        "worker_timeout",
    }
)
"""Keys of config.env that the relay and pacing decide."""

UNREACHABLE_STEPS = 1_000_000_000
"""An environment ends itself at total_steps and a Deployment would start it again for ever; the run ends it instead."""

A_DAY = 86_400
"""Client timeout in seconds: the relay holds requests while the API server is away; nothing may give up earlier."""


def environment_config(
    spec: RunSpec, environment: Environment, *, trajectories_url: str, gateway_url: str, tokenizer_dir: str
) -> dict[str, Any]:
    """`env` and `openai` sections for `serve --config`.

    trajectories_url, gateway_url: the relay's on loopback, without a path.
    tokenizer_dir: where the relay has put the tokenizer's files.
    """
    given = spec.config.model_dump(exclude_none=True)
    own = {key: value for key, value in environment.config.items() if value is not None or key not in given["env"]}
    env: dict[str, Any] = {**given["env"], **own}
    env.pop(
        "min_batch_allocation", None
    )  # shares are kept by the trajectory server, which also knows the other replicas
    env.update(
        group_size=spec.config.env.group_size,
        batch_size=spec.config.env.batch_size,
        rollout_server_url=trajectories_url,
        tokenizer_name=tokenizer_dir,
        use_wandb=False,  # with it an environment waits for a W&B project before it does anything
        wandb_name=environment.name,
        total_steps=UNREACHABLE_STEPS,
        eval_handling="NONE",  # STOP_TRAIN cancels all running rollouts at every evaluation
        worker_timeout=0,  # 0 = none: pacing happens by holding requests in the gateway
        inference_weight=spec.weight_of(environment),
        max_batches_offpolicy=max(1, int(env.get("max_batches_offpolicy", 1))),  # 0 means no rollouts at all
        max_num_workers=_workers(spec, env),
    )
    names = [entry for entry in given.get("openai", ()) if entry.get("model_name")] or [{}]
    server = {
        **{key: value for key, value in names[0].items() if key not in ("base_url", "api_key", "weight")},
        "model_name": spec.base_model,
        "tokenizer_name": tokenizer_dir,
        "base_url": f"{gateway_url}/v1",
        "api_key": "relay",  # the relay adds the run's token
        "server_type": "sglang",
        "timeout": A_DAY,
    }
    # Two identical entries: with one, an environment whose config_init returns a single config ignores base_url.
    config: dict[str, Any] = {"env": env, "openai": [server, dict(server)]}
    for key in ("slurm", "testing"):
        if key in given:
            config[key] = given[key]
    return config


def _workers(spec: RunSpec, env: dict[str, Any]) -> int:
    """Groups in flight of one instance: the given number, else enough for one batch beside the one that trains."""
    workers = int(env.get("max_num_workers", -1))
    if workers > 0:
        return workers
    return max(1, 2 * spec.config.env.batch_size // spec.config.env.group_size)
