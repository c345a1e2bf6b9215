"""Sampling on the Tinker API with its unmodified SDK, without ever blocking the event loop.

The SDK runs its own loop in a thread and retries most of what can be retried for minutes; what still fails is sorted
here into three kinds: the sampler is gone, the request is refused, or the service is not there now.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from tinker_atropos.gateway.generation import FinishReason, Sampled
from tinker_atropos.gateway.libraries import IMPORTING

_log = logging.getLogger(__name__)


class SamplerGoneError(Exception):
    """The service does not know this sampler any more: weights expired or the server forgot its sessions."""


class RefusedError(Exception):
    """The service will never take this request; the message is for the client."""


class UnavailableError(Exception):
    """Not now. key_refused: the service does not accept the key, so waiting alone may not help."""

    def __init__(self, message: str, *, key_refused: bool = False) -> None:
        super().__init__(message)
        self.key_refused = key_refused


@dataclass(frozen=True)
class ServiceSampling:
    """Sampling settings as Tinker takes them."""

    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: list[str] | list[int] | None
    top_logprobs: int = 0


@dataclass(frozen=True)
class ServiceAnswer:
    sequences: list[Sampled]
    cached_tokens: int


class Sampler(Protocol):
    """Weights that can be sampled."""

    async def sample(self, prompt: list[int], samples: int, sampling: ServiceSampling) -> ServiceAnswer:
        """Raises SamplerGoneError, RefusedError or UnavailableError."""
        ...


Failure = Literal["gone", "refused", "key", "unavailable"]


def kind_of(status: int | None, category: str | None = None) -> Failure:
    """What a failed call means. status: HTTP status, None = no answer; category: of a request that failed later."""
    if category == "user":
        return "refused"
    if status in (404, 410):
        return "gone"
    if status in (401, 403):
        return "key"
    if status in (400, 413, 422):
        return "refused"
    return "unavailable"


class TinkerService:
    """One session with the service; samplers for the policies of a run."""

    def __init__(self, base_url: str | None, api_key: str | None, name: str) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._name = name
        self._client: Any = None
        self._lock = asyncio.Lock()
        self._old: list[Any] = []

    async def open(self, sampler_path: str, base_model: str) -> Sampler:
        """A sampler for saved weights; without a path for the base model."""
        client = await self._session()
        try:
            if sampler_path:
                sampling_client = await client.create_sampling_client(model_path=sampler_path)
            else:
                sampling_client = await client.create_sampling_client(base_model=base_model)
        except Exception as error:
            translated = _translate(error)
            if not isinstance(translated, UnavailableError):
                # Either the weights are gone or the session is (a server that started again); a new session tells.
                await self._forget(client)
            raise translated from error
        return _TinkerSampler(sampling_client)

    async def context_length(self, model: str) -> int | None:
        """Longest sequence of a base model as the service says; None = it does not say."""
        tinker = await _sdk()
        try:
            rest = await asyncio.to_thread(tinker.RestClient, base_url=self._base_url, api_key=self._api_key)
            capabilities = await rest.get_server_capabilities()
        except Exception as error:
            raise _translate(error) from error
        for supported in capabilities.supported_models:
            if supported.model_name == model:
                return supported.max_context_length or None
        return None

    async def close(self) -> None:
        """Tell the service that the session ends; does not wait long for a service that is away."""
        clients = [client for client in (self._client, *self._old) if client is not None]
        self._client, self._old = None, []
        for client in clients:
            try:
                async with asyncio.timeout(2):
                    await client.close("success")
            except Exception as error:
                _log.debug("closing the Tinker session: %s", error)

    async def _session(self) -> Any:
        tinker = await _sdk()
        async with self._lock:
            if self._client is None:
                client = tinker.ServiceClient(base_url=self._base_url, api_key=self._api_key, display_name=self._name)
                try:
                    await asyncio.to_thread(lambda: client.holder)  # connects, and blocks while it does
                except Exception as error:
                    raise _translate(error) from error
                self._client = client
            return self._client

    async def _forget(self, client: Any) -> None:
        """The next sampler gets a new session. The old one stays open: samples may still run in it."""
        async with self._lock:
            if self._client is client:
                self._old.append(client)
                self._client = None


async def _sdk() -> Any:
    """The SDK; importing it takes seconds, in which nothing else could be answered."""

    def load() -> Any:
        with IMPORTING:
            return importlib.import_module("tinker")

    return await asyncio.to_thread(load)


class _TinkerSampler:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def sample(self, prompt: list[int], samples: int, sampling: ServiceSampling) -> ServiceAnswer:
        from tinker import types

        try:
            answer = await self._client.sample(
                types.ModelInput.from_ints(prompt),
                samples,
                types.SamplingParams(
                    max_tokens=sampling.max_tokens,
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    top_k=sampling.top_k,
                    seed=sampling.seed,
                    stop=sampling.stop,
                ),
                topk_sample_logprobs=sampling.top_logprobs,
            )
        except Exception as error:
            raise _translate(error) from error
        return ServiceAnswer([_sampled(sequence) for sequence in answer.sequences], answer.prompt_cache_hit_tokens or 0)


def _sampled(sequence: Any) -> Sampled:
    tokens = sequence.tokens_np if sequence.tokens_np is not None else sequence.tokens
    tokens = np.asarray(tokens, dtype=np.int32)
    logprobs = sequence.logprobs_np if sequence.logprobs_np is not None else sequence.logprobs
    if logprobs is None or len(logprobs) != len(tokens):
        # An empty or padded list would be taken for prompt tokens by environments, and lose its gradient silently.
        raise UnavailableError("the service returned a sequence without its logprobs")
    if not np.isfinite(logprobs).all():
        raise RefusedError("the sampled logprobs are not finite: the policy's weights have diverged")
    reason: FinishReason = "length" if sequence.stop_reason == "length" else "stop"
    return Sampled(tokens, np.asarray(logprobs, dtype=np.float32), reason, sequence.topk_logprobs)


def _translate(error: BaseException) -> Exception:
    """The SDK's exceptions, some of which are wrapped in plain ValueErrors, as one of ours."""
    import tinker

    message = f"{type(error).__name__}: {error}"
    if isinstance(error, SamplerGoneError | RefusedError | UnavailableError):
        return error
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, tinker.RequestFailedError):
            kind = kind_of(None, str(getattr(seen.category, "value", seen.category)))
            break
        if isinstance(seen, tinker.APIStatusError):
            kind = kind_of(seen.status_code)
            break
        seen = seen.__cause__
    else:
        kind = "unavailable"
    if kind == "gone":
        return SamplerGoneError(message)
    if kind == "refused":
        return RefusedError(str(error))
    return UnavailableError(message, key_refused=kind == "key")
