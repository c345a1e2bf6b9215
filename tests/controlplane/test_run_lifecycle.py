"""A run from creation to its end, and back to nothing, on a real API server; pods are played by hand."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from typing import Any

import pytest

from cluster_world import World, eventually, stamp
from tinker_atropos.protocol.exit_codes import KEY_REFUSED, STATE_LOST
from tinker_atropos.protocol.progress import ProgressReport
from tinker_atropos_operator import kube as api
from tinker_atropos_operator.kube import ApiError
from tinker_atropos_operator.plan.progress import Heard

ACCOUNT = "system:serviceaccount:tinker-system:tinker-atropos-operator"


def condition(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(entry for entry in status["conditions"] if entry["type"] == name)


def last_word(uid: str, **fields: Any) -> str:
    """A trainer's termination message."""
    return json.dumps(
        {"runUid": uid, "epoch": 1, "attempt": 1, "phase": "Complete", "step": 5, "totalSteps": 5, **fields}
    )


async def test_a_run_becomes_its_objects_and_each_belongs_to_it(world: World, operator: Any) -> None:
    run = await world.create_run("first")
    children = await world.wait_for_children("first", 8)
    assert sorted(children) == [
        ("ConfigMap", "tar-first-config"),
        ("Deployment", "tar-first-api"),
        ("Deployment", "tar-first-env-digits"),
        ("Deployment", "tar-first-tinker"),
        ("Job", "tar-first-trainer-1"),
        ("Secret", "tar-first-token"),
        ("Service", "tar-first-api"),
        ("Service", "tar-first-tinker"),
    ]
    for (kind, name), body in children.items():
        owner = body["metadata"]["ownerReferences"]
        assert [entry["uid"] for entry in owner] == [run["metadata"]["uid"]], (kind, name)
        assert owner[0]["controller"] and owner[0]["blockOwnerDeletion"], (kind, name)
        assert "finalizers" not in body["metadata"] or kind == "Job", (kind, name)
        annotations = body["metadata"].get("annotations", {})
        assert not [key for key in annotations if "kopf" in key], (kind, name)
    live = await world.run("first")
    assert "finalizers" not in live["metadata"]
    assert not [key for key in live["metadata"].get("annotations", {}) if "kopf" in key]
    # The namespace enforces `restricted`: that pods exist shows that they pass.
    for part in ("api-server", "local-tinker", "environment", "trainer"):
        await world.pod("first", part)


async def test_a_run_is_followed_to_complete_and_cleared_away(world: World, operator: Any) -> None:
    run = await world.create_run("whole")
    uid = run["metadata"]["uid"]
    status = await world.phase("whole", "Starting")
    assert status["progress"] == "0/5" and status["environmentsReady"] == "0/1"
    assert "not ready: the local Tinker server, the API server, environment digits 0/1" in status["message"]
    trainer = await world.start_everything("whole")
    status = await world.status_when("whole", "all parts", lambda s: s["environmentsReady"] == "1/1")
    status = await world.status_when(
        "whole", "a running trainer", lambda s: condition(s, "TrainerRunning")["status"] == "True"
    )
    assert condition(status, "AtroposAPIReady")["status"] == "True"
    checkpoint = {"path": "tinker://x/weights/5", "step": 5, "time": "2026-01-01T00:00:00Z"}
    word = last_word(
        uid, reward={"mean": 0.9}, checkpoint=checkpoint, samplerWeights="tinker://x/sampler_weights/final"
    )
    await world.finish(trainer, 0, word)
    status = await world.phase("whole", "Complete")
    assert status["step"] == status["totalSteps"] == 5
    assert status["progress"] == "5/5"
    assert status["reward"]["mean"] == 0.9
    assert status["checkpoint"] == checkpoint
    assert status["samplerWeights"] == "tinker://x/sampler_weights/final"
    assert status["attempts"][0]["reason"] == "Completed" and status["attempts"][0]["epoch"] == 1
    assert condition(status, "Ready")["status"] == "True"
    assert condition(status, "Stalled")["status"] == "False"

    async def only_what_lasts() -> bool:
        left = {key for key in await world.owned("whole") if key[0] in ("Deployment", "Service")}
        return left == {("Deployment", "tar-whole-tinker"), ("Service", "tar-whole-tinker")}

    await eventually("environments and API server gone", only_what_lasts)
    assert await world.pods("whole", "local-tinker"), "the final weights live there"


