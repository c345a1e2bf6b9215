"""Which programs a run consists of on one machine, and how each is started.

Pure: the same table that the operator turns into pods, here as command lines.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tinker_atropos.protocol.progress import PATH as PROGRESS_PATH
from tinker_atropos.run.environment_config import environment_config
from tinker_atropos.run.load import RunFile
from tinker_atropos.run.model import Environment, RunSpec

NAMESPACE = "local"


@dataclass(frozen=True)
class Program:
    """One process to start."""

    name: str
    """For people and for the log file."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: Path | None = None
    after: str | None = None
    """URL that must answer 200 before it is started."""


@dataclass(frozen=True)
class Ports:
    """Loopback ports of one run."""

    trajectories: int
    trajectories_grpc: int
    gateway: int
    local_tinker: int
    progress: int
    relays: tuple[tuple[int, int, int], ...]
    """Of each environment instance: trajectories, gateway, health."""

    @staticmethod
    def count(spec: RunSpec) -> int:
        """How many free ports a run needs."""
        return 5 + 3 * sum(environment.replicas for environment in spec.environments)

    @classmethod
    def of(cls, free: list[int]) -> Ports:
        relays = tuple((free[i], free[i + 1], free[i + 2]) for i in range(5, len(free) - 2, 3))
        return cls(free[0], free[1], free[2], free[3], free[4], relays)


@dataclass(frozen=True)
class Folders:
    """Where a run keeps what it makes."""

    root: Path

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def tinker(self) -> Path:
        return self.root / "tinker"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def token(self) -> Path:
        return self.root / "token"

    @property
    def run_file(self) -> Path:
        return self.root / "run.yaml"

    @property
    def uid(self) -> Path:
        return self.root / "uid"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def result(self) -> Path:
        """Last report of a run that is complete."""
        return self.root / "complete.json"

    def environment_file(self, instance: str) -> Path:
        return self.root / "environments" / f"{instance}.yaml"

    def tokenizer(self, instance: str) -> Path:
        return self.root / "environments" / f"{instance}-tokenizer"


@dataclass(frozen=True)
class Instance:
    """One process of an environment."""

    name: str
    environment: Environment
    ports: tuple[int, int, int]


def instances(spec: RunSpec, ports: Ports) -> list[Instance]:
    """Every environment process of the run with the ports of its relay."""
    named = [(f"{entry.name}-{number}", entry) for entry in spec.environments for number in range(entry.replicas)]
    return [Instance(name, entry, relay) for (name, entry), relay in zip(named, ports.relays, strict=True)]


def instance_config(spec: RunSpec, instance: Instance, folders: Folders) -> dict[str, object]:
    """Configuration file of one environment process."""
    trajectories, gateway, _ = instance.ports
    return environment_config(
        spec,
        instance.environment,
        trajectories_url=f"http://127.0.0.1:{trajectories}",
        gateway_url=f"http://127.0.0.1:{gateway}",
        tokenizer_dir=str(folders.tokenizer(instance.name)),
    )


def tinker_url(spec: RunSpec, ports: Ports) -> str | None:
    """Address of the Tinker API; None = the SDK's default."""
    if spec.tinker_api.local is not None:
        return f"http://127.0.0.1:{ports.local_tinker}"
    return spec.tinker_api.base_url


def progress_url(run: RunFile, ports: Ports) -> str:
    return f"http://127.0.0.1:{ports.progress}" + PROGRESS_PATH.format(namespace=NAMESPACE, name=run.name)


