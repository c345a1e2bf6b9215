"""An unmodified environment of the Atropos repository against this server, to trained batches with known versions.

It samples from a small stand-in of the gateway, so that nothing but the trajectory server is tested.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinker_atropos.protocol.versions import completion_digest

pytestmark = pytest.mark.wire

ENVIRONMENTS = Path(
    os.environ.get("TINKER_ATROPOS_ENVIRONMENTS_DIR", Path(__file__).parents[4] / "shared" / "atropos-environments")
)
REGEX = ENVIRONMENTS / "environments" / "community" / "regex_generation"
ANSWERS = ("<answer>.*</answer>", "<answer>nothing like it</answer>", "<answer>[a-z]+</answer>", "<answer>(</answer>")


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of one token a byte, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    vocabulary["<|end|>"] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>")
    fast.chat_template = (
        "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    folder = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(folder)
    return folder


class Sampler:
    """Answers sglang's /generate with tokens and logprobs; records each completion's version as the gateway does."""

    def __init__(self, server: Any, tokenizer_folder: Path) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
        rng = random.Random(1)
        requests: list[str] = []
        record = threading.Lock()

        def generate(request: dict[str, Any]) -> list[dict[str, Any]]:
            prompt = np.array(request["input_ids"], np.int32)
            answers, digests = [], []
            for number in range(request["sampling_params"].get("n", 1)):
                text = f"<think>{rng.random()}</think>{ANSWERS[number % len(ANSWERS)]}"
                tokens = tokenizer.encode(text, add_special_tokens=False)
                logprobs = np.array([-rng.random() for _ in tokens], np.float32)
                digests.append(completion_digest(prompt, np.array(tokens, np.int32), logprobs))
                pairs = [[float(value), token, None] for value, token in zip(logprobs, tokens, strict=True)]
                meta = {"output_token_logprobs": pairs, "finish_reason": {"type": "stop"}, "id": "x"}
                answers.append({"text": text, "output_ids": tokens, "meta_info": meta})
            with record:
                version = server.pb.PolicyVersion(epoch=1, step=server.published)
                server.rpc.Record(server.pb.RecordRequest(version=version, digests=digests))
            return answers

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                requests.append(self.path)
                answer: Any = {"id": "x", "object": "text_completion", "created": 0, "model": "m", "choices": []}
                if self.path == "/generate":
                    answer = generate(request)
                body = json.dumps(answer).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.requests = requests
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def environment(server: Any, tokenizer_folder: Path, tmp_path: Path) -> Iterator[Any]:
    if not REGEX.is_dir():
        pytest.skip(f"no unmodified environment in {REGEX}; TINKER_ATROPOS_ENVIRONMENTS_DIR says where they are")
    server.published = 0
    server.rpc  # noqa: B018 - connect before threads do
    sampler = Sampler(server, tokenizer_folder)
    settings = {
        "env.tokenizer_name": tokenizer_folder,
        "env.use_wandb": "false",
        "env.rollout_server_url": f"http://127.0.0.1:{server.port}",
        "env.group_size": 4,
        "env.total_steps": 1000,
        "env.max_token_length": 2048,
        "env.eval_handling": "NONE",
        "openai.model_name": tokenizer_folder,
        "openai.base_url": f"{sampler.url}/v1",
        "openai.api_key": "x",
        "openai.server_type": "sglang",
    }
    command = [sys.executable, "regex_env.py", "serve"]
    command += [text for name, value in settings.items() for text in (f"--{name}", str(value))]
    log = tmp_path / "environment.log"
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=REGEX, stdout=file, stderr=file, env=variables)
    server.environment, server.environment_log, server.sampler = process, log, sampler
    yield server
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait(10)
    sampler.http.shutdown()
    sampler.http.server_close()


def test_it_delivers_batches_and_never_cancels_a_rollout(environment: Any) -> None:
    server = environment
    deadline = time.monotonic() + 180
    server.take_over(batch_size=16, max_token_length=4096, max_steps_off_policy=1000)
    for step in range(1, 6):
        while (batch := server.lease(1, step, wait=5)) is None:
            assert server.environment.poll() is None, server.environment_log.read_text()[-3000:]
            assert time.monotonic() < deadline, server.environment_log.read_text()[-3000:]
        assert sum(len(group.sequences) for group in batch.groups) == 16
        for group in batch.groups:
            assert (group.environment, group.oldest.epoch) == ("regex_generation", 1)
            assert group.staleness == step - 1 - group.oldest.step >= 0
            assert len({sequence.score for sequence in group.sequences}) > 1
        server.ack(1, batch)
        server.published = step
    # Many more groups wait than upstream's limit, and yet the environment was never told to back off.
    while server.get("/status")["queue_size"] < 40:
        assert time.monotonic() < deadline, server.environment_log.read_text()[-3000:]
        time.sleep(0.2)
    generated = server.sampler.requests.count("/generate")
    stored = server.get("/ledger")["sums"]["stored"]
    assert generated - stored <= 8, "rollouts were thrown away"
    assert not re.search(r"ancel", server.environment_log.read_text())


def test_what_atroposlib_makes_of_a_chat_is_taken(server: Any, tokenizer_folder: Path) -> None:
    """AP-27: with transformers 5 atroposlib makes mappings of the tokens, so this project installs version 4."""
    from atroposlib.utils.tokenize_for_trainer import tokenize_for_trainer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    group: dict[str, Any] = {"tokens": [], "masks": [], "scores": []}
    for answer in ("4", "five"):
        chat = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": answer}]
        made = tokenize_for_trainer(tokenizer, chat)
        group["tokens"].append(made["tokens"])
        group["masks"].append(made["masks"])
        group["scores"].append(float(answer == "4"))
    server.take_over(batch_size=2)
    server.post("/scored_data", group)
    [stored] = server.lease(1, 1).groups
    first = np.frombuffer(stored.sequences[0].tokens, "<i4")
    assert tokenizer.decode(first) == "user: 2+2\nassistant: 4\n"
