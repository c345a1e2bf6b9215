"""The trainer's and the gateway's side over gRPC: epochs, leases, replays, policies, records; also over kills."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tinker_atropos.protocol.versions import completion_digest
from tinker_atropos.trajectories.store.segment import scan

pytestmark = pytest.mark.wire


def fails(code: grpc.StatusCode, call: Any, *arguments: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    assert caught.value.code() is code, caught.value
    return str(caught.value.details())


class TestTakeover:
    def test_opens_the_run_for_environments(self, server: Any) -> None:
        assert server.register_env() == {"status": "wait for trainer to start"}
        answer = server.take_over(max_token_length=128, checkpoint_dir="d", save_checkpoint_interval=3)
        assert (answer.epoch, answer.store_was_empty, answer.HasField("state"), answer.replayed_batches) == (
            1,
            True,
            False,
            0,
        )
        registered = server.register_env()
        assert (registered["status"], registered["checkpoint_dir"], registered["checkpoint_interval"]) == (
            "success",
            "d",
            3,
        )
        assert server.get("/info") == {"batch_size": 16, "max_token_len": 128}

    def test_fences_every_older_epoch(self, server: Any) -> None:
        server.take_over()
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        batch = server.lease(1, 1)
        assert server.take_over().epoch == 2
        pb = server.pb
        refused = [
            (server.rpc.Lease, pb.LeaseRequest(epoch=1, for_step=2)),
            (server.rpc.Renew, pb.RenewRequest(epoch=1, lease_id=batch.lease_id)),
            (server.rpc.Ack, pb.AckRequest(epoch=1, lease_id=batch.lease_id, step=1)),
            (server.rpc.Nack, pb.NackRequest(epoch=1, lease_id=batch.lease_id)),
            (server.rpc.Cover, pb.CoverRequest(epoch=1, state=pb.State(step=1, checkpoint_path="x"))),
            (server.rpc.Publish, pb.PublishRequest(epoch=1, policy=pb.Policy(sampler_path="x"))),
        ]
        for call, request in refused:
            assert (
                fails(grpc.StatusCode.FAILED_PRECONDITION, call, request) == "epoch 1 is fenced: epoch 2 holds the run"
            )
        server.restart()
        for call, request in refused:
            name = call._method.decode().rpartition("/")[2]
            assert "fenced" in fails(grpc.StatusCode.FAILED_PRECONDITION, getattr(server.rpc, name), request)

    def test_a_waiting_lease_of_an_older_epoch_ends(self, server: Any) -> None:
        server.take_over()
        ended: queue.Queue[grpc.StatusCode] = queue.Queue()

        def wait() -> None:
            try:
                server.lease(1, 1, wait=30)
            except grpc.RpcError as error:
                ended.put(error.code())

        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.3)
        server.take_over()
        assert ended.get(timeout=10) is grpc.StatusCode.FAILED_PRECONDITION

    def test_replays_what_the_saved_state_does_not_hold_in_its_composition(self, server: Any) -> None:
        epoch = server.take_over().epoch
        server.post("/scored_data_list", [server.group(number) for number in range(24)])
        for step in (1, 2, 3, 4):
            batch = server.lease(epoch, step)
            server.ack(epoch, batch)
            if step == 2:
                server.cover(epoch, 2)
        server.lease(epoch, 5)
        answer = server.take_over()
        assert (answer.epoch, answer.state.step, answer.state.checkpoint_path) == (2, 2, "tinker://2")
        assert (answer.state.rng, answer.state.cursor, answer.replayed_batches) == (b"\x00\xff", "c", 2)
        batches = [server.lease(2, step) for step in (3, 4, 5, 6)]
        assert [server.numbers(batch) for batch in batches] == [list(range(n, n + 4)) for n in (8, 12, 16, 20)]
        assert [batch.replay for batch in batches] == [True, True, False, False]

    def test_a_store_of_another_run_is_refused(self, server: Any) -> None:
        server.take_over(run_id="one")
        details = fails(grpc.StatusCode.FAILED_PRECONDITION, server.take_over, "two")
        assert details == "this store belongs to run 'one', not to 'two': give each run a store of its own"

    def test_an_empty_store_takes_the_trainers_word(self, server: Any) -> None:
        pb = server.pb
        fallback = pb.State(step=9, checkpoint_path="tinker://9", tokens=pb.Tokens(sampled=5), cost=1.5)
        settings = pb.RunSettings(run_id="r", batch_size=16)
        answer = server.rpc.Takeover(pb.TakeoverRequest(settings=settings, fallback=fallback))
        assert answer.state == fallback
        assert server.get("/status")["current_step"] == 9

    @pytest.mark.parametrize(("batch_size", "run_id", "message"), [(0, "r", "batch_size"), (4, "", "run_id")])
    def test_settings_that_cannot_work_are_refused(
        self, server: Any, batch_size: int, run_id: str, message: str
    ) -> None:
        assert message in fails(grpc.StatusCode.INVALID_ARGUMENT, server.take_over, run_id, batch_size)


class TestShares:
    """AP-13: weights, minimum and maximum shares hold as far as the environments supply, and it is said when not."""

    @staticmethod
    def shares(server: Any, **asked: tuple[float, float, float]) -> list[Any]:
        return [
            server.pb.EnvironmentShare(name=name, weight=weight, min_batch_share=least, max_batch_share=most)
            for name, (weight, least, most) in asked.items()
        ]

    @staticmethod
    def post(server: Any, name: str, *numbers: int) -> None:
        server.post("/scored_data_list", [server.group(n) for n in numbers], {"X-Tinker-Atropos-Environment": name})

    def test_they_are_kept_within_two_points_over_fifty_batches(self, server: Any) -> None:
        asked = self.shares(server, math=(3, 0, 0), code=(1, 0.25, 0), chat=(4, 0, 0.25))
        epoch = server.take_over(batch_size=32, environments=asked).epoch
        for step in range(1, 51):
            for name in ("math", "code", "chat"):
                self.post(server, name, *range(step * 8, step * 8 + 5))
            server.ack(epoch, server.lease(epoch, step))
        status = server.get("/status")
        realised = {entry["name"]: entry["share"] for entry in status["environments"]}
        assert realised == pytest.approx({"math": 0.5, "code": 0.25, "chat": 0.25}, abs=0.02)
        assert status["complaints"] == []

    def test_who_cannot_supply_its_share_is_named_with_numbers(self, server: Any) -> None:
        asked = self.shares(server, fast=(1, 0, 0), slow=(1, 0, 0))
        epoch = server.take_over(environments=asked).epoch
        for step in range(1, 11):
            self.post(server, "fast", *range(step * 8, step * 8 + 4))
            if step % 2:
                self.post(server, "slow", step)
            server.ack(epoch, server.lease(epoch, step))
        assert server.get("/status")["complaints"] == [
            "environment slow cannot supply its share: 12.5% of the last 10 batches instead of 50.0%; "
            "it had nothing left in 10 of them"
        ]

    def test_the_trainer_hears_of_it_with_each_lease(self, server: Any) -> None:
        asked = self.shares(server, fast=(1, 0, 0), slow=(1, 0, 0))
        epoch = server.take_over(environments=asked).epoch
        self.post(server, "fast", *range(8))
        warned = []
        for step in (1, 2, 3):
            answer = server.rpc.Lease(server.pb.LeaseRequest(epoch=epoch, for_step=step))
            warned.append([(one.reason, one.environment, one.message) for one in answer.warnings])
            assert answer.HasField("batch") == (step < 3)
        sentence = (
            "environment slow cannot supply its share: 0.0% of the last {} batches instead of 50.0%; "
            "it had nothing left in {} of them"
        )
        assert warned == [[("CannotSupplyShare", "slow", sentence.format(n, n))] for n in (1, 2, 2)]


class TestVocabulary:
    """AP-14: token ids are checked at the door as soon as somebody who knows the vocabulary has spoken."""

    def test_the_gateway_tells_it_with_its_records(self, server: Any) -> None:
        server.take_over()
        group = server.group(1)
        group["tokens"][2][5] = 1000
        assert server.call("POST", "/scored_data", group)[0] == 200, "nobody knows the vocabulary yet"
        server.rpc.Record(server.pb.RecordRequest(vocabulary_size=1000))
        status, answer = server.call("POST", "/scored_data", group)
        assert status == 422 and "tokens[2][5]" in answer["message"], answer
        server.rpc.Record(server.pb.RecordRequest())
        assert server.call("POST", "/scored_data", group)[0] == 422, "a record that does not know it changes nothing"

    def test_a_size_that_is_none_is_refused(self, server: Any) -> None:
        request = server.pb.RecordRequest(vocabulary_size=-1)
        assert "vocabulary_size" in fails(grpc.StatusCode.INVALID_ARGUMENT, server.rpc.Record, request)


def test_a_group_that_cannot_be_read_any_more_is_named(server: Any) -> None:
    epoch = server.take_over().epoch
    server.post("/scored_data_list", [server.group(number) for number in range(4)])
    damage(Path(server.store))
    details = fails(grpc.StatusCode.DATA_LOSS, server.lease, epoch, 1)
    assert details.startswith("group 2 of environment 'unregistered-0' cannot be read any more: "), details
    assert "is damaged" in details


def damage(store: Path) -> None:
    """Turn one byte of the second group's payload."""
    path = store / "segment-00000001.log"
    second = [record for record in scan(path, 1, payloads=False) if record.payload_number == 2]
    assert second[0].payload is not None
    with path.open("r+b") as file:
        file.seek(second[0].payload.offset)
        byte = file.read(1)[0]
        file.seek(second[0].payload.offset)
        file.write(bytes((byte ^ 1,)))


