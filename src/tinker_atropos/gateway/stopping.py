"""Where a completion ends: stop strings, stop tokens and the end-of-sequence token, decided the same for every service.

A service may have stopped later than asked (it knows only strings or only ids, and an explicit stop may switch off the
end-of-sequence token). Cutting afterwards gives exactly the sequence that stopping in time would have given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from tinker_atropos.gateway.generation import Completion, FinishReason, Sampled, Sampling

Decode = Callable[[Sequence[int], bool], str]
"""Token ids, whether special tokens are left out → text."""


def stop_for_service(sampling: Sampling, eos: Sequence[tuple[int, str]]) -> list[str] | list[int] | None:
    """Tinker's `stop`: strings or ids, never both; None keeps its own end-of-sequence handling, [] switches it off.

    eos: (id, text) of the tokenizer's end-of-sequence tokens.
    """
    if sampling.stop:
        ends = [] if sampling.ignore_eos else [text for _, text in eos if text]
        return list(dict.fromkeys([*sampling.stop, *ends]))
    if sampling.stop_token_ids:
        ids = () if sampling.ignore_eos else tuple(token for token, _ in eos)
        return list(dict.fromkeys([*sampling.stop_token_ids, *ids]))
    return [] if sampling.ignore_eos else None


def finish(
    sampled: Sampled, sampling: Sampling, *, eos_ids: Collection[int], special: Sequence[str], decode: Decode
) -> Completion:
    """Cut a sampled sequence where it had to end and say why it did. special: texts of the special tokens."""
    tokens = sampled.tokens.tolist()
    reason: FinishReason = sampled.reason
    matched: str | int | None = None

    ending = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(eos_ids))
    for index, token in enumerate(tokens):
        if token in ending:
            tokens, reason, matched = tokens[: index + 1], "stop", token
            break

    text = None
    if sampling.stop:
        found = _first_stop(tokens, sampling.stop, decode)
        if found is not None:
            count, stop = found
            tokens, reason, matched = tokens[:count], "stop", stop
            raw = decode(tokens, False)
            start = raw.find(stop)
            raw = raw[: start + len(stop)] if sampling.keep_stop else raw[:start]
            text = _without(raw, special) if sampling.skip_special_tokens else raw
    if text is None:
        shown = tokens[:-1] if isinstance(matched, int) and not sampling.keep_stop else tokens
        text = decode(shown, sampling.skip_special_tokens)

    count = len(tokens)
    return Completion(
        tokens=sampled.tokens[:count],
        logprobs=np.asarray(sampled.logprobs[:count], dtype=np.float32),
        reason=reason,
        text=text,
        matched=matched,
        top=None if sampled.top is None else sampled.top[:count],
    )


def _first_stop(tokens: list[int], stops: Sequence[str], decode: Decode) -> tuple[int, str] | None:
    """Number of tokens up to the first stop string, and that string."""

    def found(count: int) -> str | None:
        text = decode(tokens[:count], False)
        hits = [(text.find(stop), stop) for stop in stops if stop in text]
        return min(hits)[1] if hits else None

    if found(len(tokens)) is None:
        return None
    low, high = 0, len(tokens)  # not found in `low` tokens, found in `high`
    if found(high - 1) is None:
        low = high - 1  # the usual case: the service stopped just there
    while high - low > 1:
        middle = (low + high) // 2
        if found(middle) is None:
            low = middle
        else:
            high = middle
    stop = found(high)
    assert stop is not None
    return high, stop


def _without(text: str, special: Sequence[str]) -> str:
    for token in special:
        text = text.replace(token, "")
    return text
