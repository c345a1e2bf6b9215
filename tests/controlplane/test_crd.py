"""Which manifests the API server takes and which it refuses, and why; which fields may change while a run runs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_world import QUICKSTART, World
from run_manifests import ACCEPTED, NAMES, ONLY_OF_A_CLUSTER, REFUSED, environment
from tinker_atropos_operator import kube as api
from tinker_atropos_operator.kube import ApiError

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "crds" / "tinkeratroposruns.yaml"


def said(error: ApiError) -> str:
    return f"{error.message} {' '.join(error.causes)}"


TAKEN = {**ACCEPTED, **ONLY_OF_A_CLUSTER}


@pytest.mark.parametrize("changes", TAKEN.values(), ids=TAKEN.keys())
async def test_accepted(world: World, changes: dict[str, Any]) -> None:
    created = await world.create_run("run", **changes)
    for section, given in (changes.get("config") or {}).items():
        if isinstance(given, dict):
            kept = created["spec"]["config"][section]
            assert {key: kept[key] for key in given} == given, "nothing is pruned from config"


@pytest.mark.parametrize(("changes", "words"), REFUSED.values(), ids=REFUSED.keys())
async def test_refused(world: World, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError) as refused:
        await world.create_run("run", **changes)
    assert refused.value.status == 422
    assert words in said(refused.value)


@pytest.mark.parametrize(
    ("name", "environment_name", "fits"),
    NAMES,
)
async def test_names_that_fit(world: World, name: str, environment_name: str, fits: bool) -> None:
    manifest = world.manifest(name, **environment(name=environment_name))
    if fits:
        await world.kube.create(api.RUNS, world.namespace, manifest)
    else:
        with pytest.raises(ApiError) as refused:
            await world.kube.create(api.RUNS, world.namespace, manifest)
        told = said(refused.value)
        lengths = f"the name has {len(name)} characters and the longest of environments[].name {len(environment_name)}"
        assert "metadata.name: " in told
        assert f"{lengths}; together they may have 42" in told or f"{name}: use lower-case letters" in told


FULL: dict[str, Any] = {
    **QUICKSTART,
    "config": {
        "env": {"group_size": 4, "batch_size": 8, "own_key": 1},
        "openai": [{"model_name": "m", "extra": 1}],
        "tinker": {"lora_rank": 8, "extra": 1},
    },
    "environments": [{"name": "digits", "command": ["python"], "image": "a:1", "config": {"x": 1}}],
    "checkpoints": {"every": 2},
    "trainer": {"backoffLimit": 2, "podTemplate": {"spec": {"nodeSelector": {"a": "b"}}}},
}


def changed(change: Any) -> dict[str, Any]:
    spec = copy.deepcopy(FULL)
    change(spec)
    return spec


def _set(path: str, value: Any) -> Any:
    def change(spec: dict[str, Any]) -> None:
        at: Any = spec
        *parts, last = path.split(".")
        for part in parts:
            at = at[int(part)] if isinstance(at, list) else at.setdefault(part, {})
        if value is None:
            at.pop(last, None)
        else:
            at[int(last) if isinstance(at, list) else last] = value

    return change


MUTABLE = {
    "replicas": _set("environments.0.replicas", 3),
    "weight": _set("environments.0.weight", 2.5),
    "an environment's pod template": _set("environments.0.podTemplate", {"spec": {"nodeSelector": {"a": "b"}}}),
    "total steps": _set("config.env.total_steps", 99),
    "minimum and maximum share": _set("environments.0.minBatchShare", 0.5),
    "common minimum share": _set("config.env.min_batch_allocation", 0.5),
    "common weight": _set("config.env.inference_weight", 2),
    "startup deadline": _set("deadlines.startup", "1h"),
}
IMMUTABLE = {
    "group size": _set("config.env.group_size", 8),
    "batch size": _set("config.env.batch_size", 16),
    "tokenizer": _set("config.env.tokenizer_name", "other"),
    "model": _set("config.openai.0.model_name", "n"),
    "an unknown key of openai": _set("config.openai.0.extra", 2),
    "no openai": _set("config.openai", None),
    "rank": _set("config.tinker.lora_rank", 16),
    "an unknown key of tinker": _set("config.tinker.extra", 2),
    "endpoint": _set("tinkerAPI", {"baseURL": "http://x"}),
    "image": _set("environments.0.image", "a:2"),
    "no image": _set("environments.0.image", None),
    "program": _set("environments.0.command", ["other"]),
    "an environment's config": _set("environments.0.config", {"x": 2}),
    "an environment's name": _set("environments.0.name", "other"),
    "store": _set("apiServer.store.volume", {"persistentVolumeClaim": {"claimName": "x"}}),
    "checkpoints": _set("checkpoints.every", 3),
    "retries": _set("trainer.backoffLimit", 3),
    "the trainer's pod template": _set("trainer.podTemplate", {}),
}


async def replace(world: World, spec: dict[str, Any]) -> dict[str, Any]:
    body = await world.run("run")
    body["spec"] = spec
    return await world.kube.replace(api.RUNS, world.namespace, "run", body)


@pytest.mark.parametrize("change", MUTABLE.values(), ids=MUTABLE.keys())
async def test_may_change_while_it_runs(world: World, change: Any) -> None:
    created = await world.create_run("run", FULL)
    assert (await replace(world, changed(change)))["metadata"]["generation"] == created["metadata"]["generation"] + 1


@pytest.mark.parametrize("change", IMMUTABLE.values(), ids=IMMUTABLE.keys())
async def test_may_not_change_while_it_runs(world: World, change: Any) -> None:
    await world.create_run("run", FULL)
    with pytest.raises(ApiError) as refused:
        await replace(world, changed(change))
    assert "make a new run" in said(refused.value)


async def test_no_environment_is_told_once(world: World) -> None:
    with pytest.raises(ApiError) as refused:
        await world.create_run("run", environments=[])
    assert "spec.environments" in said(refused.value) and "maxBatchShare" not in said(refused.value)


async def test_adding_an_environment_is_refused(world: World) -> None:
    await world.create_run("run", FULL)
    spec = copy.deepcopy(FULL)
    spec["environments"].append({"name": "more", "command": ["x"]})
    with pytest.raises(ApiError) as refused:
        await replace(world, spec)
    assert "added or removed" in said(refused.value)


def test_plain_kubectl_apply_works_for_the_crd_and_the_example(kubectl: Any, installed: None) -> None:
    """Client-side apply keeps a copy of the object in an annotation of limited size."""
    assert SOURCE.stat().st_size < 200_000
    done = kubectl("apply", "-f", str(SOURCE), "--dry-run=server")
    assert done.returncode == 0, done.stderr
    done = kubectl("apply", "-f", str(ROOT / "examples" / "quickstart.yaml"), "--dry-run=server", "--validate=strict")
    assert done.returncode == 0, done.stderr


def test_an_unknown_field_beside_config_is_named_by_kubectl(kubectl: Any, installed: None, world: World) -> None:
    text = json.dumps(world.manifest("run", checkpoint={"every": 3}))
    done = kubectl("apply", "--dry-run=server", "-f", "-", text=text)
    assert done.returncode != 0 and 'unknown field "spec.checkpoint"' in done.stderr


async def test_columns_and_names(world: World, kubectl: Any) -> None:
    await world.create_run("shown")
    body = await world.run("shown")
    body["status"] = {
        "phase": "Running",
        "progress": "2/5",
        "environmentsReady": "1/2",
        "reward": {"mean": 0.25},
        "checkpoint": {"path": "tinker://x"},
    }
    await world.kube.request("PUT", api.RUNS.path(world.namespace, "shown", "status"), body=body)
    done = kubectl("get", "tar", "-n", world.namespace)
    assert done.stdout.split()[:7] == ["NAME", "PHASE", "STEP", "REWARD", "ENVS", "AGE", "shown"]
    assert done.stdout.split()[7:11] == ["Running", "2/5", "0.25", "1/2"]
    assert "tinker://x" in kubectl("get", "tinkeratroposruns", "-n", world.namespace, "-o", "wide").stdout
    assert "shown" in kubectl("get", "tinker-atropos", "-n", world.namespace).stdout
    assert "Sequences" in kubectl("explain", "tar.spec.config.env.batch_size").stdout


def test_every_rule_says_what_to_do() -> None:
    crd = yaml.safe_load(SOURCE.read_text())

    def rules(node: Any) -> list[dict[str, Any]]:
        if isinstance(node, list):
            return [rule for item in node for rule in rules(item)]
        if isinstance(node, dict):
            return [
                rule
                for key, value in node.items()
                for rule in (value if key == "x-kubernetes-validations" else rules(value))
            ]
        return []

    found = rules(crd)
    assert len(found) > 10
    assert all(rule.get("message") for rule in found)
