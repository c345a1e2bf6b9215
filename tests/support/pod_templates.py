"""What pod templates may hold: quantities and templates on which a reader of files and a real API server must agree."""

from __future__ import annotations

from typing import Any

QUANTITIES: dict[str, tuple[Any, bool]] = {
    "thousandths": ("500m", True),
    "a whole number": (2, True),
    "a fraction": (0.5, True),
    "a fraction as text": ("0.5", True),
    "nothing before the point": (".5", True),
    "nothing behind the point": ("5.", True),
    "a plus": ("+5", True),
    "powers of two": ("4Gi", True),
    "the smallest of them": ("100Ki", True),
    "the largest of them": ("1Ei", True),
    "powers of ten": ("100M", True),
    "a small k": ("100k", True),
    "an exponent": ("1e3", True),
    "a large exponent letter": ("1E3", True),
    "an exponent as number": (1e3, True),
    "a negative exponent": ("1000e-1", True),
    "an exponent with a plus": ("1e+3", True),
    "E alone": ("1E", True),
    "millionths": ("1000000u", True),
    "billionths": ("1000000000n", True),
    "nothing at all": (0, True),
    "a space behind": ("4Gi ", True),
    "words": ("lots", False),
    "bytes with their letter": ("1Gb", False),
    "bytes in full": ("512MB", False),
    "bytes of two letters too many": ("4GiB", False),
    "small letters": ("4gi", False),
    "a large K": ("100K", False),
    "a space": ("4 Gi", False),
    "a comma": ("0,5", False),
    "nothing": ("", False),
    "two points": ("1.2.3", False),
    "both": ("1e3Gi", False),
    "an exponent without a number": ("1e", False),
    "a broken exponent": ("1e1.5", False),
    "less than nothing": ("-1", False),
    "cores": ("2 cores", False),
    "true": (True, False),
    "other digits": ("٤", False),
}
"""Value, and whether it may be asked of a node."""


def resources(**resources: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "environment", "resources": resources}]}}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a quantity of words": (
        resources(limits={"cpu": "lots"}),
        "spec.containers[0].resources.limits.cpu: 'lots' is no quantity; write it like 500m, 2 or 4Gi",
    ),
    "a quantity with a slip": (
        resources(requests={"memory": "1Gb"}),
        "spec.containers[0].resources.requests.memory: '1Gb' is no quantity; did you mean 1Gi?",
    ),
    "less than nothing": (
        resources(requests={"cpu": "-1"}),
        "spec.containers[0].resources.requests.cpu: '-1' is below 0; write it like 500m, 2 or 4Gi",
    ),
    "a limit below its request": (
        resources(requests={"memory": "2Gi"}, limits={"memory": "1500M"}),
        "spec.containers[0].resources.limits.memory: '1500M' is below the request '2Gi'; "
        "raise it, or lower the request",
    ),
    "a limit below its request in another unit": (
        resources(requests={"cpu": 1}, limits={"cpu": "900m"}),
        "spec.containers[0].resources.limits.cpu: '900m' is below the request 1; raise it, or lower the request",
    ),
    "a resource of no name": (
        resources(limits={"gpu": 1}),
        "spec.containers[0].resources.limits.gpu: is no resource of a container; use cpu, memory, ephemeral-storage, "
        "or a device such as nvidia.com/gpu",
    ),
    "a misspelt resource": (
        resources(limits={"memmory": "1Gi"}),
        "spec.containers[0].resources.limits.memmory: is no resource of a container; did you mean 'memory'?",
    ),
    "a device without a limit": (
        resources(requests={"nvidia.com/gpu": 1}),
        "spec.containers[0].resources.requests.nvidia.com/gpu: is a device, whose limit must be the same; "
        "write limits: {nvidia.com/gpu: 1} beside it",
    ),
    "half a device": (
        resources(limits={"nvidia.com/gpu": "0.5"}),
        "spec.containers[0].resources.limits.nvidia.com/gpu: '0.5' is no whole number; devices are whole",
    ),
    "a misspelt key of a pod": (
        {"spec": {"nodeSelectr": {"a": "b"}}},
        "spec.nodeSelectr: unknown key; did you mean 'nodeSelector'?",
    ),
    "a mount without a path": (
        {
            "spec": {
                "containers": [{"name": "environment", "volumeMounts": [{"name": "tmp"}]}],
            }
        },
        "spec.containers[0].volumeMounts[0].mountPath: is missing; give it a value",
    ),
    "a variable without a name": (
        {"spec": {"containers": [{"name": "environment", "env": [{"value": "b"}]}]}},
        "spec.containers[0].env[0].name: is missing; give it a value",
    ),
}
"""Templates of an environment that the API server refuses too, and what is said of them behind the template's field."""
