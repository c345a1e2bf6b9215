"""The local Tinker server, a trajectory server and a gateway as real processes, and a trainer played by hand."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx

from peer_processes import KEY, Program, free_port, until
from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol.trajectories_pb2_grpc import TrajectoriesStub

MODEL = "tinker-atropos/tiny"
GROUP = 4


class Tinker:
    """A local Tinker server that takes injected faults."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        arguments = [
            "local-tinker",
            "--port",
            str(self.port),
            "--data",
            str(folder / "data"),
            "--faults",
            "--no-warm-up",
        ]
        self.program = Program(arguments, folder / "tinker.log", f"{self.url}/healthz").start()

    def fault(self, **fault: Any) -> None:
        assert httpx.post(f"{self.url}/local/v1/faults", json=fault).status_code == 204

    def clear_faults(self) -> None:
        httpx.delete(f"{self.url}/local/v1/faults")


class Trajectories:
    def __init__(self, folder: Path, *options: str, token: str | None = None) -> None:
        self.port, self.grpc_port = free_port(), free_port()
        self.url, self.target = f"http://127.0.0.1:{self.port}", f"127.0.0.1:{self.grpc_port}"
        arguments = ["trajectories", "--port", str(self.port), "--grpc-port", str(self.grpc_port)]
        self.program = Program(
            [*arguments, "--store", str(folder / "store"), *options], folder / "trajectories.log", f"{self.url}/healthz"
        ).start()
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def stub(self) -> TrajectoriesStub:
        return TrajectoriesStub(grpc.insecure_channel(self.target))  # type: ignore[no-untyped-call]


class Gateway:
    def __init__(self, folder: Path, tinker_url: str, trajectories_target: str, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.program = Program(
            [
                *("gateway", "--port", str(self.port), "--base-model", MODEL),
                *("--tinker-base-url", tinker_url, "--trajectories", trajectories_target, *options),
            ],
            folder / "gateway.log",
            f"{self.url}/readyz",
            {"TINKER_TELEMETRY": "0"},
        )

    def policy(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = httpx.get(f"{self.url}/healthz", timeout=5).json()["policy"]
        return found

    def wait_for_policy(self, epoch: int, step: int) -> None:
        def there() -> bool:
            policy = self.policy()
            return policy is not None and (policy["epoch"], policy["step"]) == (epoch, step)

        until(there, f"policy {epoch}/{step} in the gateway")

    def metric(self, name: str, **labels: str) -> float:
        """Sum of the samples of a metric that have these labels."""
        total = 0.0
        for line in httpx.get(f"{self.url}/metrics", timeout=5).text.splitlines():
            if line.startswith(f"tinker_atropos_gateway_{name}") and all(
                f'{key}="{value}"' in line for key, value in labels.items()
            ):
                rest = line[len(f"tinker_atropos_gateway_{name}") :]
                if rest[0] in " {":
                    total += float(rest.split()[-1])
        return total


@dataclass
class Stack:
    """Three servers; the tests play the trainer."""

    folder: Path
    tinker: Tinker
    trajectories: Trajectories
    gateway: Gateway
    epoch: int = 0
    step: int = -1
    _trained: int = 0
    _service: Any = None
    _training: Any = None
    _programs: list[Program] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path, tinker: Tinker, *, token: str | None = None) -> Stack:
        options = []
        if token is not None:
            (folder / "token").write_text(token + "\n")
            options = ["--token-file", str(folder / "token")]
        trajectories = Trajectories(folder, *options, token=token)
        gateway = Gateway(folder, tinker.url, trajectories.target, *options)
        gateway.program.start()
        return cls(folder, tinker, trajectories, gateway, _programs=[trajectories.program, gateway.program])

    def stop(self) -> None:
        for program in reversed(self._programs):
            program.kill(signal.SIGTERM)

    @property
    def training(self) -> Any:
        """A LoRA of the tiny model, as a trainer holds it."""
        if self._training is None:
            import tinker

            self._service = tinker.ServiceClient(base_url=self.tinker.url, api_key=KEY)
            self._training = self._service.create_lora_training_client(base_model=MODEL, rank=8, seed=1).result()
        return self._training

    def take_over(self, batch_size: int = GROUP, max_steps_off_policy: int | None = None) -> int:
        settings = pb.RunSettings(
            run_id="run",
            batch_size=batch_size,
            group_size=GROUP,
            max_token_length=256,
            total_steps=100,
            base_model=MODEL,
            max_steps_off_policy=max_steps_off_policy,
        )
        request = pb.TakeoverRequest(settings=settings, holder="test")
        stub, metadata = self.trajectories.stub(), self.trajectories.metadata
        self.epoch = stub.Takeover(request, metadata=metadata, wait_for_ready=True, timeout=30).epoch
        return self.epoch

    def publish(self, path: str | None = None, *, wait: bool = True) -> str:
        """Publish the trained weights (or a path) as the next step's policy."""
        if not self.epoch:
            self.take_over()
        self.step += 1
        if path is None:
            path = self.training.save_weights_for_sampler(f"sampler-{self.epoch}-{self.step}").result().path
        policy = pb.Policy(
            version=pb.PolicyVersion(epoch=self.epoch, step=self.step), sampler_path=path, base_model=MODEL
        )
        request = pb.PublishRequest(epoch=self.epoch, policy=policy)
        stub, metadata = self.trajectories.stub(), self.trajectories.metadata
        stub.Publish(request, metadata=metadata, wait_for_ready=True, timeout=30)
        if wait:
            self.gateway.wait_for_policy(self.epoch, self.step)
        assert path is not None
        return path

    def train_a_little(self) -> None:
        """Change the weights so that another policy really is another one."""
        from tinker import types

        tokens = [10, 20, 30, 40, 20, 30]
        datum = types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
        )
        backward = self.training.forward_backward([datum], "cross_entropy")
        step = self.training.optim_step(types.AdamParams(learning_rate=0.01))
        backward.result()
        step.result()

    def training_logprobs(self, prompt: list[int], completion: list[int]) -> list[float]:
        """Logprobs of a completion by the trainer's own forward pass."""
        from tinker import types

        tokens = [*prompt, *completion]
        datum = types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
        )
        output = self.training.forward([datum], "cross_entropy").result()
        logprobs: list[float] = output.loss_fn_outputs[0]["logprobs"].tolist()
        return logprobs[len(prompt) - 1 :]

    def lease(self) -> pb.Batch:
        """The next batch, acknowledged at once so that the next lease is another one."""
        stub, metadata = self.trajectories.stub(), self.trajectories.metadata
        self._trained += 1
        request = pb.LeaseRequest(epoch=self.epoch, for_step=self._trained, wait_seconds=20)
        batch = stub.Lease(request, metadata=metadata, wait_for_ready=True, timeout=40).batch
        assert batch.lease_id, "no batch came"
        stub.Ack(pb.AckRequest(epoch=self.epoch, lease_id=batch.lease_id, step=self._trained), metadata=metadata)
        return batch
