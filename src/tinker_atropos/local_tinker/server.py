"""Puts the server together, keeps it running and ends it in order."""

from __future__ import annotations

import asyncio
import datetime as dt
import fcntl
import json
import logging
import os
import secrets
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from aiohttp import web

from tinker_atropos.local_tinker import routes, tiny_model, tokenizer
from tinker_atropos.local_tinker.checkpoints import Checkpoints
from tinker_atropos.local_tinker.config import read_config
from tinker_atropos.local_tinker.engine import Engine
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.faults import Faults
from tinker_atropos.local_tinker.futures import Outcome, Promise, Promises
from tinker_atropos.local_tinker.metering import Meter
from tinker_atropos.local_tinker.registry import Registry
from tinker_atropos.local_tinker.service import Service
from tinker_atropos.local_tinker.tokenizer import Vocabulary
from tinker_atropos.local_tinker.weights import load_weights
from tinker_atropos.local_tinker.worker import Worker
from tinker_atropos.protocol.listening import cannot_listen

logger = logging.getLogger(__name__)

_HOUSEKEEPING = 5.0
_PATIENCE = 5.0


@dataclass(frozen=True)
class Settings:
    """What the command line says."""

    host: str
    port: int
    data: Path
    model: Path
    api_key: str = ""
    faults: bool = False
    shortest_ttl: int = 3600
    warm_up: bool = True


def name_of(model: Path) -> str:
    """Base model name that is served: the tiny model has its own wherever it lies, others that of their folder."""
    if (model / "config.json").is_file() and json.loads((model / "config.json").read_text()) == tiny_model.CONFIG:
        return tiny_model.NAME
    return f"local/{model.resolve().name}"


def _lock(data: Path) -> IO[bytes]:
    """Two servers on one folder would take each other's unfinished checkpoints for leftovers."""
    handle = (data / "lock").open("wb")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"--data {data}: in use by another local-tinker; stop it or name another folder") from None
    except OSError:
        logger.warning("%s: this file system has no locks; see to it that only one server uses the folder", data)
    return handle


class Server:
    """One process: an event loop for HTTP and a worker thread for the engine."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        config = read_config(settings.model)
        self._base_model = name_of(settings.model)
        vocabulary = Vocabulary(settings.model)
        if vocabulary.size > config.vocab_size:
            raise UserError(
                f"--model {settings.model}: the tokenizer has {vocabulary.size} tokens, "
                f"the model only {config.vocab_size}"
            )
        settings.data.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(settings.data)
        self._registry = Registry(settings.data / "registry.sqlite")
        self._engine = Engine(config, load_weights(settings.model, config), vocabulary.decode)
        self._worker = Worker(self._engine, self._settle)
        self._promises = Promises(time.monotonic)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.service = Service(
            engine=self._engine,
            worker=self._worker,
            vocabulary=vocabulary,
            base_model=self._base_model,
            checkpoints=Checkpoints(settings.data, lambda: dt.datetime.now(dt.UTC), settings.shortest_ttl),
            registry=self._registry,
            meter=Meter(self._registry, time.time),
            promises=self._promises,
            clock=time.time,
            entropy=lambda: secrets.randbits(63),
        )

    def _settle(self, outcomes: list[tuple[Promise, Outcome]]) -> None:
        """From the worker's thread to the event loop."""
        assert self._loop is not None

        def apply() -> None:
            for promise, outcome in outcomes:
                self._promises.settle(promise, outcome)

        self._loop.call_soon_threadsafe(apply)

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        self._loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, ended.set)
        settings = self._settings
        app = routes.make_app(
            self.service,
            api_key=settings.api_key,
            tokenizer=tokenizer.pack(settings.model),
            faults=Faults() if settings.faults else None,
        )
        # Bodies stay as they came: the SDK sends zstd, which aiohttp alone would refuse.
        runner = web.AppRunner(
            app, handler_cancellation=True, auto_decompress=False, shutdown_timeout=1.0, access_log=None
        )
        await runner.setup()
        site = web.TCPSite(runner, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise UserError(cannot_listen(error, settings.host, settings.port)) from None
        self._worker.start()
        if settings.warm_up:
            for work in self._engine.common_work():
                self._worker.when_idle(work)
        host, port = runner.addresses[0][:2]
        logger.info(
            "ready: Tinker API on http://%s:%d, base model %s", host, port, self._base_model, extra={"port": port}
        )
        keeper = asyncio.create_task(self._keep_house())
        await ended.wait()
        logger.info("ending: finishing what is being computed")
        keeper.cancel()
        stopped = await asyncio.to_thread(self._worker.stop, _PATIENCE)
        await runner.cleanup()
        if not stopped:
            # Compiling can't be interrupted, and an interpreter that ends under it may crash. Nothing is lost:
            # what is saved is saved whole.
            logger.warning("the engine is still busy after %.0f s; ending without it", _PATIENCE)
            logging.shutdown()
            os._exit(0)
        self._registry.close()
        self._lock.close()

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING)
            try:
                self.service.housekeeping()
            except Exception:
                logger.exception("housekeeping failed; it is tried again")
