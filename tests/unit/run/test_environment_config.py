"""What an environment is told: the user's settings, and the ones that keep it alive and its rollouts whole."""

from __future__ import annotations

from typing import Any

import pytest

from tinker_atropos.run.environment_config import environment_config
from tinker_atropos.run.parse import parse_spec

SPEC: dict[str, Any] = {
    "config": {
        "env": {"group_size": 4, "batch_size": 16, "difficulties": ["easy"], "use_wandb": True, "total_steps": 5},
        "openai": [
            {"model_name": "org/model", "base_url": "http://elsewhere", "api_key": "secret", "num_requests_for_eval": 7}
        ],
        "tinker": {"lora_rank": 4},
    },
    "environments": [{"name": "e", "command": ["x"], "config": {"largest": 9}}],
}


def made(**env: object) -> dict[str, Any]:
    given = {**SPEC, "config": {**SPEC["config"], "env": {**SPEC["config"]["env"], **env}}}
    spec, _ = parse_spec(given)
    return environment_config(
        spec,
        spec.environments[0],
        trajectories_url="http://127.0.0.1:1",
        gateway_url="http://127.0.0.1:2",
        tokenizer_dir="/tok",
    )


FIXED = {
    "the relay is the trajectory server": ("rollout_server_url", "http://127.0.0.1:1"),
    "the tokenizer is a local folder": ("tokenizer_name", "/tok"),
    "no waiting for a W&B project": ("use_wandb", False),
    "named after its entry": ("wandb_name", "e"),
    "never ends by itself": ("total_steps", 1_000_000_000),
    "evaluation cancels no rollout": ("eval_handling", "NONE"),
    "no rollout is timed out": ("worker_timeout", 0),
}


@pytest.mark.parametrize(("key", "value"), FIXED.values(), ids=FIXED)
def test_settings_that_are_not_free(key: str, value: object) -> None:
    assert (
        made(**{key: "other"} if key not in ("use_wandb", "total_steps", "worker_timeout") else {})["env"][key] == value
    )


def test_the_users_settings_pass_through() -> None:
    env = made()["env"]
    assert (env["group_size"], env["batch_size"], env["difficulties"], env["largest"]) == (4, 16, ["easy"], 9)


def test_a_key_left_empty_by_an_environment_keeps_the_common_value() -> None:
    spec, _ = parse_spec(
        {**SPEC, "environments": [{"name": "e", "command": ["x"], "config": {"max_num_workers": None}}]}
    )
    config = environment_config(spec, spec.environments[0], trajectories_url="a", gateway_url="b", tokenizer_dir="c")
    assert config["env"]["max_num_workers"] == 24


def test_no_rollouts_at_all_is_never_configured() -> None:
    assert made(max_batches_offpolicy=0)["env"]["max_batches_offpolicy"] == 1


@pytest.mark.parametrize(("given", "workers"), [(24, 24), (-1, 8)])
def test_workers_are_explicit(given: int, workers: int) -> None:
    assert made(max_num_workers=given)["env"]["max_num_workers"] == workers


def test_two_identical_servers_that_hold_no_secret() -> None:
    """AP-24: with one, an environment whose config_init returns a single config asks ports of its own choice."""
    first, second = made()["openai"]
    assert first == second
    assert first == {
        "num_requests_for_eval": 7,
        "model_name": "org/model",
        "tokenizer_name": "/tok",
        "base_url": "http://127.0.0.1:2/v1",
        "api_key": "relay",
        "server_type": "sglang",
        "timeout": 86_400,
    }


def test_the_trainers_section_is_not_shown_to_environments() -> None:
    assert set(made()) == {"env", "openai"}