async def test_terminal_is_terminal(world: World, operator: Any, start_operator: Any) -> None:
    run = await world.create_run("done")
    trainer = await world.start_everything("done")
    await world.finish(trainer, 0, last_word(run["metadata"]["uid"], samplerWeights="tinker://x/sampler_weights/final"))
    before = await world.phase("done", "Complete")
    await eventually("clearing away", lambda: _gone(world, api.DEPLOYMENTS, "tar-done-api"))
    job = await world.kube.get(api.JOBS, world.namespace, "tar-done-trainer-1")
    await world.kube.delete(api.JOBS, world.namespace, "tar-done-trainer-1", job["metadata"]["uid"])
    changed = await world.patch_run("done", {"config": {"env": {"total_steps": 50}}})
    generation = changed["metadata"]["generation"]
    status = await world.status_when("done", "the change", lambda s: s["observedGeneration"] == generation)
    told = "the run is over: a change of total_steps has no effect; make a new run"
    assert status["message"] == f"{before['message']}; {told}"
    ignored = {"observedGeneration", "message", "conditions"}
    assert {key: value for key, value in status.items() if key not in ignored} == {
        key: value for key, value in before.items() if key not in ignored
    }
    assert [{**entry, "observedGeneration": 1} for entry in status["conditions"]] == before["conditions"]

    async def event() -> bool:
        return any((entry["reason"], entry["note"]) == ("RunIsOver", told) for entry in await world.list(api.EVENTS))

    await eventually("an Event", event)
    await operator.end()
    await start_operator()
    await asyncio.sleep(1.5)
    assert (await world.run("done"))["status"] == status
    kinds = {key for key in await world.owned("done") if key[0] in ("Job", "Deployment")}
    assert kinds == {("Deployment", "tar-done-tinker")}


async def _gone(world: World, resource: api.Resource, name: str) -> bool:
    try:
        await world.kube.get(resource, world.namespace, name)
    except ApiError as error:
        return error.not_found
    return False


async def test_deleting_a_run_removes_everything_within_seconds(world: World, operator: Any) -> None:
    run = await world.create_run("short")
    await world.start_everything("short")
    await world.phase("short", "Starting")
    await world.kube.delete(api.RUNS, world.namespace, "short", run["metadata"]["uid"])

    async def nothing() -> bool:
        return not await world.owned("short")

    await eventually("nothing left of the run", nothing)


async def test_nothing_is_written_while_nothing_changes_and_an_operator_restart_changes_nothing(
    world: World, operator: Any, start_operator: Any
) -> None:
    await world.create_run("idle")
    await world.start_everything("idle")
    await world.status_when("idle", "all parts", lambda s: condition(s, "TrainerRunning")["status"] == "True")
    await asyncio.sleep(1.5)
    before = {key: body["metadata"]["resourceVersion"] for key, body in (await world.owned("idle")).items()}
    before["Run", "idle"] = (await world.run("idle"))["metadata"]["resourceVersion"]
    since = dt.datetime.now(dt.UTC)
    operator.operator.queue.add((world.namespace, "idle"))
    await asyncio.sleep(3)
    assert [write for write in world.writes(ACCOUNT, since) if f"/{world.namespace}/" in write] == []
    await operator.end()
    await start_operator()
    await asyncio.sleep(2)
    after = {key: body["metadata"]["resourceVersion"] for key, body in (await world.owned("idle")).items()}
    after["Run", "idle"] = (await world.run("idle"))["metadata"]["resourceVersion"]
    assert after == before


@pytest.mark.parametrize(
    ("resource", "name"),
    [(api.DEPLOYMENTS, "tar-heal-env-digits"), (api.SERVICES, "tar-heal-api"), (api.CONFIG_MAPS, "tar-heal-config")],
)
async def test_an_object_that_somebody_deletes_comes_back(
    world: World, operator: Any, resource: api.Resource, name: str
) -> None:
    await world.create_run("heal")
    old = (await world.wait_for_children("heal", 8))[resource.kind, name]
    await world.kube.delete(resource, world.namespace, name, old["metadata"]["uid"])

    async def back() -> bool:
        try:
            return (await world.kube.get(resource, world.namespace, name))["metadata"]["uid"] != old["metadata"]["uid"]
        except ApiError:
            return False

    await eventually(f"{name} again", back)


