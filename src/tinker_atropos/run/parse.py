"""From plain data to a RunSpec, or to the list of everything that is wrong with it.

The operator (condition Stalled, reason InvalidConfig) and local mode (exit status 78) give the same answers from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from tinker_atropos.run.model import (
    APIServer,
    Checkpoints,
    Config,
    Deadlines,
    EnvConfig,
    Environment,
    LocalTinker,
    OpenAIConfig,
    RunSpec,
    SecretKeyRef,
    Store,
    StoreSecretRef,
    TinkerAPI,
    TinkerConfig,
    Trainer,
)
from tinker_atropos.run.problems import InvalidRunError, Problem, nearest, unknown_key
from tinker_atropos.run.share_rules import share_problems

EXTRA_TINKER_KEYS = frozenset(
    {"wandb_project", "wandb_group", "wandb_run_name", "wandb_run_suffix", "tool_call_parser", "debug"}
)
"""Keys of tinker-atropos files that have no effect here; a pasted file may keep them."""

EXTRA_CONFIG_KEYS = frozenset({"slurm", "testing"})
"""Top-level keys of such files that only an environment reads."""

_ATROPOS_ENV_KEYS = """
rollout_server_url wandb_name max_eval_workers
max_num_workers_per_node eval_handling eval_limit_ratio num_rollouts_to_keep
num_rollouts_per_group_for_logging data_path_to_save_groups data_dir_to_save_evals min_items_sent_before_logging
include_messages worker_timeout thinking_mode reasoning_effort max_reasoning_tokens
custom_thinking_prompt
"""
ENV_KEYS = frozenset(EnvConfig.model_fields) | frozenset(_ATROPOS_ENV_KEYS.split())
"""Keys that Atropos' environments know; others pass, near misses are warned of."""

_ATROPOS_SERVER_KEYS = """
base_url api_key weight server_type timeout tokenizer_name num_max_requests_at_once rolling_buffer_length
n_kwarg_is_ignored health_check
"""
OPENAI_KEYS = frozenset(OpenAIConfig.model_fields) | frozenset(_ATROPOS_SERVER_KEYS.split())


def parse_spec(spec: Mapping[str, Any]) -> tuple[RunSpec, tuple[Problem, ...]]:
    """RunSpec of `spec` and warnings. Raises InvalidRunError with every problem found."""
    problems = list(_unknown_keys(spec))
    parsed: RunSpec | None = None
    try:
        parsed = RunSpec.model_validate(spec)
    except ValidationError as error:
        errors = error.errors()
        # A list with a bad item is also reported as too short: only the item is the reader's business.
        inner = {entry["loc"][:1] for entry in errors if len(entry["loc"]) > 1}
        problems += [
            _problem(entry) for entry in errors if entry["type"] != "extra_forbidden" and entry["loc"] not in inner
        ]
    if parsed is not None:
        problems += _rules(parsed)
    if problems or parsed is None:
        raise InvalidRunError(problems)
    return parsed, tuple(_warnings(spec))


def _unknown_keys(spec: Mapping[str, Any]) -> list[Problem]:
    found = _extra("", spec, RunSpec)
    config = _mapping(spec.get("config"))
    found += [
        unknown_key("config", key, Config.model_fields)
        for key in config
        if key not in Config.model_fields and key not in EXTRA_CONFIG_KEYS
    ]
    tinker = _mapping(config.get("tinker"))
    found += [
        unknown_key("config.tinker", key, TinkerConfig.model_fields)
        for key in tinker
        if key not in TinkerConfig.model_fields and key not in EXTRA_TINKER_KEYS
    ]
    api = _mapping(spec.get("tinkerAPI"))
    found += _extra("tinkerAPI", api, TinkerAPI)
    found += _extra("tinkerAPI.local", _mapping(api.get("local")), LocalTinker)
    found += _extra("tinkerAPI.keySecretRef", _mapping(api.get("keySecretRef")), SecretKeyRef)
    server = _mapping(spec.get("apiServer"))
    found += _extra("apiServer", server, APIServer) + _extra("apiServer.store", _mapping(server.get("store")), Store)
    secret = _mapping(_mapping(server.get("store")).get("secretRef"))
    found += _extra("apiServer.store.secretRef", secret, StoreSecretRef)
    found += _extra("checkpoints", _mapping(spec.get("checkpoints")), Checkpoints)
    found += _extra("trainer", _mapping(spec.get("trainer")), Trainer)
    found += _extra("deadlines", _mapping(spec.get("deadlines")), Deadlines)
    environments = spec.get("environments")
    if isinstance(environments, list):
        for index, environment in enumerate(environments):
            found += _extra(f"environments[{index}]", _mapping(environment), Environment)
    return found


