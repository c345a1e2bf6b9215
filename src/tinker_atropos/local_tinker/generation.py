"""Sample requests on their way: a run of one or more batches that is advanced a stretch of tokens at a time.

Between stretches the worker can do other things, so that a long answer holds nothing up, and what is finished,
cancelled or has reached a stop string of several tokens (which a compiled loop can't see) leaves the run early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinker_atropos.local_tinker import buckets as shapes
from tinker_atropos.local_tinker import sampling
from tinker_atropos.local_tinker.config import ModelConfig
from tinker_atropos.local_tinker.model import Adapter, Weights

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

# From this room on, and when the text must be looked at, a stretch has so many tokens; before that it fills the room.
_STRETCH = 32
_LONG = 128
_MIX = 0x9E3779B1


@dataclass(frozen=True)
class Policy:
    """Weights to sample from: an adapter on the base model."""

    adapter: Adapter
    scale: float

    @property
    def padded_rank(self) -> int:
        return int(self.adapter["q"][0].shape[-2])


@dataclass(frozen=True)
class SampleRequest:
    """One request to sample. `stop_tokens` end a row inside the program; `stop_strings` need a look at the text."""

    prompt: tuple[int, ...]
    samples: int
    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    stop_tokens: frozenset[int] = frozenset()
    stop_strings: tuple[str, ...] = ()
    prompt_logprobs: bool = False
    cancelled: Callable[[], bool] = field(default=lambda: False, compare=False)


@dataclass
class SampledRow:
    """One sampled sequence; a token that stopped it is included."""

    tokens: list[int]
    logprobs: list[float]
    stopped: bool


@dataclass
class SampleResult:
    """What one request gets; `cached_prompt` says that another request of the same run had the same prompt."""

    sequences: list[SampledRow]
    prompt_logprobs: Floats | None = None
    cached_prompt: bool = False


@dataclass(frozen=True)
class Programs:
    """What a run needs of the engine."""

    config: ModelConfig
    base: Weights
    buckets: shapes.Buckets
    decode_text: Callable[[Sequence[int]], str]
    score: Callable[[Policy, Sequence[Sequence[int]]], list[Floats]]
    timed: Callable[..., AbstractContextManager[None]]


class SamplingRun:
    """Requests against one policy. `advance` until `finished`; it hands out each result once, when it is complete."""

    def __init__(self, programs: Programs, policy: Policy, requests: Sequence[SampleRequest]) -> None:
        self._programs = programs
        self._policy = policy
        self._requests = requests
        needs = [shapes.SampleNeed(r.prompt, r.samples, r.max_tokens) for r in requests]
        self._plans = deque(shapes.plan_sampling(programs.buckets, needs))
        self._batch: _Batch | None = None
        self._rows: list[dict[int, SampledRow]] = [{} for _ in requests]
        self._handed: set[int] = set()

    @property
    def finished(self) -> bool:
        return self._batch is None and not self._plans

    def advance(self) -> list[tuple[int, SampleResult]]:
        """Another stretch; what it completed, as (number of the request, its result)."""
        if self._batch is None:
            self._batch = _Batch(self._programs, self._policy, self._plans.popleft(), self._requests)
        for index, sample, row in self._batch.advance():
            self._rows[index][sample] = row
        if self._batch.finished:
            self._batch = None
        complete = [
            index
            for index, rows in enumerate(self._rows)
            if len(rows) == self._requests[index].samples and index not in self._handed
        ]
        self._handed.update(complete)
        return self._results(complete)

    def _results(self, complete: list[int]) -> list[tuple[int, SampleResult]]:
        scored = [index for index in complete if self._requests[index].prompt_logprobs]
        prompts = [self._requests[index].prompt for index in scored]
        logprobs = dict(zip(scored, self._programs.score(self._policy, prompts), strict=True)) if scored else {}
        results = []
        for index in complete:
            rows = [self._rows[index][sample] for sample in range(self._requests[index].samples)]
            prompt = self._requests[index].prompt
            cached = any(earlier.prompt == prompt for earlier in self._requests[:index])
            results.append((index, SampleResult(rows, logprobs.get(index), cached)))
        return results


class _Batch:
    """Rows that go through the programs together."""

    def __init__(
        self, programs: Programs, policy: Policy, plan: shapes.SamplePlan, requests: Sequence[SampleRequest]
    ) -> None:
        self._programs = programs
        self._policy = policy
        self._plan = plan
        self._requests = requests
        self._slots = list(range(len(plan.rows)))
        self._left = set(self._slots)
        self._looked_at = [0] * len(plan.rows)
        self._ends: dict[int, int] = {}
        self._watched = any(requests[index].stop_strings for index, _, _ in plan.rows)
        self._until = 0
        self._capacity = programs.buckets.generation[0]
        self._prefill()

    @property
    def finished(self) -> bool:
        return not self._left

    @property
    def _shape(self) -> tuple[int, int, int]:
        return self._plan.prompt_length, len(self._rows["max_tokens"]), self._policy.padded_rank

    def _prefill(self) -> None:
        plan, programs = self._plan, self._programs
        prompts = np.zeros((plan.prompt_slots, plan.prompt_length), np.int32)
        lengths = np.ones(plan.prompt_slots, np.int32)
        for slot, prompt in enumerate(plan.prompts):
            prompts[slot, : len(prompt)] = prompt
            lengths[slot] = len(prompt)
        prompt_of_row = np.zeros(plan.row_slots, np.int32)
        prompt_of_row[: len(plan.rows)] = [slot for _, _, slot in plan.rows]
        self._rows = self._row_settings(lengths)
        weights = (programs.config, programs.base, self._policy.adapter, np.float32(self._policy.scale))
        with programs.timed("prefill", plan.prompt_slots, *self._shape):
            hidden, keys, values = sampling.prefill(*weights, prompts, lengths, prompt_of_row)
        self._prompt_kv = (keys, values)
        self._state = sampling.start_state(programs.config, self._capacity, hidden, self._rows["max_tokens"])

    def _row_settings(self, lengths: Ints) -> dict[str, NDArray[Any]]:
        slots = self._plan.row_slots
        rows: dict[str, NDArray[Any]] = {
            "temperature": np.ones(slots, np.float32),
            "top_k": np.zeros(slots, np.int32),
            "top_p": np.ones(slots, np.float32),
            "max_tokens": np.zeros(slots, np.int32),
            "stop": np.zeros((slots, self._programs.config.vocab_size), bool),
            "key": np.zeros((slots, 2), np.uint32),
            "prompt_length": np.ones(slots, np.int32),
        }
        for row, (index, sample, slot) in enumerate(self._plan.rows):
            request = self._requests[index]
            rows["temperature"][row] = request.temperature
            rows["top_k"][row] = request.top_k
            rows["top_p"][row] = request.top_p
            rows["max_tokens"][row] = request.max_tokens
            rows["stop"][row, list(request.stop_tokens)] = True
            # The raw key of the generator: the same for a seed and sample, wherever they run.
            low, high = request.seed & 0xFFFFFFFF, (request.seed >> 32) & 0xFFFFFFFF
            rows["key"][row] = (low, (high * _MIX + sample) & 0xFFFFFFFF)
            rows["prompt_length"][row] = lengths[slot]
        return rows

    def advance(self) -> list[tuple[int, int, SampledRow]]:
        """Another stretch; rows that it ended, as (request, sample, row)."""
        if self._until == self._capacity:
            self._grow()
        small_steps = self._watched or self._capacity > _LONG
        self._until = min(self._until + _STRETCH, self._capacity) if small_steps else self._capacity
        programs = self._programs
        weights = (programs.config, programs.base, self._policy.adapter, np.float32(self._policy.scale))
        with programs.timed("decode", self._capacity, *self._shape):
            self._state = sampling.decode(*weights, self._prompt_kv, self._rows, self._state, np.int32(self._until))
            done = np.array(self._state["done"])
        ended = self._collect(done)
        self._state["done"] = done
        return ended

    def _grow(self) -> None:
        """Room for more tokens. Where room is what costs, rows that have ended make way."""
        self._capacity = self._programs.buckets.tokens_to_generate(self._capacity + 1)
        slots = len(self._rows["max_tokens"])
        fewer = next((rows for rows in self._programs.buckets.rows if rows >= len(self._left)), slots)
        if self._capacity > _LONG and fewer < slots:
            kept = [slot for slot, row in enumerate(self._slots) if row in self._left]
            self._slots = [self._slots[slot] for slot in kept]
            chosen = np.array(kept + [kept[0]] * (fewer - len(kept)))
            self._rows = {name: values[chosen] for name, values in self._rows.items()}
            self._prompt_kv = sampling.choose_rows(self._prompt_kv, chosen, axis=1)
            self._state = sampling.choose_state(self._state, chosen, real=len(kept))
        self._state = sampling.grow(self._state, self._capacity)

    def _collect(self, done: NDArray[np.bool_]) -> list[tuple[int, int, SampledRow]]:
        """Take out the rows that ended; `done` also gets those that end for a reason only the host can see."""
        tokens, logprobs = np.asarray(self._state["tokens"]), np.asarray(self._state["logprobs"])
        count, stopped = np.asarray(self._state["count"]), np.asarray(self._state["stopped"])
        ended = []
        for slot, row in enumerate(self._slots):
            if row not in self._left:
                continue
            index, sample, _ = self._plan.rows[row]
            request = self._requests[index]
            ids = tokens[slot, : count[slot]].tolist()
            end = self._stop_end(request.stop_strings, ids, self._looked_at[row])
            self._looked_at[row] = len(ids)
            if not (done[slot] or end is not None or request.cancelled()):
                continue
            done[slot] = True
            self._left.discard(row)
            kept = len(ids) if end is None else end
            stop = bool(stopped[slot]) or end is not None
            ended.append((index, sample, SampledRow(ids[:kept], logprobs[slot, :kept].tolist(), stop)))
        return ended

    def _stop_end(self, strings: tuple[str, ...], ids: list[int], looked_at: int) -> int | None:
        """Number of tokens up to and including the first that completes a stop string; None if none does."""
        decode = self._programs.decode_text
        if not strings or not any(s in decode(ids) for s in strings):
            return None
        return next(end for end in range(looked_at + 1, len(ids) + 1) if any(s in decode(ids[:end]) for s in strings))
