"""One trainer against real peers: the end, every way in which it can be cut short, and what it says about it."""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from peer_processes import BATCH, GROUP, KEY, Program, Server, end_of, free_port, group, until
from tinker_atropos.protocol import exit_codes
from tinker_atropos.run import yaml_text
from tinker_atropos.trajectories.audit import command as audit
from tinker_atropos.trajectories.store.segment import scan

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

MakeTrainer = Callable[..., Program]
Post = Callable[[int], None]
GROUPS_PER_STEP = BATCH // GROUP


def assert_balanced(server: Server, trained: int) -> None:
    sums = server.ledger()["sums"]
    assert sums["trained"] == trained, sums
    assert sums["leased"] == 0, sums
    assert sums["stored"] == sums["queued"] + sums["leased"] + sums["trained"] + sums["dropped"], sums


def test_to_the_end(server: Server, tinker: Program, trainer: MakeTrainer, poster: Post) -> None:
    program = trainer(6).start()
    poster(6 * GROUPS_PER_STEP)
    assert program.wait() == 0, program.text()
    assert program.steps() == [1, 2, 3, 4, 5, 6]
    report = end_of(program)
    assert (report["phase"], report["step"], report["totalSteps"]) == ("Complete", 6, 6)
    assert report["samplerWeights"].startswith("tinker://") and report["samplerWeights"].endswith(
        "/sampler_weights/final"
    )
    assert report["namedCheckpoint"]["step"] == 6
    assert report["reward"]["mean"] == 0.5
    assert_balanced(server, 6 * GROUPS_PER_STEP)
    assert report["ledgerExport"] == str(server.store.parent / "export")
    audited = CliRunner().invoke(audit, [report["ledgerExport"]])
    assert audited.exit_code == 0 and "6 steps trained" in audited.output, audited.output


def test_a_ledger_that_cannot_be_exported_takes_nothing_back(
    server: Server, trainer: MakeTrainer, poster: Post
) -> None:
    (server.store.parent / "export").write_text("a file where the folder should be")
    program = trainer(1).start()
    poster(GROUPS_PER_STEP)
    assert program.wait() == 0, program.text()
    report = end_of(program)
    assert (report["phase"], "ledgerExport" in report) == ("Complete", False)
    export = server.store.parent / "export"
    assert report["message"] == f"{export} is there already and is no export; give a folder of its own"


def test_the_final_weights_can_be_sampled_from_and_older_ones_are_gone(
    server: Server, tinker: Program, trainer: MakeTrainer, poster: Post
) -> None:
    import tinker as sdk

    program = trainer(6).start()
    poster(6 * GROUPS_PER_STEP)
    assert program.wait() == 0, program.text()
    url = tinker.variables["URL"]
    weights = end_of(program)["samplerWeights"]
    with sdk.ServiceClient(base_url=url, api_key=KEY) as service:
        client = service.create_sampling_client(model_path=weights).result()
        answer = client.sample(sdk.ModelInput.from_ints([11, 12]), 1, sdk.SamplingParams(max_tokens=3)).result()
    assert len(answer.sequences) == 1
    run = weights.removeprefix("tinker://").split("/")[0]
    listed = sdk.RestClient(base_url=url, api_key=KEY).list_checkpoints(run).result().checkpoints
    assert sorted(checkpoint.checkpoint_id for checkpoint in listed) == [
        "sampler_weights/final",
        "weights/final",
        "weights/step-000003",
        "weights/step-000006",
    ]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "asked to end"])
def test_cut_short_and_replaced(server: Server, trainer: MakeTrainer, poster: Post, number: int) -> None:
    program = trainer(8).start()
    poster(8 * GROUPS_PER_STEP)
    until(lambda: len(program.steps()) >= 3, "three steps")
    program.kill(number)
    assert program.process is not None
    assert program.process.returncode == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    program.start()
    assert program.wait() == 0, program.text()
    times = Counter(program.steps())
    assert sorted(times) == list(range(1, 9))
    assert sum(times.values()) <= 9, f"more than one step was redone: {times}"
    assert end_of(program)["epoch"] == 2
    assert_balanced(server, 8 * GROUPS_PER_STEP)


