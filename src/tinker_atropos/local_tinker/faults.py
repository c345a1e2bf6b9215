"""Faults on request, for tests only: a status code, a delay or no answer at all, per route and count."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Awaitable, Callable

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, model_validator

PREFIX = "/api/v1"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Fault(BaseModel):
    """One kind of trouble. `route` may hold * ; with `after` the request is carried out and only its answer is lost."""

    model_config = ConfigDict(extra="forbid")

    route: str
    status: int | None = Field(default=None, ge=400, le=599)
    delay: float | None = Field(default=None, ge=0)
    hang: bool = False
    after: bool = False
    count: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _does_something(self) -> Fault:
        if self.status is None and self.delay is None and not self.hang:
            raise ValueError("give at least one of status, delay and hang")
        return self

    def matches(self, path: str) -> bool:
        return self.count > 0 and fnmatch.fnmatchcase(path, PREFIX + self.route)


class Faults:
    """The faults that are still to come."""

    def __init__(self) -> None:
        self.waiting: list[Fault] = []

    def add(self, fault: Fault) -> None:
        self.waiting.append(fault)

    def clear(self) -> None:
        self.waiting.clear()

    def take(self, path: str) -> Fault | None:
        """The next fault for a path; each is used up `count` times."""
        for fault in self.waiting:
            if fault.matches(path):
                fault.count -= 1
                if not fault.count:
                    self.waiting.remove(fault)
                return fault
        return None

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        fault = self.take(request.path)
        if fault is None:
            return await handler(request)
        if fault.after:
            await handler(request)
        if fault.delay is not None:
            await asyncio.sleep(fault.delay)
        if fault.hang:
            # Ends when the client gives up: aiohttp then cancels the handler, or at shutdown.
            await asyncio.Event().wait()
        if fault.status is not None:
            return web.json_response({"detail": f"injected fault on {fault.route}"}, status=fault.status)
        return await handler(request)
