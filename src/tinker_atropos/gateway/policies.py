"""Which weights answer: the newest published policy, swapped in when its sampler is ready, never before.

Requests that come before the first policy wait here. A request that runs while a newer policy arrives finishes with the
weights it began with, and is recorded under their version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tinker_atropos.gateway.generation import Version
from tinker_atropos.gateway.service import RefusedError, Sampler, SamplerGoneError, UnavailableError

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 5.0
_LOG_EVERY = 15.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Policy:
    """What was published. sampler_path "" = the base model itself."""

    version: Version
    sampler_path: str
    base_model: str


@dataclass(frozen=True, eq=False)
class ActivePolicy:
    """A policy whose sampler is open."""

    policy: Policy
    sampler: Sampler


class Policies:
    """The wanted policy and the one that answers."""

    def __init__(
        self,
        open_sampler: Callable[[str, str], Awaitable[Sampler]],
        *,
        on_change: Callable[[Version], None] = lambda version: None,
    ) -> None:
        self._open = open_sampler
        self._on_change = on_change
        self._wanted: Policy | None = None
        self._active: ActivePolicy | None = None
        self._wanted_changed = asyncio.Event()
        self._there = asyncio.Event()
        self._settled = asyncio.Event()
        """Whether the wanted policy answers, or cannot."""
        self.problem = ""
        """Why there is no sampler for the wanted policy; "" = there is one, or none is wanted yet."""

    @property
    def active(self) -> ActivePolicy | None:
        return self._active

    def offer(self, policy: Policy) -> None:
        """This is the newest policy now."""
        if policy != self._wanted:
            self._wanted = policy
            self._settled.clear()
            self._wanted_changed.set()

    def offer_if_newer(self, policy: Policy) -> None:
        """The same from a source that may be late."""
        wanted = self._wanted
        if wanted is None or policy.version > wanted.version:
            self.offer(policy)

    async def current(self) -> ActivePolicy:
        """The policy to sample from. Waits until there is one."""
        while self._active is None:
            await self._there.wait()
        return self._active

    async def newest(self) -> ActivePolicy:
        """The same, but while a newer one is on its way in, that one; if it cannot come in, what there is."""
        if self._active is not None:
            await self._settled.wait()
        return await self.current()

    def gone(self, active: ActivePolicy) -> None:
        """The service does not know this sampler any more: open one for the newest policy again."""
        if self._active is active:
            _log.warning("the sampler of policy %s is gone; opening it again", active.policy.version)
            self._active = None
            self._there.clear()
            self._settled.clear()
            self._wanted_changed.set()

    async def run(self) -> None:
        """Open samplers as policies are offered. Ends only by cancellation."""
        while True:
            await self._wanted_changed.wait()
            self._wanted_changed.clear()
            await self._make_active()

    async def _make_active(self) -> None:
        loop = asyncio.get_running_loop()
        pause, said = _FIRST_DELAY, loop.time() - _LOG_EVERY
        while (wanted := self._wanted) is not None and not (self._active and self._active.policy == wanted):
            try:
                sampler = await self._open(wanted.sampler_path, wanted.base_model)
            except (SamplerGoneError, RefusedError, UnavailableError) as error:
                self.problem = f"policy {wanted.version} ({wanted.sampler_path or wanted.base_model}): {error}"
                if wanted == self._wanted:
                    self._settled.set()
                if loop.time() - said >= _LOG_EVERY:
                    said = loop.time()
                    _log.warning("cannot open a sampler for %s; trying again", self.problem)
                try:  # a newer policy cuts the wait short: the weights of this one may have expired
                    async with asyncio.timeout(pause):
                        await self._wanted_changed.wait()
                    self._wanted_changed.clear()
                    pause = _FIRST_DELAY
                except TimeoutError:
                    pause = min(pause * 2, _LONGEST_DELAY)
                continue
            self.problem = ""
            self._active = ActivePolicy(wanted, sampler)
            self._there.set()
            if wanted == self._wanted:
                self._settled.set()
            self._on_change(wanted.version)
            _log.info("policy %s answers from now on", wanted.version, extra={"sampler_path": wanted.sampler_path})