class TestLease:
    def test_the_arrays_of_a_batch(self, server: Any) -> None:
        server.take_over(batch_size=4)
        posted = server.group(3, ref_logprobs=[[0.5] * 8] * 4, overrides=[{"x": 1}] * 4, group_overrides={"y": 2})
        server.post(
            "/scored_data", posted, {"X-Tinker-Atropos-Environment": "gsm8k", "X-Tinker-Atropos-Instance": "gsm8k-0"}
        )
        batch = server.lease(1, 1)
        (group,) = batch.groups
        assert (group.id, group.environment, group.instance, group.group_overrides) == (
            1,
            "gsm8k",
            "gsm8k-0",
            '{"y":2}',
        )
        assert (group.HasField("oldest"), group.staleness) == (False, -1)
        sequence = group.sequences[1]
        assert np.frombuffer(sequence.tokens, "<i4").tolist() == posted["tokens"][1]
        assert list(sequence.loss_mask) == [0] * 4 + [1] * 4
        expected = [0.0] * 4 + posted["inference_logprobs"][1][4:]
        assert np.frombuffer(sequence.logprobs, "<f4") == pytest.approx(np.array(expected, np.float32))
        assert (sequence.score, sequence.overrides) == (3.0, '{"x":1}')
        assert np.frombuffer(sequence.ref_logprobs, "<f4").tolist() == [0.5] * 8

    def test_waits_for_a_batch(self, server: Any) -> None:
        server.take_over()
        got: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=lambda: got.put(server.lease(1, 1, wait=30)), daemon=True).start()
        for number in range(4):
            time.sleep(0.05)
            assert got.empty()
            server.post("/scored_data", server.group(number))
        assert server.numbers(got.get(timeout=10)) == [0, 1, 2, 3]

    def test_says_what_it_waits_for(self, server: Any) -> None:
        server.take_over()
        server.post("/scored_data", server.group(1))
        answer = server.rpc.Lease(server.pb.LeaseRequest(epoch=1, for_step=1, wait_seconds=0.2))
        assert (answer.HasField("batch"), answer.waiting_for) == (False, "4 of 16 sequences are queued")

    def test_the_same_step_again_is_the_same_batch_also_after_a_restart(self, server: Any) -> None:
        server.take_over()
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        first = server.lease(1, 1)
        assert server.lease(1, 1).lease_id == first.lease_id
        server.restart()
        again = server.lease(1, 1)
        assert (again.lease_id, server.numbers(again)) == (first.lease_id, server.numbers(first))
        assert server.numbers(server.lease(1, 2)) == [4, 5, 6, 7]

    def test_a_trained_step_is_not_leased_again(self, server: Any) -> None:
        server.take_over()
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        server.ack(1, server.lease(1, 1))
        assert "step 1 is trained already" in fails(grpc.StatusCode.FAILED_PRECONDITION, server.lease, 1, 1)

    @pytest.mark.parametrize(("step", "wait"), [(0, 0.0), (1, 61.0), (1, -1.0)])
    def test_a_wrong_request_is_named(self, server: Any, step: int, wait: float) -> None:
        server.take_over()
        fails(grpc.StatusCode.INVALID_ARGUMENT, server.lease, 1, step, wait)

    def test_given_back_it_comes_again(self, server: Any) -> None:
        server.take_over()
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        batch = server.lease(1, 1)
        server.rpc.Nack(server.pb.NackRequest(epoch=1, lease_id=batch.lease_id, reason="busy"))
        assert server.numbers(server.lease(1, 1)) == [0, 1, 2, 3]

    def test_an_expired_lease_comes_again(self, server: Any) -> None:
        server.take_over()
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        request = server.pb.LeaseRequest(epoch=1, for_step=1, lease_seconds=0.2)
        assert server.rpc.Lease(request).batch.lease_id
        time.sleep(0.4)
        assert server.numbers(server.lease(1, 2)) == [0, 1, 2, 3]


