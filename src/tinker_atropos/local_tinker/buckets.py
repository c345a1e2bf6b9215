"""Which program shapes run a piece of work: pure decisions, made on the host.

XLA compiles one program per shape and each takes seconds, so shapes are few and coarse, and work that is larger than
the largest shape is split instead of failing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tinker_atropos.local_tinker.config import ModelConfig

_SMALL_MODEL = 5_000_000


@dataclass(frozen=True)
class Buckets:
    """Sizes that programs may have. Limits bound memory; the floor keeps tiny work from making shapes of its own."""

    lengths: tuple[int, ...]
    generation: tuple[int, ...]
    sample_rows: tuple[int, ...]
    rows: tuple[int, ...]
    kv_bytes_per_token: int
    kv_budget: int
    prefill_tokens: int
    train_tokens: int
    floor_tokens: int

    def length(self, tokens: int) -> int:
        """Smallest length that holds so many tokens; the caller has checked the context length."""
        return next(size for size in self.lengths if size >= tokens)

    def tokens_to_generate(self, tokens: int) -> int:
        """Smallest generation length that holds `max_tokens`."""
        return next(size for size in self.generation if size >= tokens)

    def row_limit(self, prompt: int, generation: int) -> int:
        """Largest number of sampled rows whose keys and values stay within the budget."""
        affordable = self.kv_budget // ((prompt + generation) * self.kv_bytes_per_token)
        return max((rows for rows in self.sample_rows if rows <= affordable), default=self.sample_rows[0])

    def rows_for(self, needed: int, length: int, token_limit: int) -> int:
        """Rows of a program over sequences of `length`: enough, not wastefully few, within the limit."""
        allowed = [rows for rows in self.rows if rows * length <= token_limit] or [self.rows[0]]
        wanted = max(needed, min(self.floor_tokens // length, allowed[-1]))
        return next((rows for rows in allowed if rows >= wanted), allowed[-1])

    def row_capacity(self, length: int, token_limit: int) -> int:
        """Most rows of `length` that one program may hold."""
        return max((rows for rows in self.rows if rows * length <= token_limit), default=self.rows[0])


def for_model(config: ModelConfig) -> Buckets:
    """Coarse shapes for tiny models (compiling costs more than padding), finer ones where padding is what costs."""
    small = config.parameters < _SMALL_MODEL
    lengths = _powers(16, 4 if small else 2, config.context_length)
    generation = _powers(16, 4, config.context_length)
    return Buckets(
        lengths=lengths,
        generation=generation,
        sample_rows=(16, 128) if small else (1, 4, 16, 64),
        rows=(1, 4, 16, 128) if small else (1, 4, 16),
        kv_bytes_per_token=config.kv_bytes_per_token,
        kv_budget=5 << 28,
        prefill_tokens=16384 if small else 2048,
        train_tokens=8192 if small else 512,
        floor_tokens=256 if small else 16,
    )


def _powers(first: int, factor: int, last: int) -> tuple[int, ...]:
    sizes = [min(first, last)]
    while sizes[-1] < last:
        sizes.append(min(sizes[-1] * factor, last))
    return tuple(sizes)


@dataclass(frozen=True)
class SampleNeed:
    """What planning must know of one sample request."""

    prompt: tuple[int, ...]
    samples: int
    max_tokens: int


@dataclass
class SamplePlan:
    """One run of the sampling programs: distinct prompts and, per row, (request, sample, prompt slot).

    `generation` is what its longest row may come to; the programs start with less room and grow.
    """

    prompt_length: int
    generation: int
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    rows: list[tuple[int, int, int]] = field(default_factory=list)
    prompt_slots: int = 0
    row_slots: int = 0


def plan_sampling(buckets: Buckets, needs: Sequence[SampleNeed]) -> list[SamplePlan]:
    """Group rows by shape, share equal prompts, split where a program would be too large."""
    groups: dict[int, list[int]] = {}
    for index, need in enumerate(needs):
        groups.setdefault(buckets.length(len(need.prompt)), []).append(index)
    plans: list[SamplePlan] = []
    for length, indices in groups.items():
        generation = buckets.tokens_to_generate(max(needs[index].max_tokens for index in indices))
        row_limit = buckets.row_limit(length, generation)
        prompt_limit = min(row_limit, buckets.row_capacity(length, buckets.prefill_tokens))
        plan: SamplePlan | None = None
        slots: dict[tuple[int, ...], int] = {}
        for index in indices:
            need = needs[index]
            for sample in range(need.samples):
                full = plan is None or len(plan.rows) >= row_limit
                if plan is None or full or (need.prompt not in slots and len(plan.prompts) >= prompt_limit):
                    plan = SamplePlan(length, generation)
                    plans.append(plan)
                    slots = {}
                if need.prompt not in slots:
                    slots[need.prompt] = len(plan.prompts)
                    plan.prompts.append(need.prompt)
                plan.rows.append((index, sample, slots[need.prompt]))
    for plan in plans:
        limit = buckets.row_limit(plan.prompt_length, plan.generation)
        plan.row_slots = next(rows for rows in buckets.sample_rows if rows >= len(plan.rows) or rows == limit)
        plan.prompt_slots = buckets.rows_for(len(plan.prompts), plan.prompt_length, buckets.prefill_tokens)
    return plans


@dataclass(frozen=True)
class SequencePlan:
    """One run of a program over whole sequences: which of them, padded to what."""

    indices: tuple[int, ...]
    length: int
    rows: int


def plan_sequences(buckets: Buckets, lengths: Sequence[int], token_limit: int) -> list[SequencePlan]:
    """Sequences of like length together (longest first), each batch within the token limit."""
    plans: list[SequencePlan] = []
    by_length: dict[int, list[int]] = {}
    for index, tokens in enumerate(lengths):
        by_length.setdefault(buckets.length(tokens), []).append(index)
    for length in sorted(by_length, reverse=True):
        waiting = by_length[length]
        capacity = buckets.row_capacity(length, token_limit)
        for start in range(0, len(waiting), capacity):
            batch = waiting[start : start + capacity]
            plans.append(SequencePlan(tuple(batch), length, buckets.rows_for(len(batch), length, token_limit)))
    return plans
