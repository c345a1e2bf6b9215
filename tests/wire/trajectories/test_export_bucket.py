"""A run's ledger is exported to a bucket: whole or not there, whatever the service and the process do meanwhile.

The service is a real one, versitygw, where it is installed; else moto's server, an independent implementation of S3's
API that checks no signatures (tests/support/object_storage.py). Refusals and outages are played by a door before it.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from object_storage import BUCKET, Door, Service, credentials
from peer_processes import until
from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.audit import command
from tinker_atropos.trajectories.export import ExportError
from tinker_atropos.trajectories.export_bucket import SEGMENT_BYTES, Bucket, BucketExport
from tinker_atropos.trajectories.ledger import Ledger
from tinker_atropos.trajectories.settings import Settings

pytestmark = pytest.mark.wire

URL = f"s3://{BUCKET}/runs/first-uid"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("storage"))
    yield running
    running.stop()


@pytest.fixture
def door(storage: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    door = Door(storage)
    yield door
    door.close()


@pytest.fixture
def bucket(door: Door, request: pytest.FixtureRequest) -> Bucket:
    """A place of the test's own."""
    return Bucket(f"{URL}/{abs(hash(request.node.name))}", door.endpoint)


def train(server: Any, steps: int) -> int:
    epoch: int = server.take_over(batch_size=8).epoch
    server.post("/scored_data_list", [server.group(number) for number in range(2 * steps + 1)])
    for step in range(1, steps + 1):
        server.ack(epoch, server.lease(epoch, step))
    server.cover(epoch, steps)
    return epoch


def finish(server: Any, epoch: int) -> pb.FinishResponse:
    answer: pb.FinishResponse = server.rpc.Finish(pb.FinishRequest(epoch=epoch))
    return answer


def audit(bucket: Bucket) -> tuple[int, str]:
    options = ["--endpoint", bucket.endpoint] if bucket.endpoint else []
    with ThreadPoolExecutor() as pool:  # it has a loop of its own, as in its own process
        result = pool.submit(CliRunner().invoke, command, [bucket.url, *options]).result()
    return result.exit_code, result.output


async def names(bucket: Bucket) -> list[str]:
    return sorted((await bucket.names())[0])


async def test_a_finished_run_is_there_and_is_audited_and_served_from(
    make_server: Any, bucket: Bucket, tmp_path: Path
) -> None:
    server = make_server(export=bucket)
    epoch = train(server, 3)
    answer = finish(server, epoch)
    assert (answer.exported_to, answer.problem) == (bucket.url, "")
    assert audit(bucket) == (0, CliRunner().invoke(command, [f"http://127.0.0.1:{server.port}"]).output)
    assert finish(server, epoch) == answer, "said again it changes nothing"
    assert await names(bucket) == ["run.json", "segment-00000001.log", "snapshot-00000002.json"]
    told = json.loads(await bucket.get("run.json") or b"")
    assert told["files"] == ["segment-00000001.log", "snapshot-00000002.json"] and told["ledger"]["covered"] == 6
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in await names(bucket):
        (copy / name).write_bytes(await bucket.get(name) or b"")
    again = make_server(store=str(copy))
    assert again.get("/status")["ledger"] == server.get("/status")["ledger"]
    assert again.get("/latest_example")["scores"] == server.get("/latest_example")["scores"], "its payload is there"


async def test_what_came_after_the_end_replaces_it(make_server: Any, bucket: Bucket, door: Door) -> None:
    server = make_server(export=bucket)
    finish(server, train(server, 1))
    server.post("/scored_data", server.group(99))
    server.stop()
    assert "4 groups acknowledged" in audit(bucket)[1]
    assert await names(bucket) == ["run.json", "segment-00000002.log", "snapshot-00000003.json"]
    assert door.put() == [
        *("segment-00000001.log", "snapshot-00000002.json", "run.json"),
        *("segment-00000002.log", "snapshot-00000003.json", "run.json"),
    ]


@pytest.mark.parametrize("at", ["segment-00000001.log", "snapshot-00000002.json", "run.json"])
async def test_killed_while_it_writes_it_begins_again_and_ends_whole(
    make_process_server: Any, bucket: Bucket, door: Door, at: str
) -> None:
    reached, over = threading.Event(), threading.Event()

    def hold(method: str, name: str) -> tuple[int, str] | None:
        if (method, name) == ("PUT", at):
            reached.set()
            over.wait(60)
            return 500, "InternalError"
        return None

    door.judge = hold
    server = make_process_server(export=bucket)
    epoch = train(server, 2)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(finish, server, epoch)
        assert reached.wait(60), "the object was not written"
        server.kill()
        over.set()
        assert asked.exception(60) is not None
    door.judge = lambda method, name: None
    status, said = audit(bucket)
    assert status == 1 and ("was begun and is not complete" in said or "is no export" in said), said
    server.start()
    assert finish(server, epoch).exported_to == bucket.url
    assert audit(bucket)[0] == 0
    assert await names(bucket) == ["run.json", "segment-00000001.log", "snapshot-00000002.json"]


