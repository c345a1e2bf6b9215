"""A run's export in a bucket of a service that speaks S3, for clusters that keep their archives there.

A bucket knows no renaming, so the order of writing makes an export whole: `run.json` names the other objects, is
written last and replaced in one piece. A later export takes new names, and the older one's objects go when it stands;
whoever is killed in between leaves the older export, or none, and begins again.
"""

from __future__ import annotations

import asyncio
import html
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tinker_atropos.run.bucket_address import BUCKET_ADDRESS, ENDPOINT
from tinker_atropos.trajectories.export import SUMMARY, Export, ExportError, readable, segment_name, snapshot_name
from tinker_atropos.trajectories.store.segment import SEAL

if TYPE_CHECKING:
    from obstore.store import S3Store

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

SCHEME = "s3://"
SEGMENT_BYTES = 8 << 20
"""What is held in memory at a time; each segment is one request, so that none is left half uploaded."""

RETRY_SECONDS = 30
"""So long a request is repeated while the service is away or answers 5xx, with back-off; who asked may ask again."""
_REQUEST_TIMEOUT, _CONNECT_TIMEOUT = "60s", "5s"

_OWN = re.compile(r"(segment-\d{8}\.log|snapshot-(?P<number>\d{8})\.json)")
_CODE, _MESSAGE = re.compile(r"<Code>(.*?)</Code>", re.DOTALL), re.compile(r"<Message>(.*?)</Message>", re.DOTALL)
_METADATA_SERVICE = "//169.254."
"""Whom the client asks for credentials when it was given none."""


class BucketError(Exception):
    """What the service, or the address, does not allow; the message says what to do about it."""


