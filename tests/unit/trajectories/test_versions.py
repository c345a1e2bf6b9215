"""A completion is recognised by instance, prompt, tokens and logprobs; the record of versions is bounded."""

from __future__ import annotations

import json

import numpy as np

from tinker_atropos.protocol.versions import completion_digest
from tinker_atropos.trajectories.lineage import Version
from tinker_atropos.trajectories.versions import VersionRecord, completion_digests


def digest(number: int) -> bytes:
    return number.to_bytes(16, "little")


class TestRecord:
    def test_an_instance_finds_its_own(self) -> None:
        record = VersionRecord()
        record.record("a", Version(1, 2), [digest(1)])
        assert record.find("a", digest(1)) == (1, 2)
        assert record.find("b", digest(1)) is None
        assert record.find("a", digest(2)) is None

    def test_what_was_sampled_without_a_name_is_everybodys(self) -> None:
        record = VersionRecord()
        record.record("", Version(1, 2), [digest(1)])
        assert record.find("a", digest(1)) == (1, 2)

    def test_of_several_matches_the_oldest_counts(self) -> None:
        record = VersionRecord(generation=2)
        for version in (Version(1, 4), Version(1, 3), Version(2, 1)):
            record.record("a", version, [digest(1), digest(version.step + 10)])
        assert record.find("a", digest(1)) == (1, 3)

    def test_the_oldest_generation_goes_first(self) -> None:
        record = VersionRecord(generation=10, generations=3)
        for number in range(100):
            record.record("a", Version(1, number), [digest(number)])
        assert len(record) <= 30
        assert record.find("a", digest(0)) is None
        assert record.find("a", digest(99)) == (1, 99)

    def test_it_survives_a_snapshot(self) -> None:
        record = VersionRecord(generation=2)
        for number in range(5):
            record.record(f"i{number % 2}", Version(1, number), [digest(number)])
        again = VersionRecord(generation=2)
        again.load_json(json.loads(json.dumps(record.to_json())))
        assert [again.find(f"i{number % 2}", digest(number)) for number in range(5)] == [(1, n) for n in range(5)]
        assert again.to_json() == record.to_json()


class TestDigestsOfASequence:
    tokens = np.arange(10, dtype=np.int32)
    logprobs = np.linspace(-1, 0, 10, dtype=np.float32)

    def expected(self, *runs: tuple[int, int]) -> list[bytes]:
        return [completion_digest(self.tokens[:a], self.tokens[a:b], self.logprobs[a:b]) for a, b in runs]

    def masked(self, text: str) -> list[bytes]:
        mask = np.array([character == "x" for character in text], np.uint8)
        return completion_digests(self.tokens, mask, self.logprobs)

    def test_one_turn(self) -> None:
        assert self.masked("....xxxxxx") == self.expected((4, 10))

    def test_several_turns(self) -> None:
        assert self.masked("..xxx..xx.") == self.expected((2, 5), (7, 9))

    def test_everything_sampled(self) -> None:
        assert self.masked("xxxxxxxxxx") == self.expected((0, 10))

    def test_nothing_sampled(self) -> None:
        assert self.masked("..........") == []
