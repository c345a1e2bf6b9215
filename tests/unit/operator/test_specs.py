"""The objects of a run, as they are built."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import pytest
import yaml

from tinker_atropos.protocol.exit_codes import FATAL
from tinker_atropos.run.load import convert
from tinker_atropos_operator.specs import labels
from tinker_atropos_operator.specs.children import running_children
from tinker_atropos_operator.specs.overlay import lay_over

LOCAL = {"tinkerAPI": {"local": {"model": "tiny"}}}


def children(build: Any, **changes: Any) -> dict[str, dict[str, Any]]:
    built = running_children(build.context(**changes), 1)
    return {f"{child.kind}/{child.name}": child.object for child in built}


def pod_templates(build: Any, **changes: Any) -> dict[str, dict[str, Any]]:
    return {
        name: body["spec"]["template"]
        for name, body in children(build, **changes).items()
        if body["kind"] in ("Deployment", "Job")
    }


def containers(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    spec = template["spec"]
    return {entry["name"]: entry for entry in (*spec.get("initContainers", ()), *spec["containers"])}


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_what_a_run_is_made_of(build: Any) -> None:
    assert list(children(build)) == [
        "ConfigMap/tar-first-config",
        "Secret/tar-first-token",
        "Service/tar-first-api",
        "Deployment/tar-first-api",
        "Deployment/tar-first-env-digits",
        "Job/tar-first-trainer-1",
    ]
    assert set(children(build, **LOCAL)) - set(children(build)) == {
        "Deployment/tar-first-tinker",
        "Service/tar-first-tinker",
    }


def test_every_object_belongs_to_the_run_and_can_be_found(build: Any) -> None:
    for name, body in children(build, **LOCAL).items():
        owner = body["metadata"]["ownerReferences"]
        assert [(entry["uid"], entry["controller"], entry["blockOwnerDeletion"]) for entry in owner] == [
            (build.uid, True, True)
        ], name
        assert body["metadata"]["labels"][labels.MANAGED_BY] == labels.MANAGER, name
        assert body["metadata"]["labels"][labels.RUN] == "first", name
        assert body["metadata"]["annotations"][labels.INPUTS], name


def test_every_pod_passes_the_restricted_level_and_knows_nothing_of_the_cluster(build: Any) -> None:
    for name, template in pod_templates(build, **LOCAL).items():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert {"name": "tmp", "emptyDir": {}} in spec["volumes"], name
        for container in containers(template).values():
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert variables(container)["TMPDIR"] == variables(container)["HOME"] == "/tmp", name
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], name


def test_the_key_reaches_only_trainer_and_gateway(build: Any) -> None:
    holders = {
        f"{name}/{container['name']}"
        for name, template in pod_templates(build).items()
        for container in containers(template).values()
        if "tinker" in json.dumps(container.get("env", [])) and "TINKER_API_KEY" in json.dumps(container["env"])
    }
    assert holders == {"Deployment/tar-first-api/gateway", "Job/tar-first-trainer-1/trainer"}
    template = pod_templates(build)["Job/tar-first-trainer-1"]
    assert variables(containers(template)["trainer"])["TINKER_API_KEY"] == {
        "secretKeyRef": {"name": "tinker", "key": "api-key"}
    }


@pytest.mark.parametrize(
    ("api", "key", "url"),
    [
        ({"keySecretRef": {"name": "t", "key": "k"}}, {"secretKeyRef": {"name": "t", "key": "k"}}, None),
        ({"baseURL": "http://own"}, "tml-none", "http://own"),
        (
            {"local": {"model": "tiny"}},
            {"secretKeyRef": {"name": "tar-first-token", "key": "local-tinker-api-key"}},
            "http://tar-first-tinker:8003",
        ),
    ],
    ids=["hosted", "own", "local"],
)
def test_endpoint_and_key(build: Any, api: dict[str, Any], key: Any, url: str | None) -> None:
    templates = pod_templates(build, tinkerAPI=api)
    for container in (
        containers(templates["Deployment/tar-first-api"])["gateway"],
        containers(templates["Job/tar-first-trainer-1"])["trainer"],
    ):
        assert variables(container)["TINKER_API_KEY"] == key
        assert variables(container).get("TINKER_BASE_URL") == url


def test_the_runs_token_is_mounted_only_where_it_is_needed(build: Any) -> None:
    mounts = {
        f"{name.split('/')[1]}/{container['name']}"
        for name, template in pod_templates(build, **LOCAL).items()
        for container in containers(template).values()
        if any(mount["name"] == "run-token" for mount in container["volumeMounts"])
    }
    assert mounts == {
        "tar-first-api/trajectories",
        "tar-first-api/gateway",
        "tar-first-env-digits/relay",
        "tar-first-trainer-1/trainer",
    }


def test_secrets_follow_from_the_runs_uid_alone(build: Any) -> None:
    first = children(build, **LOCAL)["Secret/tar-first-token"]
    assert first == children(build, **LOCAL)["Secret/tar-first-token"]
    data = {key: b64decode(value).decode() for key, value in first["data"].items()}
    assert set(data) == {"token", "local-tinker-api-key"}
    assert len(data["token"]) == 43 and data["local-tinker-api-key"].startswith("tml-")
    assert data["token"] not in data["local-tinker-api-key"]


def test_the_relay_is_a_native_sidecar_that_is_ready_before_the_program_starts(build: Any) -> None:
    template = pod_templates(build)["Deployment/tar-first-env-digits"]
    (relay,) = template["spec"]["initContainers"]
    assert relay["restartPolicy"] == "Always"
    assert relay["startupProbe"]["httpGet"] == {"path": "/healthz", "port": 8009}
    patience = relay["startupProbe"]["periodSeconds"] * relay["startupProbe"]["failureThreshold"]
    assert patience >= 600, "it waits as long as the run may take to start"
    assert "--trajectories=http://tar-first-api:8000" in relay["args"]
    assert "--gateway=http://tar-first-api:8001" in relay["args"]
    assert "--environment=digits" in relay["args"]
    assert template["spec"]["terminationGracePeriodSeconds"] == 5


def test_the_environment_is_started_as_its_author_would(build: Any) -> None:
    program = containers(pod_templates(build)["Deployment/tar-first-env-digits"])["environment"]
    assert program["command"] == ["python", "digits.py"]
    assert program["args"] == ["serve", "--config", "/etc/tinker-atropos/environment.yaml"]
    config = yaml.safe_load(children(build)["ConfigMap/tar-first-config"]["data"]["environment-digits.yaml"])
    assert config["env"]["rollout_server_url"] == "http://127.0.0.1:8000"
    assert config["env"]["tokenizer_name"] == "/var/run/tinker-atropos/tokenizer"
    assert [server["base_url"] for server in config["openai"]] == ["http://127.0.0.1:8001/v1"] * 2


def test_images(build: Any) -> None:
    given = [{"name": "digits", "command": ["x"], "image": "mine:2"}]
    assert (
        containers(pod_templates(build, environments=given)["Deployment/tar-first-env-digits"])["environment"]["image"]
        == "mine:2"
    )
    own = containers(pod_templates(build)["Deployment/tar-first-env-digits"])["environment"]["image"]
    assert own == build.platform.settings.images.environment.reference


def test_the_run_file_of_the_trainer_is_the_users_without_what_is_kubernetes(build: Any) -> None:
    spec = build.spec()
    spec["environments"][0]["podTemplate"] = {"spec": {"nodeSelector": {"a": "b"}}}
    spec["trainer"] = {"backoffLimit": 2, "podTemplate": {"spec": {}}}
    data = children(build, **spec)["ConfigMap/tar-first-config"]["data"]
    run = convert(yaml.safe_load(data["run.yaml"]), "x")
    assert run.name == "first"
    assert run.spec.config == build.context().spec.config
    assert "podTemplate" not in data["run.yaml"]
    assert data["ca.crt"] == "CA"


def test_the_trainers_job_fails_at_once_where_trying_again_cannot_help(build: Any) -> None:
    job = children(build, trainer={"backoffLimit": 3})["Job/tar-first-trainer-1"]["spec"]
    assert job["backoffLimit"] == 3
    ignore, fail = job["podFailurePolicy"]["rules"]
    assert ignore == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    assert fail["action"] == "FailJob"
    assert fail["onExitCodes"] == {"containerName": "trainer", "operator": "In", "values": sorted(FATAL)}
    assert job["podReplacementPolicy"] == "Failed"
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_the_trainer_reports_with_a_token_for_this_run_object_only(build: Any) -> None:
    template = pod_templates(build)["Job/tar-first-trainer-1"]
    (volume,) = [volume for volume in template["spec"]["volumes"] if volume["name"] == "progress-token"]
    token = volume["projected"]["sources"][0]["serviceAccountToken"]
    assert token["audience"] == f"tinker-atropos.dev/ns/first/{build.uid}"
    args = containers(template)["trainer"]["args"]
    assert (
        "--progress-url=https://tinker-atropos-operator.tinker-system.svc:8443/v1/namespaces/ns/runs/first/progress"
        in args
    )
    assert "--trajectories=tar-first-api:8002" in args
    assert f"--run-uid={build.uid}" in args


def test_options_given_to_our_programs_exist(build: Any) -> None:
    from tinker_atropos.gateway.command import command as gateway
    from tinker_atropos.local_tinker.command import command as local_tinker
    from tinker_atropos.relay.command import command as relay
    from tinker_atropos.trainer.command import command as trainer
    from tinker_atropos.trajectories.command import command as trajectories

    programs = {
        "gateway": gateway,
        "local-tinker": local_tinker,
        "relay": relay,
        "trainer": trainer,
        "trajectories": trajectories,
    }
    seen = set()
    for template in pod_templates(build, **LOCAL).values():
        for container in containers(template).values():
            if container["command"][0] != "tinker-atropos":
                continue
            name = container["command"][1]
            seen.add(name)
            known = {option for parameter in programs[name].params for option in parameter.opts}
            given = {argument.split("=")[0] for argument in container["args"]}
            assert given <= known, name
            needed = {parameter.opts[0] for parameter in programs[name].params if parameter.required}
            assert needed <= given, name
    assert seen == set(programs)


def test_the_store_is_on_the_volume_that_the_user_chose(build: Any) -> None:
    claim = {"persistentVolumeClaim": {"claimName": "mine"}}
    templates = pod_templates(build, apiServer={"store": {"volume": claim}}, **LOCAL)
    for name, volume in (("Deployment/tar-first-api", "store"), ("Deployment/tar-first-tinker", "data")):
        assert {"name": volume, **claim} in templates[name]["spec"]["volumes"]
    paths = {
        mount["subPath"]
        for template in templates.values()
        for container in containers(template).values()
        for mount in container["volumeMounts"]
        if "subPath" in mount
    }
    assert paths == {"trajectories", "local-tinker"}, "both may be on one claim"


def test_the_ledger_is_exported_to_the_runs_own_folder_on_the_volume(build: Any) -> None:
    export = {"volume": {"persistentVolumeClaim": {"claimName": "archive"}}, "path": "runs/digits"}
    template = pod_templates(build, apiServer={"store": {"export": export}})["Deployment/tar-first-api"]
    trajectories = containers(template)["trajectories"]
    assert f"--export=/var/lib/tinker-atropos-export/runs/digits/first-{build.uid}" in trajectories["args"]
    assert {"name": "export", "mountPath": "/var/lib/tinker-atropos-export"} in trajectories["volumeMounts"]
    assert {"name": "export", "persistentVolumeClaim": {"claimName": "archive"}} in template["spec"]["volumes"]
    assert "export" not in [mount["name"] for mount in containers(template)["gateway"]["volumeMounts"]]
    assert template["spec"]["terminationGracePeriodSeconds"] == 120
    plain = pod_templates(build)["Deployment/tar-first-api"]
    assert "export" not in str(plain) and plain["spec"]["terminationGracePeriodSeconds"] == 30


def test_the_ledger_is_exported_to_the_runs_own_place_in_the_bucket(build: Any) -> None:
    export = {
        "bucket": "s3://archive/runs/",
        "endpoint": "https://minio:9000",
        "region": "r1",
        "secretRef": {"name": "s3"},
    }
    template = pod_templates(build, apiServer={"store": {"export": export}})["Deployment/tar-first-api"]
    trajectories, gateway = (containers(template)[name] for name in ("trajectories", "gateway"))
    for argument in (
        f"--export=s3://archive/runs/first-{build.uid}",
        "--export-endpoint=https://minio:9000",
        "--export-region=r1",
    ):
        assert argument in trajectories["args"]
    assert trajectories["envFrom"] == [{"secretRef": {"name": "s3"}}]
    assert "envFrom" not in gateway, "the credentials are the trajectory server's only"
    assert "export" not in [entry["name"] for entry in template["spec"]["volumes"]]
    assert template["spec"]["terminationGracePeriodSeconds"] == 120
    plain = {"bucket": "s3://archive"}
    template = pod_templates(build, apiServer={"store": {"export": plain}})["Deployment/tar-first-api"]
    arguments = [argument for argument in containers(template)["trajectories"]["args"] if "export" in argument]
    assert arguments == [f"--export=s3://archive/first-{build.uid}"]
    assert "envFrom" not in containers(template)["trajectories"]


def test_a_redis_store_is_told_by_address_and_its_password_comes_from_the_secret(build: Any) -> None:
    store = {"type": "Redis", "url": "redis://redis:6379/0", "secretRef": {"name": "redis", "key": "password"}}
    template = pod_templates(build, apiServer={"store": store})["Deployment/tar-first-api"]
    trajectories = containers(template)["trajectories"]
    assert f"--store=redis://redis:6379/0?run={build.uid}" in trajectories["args"]
    assert variables(trajectories)["TINKER_ATROPOS_TRAJECTORIES_STORE_PASSWORD"] == {
        "secretKeyRef": {"name": "redis", "key": "password"}
    }
    assert "TINKER_ATROPOS_TRAJECTORIES_STORE_PASSWORD" not in variables(containers(template)["gateway"])


def test_servers_are_found_before_they_are_ready(build: Any) -> None:
    for name, body in children(build, **LOCAL).items():
        if body["kind"] == "Service":
            assert body["spec"]["publishNotReadyAddresses"] is True, name
            assert name.split("/")[1].startswith("tar-")


UNCHANGED_BY = {
    "replicas": {"environments": [{"name": "digits", "command": ["python", "digits.py"], "replicas": 9}]},
    "total steps": {"config": {"env": {"group_size": 4, "batch_size": 8, "total_steps": 77}}},
    "deadline": {"deadlines": {"startup": "99m"}},
    "weight": {"environments": [{"name": "digits", "command": ["python", "digits.py"], "replicas": 2, "weight": 5}]},
}


@pytest.mark.parametrize("change", UNCHANGED_BY.values(), ids=UNCHANGED_BY.keys())
def test_a_change_that_concerns_no_pod_makes_no_pod_anew(build: Any, change: dict[str, Any]) -> None:
    before, after = children(build), children(build, **change)
    for name in ("Deployment/tar-first-api", "Deployment/tar-first-env-digits", "Job/tar-first-trainer-1"):
        assert before[name]["metadata"]["annotations"] == after[name]["metadata"]["annotations"], (
            f"{name} would be applied anew"
        )


def test_a_change_of_an_environments_configuration_restarts_it(build: Any) -> None:
    other = {"name": "digits", "command": ["python", "digits.py"], "replicas": 2, "config": {"max_token_length": 9}}
    before, after = pod_templates(build), pod_templates(build, environments=[other])
    name = "Deployment/tar-first-env-digits"
    assert before[name]["metadata"]["annotations"] != after[name]["metadata"]["annotations"]
    assert before["Deployment/tar-first-api"] == after["Deployment/tar-first-api"]


TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"run": "r", "component": "c"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "a",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                "securityContext": {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
        "tolerations": [{"key": "old"}],
    },
}


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "main", **fields}]}}


OVERLAYS: dict[str, tuple[dict[str, Any], str, Any]] = {
    "nothing": ({}, "spec.containers.0.image", "a"),
    "a field of the pod": ({"spec": {"nodeSelector": {"x": "y"}}}, "spec.nodeSelector", {"x": "y"}),
    "resources": (container(resources={"limits": {"cpu": "1"}}), "spec.containers.0.resources.limits.cpu", "1"),
    "other fields of that container stay": (container(resources={}), "spec.containers.0.image", "a"),
    "a variable added": (
        container(env=[{"name": "C", "value": "3"}]),
        "spec.containers.0.env",
        [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
    ),
    "a variable replaced whole": (
        container(env=[{"name": "A", "valueFrom": {"x": {}}}]),
        "spec.containers.0.env.0",
        {"name": "A", "valueFrom": {"x": {}}},
    ),
    "a mapping within": (
        container(securityContext={"readOnlyRootFilesystem": False}),
        "spec.containers.0.securityContext",
        {"readOnlyRootFilesystem": False, "capabilities": {"drop": ["ALL"]}},
    ),
    "a volume of the user's": (
        {"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}},
        "spec.volumes",
        [{"name": "tmp", "emptyDir": {}}, {"name": "data", "emptyDir": {}}],
    ),
    "a volume replaced whole": (
        {"spec": {"volumes": [{"name": "tmp", "hostPath": {"path": "/x"}}]}},
        "spec.volumes",
        [{"name": "tmp", "hostPath": {"path": "/x"}}],
    ),
    "another container": (
        {"spec": {"containers": [{"name": "side", "image": "b"}]}},
        "spec.containers.1",
        {"name": "side", "image": "b"},
    ),
    "a list without names is replaced": (
        {"spec": {"tolerations": [{"key": "new"}]}},
        "spec.tolerations",
        [{"key": "new"}],
    ),
    "a label added": ({"metadata": {"labels": {"team": "red"}}}, "metadata.labels.team", "red"),
    "labels that selectors need stay": ({"metadata": {"labels": {"run": "z"}}}, "metadata.labels.run", "r"),
    "annotations": ({"metadata": {"annotations": {"a": "b"}}}, "metadata.annotations", {"a": "b"}),
}


@pytest.mark.parametrize(("overlay", "path", "expected"), OVERLAYS.values(), ids=OVERLAYS.keys())
def test_a_pod_template_is_laid_over(overlay: dict[str, Any], path: str, expected: Any) -> None:
    before = json.dumps(TEMPLATE)
    at: Any = lay_over(TEMPLATE, overlay)
    for part in path.split("."):
        at = at[int(part)] if isinstance(at, list) else at[part]
    assert at == expected
    assert json.dumps(TEMPLATE) == before, "the built one is not changed in place"
