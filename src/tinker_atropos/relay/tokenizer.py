"""Fetching the tokenizer from the gateway before the environment starts: environments need no hub and no key."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import aiohttp

from tinker_atropos.protocol.identity import AUTHORIZATION_HEADER, bearer
from tinker_atropos.relay.archive import BadArchiveError, unpack

_LONGEST_DELAY = 5.0
_LOG_EVERY = 15.0

_log = logging.getLogger(__name__)


async def fetch(gateway: str, directory: Path, token: str | None) -> None:
    """Ask until there is a tokenizer in `directory`. Waits as long as needed: the gateway may start after us."""
    url = f"{gateway.rstrip('/')}/tokenizer"
    loop = asyncio.get_running_loop()
    pause, said = 0.1, loop.time()
    passed = {AUTHORIZATION_HEADER: bearer(token)} if token is not None else {}
    # Dead peers are noticed by sock_read: the gateway holds the request while it resolves the tokenizer.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)
    async with aiohttp.ClientSession(timeout=timeout, headers=passed) as session:
        while True:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        names = await asyncio.to_thread(unpack, await answer.read(), directory)
                        _log.info("tokenizer fetched", extra={"files": len(names), "directory": str(directory)})
                        return
                    reason = f"status {answer.status}: {(await answer.text())[:300]}"
            except BadArchiveError as error:
                reason = f"cannot use its answer: {error}"
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = f"{type(error).__name__}: {error}"
            if loop.time() - said >= _LOG_EVERY:
                said = loop.time()
                _log.warning("waiting for the tokenizer: GET %s: %s", url, reason)
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_DELAY)
