"""The schema and the run file's types say the same: same fields, same defaults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tinker_atropos.run import model
from tinker_atropos.run.duration import PATTERN
from tinker_atropos.run.names import MAX_RUN_AND_ENVIRONMENT

CRD = yaml.safe_load((Path(__file__).resolve().parents[3] / "crds" / "tinkeratroposruns.yaml").read_text())
ROOT = CRD["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
SPEC = ROOT["properties"]["spec"]

SECTIONS: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "spec": (model.RunSpec, SPEC),
    "config": (model.Config, SPEC["properties"]["config"]),
    "config.env": (model.EnvConfig, SPEC["properties"]["config"]["properties"]["env"]),
    "config.openai[]": (model.OpenAIConfig, SPEC["properties"]["config"]["properties"]["openai"]["items"]),
    "config.tinker": (model.TinkerConfig, SPEC["properties"]["config"]["properties"]["tinker"]),
    "tinkerAPI": (model.TinkerAPI, SPEC["properties"]["tinkerAPI"]),
    "tinkerAPI.keySecretRef": (model.SecretKeyRef, SPEC["properties"]["tinkerAPI"]["properties"]["keySecretRef"]),
    "tinkerAPI.local": (model.LocalTinker, SPEC["properties"]["tinkerAPI"]["properties"]["local"]),
    "environments[]": (model.Environment, SPEC["properties"]["environments"]["items"]),
    "apiServer": (model.APIServer, SPEC["properties"]["apiServer"]),
    "apiServer.store": (model.Store, SPEC["properties"]["apiServer"]["properties"]["store"]),
    "checkpoints": (model.Checkpoints, SPEC["properties"]["checkpoints"]),
    "trainer": (model.Trainer, SPEC["properties"]["trainer"]),
    "deadlines": (model.Deadlines, SPEC["properties"]["deadlines"]),
}

NO_DEFAULT_ON_PURPOSE = {
    # With a default the API server would write it, and nobody could tell a weight that was given from one that was not.
    ("environments[]", "weight"),
    # In a cluster there is no variable that could hold the key: the endpoint must be named.
    ("spec", "tinkerAPI"),
}


def cases() -> list[Any]:
    found = []
    for section, (type_, _) in SECTIONS.items():
        for name, info in type_.model_fields.items():
            found.append(pytest.param(section, info.alias or name, info, id=f"{section}.{info.alias or name}"))
    return found


@pytest.mark.parametrize(("section", "name", "info"), cases())
def test_a_field_has_the_same_default(section: str, name: str, info: Any) -> None:
    schema = SECTIONS[section][1]["properties"][name]
    if (section, name) in NO_DEFAULT_ON_PURPOSE:
        assert "default" not in schema
        return
    default = info.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        assert name in SECTIONS[section][1]["required"]
    elif isinstance(default, BaseModel):
        assert schema["default"] == {}, "its own fields have the defaults"
    elif default in (None, {}, ()):
        assert "default" not in schema
    else:
        assert schema["default"] == default
        assert type(schema["default"]) is type(default)


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_the_same_fields(section: str) -> None:
    type_, schema = SECTIONS[section]
    assert set(schema["properties"]) == {info.alias or name for name, info in type_.model_fields.items()}


@pytest.mark.parametrize("section", SECTIONS)
def test_free_sections_keep_unknown_keys_and_the_others_do_not(section: str) -> None:
    type_, schema = SECTIONS[section]
    assert schema.get("x-kubernetes-preserve-unknown-fields", False) == (type_.model_config["extra"] == "allow")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_is_described(section: str) -> None:
    for name, schema in SECTIONS[section][1]["properties"].items():
        assert schema.get("description"), f"{section}.{name}"


def test_durations_and_names_have_one_form() -> None:
    [rule] = SPEC["properties"]["deadlines"]["properties"]["startup"]["x-kubernetes-validations"]
    assert rule["rule"] == "self.matches('{}')".format(PATTERN.replace("\\", "\\\\"))
    assert any(f"<= {MAX_RUN_AND_ENVIRONMENT}" in rule["rule"] for rule in ROOT["x-kubernetes-validations"])


def test_limits_are_the_same() -> None:
    keys = {"ge": "minimum", "gt": "minimum", "le": "maximum", "lt": "maximum", "min_length": "minLength"}
    for section, (type_, section_schema) in SECTIONS.items():
        for name, info in type_.model_fields.items():
            schema = section_schema["properties"][info.alias or name]
            for constraint in info.metadata:
                for attribute, key in keys.items():
                    limit = getattr(constraint, attribute, None)
                    if limit is None:
                        continue
                    schema_key = "minItems" if schema["type"] == "array" else key
                    assert schema[schema_key] == limit, f"{section}.{name}"
                    if attribute in ("gt", "lt"):
                        exclusive = "exclusiveMinimum" if attribute == "gt" else "exclusiveMaximum"
                        assert schema[exclusive] is True, f"{section}.{name}"


@pytest.mark.parametrize("script", ["generate_crd_reference.py", "generate_chart_crd.py"])
def test_what_is_made_from_the_crd_is_fresh(script: str) -> None:
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run(
        [sys.executable, str(root / "scripts" / script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
