"""The built-in node is a real one: what runs rely on is there."""

from __future__ import annotations

from typing import Any

import pytest

from real_cluster import DEPLOYMENT, SYSTEM, Namespace, RealCluster

RESTRICTED: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
POD_SECURITY: dict[str, Any] = {"runAsNonRoot": True, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}}


def pod(name: str, image: str, command: list[str], **spec: Any) -> dict[str, Any]:
    mounts = [{"name": "tmp", "mountPath": "/tmp"}, *spec.pop("mounts", [])]
    volumes = [{"name": "tmp", "emptyDir": {}}, *spec.pop("volumes", [])]
    container = {
        "name": "main",
        "image": image,
        "command": command,
        "securityContext": RESTRICTED,
        "volumeMounts": mounts,
    }
    container |= spec.pop("container", {})
    body = {"restartPolicy": "Never", "securityContext": POD_SECURITY, "containers": [container], "volumes": volumes}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 1, **body, **spec},
    }


def phase(space: Namespace, name: str) -> str:
    found = space.get("pods", name)
    return str(found["status"].get("phase")) if found else "gone"


def image(tag: str, name: str) -> str:
    return f"localhost/tinker-atropos/{name}:{tag}"


def test_a_service_is_reached_by_its_name(bare_namespace: Namespace, images: str) -> None:
    space = bare_namespace
    server = pod("server", image(images, "trainer"), ["python", "-m", "http.server", "8000", "--directory", "/tmp"])
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8000}]},
    }
    ask = f"""
import time, urllib.request
for _ in range(60):
    try:
        print(urllib.request.urlopen("http://server.{space.name}.svc.cluster.local/", timeout=2).status)
        break
    except OSError:
        time.sleep(0.5)
"""
    space.apply(server, service, pod("client", image(images, "trainer"), ["python", "-c", ask]))
    space.eventually("the client's end", lambda: phase(space, "client") == "Succeeded", 60)
    assert space.kubectl("logs", "client").strip() == "200"
    assert space.kubectl("exec", "server", "--", "id", "-u").strip() == "65532"


def test_a_claim_outlives_its_pod_and_takes_the_pod_s_group(bare_namespace: Namespace, images: str) -> None:
    space = bare_namespace
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    mounted = {
        "mounts": [{"name": "data", "mountPath": "/data"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
    }
    write = ["sh", "-c", "echo kept > /data/file"]
    space.apply(claim, pod("writer", image(images, "trainer"), write, **mounted))
    space.eventually("the writer's end", lambda: phase(space, "writer") == "Succeeded", 60)
    space.kubectl("delete", "pod", "writer")
    space.apply(pod("reader", image(images, "trainer"), ["cat", "/data/file"], **mounted))
    space.eventually("the reader's end", lambda: phase(space, "reader") == "Succeeded", 60)
    assert space.kubectl("logs", "reader").strip() == "kept"


def test_memory_beyond_the_limit_ends_a_container(bare_namespace: Namespace, images: str) -> None:
    space = bare_namespace
    greedy = ["python", "-c", "x = bytearray(400 << 20); print(len(x))"]
    limited = {"container": {"resources": {"limits": {"memory": "64Mi"}}}}
    space.apply(pod("greedy", image(images, "trainer"), greedy, **limited))
    space.eventually("the end of the greedy pod", lambda: phase(space, "greedy") == "Failed", 60)
    state = space.must_get("pods", "greedy")["status"]["containerStatuses"][0]["state"]["terminated"]
    assert state["reason"] == "OOMKilled"


def test_an_image_that_is_nowhere_fails_at_once_with_the_pull_error(bare_namespace: Namespace) -> None:
    space = bare_namespace
    space.apply(pod("lost", "registry.invalid/nothing:1", ["true"]))

    def waiting() -> dict[str, Any]:
        states = space.must_get("pods", "lost")["status"].get("containerStatuses", [])
        return dict(states[0]["state"].get("waiting", {})) if states else {}

    seen = space.eventually(
        "a pull error", lambda: (w := waiting()).get("reason") in ("ErrImagePull", "ImagePullBackOff") and w, 30
    )
    assert "registry.invalid/nothing:1" in seen["message"]


PROGRAMS = [
    ("operator", ["tinker-atropos-operator", "--help"]),
    ("api-server", ["tinker-atropos", "trajectories", "--help"]),
    ("api-server", ["tinker-atropos", "gateway", "--help"]),
    ("api-server", ["python", "-c", "import tinker_atropos.trajectories.flat"]),
    ("trainer", ["tinker-atropos", "trainer", "--help"]),
    ("environment", ["tinker-atropos", "relay", "--help"]),
    ("environment", ["python", "-c", "import atroposlib.envs.base"]),
    ("local-tinker", ["tinker-atropos", "local-tinker", "--help"]),
]


@pytest.mark.parametrize(("name", "command"), PROGRAMS, ids=[f"{n}-{' '.join(c[:2])}" for n, c in PROGRAMS])
def test_programs_run_without_root_on_a_read_only_file_system(
    bare_namespace: Namespace, images: str, name: str, command: list[str]
) -> None:
    bare_namespace.apply(pod("program", image(images, name), command))
    ended = bare_namespace.eventually(
        "the program's end", lambda: (p := phase(bare_namespace, "program")) in ("Succeeded", "Failed") and p, 120
    )
    assert ended == "Succeeded", bare_namespace.kubectl("logs", "program")


FOREIGN = [
    ("operator", "jax grpc tinker numpy"),
    ("api-server", "jax kopf atroposlib"),
    ("trainer", "jax kopf aiohttp"),
]


@pytest.mark.parametrize(("name", "modules"), FOREIGN, ids=[name for name, _ in FOREIGN])
def test_images_hold_only_what_their_programs_need(
    bare_namespace: Namespace, images: str, name: str, modules: str
) -> None:
    find = f"import importlib.util as u; print([m for m in '{modules}'.split() if u.find_spec(m)])"
    bare_namespace.apply(pod("look", image(images, name), ["python", "-c", find]))
    bare_namespace.eventually("the pod's end", lambda: phase(bare_namespace, "look") == "Succeeded", 60)
    assert bare_namespace.kubectl("logs", "look").strip() == "[]"


def test_the_operator_becomes_ready(operator: RealCluster) -> None:
    deployment = operator.reader.get("deployments", DEPLOYMENT, SYSTEM)
    assert deployment is not None
    assert deployment["status"]["readyReplicas"] == 1
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"].endswith(operator.tag)
