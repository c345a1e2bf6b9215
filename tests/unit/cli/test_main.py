"""The command line as people meet it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tinker_atropos.cli.main import SUBCOMMANDS
from tinker_atropos.protocol import ports

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "examples" / "quickstart.yaml"


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tinker_atropos.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **variables},
    )


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_explains_itself(name: str) -> None:
    result = call(name, "--help")
    assert result.returncode == 0, result.stderr
    assert "Example" in result.stdout and "Usage:" in result.stdout


@pytest.mark.parametrize(("given", "meant"), [("gatway", "gateway"), ("rnu", "run"), ("tune", None)])
def test_a_misspelt_subcommand_names_the_nearest(given: str, meant: str | None) -> None:
    result = call(given)
    assert result.returncode == 2
    assert (f"Did you mean {meant!r}?" in result.stderr) if meant else ("Did you mean" not in result.stderr)


def test_a_misspelt_variable_is_warned_of_and_the_program_goes_on() -> None:
    result = call("validate", str(QUICKSTART), TINKER_ATROPOS_VALIDATE_OUTPT="json")
    assert result.returncode == 0 and result.stdout.startswith("quickstart: valid")
    assert "TINKER_ATROPOS_VALIDATE_OUTPT is read by nothing; did you mean TINKER_ATROPOS_VALIDATE_OUTPUT?" in (
        result.stderr
    )


def test_validate_accepts_the_quick_start() -> None:
    result = call("validate", str(QUICKSTART), "--output", "json")
    assert json.loads(result.stdout) == {
        "name": "quickstart",
        "valid": True,
        "problems": [],
        "warnings": [],
    }


BAD_FILES = {
    "a problem": ("apiVersion: x\nkind: TinkerAtroposRun\n", "apiVersion"),
    "no YAML": ("a: [\n", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("text", "field"), BAD_FILES.values(), ids=BAD_FILES)
def test_validate_answers_in_json_what_is_wrong_as_well(tmp_path: Path, text: str, field: str | None) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    result = call("validate", str(path), "--output", "json")
    answer = json.loads(result.stdout)
    assert result.returncode == 78 and answer["valid"] is False
    assert answer["problems"][0]["field"] == (field or str(path)) and answer["problems"][0]["message"]


def test_validate_answers_in_json_about_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = call("validate", str(tmp_path / "absent"), "--output", "json")
    [problem] = json.loads(result.stdout)["problems"]
    assert result.returncode == 78
    assert problem["message"] == "cannot be read: No such file or directory"
    assert problem["fix"] == "give the path of a run file"


def test_a_bad_run_file_is_named_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        QUICKSTART.read_text().replace("learning_rate", "learning_rat").replace("batch_size: 128", "batch_size: 100")
    )
    result = call("run", str(path))
    assert result.returncode == 78
    assert "did you mean 'learning_rate'?" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_current_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    script = (
        f"cd {tmp_path} && mkdir gone && cd gone && rmdir ../gone && {sys.executable} -m tinker_atropos.cli.main run x"
    )
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 1
    assert result.stderr == "Error: the current folder is not there any more; change to one that is\n"


LACKING = {
    "run": ("aiohttp", "local", (str(QUICKSTART), "--data", "TMP/data")),
    "trajectories": ("grpc", "trajectories", ("--store", "TMP/store", "--port", "0", "--grpc-port", "0")),
    "gateway": ("tinker", "gateway", ("--base-model", "m", "--port", "0")),
    "trainer": ("grpc", "trainer", ("--config", str(QUICKSTART))),
    "audit": ("redis", "trajectories", ("TMP",)),
    "local-tinker": ("jax", "local-tinker", ("--data", "TMP/tinker", "--port", "0")),
}


@pytest.mark.parametrize(("program", "lacks"), LACKING.items(), ids=LACKING)
def test_a_package_that_is_not_installed_is_named_with_what_brings_it(
    tmp_path: Path, program: str, lacks: tuple[str, str, tuple[str, ...]]
) -> None:
    package, extra, arguments = lacks
    argv = [program, *(part.replace("TMP", str(tmp_path)) for part in arguments)]
    code = f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = {argv!r}; "
    code += "from tinker_atropos.cli.main import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "TINKER_API_KEY"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60, env=environment, cwd=ROOT
    )
    assert done.returncode == 1
    said = f"Error: {program} needs the package {package}; install it with: pip install 'tinker-atropos[{extra}]'"
    assert done.stderr.splitlines()[-1] == said and "Traceback" not in done.stderr


def test_completion_script() -> None:
    assert "_TINKER_ATROPOS_COMPLETE" in call("completion", "bash").stdout


def test_going_on_with_a_changed_run_file_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "uid").write_text("x")
    (data / "run.yaml").write_text(QUICKSTART.read_text().replace("lora_rank: 8", "lora_rank: 4"))
    result = call("run", str(QUICKSTART), "--data", str(data))
    assert result.returncode == 78
    assert "holds a run of another run file" in result.stderr and "spec.config" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_data_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = call("run", str(QUICKSTART), "--data", str(tmp_path / "file"))
    assert result.returncode == 78 and "error: --data" in result.stderr and "Traceback" not in result.stderr


def test_a_log_level_that_is_none() -> None:
    result = call("trainer", "--config", str(QUICKSTART), "--log-level", "LOUD")
    assert result.returncode == 1 and "'LOUD' is no level" in result.stderr and "Traceback" not in result.stderr


@pytest.fixture(scope="module")
def taken() -> Iterator[str]:
    """A port on which somebody else listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield str(held.getsockname()[1])


