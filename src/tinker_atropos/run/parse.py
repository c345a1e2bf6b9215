"""From plain data to a RunSpec, or to the list of everything that is wrong with it.

The operator (condition Stalled, reason InvalidConfig) and local mode (exit status 78) give the same answers from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from tinker_atropos.run.model import (
    LOCAL_MODELS,
    APIServer,
    Checkpoints,
    Config,
    Deadlines,
    EnvConfig,
    Environment,
    Export,
    LocalTinker,
    OpenAIConfig,
    RunSpec,
    SecretKeyRef,
    SecretRef,
    Store,
    StoreSecretRef,
    TinkerAPI,
    TinkerConfig,
    Trainer,
    local_model_name,
)
from tinker_atropos.run.problems import InvalidRunError, Problem, nearest, unknown_key
from tinker_atropos.run.reference_rules import reference_problems
from tinker_atropos.run.share_rules import share_problems
from tinker_atropos.run.wording import not_mapping, problem_of

EXTRA_TINKER_KEYS = frozenset(
    {"wandb_project", "wandb_group", "wandb_run_name", "wandb_run_suffix", "tool_call_parser", "debug"}
)
"""Keys of tinker-atropos files that have no effect here; a pasted file may keep them."""

ENDPOINT_FIX = (
    "give keySecretRef: {name: tinker} for the hosted Tinker API, baseURL for another endpoint, "
    "or local: {model: tiny} for this project's CPU server"
)

VOLUME_SOURCES = ("emptyDir", "persistentVolumeClaim", "ephemeral", "hostPath")

EXPORT_SOURCES = ("persistentVolumeClaim", "hostPath", "nfs")
"""Volumes that outlive the pod that writes to them."""

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
    spec = _without_nulls(spec, RunSpec)
    problems = list(_unknown_keys(spec))
    parsed: RunSpec | None = None
    try:
        parsed = RunSpec.model_validate(spec)
    except ValidationError as error:
        errors = error.errors()
        # A list with a bad item is also reported as too short: only the item is the reader's business.
        inner = {entry["loc"][:1] for entry in errors if len(entry["loc"]) > 1}
        problems += [
            problem_of(entry) for entry in errors if entry["type"] != "extra_forbidden" and entry["loc"] not in inner
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
    export = _mapping(_mapping(server.get("store")).get("export"))
    found += _extra("apiServer.store.export", export, Export)
    found += _extra("apiServer.store.export.secretRef", _mapping(export.get("secretRef")), SecretRef)
    found += _extra("checkpoints", _mapping(spec.get("checkpoints")), Checkpoints)
    found += _extra("trainer", _mapping(spec.get("trainer")), Trainer)
    found += _extra("deadlines", _mapping(spec.get("deadlines")), Deadlines)
    environments = spec.get("environments")
    if isinstance(environments, list):
        for index, environment in enumerate(environments):
            found += _extra(f"environments[{index}]", _mapping(environment), Environment)
    return found


def _without_nulls(value: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """A key without a value (`tinkerAPI:` and nothing after it) counts as left out, as the API server takes it."""
    kept = {key: inner for key, inner in value.items() if inner is not None}
    for name, info in model.model_fields.items():
        key = info.alias or name
        inner, type_ = kept.get(key), _model_in(info.annotation)
        if type_ is None:
            continue
        if isinstance(inner, Mapping):
            kept[key] = _without_nulls(inner, type_)
        elif isinstance(inner, list):
            kept[key] = [_without_nulls(item, type_) if isinstance(item, Mapping) else item for item in inner]
    return kept


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The section that a field holds, itself or as items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for inner in get_args(annotation) if (found := _model_in(inner))), None)


def _extra(field: str, value: Mapping[str, Any], model: type[BaseModel]) -> list[Problem]:
    known = {info.alias or name for name, info in model.model_fields.items()}
    return [unknown_key(field, key, known) for key in value if key not in known]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _rules(spec: RunSpec) -> list[Problem]:
    found: list[Problem] = []
    env, tinker = spec.config.env, spec.config.tinker
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
    found += _endpoint_rules(spec)
    interval = tinker.save_checkpoint_interval
    if interval is not None and spec.checkpoints.every is not None and interval != spec.checkpoints.every:
        found.append(
            Problem(
                "checkpoints.every",
                f"{spec.checkpoints.every} and config.tinker.save_checkpoint_interval {interval} differ",
                "they are one setting; keep one",
            )
        )
    if env.max_num_workers == 0 or env.max_num_workers < -1:
        fix = "give the groups in flight of one instance, such as 24, or -1 for enough of two batches"
        found.append(Problem("config.env.max_num_workers", f"{env.max_num_workers} lets no rollout begin", fix))
    found += share_problems(spec)
    found += reference_problems(spec)
    found += _store_rules(spec.api_server.store)
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
        found += _own_settings(index, environment)
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


def _own_settings(index: int, environment: Environment) -> list[Problem]:
    """Keys that an environment overrides are of the types of config.env; its shares are judged with the others'."""
    known = {key: value for key, value in environment.config.items() if key in EnvConfig.model_fields}
    known.pop("min_batch_allocation", None)
    try:
        EnvConfig.model_validate({key: value for key, value in known.items() if value is not None})
    except ValidationError as error:
        problems = [problem_of(entry) for entry in error.errors()]
        return [replace(problem, field=f"environments[{index}].config.{problem.field}") for problem in problems]
    return []


