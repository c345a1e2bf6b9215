"""The engine: the same numbers whether work comes alone, together, in parts or in another order."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tinker_atropos.local_tinker import generation
from tinker_atropos.local_tinker.engine import Engine, Example, TrainingModel
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.generation import SampleRequest
from tinker_atropos.local_tinker.lora import LoraSettings, to_tensors
from tinker_atropos.local_tinker.losses import LOSSES, Loss
from tinker_atropos.local_tinker.optimizer import AdamParams

FAST = AdamParams(learning_rate=0.01)


def example(ids: list[int], factor: float = 1.0, sampled: float = -1.0) -> Example:
    size = len(ids) - 1
    return Example(
        np.array(ids[:-1], np.int32),
        np.array(ids[1:], np.int32),
        np.full(size, factor, np.float32),
        np.full(size, sampled, np.float32),
    )


def examples(count: int, seed: int = 0, shortest: int = 3, longest: int = 12) -> list[Example]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        ids = rng.integers(0, 24, rng.integers(shortest, longest)).tolist()
        made.append(example(ids, factor=float(rng.standard_normal()), sampled=-float(rng.random())))
    return made


def trained(engine: Engine, settings: LoraSettings | None = None, steps: int = 2) -> TrainingModel:
    model = engine.create(settings or LoraSettings(4), seed=1)
    for step in range(steps):
        engine.forward_backward(model, examples(4, seed=step), Loss("cross_entropy"))
        engine.optim_step(model, FAST)
    return model


def request(prompt: list[int], **fields: Any) -> SampleRequest:
    given = {"samples": 1, "max_tokens": 8, "seed": 5, **fields}
    return SampleRequest(tuple(prompt), **given)


def test_sampling_and_training_agree_on_logprobs(engine: Engine) -> None:
    model = trained(engine)
    prompt = [3, 7, 1]
    (result,) = engine.sample(model.policy(), [request(prompt, samples=4, prompt_logprobs=True)])
    for row in result.sequences:
        whole = prompt + row.tokens
        passed = engine.forward_backward(model, [example(whole)], Loss("cross_entropy"), forward_only=True)
        np.testing.assert_allclose(passed.logprobs[0][2:], row.logprobs, atol=2e-5)
        assert result.prompt_logprobs is not None
        assert np.isnan(result.prompt_logprobs[0])
        np.testing.assert_allclose(passed.logprobs[0][:2], result.prompt_logprobs[1:], atol=2e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_loss_is_the_sum_over_tokens(engine: Engine, name: str) -> None:
    model, data, loss = trained(engine), examples(5), Loss(name)
    together = engine.forward_backward(model, data, loss, forward_only=True)
    alone = [engine.forward_backward(model, [one], loss, forward_only=True) for one in data]
    assert together.loss == pytest.approx(sum(one.loss for one in alone), rel=1e-4, abs=1e-5)
    for one, logprobs in zip(alone, together.logprobs, strict=True):
        np.testing.assert_allclose(one.logprobs[0], logprobs, atol=1e-5)


def test_gradients_gather_over_passes(engine: Engine) -> None:
    data = examples(6)
    whole, parts = trained(engine), trained(engine)
    engine.forward_backward(whole, data, Loss("ppo"))
    for part in (data[:2], data[2:5], data[5:]):
        engine.forward_backward(parts, part, Loss("ppo"))
    engine.forward_backward(parts, data, Loss("ppo"), forward_only=True)
    assert engine.optim_step(whole, FAST) == pytest.approx(engine.optim_step(parts, FAST), rel=1e-3)
    for name, tensor in to_tensors(whole.adapter, whole.settings).items():
        np.testing.assert_allclose(tensor, to_tensors(parts.adapter, parts.settings)[name], atol=1e-4)


def test_a_batch_beyond_the_largest_shape_is_split(engine: Engine) -> None:
    model, data = trained(engine), examples(300, shortest=3, longest=40)
    result = engine.forward_backward(model, data, Loss("cross_entropy"), forward_only=True)
    assert [len(lp) for lp in result.logprobs] == [len(e.tokens) for e in data]
    lone = engine.forward_backward(model, [data[250]], Loss("cross_entropy"), forward_only=True)
    np.testing.assert_allclose(result.logprobs[250], lone.logprobs[0], atol=1e-5)


def test_numeric_gradient(engine: Engine) -> None:
    """Moving along the gradient by a little lowers the loss by what the gradient says."""
    model, data, loss = trained(engine), examples(4), Loss("importance_sampling")
    engine.forward_backward(model, data, loss)
    assert model.gradients is not None
    size = 1e-3
    slope = sum(float((np.asarray(g) ** 2).sum()) for sides in model.gradients.values() for g in sides)
    moved = {
        sign: {
            name: tuple(p + sign * size * g / np.sqrt(slope) for p, g in zip(model.adapter[name], sides, strict=True))
            for name, sides in model.gradients.items()
        }
        for sign in (1, -1)
    }
    losses = {
        sign: engine.forward_backward(engine.restore(model.settings, adapter), data, loss, forward_only=True).loss
        for sign, adapter in moved.items()
    }
    assert (losses[1] - losses[-1]) / (2 * size) == pytest.approx(np.sqrt(slope), rel=0.02)


@pytest.mark.parametrize(
    ("settings", "frozen"),
    [
        (LoraSettings(4, train_unembed=False), ["unembed"]),
        (LoraSettings(4, train_attn=False), ["q", "k", "v", "o"]),
        (LoraSettings(4, train_mlp=False), ["gate", "up", "down"]),
    ],
)
def test_training_leaves_alone_what_it_shall_not_train(
    engine: Engine, settings: LoraSettings, frozen: list[str]
) -> None:
    model = trained(engine, settings, steps=3)
    for name, (down, up) in model.adapter.items():
        assert bool(np.any(np.asarray(up))) is (name not in frozen), name
        beyond = np.asarray(down)[..., settings.rank :, :], np.asarray(up)[..., settings.rank :, :]
        assert not any(np.any(part) for part in beyond)


def test_restored_model_takes_the_same_next_step(engine: Engine) -> None:
    model = trained(engine, steps=3)
    twin = engine.restore(model.settings, model.adapter, (model.first, model.second), model.step)
    fresh = engine.restore(model.settings, model.adapter)
    for one in (model, twin, fresh):
        engine.forward_backward(one, examples(4, seed=9), Loss("cross_entropy"))
        engine.optim_step(one, FAST)
    losses = [
        engine.forward_backward(one, examples(4, seed=10), Loss("cross_entropy"), forward_only=True).loss
        for one in (model, twin, fresh)
    ]
    assert losses[0] == losses[1] != losses[2]
    assert (model.step, twin.step, fresh.step) == (4, 4, 1)


def test_a_snapshot_does_not_move(engine: Engine) -> None:
    model = trained(engine)
    policy, ask = model.policy(), [request([3, 7], temperature=0.0)]
    before = engine.sample(policy, ask)
    engine.forward_backward(model, examples(4), Loss("cross_entropy"))
    engine.optim_step(model, AdamParams(learning_rate=0.5))
    assert engine.sample(policy, ask) == before
    assert engine.sample(model.policy(), ask)[0].sequences[0].logprobs != before[0].sequences[0].logprobs


def test_gradient_that_is_not_finite_is_refused(engine: Engine) -> None:
    model = trained(engine)
    before = to_tensors(model.adapter, model.settings)
    wild = dataclasses.replace(example([1, 2, 3]), sampled=np.full(2, -1e4, np.float32))
    engine.forward_backward(model, [wild], Loss("importance_sampling"))
    with pytest.raises(UserError, match="not finite"):
        engine.optim_step(model, FAST)
    assert engine.optim_step(model, AdamParams(learning_rate=0.0))["grad_norm:mean"] == 0.0
    for name, tensor in to_tensors(model.adapter, model.settings).items():
        np.testing.assert_array_equal(tensor, before[name])


# ---------------------------------------------------------------------- sampling


def test_seed_gives_the_same_tokens_alone_and_in_company(engine: Engine) -> None:
    asked = request([3, 7, 1], samples=3, seed=11)
    (alone,) = engine.sample(engine.base_policy, [asked])
    company = [request([4, 5], samples=5, seed=1), asked, request([9] * 20, seed=2)]
    together = engine.sample(engine.base_policy, company)[1]
    assert [row.tokens for row in together.sequences] == [row.tokens for row in alone.sequences]
    (other,) = engine.sample(engine.base_policy, [request([3, 7, 1], samples=3, seed=12)])
    assert [row.tokens for row in other.sequences] != [row.tokens for row in alone.sequences]


def test_samples_of_one_request_differ(engine: Engine) -> None:
    (result,) = engine.sample(engine.base_policy, [request([3, 7, 1], samples=16)])
    assert len({tuple(row.tokens) for row in result.sequences}) > 1


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_ways_to_be_greedy(engine: Engine, fields: dict[str, Any]) -> None:
    prompt = [3, 7, 1]
    (result,) = engine.sample(engine.base_policy, [request(prompt, max_tokens=4, **fields)])
    tokens = result.sequences[0].tokens
    candidates = [prompt + tokens[:n] + [token] for n in range(4) for token in range(24)]
    scores = [row[-1] for row in engine.score(engine.base_policy, candidates)]
    assert tokens == [int(np.argmax(scores[n * 24 : n * 24 + 24])) for n in range(4)]
    np.testing.assert_allclose(
        result.sequences[0].logprobs, [max(scores[n * 24 : n * 24 + 24]) for n in range(4)], atol=2e-5
    )


@pytest.mark.parametrize(("fields", "most"), [({"top_k": 3}, 3), ({"top_p": 0.5}, 24)])
def test_filters_keep_the_likeliest(engine: Engine, fields: dict[str, Any], most: int) -> None:
    prompt = [3, 7, 1]
    (result,) = engine.sample(engine.base_policy, [request(prompt, samples=400, max_tokens=1, **fields)])
    drawn = {row.tokens[0] for row in result.sequences}
    scores = [row[-1] for row in engine.score(engine.base_policy, [[*prompt, token] for token in range(24)])]
    order = [int(token) for token in np.argsort(scores)[::-1]]
    if "top_p" in fields:
        sums = np.cumsum(np.exp(np.asarray(scores)[order]))
        most = int(np.searchsorted(sums, fields["top_p"])) + 1
    assert drawn <= set(order[:most])
    assert len(drawn) == most


def test_frequencies_follow_the_model(engine: Engine) -> None:
    """400 draws of the next token against its probabilities: no token is off by more than chance allows."""
    prompt = [3, 7, 1]
    (result,) = engine.sample(engine.base_policy, [request(prompt, samples=400, max_tokens=1)])
    drawn = np.bincount([row.tokens[0] for row in result.sequences], minlength=24) / 400
    scores = [row[-1] for row in engine.score(engine.base_policy, [[*prompt, token] for token in range(24)])]
    p = np.exp(scores)
    assert np.all(np.abs(drawn - p) < 4.5 * np.sqrt(p * (1 - p) / 400) + 1e-3)


def test_stop_token_ends_a_row_and_is_kept(engine: Engine) -> None:
    (free,) = engine.sample(engine.base_policy, [request([3, 7, 1], seed=8)])
    tokens = free.sequences[0].tokens
    assert len(tokens) == 8
    assert not free.sequences[0].stopped
    (ended,) = engine.sample(engine.base_policy, [request([3, 7, 1], seed=8, stop_tokens=frozenset({tokens[3]}))])
    assert ended.sequences[0].tokens == tokens[: tokens.index(tokens[3]) + 1]
    assert ended.sequences[0].stopped


def test_stop_string_over_several_tokens(engine: Engine) -> None:
    (free,) = engine.sample(engine.base_policy, [request([3, 7, 1], seed=8, max_tokens=40)])
    tokens = free.sequences[0].tokens
    text = "".join(chr(ord("a") + t) for t in tokens)
    wanted = text[20:23]
    (ended,) = engine.sample(engine.base_policy, [request([3, 7, 1], seed=8, max_tokens=40, stop_strings=(wanted,))])
    assert ended.sequences[0].tokens == tokens[: text.index(wanted) + 3]
    assert ended.sequences[0].stopped


def test_cancelled_request_stops_early(engine: Engine) -> None:
    looked: list[int] = []

    def cancelled() -> bool:
        looked.append(1)
        return True

    ask = request([3], max_tokens=60, stop_strings=("never in it",), cancelled=cancelled)
    (result,) = engine.sample(engine.base_policy, [ask])
    assert looked
    assert len(result.sequences[0].tokens) == 16, "it ends at the first look"


def test_rows_that_end_make_way_for_long_ones(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long row goes on alone in a smaller program and comes out the same as if the others had never been there."""
    monkeypatch.setattr(generation, "_LONG", 16)
    long = request([3, 7, 1], max_tokens=60, seed=9)
    short = [request([3, 7, n], samples=3, max_tokens=n, seed=n) for n in range(1, 20)]
    together = engine.sample(engine.base_policy, [*short[:10], long, *short[10:]])
    (alone,) = engine.sample(engine.base_policy, [long])
    assert together[10].sequences[0].tokens == alone.sequences[0].tokens
    assert len(alone.sequences[0].tokens) == 60
    np.testing.assert_allclose(together[10].sequences[0].logprobs, alone.sequences[0].logprobs, atol=2e-5)
    lengths = [len(row.tokens) for result in (*together[:10], *together[11:]) for row in result.sequences]
    assert lengths == [n for n in range(1, 20) for _ in range(3)]


def test_more_samples_than_the_largest_shape(engine: Engine) -> None:
    (result,) = engine.sample(engine.base_policy, [request([3, 7, 1], samples=300, max_tokens=2)])
    assert len(result.sequences) == 300
    assert all(len(row.tokens) == 2 for row in result.sequences)


def test_equal_prompts_count_as_cached_once_prefilled(engine: Engine) -> None:
    results = engine.sample(engine.base_policy, [request([3, 7]), request([3, 7], seed=6), request([4])])
    assert [result.cached_prompt for result in results] == [False, True, False]


def test_score_of_a_single_token_is_unknown(engine: Engine) -> None:
    (scores,) = engine.score(engine.base_policy, [[4]])
    assert len(scores) == 1
    assert np.isnan(scores[0])