def test_a_run_that_has_trained_more_than_is_asked_for_ends_at_once(
    server: Server, trainer: MakeTrainer, poster: Post
) -> None:
    program = trainer(8).start()
    poster(3 * GROUPS_PER_STEP)
    until(lambda: len(program.steps()) >= 3, "three steps")
    shorter = trainer(2, "shorter").start()
    assert shorter.wait() == 0, shorter.text()
    report = end_of(shorter)
    assert shorter.steps() == []
    assert (report["phase"], report["totalSteps"]) == ("Complete", 2) and report["step"] in (2, 3)
    assert report["samplerWeights"].endswith("/sampler_weights/final")
    assert program.wait() == exit_codes.FENCED


@pytest.mark.parametrize("steps", [0, 2], ids=["before the takeover", "in the middle"])
def test_asked_to_end_while_the_trajectory_server_is_away(
    server: Server, trainer: MakeTrainer, poster: Post, steps: int
) -> None:
    if not steps:
        server.program.kill()
    program = trainer(8).start()
    if steps:
        poster(8 * GROUPS_PER_STEP)
        until(lambda: len(program.steps()) >= steps, "some steps")
        server.program.kill()
    until(lambda: "does not answer" in program.text(), "the trainer waits for the server")
    program.kill(signal.SIGTERM)
    assert program.process is not None and program.process.returncode == 143
    assert "a step in flight may end" not in program.text(), "it waited for what may never come"
    assert "stopped by a signal" in end_of(program)["message"]


def test_asked_to_end_while_the_tinker_api_is_away(server: Server, trainer: MakeTrainer) -> None:
    program = trainer(3, options=("--tinker-base-url", f"http://127.0.0.1:{free_port()}")).start()
    until(lambda: "took the run over" in program.text(), "the trainer opens the training client")
    program.kill(signal.SIGTERM)
    assert program.process is not None and program.process.returncode == 143
    assert "stopped by a signal" in end_of(program)["message"], "it was cut off before it could say so"


def test_the_trajectory_server_dies_in_the_middle(server: Server, trainer: MakeTrainer, poster: Post) -> None:
    program = trainer(8).start()
    poster(8 * GROUPS_PER_STEP)
    until(lambda: len(program.steps()) >= 3, "three steps")
    server.program.kill()
    server.program.start()
    assert program.wait() == 0, program.text()
    assert program.steps() == list(range(1, 9))
    assert_balanced(server, 8 * GROUPS_PER_STEP)


def test_a_lost_store_does_not_lose_the_run(server: Server, trainer: MakeTrainer, poster: Post) -> None:
    program = trainer(8).start()
    poster(200)
    until(lambda: len(program.steps()) >= 3, "three steps")
    server.program.kill()
    shutil.rmtree(server.store)
    server.program.start()
    assert program.wait() == 0, program.text()
    assert sorted(set(program.steps())) == list(range(1, 9))
    assert end_of(program)["epoch"] == 2


def test_the_tinker_server_dies_in_the_middle(
    server: Server, tinker: Program, trainer: MakeTrainer, poster: Post
) -> None:
    program = trainer(8).start()
    poster(8 * GROUPS_PER_STEP)
    until(lambda: len(program.steps()) >= 3, "three steps")
    tinker.kill()
    tinker.start()
    assert program.wait(240) == 0, program.text()
    assert sorted(set(program.steps())) == list(range(1, 9))
    assert_balanced(server, 8 * GROUPS_PER_STEP)


def test_a_newer_trainer_fences_the_older(server: Server, trainer: MakeTrainer, poster: Post) -> None:
    first = trainer(200, "first").start()
    poster(400)
    until(lambda: len(first.steps()) >= 2, "two steps")
    second = trainer(200, "second").start()
    assert first.wait() == exit_codes.FENCED, first.text()
    assert "epoch" in end_of(first)["message"]
    until(lambda: len(second.steps()) >= 2, "two steps of the second")


def test_a_batch_that_teaches_nothing_is_a_step(server: Server, trainer: MakeTrainer, poster: Post) -> None:
    equal = {"tokens": [[11, 12, 13]] * GROUP, "masks": [[-100, 12, 13]] * GROUP, "scores": [1.0] * GROUP}
    for number in range(GROUPS_PER_STEP):
        body = {**equal, "inference_logprobs": [[1.0, -1.0 - number, -1.0]] * GROUP}
        assert httpx.post(f"{server.url}/scored_data", json=body).status_code == 200
    program = trainer(1).start()
    assert program.wait() == 0, program.text()
    sums = server.ledger()["sums"]
    assert (sums["trained"], sums["dropped"]) == (0, GROUPS_PER_STEP), sums


