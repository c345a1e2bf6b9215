"""A model of one's own: a Hugging Face Llama folder is served under its name, with its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tinker
from tinker import types

from tinker_atropos.local_tinker.config import read_config
from tinker_atropos.local_tinker.tiny_model import CONFIG
from tinker_atropos.local_tinker.tokenizer import write_character_tokenizer
from tinker_atropos.local_tinker.weights import random_weights, save_weights

pytestmark = pytest.mark.wire


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "my-llama"
    made.mkdir()
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "max_position_embeddings": 128}
    (made / "config.json").write_text(json.dumps({**CONFIG, **sizes, "head_dim": 8, "tie_word_embeddings": False}))
    write_character_tokenizer(made)
    config = read_config(made)
    weights = random_weights(config, seed=1)
    weights["head"] = weights["embed"] * 2
    save_weights(made, weights)
    return made


def test_a_folder_is_served_under_its_name(request: pytest.FixtureRequest, tmp_path: Path, folder: Path) -> None:
    shared: Any = request.getfixturevalue("server")
    server = type(shared)(tmp_path / "data", "--no-warm-up", "--model", str(folder))
    request.addfinalizer(server.terminate)
    server.start()
    client = tinker.ServiceClient(base_url=server.url, api_key="tml-local")
    training = client.create_lora_training_client("local/my-llama", rank=4, seed=1).result(timeout=120)
    ids = [1, 8, 9, 10, 11, 2]
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": types.TensorData(data=ids[1:], dtype="int64", shape=[5])},
    )
    losses = []
    for _ in range(8):
        passed = training.forward_backward([datum], "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=0.01))
        losses.append(passed.result(timeout=120).metrics["loss:sum"])
    assert losses[-1] < losses[0] - 1
    sampler = training.save_weights_and_get_sampling_client().result(timeout=60)
    longest = types.SamplingParams(max_tokens=4000, stop=[])
    (row,) = sampler.sample(types.ModelInput.from_ints([1, 8]), 1, longest).result(timeout=120).sequences
    assert (len(row.tokens), row.stop_reason) == (126, "length"), "the context is full"
    with pytest.raises(tinker.RequestFailedError, match="this server has 'local/my-llama'"):
        client.create_lora_training_client("tinker-atropos/tiny", rank=4).result(timeout=60)