class TestAcknowledgement:
    def test_repeated_after_a_lost_answer_and_a_restart_it_counts_once(self, process_server: Any) -> None:
        server = process_server
        server.take_over()
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        batch = server.lease(1, 1)
        for _ in range(2):
            server.ack(1, batch)
            server.restart()
        server.ack(1, batch)
        assert server.get("/status")["ledger"]["trained"] == 4
        assert server.get("/status")["current_step"] == 1

    def test_an_unknown_lease_is_not_found(self, server: Any) -> None:
        server.take_over()
        request = server.pb.AckRequest(epoch=1, lease_id="1.9", step=1)
        fails(grpc.StatusCode.NOT_FOUND, server.rpc.Ack, request)

    def test_no_signal_and_dropped_groups_are_in_the_ledger(self, server: Any) -> None:
        pb = server.pb
        server.take_over()
        server.post("/scored_data_list", [server.group(number) for number in range(8)])
        first, second = server.lease(1, 1), server.lease(1, 2)
        server.rpc.Ack(pb.AckRequest(epoch=1, lease_id=first.lease_id, step=1, no_signal=True))
        dropped = [pb.DroppedGroup(id=second.groups[0].id, reason="too long")]
        sums = server.rpc.Ack(pb.AckRequest(epoch=1, lease_id=second.lease_id, step=2, dropped=dropped)).ledger
        assert (sums.stored, sums.trained, sums.dropped, sums.queued, sums.leased) == (8, 3, 5, 0, 0)
        assert server.get("/ledger")["dropped"] == {"no_signal": 4, "too long": 1}


