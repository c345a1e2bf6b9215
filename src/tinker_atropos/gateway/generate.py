"""From prompts to recorded completions: waits its turn, samples, cuts, records, and only then returns."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from tinker_atropos.gateway.errors import RequestError
from tinker_atropos.gateway.generation import Completion, Generated, Sampled, Sampling, Version
from tinker_atropos.gateway.metrics import Metrics
from tinker_atropos.gateway.pacing import Caller, Pacing
from tinker_atropos.gateway.policies import ActivePolicy, Policies
from tinker_atropos.gateway.service import (
    RefusedError,
    SamplerGoneError,
    ServiceAnswer,
    ServiceSampling,
    UnavailableError,
)
from tinker_atropos.gateway.stopping import finish, stop_for_service
from tinker_atropos.gateway.text import Text
from tinker_atropos.gateway.trajectories import RecordRefusedError
from tinker_atropos.protocol.versions import completion_digest

Record = Callable[[str, Version, list[bytes]], Awaitable[None]]

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 10.0
_LOG_EVERY = 15.0

_log = logging.getLogger(__name__)


class GaveUpError(Exception):
    """The service was away for longer than requests are held."""


class NotRecordedError(Exception):
    """Sampled, but the version cannot be recorded: a defect of this project, not something that passes."""


class Generator:
    """Everything between an API's request and its response."""

    def __init__(
        self,
        policies: Policies,
        record: Record,
        metrics: Metrics,
        pacing: Pacing,
        *,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """patience: seconds for which a request is held while the service fails."""
        self._pacing = pacing
        self._policies = policies
        self._record = record
        self._metrics = metrics
        self._patience = patience
        self._clock = clock
        self._uniform = uniform
        self._said = -_LOG_EVERY
        self.context_length: int | None = None

    async def generate(
        self, prompts: Sequence[list[int]], samples: int, sampling: Sampling, *, caller: Caller, text: Text, field: str
    ) -> list[Generated]:
        """`samples` completions of each prompt, all recorded. field: where the prompt stood, for error messages."""
        limits = [self._room(prompt, sampling.max_tokens, field) for prompt in prompts]
        with self._metrics.running.track_inprogress():
            async with self._pacing.turn(caller, prompts, samples, greedy=sampling.temperature == 0) as turn:
                results = await _together(
                    [
                        self._one(prompt, samples, sampling, limit, text, newest=turn.fresh)
                        for prompt, limit in zip(prompts, limits, strict=True)
                    ]
                )
                await self._record_all(results, caller.instance)
                turn.results = results
        self._metrics.prompt_tokens.inc(sum(len(result.prompt) for result in results))
        self._metrics.cached_tokens.inc(sum(result.cached_tokens for result in results))
        self._metrics.completion_tokens.inc(sum(len(c.tokens) for result in results for c in result.completions))
        return results

    def _room(self, prompt: list[int], wanted: int | None, field: str) -> int | None:
        """Tokens that may be sampled after this prompt."""
        if not prompt:
            raise RequestError(f"{field} has no tokens", param=field)
        if self.context_length is None:
            return wanted
        room = self.context_length - len(prompt)
        if room < 1:
            raise RequestError(
                f"{field} has {len(prompt)} tokens; the model's context is {self.context_length}",
                param=field,
                code="context_length_exceeded",
            )
        return room if wanted is None else min(wanted, room)

    async def _one(
        self,
        prompt: list[int],
        samples: int,
        sampling: Sampling,
        max_tokens: int | None,
        text: Text,
        *,
        newest: bool,
    ) -> Generated:
        asked = ServiceSampling(
            max_tokens=max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            stop=stop_for_service(sampling, text.eos),
            top_logprobs=sampling.top_logprobs,
        )
        with self._metrics.sampling_seconds.time():
            active, answer = await self._sample(prompt, samples, asked, newest)

        def cut() -> list[Completion]:
            return [self._finish(sequence, sampling, text) for sequence in answer.sequences]

        return Generated(prompt, await text.run(cut), active.policy.version, answer.cached_tokens)

    @staticmethod
    def _finish(sequence: Sampled, sampling: Sampling, text: Text) -> Completion:
        return finish(sequence, sampling, eos_ids=text.eos_ids, special=text.special, decode=text.decode)

    async def _sample(
        self, prompt: list[int], samples: int, asked: ServiceSampling, newest: bool
    ) -> tuple[ActivePolicy, ServiceAnswer]:
        """Sample, and again while that may help. newest: wait for a newer policy that is on its way in."""
        began = self._clock()
        pause = _FIRST_DELAY
        while True:
            with self._held("policy"):
                active = await (self._policies.newest() if newest else self._policies.current())
            try:
                answer = await active.sampler.sample(prompt, samples, asked)
                if len(answer.sequences) != samples:
                    raise UnavailableError(f"the service returned {len(answer.sequences)} sequences of {samples}")
                return active, answer
            except RefusedError as error:
                if asked.top_logprobs:  # not every service knows the likely tokens; the sampled one it always knows
                    asked = replace(asked, top_logprobs=0)
                    continue
                raise RequestError(f"the Tinker service refuses the request: {error}") from error
            except SamplerGoneError as error:
                self._metrics.retries.labels("sampler_gone").inc()
                self._policies.gone(active)
                failure: Exception = error
            except UnavailableError as error:
                self._metrics.retries.labels("key_refused" if error.key_refused else "unavailable").inc()
                failure = error
            held = self._clock() - began
            self._say(failure, held)
            if held > self._patience:
                raise GaveUpError(f"the Tinker service has not answered for {held:.0f} s: {failure}") from failure
            with self._held("service"):
                await asyncio.sleep(pause * (0.5 + 0.5 * self._uniform()))
            pause = min(pause * 2, _LONGEST_DELAY)

    async def _record_all(self, results: Sequence[Generated], instance: str) -> None:
        digests: dict[Version, list[bytes]] = {}
        for result in results:
            prompt = np.asarray(result.prompt, dtype=np.int32)
            digests.setdefault(result.version, []).extend(
                completion_digest(prompt, completion.tokens, completion.logprobs)
                for completion in result.completions
                if len(completion.tokens)
            )
        try:
            with self._held("record"):
                await asyncio.gather(
                    *(self._record(instance, version, some) for version, some in digests.items() if some)
                )
        except RecordRefusedError as error:
            raise NotRecordedError(f"the trajectory server refuses to record the policy version: {error}") from error

    @contextmanager
    def _held(self, reason: str) -> Iterator[None]:
        gauge = self._metrics.held.labels(reason)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def _say(self, error: Exception, held: float) -> None:
        now = self._clock()
        if now - self._said >= _LOG_EVERY:
            self._said = now
            refused = isinstance(error, UnavailableError) and error.key_refused
            what = "does not accept the key" if refused else "does not answer"
            _log.warning("holding requests: the Tinker service %s (for %.0f s): %s", what, held, error)


async def _together(work: Sequence[Coroutine[Any, Any, Generated]]) -> list[Generated]:
    """Results of all, in order; the first failure cancels the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