@pytest.mark.parametrize("at", ["segment-00000002.log", "snapshot-00000003.json", "run.json"])
async def test_killed_while_it_replaces_one_that_stays_until_the_new_one_is_whole(
    make_process_server: Any, bucket: Bucket, door: Door, at: str
) -> None:
    server = make_process_server(export=bucket)
    epoch = train(server, 2)
    finish(server, epoch)
    server.post("/scored_data", server.group(99))
    reached, over = threading.Event(), threading.Event()

    def hold(method: str, name: str) -> tuple[int, str] | None:
        if (method, name) == ("PUT", at):
            reached.set()
            over.wait(60)
            return 500, "InternalError"
        return None

    door.judge = hold
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(finish, server, epoch)
        assert reached.wait(60), "the object was not written"
        server.kill()
        over.set()
        assert asked.exception(60) is not None
    door.judge = lambda method, name: None
    status, said = audit(bucket)
    assert status == 0 and "5 groups acknowledged" in said, said
    server.start()
    finish(server, epoch)
    status, said = audit(bucket)
    assert status == 0 and "6 groups acknowledged" in said, said
    assert await names(bucket) == ["run.json", "segment-00000002.log", "snapshot-00000003.json"]


async def test_a_service_that_asks_to_slow_down_is_asked_again(make_server: Any, bucket: Bucket, door: Door) -> None:
    seen: dict[tuple[str, str], int] = {}

    def busy(method: str, name: str) -> tuple[int, str] | None:
        seen[method, name] = seen.get((method, name), 0) + 1
        return (503, "SlowDown") if seen[method, name] <= 2 else None

    door.judge = busy
    server = make_server(export=bucket)
    answer = finish(server, train(server, 2))
    assert (answer.exported_to, answer.problem) == (bucket.url, "")
    assert audit(bucket)[0] == 0
    assert all(count >= 3 for (method, _), count in seen.items() if method == "PUT")


async def test_a_service_that_is_away_for_a_while_is_waited_for(make_server: Any, bucket: Bucket, door: Door) -> None:
    server = make_server(export=bucket)
    epoch = train(server, 2)
    door.close()
    later = threading.Timer(1.0, door.open)
    later.start()
    answer = finish(server, epoch)
    later.join()
    assert (answer.exported_to, answer.problem) == (bucket.url, "")
    assert audit(bucket)[0] == 0