async def test_what_somebody_changes_is_put_right(world: World, operator: Any) -> None:
    await world.create_run("drift")
    await world.wait_for_children("drift", 8)
    await world.kube.request(
        "PATCH",
        api.DEPLOYMENTS.path(world.namespace, "tar-drift-env-digits"),
        body={"spec": {"replicas": 7}},
        content_type="application/merge-patch+json",
    )

    async def replicas() -> bool:
        live = await world.kube.get(api.DEPLOYMENTS, world.namespace, "tar-drift-env-digits")
        return bool(live["spec"]["replicas"] == 1)

    await eventually("one replica again", replicas)


async def test_replicas_and_steps_change_while_it_runs_without_touching_the_rest(world: World, operator: Any) -> None:
    await world.create_run("scale")
    before = await world.wait_for_children("scale", 8)
    trainer = await world.start_everything("scale")
    environment = dict((await world.run("scale"))["spec"]["environments"][0], replicas=3)
    await world.patch_run("scale", {"environments": [environment], "config": {"env": {"total_steps": 9}}})
    status = await world.status_when("scale", "1/3", lambda s: s["environmentsReady"] == "1/3")
    status = await world.status_when("scale", "0/9", lambda s: s["progress"] == "0/9")
    assert status["observedGeneration"] == (await world.run("scale"))["metadata"]["generation"]
    live = await world.owned("scale")
    generations = {key: body["metadata"].get("generation") for key, body in live.items() if key[0] != "Pod"}
    changed = {key for key, body in before.items() if body["metadata"].get("generation") != generations[key]}
    assert changed == {("Deployment", "tar-scale-env-digits")}
    assert "total_steps: 9" in live["ConfigMap", "tar-scale-config"]["data"]["run.yaml"]
    assert (await world.pod("scale", "trainer"))["metadata"]["uid"] == trainer["metadata"]["uid"]


async def test_two_quick_changes_end_with_the_last(world: World, operator: Any) -> None:
    await world.create_run("quick")
    await world.wait_for_children("quick", 8)
    environment = (await world.run("quick"))["spec"]["environments"][0]
    for replicas in (2, 3, 4, 5):
        await world.patch_run("quick", {"environments": [dict(environment, replicas=replicas)]})
    await world.status_when("quick", "0/5", lambda s: s["environmentsReady"] == "0/5")
    live = await world.kube.get(api.DEPLOYMENTS, world.namespace, "tar-quick-env-digits")
    assert live["spec"]["replicas"] == 5


async def test_an_unknown_key_stops_the_run_before_anything_is_made(world: World, operator: Any) -> None:
    await world.create_run("typo", config={"tinker": {"lora_rnk": 4}})
    status = await world.phase("typo", "Stalled")
    stalled = condition(status, "Stalled")
    assert stalled["status"] == "True" and stalled["reason"] == "InvalidConfig"
    assert "lora_rnk" in stalled["message"] and "lora_rank" in stalled["message"]
    assert await world.owned("typo") == {}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ({"spec": {"nodeSelectr": {"a": "b"}}}, "spec.nodeSelectr: unknown key; did you mean 'nodeSelector'?"),
        (
            {"spec": {"containers": [{"name": "environment", "resources": {"limits": {"cpu": "lots"}}}]}},
            "spec.containers[0].resources.limits.cpu: 'lots' is no quantity; write it like 500m, 2 or 4Gi",
        ),
        (
            {"spec": {"containers": [{"name": "environment", "volumeMounts": [{"name": "no", "mountPath": "/x"}]}]}},
            'spec.containers[0].volumeMounts[0].name: Not found: "no"',
        ),
        ({"metadata": {"labels": {"a": "b c"}}}, "metadata.labels: Invalid value"),
    ],
)
async def test_a_pod_template_that_cannot_be_is_refused_before_anything_is_made(
    world: World, operator: Any, template: dict[str, Any], said: str
) -> None:
    environment = {"name": "digits", "command": ["python"], "podTemplate": template}
    await world.create_run("overlay", environments=[environment])
    status = await world.phase("overlay", "Stalled")
    assert condition(status, "Stalled")["reason"] == "InvalidPodTemplate"
    assert f"your config: spec.environments[0].podTemplate.{said}" in status["message"]
    assert await world.owned("overlay") == {}
    await world.patch_run("overlay", {"environments": [{"name": "digits", "command": ["python"]}]})
    await world.phase("overlay", "Starting")