def programs(
    run: RunFile, uid: str, ports: Ports, folders: Folders, api_key: str | None, working_directory: Path
) -> list[Program]:
    """All processes of the run, in the order in which they are started; each waits for its peers by itself."""
    spec = run.spec
    base_url = tinker_url(spec, ports)
    key = {"TINKER_API_KEY": api_key} if api_key else {}  # without one the SDK finds its own
    token = folders.token
    grpc = f"127.0.0.1:{ports.trajectories_grpc}"
    listed: list[Program] = []
    if spec.tinker_api.local is not None:
        model = spec.tinker_api.local.model
        arguments = _own(
            "local-tinker", host="127.0.0.1", port=ports.local_tinker, data=folders.tinker, model=model, api_key=api_key
        )
        listed.append(Program("local-tinker", arguments))
    exported = spec.api_server.store.export
    arguments = _own(
        "trajectories",
        host="127.0.0.1",
        port=ports.trajectories,
        grpc_port=ports.trajectories_grpc,
        store=store(spec, uid, folders),
        export=export(run, uid, folders),
        export_endpoint=None if exported is None else exported.endpoint,
        export_region=None if exported is None else exported.region,
        token_file=token,
    )
    listed.append(Program("trajectories", arguments))
    arguments = _own(
        "gateway",
        host="127.0.0.1",
        port=ports.gateway,
        trajectories=grpc,
        tinker_base_url=base_url,
        tokenizer=tokenizer(spec),
        base_model=spec.base_model,
        token_file=token,
    )
    listed.append(Program("gateway", arguments, key))
    arguments = _own(
        "trainer",
        config=folders.run_file,
        trajectories=grpc,
        tinker_base_url=base_url,
        token_file=token,
        run_uid=uid,
        holder="local",
        progress_url=progress_url(run, ports),
    )
    listed.append(Program("trainer", arguments, key))
    for instance in instances(spec, ports):
        relay_trajectories, relay_gateway, health = instance.ports
        arguments = _own(
            "relay",
            trajectories=f"http://127.0.0.1:{ports.trajectories}",
            gateway=f"http://127.0.0.1:{ports.gateway}",
            environment=instance.environment.name,
            instance=instance.name,
            token_file=token,
            tokenizer_dir=folders.tokenizer(instance.name),
            trajectories_port=relay_trajectories,
            gateway_port=relay_gateway,
            health_port=health,
        )
        listed.append(Program(f"relay {instance.name}", arguments))
        listed.append(
            Program(
                f"environment {instance.name}",
                (*instance.environment.command, "serve", "--config", str(folders.environment_file(instance.name))),
                ENVIRONMENT_VARIABLES,
                working_directory,
                after=f"http://127.0.0.1:{health}/healthz",
            )
        )
    return listed


def _own(subcommand: str, **options: object) -> tuple[str, ...]:
    """Command line of one of our programs; an option that is None is left out."""
    given = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items() if value is not None]
    return (sys.executable, "-m", "tinker_atropos.cli.main", subcommand, *(part for pair in given for part in pair))


ENVIRONMENT_VARIABLES = {
    # The tokenizer comes through the relay: nothing is asked of a hub for it, and W&B would wait for a project.
    "WANDB_MODE": "disabled",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}


def store(spec: RunSpec, uid: str, folders: Folders) -> str:
    """Where the trajectory server keeps the run: a folder, or the Redis server that the run names.

    Its password is taken from TINKER_ATROPOS_TRAJECTORIES_STORE_PASSWORD: there is no Secret here.
    """
    url = spec.api_server.store.url
    return str(folders.store) if url is None else f"{url}?run={uid}"


def export(run: RunFile, uid: str, folders: Folders) -> Path | str | None:
    """Where the ledger goes when the run is over: the bucket, or the run's folder, which stands for the volume here.

    A bucket's credentials are taken from the AWS_* variables: there is no Secret here.
    """
    wanted, own = run.spec.api_server.store.export, f"{run.name}-{uid}"
    if wanted is None:
        return None
    return folders.root / "export" / wanted.path / own if wanted.bucket is None else wanted.bucket_of(own)


def tokenizer(spec: RunSpec) -> str:
    """Tokenizer's name for the gateway: the local model brings its own."""
    return spec.base_model if spec.tinker_api.local is not None else spec.config.env.tokenizer_name
