"""`tinker-atropos audit`: is every acknowledged group accounted for once?

Asks a running server for its ledger, or reads a store directory that a run left behind; changes nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
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
@click.argument("run", metavar="URL|DIRECTORY")
@click.option("--token", help="The run's token, when the server wants one.")
def command(run: str, token: str | None) -> None:
    """Check that every acknowledged group of a run is accounted for once, and show what became of them.

    \b
    Examples:
      tinker-atropos audit http://127.0.0.1:8000      a run that is going on
      tinker-atropos audit ./run-store                what a run left behind
    """
    entries: Iterable[Mapping[str, Any]]
    if run.startswith(("http://", "https://")):
        entries, stored = _of_server(run.rstrip("/"), token)
    else:
        entries, stored = _of_directory(Path(run))
    result = balance(entries, stored)
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


def _of_server(url: str, token: str | None) -> tuple[list[dict[str, Any]], int]:
    import httpx

    from tinker_atropos.protocol.identity import AUTHORIZATION_HEADER, bearer

    headers = {AUTHORIZATION_HEADER: bearer(token)} if token else {}
    entries: list[dict[str, Any]] = []
    after: int | None = 0
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            while after is not None:
                answer = client.get("/ledger", params={"after": after, "limit": 1000})
                answer.raise_for_status()
                page = answer.json()
                entries += page["entries"]
                after = page["next"]
    except (httpx.HTTPError, json.JSONDecodeError, KeyError) as error:
        raise click.ClickException(f"{url} does not give its ledger: {error}") from None
    return entries, page["sums"]["stored"]


def _of_directory(directory: Path) -> tuple[Iterator[dict[str, Any]], int]:
    from tinker_atropos.trajectories.ledger import Ledger
    from tinker_atropos.trajectories.store import StoreCorruptError
    from tinker_atropos.trajectories.store.embedded import look_into

    if not directory.is_dir():
        raise click.ClickException(f"{directory} is no store directory; give one, or the URL of a running server")
    try:
        recovered = look_into(directory)
        ledger = Ledger.from_snapshot(recovered.snapshot)
        for entry in recovered.entries:
            ledger.apply_entry(entry)
    except StoreCorruptError as error:
        raise click.ClickException(str(error)) from None
    names = ("environment", "reason", "epoch", "step", "batch")
    rows = (
        {"id": number, "state": str(group.state), **{name: getattr(group, name) for name in names}}
        for number, group in ledger.groups.items()
    )
    return rows, ledger.stored