REFUSED = {
    "a wrong key": ({"TINKER_API_KEY": "tml-wrong"}, {}, exit_codes.KEY_REFUSED, "refused the key"),
    "a key of the wrong form": ({"TINKER_API_KEY": "wrong"}, {}, exit_codes.KEY_REFUSED, "tml-"),
    "a rank that the service does not take": ({}, {"lora_rank": 1024}, exit_codes.CONFIG_ERROR, "rank"),
}


@pytest.mark.parametrize(("variables", "config", "status", "message"), REFUSED.values(), ids=REFUSED)
def test_refused_at_the_start(
    server: Server,
    trainer: MakeTrainer,
    variables: dict[str, str],
    config: dict[str, object],
    status: int,
    message: str,
) -> None:
    program = trainer(3, **config)
    program.variables = variables
    assert program.start().wait() == status, program.text()
    report = end_of(program)
    assert report["phase"] == "Failed" and message in report["message"]
    assert "Traceback" not in program.text()


def test_a_model_that_is_not_offered(server: Server, trainer: MakeTrainer) -> None:
    program = trainer(3)
    config = Path(program.arguments[2])
    document = yaml_text.load_all(config.read_text())[0]
    document["spec"]["config"]["openai"] = [{"model_name": "tinker-atropos/tinny"}]
    document["spec"]["tinkerAPI"] = {"baseURL": "http://of-the-command-line"}
    config.write_text(yaml_text.dump(document))
    assert program.start().wait() == exit_codes.CONFIG_ERROR, program.text()
    assert "did you mean 'tinker-atropos/tiny'?" in end_of(program)["message"]


def test_a_saved_state_that_is_gone(server: Server, tinker: Program, trainer: MakeTrainer, poster: Post) -> None:
    import tinker as sdk

    program = trainer(200).start()
    poster(400)
    until(lambda: len(program.steps()) >= 2, "two steps")
    program.kill()
    rest = sdk.RestClient(base_url=tinker.variables["URL"], api_key=KEY)
    for checkpoint in rest.list_user_checkpoints(limit=1000).result().checkpoints:
        rest.delete_checkpoint_from_tinker_path(checkpoint.tinker_path).result()
    assert program.start().wait() == exit_codes.STATE_LOST, program.text()
    assert "is gone" in end_of(program)["message"]


def test_a_store_that_lost_what_it_had_taken(server: Server, trainer: MakeTrainer) -> None:
    for number in range(GROUPS_PER_STEP):
        assert httpx.post(f"{server.url}/scored_data", json=group(number)).status_code == 200
    segment = server.store / "segment-00000001.log"
    [first, *_] = [record for record in scan(segment, 1, payloads=False) if record.payload is not None]
    assert first.payload is not None
    with segment.open("r+b") as file:
        file.seek(first.payload.offset)
        file.write(bytes(first.payload.length))
    program = trainer(2).start()
    assert program.wait() == 1, program.text()
    report = end_of(program)
    assert report["phase"] == "Failed"
    assert report["message"].startswith("the trajectory server's store is damaged: group 1 of environment ")
    assert "restore what it names from a copy, or start a new run" in report["message"]


def test_no_batch_within_the_startup_deadline(server: Server, trainer: MakeTrainer) -> None:
    program = trainer(3)
    config = Path(program.arguments[2])
    config.write_text(config.read_text() + "  deadlines: {startup: 20s}\n")
    posted = {**group(0), "scores": ["high"] * len(group(0)["scores"])}
    assert httpx.post(f"{server.url}/scored_data", json=posted).status_code == 422
    assert program.start().wait(120) == exit_codes.STARTUP_TIMEOUT, program.text()
    report = end_of(program)
    assert "no batch came within 20s" in report["message"]
    assert "are refused: scores[0]: must be a number, not a string" in report["message"]
    assert [warning["reason"] for warning in report["warnings"]] == ["PostsRefused"], "told before the first step"
