"""One trainer process from start to exit status: signals, the last report, a sentence instead of a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import signal

from tinker_atropos.protocol.credentials import missing_key
from tinker_atropos.protocol.ending import end_in_any_case
from tinker_atropos.protocol.exit_codes import CONFIG_ERROR
from tinker_atropos.trainer.failures import StoppedError, TrainerError
from tinker_atropos.trainer.pipeline import Pipeline, Result
from tinker_atropos.trainer.reporting import Reporter
from tinker_atropos.trainer.service import TinkerService
from tinker_atropos.trainer.settings import TrainerSettings
from tinker_atropos.trainer.trajectories import TrajectoryClient

log = logging.getLogger(__name__)

STOPPED = 143  # 128 + SIGTERM
GRACE_SECONDS = 8.0
"""A step in flight may end within this time after a signal. When the whole run is deleted its peers go at the same
moment, and a trainer that waits for them would be the last thing left of it."""

LOOK_SECONDS = 0.1

FAREWELL_SECONDS = 4.0
"""For finishing the session and sending the last report after a signal."""


async def run_trainer(settings: TrainerSettings) -> int:
    """Train, report, and return the exit status."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    reporter = Reporter(settings, lambda: dt.datetime.now(dt.UTC))
    sentence = None if settings.api_key else missing_key()
    if sentence:
        log.error("%s", sentence)
        await reporter.finish(phase="Failed", message=sentence)
        return CONFIG_ERROR
    await reporter.start()

    def open_service() -> TinkerService:
        metadata = {"run": settings.name, "run_uid": settings.run_uid, "attempt": str(settings.attempt)}
        return TinkerService(settings.tinker_base_url, settings.api_key, metadata, f"tinker-atropos {settings.name}")

    async with TrajectoryClient(settings.trajectories, settings.token, reporter.waiting) as trajectories:
        pipeline = Pipeline(settings, trajectories, open_service, reporter, stopping)
        task = asyncio.create_task(pipeline.run())
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            end_in_any_case(GRACE_SECONDS + FAREWELL_SECONDS + 1.0, STOPPED)
            await _grace(task, pipeline, trajectories)
            task.cancel()
        stop.cancel()
        return await _conclude(task, pipeline, reporter)


async def _grace(task: asyncio.Task[Result], pipeline: Pipeline, trajectories: TrajectoryClient) -> None:
    """Let a step in flight end, as long as nothing is waited for that may not come: no takeover, no server away."""
    if pipeline.is_training and not trajectories.away:
        log.info("stopping: a step in flight may end within %.0f s", GRACE_SECONDS)
    end = asyncio.get_running_loop().time() + GRACE_SECONDS
    while pipeline.is_training and not trajectories.away and asyncio.get_running_loop().time() < end:
        if (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
            return


async def _conclude(task: asyncio.Task[Result], pipeline: Pipeline, reporter: Reporter) -> int:
    try:
        result = await task
    except TrainerError as failure:
        log.error("%s", failure)
        await pipeline.stop(str(failure))
        await reporter.finish(phase="Failed", message=str(failure))
        return failure.status
    except (StoppedError, asyncio.CancelledError):
        log.info("stopped before the end; the next trainer goes on from the newest covered state")
        sentence = "stopped by a signal; the next trainer goes on from the newest covered state"
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await asyncio.gather(pipeline.stop("stopped by a signal"), reporter.finish(message=sentence))
        return STOPPED
    except Exception as error:
        log.exception("unexpected error")
        sentence = f"the trainer broke ({type(error).__name__}: {str(error)[:300]}); this is a fault of tinker-atropos"
        await pipeline.stop(sentence)
        await reporter.finish(phase="Failed", message=sentence)
        return 1
    log.info("complete", extra={"step": result.step, "sampler_weights": result.sampler_weights, "state": result.state})
    await reporter.finish(
        phase="Complete", step=result.step, sampler_weights=result.sampler_weights, message=result.problem
    )
    return 0