async def test_a_pod_template_reaches_the_pods(world: World, operator: Any) -> None:
    template = {
        "metadata": {"annotations": {"team": "red"}},
        "spec": {
            "nodeSelector": {"disk": "fast"},
            "containers": [{"name": "environment", "resources": {"requests": {"cpu": "20m"}}}],
        },
    }
    environment = {"name": "digits", "command": ["python"], "podTemplate": template}
    trainer = {"spec": {"nodeSelector": {"disk": "slow"}, "containers": [{"name": "trainer", "env": [{"name": "A"}]}]}}
    await world.create_run("laid", environments=[environment], trainer={"podTemplate": trainer})
    pod = await world.pod("laid", "environment")
    assert pod["spec"]["nodeSelector"] == {"disk": "fast"}
    assert pod["metadata"]["annotations"]["team"] == "red"
    assert pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "20m"
    assert pod["spec"]["containers"][0]["args"] == ["serve", "--config", "/etc/tinker-atropos/environment.yaml"]
    pod = await world.pod("laid", "trainer")
    assert pod["spec"]["nodeSelector"] == {"disk": "slow"}
    assert {"name": "A"} in pod["spec"]["containers"][0]["env"]


async def test_somebody_elses_object_is_not_taken_over(world: World, operator: Any) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "tar-theirs-api", "namespace": world.namespace},
        "spec": {"ports": [{"port": 80}]},
    }
    await world.kube.create(api.SERVICES, world.namespace, foreign)
    await world.create_run("theirs")
    status = await world.phase("theirs", "Stalled")
    assert condition(status, "Stalled")["reason"] == "NameTaken"
    assert "tar-theirs-api" in status["message"]
    live = await world.kube.get(api.SERVICES, world.namespace, "tar-theirs-api")
    assert "ownerReferences" not in live["metadata"]


async def test_a_foreign_secret_of_that_name_is_not_taken_over(world: World, operator: Any) -> None:
    foreign = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "tar-secretive-token", "namespace": world.namespace},
        "stringData": {"token": "theirs"},
    }
    await world.kube.create(api.SECRETS, world.namespace, foreign)
    await world.create_run("secretive")
    status = await world.phase("secretive", "Stalled")
    assert condition(status, "Stalled")["reason"] == "NameTaken"
    assert "tar-secretive-token" in status["message"]


async def test_a_wrong_image_is_said_with_the_pull_error(world: World, operator: Any) -> None:
    await world.create_run("image", deadlines={"startup": "15s"})
    pod = await world.pod("image", "environment")
    await world.set_waiting(pod, "environment", "ImagePullBackOff", 'Back-off pulling image "nowhere/none:1"')
    status = await world.phase("image", "Stalled")
    assert condition(status, "EnvironmentsReady")["reason"] == "ImagePullFailed"
    assert 'Back-off pulling image "nowhere/none:1"' in status["message"]
    status = await world.phase("image", "Failed", 60)
    assert condition(status, "Failed")["reason"] == "StartupDeadlineExceeded"
    assert 'Back-off pulling image "nowhere/none:1"' in condition(status, "Failed")["message"]

    async def stopped() -> bool:
        return not {key for key in await world.owned("image") if key[0] in ("Job", "Pod") and "tinker" not in key[1]}

    await eventually("children stopped", stopped)


async def test_a_missing_secret_is_named_and_a_late_one_is_taken(world: World, operator: Any) -> None:
    await world.create_run("keyless", tinkerAPI={"keySecretRef": {"name": "tinker"}})
    pod = await world.pod("keyless", "trainer")
    await world.set_waiting(pod, "trainer", "CreateContainerConfigError", 'secret "tinker" not found')
    status = await world.phase("keyless", "Stalled")
    assert condition(status, "Stalled")["reason"] == "SecretMissing"
    assert "kubectl create secret generic tinker" in status["message"]
    for part in ("api-server", "environment"):
        await world.make_ready("keyless", part)
    await world.make_ready("keyless", "trainer")
    await world.phase("keyless", "Starting")


async def test_a_run_that_fails_in_silence_is_cleared_away(world: World, operator: Any) -> None:
    """Nothing but time ends this one: no event comes that would bring it up again."""
    await world.create_run("silent", deadlines={"startup": "4s"}, tinkerAPI={"baseURL": "http://nowhere.invalid"})
    await world.phase("silent", "Failed")

    async def cleared() -> bool:
        return {key[0] for key in await world.owned("silent")} == {"ConfigMap", "Secret"}

    await eventually("everything that costs something gone", cleared, 15)


