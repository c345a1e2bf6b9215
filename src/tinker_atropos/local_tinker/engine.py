"""The engine: what one worker thread calls to train adapters and to sample from them.

It turns requests into padded arrays of known shapes, runs the compiled programs and cuts the results again.
Adapters are immutable trees: a snapshot is a reference, and a step makes a new tree.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tinker_atropos.local_tinker import buckets as shapes
from tinker_atropos.local_tinker import lora
from tinker_atropos.local_tinker.config import ModelConfig
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.generation import Policy, Programs, SampleRequest, SampleResult, SamplingRun
from tinker_atropos.local_tinker.lora import LoraSettings
from tinker_atropos.local_tinker.losses import Loss, token_losses
from tinker_atropos.local_tinker.model import Adapter, Weights, token_logprobs
from tinker_atropos.local_tinker.optimizer import AdamParams, adamw

logger = logging.getLogger(__name__)

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


@dataclass
class TrainingModel:
    """An adapter in training, with its optimizer state and the gradients gathered since the last step."""

    settings: LoraSettings
    adapter: Adapter
    first: Adapter
    second: Adapter
    step: int = 0
    gradients: Adapter | None = None

    def policy(self) -> Policy:
        return Policy(self.adapter, self.settings.scale)


@dataclass(frozen=True)
class Example:
    """One datum: tokens, their targets, and per target the factor (weight or advantage) and the sampling logprob."""

    tokens: Ints
    targets: Ints
    factor: Floats
    sampled: Floats


@dataclass(frozen=True)
class LossResult:
    """Sum of the loss and the log probability of every target."""

    loss: float
    logprobs: list[Floats]


class Engine:
    """Compiled programs over one base model. Not thread-safe: one worker calls it."""

    def __init__(self, config: ModelConfig, base: Weights, decode_text: Callable[[Sequence[int]], str]) -> None:
        self.config = config
        self.buckets = shapes.for_model(config)
        self._base = jax.tree.map(jnp.asarray, base)
        self._seen: set[tuple[object, ...]] = set()
        self._programs = Programs(config, self._base, self.buckets, decode_text, self.score, self._timed)
        self.base_policy = Policy(self._device(lora.zeros(config)), 0.0)

    @staticmethod
    def _device(tree: Any) -> Any:
        return jax.tree.map(jnp.asarray, tree)

    def _timed(self, *shape: object) -> _Compiling:
        return _Compiling(self._seen, shape)

    # ------------------------------------------------------------------ training

    def create(self, settings: LoraSettings, seed: int) -> TrainingModel:
        """A fresh model in training."""
        return self.restore(settings, lora.start(self.config, settings, seed))

    def restore(
        self, settings: LoraSettings, adapter: Adapter, moments: tuple[Adapter, Adapter] | None = None, step: int = 0
    ) -> TrainingModel:
        """A model in training from saved weights, with or without the state of its optimizer."""
        first, second = moments or (lora.zeros(self.config, settings.padded_rank),) * 2
        return TrainingModel(settings, self._device(adapter), self._device(first), self._device(second), step)

    def load_policy(self, settings: LoraSettings, adapter: Adapter) -> Policy:
        """Weights to sample from."""
        return Policy(self._device(adapter), settings.scale)

    def forward_backward(
        self, model: TrainingModel, examples: Sequence[Example], loss: Loss, *, forward_only: bool = False
    ) -> LossResult:
        """Loss and logprobs of all examples; gradients are added to those already gathered, unless forward only."""
        constants = (np.float32(loss.clip_low), np.float32(loss.clip_high), np.float32(loss.beta))
        results: list[Floats] = [np.zeros(0, np.float32)] * len(examples)
        total = 0.0
        gradients = model.gradients
        if gradients is None and not forward_only:
            gradients = jax.tree.map(jnp.zeros_like, model.adapter)
        lengths = [len(example.tokens) for example in examples]
        for plan in shapes.plan_sequences(self.buckets, lengths, self.buckets.train_tokens):
            batch = self._batch(plan, examples)
            arguments = (self.config, self._base, model.adapter)
            rest = (np.float32(model.settings.scale), np.int32(loss.index), constants, batch)
            with self._timed(
                "forward" if forward_only else "backward", plan.rows, plan.length, model.settings.padded_rank
            ):
                if forward_only:
                    value, logprobs = _loss_program(*arguments, *rest)
                else:
                    value, logprobs, gradients = _gradient_program(*arguments, gradients, *rest)
                logprobs = np.asarray(logprobs)
            total += float(value)
            for row, index in enumerate(plan.indices):
                results[index] = logprobs[row, : lengths[index]]
        if not forward_only:
            model.gradients = gradients
        return LossResult(total, results)

    @staticmethod
    def _batch(plan: shapes.SequencePlan, examples: Sequence[Example]) -> dict[str, NDArray[Any]]:
        size = (plan.rows, plan.length)
        batch: dict[str, NDArray[Any]] = {
            "tokens": np.zeros(size, np.int32),
            "targets": np.zeros(size, np.int32),
            "factor": np.zeros(size, np.float32),
            "sampled": np.zeros(size, np.float32),
            "real": np.zeros(size, np.float32),
        }
        for row, index in enumerate(plan.indices):
            example = examples[index]
            end = len(example.tokens)
            batch["tokens"][row, :end] = example.tokens
            batch["targets"][row, :end] = example.targets
            batch["factor"][row, :end] = example.factor
            batch["sampled"][row, :end] = example.sampled
            batch["real"][row, :end] = 1.0
        return batch

    def optim_step(self, model: TrainingModel, params: AdamParams) -> dict[str, float]:
        """One AdamW step on the gathered gradients. Gradients that are not finite are dropped with an error."""
        gradients = model.gradients
        model.gradients = None
        if gradients is None:
            gradients = jax.tree.map(jnp.zeros_like, model.adapter)
        settings = {name: np.float32(value) for name, value in vars(params).items()}
        with self._timed("optimizer", model.settings.padded_rank):
            adapter, first, second, norm = adamw(
                model.adapter, model.first, model.second, gradients, np.float32(model.step + 1), settings
            )
            norm = float(norm)
        if not np.isfinite(norm):
            raise UserError(
                f"optim_step: the gradient is not finite (norm {norm}); the step was not taken, the gradient is "
                "dropped. Look for extreme advantages or logprobs, or a learning rate that is too high"
            )
        model.adapter, model.first, model.second, model.step = adapter, first, second, model.step + 1
        return {"grad_norm:mean": norm, "step:max": float(model.step)}

    # ------------------------------------------------------------------ sampling

    def score(self, policy: Policy, sequences: Sequence[Sequence[int]]) -> list[Floats]:
        """log p of every token given those before it; nan for the first."""
        examples = []
        for tokens in sequences:
            ids = np.asarray(tokens, np.int32)
            blank = np.zeros(max(1, len(ids) - 1), np.float32)
            inputs = ids[:-1] if len(ids) > 1 else ids
            examples.append(Example(inputs, ids[1:] if len(ids) > 1 else ids, blank, blank))
        scored: list[Floats] = []
        results: list[Floats] = [np.zeros(0, np.float32)] * len(examples)
        for plan in shapes.plan_sequences(self.buckets, [len(e.tokens) for e in examples], self.buckets.train_tokens):
            batch = self._batch(plan, examples)
            constants = (np.float32(0.8), np.float32(1.2), np.float32(0.0))
            with self._timed("forward", plan.rows, plan.length, policy.padded_rank):
                _, logprobs = _loss_program(
                    self.config, self._base, policy.adapter, np.float32(policy.scale), np.int32(0), constants, batch
                )
                logprobs = np.asarray(logprobs)
            for row, index in enumerate(plan.indices):
                results[index] = logprobs[row, : len(examples[index].tokens)]
        for tokens, logprobs in zip(sequences, results, strict=True):
            scored.append(np.concatenate([[np.float32(np.nan)], logprobs[: len(tokens) - 1]]).astype(np.float32))
        return scored

    def run(self, policy: Policy, requests: Sequence[SampleRequest]) -> SamplingRun:
        """Start sampling all requests against one policy, in as few program runs as their shapes allow."""
        return SamplingRun(self._programs, policy, requests)

    def sample(self, policy: Policy, requests: Sequence[SampleRequest]) -> list[SampleResult]:
        """The same from start to end at once."""
        run = self.run(policy, requests)
        results: dict[int, SampleResult] = {}
        while not run.finished:
            results.update(run.advance())
        return [results[index] for index in range(len(requests))]

    # ------------------------------------------------------------------ compiling ahead

    def common_work(self) -> list[Callable[[], None]]:
        """Work whose programs a first run with short prompts needs, the most wanted first."""
        short = self.buckets.lengths[0]
        few, many = self.buckets.sample_rows[0], self.buckets.sample_rows[-1]
        return [
            lambda: self._try_sampling(short - 1, many),
            lambda: self._try_training(self.buckets.rows[-1], short),
            lambda: self._try_sampling(short - 1, few),
            # A policy that has nearly learned leaves only a group or two that teach anything.
            lambda: self._try_training(self.buckets.rows[-2], short),
        ]

    def _try_sampling(self, prompt_tokens: int, samples: int) -> None:
        every = frozenset(range(self.config.vocab_size))
        self.sample(
            self.base_policy, [SampleRequest((0,) * prompt_tokens, samples, max_tokens=1, seed=0, stop_tokens=every)]
        )

    def _try_training(self, rows: int, tokens: int) -> None:
        blank = np.zeros(tokens, np.int32)
        zero = np.zeros(tokens, np.float32)
        model = self.create(LoraSettings(8), seed=0)
        self.forward_backward(model, [Example(blank, blank, zero, zero)] * rows, Loss("importance_sampling"))
        self.optim_step(model, AdamParams())


class _Compiling:
    """Logs the first run of each shape: it is the one that compiles."""

    def __init__(self, seen: set[tuple[object, ...]], shape: tuple[object, ...]) -> None:
        self._seen, self._shape, self._started = seen, shape, 0.0

    def __enter__(self) -> None:
        self._started = time.monotonic()

    def __exit__(self, *error: object) -> None:
        if error[0] is None and self._shape not in self._seen:
            self._seen.add(self._shape)
            seconds = time.monotonic() - self._started
            logger.info("program %s ready in %.1f s", self._shape[0], seconds, extra={"shape": self._shape[1:]})


def _loss(
    config: ModelConfig,
    base: Weights,
    adapter: Adapter,
    scale: jax.Array,
    index: jax.Array,
    constants: tuple[jax.Array, jax.Array, jax.Array],
    batch: dict[str, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    logprobs = token_logprobs(config, base, adapter, scale, batch["tokens"], batch["targets"])
    losses = token_losses(index, constants, logprobs, batch["sampled"], batch["factor"], batch["real"])
    return losses.sum(), logprobs


def _gradient(
    config: ModelConfig,
    base: Weights,
    adapter: Adapter,
    gathered: Adapter,
    scale: jax.Array,
    index: jax.Array,
    constants: tuple[jax.Array, jax.Array, jax.Array],
    batch: dict[str, jax.Array],
) -> tuple[jax.Array, jax.Array, Adapter]:
    def of_adapter(values: Adapter) -> tuple[jax.Array, jax.Array]:
        return _loss(config, base, values, scale, index, constants, batch)

    (loss, logprobs), gradients = jax.value_and_grad(of_adapter, has_aux=True)(adapter)
    return loss, logprobs, jax.tree.map(jnp.add, gathered, gradients)


_loss_program = jax.jit(_loss, static_argnums=0)
_gradient_program = jax.jit(_gradient, static_argnums=0)