def _endpoint_rules(spec: RunSpec) -> list[Problem]:
    api = spec.tinker_api
    if "tinker_api" in spec.model_fields_set and not (api.local or api.base_url or api.key_secret_ref):
        return [Problem("tinkerAPI", "names no endpoint", ENDPOINT_FIX)]
    if api.local is None:
        return []
    if api.base_url or api.key_secret_ref:
        other = "baseURL" if api.base_url else "keySecretRef"
        fix = "local starts a server of its own and needs neither key nor URL; keep one"
        return [Problem("tinkerAPI", f"both local and {other} are given", fix)]
    model = api.local.model
    if model not in LOCAL_MODELS and "/" not in model:
        meant = nearest(model, LOCAL_MODELS)
        fix = (
            f"did you mean {meant!r}?" if meant else f"use {' or '.join(LOCAL_MODELS)}, or a folder, such as ./{model}"
        )
        return [Problem("tinkerAPI.local.model", f"{model!r} is no built-in model", fix)]
    served = {local_model_name(model), *(LOCAL_MODELS.values() if "/" in model else ())}
    return [
        Problem(
            f"config.openai[{index}].model_name",
            f"{entry.model_name!r} is not what tinkerAPI.local serves",
            f"leave it out (the run then trains {local_model_name(model)!r}), or name the endpoint of that model",
        )
        for index, entry in enumerate(spec.config.openai)
        if entry.model_name and entry.model_name not in served
    ]


def _store_rules(store: Store) -> list[Problem]:
    field = "apiServer.store"
    found = _volume_rules(f"{field}.volume", store.volume, VOLUME_SOURCES)
    if store.export is not None:
        found += _export_rules(f"{field}.export", store.export)
    if store.type == "Redis" and store.url is None:
        fix = "give the server's address, such as redis://redis:6379/0"
        return [*found, Problem(f"{field}.url", "is missing for type Redis", fix)]
    given = [name for name, value in (("url", store.url), ("secretRef", store.secret_ref)) if value is not None]
    if store.type == "Embedded" and given:
        found.append(Problem(f"{field}.{given[0]}", "is given for type Embedded", "use type: Redis, or leave it out"))
    return found


def _export_rules(field: str, export: Export) -> list[Problem]:
    beside = {"endpoint": export.endpoint, "region": export.region, "secretRef": export.secret_ref}
    if export.volume is None and export.bucket is None:
        fix = "give volume: {persistentVolumeClaim: {claimName: …}}, or bucket: s3://my-bucket/runs"
        return [Problem(field, "names neither volume nor bucket", fix)]
    if export.volume is not None and export.bucket is not None:
        return [Problem(field, "both volume and bucket are given", "keep one")]
    if export.volume is not None:
        fix = "leave it out, or give bucket: s3://my-bucket/runs instead of volume"
        found = [Problem(f"{field}.{name}", "is only for bucket", fix) for name, value in beside.items() if value]
        return found + _volume_rules(f"{field}.volume", export.volume, EXPORT_SOURCES)
    if export.path:
        fix = f"put it behind the bucket: {(export.bucket or '').rstrip('/')}/{export.path}"
        return [Problem(f"{field}.path", "is only for volume", fix)]
    return []


def _volume_rules(field: str, volume: Mapping[str, Any], sources: Sequence[str]) -> list[Problem]:
    unknown = [unknown_key(field, key, sources) for key in volume if key not in sources]
    if unknown:
        return unknown
    given = {key: value for key, value in volume.items() if value is not None}
    if len(given) != 1:
        held = f"holds {' and '.join(given)}" if given else "holds no volume"
        first = "emptyDir: {} or " if "emptyDir" in sources else ""
        return [Problem(field, held, f"give exactly one, such as {first}persistentVolumeClaim: {{claimName: …}}")]
    [(name, source)] = given.items()
    return [] if isinstance(source, Mapping) else [Problem(f"{field}.{name}", *not_mapping(source, name))]


def _warnings(spec: Mapping[str, Any]) -> list[Problem]:
    found = []
    config = _mapping(spec.get("config"))
    if not config:
        found.append(Problem("config", "is missing, so every setting has its default", "see docs/run-file.md"))
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
