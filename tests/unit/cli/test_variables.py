"""A variable that was meant for a program and is read by nothing is named; Kubernetes' own are nobody's slip."""

from __future__ import annotations

import click
import pytest

from tinker_atropos.cli.main import SUBCOMMANDS, cli
from tinker_atropos.cli.variables import drop_service_links, unread, unread_of
from tinker_atropos.trajectories.run_api import main as run_api

CASES = {
    "an option": ("gateway", "TINKER_ATROPOS_GATEWAY_PORT", None),
    "a switch": ("gateway", "TINKER_ATROPOS_GATEWAY_PACING", None),
    "a variable beside": ("gateway", "TINKER_BASE_URL", None),
    "the key": ("gateway", "TINKER_API_KEY", None),
    "the SDK's own": ("gateway", "TINKER_TELEMETRY", None),
    "another program's": ("gateway", "TINKER_ATROPOS_RELAY_GATEWAY", None),
    "another program's slip": ("gateway", "TINKER_ATROPOS_TRAINER_PORT", None),
    "the operator's": ("gateway", "TINKER_ATROPOS_OPERATOR_WORKERS", None),
    "of something else": ("gateway", "TINKER_ATROPOS_KILLS", None),
    "a password of the store": ("trajectories", "TINKER_ATROPOS_TRAJECTORIES_STORE_PASSWORD", None),
    "a key of the local server": ("local-tinker", "TINKER_ATROPOS_LOCAL_TINKER_API_KEY", None),
    "a misspelt option": ("gateway", "TINKER_ATROPOS_GATEWAY_PROT", "TINKER_ATROPOS_GATEWAY_PORT"),
    "a misspelt long option": (
        "trainer",
        "TINKER_ATROPOS_TRAINER_PROGRES_URL",
        "TINKER_ATROPOS_TRAINER_PROGRESS_URL",
    ),
    "a misspelt program": ("gateway", "TINKER_ATROPOS_GATWAY_PORT", "TINKER_ATROPOS_GATEWAY_PORT"),
    "a misspelt project": ("gateway", "TINKER_ATROPS_GATEWAY_PORT", "TINKER_ATROPOS_GATEWAY_PORT"),
    "no program": ("trainer", "TINKER_ATROPOS_LOG_LEVEL", "TINKER_ATROPOS_TRAINER_LOG_LEVEL"),
    "a program of two words": (
        "local-tinker",
        "TINKER_ATROPOS_LOCAL_TINKER_MODLE",
        "TINKER_ATROPOS_LOCAL_TINKER_MODEL",
    ),
    "nothing near": ("gateway", "TINKER_ATROPOS_GATEWAY_COLOUR", "see tinker-atropos gateway --help"),
}


def command_of(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return command


@pytest.mark.parametrize(("program", "variable", "expected"), CASES.values(), ids=CASES)
def test_variables(program: str, variable: str, expected: str | None) -> None:
    said = unread({variable: "x", "PATH": "/bin"}, program, command_of(program), SUBCOMMANDS)
    if expected is None:
        assert said == []
    else:
        assert len(said) == 1 and variable in said[0] and expected in said[0]


RUN_API = {
    "an option": ("RUN_API_PORT", None),
    "of something else": ("RUNNER_NAME", None),
    "another program's": ("TINKER_ATROPOS_GATEWAY_PROT", None),
    "a misspelt option": ("RUN_API_PROT", "did you mean RUN_API_PORT?"),
    "a misspelt program": ("RUNAPI_STORE", "did you mean RUN_API_STORE?"),
    "nothing near": ("RUN_API_COLOUR", "see run-api --help for the options"),
}


@pytest.mark.parametrize(("variable", "expected"), RUN_API.values(), ids=RUN_API)
def test_variables_of_run_api(variable: str, expected: str | None) -> None:
    said = unread_of({variable: "x", "PATH": "/bin"}, "RUN_API_", "run-api", run_api)
    assert [expected in sentence and variable in sentence for sentence in said if expected] == [True] * bool(expected)
    assert len(said) == bool(expected)


LINKS = {
    "TINKER_ATROPOS_GATEWAY_PORT": "tcp://10.0.0.7:8001",
    "TINKER_ATROPOS_GATEWAY_SERVICE_HOST": "10.0.0.7",
    "TINKER_ATROPOS_GATEWAY_SERVICE_PORT": "8001",
    "TINKER_ATROPOS_GATEWAY_SERVICE_PORT_HTTP": "8001",
    "TINKER_ATROPOS_GATEWAY_PORT_8001_TCP": "tcp://10.0.0.7:8001",
    "TINKER_ATROPOS_GATEWAY_PORT_8001_TCP_ADDR": "10.0.0.7",
    "TINKER_ATROPOS_GATEWAY_PORT_8001_TCP_PROTO": "tcp",
}
"""What a Service called tinker-atropos-gateway puts into every pod beside it."""


def test_variables_of_a_service_are_neither_named_nor_read() -> None:
    assert unread(LINKS, "gateway", command_of("gateway"), SUBCOMMANDS) == []
    environ = {**LINKS, "TINKER_ATROPOS_GATEWAY_HOST": "0.0.0.0", "PATH": "/bin"}
    drop_service_links(environ)
    assert environ == {"TINKER_ATROPOS_GATEWAY_HOST": "0.0.0.0", "PATH": "/bin"}


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_program_reads_its_own_variables(name: str) -> None:
    command = command_of(name)
    prefix = f"TINKER_ATROPOS_{name.replace('-', '_').upper()}_"
    options = [parameter.name or "" for parameter in command.params if isinstance(parameter, click.Option)]
    assert unread({f"{prefix}{option.upper()}": "x" for option in options}, name, command, SUBCOMMANDS) == []
