"""What sessions, models and samplers mean, with a worker that computes at once and a clock that is moved by hand."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tinker_atropos.local_tinker import requests, service
from tinker_atropos.local_tinker.checkpoints import Checkpoints
from tinker_atropos.local_tinker.engine import Engine
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.futures import Promises, failed_by
from tinker_atropos.local_tinker.metering import Meter
from tinker_atropos.local_tinker.registry import Registry
from tinker_atropos.local_tinker.service import SILENT_SESSION, Service
from tinker_atropos.local_tinker.tokenizer import Vocabulary, write_character_tokenizer
from tinker_atropos.local_tinker.worker import Call, Job

BASE = "tinker-atropos/small"


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Immediately:
    """Stands in for the worker: runs every job where it is submitted."""

    alive = True
    waiting = 0

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def submit(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            try:
                if isinstance(job, Call):
                    outcome = job.run()
                else:
                    (result,) = self._engine.sample(job.policy(), [job.request])
                    outcome = job.finish(result)
            except UserError as error:
                outcome = failed_by(error)
            job.promise.settle(outcome, 0.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def served(tmp_path: Path, engine: Engine, clock: Clock) -> Service:
    write_character_tokenizer(tmp_path)
    registry = Registry(tmp_path / "registry")
    worker: Any = Immediately(engine)
    return Service(
        engine=engine,
        worker=worker,
        vocabulary=Vocabulary(tmp_path),
        base_model=BASE,
        checkpoints=Checkpoints(tmp_path, lambda: dt.datetime.fromtimestamp(clock(), dt.UTC)),
        registry=registry,
        meter=Meter(registry, clock),
        promises=Promises(clock),
        clock=clock,
        entropy=lambda: 4,
    )


def outcome(served: Service, request_id: str) -> dict[str, Any]:
    promise = served.promises.find(request_id)
    assert promise is not None
    assert promise.outcome is not None
    return promise.outcome.json or {"proto": promise.outcome.proto}


def model(served: Service, session: str, number: int = 0) -> str:
    body = requests.CreateModel(
        session_id=session, model_seq_id=number, base_model=BASE, lora_config=requests.LoraConfig(rank=4)
    )
    request_id, model_id = served.create_model(body)
    assert outcome(served, request_id)["model_id"] == model_id
    return model_id


def unnamed(served: Service, model_id: str, number: int, kind: str = "snapshot") -> str:
    body = requests.SaveWeightsForSampler(model_id=model_id, sampling_session_seq_id=number, kind=kind)
    sampler: str = outcome(served, served.save_weights_for_sampler(body)[0])["sampling_session_id"]
    return sampler


def drawn(served: Service, sampler: str, number: int) -> dict[str, Any]:
    body = {
        "sampling_session_id": sampler,
        "seq_id": number,
        "prompt": {"chunks": [{"tokens": [3, 7]}]},
        "sampling_params": {"max_tokens": 4, "temperature": 0},
    }
    return outcome(served, served.sample(requests.Sample.model_validate(body))[0])


def step(served: Service, model_id: str, rate: float = 0.1) -> dict[str, Any]:
    body = requests.OptimStep(model_id=model_id, adam_params={"learning_rate": rate})
    return outcome(served, served.optim_step(body)[0])


def session(served: Service) -> str:
    return served.create_session(requests.CreateSession())


def test_unnamed_weights_go_with_their_session(served: Service) -> None:
    first, second = session(served), session(served)
    samplers = [unnamed(served, model(served, one), 0) for one in (first, second)]
    served.finish_session(first, "success")
    assert "proto" in drawn(served, samplers[1], 0)
    with pytest.raises(UserError, match="is not known here") as gone:
        drawn(served, samplers[0], 0)
    assert gone.value.status == 404


def test_a_finished_session_takes_no_new_work(served: Service) -> None:
    one = session(served)
    served.finish_session(one, "errored")
    served.finish_session(one, "success")
    assert served.heartbeat(one) is False
    with pytest.raises(UserError, match=r"has finished \(errored\)"):
        model(served, one)
    sampling = requests.CreateSamplingSession(session_id=one, sampling_session_seq_id=0, base_model=BASE)
    with pytest.raises(UserError, match="has finished"):
        served.create_sampler(sampling)


def test_a_session_from_before_the_data_was_lost_goes_on(served: Service) -> None:
    assert served.heartbeat("11111111-from-before") is True
    assert model(served, "22222222-from-before") == "22222222-from-before:train:0"


@pytest.mark.parametrize(("silent", "loaded"), [(SILENT_SESSION - 1, True), (SILENT_SESSION + 1, False)])
def test_models_of_a_silent_session_are_unloaded(served: Service, clock: Clock, silent: float, loaded: bool) -> None:
    quiet, lively = session(served), session(served)
    models = [model(served, one) for one in (quiet, lively)]
    clock.now += silent
    served.heartbeat(lively)
    served.housekeeping()
    served.model(models[1])
    if loaded:
        served.model(models[0])
    else:
        with pytest.raises(UserError, match="is not loaded here"):
            served.model(models[0])


def test_creating_twice_is_creating_once(served: Service) -> None:
    one = session(served)
    model_id = model(served, one)
    step(served, model_id)
    assert model(served, one) == model_id
    assert step(served, model_id)["metrics"]["step:max"] == 2.0


def test_load_into_a_fresh_model(served: Service) -> None:
    """The older form of loading: a call in the sequence of a model that was created before."""
    one = session(served)
    first, second = model(served, one, 0), model(served, one, 1)
    step(served, first)
    saved = outcome(served, served.save_weights(requests.SaveWeights(model_id=first, path="x"))[0])["path"]
    body = requests.LoadWeights(model_id=second, seq_id=1, path=saved, optimizer=True)
    assert outcome(served, served.load_weights(body)[0])["model_id"] == second
    assert step(served, second)["metrics"]["step:max"] == 2.0


def test_inflight_samplers_follow_the_newest_weights(served: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    model_id = model(served, session(served))
    older = unnamed(served, model_id, 0, kind="inflight")
    used: list[Any] = []
    sample = served.engine.sample

    def watched(policy: Any, asked: Any) -> Any:
        used.append(policy.adapter)
        return sample(policy, asked)

    monkeypatch.setattr(served.engine, "sample", watched)
    drawn(served, older, 0)
    step(served, model_id)
    unnamed(served, model_id, 1, kind="inflight")
    drawn(served, older, 1)
    assert used[0] is not used[1]


def test_only_the_newest_unnamed_weights_are_kept(served: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_KEPT_SNAPSHOTS", 2)
    model_id = model(served, session(served))
    clock: Any = served._clock
    samplers = []
    for number in range(3):
        clock.now += 1
        samplers.append(unnamed(served, model_id, number))
    assert "proto" in drawn(served, samplers[1], 0)
    with pytest.raises(UserError, match="no such checkpoint"):
        drawn(served, samplers[0], 0)


def test_weights_come_back_from_disk_when_memory_forgot_them(served: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_CACHED_POLICIES", 1)
    model_id = model(served, session(served))
    first = unnamed(served, model_id, 0)
    before = drawn(served, first, 0)
    unnamed(served, model_id, 1)
    assert drawn(served, first, 1) == before


def test_too_many_waiting_requests_are_told_to_wait(served: Service) -> None:
    sampler = unnamed(served, model(served, session(served)), 0)
    worker: Any = served._worker
    worker.waiting = service.MOST_WAITING
    with pytest.raises(UserError) as busy:
        drawn(served, sampler, 0)
    assert busy.value.status == 429


def test_a_refused_sample_may_be_corrected_under_its_number(served: Service) -> None:
    sampler = unnamed(served, model(served, session(served)), 0)
    wrong = {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "prompt": {"chunks": [{"tokens": [99]}]},
        "sampling_params": {},
    }
    with pytest.raises(UserError, match="token id 99"):
        served.sample(requests.Sample.model_validate(wrong))
    assert "proto" in drawn(served, sampler, 0)


@pytest.mark.parametrize(
    ("stop", "ends", "strings"),
    [
        (None, {2}, ()),
        ([], set(), ()),
        ("\n", {2, 4}, ()),
        (["\n", "ab"], {2, 4}, ("ab",)),
        ([7], {2, 7}, ()),
    ],
    ids=["none keeps end of text", "empty stops at nothing", "one token", "several tokens", "a token id"],
)
def test_stops(served: Service, stop: Any, ends: set[int], strings: tuple[str, ...]) -> None:
    assert served._stops(stop) == (ends, strings)
