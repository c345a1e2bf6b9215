"""Which processes a run consists of on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tinker_atropos.local.display import Rates
from tinker_atropos.local.programs import Folders, Ports, instance_config, instances, programs
from tinker_atropos.protocol.progress import ProgressReport, TokensReport
from tinker_atropos.run.load import RunFile, convert


def run(**spec: Any) -> RunFile:
    document = {
        "apiVersion": "tinker-atropos.dev/v1alpha1",
        "kind": "TinkerAtroposRun",
        "metadata": {"name": "r"},
        "spec": {
            "tinkerAPI": {"keySecretRef": {"name": "tinker"}},
            "environments": [{"name": "a", "command": ["python", "a.py"], "replicas": 2}],
            **spec,
        },
    }
    return convert(document, "r")


def listed(file: RunFile) -> dict[str, list[str]]:
    ports = Ports.of(list(range(9000, 9000 + Ports.count(file.spec))))
    return {
        program.name: list(program.arguments)
        for program in programs(file, "uid", ports, Folders(Path("/data")), "tml-key", Path("/here"))
    }


def test_with_the_local_server() -> None:
    names = list(listed(run(tinkerAPI={"local": {"model": "tiny"}})))
    assert names == [
        "local-tinker",
        "trajectories",
        "gateway",
        "trainer",
        "relay a-0",
        "environment a-0",
        "relay a-1",
        "environment a-1",
    ]


def test_with_a_hosted_service_nothing_is_started_for_it() -> None:
    assert "local-tinker" not in listed(run(tinkerAPI={"baseURL": "https://tinker.example"}))


def test_the_key_is_on_no_command_line_of_a_hosted_run() -> None:
    for arguments in listed(run(tinkerAPI={"baseURL": "https://tinker.example"})).values():
        assert "tml-key" not in arguments


def test_the_store_is_a_folder_or_the_redis_server_that_the_run_names() -> None:
    arguments = listed(run())["trajectories"]
    assert arguments[arguments.index("--store") + 1] == "/data/store"
    store = {"type": "Redis", "url": "redis://localhost:6379/0", "secretRef": {"name": "redis"}}
    arguments = listed(run(apiServer={"store": store}))["trajectories"]
    assert arguments[arguments.index("--store") + 1] == "redis://localhost:6379/0?run=uid"


def test_the_ledger_is_exported_to_the_runs_folder() -> None:
    assert "--export" not in listed(run())["trajectories"]
    export = {"volume": {"persistentVolumeClaim": {"claimName": "archive"}}, "path": "runs"}
    arguments = listed(run(apiServer={"store": {"export": export}}))["trajectories"]
    assert arguments[arguments.index("--export") + 1] == "/data/export/runs/r-uid"


def test_the_ledger_is_exported_to_the_bucket_here_too() -> None:
    export = {"bucket": "s3://archive/runs", "endpoint": "http://127.0.0.1:9000", "secretRef": {"name": "s3"}}
    arguments = listed(run(apiServer={"store": {"export": export}}))["trajectories"]
    assert arguments[arguments.index("--export") + 1] == "s3://archive/runs/r-uid"
    assert arguments[arguments.index("--export-endpoint") + 1] == "http://127.0.0.1:9000"
    assert "--export-region" not in arguments


def test_no_port_is_given_twice() -> None:
    file = run(tinkerAPI={"local": {"model": "tiny"}})
    ports = Ports.of(list(range(Ports.count(file.spec))))
    single = [ports.trajectories, ports.trajectories_grpc, ports.gateway, ports.local_tinker, ports.progress]
    everything = single + [port for relay in ports.relays for port in relay]
    assert len(set(everything)) == len(everything) == Ports.count(file.spec)


def test_an_environment_sees_only_its_own_relay() -> None:
    file = run(tinkerAPI={"local": {"model": "tiny"}})
    ports = Ports.of(list(range(9000, 9000 + Ports.count(file.spec))))
    second = instances(file.spec, ports)[1]
    config: Any = instance_config(file.spec, second, Folders(Path("/data")))
    assert config["env"]["rollout_server_url"] == f"http://127.0.0.1:{second.ports[0]}"
    assert config["openai"][0]["base_url"] == f"http://127.0.0.1:{second.ports[1]}/v1"


def report(step: int, tokens: int) -> ProgressReport:
    return ProgressReport(run_uid="u", phase="Training", step=step, total_steps=10, tokens=TokensReport(sampled=tokens))


def test_rates_come_from_the_first_step_on() -> None:
    rates = Rates()
    rates.update(report(0, 0), now=0.0)  # start-up is not part of the rate
    rates.update(report(1, 100), now=60.0)
    assert rates.tokens_per_second is None
    rates.update(report(3, 300), now=62.0)
    assert rates.tokens_per_second == 100.0
    assert rates.seconds_left == 7.0