RELAY = ("relay", "--trajectories", "http://127.0.0.1:1", "--gateway", "http://127.0.0.1:1", "--environment", "e")
RELAY += ("--instance", "e-0", "--tokenizer-dir", "TMP/tokenizer")
KEY = {"TINKER_API_KEY": "tml-test"}
PORTS = {
    "trajectories": (("trajectories", "--store", "TMP/store", "--grpc-port", "0", "--port", "TAKEN"), "--port"),
    "trajectories' gRPC": (
        ("trajectories", "--store", "TMP/store", "--port", "0", "--grpc-port", "TAKEN"),
        "--grpc-port",
    ),
    "gateway": (("gateway", "--base-model", "m", "--port", "TAKEN"), "--port"),
    "relay to trajectories": (
        (*RELAY, "--trajectories-port", "TAKEN", "--gateway-port", "0", "--health-port", "0"),
        "--trajectories-port",
    ),
    "relay to gateway": (
        (*RELAY, "--trajectories-port", "0", "--gateway-port", "TAKEN", "--health-port", "0"),
        "--gateway-port",
    ),
    "relay's health": (
        (*RELAY, "--trajectories-port", "0", "--gateway-port", "0", "--health-port", "TAKEN"),
        "--health-port",
    ),
    "local-tinker": (("local-tinker", "--data", "TMP/tinker", "--port", "TAKEN"), "--port"),
}


@pytest.mark.parametrize(("arguments", "option"), PORTS.values(), ids=PORTS)
def test_a_port_that_is_taken_names_its_option(
    tmp_path: Path, taken: str, arguments: tuple[str, ...], option: str
) -> None:
    given = [part.replace("TMP", str(tmp_path)).replace("TAKEN", taken) for part in arguments]
    result = call(*given, **KEY)
    assert result.returncode == 1
    errors = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    said = f"another program listens on 127.0.0.1:{taken}; end that one, or give another {option}"
    assert errors == [f"Error: {option} {taken}: {said}"], "one line, no traceback"
    assert not (tmp_path / "store").exists(), "nothing is made before the port is had"


CONFIG = ("trainer", "--config", str(QUICKSTART))
OPTIONS = {
    "a host without a port": ((*CONFIG, "--trajectories", "api"), "'--trajectories': 'api' is no HOST:PORT"),
    "a URL without http": ((*CONFIG, "--tinker-base-url", "host:80"), "'--tinker-base-url': 'host:80' is no URL"),
    "an attempt below 0": ((*CONFIG, "--attempt", "-1"), "'--attempt': -1 is not in the range"),
    "a progress URL that is none": ((*CONFIG, "--progress-url", "here"), "'--progress-url': 'here' is no URL"),
    "no patience": (("gateway", "--base-model", "m", "--patience", "nan"), "'--patience': nan is not a number"),
    "a gateway's peer that is none": (
        ("gateway", "--base-model", "m", "--trajectories", "x"),
        "'--trajectories': 'x' is no HOST:PORT",
    ),
    "a relay's peer that is none": ((*RELAY[:3], "--gateway", "x"), "'--gateway': 'x' is no URL"),
    "no size": (("trajectories", "--store", "x", "--compact-mb", "nan"), "'--compact-mb': nan is not a number"),
    "no environment": ((*RELAY, "--environment", ""), "--environment: '' is no name"),
    "a line break in an instance": ((*RELAY, "--instance", "a\nb"), "--instance: 'a\\nb' is no name"),
    "no model": (("gateway", "--base-model", ""), "--base-model: is empty; name the run's base model"),
    "a token that is not there": (
        ("gateway", "--base-model", "m", "--token-file", "absent"),
        "--token-file: cannot read absent: No such file or directory",
    ),
    "an authority that is not there": (
        (*CONFIG, "--progress-ca", "absent"),
        "'--progress-ca': File 'absent' does not exist",
    ),
    "a store of another kind": (
        ("trajectories", "--store", "s3://bucket/run", "--port", "0", "--grpc-port", "0"),
        "'s3://bucket/run' is no place for a store; give a directory, or redis://HOST:PORT/DB?run=NAME",
    ),
    "no store": (("trajectories", "--store", "", "--port", "0", "--grpc-port", "0"), "'' is no place for a store"),
    "half a program": (("run", "x", "--environment-command", "python 'x"), "cannot be split into words"),
}


@pytest.mark.parametrize(("arguments", "message"), OPTIONS.values(), ids=OPTIONS)
def test_an_option_that_is_none_is_refused_before_anything_else(arguments: tuple[str, ...], message: str) -> None:
    result = call(*arguments, **KEY)
    assert result.returncode == 2 and message in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("key", "status", "message"),
    [("", 78, "Error: TINKER_API_KEY is not set"), ("mine", 77, "Error: TINKER_API_KEY does not begin with tml-")],
)
def test_a_gateway_without_a_key_says_so(tmp_path: Path, key: str, status: int, message: str) -> None:
    arguments = ("gateway", "--base-model", "m", "--port", "0")
    result = call(*arguments, TINKER_API_KEY=key, TINKER_CREDENTIAL_CMD="", HOME=str(tmp_path))
    assert result.returncode == status
    assert result.stderr.startswith(message) and len(result.stderr.splitlines()) == 1


def test_a_tokenizer_that_cannot_be_loaded_is_said_and_ends_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    result = call("gateway", "--base-model", "m", "--port", "0", "--tokenizer", str(tmp_path), **KEY)
    assert result.returncode == 78
    [line] = [line for line in result.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith(f"Error: the tokenizer {tmp_path} cannot be loaded: ")


def test_the_local_server_listens_where_the_others_look_for_it() -> None:
    assert f"[default: {ports.LOCAL_TINKER_HTTP};" in call("local-tinker", "--help").stdout
