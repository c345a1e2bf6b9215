"""A whole run on this machine: it learns, it cleans up after itself, and it names what broke."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer_processes import free_port, until
from tinker_atropos.run import yaml_text
from tinker_atropos.trajectories.audit import command as audit

pytestmark = [pytest.mark.wire, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"

Start = Callable[..., subprocess.Popen[str]]


def processes_of(folder: Path) -> list[str]:
    """Command lines of living processes that mention the run's folder, other than `run` itself."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line and " run " not in line:
            found.append(line)
    return found


def pid_of(folder: Path, word: str) -> int:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        if str(folder) in line and f" {word} " in line and " run " not in line:
            return int(entry.parent.name)
    return 0


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start(data: Path) -> Iterator[Start]:
    made: list[subprocess.Popen[str]] = []

    def run(file: Path = QUICKSTART, *options: str) -> subprocess.Popen[str]:
        arguments = [sys.executable, "-m", "tinker_atropos.cli.main", "run", str(file), "--data", str(data), *options]
        process = subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        made.append(process)
        return process

    yield run
    for process in made:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def changed(tmp_path: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    [document] = yaml_text.load_all(QUICKSTART.read_text())
    change(document["spec"])
    path = tmp_path / "run.yaml"
    path.write_text(yaml_text.dump(document))
    return path


def logged_steps(data: Path) -> list[dict[str, Any]]:
    path = data / "logs" / "trainer.log"
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if str(record.get("message", "")).startswith("step "):
            records.append(record)
    return records


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_quick_start_learns(tmp_path: Path, data: Path, start: Start, seed: int) -> None:
    def with_seed(spec: dict[str, Any]) -> None:
        spec["config"]["tinker"]["seed"] = seed
        spec["environments"][0]["config"] = {"seed": seed}

    process = start(changed(tmp_path, with_seed), "--output", "json")
    output, errors = process.communicate(timeout=580)
    assert process.returncode == 0, errors
    result = json.loads(output)
    assert result["report"]["samplerWeights"].endswith("/sampler_weights/final")
    run = result["report"]["samplerWeights"].removeprefix("tinker://").split("/")[0]
    saved = list((data / "tinker" / "runs" / run / "sampler_weights").glob("final*/adapter_model.safetensors"))
    assert len(saved) == 1, "the final weights are not on disk"
    rewards = [record["reward"] for record in logged_steps(data)]
    assert len(rewards) == 40
    assert rewards[0] < 0.3, f"there was nothing to learn: {rewards}"
    assert max(rewards) >= 0.9 and sum(rewards[-5:]) / 5 >= 0.9, rewards
    assert processes_of(data) == []


def test_a_redis_store_with_a_password_and_an_export(
    tmp_path: Path, data: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
        pytest.skip("no redis-server on this machine (Debian: apt-get install redis-server)")
    port, password = free_port(), "p@ss/word"
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(tmp_path), "--appendonly", "yes"]
    redis = subprocess.Popen(
        ["redis-server", *options, "--save", "", "--requirepass", password], stdout=subprocess.DEVNULL
    )
    cli = ["redis-cli", "-p", str(port), "-a", password, "--no-auth-warning"]
    monkeypatch.setenv("TINKER_ATROPOS_TRAJECTORIES_STORE_PASSWORD", password)

    def in_redis(spec: dict[str, Any]) -> None:
        spec["config"]["env"]["total_steps"] = 3
        store = {"type": "Redis", "url": f"redis://127.0.0.1:{port}/0", "secretRef": {"name": "redis"}}
        spec["apiServer"] = {
            "store": {**store, "export": {"volume": {"persistentVolumeClaim": {"claimName": "a"}}, "path": "runs"}}
        }

    try:
        process = start(changed(tmp_path, in_redis), "--output", "json")
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        uid = (data / "uid").read_text().strip()
        keys = subprocess.run([*cli, "--scan"], capture_output=True, text=True, check=True).stdout
        assert f"tinker-atropos:{{{uid}}}:" in keys, keys
        assert password not in " ".join(path.read_text() for path in (data / "logs").iterdir())
        exported = json.loads(output)["report"]["ledgerExport"]
        assert exported == str(data / "export" / "runs" / f"quickstart-{uid}")
        audited = CliRunner().invoke(audit, [exported])
        assert audited.exit_code == 0 and "3 steps trained" in audited.output, audited.output
        assert not (data / "store").exists()
    finally:
        redis.terminate()
        redis.wait(20)


def test_interrupted_it_ends_everything_and_goes_on_later(tmp_path: Path, data: Path, start: Start) -> None:
    file = changed(tmp_path, lambda spec: spec["config"]["env"].update(total_steps=10))
    process = start(file)
    until(lambda: len(logged_steps(data)) >= 3, "three steps", 200)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"go on with: --data {data}" in errors and "Traceback" not in errors
    assert processes_of(data) == []

    process = start(file, "--output", "json")
    output, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors
    report = json.loads(output)["report"]
    assert (report["step"], report["epoch"]) == (10, 2)
    steps = [record["step"] for record in logged_steps(data)]
    assert sorted(set(steps)) == list(range(1, 11)) and len(steps) <= 11


@pytest.mark.parametrize("part", ["trajectories", "gateway", "relay", "local-tinker", "serve"])
def test_a_part_that_dies_is_named(data: Path, start: Start, part: str) -> None:
    process = start()
    os.kill(until(lambda: pid_of(data, part), part, 100), signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    named = "environment last-digit-0" if part == "serve" else "relay last-digit-0" if part == "relay" else part
    assert f"{named} was killed by signal 9" in errors
    assert "last lines of" in errors and "Traceback" not in errors.split("last lines of")[0]
    assert processes_of(data) == []


def test_killed_itself_it_leaves_nothing_running(data: Path, start: Start) -> None:
    process = start()
    until(lambda: pid_of(data, "serve"), "the environment", 100)
    process.kill()
    until(lambda: processes_of(data) == [], "everything ended", 60)


def test_an_environment_that_cannot_start(tmp_path: Path, data: Path, start: Start) -> None:
    script = tmp_path / "broken.py"
    script.write_text("raise SystemExit('no data set in ./gsm8k')\n")

    def broken(spec: dict[str, Any]) -> None:
        spec["environments"][0]["command"] = ["python", str(script)]

    process = start(changed(tmp_path, broken))
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "environment last-digit-0 ended with status 1" in errors and "no data set in ./gsm8k" in errors
    assert processes_of(data) == []


def test_a_program_that_does_not_exist_is_noticed_before_anything_is_made(
    tmp_path: Path, data: Path, start: Start
) -> None:
    def absent(spec: dict[str, Any]) -> None:
        spec["environments"][0]["command"] = ["no-such-program"]

    process = start(changed(tmp_path, absent))
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 78
    assert errors == (
        "error: spec.environments[0].command: the program 'no-such-program' is not found in PATH; "
        "install it, or give its path\n"
    )
    assert not data.exists()


def test_an_environment_that_thinks_it_is_done(tmp_path: Path, data: Path, start: Start) -> None:
    def done(spec: dict[str, Any]) -> None:
        spec["environments"][0]["command"] = ["true"]

    process = start(changed(tmp_path, done))
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "environment last-digit-0 ended with status 0; an environment goes on until the run ends" in errors
    assert processes_of(data) == []


def test_an_environment_that_fails_without_a_word(tmp_path: Path, data: Path, start: Start) -> None:
    def silent(spec: dict[str, Any]) -> None:
        spec["environments"][0]["command"] = ["python", "-c", "raise SystemExit(78)"]

    process = start(changed(tmp_path, silent))
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 1, "78 would say that the run file cannot be used"
    assert "environment last-digit-0 ended with status 78" in errors and "  (it wrote nothing)" in errors
    assert processes_of(data) == []


def test_a_plain_tinker_atropos_file(tmp_path: Path, data: Path, start: Start) -> None:
    plain = tmp_path / "plain.yaml"
    plain.write_text(
        "env: {group_size: 16, batch_size: 64, total_steps: 3, max_token_length: 8, use_wandb: true}\n"
        "openai: [{base_url: 'http://localhost:8001/v1', api_key: x, server_type: sglang}]\n"
        "tinker: {lora_rank: 8, learning_rate: 1e-3, wandb_project: p}\n"
    )
    command = f"python {ROOT / 'examples' / 'environments' / 'last_digit.py'}"
    process = start(plain, "--local-model", "tiny", "--environment-command", command, "--output", "json")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    first = json.loads(output)
    assert first["report"]["step"] == 3

    process = start(plain, "--local-model", "tiny", "--environment-command", command, "--output", "json")
    output, errors = process.communicate(timeout=60)
    again = json.loads(output)
    assert (process.returncode, again["message"]) == (0, "already complete")
    assert again["report"]["samplerWeights"] == first["report"]["samplerWeights"]
    assert len(logged_steps(data)) == 3, "nothing was trained or saved again"


def test_a_relative_data_folder_elsewhere_than_the_run_file(tmp_path: Path) -> None:
    """The environment's working directory is the one that has its script, not this one."""
    file = changed(tmp_path, lambda spec: spec["config"]["env"].update(total_steps=1))
    here, script = tmp_path / "here", tmp_path / "examples" / "environments" / "last_digit.py"
    here.mkdir()
    script.parent.mkdir(parents=True)
    script.write_text((ROOT / "examples" / "environments" / "last_digit.py").read_text())
    arguments = [
        sys.executable,
        "-m",
        "tinker_atropos.cli.main",
        "run",
        str(file),
        "--data",
        "data",
        "--output",
        "json",
    ]
    done = subprocess.run(arguments, cwd=here, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"] == str(here / "data")


def test_a_part_that_is_not_ready_in_time(tmp_path: Path, data: Path, start: Start) -> None:
    def hasty(spec: dict[str, Any]) -> None:
        spec["deadlines"] = {"startup": "500ms"}

    process = start(changed(tmp_path, hasty), "--output", "json")
    output, errors = process.communicate(timeout=100)
    answer = json.loads(output)
    assert process.returncode == answer["status"] == 75, errors
    assert "deadlines.startup" in answer["message"] or "startup" in json.dumps(answer["report"])
    assert "Traceback" not in errors
    assert processes_of(data) == []
