"""The progress receiver with tokens of a real API server: whose reports count, and what they do to the status."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import ssl
from typing import Any

import httpx

from cluster_world import World, eventually
from tinker_atropos.protocol.progress import MAX_BODY, PATH, audience
from tinker_atropos_operator import kube as api

ACCOUNT = "system:serviceaccount:tinker-system:tinker-atropos-operator"


class Trainer:
    """A trainer that reports, as its pod would."""

    def __init__(self, world: World, running: Any, run: dict[str, Any], token: str | None) -> None:
        name, namespace = run["metadata"]["name"], world.namespace
        self.uid = run["metadata"]["uid"]
        self.url = running.progress_url + PATH.format(namespace=namespace, name=name)
        self.token = token
        self._context = ssl.create_default_context(cadata=running.operator.platform.ca_certificate)

    async def send(self, **fields: Any) -> httpx.Response:
        body = {"runUid": self.uid, "epoch": 1, "attempt": 1, "phase": "Training", "totalSteps": 5, **fields}
        return await self.post(json.dumps(body).encode())

    async def post(self, body: bytes) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with httpx.AsyncClient(verify=self._context, trust_env=False) as client:
            return await client.post(self.url, content=body, headers=headers)


async def started(world: World, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    run = await world.create_run(name)
    pod = await world.start_everything(name)
    return run, pod


async def test_reports_of_the_runs_trainer_reach_the_status(world: World, operator: Any) -> None:
    run, pod = await started(world, "told")
    trainer = Trainer(world, operator, run, await world.token(pod, world.audience(run)))
    first = await trainer.send(epoch=0, phase="Starting")
    assert first.status_code == 200 and first.json() == {"epoch": 0, "stop": False}
    checkpoint = {"path": "tinker://x/weights/2", "step": 2, "time": "2026-01-01T00:00:00Z"}
    answer = await trainer.send(
        step=2,
        reward={"mean": 0.5, "std": 0.1, "min": 0, "max": 1},
        secondsPerStep=2.5,
        staleness=0.5,
        loss=0.25,
        tokens={"sampled": 10, "trained": 20},
        ledger={"stored": 9, "trained": 4},
        checkpoint=checkpoint,
        environments=[{"name": "digits", "groups": 2, "share": 1.0, "reward": 0.5}],
        message="training",
    )
    assert answer.status_code == 200
    assert "checkpoint" not in answer.json(), "the answer tells what was stored before this report"
    status = await world.status_when("told", "step 2", lambda s: s.get("step") == 2)
    assert status["progress"] == "2/5" and status["phase"] == "Running"
    assert status["reward"] == {"mean": 0.5, "std": 0.1, "min": 0, "max": 1}
    assert (status["secondsPerStep"], status["staleness"], status["loss"]) == (2.5, 0.5, 0.25)
    assert status["tokens"] == {"sampled": 10, "trained": 20}
    assert status["ledger"]["stored"] == 9
    assert status["environments"] == [{"name": "digits", "ready": 1, "desired": 1, "share": 1, "reward": 0.5}]
    assert status["message"] == "training" and status["eta"] and status["lastProgressTime"]
    assert [(entry["epoch"], entry["pod"]) for entry in status["attempts"]] == [(1, pod["metadata"]["name"])]
    again = await trainer.send(step=3)
    assert again.json() == {"checkpoint": checkpoint, "epoch": 1, "stop": False}


async def test_each_new_problem_of_supply_is_one_event(world: World, operator: Any) -> None:
    run, pod = await started(world, "short")
    trainer = Trainer(world, operator, run, await world.token(pod, world.audience(run)))
    code = {"reason": "CannotSupplyShare", "environment": "code", "message": "environment code supplies 10%"}
    chat = {"reason": "CannotSupplyShare", "environment": "chat", "message": "environment chat supplies 5%"}
    steps = [[code], [{**code, "message": "environment code supplies 11%"}], [code, chat], []]
    for step, warnings in enumerate(steps, 1):
        assert (await trainer.send(step=step, warnings=warnings)).status_code == 200
        status = await world.status_when("short", f"step {step}", lambda s, step=step: s.get("step") == step)
        assert status.get("warnings", []) == warnings
        supply = next(entry for entry in status["conditions"] if entry["type"] == "SupplyOk")
        wanted = ("False", "CannotSupplyShare") if warnings else ("True", "AsAsked")
        assert (supply["status"], supply["reason"]) == wanted
        await asyncio.sleep(0.5)  # its event is written after the status
        # Looked at again without news it writes nothing.
        since = dt.datetime.now(dt.UTC)
        operator.operator.queue.add((world.namespace, "short"))
        await asyncio.sleep(0.5)
        assert [write for write in world.writes(ACCOUNT, since) if f"/{world.namespace}/" in write] == []
    events = [event for event in await world.list(api.EVENTS) if event["reason"] == "CannotSupplyShare"]
    assert sorted((event["type"], event["note"], event["regarding"]["name"]) for event in events) == [
        ("Warning", "environment chat supplies 5%", "short"),
        ("Warning", "environment code supplies 10%", "short"),
    ]


async def test_many_reports_become_few_writes(world: World, operator: Any) -> None:
    run, pod = await started(world, "busy")
    trainer = Trainer(world, operator, run, await world.token(pod, world.audience(run)))
    answers = [(await trainer.send(step=step)).status_code for step in range(1, 25)]
    assert answers.count(200) >= 10
    assert 429 in answers, "one run must not take the receiver for itself"
    status = await world.status_when("busy", "a step", lambda s: s.get("step", 0) >= 9)
    assert int((await world.run("busy"))["metadata"]["generation"]) == 1
    assert status["step"] < 25


async def test_a_lower_step_or_an_older_epoch_is_ignored_and_a_new_epoch_goes_back(world: World, operator: Any) -> None:
    run, pod = await started(world, "order")
    trainer = Trainer(world, operator, run, await world.token(pod, world.audience(run)))
    await trainer.send(epoch=2, step=4)
    await world.status_when("order", "step 4", lambda s: s.get("step") == 4)
    await trainer.send(epoch=2, step=3)
    await asyncio.sleep(0.6)
    assert (await world.run("order"))["status"]["step"] == 4
    await trainer.send(epoch=3, step=2)
    status = await world.status_when("order", "step 2 of epoch 3", lambda s: s.get("step") == 2)
    assert status["epoch"] == 3
    assert [entry["epoch"] for entry in status["attempts"]] == [2, 3]


async def test_whose_reports_are_refused(world: World, operator: Any) -> None:
    run, pod = await started(world, "mine")
    other_run, other_pod = await started(world, "other")
    foreign = await world.kube.request(
        "POST",
        f"/api/v1/namespaces/{world.namespace}/pods",
        body={
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": "stranger",
                "namespace": world.namespace,
                "labels": {
                    "tinker-atropos.dev/run": "mine",
                    "app.kubernetes.io/component": "trainer",
                    "app.kubernetes.io/managed-by": "tinker-atropos-operator",
                },
            },
            "spec": {
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "trainer",
                        "image": "x",
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ],
            },
        },
    )
    mine = world.audience(run)
    old_uid = audience(world.namespace, "mine", "00000000-0000-0000-0000-000000000000")
    cases = {
        "no token": (None, 401),
        "no token at all": ("nonsense", 401),
        "a token for something else": (await world.token(pod, "https://kubernetes.default.svc"), 403),
        "a token for an earlier run of that name": (await world.token(pod, old_uid), 403),
        "a token for another run": (await world.token(other_pod, world.audience(other_run)), 403),
        "another pod with a token for this run": (await world.token(foreign, mine), 403),
        "another run's trainer with a token for this run": (await world.token(other_pod, mine), 403),
        "a token that is bound to no pod": (await world.token(None, mine), 403),
    }
    for what, (token, expected) in cases.items():
        answer = await Trainer(world, operator, run, token).send(step=5)
        assert answer.status_code == expected, (what, answer.text)
    good = await world.token(pod, mine)
    head, payload, signature = good.split(".")
    forged = ".".join((head, payload, signature[:-4] + ("AAAA" if signature[-4:] != "AAAA" else "BBBB")))
    assert (await Trainer(world, operator, run, forged).send(step=5)).status_code == 401
    wrong_uid = Trainer(world, operator, run, good)
    wrong_uid.uid = "another"
    assert (await wrong_uid.send(step=5)).status_code == 403
    await asyncio.sleep(0.5)
    assert "step" not in (await world.run("mine"))["status"]
    assert (await Trainer(world, operator, run, good).send(step=1)).status_code == 200


async def test_what_is_no_report_is_refused_with_a_reason(world: World, operator: Any) -> None:
    run, pod = await started(world, "form")
    trainer = Trainer(world, operator, run, await world.token(pod, world.audience(run)))
    assert (await trainer.post(b"{")).status_code == 422
    bad = await trainer.send(phase="Dreaming")
    assert bad.status_code == 422 and "phase" in bad.json()["error"]
    assert (await trainer.send(message="x" * MAX_BODY)).status_code == 413
    trainer.url = trainer.url.replace("/form/", "/nobody/")
    assert (await trainer.send(step=1)).status_code == 404


async def test_a_replica_that_does_not_lead_sends_its_callers_on(
    world: World, operator: Any, start_operator: Any
) -> None:
    run, pod = await started(world, "standby")
    second = await start_operator(wait=False)

    async def listens() -> bool:
        return bool(second.operator.progress_port)

    await eventually("the second replica's receiver", listens)
    answer = await Trainer(world, second, run, await world.token(pod, world.audience(run))).send(step=1)
    assert answer.status_code == 503
    assert answer.headers["connection"] == "close"


async def test_a_finished_run_tells_a_trainer_that_goes_on_to_stop(world: World, operator: Any) -> None:
    run, pod = await started(world, "over")
    trainer = Trainer(world, operator, run, await world.token(pod, world.audience(run)))
    word = {"runUid": trainer.uid, "epoch": 1, "phase": "Complete", "step": 5, "totalSteps": 5}
    await world.finish(pod, 0, json.dumps({**word, "samplerWeights": "tinker://x/sampler_weights/final"}))
    before = await world.phase("over", "Complete")
    answer = await trainer.send(step=3)
    assert answer.status_code == 200 and answer.json()["stop"] is True
    await asyncio.sleep(0.5)
    assert (await world.run("over"))["status"] == before


async def test_a_message_and_silence_show_in_the_conditions(world: World, operator: Any) -> None:
    run, pod = await started(world, "words")
    trainer = Trainer(world, operator, run, await world.token(pod, world.audience(run)))
    await trainer.send(epoch=1, phase="Waiting", message="waiting for the first batch: 1 of 2 groups are there")
    status = await world.status_when("words", "the message", lambda s: "1 of 2 groups" in s["message"])
    assert status["phase"] == "Starting"
    fresh = next(entry for entry in status["conditions"] if entry["type"] == "ProgressFresh")
    assert fresh["status"] == "True"
