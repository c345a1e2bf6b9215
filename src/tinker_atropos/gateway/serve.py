"""The gateway as a process: what runs beside the HTTP routes, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from tinker_atropos.gateway.generate import Generator
from tinker_atropos.gateway.generation import Version
from tinker_atropos.gateway.metrics import Metrics
from tinker_atropos.gateway.pacing import Pacing
from tinker_atropos.gateway.policies import Policies
from tinker_atropos.gateway.server import Gateway
from tinker_atropos.gateway.service import TinkerService
from tinker_atropos.gateway.text import Text
from tinker_atropos.gateway.tokenizer_files import TokenizerError, pack, resolve
from tinker_atropos.gateway.trajectories import Trajectories
from tinker_atropos.protocol.ending import end_in_any_case
from tinker_atropos.protocol.listening import CannotListenError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """What the command line says. tinker_base_url, tinker_api_key None = as the SDK finds them."""

    host: str
    port: int
    trajectories: str
    tinker_base_url: str | None
    tinker_api_key: str | None
    tokenizer: str
    base_model: str
    token: str | None
    patience: float
    pacing: bool


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)

    metrics = Metrics()
    service = TinkerService(settings.tinker_base_url, settings.tinker_api_key, "tinker-atropos gateway")
    trajectories = Trajectories(settings.trajectories, settings.token)

    def changed(version: Version) -> None:
        metrics.policy_epoch.set(version.epoch)
        metrics.policy_step.set(version.step)
        metrics.policy_changes.inc()

    policies = Policies(service.open, on_change=changed)
    pacing = Pacing(
        trajectories.capacity,
        lambda: trajectories.newest(policies.offer_if_newer),
        metrics,
        on=settings.pacing,
        prefix=f"{secrets.token_hex(4)}-",
    )
    generator = Generator(policies, trajectories.record, metrics, pacing, patience=settings.patience)
    gateway = Gateway(generator, policies, metrics, base_model=settings.base_model, token=settings.token)

    runner = web.AppRunner(gateway.app(), handler_cancellation=True, access_log=None, keepalive_timeout=300)
    await runner.setup()
    with tempfile.TemporaryDirectory(prefix="tokenizer-") as work:
        try:
            site = web.TCPSite(runner, settings.host, settings.port, backlog=1024, shutdown_timeout=1.0)
            try:
                await site.start()
            except OSError as error:
                raise CannotListenError.of(error, settings.host, settings.port) from error
            port = runner.addresses[0][1]
            await _until_stopped(
                stop,
                _tokenizer(gateway, trajectories, settings, Path(work), port),
                trajectories.watch(policies.offer),
                policies.run(),
                pacing.run(),
                _context_length(service, generator, settings.base_model),
            )
            _log.info("stopping")
            end_in_any_case(5.0, 0)
        finally:
            await runner.cleanup()
            await trajectories.close()
            await service.close()


async def _until_stopped(stop: asyncio.Event, *work: object) -> None:
    """Run everything until the signal comes; a part that fails ends all and its exception is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]  # type: ignore[call-overload]
    stopping = asyncio.create_task(stop.wait())
    try:
        pending = {stopping, *tasks}
        while not stopping.done():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in (stopping, *tasks):
            task.cancel()
        await asyncio.gather(stopping, *tasks, return_exceptions=True)


async def _tokenizer(gateway: Gateway, trajectories: Trajectories, settings: Settings, work: Path, port: int) -> None:
    directory = await resolve(settings.tokenizer, settings.tinker_base_url, work)
    try:
        text, archive = await asyncio.gather(
            asyncio.to_thread(Text.load, directory), asyncio.to_thread(pack, directory)
        )
    except ImportError:
        raise  # not the tokenizer's fault
    except Exception as error:  # whatever the files make of the libraries
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise TokenizerError(
            f"the tokenizer {settings.tokenizer} cannot be loaded: {reason[:300]}; it needs tokenizer.json and "
            "tokenizer_config.json, as the hub has them"
        ) from error
    trajectories.vocabulary_size = text.vocabulary_size
    gateway.has_tokenizer(text, archive)
    _log.info("ready: http://%s:%d", settings.host, port, extra={"port": port, "tokenizer": settings.tokenizer})


async def _context_length(service: TinkerService, generator: Generator, model: str) -> None:
    """The model's context, for honest errors; until it is known the service itself has to refuse."""
    pause = 1.0
    while True:
        try:
            generator.context_length = await service.context_length(model)
        except Exception as error:
            _log.debug("cannot learn the model's context length: %s", error)
        else:
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, 60.0)
