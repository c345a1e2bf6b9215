"""One thread that does one thing after another for an event loop: half of an executor's price for each."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Writer:
    """Runs work in its thread and tells the loop of each result, in order."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def do(self, loop: asyncio.AbstractEventLoop, work: Callable[[], T], done: Callable[[T | OSError], Any]) -> None:
        """`done` is called on the loop with the result, or with the OSError that the work ended in."""

        def run() -> None:
            result: T | OSError
            try:
                result = work()
            except OSError as error:
                result = error
            except Exception as error:  # nobody may wait for ever
                logger.exception("the store's writer failed")
                result = OSError(errno.EIO, repr(error))
            loop.call_soon_threadsafe(done, result)

        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
            self._thread.start()
        self._work.put(run)

    def _run(self) -> None:
        # Woken in the midst of the loop's work it could only wait for the interpreter's lock: it takes its turn later.
        with contextlib.suppress(OSError, AttributeError):  # another kernel, or forbidden
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        while (work := self._work.get()) is not None:
            work()

    def end(self) -> None:
        """After the work that was given."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None
