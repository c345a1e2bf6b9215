"""Specs that the API server takes and those that it refuses: one table for the CRD and for the run file's own checks.

tests/controlplane asks a real API server, tests/unit/run the parser, so the two cannot come to differ.
"""

from __future__ import annotations

from typing import Any


def env(**fields: Any) -> dict[str, Any]:
    return {"config": {"env": fields}}


def environment(**fields: Any) -> dict[str, Any]:
    return {"environments": [{"name": "digits", "command": ["python"], **fields}]}


def volume(**source: Any) -> dict[str, Any]:
    return {"apiServer": {"store": {"volume": source}}}


def export(**fields: Any) -> dict[str, Any]:
    return {"apiServer": {"store": {"export": fields}}}


ACCEPTED: dict[str, dict[str, Any]] = {
    "the quick start": {},
    "nothing but what must be": {"config": {}},
    "keys of an environment's own": env(dataset_path="x", nested={"a": [1]}),
    "sections that only environments read": {"config": {"slurm": False, "testing": True}},
    "a key": {"tinkerAPI": {"keySecretRef": {"name": "tinker"}}},
    "a key for another endpoint": {"tinkerAPI": {"keySecretRef": {"name": "t", "key": "k"}, "baseURL": "http://own"}},
    "an endpoint without a key": {"tinkerAPI": {"baseURL": "https://own.example"}},
    "no instances": environment(replicas=0),
    "a pod template": environment(podTemplate={"spec": {"nodeSelector": {"a": "b"}}}),
    "a claim for the store": volume(persistentVolumeClaim={"claimName": "store"}),
    "a Redis server for the store": {
        "apiServer": {"store": {"type": "Redis", "url": "redis://redis:6379/0", "secretRef": {"name": "redis"}}}
    },
    "a sized scratch volume": volume(emptyDir={"sizeLimit": "1Gi"}),
    "one setting said twice the same": {
        "checkpoints": {"every": 5},
        "config": {"tinker": {"save_checkpoint_interval": 5}},
    },
    "a long deadline": {"deadlines": {"startup": "1h30m"}},
    "a batch of one group": env(group_size=8, batch_size=8),
    "an export to a claim": {
        "apiServer": {"store": {"export": {"volume": {"persistentVolumeClaim": {"claimName": "a"}}, "path": "runs/x"}}}
    },
    "an export to a bucket": export(bucket="s3://archive"),
    "an export to a place in a bucket of another service": export(
        bucket="s3://my-archive.1/runs/team_a/v=1/",
        endpoint="https://minio.example.com:9000",
        region="eu-central-1",
        secretRef={"name": "s3"},
    ),
    "groups that do not pack": {"apiServer": {"unpackable": "Drop", "unknownVersion": "Drop"}},
    "shares that sum to 1": {
        **env(group_size=4, batch_size=40),
        "environments": [
            {"name": name, "command": ["x"], "minBatchShare": share}
            for name, share in (("a", 0.1), ("b", 0.2), ("c", 0.7))
        ],
    },
    "a whole share": environment(minBatchShare=1, maxBatchShare=1),
    "a minimum share as Atropos writes none": env(min_batch_allocation=None),
    "settings written like 1e1": env(total_steps=10.0),
    "sections left empty": {"config": {"env": None, "tinker": None}, "checkpoints": None, "deadlines": None},
    "no config, so every default": {"config": None},
    "a folder of the image as local model": {"tinkerAPI": {"local": {"model": "/models/mine"}}},
    "a pod template with a container of its own": environment(
        podTemplate={"spec": {"containers": [{"name": "environment", "resources": {"limits": {"cpu": 2}}}]}}
    ),
    "a very small learning rate": {"config": {"tinker": {"learning_rate": 1e-9}}},
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no endpoint at all": ({"tinkerAPI": None}, "tinkerAPI"),
    "an endpoint left empty": ({"tinkerAPI": {"local": None}}, "keySecretRef"),
    "a number as text": (env(batch_size="8"), "batch_size"),
    "true for a number": (env(batch_size=True), "batch_size"),
    "half a step": (env(total_steps=1.5), "total_steps"),
    "more steps than a number holds": (env(total_steps=10**20), "total_steps"),
    "a seed that no number holds": ({"config": {"tinker": {"seed": -(2**70)}}}, "seed"),
    "less than no steps": (env(total_steps=-5), "total_steps"),
    "a deadline as a number": ({"deadlines": {"startup": 600}}, "startup"),
    "a share in percent": (environment(minBatchShare="50%"), "minBatchShare"),
    "a Secret of no name": ({"tinkerAPI": {"keySecretRef": {"name": ""}}}, "name"),
    "half a replica": (environment(replicas=1.5), "replicas"),
    "text for true": (env(use_wandb="true"), "use_wandb"),
    "a number for text": (env(tokenizer_name=8), "tokenizer_name"),
    "a program in one text": (environment(command="python digits.py"), "command"),
    "a program with a number": (environment(command=["sleep", 5]), "command"),
    "an image of no name": (environment(image=""), "image"),
    "a very long image": (environment(image="a" * 1025), "image"),
    "one model instead of a list": ({"config": {"openai": {"model_name": "m"}}}, "openai"),
    "a number for a section": ({"config": {"env": 5}}, "env"),
    "a list for the endpoint": ({"tinkerAPI": ["local"]}, "tinkerAPI"),
    "text for a pod template": (environment(podTemplate="x"), "podTemplate"),
    "true for a volume": (volume(emptyDir=True), "emptyDir"),
    "an empty model of the local server": ({"tinkerAPI": {"local": {"model": ""}}}, "model"),
    "a Secret without a name": ({"tinkerAPI": {"keySecretRef": {"key": "k"}}}, "name"),
    "text among the loss's numbers": (
        {"config": {"tinker": {"loss_fn_config": {"clip_low_threshold": "0.8"}}}},
        "clip_low_threshold",
    ),
    "half a group": (env(group_size=16, batch_size=24), "must be a multiple of group_size"),
    "no group": (env(group_size=0), "group_size"),
    "no steps": (env(total_steps=0), "total_steps"),
    "text for a number": (env(batch_size="many"), "batch_size"),
    "a loss that is none": ({"config": {"tinker": {"loss_fn": "pppo"}}}, "loss_fn"),
    "a learning rate of nothing": ({"config": {"tinker": {"learning_rate": 0}}}, "learning_rate"),
    "a rank beyond reason": ({"config": {"tinker": {"lora_rank": 5000}}}, "lora_rank"),
    "no environments": ({"environments": []}, "environments"),
    "an environment without a program": ({"environments": [{"name": "a"}]}, "command"),
    "an environment with an empty program": ({"environments": [{"name": "a", "command": []}]}, "command"),
    "two environments of one name": (
        {"environments": [{"name": "a", "command": ["x"]}, {"name": "a", "command": ["y"]}]},
        "Duplicate",
    ),
    "a name that is none": (
        environment(name="Digits_1"),
        "'Digits_1': an environment's name has lower-case letters",
    ),
    "a name of nothing": (environment(name=""), "'': an environment's name has"),
    "a name too long": (environment(name="a" * 31), "environments[0].name"),
    "fewer than no replicas": (environment(replicas=-1), "replicas"),
    "no weight": (environment(weight=0), "weight"),
    "an export without a volume": (export(path="x"), "give either volume (and path) or bucket"),
    "an export to a volume and a bucket": (
        export(bucket="s3://archive", volume={"persistentVolumeClaim": {"claimName": "a"}}),
        "give either volume (and path) or bucket",
    ),
    "an export to a folder of a bucket": (export(bucket="s3://archive", path="x"), "path is only for volume"),
    "an export to a volume at an endpoint": (
        export(volume={"persistentVolumeClaim": {"claimName": "a"}}, endpoint="http://minio:9000"),
        "endpoint, region and secretRef are only for bucket",
    ),
    "an export to a bucket of another scheme": (
        export(bucket="gs://archive"),
        "'gs://archive' is no place in a bucket",
    ),
    "an export to a bucket with a name that is none": (
        export(bucket="s3://Archive"),
        "write it like s3://my-bucket/runs",
    ),
    "an export out of its bucket": (export(bucket="s3://archive/../b"), "write it like s3://my-bucket/runs"),
    "an export with a key in the endpoint": (
        export(bucket="s3://archive", endpoint="https://key:secret@minio"),
        "without a user or password",
    ),
    "an export with a Secret without a name": (export(bucket="s3://archive", secretRef={}), "secretRef.name"),
    "an export to a volume that dies with the pod": (
        {"apiServer": {"store": {"export": {"volume": {"emptyDir": {}}}}}},
        "export.volume",
    ),
    "an export out of its volume": (
        {
            "apiServer": {
                "store": {"export": {"volume": {"persistentVolumeClaim": {"claimName": "a"}}, "path": "a/../b"}}
            }
        },
        "'a/../b' is no folder of the volume: write it like runs/mine",
    ),
    "an answer that is none to groups that do not pack": ({"apiServer": {"unpackable": "drop"}}, "unpackable"),
    "a minimum share above the maximum": (
        environment(minBatchShare=0.5, maxBatchShare=0.25),
        "minBatchShare is above maxBatchShare",
    ),
    "minimum shares above 1": (
        {"environments": [{"name": n, "command": ["x"], "minBatchShare": 0.6} for n in ("a", "b")]},
        "the minBatchShare of all environments may together be at most 1",
    ),
    "a maximum share of the only environment": (environment(maxBatchShare=0.25), "together below 1"),
    "maximum shares below 1": (
        {"environments": [{"name": n, "command": ["x"], "maxBatchShare": 0.4} for n in ("a", "b")]},
        "the maxBatchShare of all environments are together below 1",
    ),
    "a share above 1": (environment(minBatchShare=1.5), "minBatchShare"),
    "no share at all as maximum": (environment(maxBatchShare=0), "maxBatchShare"),
    "Redis without an address": ({"apiServer": {"store": {"type": "Redis"}}}, "type Redis needs url"),
    "an address for the embedded store": ({"apiServer": {"store": {"url": "redis://r"}}}, "only for type Redis"),
    "a password in the address": (
        {"apiServer": {"store": {"type": "Redis", "url": "redis://:pw@r"}}},
        "write it like redis://HOST:6379/0, without a password",
    ),
    "no endpoint": ({"tinkerAPI": {}}, "keySecretRef"),
    "two endpoints": ({"tinkerAPI": {"local": {}, "baseURL": "http://x"}}, "local"),
    "a local server and a key": ({"tinkerAPI": {"local": {}, "keySecretRef": {"name": "x"}}}, "local"),
    "an address that is none": (
        {"tinkerAPI": {"baseURL": "own"}},
        "'own' is no address: begin it with http:// or https://",
    ),
    "two volumes": (volume(emptyDir={}, persistentVolumeClaim={"claimName": "x"}), "exactly one"),
    "no volume": (volume(), "exactly one"),
    "one setting said twice": (
        {"checkpoints": {"every": 5}, "config": {"tinker": {"save_checkpoint_interval": 6}}},
        "one setting",
    ),
    "a deadline without a unit": (
        {"deadlines": {"startup": "90"}},
        "'90' is no duration; write it like 90s, 10m or 1h30m",
    ),
    "a deadline in words": ({"deadlines": {"startup": "10 minutes"}}, "'10 minutes' is no duration"),
    "no deadline at all": ({"deadlines": {"startup": ""}}, "'' is no duration"),
    "a store of a kind that does not exist": ({"apiServer": {"store": {"type": "Postgres"}}}, "type"),
    "endless retries": ({"trainer": {"backoffLimit": 1000}}, "backoffLimit"),
}


