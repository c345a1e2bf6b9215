"""Rollouts start only when they can be trained in time: the real servers, a real trainer, a real environment."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway_stack import GROUP, MODEL, Stack, Tinker
from peer_processes import Program, until
from relay_process import Relay
from tinker_atropos.protocol.identity import ENVIRONMENT_HEADER, INSTANCE_HEADER
from tinker_atropos.run import yaml_text

pytestmark = [pytest.mark.wire, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[3]
WHO = {ENVIRONMENT_HEADER: "digits", INSTANCE_HEADER: "digits-0"}
GROUPS_PER_STEP = 2
BATCH = GROUPS_PER_STEP * GROUP


@pytest.fixture
def fresh(tinker: Tinker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Nothing published yet."""
    started = Stack.start(tmp_path_factory.mktemp("stack"), tinker)
    try:
        yield started
    finally:
        started.stop()


def status(stack: Stack) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{stack.trajectories.url}/status", timeout=10).json()
    return found


def sums(stack: Stack) -> dict[str, int]:
    found: dict[str, int] = httpx.get(f"{stack.trajectories.url}/ledger", timeout=10).json()["sums"]
    return found


def outstanding(stack: Stack) -> int:
    """Groups that are stored and neither trained nor dropped."""
    now = sums(stack)
    return now["queued"] + now["leased"]


def sampled(stack: Stack) -> int:
    return int(stack.gateway.metric("sampling_seconds_count"))


def quiet(stack: Stack, seconds: float = 4.0) -> bool:
    """Whether rollouts wait and none was sampled for a while."""
    before = sampled(stack)
    time.sleep(seconds)
    return stack.gateway.metric("held", reason="capacity") > 0 and sampled(stack) == before


class TestRealEnvironment:
    """The quick start's environment behind its relay, and trainers that stop in different ways."""

    LIMIT = 2

    @pytest.fixture
    def trainer(self, fresh: Stack, tinker: Tinker) -> Iterator[Program]:
        spec = {
            "config": {
                "env": {"group_size": GROUP, "batch_size": BATCH, "total_steps": 200},
                "tinker": {"lora_rank": 8, "learning_rate": 1e-3, "loss_fn": "ppo", "max_steps_off_policy": self.LIMIT},
            },
            "tinkerAPI": {"local": {"model": "tiny"}},
            "environments": [{"name": "digits", "command": ["none"]}],
        }
        document = {
            "apiVersion": "tinker-atropos.dev/v1alpha1",
            "kind": "TinkerAtroposRun",
            "metadata": {"name": "paced"},
            "spec": spec,
        }
        config = fresh.folder / "run.yaml"
        config.write_text(yaml_text.dump(document))
        arguments = ["trainer", "--config", str(config), "--trajectories", fresh.trajectories.target]
        arguments += ["--run-uid", "uid-1", "--tinker-base-url", tinker.url]
        arguments += ["--termination-log", str(fresh.folder / "end")]
        program = Program(arguments, fresh.folder / "trainer.log")
        yield program
        if program.process is not None and program.process.poll() is None:
            program.process.send_signal(signal.SIGCONT)
        program.kill()

    @pytest.fixture
    def environment(self, fresh: Stack) -> Iterator[Path]:
        """Its log. Left alone it would have twelve groups under way, whatever the queue holds."""
        relay = Relay.start(fresh.folder, fresh.trajectories.url, fresh.gateway.url)
        server = {
            "model_name": MODEL,
            "tokenizer_name": str(relay.tokenizer),
            "base_url": f"{relay.gateway}/v1",
            "api_key": "relay",
            "server_type": "sglang",
            "timeout": 86_400,
        }
        env = {
            "group_size": GROUP,
            "batch_size": BATCH,
            "max_token_length": 6,
            "rollout_server_url": relay.trajectories,
            "tokenizer_name": str(relay.tokenizer),
            "use_wandb": False,
            "total_steps": 100_000,
            "eval_handling": "NONE",
            "worker_timeout": 0,
            "max_num_workers": 12,
            "max_batches_offpolicy": 8,
            "ensure_scores_are_not_same": False,
            "seed": 1,
        }
        config = fresh.folder / "environment.yaml"
        config.write_text(yaml.safe_dump({"env": env, "openai": [server, dict(server)]}))
        log = fresh.folder / "environment.log"
        command = [sys.executable, "examples/environments/last_digit.py", "serve", "--config", str(config)]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=file, stderr=file, env={**os.environ, "WANDB_MODE": "disabled"}
            )
        yield log
        process.kill()
        process.wait(10)
        relay.program.kill(signal.SIGTERM)

    @pytest.mark.parametrize(
        ("number", "unpublished", "lost"),
        [
            (signal.SIGSTOP, GROUPS_PER_STEP, 0),
            (signal.SIGTERM, 0, 0),
            (signal.SIGKILL, GROUPS_PER_STEP, GROUPS_PER_STEP),
        ],
        ids=["hangs", "asked to end", "killed"],
    )
    def test_without_a_trainer_sampling_stops_in_time(
        self,
        number: signal.Signals,
        unpublished: int,
        lost: int,
        fresh: Stack,
        trainer: Program,
        environment: Path,
    ) -> None:
        """unpublished: room that is missing when the trainer stops between a step and the publication of its weights,
        which leaves the policy one step behind. lost: groups that may be too old because a killed trainer's last step
        is done again.
        """
        trainer.start()
        until(lambda: len(trainer.steps()) >= 2, "two steps", 120)
        assert trainer.process is not None
        trainer.process.send_signal(number)
        if number != signal.SIGSTOP:
            trainer.process.wait(60)
        until(lambda: quiet(fresh), "the end of sampling", 120)
        full = (self.LIMIT + 1) * GROUPS_PER_STEP
        assert full - 1 - unpublished <= outstanding(fresh) <= full
        assert sampled(fresh) == sums(fresh)["stored"], "what was sampled was posted"
        assert "cancel" not in environment.read_text(errors="replace").lower()

        before = max(trainer.steps())
        if number == signal.SIGSTOP:
            trainer.process.send_signal(signal.SIGCONT)
        else:
            trainer.start()
        until(lambda: max(trainer.steps()) >= before + 8, "eight more steps", 180)
        dropped = Counter(status(fresh)["dropped"])
        assert dropped["stale"] <= lost, dropped
        assert set(dropped) <= {"stale", "no_signal"}, dropped
        assert fresh.gateway.metric("rollouts_total", outcome="abandoned") == 0
        assert fresh.gateway.metric("rollouts_total", outcome="continued") == 0


