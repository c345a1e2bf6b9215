"""The worker's queue: what runs together, what gives way, and that one bad job harms no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tinker_atropos.local_tinker.engine import SampleRequest
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.futures import Outcome, Promise
from tinker_atropos.local_tinker.worker import Call, Job, Sampling, Worker


class FakeRun:
    """Takes one stretch for every token that may be generated, as the real one does for many."""

    def __init__(self, asked: list[SampleRequest], policy: Any) -> None:
        self.left = {index: request.max_tokens for index, request in enumerate(asked)}
        self.asked = asked
        self.policy = policy

    @property
    def finished(self) -> bool:
        return not self.left

    def advance(self) -> list[tuple[int, Any]]:
        if self.policy == "broken":
            raise RuntimeError("out of memory")
        self.left = {index: left - 1 for index, left in self.left.items()}
        done = [index for index, left in self.left.items() if left == 0]
        for index in done:
            del self.left[index]
        return [(index, self.asked[index].seed) for index in done]


class FakeEngine:
    """Records which requests ran together. Prompts of up to 4 tokens have one shape, longer ones another."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self.buckets = SimpleNamespace(length=lambda tokens: 4 if tokens <= 4 else 16)

    def run(self, policy: Any, asked: list[SampleRequest]) -> Any:
        self.runs.append([request.seed for request in asked])
        if policy == "gone":
            raise UserError("no such checkpoint")
        return FakeRun(asked, policy)


class Bench:
    """A worker whose first job holds it until everything else is queued."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.outcomes: dict[str, Any] = {}
        self.settled = threading.Condition()
        engine: Any = self.engine
        self.worker = Worker(engine, self._settle)
        self.worker.start()

    def _settle(self, outcomes: list[tuple[Promise, Outcome]]) -> None:
        with self.settled:
            self.outcomes.update({promise.request_id: outcome.json for promise, outcome in outcomes})
            self.settled.notify_all()

    def run(self, *jobs: Job) -> dict[str, Any]:
        release = threading.Event()
        first = call("first", lambda: Outcome(json={"waited": release.wait(10)}))
        self.worker.submit([first])
        self.worker.submit(jobs)
        release.set()
        wanted = {job.promise.request_id for job in jobs if not job.promise.cancelled}
        with self.settled:
            assert self.settled.wait_for(lambda: wanted <= self.outcomes.keys(), 10)
        return self.outcomes


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    assert made.worker.stop(10)


def call(name: str, run: Any) -> Call:
    return Call(Promise(name, 0.0), run)


def sample(
    number: int, weights: str = "w", prompt: int = 2, policy: str = "fine", samples: int = 1, stretches: int = 1
) -> Sampling:
    request = SampleRequest(tuple(range(prompt)), samples, stretches, seed=number)
    return Sampling(
        Promise(f"s{number}", 0.0),
        weights,
        lambda: policy,
        request,
        lambda result: Outcome(json={"got": result}),  # type: ignore[arg-type, return-value]
    )


@pytest.mark.parametrize(
    ("jobs", "runs"),
    [
        ([sample(1), sample(2), sample(3)], [[1, 2, 3]]),
        ([sample(1), sample(2, weights="v"), sample(3)], [[1, 3], [2]]),
        ([sample(1), sample(2, prompt=9), sample(3)], [[1, 3], [2]]),
        ([sample(1, samples=200), sample(2, samples=200), sample(3)], [[1, 2], [3]]),
        ([sample(1), call("c", lambda: Outcome(json={})), sample(2)], [[1, 2]]),
    ],
    ids=["same weights", "other weights", "other shape", "not without end", "over a training call"],
)
def test_what_runs_together(bench: Bench, jobs: list[Job], runs: list[list[int]]) -> None:
    outcomes = bench.run(*jobs)
    assert bench.engine.runs == runs
    assert {name: value for name, value in outcomes.items() if name.startswith("s")} == {
        job.promise.request_id: {"got": job.request.seed} for job in jobs if isinstance(job, Sampling)
    }


@pytest.mark.parametrize(
    ("policy", "error", "category"),
    [("broken", "RuntimeError: out of memory", "server"), ("gone", "no such checkpoint", "user")],
)
def test_a_run_that_fails_is_told_to_each_request(bench: Bench, policy: str, error: str, category: str) -> None:
    outcomes = bench.run(sample(1, policy=policy), sample(2, policy=policy), sample(3, weights="v"))
    assert outcomes["s1"] == outcomes["s2"] == {"error": error, "category": category}
    assert outcomes["s3"] == {"got": 3}


def test_calls_keep_their_order_and_one_error_stops_no_other(bench: Bench) -> None:
    order: list[str] = []

    def refused() -> Outcome:
        order.append("a")
        raise UserError("field: wrong")

    def done() -> Outcome:
        order.append("b")
        return Outcome(json={"ok": True})

    outcomes = bench.run(call("a", refused), call("b", done))
    assert order == ["a", "b"]
    assert outcomes["a"] == {"error": "field: wrong", "category": "user"}
    assert outcomes["b"] == {"ok": True}


def test_cancelled_requests_are_not_run(bench: Bench) -> None:
    dropped = sample(1)
    dropped.promise.cancelled = True
    bench.run(dropped, sample(2))
    assert bench.engine.runs == [[2]]


def test_spare_work_runs_when_nothing_waits_and_harms_nothing(bench: Bench) -> None:
    ran = threading.Event()

    def broken() -> None:
        ran.set()
        raise RuntimeError("cannot compile")

    bench.worker.when_idle(broken)
    assert ran.wait(10)
    assert bench.run(sample(1))["s1"] == {"got": 1}
    assert bench.worker.alive


def test_a_long_answer_holds_nobody_up(bench: Bench) -> None:
    """Short samples of other weights, company of its own run and training calls are all answered before it."""
    jobs = [
        sample(1, stretches=50),
        sample(2),
        sample(3, weights="v", stretches=2),
        call("c", lambda: Outcome(json={})),
    ]
    bench.run(*jobs)
    answered = list(bench.outcomes)
    assert answered[-1] == "s1"
    assert set(answered) == {"first", "s1", "s2", "s3", "c"}


def test_training_goes_on_when_no_more_runs_may_start(bench: Bench) -> None:
    long = [sample(number, weights=f"w{number}", stretches=30) for number in range(6)]
    bench.run(*long, call("c", lambda: Outcome(json={})))
    assert list(bench.outcomes)[:2] == ["first", "c"]
    assert {f"s{number}" for number in range(6)} <= bench.outcomes.keys()


def test_stopping_ends_what_is_sampled() -> None:
    bench = Bench()
    started = threading.Event()
    advance = FakeRun.advance

    def slowly(run: FakeRun) -> list[tuple[int, Any]]:
        started.set()
        return advance(run)

    job = sample(1, stretches=10**9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeRun, "advance", slowly)
        bench.worker.submit([job])
        assert started.wait(10)
        assert bench.worker.stop(10)
    assert not bench.worker.alive
    assert bench.outcomes == {}
