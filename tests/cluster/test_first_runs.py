"""The quick start to its end, and beside it runs that cannot work: each says why."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from cluster_runs import (
    GROUPS_PER_STEP,
    at_step,
    complete,
    condition,
    forwarded,
    manifest,
    secret_value,
    status,
)
from real_cluster import Namespace


@pytest.fixture(scope="module")
def guarded_tinker(shared: Namespace) -> str:
    """A Tinker server that takes one key only; its address."""
    tag = shared.cluster.tag
    container = {
        "name": "local-tinker",
        "image": f"localhost/tinker-atropos/local-tinker:{tag}",
        "args": ["local-tinker", "--host=0.0.0.0", "--port=8003", "--data=/tmp/data", "--api-key=tml-right"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "guarded", "labels": {"app": "guarded"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}],
        },
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "guarded"},
        "spec": {"selector": {"app": "guarded"}, "ports": [{"port": 8003}]},
    }
    key = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "wrong-key"},
        "stringData": {"api-key": "tml-wrong"},
    }
    shared.apply(pod, service, key)
    return "http://guarded:8003"


@pytest.fixture(scope="module")
def started(shared: Namespace, guarded_tinker: str) -> Namespace:
    """All of them are applied at once: while the one learns, the others' deadlines pass."""
    image = manifest("no-image")
    image["spec"]["environments"][0]["image"] = "registry.invalid/environment:9"
    image["spec"]["deadlines"] = {"startup": "90s"}
    secret = manifest("no-secret")
    secret["spec"]["tinkerAPI"] = {"keySecretRef": {"name": "absent", "key": "api-key"}}
    key = manifest("wrong-key")
    key["spec"]["tinkerAPI"] = {"keySecretRef": {"name": "wrong-key", "key": "api-key"}, "baseURL": guarded_tinker}
    key["spec"]["config"]["openai"] = [{"model_name": "tinker-atropos/tiny"}]
    typo = manifest("typo")
    typo["spec"]["config"]["tinker"]["learning_rat"] = 0.1
    shared.apply(manifest("quickstart"), image, secret, key, typo)
    return shared


def test_the_quick_start_shows_its_progress(started: Namespace) -> None:
    space = started
    at_step(space, "quickstart", 3)
    line = space.kubectl("get", "tar", "quickstart").splitlines()
    assert line[0].split() == ["NAME", "PHASE", "STEP", "REWARD", "ENVS", "AGE"]
    assert line[1].split()[4] == "1/1"


@pytest.mark.usefixtures("stories")  # while these wait for their deadlines, the further runs begin
def test_what_cannot_work_says_so(started: Namespace) -> None:
    space = started

    def failed(name: str) -> dict[str, Any] | None:
        found = condition(space, name, "Failed")
        return found if found.get("status") == "True" else None

    space.eventually(
        "the pull error named",
        lambda: (
            "registry.invalid/environment:9" in condition(space, "no-image", "EnvironmentsReady").get("message", "")
        ),
        200,
    )
    refused = space.eventually("the refused key", lambda: failed("wrong-key"), 240)
    assert refused["reason"] == "KeyRefused" and "Secret wrong-key" in refused["message"]
    missing = space.eventually("the missing Secret", lambda: failed("no-secret"), 240)
    assert missing["reason"] == "SecretMissing" and "absent" in missing["message"]
    pulled = space.eventually("the startup deadline", lambda: failed("no-image"), 240)
    assert pulled["reason"] == "StartupDeadlineExceeded" and "registry.invalid/environment:9" in pulled["message"]
    assert {status(space, name)["phase"] for name in ("no-image", "no-secret", "wrong-key")} == {"Failed"}

    stalled = condition(space, "typo", "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidConfig")
    assert "did you mean 'learning_rate'?" in stalled["message"]
    assert space.list("deployments", "tinker-atropos.dev/run=typo") == []


def test_the_quick_start_to_complete(started: Namespace) -> None:
    space = started
    end = complete(space, "quickstart")
    assert end["step"] == end["totalSteps"] == 40 and end["progress"] == "40/40"
    assert float(end["reward"]["mean"]) >= 0.9
    assert end["checkpoint"]["path"].startswith("tinker://") and end["checkpoint"]["step"] == 40
    assert end["samplerWeights"].endswith("/sampler_weights/final")
    # A batch that teaches nothing any more is a step too; its groups are dropped with that reason.
    assert 30 * GROUPS_PER_STEP <= end["ledger"]["trained"] <= 40 * GROUPS_PER_STEP
    assert space.kubectl("wait", "--for=condition=Complete", "tar/quickstart", "--timeout=5s")

    key = secret_value(space, "tar-quickstart-token", "local-tinker-api-key")
    with forwarded(space, "tar-quickstart-tinker", 8003) as url:
        sample = (
            "import tinker, sys\n"
            f"client = tinker.ServiceClient(base_url={url!r}, api_key={key!r})\n"
            f"sampling = client.create_sampling_client(model_path={end['samplerWeights']!r}).result()\n"
            "prompt, parameters = tinker.ModelInput.from_ints([5, 6]), tinker.SamplingParams(max_tokens=4)\n"
            "answer = sampling.sample(prompt, 1, parameters).result()\n"
            "print(len(answer.sequences))\n"
            "client.close('success').result()\n"
        )
        done = subprocess.run([sys.executable, "-c", sample], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "1", done.stderr
