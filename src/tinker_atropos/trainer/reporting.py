"""How the trainer tells the world where it is: progress to the operator (or local mode), and the termination message.

Losing a report never harms training: every error here is logged and forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tinker_atropos.protocol.progress import (
    MAX_TERMINATION_MESSAGE,
    SECONDS_BETWEEN_REPORTS,
    ProgressAnswer,
    ProgressReport,
    WarningReport,
)
from tinker_atropos.trainer.settings import TrainerSettings

log = logging.getLogger(__name__)


class Reporter:
    """Keeps the newest report and sends it, at most one each SECONDS_BETWEEN_REPORTS; the newest wins."""

    def __init__(self, settings: TrainerSettings, now: Callable[[], dt.datetime]) -> None:
        self._settings = settings
        self._now = now
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.answer = ProgressAnswer()
        self.report = ProgressReport(
            run_uid=settings.run_uid,
            attempt=settings.attempt,
            phase="Starting",
            total_steps=settings.spec.config.env.total_steps,
            time=self._timestamp(),
        )

    def _timestamp(self) -> str:
        return self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def update(self, **fields: Any) -> None:
        """Change fields of the report; it is sent soon."""
        self.report = self.report.model_copy(update={**fields, "time": self._timestamp()})
        self._changed.set()

    def waiting(self, message: str) -> None:
        """What the trainer waits for, said once until it changes."""
        if self.report.message != message:
            log.info("%s", message)
            self.update(message=message)

    def warned(self, warnings: tuple[WarningReport, ...]) -> None:
        """What the trajectory server warns of now; each is logged when it is new."""
        known = {(warning.reason, warning.environment) for warning in self.report.warnings or ()}
        for warning in warnings:
            if (warning.reason, warning.environment) not in known:
                log.warning("%s", warning.message)
        if warnings != self.report.warnings:
            self.update(warnings=warnings)

    async def start(self) -> None:
        """Send the first report and learn what the status knows; then go on in the background.

        Tried several times: a run whose store was lost goes on from the checkpoint in the answer.
        """
        for pause in (1.0, 2.0, 4.0, 0.0):
            if await self._send():
                break
            await asyncio.sleep(pause)
        self._task = asyncio.create_task(self._loop())

    async def _loop(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._send()
            await asyncio.sleep(SECONDS_BETWEEN_REPORTS)

    async def finish(self, **fields: Any) -> None:
        """The last report: written as termination message and sent with a few tries."""
        self.update(**fields)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._write_termination_message()
        for pause in (0.5, 1.0, 0.0):
            if await self._send():
                return
            await asyncio.sleep(pause)

    def _write_termination_message(self) -> None:
        path = self._settings.termination_log
        if path is None:
            return
        report = self.report
        text = report.model_dump_json(by_alias=True, exclude_none=True)
        if len(text.encode()) > MAX_TERMINATION_MESSAGE:
            report = report.model_copy(update={"environments": (), "warnings": None, "message": report.message[:1000]})
            text = report.model_dump_json(by_alias=True, exclude_none=True)
        try:
            path.write_text(text)
        except OSError as error:
            log.warning("termination message not written: %s", error)

    async def _send(self) -> bool:
        url = self._settings.progress_url
        if url is None:
            return True
        body = self.report.model_dump_json(by_alias=True, exclude_none=True)
        try:
            headers = {"Content-Type": "application/json"}
            if self._settings.progress_token_file is not None:
                # Read each time: the kubelet renews a projected token in place.
                headers["Authorization"] = f"Bearer {_read(self._settings.progress_token_file)}"
            # A new connection each time: a replica that does not lead answers 503, the next try may meet the leader.
            async with httpx.AsyncClient(timeout=10, verify=self._verify(), trust_env=False) as client:
                response = await client.post(url, content=body, headers=headers)
            if response.status_code != 200:
                log.info("progress report answered %d: %s", response.status_code, response.text[:200])
                return False
            self.answer = ProgressAnswer.model_validate_json(response.content)
        except (httpx.HTTPError, OSError, ValueError) as error:
            log.info("progress report not sent: %s", error or type(error).__name__)
            return False
        return True

    def _verify(self) -> ssl.SSLContext | bool:
        if self._settings.progress_ca is None:
            return True
        return ssl.create_default_context(cafile=str(self._settings.progress_ca))


def _read(path: Path) -> str:
    return path.read_text().strip()
