"""Each group is trained once in the surviving lineage, whatever dies when: leases, takeovers, acks, covers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.trajectories.ledger import (
    BatchState,
    FencedError,
    GroupState,
    Ledger,
    LedgerError,
    UnknownEpochError,
    UnknownLeaseError,
    fold,
)
from tinker_atropos.trajectories.settings import InvalidSettingsError, Settings, Share


class Run:
    """A ledger with its journal, driven step by step; checks after each event that a replay ends in the same state."""

    def __init__(self, **settings: Any) -> None:
        self.ledger = Ledger()
        self.journal: list[bytes] = []
        self.settings = Settings(**{"run_id": "run", "batch_size": 8, **settings})
        self.posted = 0
        self.now = 1000.0

    def write(self, *events: dict[str, Any]) -> None:
        for event in events:
            entry = orjson.dumps(event)
            self.journal.append(entry)
            self.ledger.apply_entry(entry)
        self.check()

    def check(self) -> None:
        assert fold(None, self.journal) == self.ledger.to_snapshot()
        half = len(self.journal) // 2
        assert fold(fold(None, self.journal[:half]), self.journal[half:]) == self.ledger.to_snapshot()
        sums = self.ledger.sums()
        assert sums["stored"] == sums["queued"] + sums["leased"] + sums["trained"] + sums["dropped"]

    def post(self, count: int = 1, size: int = 4, version: tuple[int, int] | None = None, **fields: Any) -> None:
        for _ in range(count):
            self.posted += 1
            event = {
                "t": "stored",
                "id": self.posted,
                "env": "e",
                "n": size,
                "tok": 10,
                "smp": 5,
                "at": self.now,
                **fields,
            }
            self.write({**event, "ver": version} if version else event)

    def take_over(self, holder: str = "t", fallback: pb.State | None = None, **settings: Any) -> int:
        wanted = replace(self.settings, **settings)
        self.write(self.ledger.take_over(wanted, holder, fallback, self.now))
        return self.ledger.epoch

    def lease(self, epoch: int, step: int) -> tuple[str, list[int]] | None:
        self.ledger.check_epoch(epoch)
        while True:
            events = self.ledger.lease(epoch, step, self.now + 100, self.now)
            self.write(*events)
            if not events:
                return None
            if events[-1]["t"] == "leased":
                batch = self.ledger.batches[events[-1]["batch"]]
                return batch.lease_id, batch.groups

    def ack(self, epoch: int, lease: tuple[str, list[int]] | None, step: int, **more: Any) -> None:
        assert lease is not None
        self.write(
            *self.ledger.acknowledge(epoch, lease[0], step, more.get("no_signal", False), more.get("dropped", {}))
        )

    def cover(self, epoch: int, step: int) -> None:
        self.write(*self.ledger.cover(epoch, pb.State(step=step, checkpoint_path=f"tinker://{step}")))

    def states(self) -> list[str]:
        return [str(group.state) for group in self.ledger.groups.values()]


def started(groups: int = 8, **settings: Any) -> tuple[Run, int]:
    run = Run(**settings)
    epoch = run.take_over()
    run.post(groups)
    return run, epoch


class TestOrdinaryRoad:
    def test_a_group_goes_from_queued_to_covered(self) -> None:
        run, epoch = started(2)
        lease = run.lease(epoch, 1)
        assert lease is not None and lease[1] == [1, 2]
        assert run.states() == ["leased", "leased"]
        run.ack(epoch, lease, 1)
        assert run.states() == ["trained", "trained"]
        assert run.ledger.step == 1
        run.cover(epoch, 1)
        assert run.states() == ["covered", "covered"]
        assert run.ledger.take_released() == [1, 2]

    def test_batches_come_first_in_first_out(self) -> None:
        run, epoch = started(8)
        assert [run.lease(epoch, step)[1] for step in (1, 2, 3, 4)] == [[1, 2], [3, 4], [5, 6], [7, 8]]  # type: ignore[index]

    def test_the_step_is_what_was_trained_not_what_was_cut(self) -> None:
        run, epoch = started(8)
        for step in (1, 2, 3):
            run.lease(epoch, step)
        assert run.ledger.step == 0

    def test_nothing_to_lease_says_what_is_missing(self) -> None:
        run, epoch = started(1)
        assert run.lease(epoch, 1) is None
        assert run.ledger.waiting_for() == "4 of 8 sequences are queued"

    def test_sizes_that_never_sum_are_named(self) -> None:
        run, epoch = started(0, batch_size=16)
        run.post(4, size=6)
        assert run.lease(epoch, 1) is None
        assert (
            run.ledger.waiting_for()
            == "no choice of the queued groups sums to 16 sequences exactly (groups by size: 4 of 6)"
        )


class TestAcknowledgement:
    def test_twice_is_the_same_as_once(self) -> None:
        run, epoch = started(2)
        lease = run.lease(epoch, 1)
        run.ack(epoch, lease, 1)
        before = run.ledger.to_snapshot()
        run.ack(epoch, lease, 1)
        assert run.ledger.to_snapshot() == before
        run.cover(epoch, 1)
        run.ack(epoch, lease, 1)
        assert run.states() == ["covered", "covered"]

    def test_of_another_step_is_refused(self) -> None:
        run, epoch = started(2)
        lease = run.lease(epoch, 1)
        with pytest.raises(LedgerError, match=r"lease '?1\.1'? is for step 1, not for step 2"):
            run.ack(epoch, lease, 2)

    def test_of_an_unknown_lease_is_refused(self) -> None:
        run, epoch = started(2)
        for lease_id in ("1.7", "", "x", "2.1", "1.x"):
            with pytest.raises(UnknownLeaseError):
                run.ack(epoch, (lease_id, []), 1)

    def test_without_signal_the_groups_are_dropped_and_the_step_is_taken(self) -> None:
        run, epoch = started(2)
        run.ack(epoch, run.lease(epoch, 1), 1, no_signal=True)
        assert run.states() == ["dropped", "dropped"]
        assert run.ledger.step == 1
        assert run.ledger.reasons == {"no_signal": 2}
        assert sorted(run.ledger.take_released()) == [1, 2]

    def test_single_groups_may_be_dropped_with_a_reason(self) -> None:
        run, epoch = started(2)
        run.ack(epoch, run.lease(epoch, 1), 1, dropped={2: "too long"})
        assert run.states() == ["trained", "dropped"]
        assert run.ledger.reasons == {"too long": 1}

    def test_dropping_a_stranger_is_refused(self) -> None:
        run, epoch = started(4)
        with pytest.raises(LedgerError, match="not in the batch"):
            run.ack(epoch, run.lease(epoch, 1), 1, dropped={3: "x"})


class TestCover:
    def test_a_saved_state_includes_a_step_that_was_not_acknowledged_yet(self) -> None:
        run, epoch = started(4)
        run.lease(epoch, 1)
        run.lease(epoch, 2)
        run.cover(epoch, 1)
        assert run.states() == ["covered", "covered", "leased", "leased"]
        second = run.take_over()
        lease = run.lease(second, 2)
        assert lease is not None and lease[1] == [3, 4]

    def test_an_older_state_changes_nothing(self) -> None:
        run, epoch = started(4)
        for step in (1, 2):
            run.ack(epoch, run.lease(epoch, step), step)
        run.cover(epoch, 2)
        run.cover(epoch, 1)
        assert run.ledger.state is not None and run.ledger.state.step == 2

    def test_the_newest_of_a_step_counts(self) -> None:
        run, epoch = started(2)
        run.ack(epoch, run.lease(epoch, 1), 1)
        run.cover(epoch, 1)
        run.write(*run.ledger.cover(epoch, pb.State(step=1, checkpoint_path="tinker://again")))
        assert run.ledger.state is not None and run.ledger.state.checkpoint_path == "tinker://again"


class TestTakeover:
    def test_what_was_trained_after_the_saved_state_comes_back_as_it_was_before_anything_new(self) -> None:
        run, epoch = started(8)
        for step in (1, 2, 3):
            run.ack(epoch, run.lease(epoch, step), step)
        run.cover(epoch, 1)
        second = run.take_over()
        assert run.ledger.state is not None and run.ledger.state.step == run.ledger.step == 1
        assert sum(batch.replay for batch in run.ledger.batches.values()) == 2
        batches = []
        for step in (2, 3, 4):
            lease = run.lease(second, step)
            assert lease is not None
            batches.append(lease[1])
            run.ack(second, lease, step)
        assert batches == [[3, 4], [5, 6], [7, 8]]
        assert [run.ledger.groups[number].epoch for number in (3, 5, 7)] == [2, 2, 2]

    def test_a_lease_that_was_not_acknowledged_comes_back_as_it_was(self) -> None:
        run, epoch = started(4)
        run.lease(epoch, 1)
        run.post(2)
        second = run.take_over()
        lease = run.lease(second, 1)
        assert lease == ("2.1", [1, 2])
        assert not run.ledger.batches[1].replay

    def test_without_a_saved_state_everything_is_trained_again(self) -> None:
        run, epoch = started(4)
        run.ack(epoch, run.lease(epoch, 1), 1)
        second = run.take_over()
        assert run.ledger.step == 0 and run.ledger.state is None
        assert run.lease(second, 1) == ("2.1", [1, 2])

    def test_older_epochs_are_fenced(self) -> None:
        run, epoch = started(4)
        lease = run.lease(epoch, 1)
        run.take_over()
        for call in (
            lambda: run.ledger.check_epoch(epoch),
            lambda: run.ack(epoch, lease, 1),
            lambda: run.cover(epoch, 1),
            lambda: run.lease(epoch, 2),
        ):
            with pytest.raises(FencedError, match="epoch 1 is fenced: epoch 2 holds the run"):
                call()

    def test_an_epoch_that_was_never_granted_is_refused(self) -> None:
        run, _ = started(4)
        with pytest.raises(UnknownEpochError, match="epoch 7 was never granted here"):
            run.ledger.check_epoch(7)

    def test_a_store_of_another_run_is_refused(self) -> None:
        run, _ = started()
        with pytest.raises(LedgerError, match="belongs to run 'run', not to 'other'"):
            run.take_over(run_id="other")

    def test_an_empty_store_goes_on_from_the_state_that_the_trainer_knows(self) -> None:
        run = Run()
        run.take_over(fallback=pb.State(step=12, checkpoint_path="tinker://12"))
        assert run.ledger.step == 12
        assert run.ledger.state is not None and run.ledger.state.checkpoint_path == "tinker://12"

    def test_the_stores_own_state_wins_over_the_fallback(self) -> None:
        run, epoch = started(4)
        run.ack(epoch, run.lease(epoch, 1), 1)
        run.cover(epoch, 1)
        run.take_over(fallback=pb.State(step=7, checkpoint_path="tinker://7"))
        assert run.ledger.step == 1

    def test_a_lost_store_does_not_grant_an_epoch_again(self) -> None:
        run = Run()
        run.write(run.ledger.take_over(run.settings, "t", None, run.now, after_epoch=6))
        assert run.ledger.epoch == 7
        with pytest.raises(FencedError):
            run.ledger.check_epoch(6)

    def test_another_batch_size_cuts_anew(self) -> None:
        run, epoch = started(4)
        run.ack(epoch, run.lease(epoch, 1), 1)
        run.lease(epoch, 2)
        second = run.take_over(batch_size=16)
        assert run.lease(second, 1) == ("2.3", [1, 2, 3, 4])

    def test_three_lineages_and_every_group_once(self) -> None:
        run, epoch = started(20)
        step = 0
        for covered in (2, 3, 3):
            for _ in range(3):
                step += 1
                run.ack(epoch, run.lease(epoch, step), step)
            run.cover(epoch, covered)
            epoch = run.take_over()
            step = run.ledger.step
            assert step == covered
        while (lease := run.lease(epoch, step + 1)) is not None:
            step += 1
            run.ack(epoch, lease, step)
        run.cover(epoch, step)
        assert step == 10
        assert set(run.states()) == {"covered"}
        assert [group.step for group in run.ledger.groups.values()] == [1 + index // 2 for index in range(20)]


class TestLeases:
    def test_the_same_step_again_is_the_same_lease(self) -> None:
        run, epoch = started(4)
        lease = run.lease(epoch, 1)
        held = run.ledger.current_lease(epoch, 1)
        assert held is not None and (held.lease_id, held.groups) == lease

    def test_an_expired_lease_is_handed_out_again_in_its_place(self) -> None:
        run, epoch = started(4)
        run.lease(epoch, 1)
        run.now += 101
        run.write(*run.ledger.expire(run.now))
        assert run.states() == ["queued"] * 4
        assert run.lease(epoch, 1) == ("1.1", [1, 2])

    def test_a_late_acknowledgement_counts_while_nobody_else_has_the_batch(self) -> None:
        run, epoch = started(4)
        lease = run.lease(epoch, 1)
        run.now += 101
        run.write(*run.ledger.expire(run.now))
        run.ack(epoch, lease, 1)
        assert run.states()[:2] == ["trained", "trained"]

    def test_given_back_comes_before_newer(self) -> None:
        run, epoch = started(6)
        run.lease(epoch, 1)
        run.lease(epoch, 2)
        run.write(*run.ledger.give_back(run.ledger.batches[1], "busy"))
        assert run.lease(epoch, 1) == ("1.1", [1, 2])


class TestStaleness:
    def test_too_old_for_the_step_is_dropped_and_the_next_ones_are_taken(self) -> None:
        run, epoch = started(0, max_steps_off_policy=2)
        run.post(2, version=(1, 0))
        run.post(2, version=(1, 3))
        lease = run.lease(epoch, 4)
        assert lease is not None and lease[1] == [3, 4]
        assert run.ledger.reasons == {"stale": 2}

    def test_at_the_limit_is_not_too_old(self) -> None:
        run, epoch = started(0, max_steps_off_policy=2)
        run.post(2, version=(1, 1))
        assert run.lease(epoch, 4) is not None

    def test_unknown_versions_are_accepted(self) -> None:
        run, epoch = started(2, max_steps_off_policy=0)
        assert run.lease(epoch, 9) is not None

    def test_without_a_limit_nothing_is_too_old(self) -> None:
        run, epoch = started(0)
        run.post(2, version=(1, 0))
        assert run.lease(epoch, 1000) is not None

    def test_a_batch_that_is_trained_again_keeps_its_composition(self) -> None:
        run, epoch = started(0, max_steps_off_policy=1)
        run.post(2, version=(1, 0))
        run.ack(epoch, run.lease(epoch, 1), 1)
        run.post(2, version=(1, 1))
        run.ack(epoch, run.lease(epoch, 2), 2)
        second = run.take_over()
        assert run.lease(second, 1) == ("2.1", [1, 2])
        assert run.lease(second, 2) == ("2.2", [3, 4])


class TestPlainTrainer:
    def test_registering_again_takes_effect_and_gives_back_what_is_outstanding(self) -> None:
        run = Run()
        run.post(4)
        run.write(run.ledger.register_trainer(Settings(batch_size=8), 3, run.now))
        assert run.ledger.plain and not run.ledger.started and run.ledger.step == 3
        assert run.lease(1, 4) == ("1.1", [1, 2])
        run.write(run.ledger.register_trainer(Settings(batch_size=16), 5, run.now))
        assert (run.ledger.epoch, run.ledger.step, run.ledger.settings.batch_size) == (2, 5, 16)
        assert run.lease(2, 6) == ("2.2", [1, 2, 3, 4])

    def test_an_acknowledged_batch_is_covered_because_the_trainer_keeps_its_own_checkpoints(self) -> None:
        run = Run()
        run.post(2)
        run.write(run.ledger.register_trainer(Settings(batch_size=8), 0, run.now))
        run.lease(1, 1)
        run.write({"t": "trained", "batch": 1, "epoch": 1, "step": 1, "covered": True})
        assert run.states() == ["covered", "covered"] and run.ledger.step == 1

    def test_after_a_restart_what_perhaps_never_arrived_goes_back(self) -> None:
        run = Run()
        run.post(4)
        run.write(run.ledger.register_trainer(Settings(batch_size=8), 0, run.now))
        run.lease(1, 1)
        run.lease(1, 2)
        run.write({"t": "arrived", "batch": 1})
        assert [event["batch"] for event in run.ledger.undelivered()] == [2]

    def test_reset_drops_what_waits_and_forgets_the_trainer(self) -> None:
        run = Run()
        run.post(3)
        run.write(run.ledger.register_trainer(Settings(batch_size=8), 0, run.now))
        run.lease(1, 1)
        run.write({"t": "reset"})
        assert run.states() == ["dropped"] * 3
        assert run.ledger.reasons == {"reset": 3}
        assert run.ledger.queue.groups == 0 and not run.ledger.batches


class TestPosts:
    def test_a_repeated_post_is_found_by_environment_instance_and_id(self) -> None:
        run, _ = started(0)
        run.post(inst="pod-0", post="a")
        assert run.ledger.find_post("e", "pod-0", "a") == 1
        assert run.ledger.find_post("e", "pod-1", "a") is None
        assert run.ledger.find_post("x", "pod-0", "a") is None
        assert run.ledger.find_post("e", "pod-0", "b") is None


def test_every_state_is_reachable_and_known_to_the_sums() -> None:
    run, epoch = started(8)
    run.ack(epoch, run.lease(epoch, 1), 1)
    run.cover(epoch, 1)
    run.ack(epoch, run.lease(epoch, 2), 2, dropped={4: "x"})
    run.lease(epoch, 3)
    assert run.ledger.sums() == {"stored": 8, "queued": 2, "leased": 2, "trained": 3, "covered": 2, "dropped": 1}
    assert {group.state for group in run.ledger.groups.values()} == set(GroupState)
    assert {batch.state for batch in run.ledger.batches.values()} == {BatchState.TRAINED, BatchState.LEASED}


class TestShares:
    asked = (Share("a", 1.0), Share("b", 1.0, 0.5))

    def test_a_minimum_share_is_waited_for_and_then_waived(self) -> None:
        """AP-13: an environment that never sends does not stop the run."""
        run, epoch = started(0, shares=self.asked)
        run.post(4, env="a")
        assert run.lease(epoch, 1) is None
        assert run.ledger.waiting_for() == (
            "environment b cannot supply its share: 4 sequences of each batch must be its own and 0 can be taken"
        )
        run.now += 59
        assert run.lease(epoch, 1) is None
        run.now += 1
        lease = run.lease(epoch, 1)
        assert lease is not None and lease[1] == [1, 2]

    def test_who_does_not_post_is_waited_for_once_and_anew_after_a_post(self) -> None:
        """AP-13: an environment that is there and never sends costs a minute once, not with each batch."""
        run, epoch = started(0, shares=self.asked)
        run.post(8, env="a")
        assert run.lease(epoch, 1) is None
        run.now += 60
        assert run.lease(epoch, 1) is not None
        assert run.lease(epoch, 2) is not None
        run.post(1, env="b", size=2)
        assert run.lease(epoch, 3) is None
        run.post(1, env="b", size=2)
        lease = run.lease(epoch, 3)
        assert lease is not None and lease[1] == [5, 9, 10]

    def test_a_maximum_share_is_waived_once_for_who_cannot_fill_the_rest(self) -> None:
        run, epoch = started(0, shares=(Share("a", 1.0, 0.0, 0.5), Share("b", 1.0)))
        run.post(5, env="a")
        assert run.lease(epoch, 1) is None
        run.now += 60
        assert run.lease(epoch, 1) is not None
        assert run.lease(epoch, 2) is not None
        run.post(1, env="b")
        lease = run.lease(epoch, 3)
        assert lease is not None and lease[1] == [5, 6]

    def test_an_environment_that_is_gone_is_not_waited_for(self) -> None:
        run, epoch = started(0, shares=self.asked)
        for number, name in enumerate("ab"):
            fields = {
                "instance": "",
                "desired_name": name,
                "wandb_name": f"{name}_0",
                "max_token_length": 1,
                "weight": 1.0,
            }
            environment = {"id": number, "name": name, **fields, "group_size": 4, "min_batch_allocation": None}
            run.write({"t": "registered", "env": environment})
        run.post(4, env="a")
        assert run.lease(epoch, 1) is None
        run.write({"t": "disconnected", "id": 1})
        assert run.lease(epoch, 1) is not None

    def test_realised_shares_follow_the_weights(self) -> None:
        run, epoch = started(0, batch_size=16, shares=(Share("a", 3.0), Share("b", 1.0)))
        for _ in range(10):
            run.post(6, env="a")
            run.post(6, env="b")
        for step in range(1, 11):
            assert run.lease(epoch, step) is not None
        assert run.ledger.mix.realised() == {"a": 0.75, "b": 0.25}


class TestSizesThatDoNotSum:
    def test_wait_is_the_rule(self) -> None:
        run, epoch = started(0, batch_size=16)
        run.post(4, size=6)
        run.lease(epoch, 1)
        run.now += 1000
        assert run.lease(epoch, 1) is None

    def test_short_makes_a_smaller_batch_after_a_while(self) -> None:
        run, epoch = started(0, batch_size=16, unpackable="short")
        run.post(4, size=6)
        assert run.lease(epoch, 1) is None
        run.now += 60
        lease = run.lease(epoch, 1)
        assert lease is not None and lease[1] == [1, 2]

    def test_drop_drops_them_with_a_reason(self) -> None:
        run, epoch = started(0, batch_size=16, unpackable="drop")
        run.post(3, size=6)
        assert run.lease(epoch, 1) is None
        run.now += 60
        assert run.lease(epoch, 1) is None
        assert run.ledger.reasons == {"unpackable": 2}
        run.post(4, size=4)
        run.post(1, size=6)
        assert run.lease(epoch, 1) == ("1.1", [3, 4, 8])


def test_groups_of_unknown_version_are_dropped_where_the_run_says_so() -> None:
    run, epoch = started(2, unknown_version="drop")
    run.post(2, version=(1, 0))
    assert run.lease(epoch, 1) == ("1.1", [3, 4])
    assert run.ledger.reasons == {"unknown_version": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"unpackable": "top"}, "unpackable is 'top'; it must be one of wait, short, drop"),
        ({"unknown_version": "x"}, "unknown_version is 'x'; it must be one of accept, drop"),
        ({"shares": (Share("a", -1.0),)}, "environments: 'a' has weight -1"),
        ({"shares": (Share("a", 1.0, 1.5),)}, "min_batch_share 1.5"),
        ({"max_steps_off_policy": -1}, "max_steps_off_policy is -1"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_settings_that_cannot_work_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSettingsError, match=message):
        Settings(**settings)