async def test_a_refused_key_fails_the_run_at_once(world: World, operator: Any) -> None:
    run = await world.create_run("refused", tinkerAPI={"keySecretRef": {"name": "tinker", "key": "key"}})
    pod = await world.make_ready("refused", "trainer")
    word = last_word(run["metadata"]["uid"], epoch=0, phase="Failed", step=0, message="401 from the Tinker API")
    await world.finish(pod, KEY_REFUSED, word)
    status = await world.phase("refused", "Failed")
    failed = condition(status, "Failed")
    assert failed["reason"] == "KeyRefused"
    assert "Secret tinker (key key)" in failed["message"] and "401 from the Tinker API" in failed["message"]
    assert condition(status, "Ready")["status"] == "False" and condition(status, "Stalled")["status"] == "True"


async def test_a_trainer_that_fails_is_replaced_and_the_history_tells_it(world: World, operator: Any) -> None:
    run = await world.create_run("again")
    uid = run["metadata"]["uid"]
    first = await world.start_everything("again")
    word = last_word(uid, phase="Training", step=2, checkpoint={"path": "tinker://x/weights/2", "step": 2, "time": ""})
    await world.finish(first, 137, word)
    status = await world.status_when("again", "step 2", lambda s: s.get("step") == 2)
    assert status["phase"] == "Running"
    second = await world.pod("again", "trainer", but={first["metadata"]["name"]})
    await world.make_ready("again", "trainer")
    final = last_word(uid, epoch=2, samplerWeights="tinker://x/sampler_weights/final")
    await world.finish(second, 0, final)
    status = await world.phase("again", "Complete")
    assert [(entry["epoch"], entry["reason"]) for entry in status["attempts"]] == [
        (1, "ExitStatus137"),
        (2, "Completed"),
    ]


async def test_a_trainer_that_ended_without_its_last_word_is_followed_by_another_attempt(
    world: World, operator: Any
) -> None:
    await world.create_run("quiet", trainer={"backoffLimit": 1})
    pod = await world.start_everything("quiet")
    await world.finish(pod, 0)
    await world.status_when("quiet", "attempt 2", lambda s: s["trainerAttempt"] == 2, 40)
    second = await world.pod("quiet", "trainer")
    assert second["metadata"]["labels"]["tinker-atropos.dev/attempt"] == "2"
    await world.make_ready("quiet", "trainer")
    await world.finish(second, 0)
    status = await world.phase("quiet", "Failed", 40)
    assert condition(status, "Failed")["reason"] == "TrainerEndedEarly"


async def test_the_loss_of_the_local_tinker_servers_volume_fails_the_run(world: World, operator: Any) -> None:
    run = await world.create_run("lost")
    trainer = await world.start_everything("lost")
    await world.status_when("lost", "the pod with the weights", lambda s: s.get("localTinker"))
    word = last_word(run["metadata"]["uid"], phase="Training", step=1)
    await world.finish(trainer, 1, word)
    await world.status_when("lost", "step 1", lambda s: s.get("step") == 1)
    server = await world.pod("lost", "local-tinker")
    await world.kube.delete(api.PODS, world.namespace, server["metadata"]["name"], server["metadata"]["uid"])
    await world.make_ready("lost", "local-tinker")
    status = await world.phase("lost", "Failed")
    assert condition(status, "Failed")["reason"] == "LocalTinkerLost"
    assert server["metadata"]["name"] in status["message"]

    async def cleared() -> bool:
        return not [key for key in await world.owned("lost") if key[0] in ("Deployment", "Service", "Pod")]

    await eventually("no server without the weights that it was for", cleared)


async def test_a_state_that_is_gone_fails_the_run_at_once(world: World, operator: Any) -> None:
    await world.create_run("stale")
    pod = await world.start_everything("stale")
    await world.finish(pod, STATE_LOST)
    status = await world.phase("stale", "Failed")
    assert condition(status, "Failed")["reason"] == "StateLost"


