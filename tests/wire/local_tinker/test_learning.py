"""The server really trains: a reward that the tiny model seldom gets at first, it nearly always gets in the end."""

from __future__ import annotations

import random
from typing import Any

import pytest
import tinker
from tinker import types

pytestmark = pytest.mark.wire


def _datum(prompt: list[int], tokens: list[int], logprobs: list[float], advantage: float) -> types.Datum:
    whole = prompt + tokens
    before = len(prompt) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=whole[1:], dtype="int64", shape=[len(whole) - 1]),
            "logprobs": types.TensorData(data=[0.0] * before + logprobs, dtype="float32", shape=[len(whole) - 1]),
            "advantages": types.TensorData(
                data=[0.0] * before + [advantage] * len(tokens), dtype="float32", shape=[len(whole) - 1]
            ),
        },
    )


@pytest.mark.parametrize(("loss", "rank"), [("ppo", 8), ("importance_sampling", 32)])
def test_last_digit_becomes_seven(client: Any, tokenizer: Any, loss: str, rank: int) -> None:
    rng = random.Random(rank)
    training = client.create_lora_training_client("tinker-atropos/tiny", rank=rank, seed=1).result()
    rewards: list[float] = []
    for _ in range(40):
        sampler = training.save_weights_and_get_sampling_client().result()
        prompts = [tokenizer.encode(f"{rng.randrange(50)}+{rng.randrange(50)}=") for _ in range(8)]
        params = types.SamplingParams(max_tokens=8)
        sampled = [sampler.sample(types.ModelInput.from_ints(p), 16, params) for p in prompts]
        data, got = [], []
        for prompt, future in zip(prompts, sampled, strict=True):
            rows = future.result(timeout=60).sequences
            reward = [float(tokenizer.decode(r.tokens, skip_special_tokens=True).endswith("7")) for r in rows]
            mean = sum(reward) / len(reward)
            got.append(mean)
            data += [_datum(prompt, r.tokens, r.logprobs, x - mean) for r, x in zip(rows, reward, strict=True)]
        rewards.append(sum(got) / len(got))
        if rewards[-1] >= 0.95:
            break
        passed = training.forward_backward(data, loss)
        stepped = training.optim_step(tinker.AdamParams(learning_rate=1e-3))
        assert "loss:sum" in passed.result(timeout=60).metrics
        assert stepped.result(timeout=60).metrics["grad_norm:mean"] >= 0
    assert rewards[0] < 0.4
    assert max(rewards) >= 0.9, rewards
