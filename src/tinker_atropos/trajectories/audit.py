"""`tinker-atropos audit`: is every acknowledged group accounted for once?

Asks a running server for its ledger, or reads what a run left behind in a directory or a bucket; changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

_ONCE = ("queued", "leased", "trained", "covered", "dropped")


@dataclass(frozen=True, slots=True)
class Balance:
    """What a ledger adds up to, and what is wrong with it."""

    states: Mapping[str, int]
    environments: Mapping[tuple[str, str], int]
    reasons: Mapping[str, int]
    steps: int
    faults: list[str]


def balance(entries: Iterable[Mapping[str, Any]], stored: int) -> Balance:
    """Check a ledger's entries against the number of acknowledged posts."""
    states, environments, reasons = Counter[str](), Counter[tuple[str, str]](), Counter[str]()
    faults: list[str] = []
    seen: set[int] = set()
    batches: dict[tuple[int, int], set[int]] = {}
    for entry in entries:
        number, state = entry["id"], entry["state"]
        if number in seen:
            faults.append(f"group {number} is listed twice")
        seen.add(number)
        if state not in _ONCE:
            faults.append(f"group {number} is in no known state: {state!r}")
        if state == "dropped" and not entry["reason"]:
            faults.append(f"group {number} was dropped without a reason")
        if state in ("trained", "covered"):
            batches.setdefault((entry["epoch"], entry["step"]), set()).add(entry["batch"])
        states[state] += 1
        environments[entry["environment"], state] += 1
        if entry["reason"]:
            reasons[entry["reason"]] += 1
    for (epoch, step), made in sorted(batches.items()):
        if len(made) > 1:
            faults.append(f"step {step} of epoch {epoch} was trained from several batches: {sorted(made)}")
    if len(seen) != stored:
        faults.append(f"{stored} groups were acknowledged and {len(seen)} are in the ledger")
    return Balance(states, environments, reasons, len(batches), faults)


@click.command("audit")
@click.argument("run", metavar="URL|DIRECTORY|s3://BUCKET/PREFIX")
@click.option("--token", help="The run's token, when the server wants one; better given as --token-file.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the run's token.")
@click.option(
    "--store-password", help="Password of a Redis store; better given as TINKER_ATROPOS_AUDIT_STORE_PASSWORD."
)
@click.option("--endpoint", help="URL of the service that has the bucket, when it is not Amazon's.")
@click.option("--region", help="Region of the bucket.")
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Form of the answer."
)
def command(
    run: str,
    token: str | None,
    token_file: Path | None,
    store_password: str | None,
    endpoint: str | None,
    region: str | None,
    output: str,
) -> None:
    """Check that every acknowledged group of a run is accounted for once, and show what became of them.

    Exit status 0 when the ledger balances, 1 when it does not or there is none. A bucket's credentials are taken from
    the usual AWS_* variables.

    \b
    Examples:
      tinker-atropos audit http://127.0.0.1:8000                a run that is going on
      tinker-atropos audit ./run-store                          what a run left behind
      tinker-atropos audit ~/.local/state/tinker-atropos/runs/quickstart-…      a run of this machine
      tinker-atropos audit 'redis://redis:6379/0?run=NAME'      a run on a Redis server
      tinker-atropos audit s3://archive/runs/quickstart-…       an export in a bucket
    """
    from tinker_atropos.protocol.token_file import read_token
    from tinker_atropos.trajectories import audited

    try:
        if run.startswith(("http://", "https://")):
            entries, stored = audited.of_server(run.rstrip("/"), read_token(token_file) or token)
        elif run.startswith(("redis://", "rediss://", "unix://")):
            entries, stored = audited.of_redis(run, store_password)
        elif run.startswith("s3://"):
            entries, stored = audited.of_bucket(run, endpoint, region)
        else:
            entries, stored = audited.of_directory(Path(run))
        result = balance(entries, stored)
    except audited.NoLedgerError as error:
        if output == "json":
            click.echo(json.dumps({"balanced": None, "error": str(error)}))
            raise SystemExit(1) from None
        raise click.ClickException(str(error)) from None
    except (KeyError, TypeError) as error:
        raise click.ClickException(f"{run} does not give a ledger as this version knows it ({error})") from None
    if output == "json":
        click.echo(json.dumps(_plain(result, stored)))
        raise SystemExit(1 if result.faults else 0)
    _tell(result, stored)


def _plain(result: Balance, stored: int) -> dict[str, Any]:
    """The answer in JSON."""
    environments: dict[str, dict[str, int]] = {}
    for (environment, state), count in sorted(result.environments.items()):
        environments.setdefault(environment, {})[state] = count
    return {
        "balanced": not result.faults,
        "stored": stored,
        "steps": result.steps,
        "states": dict(sorted(result.states.items())),
        "environments": environments,
        "dropped": dict(sorted(result.reasons.items())),
        "faults": result.faults,
    }


def _tell(result: Balance, stored: int) -> None:
    click.echo(f"{stored} groups acknowledged, {result.steps} steps trained")
    for (environment, state), count in sorted(result.environments.items()):
        click.echo(f"  {environment or '(no environment)'}: {count} {state}")
    for reason, count in sorted(result.reasons.items()):
        click.echo(f"  dropped because {reason}: {count}")
    for fault in result.faults:
        click.echo(f"  WRONG: {fault}", err=True)
    if result.faults:
        raise click.ClickException(f"the ledger does not balance ({len(result.faults)} faults)")
    click.echo("balanced: every acknowledged group is accounted for once")