async def test_a_service_that_stays_away_is_named_and_nothing_is_lost(
    make_server: Any, bucket: Bucket, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinker_atropos.trajectories.export_bucket.RETRY_SECONDS", 1)
    server = make_server(export=Bucket(bucket.url, bucket.endpoint))
    epoch = train(server, 2)
    door.close()
    answer = finish(server, epoch)
    assert answer.exported_to == ""
    assert answer.problem == (
        f"cannot write the export {bucket.url}: the service of the bucket 'archive' at {bucket.endpoint} cannot be "
        "reached, tried for 1 s; check the endpoint, and that it runs"
    )
    assert server.get("/status")["current_step"] == 2, "the run and its store stay"
    door.open()
    assert finish(server, epoch).exported_to == bucket.url
    assert audit(bucket)[0] == 0


async def test_a_bucket_that_is_not_there_is_named_and_the_server_goes_on(make_server: Any, door: Door) -> None:
    server = make_server(export=Bucket("s3://absent/x", door.endpoint))
    answer = finish(server, train(server, 1))
    assert answer.exported_to == ""
    assert answer.problem.startswith(
        f"cannot write the export s3://absent/x: there is no bucket 'absent' at {door.endpoint} (NoSuchBucket: "
    )
    assert answer.problem.endswith("; make it, or name another one")
    assert server.get("/status")["current_step"] == 1
    assert server.stop() == 0


def test_a_bucket_that_is_not_there_is_told_when_the_server_starts(make_process_server: Any, door: Door) -> None:
    server = make_process_server(export=Bucket("s3://absent/x", door.endpoint))
    until(lambda: "the run could not be exported when it is over" in server.log.read_text(), "a warning in the log")
    assert "there is no bucket 'absent'" in server.log.read_text()


async def test_a_bucket_that_is_forbidden_is_named_with_what_to_give(
    make_server: Any, bucket: Bucket, door: Door
) -> None:
    door.judge = lambda method, name: (403, "AccessDenied") if method == "PUT" else None
    answer = finish(server := make_server(export=bucket), train(server, 1))
    assert answer.problem == (
        f"cannot write the export {bucket.url}: the bucket 'archive' at {bucket.endpoint} refuses these credentials "
        "(AccessDenied: as the test wants it); give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY that may list, get, "
        "put and delete there"
    )
    assert len(door.put()) == 1, "a refusal is final: it is not asked again"


async def test_a_wrong_key_is_refused(bucket: Bucket, storage: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    if not storage.checks_signatures:
        pytest.skip("moto checks no signatures; with versitygw on PATH this is tested")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with pytest.raises(
        ExportError, match=r"refuses these credentials \(SignatureDoesNotMatch: .*\); give AWS_ACCESS_KEY_ID"
    ):
        await BucketExport(bucket).write(trained(0), payloads(1, 10, []), 5.0)


async def test_what_is_no_export_is_not_overwritten(bucket: Bucket) -> None:
    await bucket.put("notes.txt", b"mine")
    with pytest.raises(ExportError, match=f"{bucket.url} is there already and is no export; give a prefix of its own"):
        await BucketExport(bucket).write(trained(0), payloads(1, 10, []), 5.0)
    assert await names(bucket) == ["notes.txt"]


async def test_an_older_export_that_cannot_be_deleted_is_no_failure(bucket: Bucket, door: Door) -> None:
    await BucketExport(bucket).write(trained(0), payloads(1, 10, []), 5.0)
    door.judge = lambda method, name: (403, "AccessDenied") if method in ("POST", "DELETE") else None
    await BucketExport(bucket).write(trained(0), payloads(1, 10, []), 6.0)
    assert json.loads(await bucket.get("run.json") or b"")["exported_at"] == 6.0
    assert "segment-00000001.log" in await names(bucket)
    assert audit(bucket)[0] == 0


def trained(queued: int) -> Ledger:
    ledger = Ledger()
    ledger.apply(ledger.take_over(Settings(run_id="uid", batch_size=8, base_model="m"), "t", None, 1.0))
    for number in range(1, queued + 1):
        ledger.apply({"t": "stored", "id": number, "env": "e", "n": 4, "tok": 9, "smp": 3, "at": 1.0, "len": 10})
    return ledger


async def payloads(count: int, size: int, asked: list[int]) -> AsyncIterator[tuple[int, bytes]]:
    for number in range(1, count + 1):
        asked.append(number)
        yield number, os.urandom(size)


async def test_payloads_are_written_as_they_are_read_and_not_held(bucket: Bucket, door: Door) -> None:
    size, count = 1 << 20, 30
    asked: list[int] = []
    read_before: dict[str, int] = {}

    def note(method: str, name: str) -> None:
        if method == "PUT":
            read_before.setdefault(name, len(asked))

    door.judge = note  # type: ignore[assignment]
    await BucketExport(bucket).write(trained(count), payloads(count, size, asked), 5.0)
    segments = [sent for method, name, sent in door.requests if method == "PUT" and name.startswith("segment")]
    assert len(segments) == 4 and max(segments) < SEGMENT_BYTES + size + 1000
    assert [read_before[f"segment-{number:08}.log"] for number in (1, 2, 3, 4)] == [8, 16, 24, 30]
    assert audit(bucket)[0] == 0


async def test_audit_says_what_is_there_instead(bucket: Bucket, door: Door) -> None:
    status, said = audit(bucket)
    assert status == 1 and f"{bucket.url} is no export: it holds no run.json" in said and "below" not in said
    below = Bucket(f"{bucket.url}/quickstart-1", door.endpoint)
    await BucketExport(below).write(trained(0), payloads(1, 10, []), 5.0)
    assert f"exports below it: {below.url}" in audit(bucket)[1]
    assert "there is no bucket 'absent'" in audit(Bucket("s3://absent/x", door.endpoint))[1]
    await below.put("snapshot-00000002.json", b"torn")
    assert f"{below.url}: damaged" in audit(below)[1]


async def test_the_endpoint_may_come_from_the_usual_variable(
    bucket: Bucket, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", door.endpoint)
    await BucketExport(Bucket(bucket.url)).write(trained(1), payloads(1, 10, []), 5.0)
    assert audit(Bucket(bucket.url))[0] == 0
