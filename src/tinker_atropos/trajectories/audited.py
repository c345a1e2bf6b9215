"""Where an audit finds a ledger: a running server, what a run left behind, a Redis server. Changes nothing."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import redis.exceptions

from tinker_atropos.protocol.identity import AUTHORIZATION_HEADER, bearer
from tinker_atropos.trajectories.export_bucket import Bucket, BucketError, exported_snapshot
from tinker_atropos.trajectories.ledger import Ledger
from tinker_atropos.trajectories.store import Recovered, StoreCorruptError, StoreUnavailableError
from tinker_atropos.trajectories.store.address import with_password
from tinker_atropos.trajectories.store.embedded import look_into, snapshot_in
from tinker_atropos.trajectories.store.redis import look_into_redis

Entries = Iterable[Mapping[str, Any]]
_SEGMENTS, _SNAPSHOTS = "segment-*.log", "snapshot-*.json"
_RUN_FOLDER_STORE = "store"
"""Folder in which a run of `tinker-atropos run --data` keeps its store."""


class NoLedgerError(Exception):
    """There is no ledger to audit; the message says what is there instead, and what to give."""


def of_server(url: str, token: str | None) -> tuple[Entries, int]:
    """Entries and number of acknowledged groups of a running trajectory server."""
    try:
        host = urlsplit(url).hostname
    except ValueError:
        host = None
    if not host:
        raise NoLedgerError(f"{url} is no URL; give one such as http://127.0.0.1:8000")
    headers = {AUTHORIZATION_HEADER: bearer(token)} if token else {}
    entries: list[dict[str, Any]] = []
    after: int | None = 0
    stored = 0
    try:
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            while after is not None:
                answer = client.get("/ledger", params={"after": after, "limit": 1000})
                if answer.status_code in (401, 403):
                    wanted = "it refuses this token" if token else "it wants the run's token"
                    raise NoLedgerError(f"{url}: {wanted}; give it with --token-file or --token")
                if answer.status_code != 200:
                    raise NoLedgerError(_foreign(url, f"/ledger answers {answer.status_code}"))
                page = answer.json()
                entries += page["entries"]
                after, stored = page["next"], int(page["sums"]["stored"])
    except (httpx.InvalidURL, UnicodeError):
        raise NoLedgerError(f"{url} is no URL; give one such as http://127.0.0.1:8000") from None
    except httpx.TimeoutException:
        raise NoLedgerError(f"{url}: no answer came in 60 s; is that the trajectory server's HTTP port?") from None
    except httpx.ConnectError:
        raise NoLedgerError(
            f"{url}: nothing answers there; is the trajectory server running, and is that its port?"
        ) from None
    except httpx.HTTPError:
        raise NoLedgerError(_foreign(url, "it does not speak HTTP as that does")) from None
    except (ValueError, KeyError, TypeError):
        raise NoLedgerError(_foreign(url, "/ledger answers something else")) from None
    return entries, stored


def of_directory(directory: Path) -> tuple[Entries, int]:
    """The same of a store's directory, or of the data folder of a run on this machine."""
    return _of_recovered(lambda: look_into(_store_in(directory)), str(directory))


def of_redis(address: str, password: str | None) -> tuple[Entries, int]:
    """The same of a run on a Redis server, whether it is going on or not."""
    try:
        whole = with_password(address, password)
        return _of_recovered(lambda: asyncio.run(look_into_redis(whole)), address.rpartition("@")[2])
    except (StoreUnavailableError, redis.exceptions.RedisError) as error:
        raise NoLedgerError(str(error)) from None


def of_bucket(address: str, endpoint: str | None, region: str | None) -> tuple[Entries, int]:
    """The same of a run that was exported to a bucket."""
    try:
        bucket = Bucket(address, endpoint, region)
        data = asyncio.run(exported_snapshot(bucket))
    except BucketError as error:
        raise NoLedgerError(str(error)) from None
    return _of_recovered(lambda: Recovered(snapshot_in(data, bucket.url), []), bucket.url)


def _store_in(directory: Path) -> Path:
    for candidate in (directory, directory / _RUN_FOLDER_STORE):
        if any(candidate.glob(_SEGMENTS)) or any(candidate.glob(_SNAPSHOTS)):
            return candidate
    if not directory.exists():
        if re.fullmatch(r"[\w.-]+:\d+", str(directory)):
            raise NoLedgerError(f"{directory} is not there; a server's URL begins with http://: http://{directory}")
        raise NoLedgerError(f"{directory} is not there; give a store's directory, or the URL of a running server")
    if not directory.is_dir():
        raise NoLedgerError(f"{directory} is no directory; give a store's directory, or the URL of a running server")
    raise NoLedgerError(
        f"{directory} is no store: it holds no {_SEGMENTS} and no {_SNAPSHOTS}, and no folder {_RUN_FOLDER_STORE} with "
        "them; give the directory that the server has as --store, or the --data folder of a run"
    )


def _of_recovered(look: Any, name: str) -> tuple[Entries, int]:
    try:
        recovered: Recovered = look()
        ledger = Ledger.from_snapshot(recovered.snapshot)
        for entry in recovered.entries:
            ledger.apply_entry(entry)
    except StoreCorruptError as error:
        raise NoLedgerError(str(error)) from None
    except OSError as error:
        raise NoLedgerError(f"{error.filename or name}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise NoLedgerError(
            f"{name} cannot be read as a ledger ({type(error).__name__}); is it of another version?"
        ) from None
    return _rows(ledger), ledger.stored


def _rows(ledger: Ledger) -> Iterator[Mapping[str, Any]]:
    names = ("environment", "reason", "epoch", "step", "batch")
    for number, group in ledger.groups.items():
        yield {"id": number, "state": str(group.state), **{name: getattr(group, name) for name in names}}


def _foreign(url: str, why: str) -> str:
    return (
        f"{url}: what answers there is no trajectory server ({why}); give the URL of the trajectory server's HTTP port"
    )
