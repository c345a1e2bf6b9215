"""What the API means: models in training, samplers, checkpoints and promises, between the routes and the worker."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import ValidationError

from tinker_atropos.local_tinker import lora, requests, wire
from tinker_atropos.local_tinker.checkpoints import SAMPLER, SNAPSHOT, TRAINING, TYPES, Checkpoints, Record
from tinker_atropos.local_tinker.engine import Engine, TrainingModel
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.futures import Outcome, Promise, Promises, SequenceGate, failed
from tinker_atropos.local_tinker.generation import Policy, SampleRequest, SampleResult
from tinker_atropos.local_tinker.lora import LoraSettings
from tinker_atropos.local_tinker.metering import Meter
from tinker_atropos.local_tinker.optimizer import AdamParams
from tinker_atropos.local_tinker.registry import Registry, Run, Sampler, Session
from tinker_atropos.local_tinker.tokenizer import Vocabulary
from tinker_atropos.local_tinker.worker import Call, Sampling, Worker

logger = logging.getLogger(__name__)

SILENT_SESSION = 3600.0
MOST_WAITING = 4000
_CACHED_POLICIES = 16
_KEPT_SNAPSHOTS = 64
_BASE = ""


@dataclass
class OpenModel:
    """A model that can be trained: its place in the sequence of calls and, once the worker has made it, its weights."""

    id: str
    session: str
    settings: LoraSettings
    gate: SequenceGate[Call] = field(default_factory=SequenceGate)
    training: TrainingModel | None = None

    def ready(self) -> TrainingModel:
        if self.training is None:
            raise UserError(f"model_id: {self.id} could not be created; see the answer to its creation", status=404)
        return self.training


class Service:
    """Called on the event loop; what it hands to the worker as closures runs on the worker's thread."""

    def __init__(
        self,
        *,
        engine: Engine,
        worker: Worker,
        vocabulary: Vocabulary,
        base_model: str,
        checkpoints: Checkpoints,
        registry: Registry,
        meter: Meter,
        promises: Promises,
        clock: Callable[[], float],
        entropy: Callable[[], int],
    ) -> None:
        self.engine = engine
        self.base_model = base_model
        self.checkpoints = checkpoints
        self.registry = registry
        self.meter = meter
        self.promises = promises
        self._worker = worker
        self._vocabulary = vocabulary
        self._clock = clock
        self._entropy = entropy
        self._models: dict[str, OpenModel] = {}
        self._policies: OrderedDict[str, Policy] = OrderedDict()

    @property
    def alive(self) -> bool:
        """Whether anything asked of this server can still be computed."""
        return self._worker.alive

    # ------------------------------------------------------------------ sessions

    def create_session(self, body: requests.CreateSession) -> str:
        session_id = str(uuid.uuid4())
        self._add_session(session_id, body)
        return session_id

    def _add_session(self, session_id: str, body: requests.CreateSession) -> None:
        now = self._clock()
        self.registry.add_session(
            Session(
                session_id,
                now,
                now,
                None,
                body.display_name,
                body.project_id,
                body.user_metadata or {},
                sorted(body.tags),
            )
        )

    def heartbeat(self, session_id: str) -> bool:
        """False when the session has finished: its client then stops beating."""
        session = self.registry.session(session_id)
        if session is None:
            # The data folder is new but the client is not: it goes on as if nothing had happened.
            self._add_session(session_id, requests.CreateSession())
        self.registry.touch_session(session_id, self._clock())
        return session is None or session.finished is None

    def finish_session(self, session_id: str, reason: str) -> None:
        """Models in training and unnamed sampler weights of the session go."""
        if self.registry.session(session_id) is None:
            raise UserError(f"session_id: {session_id} is not known here", status=404)
        self.registry.finish_session(session_id, reason)
        self._unload(session_id)

    def _check_session(self, session_id: str) -> None:
        session = self.registry.session(session_id)
        if session is not None and session.finished is not None:
            raise UserError(f"session_id: {session_id} has finished ({session.finished}); start a new one")
        if session is None:
            self._add_session(session_id, requests.CreateSession())

    def _unload(self, session_id: str) -> None:
        for model in [m for m in self._models.values() if m.session == session_id]:
            del self._models[model.id]
        self.checkpoints.delete_snapshots(f"{session_id}:")

    def housekeeping(self) -> None:
        """Called now and then: what has had its time goes."""
        for record in self.checkpoints.expire():
            logger.info("checkpoint %s has outlived its time and was removed", record.path)
        self.promises.forget_old()
        now = self._clock()
        for session_id in {model.session for model in self._models.values()}:
            session = self.registry.session(session_id)
            if session is not None and now - session.seen > SILENT_SESSION:
                logger.warning("session %s has been silent for an hour; its models are unloaded", session_id)
                self._unload(session_id)

    # ------------------------------------------------------------------ models

    def model(self, model_id: str) -> OpenModel:
        model = self._models.get(model_id)
        if model is None:
            raise UserError(
                f"model_id: {model_id!r} is not loaded here (the server was restarted, or its session has finished); "
                "create a training client from the last saved state",
                status=404,
            )
        return model

    def create_model(self, body: requests.CreateModel) -> tuple[str, str]:
        """(request id, model id)."""
        self._check_session(body.session_id)
        model_id = f"{body.session_id}:train:{body.model_seq_id}"
        promise, fresh = self.promises.open(f"{model_id}:0")
        if not fresh:
            return promise.request_id, model_id

        def create() -> Outcome:
            self._check_base_model(body.base_model)
            if body.optimizer_config.type != "adamw":
                raise UserError(
                    f"optimizer_config.type: {body.optimizer_config.type!r} is not offered here; use 'adamw'"
                )
            if body.lora_config is None:
                raise UserError("lora_config: missing; the local server trains LoRA adapters only")
            settings = body.lora_config.settings()
            seed = settings.seed if settings.seed is not None else self._entropy()
            model.settings = settings
            model.training = self.engine.create(settings, abs(seed))
            self._add_run(model, body.user_metadata)
            return Outcome(json={"model_id": model_id, "type": "create_model"})

        model = self._models[model_id] = OpenModel(model_id, body.session_id, LoraSettings(1))
        self._worker.submit([Call(promise, create)])
        return promise.request_id, model_id

    def load_weights(self, body: requests.LoadWeights) -> tuple[str, str]:
        """Create a model from a checkpoint (request id, model id), or load one into a model that is there."""

        def load(model: OpenModel) -> Outcome:
            record = self.checkpoints.find(body.path, (TRAINING, SAMPLER))
            self._check_base_model(body.base_model or record.base_model)
            if body.optimizer and record.kind != TRAINING:
                raise UserError(
                    f"path: {body.path} holds sampler weights without optimizer state; load a weights/ path"
                )
            model.settings = record.lora
            model.training = self._restore(record, optimizer=body.optimizer)
            self._add_run(model, body.user_metadata)
            return Outcome(json={"path": body.path, "model_id": model.id, "type": "load_weights"})

        if body.session_id is None or body.model_seq_id is None:
            if body.model_id is None:
                raise UserError("load_weights: give session_id and model_seq_id, or model_id and seq_id")
            model = self.model(body.model_id)
            return self._in_turn(model, body.seq_id, lambda: load(model)), model.id
        self._check_session(body.session_id)
        model_id = f"{body.session_id}:train:{body.model_seq_id}"
        promise, fresh = self.promises.open(f"{model_id}:0")
        if fresh:
            created = self._models[model_id] = OpenModel(model_id, body.session_id, LoraSettings(1))
            self._worker.submit([Call(promise, lambda: load(created))])
        return promise.request_id, model_id

    def _restore(self, record: Record, *, optimizer: bool) -> TrainingModel:
        config = self.engine.config
        contents = self.checkpoints.load(record, optimizer=optimizer)
        adapter = lora.from_tensors(config, record.lora, contents.adapter)
        if contents.first is None or contents.second is None:
            return self.engine.restore(record.lora, adapter)
        moments = (
            lora.from_tensors(config, record.lora, contents.first),
            lora.from_tensors(config, record.lora, contents.second),
        )
        return self.engine.restore(record.lora, adapter, moments, record.step)

    def _add_run(self, model: OpenModel, user_metadata: dict[str, Any] | None) -> None:
        now = self._clock()
        settings = vars(model.settings)
        self.registry.add_run(Run(model.id, model.session, self.base_model, settings, now, now, user_metadata))

    def _check_base_model(self, name: str) -> None:
        if name.split(":", maxsplit=1)[0] != self.base_model:
            raise UserError(f"base_model: {name!r} is not offered here; this server has {self.base_model!r}")

    def unload_model(self, model_id: str) -> None:
        del self._models[self.model(model_id).id]

    # ------------------------------------------------------------------ training

    def _in_turn(self, model: OpenModel, number: int | None, run: Callable[[], Outcome]) -> str:
        """Queue a training call at its place in the model's sequence; sent again, it is the same call."""
        number = model.gate.next + model.gate.held if number is None else number
        if number < 1:
            raise UserError(f"seq_id: {number} is not 1 or more")
        request_id = f"{model.id}:{number}"
        if number < model.gate.next:
            return request_id
        promise, fresh = self.promises.open(request_id)
        if fresh:
            self.registry.touch_run(model.id, self._clock())
            self._worker.submit(model.gate.offer(number, Call(promise, run)))
        return request_id

    def forward_backward(self, message: Any) -> tuple[str, str]:
        model = self.model(message.model_id)

        def run() -> Outcome:
            training = model.ready()
            loss = wire.loss_of(message)
            config = self.engine.config
            examples = wire.examples_of(message, config.vocab_size, config.context_length)
            result = self.engine.forward_backward(training, examples, loss, forward_only=message.forward_only)
            self.meter.trained(model.session, sum(len(example.tokens) for example in examples))
            return Outcome(proto=wire.encode_loss(result, examples, loss))

        return self._in_turn(model, message.seq_id, run), model.id

    def optim_step(self, body: requests.OptimStep) -> tuple[str, str]:
        model = self.model(body.model_id)

        def run() -> Outcome:
            training = model.ready()
            if body.optimizer_params is not None or body.adam_params is None:
                raise UserError("optim_step: only AdamW is offered here; pass AdamParams")
            try:
                fields = requests.AdamFields.model_validate(body.adam_params)
            except ValidationError as error:
                raise UserError(f"adam_params.{requests.describe(error)}") from None
            return Outcome(json={"metrics": self.engine.optim_step(training, AdamParams(**fields.model_dump()))})

        return self._in_turn(model, body.seq_id, run), model.id

    def save_weights(self, body: requests.SaveWeights) -> tuple[str, str]:
        model = self.model(body.model_id)

        def run() -> Outcome:
            training = model.ready()
            name = body.path or f"step-{training.step:06d}"
            moments = (
                lora.to_tensors(training.first, training.settings),
                lora.to_tensors(training.second, training.settings),
            )
            record = self.checkpoints.save(
                f"tinker://{model.id}/{TRAINING}/{name}",
                base_model=self.base_model,
                lora=training.settings,
                adapter=lora.to_tensors(training.adapter, training.settings),
                moments=moments,
                step=training.step,
                ttl=body.ttl_seconds,
                user_metadata=body.user_metadata,
                overwrite=body.overwrite,
            )
            self.meter.saved(model.session)
            return Outcome(json={"path": record.path, "type": "save_weights"})

        return self._in_turn(model, body.seq_id, run), model.id

    def save_weights_for_sampler(self, body: requests.SaveWeightsForSampler) -> tuple[str, str]:
        """Named weights get a path; unnamed ones belong to a sampling session of this session."""
        model = self.model(body.model_id)

        def run() -> Outcome:
            training = model.ready()
            if body.path is not None:
                path = f"tinker://{model.id}/{SAMPLER}/{body.path}"
            elif body.sampling_session_seq_id is None:
                raise UserError("save_weights_for_sampler: give a path, or sampling_session_seq_id for unnamed weights")
            else:
                kept = "inflight" if body.kind == "inflight" else f"sampler-{body.sampling_session_seq_id}"
                path = f"tinker://{model.id}/{SNAPSHOT}/{kept}"
            record = self.checkpoints.save(
                path,
                base_model=self.base_model,
                lora=training.settings,
                adapter=lora.to_tensors(training.adapter, training.settings),
                step=training.step,
                ttl=body.ttl_seconds,
                user_metadata=body.user_metadata,
            )
            self._remember(record.folder, training.policy())
            self.checkpoints.keep_snapshots(model.id, _KEPT_SNAPSHOTS)
            if body.path is not None:
                self.meter.saved(model.session)
                return Outcome(json={"path": record.path, "type": "save_weights_for_sampler"})
            sampler = f"{model.session}:sample:{body.sampling_session_seq_id}"
            self.registry.add_sampler(Sampler(sampler, model.session, self.base_model, record.path, None))
            return Outcome(json={"sampling_session_id": sampler, "type": "save_weights_for_sampler"})

        return self._in_turn(model, body.seq_id, run), model.id

    # ------------------------------------------------------------------ sampling

    def create_sampler(self, body: requests.CreateSamplingSession) -> str:
        self._check_session(body.session_id)
        sampler_id = f"{body.session_id}:sample:{body.sampling_session_seq_id}"
        if body.model_path is not None:
            record = self.checkpoints.find(body.model_path, (TRAINING, SAMPLER))
            self._check_base_model(record.base_model)
        elif body.base_model is not None:
            self._check_base_model(body.base_model)
        else:
            raise UserError("create_sampling_session: give model_path or base_model")
        self.registry.add_sampler(
            Sampler(sampler_id, body.session_id, self.base_model, body.model_path, body.model_path)
        )
        return sampler_id

    def sampler(self, sampler_id: str) -> Sampler:
        sampler = self.registry.sampler(sampler_id)
        if sampler is None:
            raise UserError(
                f"sampling session {sampler_id!r} is not known here (its session has finished, or the data folder "
                "is new); create a new sampling client",
                status=404,
            )
        return sampler

    def sample(self, body: requests.Sample) -> tuple[str, list[str]]:
        """(request id, one id per sample)."""
        session, weights, request_id = self._sample_target(body)
        promise, fresh = self.promises.open(request_id)
        ids = [f"{request_id}:{n}" for n in range(body.num_samples)]
        if not fresh:
            return request_id, ids
        try:
            request = self._sample_request(body, promise)
        except UserError:
            self.promises.forget(promise)
            raise
        promise.can_be_cancelled = True
        prompt = len(request.prompt)

        def finish(result: SampleResult) -> Outcome:
            generated = sum(len(row.tokens) for row in result.sequences)
            self.meter.sampled(session, prompt, request.samples, generated, cached=result.cached_prompt)
            return Outcome(proto=wire.encode_sample(result, prompt, body.prompt_logprobs_last_n))

        self._worker.submit([Sampling(promise, weights, lambda: self._policy(weights), request, finish)])
        return request_id, ids

    def _sample_target(self, body: requests.Sample) -> tuple[str, str, str]:
        """(session, weights, request id) of a request, by sampling session or by path or base model alone."""
        if self._worker.waiting >= MOST_WAITING:
            raise UserError(f"asample: {MOST_WAITING} requests are waiting already; send fewer at once", status=429)
        if body.sampling_session_id is not None:
            sampler = self.sampler(body.sampling_session_id)
            if body.seq_id is None:
                raise UserError("seq_id: missing; it is needed with sampling_session_id")
            weights = sampler.weights or _BASE
            if weights:
                self.checkpoints.find(weights)
            return sampler.session, weights, f"{sampler.id}:{body.seq_id}"
        request_id = f"sample:{uuid.uuid4()}"
        if body.model_path is not None:
            return "", self.checkpoints.find(body.model_path, (TRAINING, SAMPLER)).path, request_id
        if body.base_model is None:
            raise UserError("asample: give sampling_session_id, model_path or base_model")
        self._check_base_model(body.base_model)
        return "", _BASE, request_id

    def _sample_request(self, body: requests.Sample, promise: Promise) -> SampleRequest:
        for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "target_prompt_logprobs", "prompt_alt_tokens_k"):
            if getattr(body, name):
                raise UserError(f"{name}: not offered by the local server; leave it out")
        config = self.engine.config
        prompt = body.prompt.token_ids()
        params = body.sampling_params
        if not 1 <= len(prompt) < config.context_length:
            raise UserError(f"prompt: {len(prompt)} tokens; the model takes 1 to {config.context_length - 1}")
        wire.check_tokens(np.asarray(prompt), config.vocab_size, "prompt")
        room = config.context_length - len(prompt)
        last_n = body.prompt_logprobs_last_n
        if last_n is not None and not (body.prompt_logprobs and 1 <= last_n <= len(prompt) - 1):
            raise UserError(
                f"prompt_logprobs_last_n: {last_n} needs prompt_logprobs and must be between 1 and {len(prompt) - 1}"
            )
        if params.top_k < -1:
            raise UserError(f"sampling_params.top_k: {params.top_k} is not -1 (no limit), 0 or more")
        tokens, strings = self._stops(params.stop)
        return SampleRequest(
            prompt=tuple(prompt),
            samples=body.num_samples,
            max_tokens=min(params.max_tokens or room, room),
            seed=self._entropy() if params.seed is None else params.seed,
            temperature=params.temperature,
            top_k=max(params.top_k, 0) if params.top_k < config.vocab_size else 0,
            top_p=params.top_p,
            stop_tokens=tokens,
            stop_strings=strings,
            prompt_logprobs=bool(body.prompt_logprobs),
            cancelled=lambda: promise.cancelled,
        )

    def _stops(self, stop: str | list[str] | list[int] | None) -> tuple[frozenset[int], tuple[str, ...]]:
        """Token ids that stop at once, and strings that need a look. None keeps end-of-text; [] stops at nothing."""
        ends = frozenset(self.engine.config.eos_tokens)
        if stop is None:
            return ends, ()
        given = [stop] if isinstance(stop, str) else stop
        if not given:
            return frozenset(), ()
        strings = tuple(item for item in given if isinstance(item, str))
        ids = frozenset(item for item in given if isinstance(item, int))
        if any(not text for text in strings):
            raise UserError("sampling_params.stop: an empty text would stop everything; leave it out")
        wire.check_tokens(np.asarray(sorted(ids)), self.engine.config.vocab_size, "sampling_params.stop")
        whole = frozenset(token for text in strings for token in self._vocabulary.tokens_holding(text))
        return ends | ids | whole, tuple(text for text in strings if len(text.encode()) > 1)

    def _policy(self, weights: str) -> Policy:
        """On the worker's thread: weights from memory, or from disk after a restart."""
        if weights == _BASE:
            return self.engine.base_policy
        record = self.checkpoints.find(weights)
        known = self._policies.get(record.folder)
        if known is None:
            contents = self.checkpoints.load(record, optimizer=False)
            adapter = lora.from_tensors(self.engine.config, record.lora, contents.adapter)
            known = self.engine.load_policy(record.lora, adapter)
        self._remember(record.folder, known)
        return known

    def _remember(self, folder: str, policy: Policy) -> None:
        self._policies[folder] = policy
        self._policies.move_to_end(folder)
        while len(self._policies) > _CACHED_POLICIES:
            self._policies.popitem(last=False)

    def cancel(self, request_id: str) -> None:
        """Stop a sample nobody waits for. Training calls are never dropped: the next one in the sequence needs them."""
        promise = self.promises.find(request_id)
        if promise is None or promise.outcome is not None or not promise.can_be_cancelled:
            return
        promise.cancelled = True
        self.promises.settle(promise, failed("cancelled by the client", "user"))

    # ------------------------------------------------------------------ what is there

    def checkpoint_json(self, record: Record) -> dict[str, Any]:
        return {
            "checkpoint_id": f"{record.kind}/{record.name}",
            "checkpoint_type": TYPES[record.kind],
            "time": record.created,
            "tinker_path": record.path,
            "size_bytes": record.size,
            "public": False,
            "user_metadata": record.user_metadata,
            "expires_at": record.expires,
        }

    def run_json(self, run: Run) -> dict[str, Any]:
        records = self.checkpoints.listed(run.id)
        newest = {kind: next((r for r in reversed(records) if r.kind == kind), None) for kind in TYPES}
        training, sampler = newest[TRAINING], newest[SAMPLER]
        return {
            "training_run_id": run.id,
            "base_model": run.base_model,
            "model_owner": "local",
            "is_lora": True,
            "corrupted": False,
            "lora_rank": run.lora["rank"],
            "last_request_time": dt.datetime.fromtimestamp(run.used, dt.UTC).isoformat(),
            "last_checkpoint": training and self.checkpoint_json(training),
            "last_sampler_checkpoint": sampler and self.checkpoint_json(sampler),
            "user_metadata": run.user_metadata,
        }

    def weights_info(self, path: str) -> dict[str, Any]:
        record = self.checkpoints.find(path, (TRAINING, SAMPLER))
        return {
            "base_model": record.base_model,
            "is_lora": True,
            "lora_rank": record.lora.rank,
            "train_unembed": record.lora.train_unembed,
            "train_mlp": record.lora.train_mlp,
            "train_attn": record.lora.train_attn,
        }
