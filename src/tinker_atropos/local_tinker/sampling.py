"""The sampling programs: prefill of distinct prompts, then decoding of many rows, a stretch at a time.

Decoding stops by itself when every row is done. The host may also ask for it in stretches, to look for stop strings of
several tokens and for cancelled requests, which a compiled loop can't see.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from tinker_atropos.local_tinker.config import ModelConfig
from tinker_atropos.local_tinker.model import (
    Adapter,
    Weights,
    attend_one,
    decoder_layer,
    final_norm,
    forward,
    layer_adapters,
    logits,
)

State = dict[str, Any]
_FLOAT_BITS = 31
_ONE_IN_BITS = 0x3F800001


def _prefill(
    config: ModelConfig,
    base: Weights,
    adapter: Adapter,
    scale: jax.Array,
    prompts: jax.Array,
    lengths: jax.Array,
    prompt_of_row: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Hidden state of each row's last prompt token and its prompt's keys and values, gathered per row.

    Keys and values are laid out [layers, rows, kv_heads, tokens, head_dim], as decoding reads them.
    """
    hidden, (keys, values) = forward(config, base, adapter, scale, prompts, keep_kv=True)
    last = hidden[jnp.arange(prompts.shape[0]), lengths - 1]
    keys, values = jnp.swapaxes(keys, 2, 3), jnp.swapaxes(values, 2, 3)
    return last[prompt_of_row], keys[:, prompt_of_row], values[:, prompt_of_row]


def _at_least(probabilities: jax.Array, amounts: jax.Array, wanted: jax.Array) -> jax.Array:
    """Entries at or above the largest threshold whose entries' amounts still add up to what is wanted.

    By bisection over the bits of the (non-negative) floats: exact, and without a sort (slow for large vocabularies).
    """
    bits = lax.bitcast_convert_type(probabilities, jnp.int32)

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = low + (high - low) // 2
        enough = jnp.where(bits >= middle[:, None], amounts, 0.0).sum(-1) >= wanted
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    rows = probabilities.shape[0]
    bounds = (jnp.zeros(rows, jnp.int32), jnp.full(rows, _ONE_IN_BITS, jnp.int32))
    low, _ = lax.fori_loop(0, _FLOAT_BITS, halve, bounds)
    return bits >= low[:, None]


def _filter(scores: jax.Array, top_k: jax.Array, top_p: jax.Array) -> jax.Array:
    """Scores outside the top k or the nucleus become -inf; top_k 0 and top_p 1 filter nothing."""
    probabilities = jax.nn.softmax(scores, axis=-1)
    wanted = jnp.where(top_k > 0, top_k, scores.shape[-1]).astype(jnp.float32)
    kept = _at_least(probabilities, jnp.ones_like(probabilities), wanted) | (top_k <= 0)[:, None]
    probabilities = jnp.where(kept, probabilities, 0.0)
    probabilities = probabilities / probabilities.sum(-1, keepdims=True)
    kept &= _at_least(probabilities, probabilities, top_p * (1 - 1e-6)) | (top_p >= 1)[:, None]
    return jnp.where(kept, scores, -jnp.inf)


def choose(scores: jax.Array, rows: State, step: jax.Array) -> jax.Array:
    """Next token of each row. The key is (seed, sample), folded with the step: the same alone or in any batch."""
    tempered = scores / jnp.maximum(rows["temperature"], 1e-6)[:, None]
    filtering = jnp.any((rows["top_k"] > 0) | (rows["top_p"] < 1))
    tempered = lax.cond(filtering, lambda x: _filter(x, rows["top_k"], rows["top_p"]), lambda x: x, tempered)
    noise = jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, step), scores.shape[-1:]))(rows["key"])
    drawn = (tempered + noise).argmax(-1)
    return jnp.where(rows["temperature"] <= 0, scores.argmax(-1), drawn).astype(jnp.int32)


def start_state(config: ModelConfig, capacity: int, hidden: jax.Array, max_tokens: NDArray[np.int32]) -> State:
    """State before the first token. Rows without tokens to generate (padding) are done at once."""
    rows = len(max_tokens)
    cache = (config.layers, rows, config.kv_heads, capacity, config.head_dim)
    return {
        "step": np.int32(0),
        "hidden": hidden,
        "keys": np.zeros(cache, np.float32),
        "values": np.zeros(cache, np.float32),
        "tokens": np.zeros((rows, capacity), np.int32),
        "logprobs": np.zeros((rows, capacity), np.float32),
        "count": np.zeros(rows, np.int32),
        "done": max_tokens <= 0,
        "stopped": np.zeros(rows, bool),
    }


def choose_rows(arrays: tuple[jax.Array, jax.Array], chosen: NDArray[Any], axis: int) -> tuple[Any, Any]:
    """The chosen rows of keys and values, on the host: no program is compiled for it."""
    keys, values = (np.ascontiguousarray(np.take(np.asarray(array), chosen, axis=axis)) for array in arrays)
    return keys, values