async def test_a_run_made_anew_under_the_same_name_starts_from_nothing(world: World, operator: Any) -> None:
    old = await world.create_run("twin")
    await world.start_everything("twin")
    await world.phase("twin", "Starting")
    await world.kube.delete(api.RUNS, world.namespace, "twin", old["metadata"]["uid"])
    new = await eventually("the same name again", lambda: _create(world, "twin"))

    async def children_of_the_new() -> bool:
        owned = {key: body for key, body in (await world.owned("twin")).items() if key[0] != "Pod"}
        owners = {body["metadata"]["ownerReferences"][0]["uid"] for body in owned.values()}
        return len(owned) == 8 and owners == {new["metadata"]["uid"]}

    await eventually("objects of the new run", children_of_the_new, 40)


async def _create(world: World, name: str) -> Any:
    try:
        return await world.create_run(name)
    except ApiError as error:
        if error.conflict:
            return None
        raise


async def test_a_namespace_with_live_runs_goes_without_the_operator(world: World, operator: Any) -> None:
    await world.create_run("left")
    await world.wait_for_children("left", 8)
    await operator.end()
    await world.kube.request("DELETE", f"/api/v1/namespaces/{world.namespace}")

    async def gone() -> bool:
        try:
            await world.kube.request("GET", f"/api/v1/namespaces/{world.namespace}")
        except ApiError as error:
            return error.not_found
        return False

    await eventually("the namespace gone", gone, 60)


async def test_transitions_are_told_as_events_once(world: World, operator: Any) -> None:
    await world.create_run("told", config={"tinker": {"lora_rnk": 4}})
    await world.phase("told", "Stalled")
    await asyncio.sleep(0.5)
    operator.operator.queue.add((world.namespace, "told"))
    await asyncio.sleep(0.5)
    events = await world.list(api.EVENTS)
    assert [(event["type"], event["reason"], event["regarding"]["name"]) for event in events] == [
        ("Warning", "InvalidConfig", "told")
    ]


async def test_a_deleted_token_secret_of_a_run_that_is_stuck_comes_back(world: World, start_operator: Any) -> None:
    await start_operator(resync_seconds=2.0)
    await world.create_run("stuck")
    await world.wait_for_children("stuck", 8)
    secret = await world.kube.get(api.SECRETS, world.namespace, "tar-stuck-token")
    await world.kube.delete(api.SECRETS, world.namespace, "tar-stuck-token", secret["metadata"]["uid"])

    async def back() -> bool:
        try:
            live = await world.kube.get(api.SECRETS, world.namespace, "tar-stuck-token")
        except ApiError:
            return False
        return bool(live["data"] == secret["data"])

    await eventually("the same Secret again", back, 60)


async def delete_token(world: World, run: str) -> Any:
    name = f"tar-{run}-token"
    secret = await world.kube.get(api.SECRETS, world.namespace, name)
    await world.kube.delete(api.SECRETS, world.namespace, name, secret["metadata"]["uid"])
    return secret


async def token_again(world: World, run: str, old: Any, seconds: float) -> None:
    async def back() -> bool:
        try:
            live = await world.kube.get(api.SECRETS, world.namespace, f"tar-{run}-token")
        except ApiError:
            return False
        same = all(live["metadata"][key] == old["metadata"][key] for key in ("labels", "ownerReferences"))
        return bool(live["data"] == old["data"]) and same

    await eventually("the same Secret again", back, seconds)


def mounting() -> dict[str, Any]:
    """The status of a pod whose volumes the kubelet cannot mount; it says no more than this."""
    now = stamp()
    return {
        "phase": "Pending",
        "conditions": [
            {"type": kind, "status": status, "lastTransitionTime": now}
            for kind, status in (("PodScheduled", "True"), ("PodReadyToStartContainers", "False"))
        ],
        "containerStatuses": [
            {
                "name": "trainer",
                "ready": False,
                "restartCount": 0,
                "image": "image",
                "imageID": "",
                "state": {"waiting": {"reason": "ContainerCreating"}},
            }
        ],
    }


async def test_a_deleted_token_secret_comes_back_when_a_pod_waits_for_it(world: World, operator: Any) -> None:
    await world.create_run("mount")
    trainer = await world.start_everything("mount")
    await world.status_when("mount", "a trainer", lambda s: condition(s, "TrainerRunning")["status"] == "True")
    secret = await delete_token(world, "mount")
    await world.kube.delete(api.PODS, world.namespace, trainer["metadata"]["name"], trainer["metadata"]["uid"])
    await world.set_pod(await world.pod("mount", "trainer", but={trainer["metadata"]["name"]}), mounting())
    await token_again(world, "mount", secret, 20)