def _extra(field: str, value: Mapping[str, Any], model: type[BaseModel]) -> list[Problem]:
    known = {info.alias or name for name, info in model.model_fields.items()}
    return [unknown_key(field, key, known) for key in value if key not in known]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _problem(error: Any) -> Problem:
    location = [
        part for part in error["loc"] if not (isinstance(part, str) and part.startswith(("function-", "constrained-")))
    ]
    field = ""
    for part in location:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    if error["type"] == "missing":
        return Problem(field, "is missing", "give it a value")
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = error.get("input")
    shown = repr(given) if isinstance(given, str | int | float | bool | None) else type(given).__name__
    expected = error.get("ctx", {}).get("expected")
    near = None
    if isinstance(given, str) and isinstance(expected, str):
        near = nearest(given, [word.strip(" '") for word in expected.replace(" or ", ",").split(",")])
    return Problem(field, f"{shown} is not valid: {message}", f"did you mean {near!r}?" if near else "")


def _rules(spec: RunSpec) -> list[Problem]:
    found: list[Problem] = []
    env, tinker, api = spec.config.env, spec.config.tinker, spec.tinker_api
    if env.batch_size % env.group_size:
        lower = env.batch_size // env.group_size * env.group_size
        near = [str(size) for size in (lower, lower + env.group_size) if size > 0]
        found.append(
            Problem(
                "config.env.batch_size",
                f"{env.batch_size} is not a multiple of group_size {env.group_size}",
                f"batch_size counts sequences and must be whole groups; use {' or '.join(near)}",
            )
        )
    names = [environment.name for environment in spec.environments]
    for index, name in enumerate(names):
        if name in names[:index]:
            found.append(
                Problem(f"environments[{index}].name", f"{name!r} stands twice", "give each environment its own name")
            )
    if api.local and (api.base_url or api.key_secret_ref):
        other = "baseURL" if api.base_url else "keySecretRef"
        found.append(
            Problem(
                "tinkerAPI",
                f"both local and {other} are given",
                "local starts a server of its own and needs neither key nor URL; keep one",
            )
        )
    interval = tinker.save_checkpoint_interval
    if interval is not None and spec.checkpoints.every is not None and interval != spec.checkpoints.every:
        found.append(
            Problem(
                "checkpoints.every",
                f"{spec.checkpoints.every} and config.tinker.save_checkpoint_interval {interval} differ",
                "they are one setting; keep one",
            )
        )
    found += share_problems(spec)
    found += _store_rules(spec.api_server.store)
    volume = set(spec.api_server.store.volume)
    if len(volume) != 1 or not volume <= {"emptyDir", "persistentVolumeClaim", "ephemeral", "hostPath"}:
        found.append(
            Problem(
                "apiServer.store.volume",
                f"{sorted(volume)} is not one volume source",
                "use emptyDir: {} or persistentVolumeClaim: {claimName: …}",
            )
        )
    for index, environment in enumerate(spec.environments):
        if (
            env.inference_weight is not None
            and "weight" in environment.model_fields_set
            and environment.weight not in (1.0, env.inference_weight)
        ):
            found.append(
                Problem(
                    f"environments[{index}].weight",
                    f"{environment.weight} and config.env.inference_weight {env.inference_weight} differ",
                    "they are one setting; keep one",
                )
            )
        size = environment.config.get("group_size")
        if size is not None and size != env.group_size:
            found.append(
                Problem(
                    f"environments[{index}].config.group_size",
                    f"{size} differs from config.env.group_size {env.group_size}",
                    "all environments of a run share one group_size",
                )
            )
    return found


def _store_rules(store: Store) -> list[Problem]:
    field = "apiServer.store"
    if store.type == "Redis" and store.url is None:
        return [
            Problem(
                f"{field}.url", "is missing for type Redis", "give the server's address, such as redis://redis:6379/0"
            )
        ]
    given = [name for name, value in (("url", store.url), ("secretRef", store.secret_ref)) if value is not None]
    if store.type == "Embedded" and given:
        return [Problem(f"{field}.{given[0]}", "is given for type Embedded", "use type: Redis, or leave it out")]
    return []


def _warnings(spec: Mapping[str, Any]) -> list[Problem]:
    found = []
    config = _mapping(spec.get("config"))
    sections = [("config.env", _mapping(config.get("env")))]
    environments = spec.get("environments")
    for index, environment in enumerate(environments if isinstance(environments, list) else []):
        sections.append((f"environments[{index}].config", _mapping(_mapping(environment).get("config"))))
    for field, section in sections:
        for key in section:
            meant = None if key in ENV_KEYS else nearest(key, ENV_KEYS)
            if meant:
                found.append(
                    Problem(
                        f"{field}.{key}",
                        "is no key of Atropos environments and is passed on as it is",
                        f"did you mean {meant!r}?",
                    )
                )
    for key in _mapping(config.get("tinker")):
        if key in EXTRA_TINKER_KEYS and key.startswith("wandb"):
            found.append(Problem(f"config.tinker.{key}", "has no effect: Weights & Biases is off without a key"))
    openai = config.get("openai")
    for index, entry in enumerate(openai if isinstance(openai, list) else []):
        for key in _mapping(entry):
            meant = None if key in OPENAI_KEYS else nearest(key, OPENAI_KEYS)
            if meant:
                found.append(Problem(f"config.openai[{index}].{key}", "is an unknown key", f"did you mean {meant!r}?"))
    return found