class Client:
    """An environment by hand."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.http = httpx.AsyncClient(timeout=120)

    async def generate(self, prompt: list[int], n: int = 1) -> list[dict[str, Any]]:
        body = {"input_ids": prompt, "sampling_params": {"n": n, "max_new_tokens": 3, "ignore_eos": True}}
        answer = await self.http.post(f"{self.stack.gateway.url}/generate", json=body, headers=WHO)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        return found if isinstance(found, list) else [found]

    async def chat(self, messages: list[dict[str, str]]) -> str:
        body = {"model": MODEL, "messages": messages, "max_tokens": 3}
        answer = await self.http.post(f"{self.stack.gateway.url}/v1/chat/completions", json=body, headers=WHO)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["choices"][0]["message"]["content"])

    async def post(self, prompts: list[list[int]], answers: list[dict[str, Any]]) -> None:
        group: dict[str, Any] = {"tokens": [], "masks": [], "scores": [], "inference_logprobs": [], "env_id": None}
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            pairs = answer["meta_info"]["output_token_logprobs"]
            tokens = [pair[1] for pair in pairs]
            group["tokens"].append(prompt + tokens)
            group["masks"].append([-100] * len(prompt) + tokens)
            group["inference_logprobs"].append([1.0] * len(prompt) + [pair[0] for pair in pairs])
            group["scores"].append(float(index % 2))
        answer = await self.http.post(f"{self.stack.trajectories.url}/scored_data", json=group, headers=WHO)
        assert answer.status_code == 200, answer.text

    async def until(self, check: Callable[[], Any], what: str) -> None:
        await asyncio.to_thread(until, check, what)


async def test_later_turns_go_on_when_no_new_rollout_may_start(fresh: Stack) -> None:
    fresh.take_over(batch_size=BATCH, max_steps_off_policy=0)
    path = fresh.publish()
    client = Client(fresh)
    rng = random.Random(3)
    prompts = [[rng.randrange(10, 40) for _ in range(5)] for _ in range(BATCH - 1)]
    talk = [{"role": "user", "content": "12+7="}]
    answers = await asyncio.gather(*(client.generate(prompt) for prompt in prompts))
    said = await client.chat(talk)  # takes the last room that there is
    late = asyncio.create_task(client.generate([30, 31, 32, 33]))
    await client.until(lambda: fresh.gateway.metric("held", reason="capacity") == 1, "a rollout that is held")

    async def play(prompt: list[int], answer: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
        for turn in range(2):
            prompt = [*prompt, *answer["output_ids"], 20 + turn, 21]
            (answer,) = await client.generate(prompt)
        return prompt, answer

    played = await asyncio.gather(*(play(prompt, answer) for prompt, (answer,) in zip(prompts, answers, strict=True)))
    await client.chat([*talk, {"role": "assistant", "content": said}, {"role": "user", "content": "8+9="}])
    assert not late.done()
    assert fresh.gateway.metric("rollouts_total", outcome="continued") == 2 * (BATCH - 1) + 1
    assert fresh.gateway.metric("rollouts_total", outcome="granted") == BATCH

    both = [*played, played[0]]
    for half in (both[:GROUP], both[GROUP:]):
        await client.post([prompt for prompt, _ in half], [answer for _, answer in half])
    await asyncio.to_thread(fresh.lease)  # trained, and the next policy published: there is room again
    await asyncio.to_thread(fresh.publish, path)
    await late


async def test_slow_tasks_are_trained_as_often_as_they_are_sampled(fresh: Stack) -> None:
    """Tasks of 1 s and 60 s, scaled: unpaced, slow ones would be too old by the time they come."""
    fresh.take_over(batch_size=BATCH, max_steps_off_policy=1)
    path = fresh.publish()
    client = Client(fresh)
    rng = random.Random(5)
    tasks = [("quick", 0.03), ("slow", 1.8)] * 12
    rng.shuffle(tasks)
    steps, trained = len(tasks) // GROUPS_PER_STEP, Counter[str]()
    work = iter(enumerate(tasks))
    marks = {"quick": 15, "slow": 16}

    async def worker() -> None:
        for number, (kind, seconds) in work:
            prompt = [marks[kind], 20 + number, 12, 13]
            answers = await client.generate(prompt, GROUP)
            await asyncio.sleep(seconds)
            await client.post([prompt] * GROUP, answers)

    def train() -> None:
        for _ in range(steps):
            for group in fresh.lease().groups:
                first = int.from_bytes(group.sequences[0].tokens[:4], "little")
                trained[next(kind for kind, mark in marks.items() if mark == first)] += 1
                assert group.staleness <= 1
            fresh.publish(path, wait=False)

    training = threading.Thread(target=train, daemon=True)
    training.start()
    async with asyncio.timeout(200):
        await asyncio.gather(*(worker() for _ in range(8)))
        await asyncio.to_thread(training.join)
    assert trained == Counter({"quick": 12, "slow": 12})
    assert status(fresh)["dropped"] == {}


async def test_people_are_not_held(fresh: Stack) -> None:
    fresh.take_over(batch_size=BATCH, max_steps_off_policy=0)
    fresh.publish()
    client = Client(fresh)
    await asyncio.gather(*(client.generate([10, 11, 12 + number], GROUP) for number in range(GROUPS_PER_STEP)))
    held = asyncio.create_task(client.generate([30, 31, 32, 33]))
    await client.until(lambda: fresh.gateway.metric("held", reason="capacity") == 1, "a rollout that is held")
    body = {"text": "12+7=", "sampling_params": {"max_new_tokens": 3}}
    answer = await client.http.post(f"{fresh.gateway.url}/generate", json=body)
    greedy = {"text": "12+7=", "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
    judged = await client.http.post(f"{fresh.gateway.url}/generate", json=greedy, headers=WHO)
    assert (answer.status_code, judged.status_code) == (200, 200)
    held.cancel()
    await client.until(lambda: fresh.gateway.metric("rollouts_total", outcome="abandoned") == 1, "one that left")


async def test_held_ones_survive_the_trajectory_servers_restart(fresh: Stack) -> None:
    fresh.take_over(batch_size=BATCH, max_steps_off_policy=0)
    path = fresh.publish()
    client = Client(fresh)
    prompts = [[10, 11, 12 + number] for number in range(GROUPS_PER_STEP)]
    for prompt in prompts:
        await client.post([prompt] * GROUP, await client.generate(prompt, GROUP))
    held = asyncio.create_task(client.generate([30, 31, 32, 33]))
    await client.until(lambda: fresh.gateway.metric("held", reason="capacity") == 1, "a rollout that is held")
    fresh.trajectories.program.kill()
    await asyncio.to_thread(fresh.trajectories.program.start)
    await asyncio.sleep(3)
    assert not held.done(), "the queue is as full as before"
    await asyncio.to_thread(fresh.lease)
    await asyncio.to_thread(fresh.publish, path)
    async with asyncio.timeout(60):
        await held