class TestPolicies:
    def test_each_newer_policy_reaches_the_watcher_also_over_restarts(self, server: Any) -> None:
        pb = server.pb
        server.take_over()

        def publish(step: int) -> None:
            policy = pb.Policy(version=pb.PolicyVersion(step=step), sampler_path=f"tinker://s/{step}", base_model="m")
            server.rpc.Publish(pb.PublishRequest(epoch=1, policy=policy))

        watched = server.rpc.WatchPolicy(pb.WatchPolicyRequest())
        for step in (0, 1):
            publish(step)
            policy = next(watched)
            assert (policy.version.epoch, policy.version.step, policy.sampler_path) == (1, step, f"tinker://s/{step}")
            assert policy.published_at > 0
        server.restart()
        watched = server.rpc.WatchPolicy(pb.WatchPolicyRequest())
        assert next(watched).version.step == 1
        assert server.take_over().policy.version.step == 1
        watched.cancel()


class TestVersions:
    def record(self, server: Any, posted: dict[str, Any], step: int, instance: str) -> None:
        digests = []
        for tokens, logprobs in zip(posted["tokens"], posted["inference_logprobs"], strict=True):
            half = len(tokens) // 2
            ids, values = np.array(tokens, np.int32), np.array(logprobs, np.float32)
            digests.append(completion_digest(ids[:half], ids[half:], values[half:]))
        version = server.pb.PolicyVersion(epoch=1, step=step)
        server.rpc.Record(server.pb.RecordRequest(instance=instance, version=version, digests=digests))

    def test_a_posted_group_finds_the_versions_that_sampled_it(self, server: Any) -> None:
        server.take_over(batch_size=4)
        posted = server.group(1)
        self.record(server, posted, 2, "e-0")
        self.record(server, {key: posted[key][:1] for key in ("tokens", "inference_logprobs")}, 1, "e-0")
        server.restart()
        server.post("/scored_data", posted, {"X-Tinker-Atropos-Environment": "e", "X-Tinker-Atropos-Instance": "e-0"})
        (group,) = server.lease(1, 4).groups
        assert (group.oldest.epoch, group.oldest.step, group.staleness) == (1, 1, 2)

    def test_too_old_for_the_step_is_dropped(self, server: Any) -> None:
        server.take_over(batch_size=4, max_steps_off_policy=1)
        for number, step in enumerate((0, 2, 3)):
            self.record(server, server.group(number), step, "")
            server.post("/scored_data", server.group(number))
        assert server.numbers(server.lease(1, 4)) == [1]
        assert server.get("/ledger")["dropped"] == {"stale": 1}

    def test_what_is_not_on_record_is_counted(self, server: Any) -> None:
        server.take_over()
        self.record(server, server.group(1), 0, "")
        server.post("/scored_data", server.group(2))
        _, text = server.call("GET", "/metrics", raw=True)
        assert b"tinker_atropos_trajectories_unknown_versions_total 4.0" in text

    def test_a_digest_of_another_length_is_refused(self, server: Any) -> None:
        request = server.pb.RecordRequest(digests=[b"x" * 16, b"short"])
        assert "digests[1] has 5 bytes" in fails(grpc.StatusCode.INVALID_ARGUMENT, server.rpc.Record, request)