def choose_state(state: State, chosen: NDArray[Any], real: int) -> State:
    """The chosen rows of a state; those beyond the first `real` are padding and done."""
    keys, values = choose_rows((state["keys"], state["values"]), chosen, axis=1)
    others = {
        name: np.asarray(array)[chosen] for name, array in state.items() if name not in ("step", "keys", "values")
    }
    others["done"] = others["done"] | (np.arange(len(chosen)) >= real)
    return {**others, "step": state["step"], "keys": keys, "values": values}


def grow(state: State, capacity: int) -> State:
    """The same state with room for more tokens: few rows need the room that their request allows."""

    def wider(array: jax.Array, axis: int) -> NDArray[Any]:
        old = np.asarray(array)
        shape = list(old.shape)
        shape[axis] = capacity
        new = np.zeros(shape, old.dtype)
        new[tuple(slice(0, size) for size in old.shape)] = old
        return new

    caches = {name: wider(state[name], 3) for name in ("keys", "values")}
    return {**state, **caches, **{name: wider(state[name], 1) for name in ("tokens", "logprobs")}}


def _decode(
    config: ModelConfig,
    base: Weights,
    adapter: Adapter,
    scale: jax.Array,
    prompt_kv: tuple[jax.Array, jax.Array],
    rows: State,
    state: State,
    until: jax.Array,
) -> State:
    """Generate up to step `until`, or until every row is done."""
    prompt_keys, prompt_values = prompt_kv
    generation = state["tokens"].shape[1]
    in_prompt = jnp.arange(prompt_keys.shape[3])[None, :] < rows["prompt_length"][:, None]
    loras = layer_adapters(adapter)

    def advance(s: State) -> State:
        """Run the decoder over the token just chosen."""
        step = s["step"]
        token = lax.dynamic_index_in_dim(s["tokens"], step, axis=1, keepdims=False)
        positions = (rows["prompt_length"] + step)[:, None]
        generated = (jnp.arange(generation) <= step)[None, :]

        def one_layer(carry: tuple[jax.Array, jax.Array, jax.Array], stacked: Any) -> tuple[Any, None]:
            x, all_keys, all_values = carry
            layer, lora, keys_before, values_before, number = stacked

            def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Any]:
                at = (number, 0, 0, step, 0)
                keys = lax.dynamic_update_slice(all_keys, jnp.swapaxes(k, 1, 2)[None], at)
                values = lax.dynamic_update_slice(all_values, jnp.swapaxes(v, 1, 2)[None], at)
                own = lax.dynamic_index_in_dim(keys, number, keepdims=False)
                own_values = lax.dynamic_index_in_dim(values, number, keepdims=False)
                segments = [(keys_before, values_before, in_prompt), (own, own_values, generated)]
                return attend_one(q, segments, config), (keys, values)

            x, (keys, values) = decoder_layer(config, x, layer, lora, scale, positions, attend)
            return (x, keys, values), None

        layers = (base["layers"], loras, prompt_keys, prompt_values, jnp.arange(config.layers))
        carry = (base["embed"][token][:, None], s["keys"], s["values"])
        (x, keys, values), _ = lax.scan(one_layer, carry, layers)
        return {**s, "hidden": final_norm(config, base, x)[:, 0], "keys": keys, "values": values}

    def body(s: State) -> State:
        step, done = s["step"], s["done"]
        scores = logits(base, adapter, scale, s["hidden"])
        token = choose(scores, rows, step)
        # Reported log probabilities are the model's own: neither tempered nor filtered.
        logprob = jnp.take_along_axis(scores, token[:, None], axis=1)[:, 0] - jax.nn.logsumexp(scores, axis=-1)
        token = jnp.where(done, 0, token)
        stop = jnp.take_along_axis(rows["stop"], token[:, None], axis=1)[:, 0] & ~done
        count = s["count"] + ~done
        s = {
            **s,
            "tokens": lax.dynamic_update_slice(s["tokens"], token[:, None], (0, step)),
            "logprobs": lax.dynamic_update_slice(s["logprobs"], jnp.where(done, 0.0, logprob)[:, None], (0, step)),
            "count": count,
            "stopped": s["stopped"] | stop,
            "done": done | stop | (count >= rows["max_tokens"]),
        }
        # Once too often at the very end; asking first (a conditional) would copy the caches at every step.
        return {**advance(s), "step": step + 1}

    ended: State = lax.while_loop(lambda s: (s["step"] < until) & ~jnp.all(s["done"]), body, state)
    return ended


prefill = jax.jit(_prefill, static_argnums=0)
decode = jax.jit(_decode, static_argnums=0, donate_argnums=6)
