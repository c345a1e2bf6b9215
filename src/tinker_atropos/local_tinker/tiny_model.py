"""The tiny model: a Llama of 0.8 million weights, pre-trained here on small sums, always from the same seed.

It answers `12+7=` with one or two digits, seldom the right ones: the form is there, and reinforcement learning has
something to find (answers in the training text are noisy on purpose). Made once in under a minute, then kept.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.tokenizer import BOS, CHARACTERS, EOS, SPECIALS, write_character_tokenizer

logger = logging.getLogger(__name__)

NAME = "tinker-atropos/tiny"
RECIPE = "1"

_SEED = 7
_STEPS = 150
_BATCH = 64
_LENGTH = 15
_PEAK_RATE = 4e-3
_WARM_UP = 15
_WRONG_ANSWERS = 0.3
_VOCABULARY = {token: index for index, token in enumerate((*SPECIALS, *CHARACTERS))}

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(_VOCABULARY),
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": _VOCABULARY[BOS],
    "eos_token_id": _VOCABULARY[EOS],
    "pad_token_id": 0,
    "torch_dtype": "float32",
}


def cache_directory(environment: dict[str, str] | None = None) -> Path:
    """Where the model is kept between starts: `$XDG_CACHE_HOME` or `~/.cache`, by recipe."""
    values = os.environ if environment is None else environment
    cache = Path(values.get("XDG_CACHE_HOME") or Path(values.get("HOME") or "/tmp") / ".cache")  # noqa: S108
    return cache / "tinker-atropos" / "models" / f"tiny-{RECIPE}"


def line(rng: np.random.Generator) -> str:
    """One line of training text."""
    kind = rng.random()
    a, b = (int(x) for x in rng.integers(0, 50, 2))
    if kind < 0.8:
        answer = int(rng.integers(0, 100)) if rng.random() < _WRONG_ANSWERS else a + b
        return f"{a}+{b}={answer}"
    if kind < 0.9:
        return f"{max(a, b)}-{min(a, b)}={abs(a - b)}"
    word = "".join(chr(ord("a") + int(x)) for x in rng.integers(0, 26, rng.integers(1, 5)))
    return f"{word} {word}"


def batch(rng: np.random.Generator) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Token rows and which of their positions count. Some rows start without `<bos>`, as raw prompts do."""
    tokens = np.full((_BATCH, _LENGTH), _VOCABULARY["<pad>"], np.int32)
    counted = np.zeros((_BATCH, _LENGTH), np.float32)
    for row in range(_BATCH):
        ids = [_VOCABULARY[c] for c in line(rng)] + [_VOCABULARY[EOS]]
        if rng.random() < 0.7:
            ids.insert(0, _VOCABULARY[BOS])
        tokens[row, : len(ids)] = ids
        counted[row, 1 : len(ids)] = 1.0
    return tokens, counted


def train() -> Any:
    """Weights after pre-training."""
    import jax
    import jax.numpy as jnp

    from tinker_atropos.local_tinker import lora
    from tinker_atropos.local_tinker.config import parse_config
    from tinker_atropos.local_tinker.model import token_logprobs
    from tinker_atropos.local_tinker.optimizer import adamw
    from tinker_atropos.local_tinker.weights import random_weights

    config = parse_config(CONFIG, "tiny")
    adapter = jax.tree.map(jnp.asarray, lora.zeros(config, 1))

    def loss(weights: Any, tokens: Any, counted: Any) -> Any:
        picked = token_logprobs(config, weights, adapter, jnp.float32(0.0), tokens[:, :-1], tokens[:, 1:])
        return -(picked * counted[:, 1:]).sum() / counted[:, 1:].sum()

    gradient = jax.jit(jax.value_and_grad(loss))
    weights = jax.tree.map(jnp.asarray, random_weights(config, _SEED))
    first = second = jax.tree.map(jnp.zeros_like, weights)
    rng = np.random.default_rng(_SEED)
    for step in range(1, _STEPS + 1):
        falling = 0.5 * (1 + np.cos(np.pi * max(0, step - _WARM_UP) / (_STEPS - _WARM_UP)))
        rate = _PEAK_RATE * min(1.0, step / _WARM_UP) * (0.02 + 0.98 * falling)
        settings = {
            "learning_rate": np.float32(rate),
            "beta1": np.float32(0.9),
            "beta2": np.float32(0.98),
            "eps": np.float32(1e-8),
            "weight_decay": np.float32(0.01),
            "grad_clip_norm": np.float32(1.0),
        }
        value, gradients = gradient(weights, *batch(rng))
        weights, first, second, _ = adamw(weights, first, second, gradients, np.float32(step), settings)
        if step % 40 == 0:
            logger.info("tiny model: step %d of %d, loss %.3f", step, _STEPS, float(value))
    return weights


def make(directory: Path) -> None:
    """Write the model and its tokenizer into `directory` (an ordinary Hugging Face folder)."""
    from tinker_atropos.local_tinker.weights import save_weights

    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    save_weights(directory, train())
    write_character_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    logger.info("tiny model made in %.0f s: %s", time.monotonic() - started, directory)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time makes the model; the others wait and find it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def ensure(directory: Path) -> Path:
    """The model's folder, made if it is not there. It appears whole or not at all."""
    if (directory / "config.json").exists():
        return directory
    with _alone(directory.with_name(directory.name + ".lock")):
        if (directory / "config.json").exists():
            return directory
        if directory.exists() and any(directory.iterdir()):
            raise UserError(f"{directory}: not empty and no model in it; name a new folder")
        logger.info("making the tiny model once (under a minute): %s", directory)
        for leftover in directory.parent.glob(f"{directory.name}.*.tmp"):
            shutil.rmtree(leftover)
        unfinished = directory.with_name(f"{directory.name}.{os.getpid()}.tmp")
        make(unfinished)
        unfinished.rename(directory)
    return directory


def compile_ahead(directory: Path) -> None:
    """Keep the common programs beside the model, for this kind of processor: a first start then finds them."""
    from tinker_atropos.local_tinker import compilation
    from tinker_atropos.local_tinker.config import read_config
    from tinker_atropos.local_tinker.engine import Engine
    from tinker_atropos.local_tinker.weights import load_weights

    compilation.use_cache(compilation.cache_folder(directory, directory))
    config = read_config(directory)
    for work in Engine(config, load_weights(directory, config), lambda _: "").common_work():
        work()


def main() -> None:
    """`python -m tinker_atropos.local_tinker.tiny_model`: for building images."""
    from tinker_atropos.local_tinker import compilation

    parser = argparse.ArgumentParser(prog="tiny_model", description=__doc__)
    parser.add_argument(
        "--out", type=Path, help="folder for the model and its tokenizer (default: where `--model tiny` looks)"
    )
    parser.add_argument("--compile", action="store_true", help="also compile the common programs for this processor")
    arguments = parser.parse_args()
    compilation.prepare(os.environ)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    try:
        directory = ensure(arguments.out or cache_directory())
    except UserError as error:
        sys.exit(error.message)
    if arguments.compile:
        compile_ahead(directory)


if __name__ == "__main__":
    main()