ONLY_OF_A_CLUSTER: dict[str, dict[str, Any]] = {
    "text for a number in one environment": environment(config={"max_num_workers": "many"}),
    "unknown keys of tinker, which the operator judges": {"config": {"tinker": {"lora_rnk": 3}}},
    "a local model that is none": {"tinkerAPI": {"local": {"model": "tinny"}}},
    "a model that the local server does not have": {"config": {"openai": [{"model_name": "Qwen/Qwen3-8B"}]}},
    "a misspelt key of a pod": environment(podTemplate={"spec": {"nodeSelecter": {"a": "b"}}}),
    "a misspelt key of a container": environment(
        podTemplate={"spec": {"containers": [{"name": "environment", "resorces": {}}]}}
    ),
    "a misspelt key of a volume": volume(persistentVolumeClaim={"claimNam": "store"}),
    "a claim without a name": volume(persistentVolumeClaim={}),
    "a claim of a name that none can have": volume(persistentVolumeClaim={"claimName": "My_Claim"}),
    "a size that is none": volume(emptyDir={"sizeLimit": "10GB"}),
    "a quantity that is none": environment(
        podTemplate={"spec": {"containers": [{"name": "environment", "resources": {"limits": {"cpu": "lots"}}}]}}
    ),
    "a Secret of a name that none can have": {"tinkerAPI": {"keySecretRef": {"name": "My Secret"}}},
    "a key that no Secret can have": {"tinkerAPI": {"keySecretRef": {"name": "tinker", "key": "a/b"}}},
    "an address without a host": {"tinkerAPI": {"baseURL": "http://"}},
    "an image with a scheme": environment(image="https://ghcr.io/x/y:1"),
    "an image in capitals": environment(image="MyImage:1"),
    "an image with a space": environment(image="my image:1"),
    "a program without a name": environment(command=["", "x"]),
    "no time to start": {"deadlines": {"startup": "0s"}},
    "a start that takes for ever": {"deadlines": {"startup": "99999999999999999d"}},
    "an environment that begins nothing": env(max_num_workers=0),
}
"""Taken by the API server, stopped by the operator before anything is made; refused where a file is read."""

NAMES: list[tuple[str, str, bool]] = [
    ("r" * 36, "digits", True),
    ("r" * 37, "digits", False),
    ("with.dots", "digits", False),
    ("r" * 12, "e" * 30, True),
]
"""Name of a run, name of its environment, and whether they fit."""