class TestPostStream:
    def test_groups_are_stored_before_the_answer_and_each_fault_is_answered(self, server: Any) -> None:
        pb = server.pb
        epoch = server.take_over(batch_size=8).epoch

        def request(number: int, tokens: list[int], **more: Any) -> Any:
            ids = np.array(tokens, "<i4").tobytes()
            group = pb.Group(oldest=pb.PolicyVersion(epoch=1, step=0))
            for _ in range(4):
                group.sequences.add(tokens=ids, loss_mask=bytes([1] * len(tokens)), score=number)
            return pb.PostRequest(number=number, group=group, environment="e", instance="e-0", **more)

        requests = [
            request(1, [1, 2], post_id="a"),
            request(2, [-1]),
            request(3, [3, 4], post_id="b"),
            request(4, [1], post_id="a"),
        ]
        answers = {answer.number: answer for answer in server.rpc.Post(iter(requests))}
        assert [answers[number].error for number in (1, 2, 3, 4)] == [
            "",
            "sequences[0].tokens: -1 is not within 0 and 2147483647",
            "",
            "",
        ]
        assert [answers[number].duplicate for number in (1, 2, 3, 4)] == [False, False, False, True]
        server.restart()
        batch = server.lease(epoch, 1)
        assert server.numbers(batch) == [1, 3]
        assert [(group.environment, group.instance, group.staleness) for group in batch.groups] == [("e", "e-0", 0)] * 2

    def test_many_groups_on_one_stream(self, server: Any) -> None:
        pb = server.pb
        sequence = pb.Sequence(tokens=b"\x01\0\0\0" * 100, loss_mask=b"\x01" * 100, logprobs=b"\0" * 400)
        requests = (pb.PostRequest(number=number, group=pb.Group(sequences=[sequence] * 4)) for number in range(500))
        assert {answer.number for answer in server.rpc.Post(requests) if not answer.error} == set(range(500))
        assert server.get("/status")["queue_size"] == 500


class Gateway:
    """The gateway's end of a Capacity stream."""

    def __init__(self, server: Any) -> None:
        self.pb = server.pb
        self.sent: queue.Queue[Any] = queue.Queue()
        self.granted: queue.Queue[str] = queue.Queue()
        self.call = server.rpc.Capacity(iter(self.sent.get, None))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for grant in self.call:
                self.granted.put(grant.rollout)

    def say(self, rollout: str, kind: str = "WANT") -> None:
        number = self.pb.CapacityRequest.Kind.Value(kind)
        request = self.pb.CapacityRequest(rollout=rollout, kind=number, environment="e", instance="e-0", sequences=4)
        self.sent.put(request)

    def grants(self, count: int) -> list[str]:
        return [self.granted.get(timeout=10) for _ in range(count)]


class TestCapacity:
    def test_rollouts_start_as_far_as_they_can_be_trained_in_time(self, server: Any) -> None:
        epoch = server.take_over(batch_size=8, max_steps_off_policy=1).epoch
        identity = {"X-Tinker-Atropos-Environment": "e", "X-Tinker-Atropos-Instance": "e-0"}
        gateway = Gateway(server)
        for number in range(7):
            gateway.say(f"r{number}")
        assert gateway.grants(4) == ["r0", "r1", "r2", "r3"]
        for number in range(2):
            gateway.say(f"r{number}", "SAMPLED")
            server.post("/scored_data", server.group(number), identity)
        assert server.get("/status")["pacing"]["running"] == 8
        assert gateway.granted.empty()
        batch = server.lease(epoch, 1)
        server.ack(epoch, batch)
        policy = server.pb.Policy(version=server.pb.PolicyVersion(step=1), sampler_path="x")
        server.rpc.Publish(server.pb.PublishRequest(epoch=epoch, policy=policy))
        gateway.say("r2", "ABANDONED")  # with r3, sampled before step 1, there is room for one batch beside it
        assert gateway.grants(1) == ["r4"]
        gateway.sent.put(None)

    def test_who_gives_up_waiting_gets_no_grant_and_who_leaves_keeps_no_room(self, server: Any) -> None:
        server.take_over(batch_size=8, max_steps_off_policy=0)
        first = Gateway(server)
        for number in range(4):
            first.say(f"r{number}")
        assert first.grants(2) == ["r0", "r1"]
        first.say("r2", "ABANDONED")
        first.say("r0", "ABANDONED")
        assert first.grants(1) == ["r3"]
        first.call.cancel()
        second = Gateway(server)
        second.say("s0")
        assert second.granted.empty()
        second.sent.put(None)
