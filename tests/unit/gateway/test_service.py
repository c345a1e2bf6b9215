"""What the SDK's failures mean to a request."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest

from tinker_atropos.gateway import service
from tinker_atropos.gateway.service import RefusedError, SamplerGoneError, UnavailableError

REQUEST = httpx.Request("POST", "http://tinker/api/v1/asample")


def status_error(status: int) -> Exception:
    import tinker

    return tinker.APIStatusError(f"status {status}", response=httpx.Response(status, request=REQUEST), body=None)


def failed(category: str) -> Exception:
    import tinker
    from tinker.types import RequestErrorCategory

    return tinker.RequestFailedError("it failed", "r1", RequestErrorCategory(category))


def wrapped(error: Exception) -> Exception:
    """As the SDK does with what it cannot retrieve."""
    outer = ValueError("Error retrieving result")
    outer.__cause__ = error
    return outer


@pytest.mark.parametrize(
    ("behaviour", "make", "kind"),
    [
        ("unknown sampler", lambda: status_error(404), SamplerGoneError),
        ("session is finished", lambda: status_error(410), SamplerGoneError),
        ("unknown sampler, found out late", lambda: wrapped(status_error(404)), SamplerGoneError),
        ("bad request", lambda: status_error(400), RefusedError),
        ("unprocessable", lambda: status_error(422), RefusedError),
        ("too large", lambda: status_error(413), RefusedError),
        ("failed through the user", lambda: failed("user"), RefusedError),
        ("failed through the server", lambda: failed("server"), UnavailableError),
        ("failed for unknown reasons", lambda: failed("unknown"), UnavailableError),
        ("too many requests", lambda: status_error(429), UnavailableError),
        ("billing", lambda: status_error(402), UnavailableError),
        ("server error", lambda: status_error(500), UnavailableError),
        ("away", lambda: status_error(503), UnavailableError),
        ("no connection", lambda: ConnectionRefusedError("refused"), UnavailableError),
        ("anything else", lambda: RuntimeError("?"), UnavailableError),
        ("timeout", TimeoutError, UnavailableError),
    ],
)
def test_translation(behaviour: str, make: Any, kind: type[Exception]) -> None:
    assert type(service._translate(make())) is kind, behaviour


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_told_apart(status: int) -> None:
    error = service._translate(status_error(status))
    assert isinstance(error, UnavailableError)
    assert error.key_refused


class Sequence:
    def __init__(self, tokens: list[int], logprobs: list[float] | None, reason: str = "stop") -> None:
        self.tokens_np = None
        self.tokens = tokens
        self.logprobs_np = None
        self.logprobs = logprobs
        self.stop_reason = reason
        self.topk_logprobs = None


@pytest.mark.parametrize("logprobs", [None, [], [-1.0]])
def test_a_sequence_without_its_logprobs_is_not_passed_on(logprobs: list[float] | None) -> None:
    with pytest.raises(UnavailableError, match="logprobs"):
        service._sampled(Sequence([1, 2], logprobs))


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_weights_that_diverged_are_named(bad: float) -> None:
    with pytest.raises(RefusedError, match="diverged"):
        service._sampled(Sequence([1, 2], [-0.5, bad]))


@pytest.mark.parametrize(("told", "reason"), [("stop", "stop"), ("length", "length")])
def test_finish_reasons_are_real(told: str, reason: str) -> None:
    sampled = service._sampled(Sequence([1], [-0.5], told))
    assert sampled.reason == reason
    assert sampled.tokens.dtype == np.int32
    assert sampled.logprobs.dtype == np.float32
