"""One operator at a time: a Lease in the operator's namespace, by the rules of client-go's leader election.

(`kubernetes.aio` has an election too; it writes local times as UTC, logs every lost race with a traceback and never
gives a Lease back, which costs each restart the whole lease time.)"""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import time
from collections.abc import Callable
from typing import Any

from tinker_atropos_operator.kube import LEASES, ApiError, Kube

log = logging.getLogger(__name__)


class Election:
    """The Lease and who holds it, as seen from here."""

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        name: str,
        identity: str,
        seconds: float,
        now: Callable[[], dt.datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._seconds = seconds
        self._now = now
        self._clock = clock
        self._pause = seconds * 2 / 15
        self._renew_within = seconds * 2 / 3
        self._renewed = float("-inf")
        self._seen: tuple[str, str] = ("", "")
        self._seen_at = clock()
        self._lease: dict[str, Any] | None = None

    async def acquire(self) -> None:
        """Wait until this process leads."""
        waiting_for = ""
        while True:
            try:
                if await self._try():
                    log.info("leading: the Lease %s/%s is held", self._namespace, self._name)
                    return
                holder = self._holder()
                if holder != waiting_for:
                    log.info("standing by: %s leads", holder)
                    waiting_for = holder
            except ApiError as error:
                log.warning("cannot read or write the Lease %s/%s: %s", self._namespace, self._name, error)
            await asyncio.sleep(self._pause)

    def valid(self) -> bool:
        """Surely held: nobody else can have it yet."""
        return self._clock() < self._renewed + self._renew_within

    async def hold(self) -> None:
        """Keep the Lease; returns when it is lost."""
        while True:
            await asyncio.sleep(self._pause)
            patience = max(0.1, self._renewed + self._renew_within - self._clock())
            try:
                async with asyncio.timeout(patience):
                    if await self._try():
                        continue
                if self._holder() not in ("", self._identity):
                    log.error("the Lease is held by %s now", self._holder())
                    return
            except TimeoutError:
                log.warning("the Lease was not renewed: no answer within %.1f s", patience)
            except ApiError as error:
                log.warning("the Lease was not renewed: %s", error)
            if not self.valid():
                log.error("the Lease could not be renewed for %.0f s", self._renew_within)
                return

    async def release(self) -> None:
        """Give the Lease back, so that another process need not wait for its end."""
        if self._lease is None or self._holder() != self._identity:
            return
        self._renewed = float("-inf")
        body = {**self._lease, "spec": {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}
        try:
            await self._kube.replace(LEASES, self._namespace, self._name, body)
        except ApiError as error:
            log.info("the Lease was not given back: %s", error)

    def _holder(self) -> str:
        spec = (self._lease or {}).get("spec") or {}
        return str(spec.get("holderIdentity") or "")

    async def _try(self) -> bool:
        """Take or renew the Lease if that is allowed; True when it is held now."""
        began = self._clock()
        held = await self._take_or_renew()
        if held:
            self._renewed = began
        return held

    async def _take_or_renew(self) -> bool:
        stamp = self._now().isoformat(timespec="microseconds").replace("+00:00", "Z")
        try:
            lease = await self._kube.get(LEASES, self._namespace, self._name)
        except ApiError as error:
            if not error.not_found:
                raise
            return await self._write(None, stamp, transitions=0, acquired=stamp)
        self._lease = lease
        spec = lease.get("spec") or {}
        mark = (str(spec.get("holderIdentity") or ""), str(spec.get("renewTime") or ""))
        if mark != self._seen:
            # Time runs from when a renewal was seen here: clocks of nodes differ.
            self._seen, self._seen_at = mark, self._clock()
        holder = mark[0]
        duration = float(spec.get("leaseDurationSeconds") or self._seconds)
        if holder not in ("", self._identity) and self._clock() < self._seen_at + duration:
            return False
        mine = holder == self._identity
        transitions = int(spec.get("leaseTransitions") or 0) + (0 if mine else 1)
        acquired = str(spec.get("acquireTime") or stamp) if mine else stamp
        return await self._write(lease, stamp, transitions=transitions, acquired=acquired)

    async def _write(self, lease: dict[str, Any] | None, stamp: str, *, transitions: int, acquired: str) -> bool:
        metadata = lease["metadata"] if lease else {"name": self._name, "namespace": self._namespace}
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": max(1, int(self._seconds)),
                "acquireTime": acquired,
                "renewTime": stamp,
                "leaseTransitions": transitions,
            },
        }
        try:
            if lease is None:
                self._lease = await self._kube.create(LEASES, self._namespace, body)
            else:
                self._lease = await self._kube.replace(LEASES, self._namespace, self._name, body)
        except ApiError as error:
            if error.conflict:
                return False
            raise
        self._seen, self._seen_at = (self._identity, stamp), self._clock()
        return True