@dataclass(frozen=True)
class Bucket:
    """A place in a bucket, as `s3://BUCKET/PREFIX`; credentials come from the usual AWS_* variables."""

    url: str
    endpoint: str | None = None
    """URL of a service other than Amazon's; None = as AWS_ENDPOINT_URL says."""
    region: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(BUCKET_ADDRESS, self.url):
            raise BucketError(f"{self.url!r} is no place in a bucket; write it like s3://my-bucket/runs")
        if self.endpoint is not None and not re.fullmatch(ENDPOINT, self.endpoint):
            raise BucketError(f"{self.endpoint!r} is no endpoint; write it like https://minio.example.com:9000")
        object.__setattr__(self, "url", self.url.rstrip("/"))

    @property
    def name(self) -> str:
        return self.url.removeprefix(SCHEME).partition("/")[0]

    @property
    def prefix(self) -> str:
        return self.url.removeprefix(SCHEME).partition("/")[2]

    def check(self) -> None:
        """Raise BucketError when the library is not there, or cannot do with what it was given."""
        _ = self._store

    async def put(self, name: str, data: bytes) -> None:
        """Write one object in one piece."""
        import obstore

        await self._ask(lambda store: obstore.put(store, name, data, use_multipart=False))

    async def get(self, name: str) -> bytes | None:
        """An object, None = there is none of that name."""
        import obstore

        try:
            return await self._ask(lambda store: bytes(obstore.get(store, name).bytes()))
        except BucketError as error:
            if isinstance(error.__cause__, FileNotFoundError) and "NoSuchBucket" not in str(error.__cause__):
                return None
            raise

    async def names(self) -> tuple[list[str], list[str]]:
        """The objects right here, and the names that stand where folders would."""
        import obstore

        found = await self._ask(obstore.list_with_delimiter)
        return [entry["path"] for entry in found["objects"]], [path.strip("/") for path in found["common_prefixes"]]

    async def delete(self, names: Collection[str]) -> None:
        import obstore

        await self._ask(lambda store: obstore.delete(store, list(names)))

    async def _ask(self, question: Callable[[S3Store], Answer]) -> Answer:
        """In a thread: with the library's own asynchronous calls a process that ends soon after them can be aborted."""
        import obstore

        try:
            return await asyncio.to_thread(question, self._store)
        except (obstore.exceptions.BaseError, OSError) as error:
            # Never the request, which holds the key's name and signature.
            raise BucketError(refusal(self, str(error))) from error

    @cached_property
    def _store(self) -> S3Store:
        try:
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        except ImportError:
            raise BucketError(
                f"{self.url}: the package obstore, which buckets are reached with, is not installed; "
                "install it with: pip install 'tinker-atropos[bucket]'"
            ) from None
        given = {"endpoint": self.endpoint, "region": self.region}
        try:
            return S3Store(
                self.name,
                prefix=self.prefix or None,
                config={name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
                client_options={
                    "allow_http": True,  # who wants TLS gives an endpoint with https
                    "timeout": _REQUEST_TIMEOUT,
                    "connect_timeout": _CONNECT_TIMEOUT,
                },
                retry_config={
                    "max_retries": 20,
                    "retry_timeout": timedelta(seconds=RETRY_SECONDS),
                    "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2},
                },
            )
        except (BaseError, ValueError) as error:
            raise BucketError(f"{self.url}: {str(error).splitlines()[0]}") from error


def refusal(bucket: Bucket, text: str) -> str:
    """What the client's error, with the service's answer in it, means for who runs this."""
    at = f" at {bucket.endpoint}" if bucket.endpoint else ""
    code, message = (
        html.unescape(found[1]).strip() if found else "" for found in (_CODE.search(text), _MESSAGE.search(text))
    )
    said = f"{code}: {message}".strip(": ").rstrip(".") if code else ""
    if code == "NoSuchBucket":
        return f"there is no bucket {bucket.name!r}{at} ({said}); make it, or name another one"
    if _METADATA_SERVICE in text and not os.environ.get("AWS_ACCESS_KEY_ID"):
        return (
            f"no credentials were given for the bucket {bucket.name!r}{at}; give AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (in a run file: as keys of the Secret that export.secretRef names)"
        )
    if code in ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"):
        return f"the bucket {bucket.name!r}{at} is in another region ({said}); give its region"
    if (
        code in ("AccessDenied", "SignatureDoesNotMatch", "InvalidAccessKeyId", "ExpiredToken")
        or "403 Forbidden" in text
    ):
        return (
            f"the bucket {bucket.name!r}{at} refuses these credentials ({said or '403 Forbidden'}); give "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY that may list, get, put and delete there"
        )
    tried = f", tried for {RETRY_SECONDS} s" if re.search(r"after [1-9]\d* retries", text) else ""
    if said:
        return f"the service of the bucket {bucket.name!r}{at} answers {said}{tried}"
    untrusted = re.search(r"InvalidCertificate\(\s*(\w+)", text)
    if untrusted:
        return (
            f"the certificate of the service of the bucket {bucket.name!r}{at} is not trusted ({untrusted[1]}); "
            "SSL_CERT_FILE may name a file with the authority's"
        )
    status = re.search(r"status code: (\d{3} [A-Z][A-Za-z ]+)", text)
    if status:
        return f"the service of the bucket {bucket.name!r}{at} answers {status[1].strip()}{tried}"
    return (
        f"the service of the bucket {bucket.name!r}{at} cannot be reached{tried}; check the endpoint, and that it runs"
    )


class BucketExport(Export):
    """Objects below a prefix; complete when `run.json` is there, which is written last."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket.url)
        self._bucket = bucket

    async def _look(self) -> None:
        try:
            await self._first_number()
        except BucketError as error:
            raise ExportError(f"cannot write the export {self.place}: {error}") from error

    async def _write(self, records: AsyncIterator[bytes], snapshot: bytes, told: Mapping[str, Any]) -> None:
        try:
            number = await self._first_number()
            files = []
            async for segment in _segments(records):
                files.append(segment_name(number))
                await self._bucket.put(files[-1], segment)
                number += 1
            files.append(snapshot_name(number))
            await self._bucket.put(files[-1], snapshot)
            await self._bucket.put(SUMMARY, readable({**told, "files": files}))
        except BucketError as error:
            raise ExportError(f"cannot write the export {self.place}: {error}") from error
        await self._clear({SUMMARY, *files})

    async def _first_number(self) -> int:
        """From where on no file's name is one of the export that stands there."""
        files = files_of(await self._bucket.get(SUMMARY))
        if files is not None:
            return max(number for name in files if (number := snapshot_number(name)) is not None)
        if not all(_OWN.fullmatch(name) for name in (await self._bucket.names())[0]):
            raise ExportError(f"{self.place} is there already and is no export; give a prefix of its own")
        return 1

    async def _clear(self, kept: Collection[str]) -> None:
        """Delete what older exports, or one that was killed, left here."""
        try:
            there, _ = await self._bucket.names()
            stale = [name for name in there if _OWN.fullmatch(name) and name not in kept]
            if stale:
                await self._bucket.delete(stale)
        except BucketError as error:
            logger.warning("the export %s is complete, older objects beside it stay: %s", self.place, error)


def snapshot_number(name: str) -> int | None:
    found = _OWN.fullmatch(name)
    return int(found["number"]) if found and found["number"] else None


def files_of(summary: bytes | None) -> list[str] | None:
    """The other objects of an export, by its `run.json`; None = that is no such thing, or not there."""
    try:
        files = json.loads(summary or b"")["files"]
    except (ValueError, KeyError, TypeError):
        return None
    own = isinstance(files, list) and all(isinstance(name, str) and _OWN.fullmatch(name) for name in files)
    return files if own and any(snapshot_number(name) is not None for name in files) else None


async def _segments(records: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    held: list[bytes] = []
    size = 0
    async for record in records:
        held.append(record)
        size += len(record)
        if size >= SEGMENT_BYTES:
            held.append(SEAL)
            yield b"".join(held)
            held, size = [], 0
    yield b"".join((*held, SEAL))


async def exported_snapshot(bucket: Bucket) -> bytes:
    """The file with the ledger of an export. Raises BucketError when there is none, saying what is there instead."""
    files = files_of(await bucket.get(SUMMARY))
    snapshot = await bucket.get(files[-1]) if files else None
    if snapshot is not None:
        return snapshot
    there, folders = await bucket.names()
    if any(_OWN.fullmatch(name) for name in there):
        raise BucketError(
            f"the export {bucket.url} was begun and is not complete: {SUMMARY}, which is written last, is not there"
        )
    runs = [name for name in folders if files_of(await replace(bucket, url=f"{bucket.url}/{name}").get(SUMMARY))]
    below = f"; exports below it: {', '.join(f'{bucket.url}/{name}' for name in runs)}" if runs else ""
    raise BucketError(f"{bucket.url} is no export: it holds no {SUMMARY}{below}")