async def test_a_token_secret_that_was_deleted_while_no_operator_ran_comes_back(
    world: World, operator: Any, start_operator: Any
) -> None:
    await world.create_run("away")
    await world.wait_for_children("away", 8)
    await operator.end()
    secret = await delete_token(world, "away")
    await start_operator()
    await token_again(world, "away", secret, 20)


async def test_a_token_that_running_pods_know_is_never_another_one(
    world: World, operator: Any, start_operator: Any
) -> None:
    await world.create_run("known")
    await world.wait_for_children("known", 8)
    await operator.end()
    path = api.SECRETS.path(world.namespace, "tar-known-token")
    other = {"data": {"token": "b3RoZXI="}}
    await world.kube.request("PATCH", path, body=other, content_type="application/merge-patch+json")
    await start_operator()
    await world.patch_run("known", {"config": {"env": {"total_steps": 9}}})
    await world.status_when("known", "0/9", lambda s: s["progress"] == "0/9")
    live = await world.kube.get(api.SECRETS, world.namespace, "tar-known-token")
    assert live["data"]["token"] == "b3RoZXI="


async def test_steps_lowered_below_what_is_trained_are_ended_by_a_next_attempt(world: World, operator: Any) -> None:
    run = await world.create_run("less")
    trainer = await world.start_everything("less")
    name = trainer["metadata"]["name"]
    heard = ProgressReport(run_uid=run["metadata"]["uid"], epoch=1, attempt=1, phase="Training", step=3, total_steps=5)
    operator.operator.reports.newest[run["metadata"]["uid"]] = Heard(
        heard, name, dt.datetime.now(dt.UTC) - dt.timedelta(seconds=5)
    )
    await world.patch_run("less", {"config": {"env": {"total_steps": 2}}})
    status = await world.status_when("less", "attempt 2", lambda s: s["trainerAttempt"] == 2)
    assert status["progress"] == "3/3"
    second = await world.pod("less", "trainer", but={name})
    assert second["metadata"]["labels"]["tinker-atropos.dev/attempt"] == "2"
    await eventually("the first attempt gone", lambda: _gone(world, api.JOBS, "tar-less-trainer-1"))
    await world.make_ready("less", "trainer")
    word = last_word(
        run["metadata"]["uid"],
        epoch=2,
        attempt=2,
        step=3,
        totalSteps=2,
        samplerWeights="tinker://x/sampler_weights/final",
    )
    await world.finish(second, 0, word)
    status = await world.phase("less", "Complete")
    assert status["step"] == 3 and status["progress"] == "3/3"


async def test_a_new_deadline_restarts_nothing(world: World, operator: Any) -> None:
    await world.create_run("later")
    before = await world.wait_for_children("later", 8)
    await world.start_everything("later")
    await world.patch_run("later", {"deadlines": {"startup": "3h"}})

    async def told() -> bool:
        live = await world.owned("later")
        return "startup: 3h" in str(live["ConfigMap", "tar-later-config"]["data"]["run.yaml"])

    await eventually("the run file with the deadline", told)
    live = await world.owned("later")
    for key, body in before.items():
        assert live[key]["metadata"].get("generation") == body["metadata"].get("generation"), key


async def test_gitops_applies_the_same_file_again_and_nothing_changes(
    world: World, operator: Any, kubectl: Any
) -> None:
    """Defaults are the API server's; the operator writes nothing into spec, so a second sync finds no difference."""
    text = json.dumps(world.manifest("synced"))
    assert kubectl("apply", "--server-side", "--field-manager=argocd", "-f", "-", text=text).returncode == 0
    await world.phase("synced", "Starting")
    before = await world.run("synced")
    assert kubectl("apply", "--server-side", "--field-manager=argocd", "-f", "-", text=text).returncode == 0
    after = await world.run("synced")
    assert after["metadata"]["generation"] == before["metadata"]["generation"] == 1
    owners = {entry["manager"] for entry in after["metadata"]["managedFields"] if entry.get("subresource") != "status"}
    assert owners == {"argocd"}
    assert kubectl("diff", "--server-side", "--field-manager=argocd", "-f", "-", text=text).stdout == ""


async def test_kubectl_waits_for_a_run(world: World, operator: Any, kubectl: Any) -> None:
    run = await world.create_run("waited")
    trainer = await world.start_everything("waited")
    await world.finish(trainer, 0, last_word(run["metadata"]["uid"], samplerWeights="tinker://x/sampler_weights/final"))
    done = await asyncio.to_thread(
        kubectl, "wait", "tar/waited", "-n", world.namespace, "--for=condition=Complete", "--timeout=60s"
    )
    assert done.returncode == 0, done.stderr


async def test_a_volume_that_cannot_be_is_the_users_to_correct(world: World, operator: Any) -> None:
    await world.create_run("claim", apiServer={"store": {"volume": {"persistentVolumeClaim": {"claimNam": "store"}}}})
    status = await world.phase("claim", "Stalled")
    assert condition(status, "Stalled")["reason"] == "InvalidPodTemplate"
    place = "spec.apiServer.store.volume.persistentVolumeClaim.claimNam"
    assert status["message"].startswith(f"your config: {place}: unknown key; did you mean 'claimName'?")
    assert await world.owned("claim") == {}


QUOTAS = {
    "requests that it has no room for": (
        {"requests.cpu": "20m", "requests.memory": "100Mi"},
        "the quota small leaves no room (requests.cpu and requests.memory)",
        "raise the quota or free some of it",
    ),
    "limits that nobody gave": (
        {"limits.cpu": "4", "limits.memory": "4Gi"},
        "the quota small wants every container to say (limits.cpu and limits.memory)",
        "give the namespace a LimitRange with defaults for them",
    ),
}


@pytest.mark.parametrize(("hard", "cause", "fix"), QUOTAS.values(), ids=QUOTAS)
async def test_a_quota_that_blocks_all_parts_is_told_once_with_all_that_it_lacks(
    world: World, operator: Any, hard: dict[str, str], cause: str, fix: str
) -> None:
    await world.quota("small", hard)
    asks = {"name": "environment", "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}}}
    environment = {"name": "digits", "command": ["python"], "podTemplate": {"spec": {"containers": [asks]}}}
    await world.create_run("blocked", environments=[environment])
    parts = "the local Tinker server, the API server, the trainer and environment digits"
    status = await world.status_when("blocked", "every part", lambda s: f"{parts}: {cause}" in s["message"])
    assert status["message"].endswith(fix) and len(status["message"]) < 260
    stalled = condition(status, "Stalled")
    assert stalled["reason"] == "PodsRefused"
    for part in ("the local Tinker server", "the API server", "the trainer", "environment digits"):
        assert f"pods of {part}" in stalled["message"]


async def test_pods_come_with_a_limit_range_whose_defaults_a_quota_wants(world: World, operator: Any) -> None:
    await world.quota(
        "small", {"limits.cpu": "8", "limits.memory": "8Gi", "requests.cpu": "2", "requests.memory": "4Gi"}
    )
    await world.limit_range(default={"cpu": "1", "memory": "1Gi"}, request={"cpu": "100m", "memory": "256Mi"})
    await world.create_run("fits")
    for part in ("api-server", "local-tinker", "environment", "trainer"):
        pod = await world.pod("fits", part)
        assert all("limits" in container["resources"] for container in pod["spec"]["containers"])


async def test_a_limit_range_whose_default_is_below_what_a_part_asks_for_is_told(world: World, operator: Any) -> None:
    await world.limit_range(default={"memory": "300Mi"}, request={"memory": "64Mi"})
    await world.create_run("low")
    words = "the local Tinker server: pods are refused: "
    status = await world.status_when("low", "the refusal", lambda s: words in s["message"])
    message = condition(status, "Stalled")["message"]
    assert "must be less than or equal to memory limit of 300Mi" in message and "tar-low-tinker" not in message


async def test_a_missing_secret_and_an_image_that_is_not_there_are_told_together(world: World, operator: Any) -> None:
    await world.create_run("both", tinkerAPI={"keySecretRef": {"name": "absent", "key": "k"}})
    server = await world.pod("both", "api-server")
    await world.set_waiting(server, "gateway", "CreateContainerConfigError", 'secret "absent" not found')
    environment = await world.pod("both", "environment")
    await world.set_waiting(environment, "environment", "ErrImagePull", "not found")
    status = await world.status_when("both", "both causes", lambda s: "cannot be pulled" in s["message"])
    assert "the API server: the Secret absent of tinkerAPI.keySecretRef does not exist" in status["message"]
    stalled = condition(status, "Stalled")
    assert stalled["reason"] == "SecretMissing"
    assert "--from-literal=k=…" in stalled["message"] and "of environment digits cannot be pulled" in stalled["message"]
