"""Atropos' HTTP endpoints, in the wire form that unmodified environments and plain trainers know."""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from time import perf_counter
from typing import Any

import orjson
import simdjson
from isal import isal_zlib

from tinker_atropos.protocol.identity import ENVIRONMENT_HEADER, INSTANCE_HEADER, POST_HEADER, bearer
from tinker_atropos.trajectories import batches
from tinker_atropos.trajectories.connection import Handler, Later, Request, Response, error_response, json_response
from tinker_atropos.trajectories.exchange import Exchange, Stored
from tinker_atropos.trajectories.ledger import Batch
from tinker_atropos.trajectories.posts import InvalidPostError, Post, parse, parse_group, read_post
from tinker_atropos.trajectories.refusals import Refused
from tinker_atropos.trajectories.settings import InvalidSettingsError, Settings
from tinker_atropos.trajectories.store import StoreCorruptError, StoreUnavailableError

_ENVIRONMENT = ENVIRONMENT_HEADER.lower()
_INSTANCE = INSTANCE_HEADER.lower()
_POST = POST_HEADER.lower()
_RECEIVED = orjson.dumps({"status": "received"})
_RECEIVED_AGAIN = orjson.dumps({"status": "received", "duplicate": True})
_ENV_ID = re.compile(rb'"env_id"\s*:\s*(\d{1,18})\b')
_OPEN = frozenset({"/healthz", "/readyz"})
_GZIP_WBITS = 31
_MOST_TIMES = 1032
"""How much larger than its deflated form a text can be."""
_SLACK = 64
"""With room behind the text's end it is inflated in a quarter less time."""
_INFLATE_ERROR: type[Exception] = isal_zlib.error  # type: ignore[assignment]


class _RefusalError(Exception):
    """A request that cannot be served; carries its answer."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


_EXPECTED = (_RefusalError, StoreUnavailableError, StoreCorruptError, InvalidSettingsError)


def _refuse(status: int, message: str, **more: object) -> _RefusalError:
    return _RefusalError(error_response(status, message, **more))


def _invalid(error: InvalidPostError) -> _RefusalError:
    detail = [{"loc": ["body", *error.where], "msg": error.why, "type": "value_error"}]
    return _refuse(422 if error.where else 400, str(error), detail=detail)


class Routes:
    """Answers requests on one exchange."""

    def __init__(self, exchange: Exchange, token: str, max_body: int) -> None:
        self._exchange = exchange
        self._bearer = bearer(token).encode() if token else b""
        self._max_body = max_body
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "/"): lambda _: json_response({"message": "AtroposLib API"}),
            ("GET", "/healthz"): lambda _: json_response({"status": "ok"}),
            ("GET", "/readyz"): self._readyz,
            ("GET", "/metrics"): self._metrics_text,
            ("GET", "/ledger"): self._ledger,
            ("POST", "/register"): self._register,
            ("POST", "/register-env"): self._register_env,
            ("POST", "/disconnect-env"): self._disconnect_env,
            ("GET", "/wandb_info"): self._wandb_info,
            ("GET", "/info"): self._info,
            ("POST", "/scored_data"): self._scored_data,
            ("POST", "/scored_data_list"): self._scored_data_list,
            ("GET", "/batch"): self._batch,
            ("GET", "/latest_example"): self._latest_example,
            ("GET", "/status"): self._status,
            ("GET", "/status-env"): self._status_env,
            ("GET", "/reset_data"): self._reset_data,
        }
        self._paths = {path for _, path in self._routes}

    def __call__(self, request: Request) -> Response | Later | Awaitable[Response]:
        handler = self._routes.get((request.method, request.path))
        if handler is None:
            if request.path in self._paths:
                return error_response(405, f"{request.path} does not take {request.method}")
            return error_response(404, f"no such path: {request.path}")
        if self._bearer and request.path not in _OPEN:
            given = request.headers.get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self._bearer):
                return error_response(401, "the run's token is missing or wrong (Authorization: Bearer …)")
        started = perf_counter()
        try:
            answer = handler(request)
        except _EXPECTED as error:
            answer = self._explain(error)
        if isinstance(answer, Later):
            return Later(answer.done, lambda: self._guarded(answer.answer, request.path, started))
        if not isinstance(answer, Response):
            return self._guard(answer, request.path, started)
        self._exchange.metrics.answered(request.path, perf_counter() - started)
        return answer

    def _guarded(self, make: Callable[[], Response], path: str, started: float) -> Response:
        try:
            return make()
        except _EXPECTED as error:
            return self._explain(error)
        finally:
            self._exchange.metrics.answered(path, perf_counter() - started)

    async def _guard(self, answer: Awaitable[Response], path: str, started: float) -> Response:
        try:
            return await answer
        except _EXPECTED as error:
            return self._explain(error)
        finally:
            self._exchange.metrics.answered(path, perf_counter() - started)

    @staticmethod
    def _explain(error: Exception) -> Response:
        if isinstance(error, _RefusalError):
            return error.response
        if isinstance(error, InvalidSettingsError):
            return error_response(422, str(error))
        if isinstance(error, StoreUnavailableError):
            return error_response(503, f"{error}; try again")
        return error_response(500, str(error))

    # -- bodies ------------------------------------------------------------------------------------------------------

    def _inflated(self, request: Request) -> bytes | memoryview:
        encoding = request.headers.get("content-encoding", "").strip().lower()
        if encoding in ("", "identity"):
            return request.body
        if encoding not in ("gzip", "x-gzip"):
            raise _refuse(415, f"Content-Encoding {encoding} is not known here; send gzip or plain JSON")
        rest: bytes | memoryview = request.body
        if len(rest) * _MOST_TIMES <= self._max_body and (whole := _inflate_at_once(rest)) is not None:
            return whole
        parts: list[bytes] = []
        size = 0
        try:
            while rest:
                inflater = isal_zlib.decompressobj(_GZIP_WBITS)
                parts.append(inflater.decompress(rest, self._max_body + 1 - size))
                size += len(parts[-1])
                if size > self._max_body:
                    raise _refuse(413, f"the body is larger than {self._max_body} bytes when inflated")
                if not inflater.eof:
                    raise _refuse(400, "the gzip body is cut short")
                rest = inflater.unused_data
        except _INFLATE_ERROR as error:
            raise _refuse(400, f"the gzip body is damaged: {error}") from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _object(self, request: Request) -> dict[str, Any]:
        try:
            content = orjson.loads(self._inflated(request))
        except orjson.JSONDecodeError as error:
            raise _refuse(400, f"the body is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise _refuse(422, "the body must be a JSON object")
        return content

    @staticmethod
    def _identity(request: Request) -> tuple[str, str]:
        return request.headers.get(_ENVIRONMENT, ""), request.headers.get(_INSTANCE, "")

    # -- health ------------------------------------------------------------------------------------------------------

    def _readyz(self, _: Request) -> Response:
        return error_response(503, "shutting down") if self._exchange.closed else json_response({"status": "ready"})

    def _metrics_text(self, _: Request) -> Response:
        return Response(body=self._exchange.metrics.render(), content_type="text/plain; version=0.0.4; charset=utf-8")

    # -- environments ------------------------------------------------------------------------------------------------

    async def _register_env(self, request: Request) -> Response:
        fields = self._object(request)
        number = _number(fields, "max_token_length", int)
        group_size = _number(fields, "group_size", int)
        if group_size < 1:
            raise _refuse(422, f"group_size is {group_size}; it must be at least 1")
        weight = float(_number(fields, "weight", float, default=1.0))
        share = fields.get("min_batch_allocation")
        if share is not None and not 0 <= (share := float(_number(fields, "min_batch_allocation", float))) <= 1:
            raise _refuse(422, f"min_batch_allocation is {share}; it must be between 0 and 1")
        desired = fields.get("desired_name")
        if desired is not None and not isinstance(desired, str):
            raise _refuse(422, "desired_name must be a string")
        ledger = self._exchange.ledger
        if not ledger.started:
            return json_response({"status": "wait for trainer to start"})
        name, instance = self._identity(request)
        environment = await self._exchange.register_environment(
            name=name,
            instance=instance,
            desired_name=desired or name or "environment",
            max_token_length=number,
            weight=weight,
            group_size=group_size,
            min_batch_allocation=share,
        )
        ledger.registry.heard(environment.id)
        return json_response(
            {
                "status": "success",
                "env_id": environment.id,
                "wandb_name": environment.wandb_name,
                "checkpoint_dir": ledger.settings.checkpoint_dir,
                "starting_step": ledger.step,
                "checkpoint_interval": ledger.settings.save_checkpoint_interval,
                "num_steps": ledger.settings.total_steps,
            }
        )

    async def _disconnect_env(self, request: Request) -> Response:
        env_id = _number(self._object(request), "env_id", int)
        if await self._exchange.disconnect(env_id):
            return json_response({"status": "success"})
        return json_response({"status": "failure", "error": f"no environment has the id {env_id}"})

    def _status_env(self, request: Request) -> Response:
        ledger = self._exchange.ledger
        env_id: int | None = None
        if request.body:
            env_id = _number(self._object(request), "env_id", int)
            ledger.registry.heard(env_id)
        environment = ledger.registry.environments.get(env_id) if env_id is not None else None
        return json_response(
            {
                "current_step": ledger.step,
                "queue_size": 0,
                "unallocated_fraction": 1.0,
                "self_queue_size": 0,
                "max_group_size": environment.group_size if environment else 1,
                "env_weight": 1.0,
            }
        )

    def _wandb_info(self, _: Request) -> Response:
        settings = self._exchange.ledger.settings
        return json_response({"group": settings.wandb_group, "project": settings.wandb_project})

    def _info(self, _: Request) -> Response:
        settings = self._exchange.ledger.settings
        return json_response({"batch_size": settings.batch_size, "max_token_len": settings.max_token_length})

    # -- posts -------------------------------------------------------------------------------------------------------

    def _scored_data(self, request: Request) -> Later:
        environment, instance = self._identity(request)
        post = self._read(self._inflated(request), environment, instance)
        request.body = b""  # the next body is received into the same memory, which is in the processor's caches
        storing = self._store(post, environment, instance, request.headers.get(_POST, ""), request.hung_up)

        def answer() -> Response:
            stored = storing.result()
            body = _RECEIVED_AGAIN if stored.duplicate else _RECEIVED
            return Response(body=body, delivered=self._heard(stored))

        return Later(storing, answer)

    def _heard(self, *stored: Stored) -> Callable[[bool], None]:
        def heard(arrived: bool) -> None:
            if not arrived:
                for one in stored:
                    self._exchange.answer_lost(one)

        return heard

    def _read(self, body: bytes | memoryview, environment: str, instance: str) -> Post:
        exchange = self._exchange
        try:
            element, taken = parse_group(body)
            find = exchange.find_versions(instance)
            return read_post(element, exchange.limits(), find, taken=taken, prompts=bool(instance))
        except InvalidPostError as error:
            exchange.refused(error, _claimed_id(body), environment, instance)
            raise _invalid(error) from None

    def _store(
        self, post: Post, environment: str, instance: str, post_id: str, hung_up: Callable[[], bool]
    ) -> asyncio.Future[Stored]:
        if post.env_id is not None:
            self._exchange.ledger.registry.heard(post.env_id)
        environment, instance = self._exchange.environment_of(post.env_id, environment, instance)
        self._exchange.metrics.unknown_versions(post.unknown)
        return self._exchange.post(post, environment, instance, post_id, hung_up)

    async def _scored_data_list(self, request: Request) -> Response:
        environment, instance = self._identity(request)
        posts, rejected = self._read_list(self._inflated(request), environment, instance)
        if rejected and not posts:
            raise _refuse(422, f"[{rejected[0]['index']}]: {rejected[0]['message']}", rejected=rejected)
        post_id = request.headers.get(_POST, "")
        stored = await asyncio.gather(
            *(
                self._store(post, environment, instance, f"{post_id}/{index}" if post_id else "", request.hung_up)
                for index, post in posts
            )
        )
        answer: dict[str, object] = {"status": "received", "groups_processed": len(posts)}
        if rejected:
            answer["rejected"] = rejected
        response = json_response(answer)
        response.delivered = self._heard(*stored)
        return response

    def _read_list(
        self, body: bytes | memoryview, environment: str, instance: str
    ) -> tuple[list[tuple[int, Post]], list[dict[str, object]]]:
        """Good items with their places, and what is wrong with the others."""
        try:
            content = parse(body)
        except InvalidPostError as error:
            self._exchange.refused(error, _claimed_id(body), environment, instance)
            raise _invalid(error) from None
        if not isinstance(content, simdjson.Array):
            raise _refuse(422, "the body must be a list of groups")
        posts: list[tuple[int, Post]] = []
        rejected: list[dict[str, object]] = []
        for index, element in enumerate(content):
            try:
                posts.append(
                    (index, read_post(element, self._exchange.limits(), self._exchange.find_versions(instance)))
                )
            except InvalidPostError as error:
                self._exchange.refused(error, _claimed_id(_text_of(element)), environment, instance)
                rejected.append({"index": index, "message": str(error), "loc": [index, *error.where]})
        return posts, rejected

    async def _latest_example(self, _: Request) -> Response:
        payload = await self._exchange.latest_payload()
        if payload is not None:
            return Response(body=batches.to_json(payload))
        keys = (
            "tokens",
            "masks",
            "scores",
            "advantages",
            "ref_logprobs",
            "generation_params",
            "inference_logprobs",
            "messages",
            "images",
        )
        return json_response({key: [] for key in keys})

    # -- plain trainers ----------------------------------------------------------------------------------------------

    async def _register(self, request: Request) -> Response:
        fields = self._object(request)
        settings = Settings(
            batch_size=_number(fields, "batch_size", int),
            max_token_length=_number(fields, "max_token_len", int),
            total_steps=_number(fields, "num_steps", int),
            checkpoint_dir=_text(fields, "checkpoint_dir"),
            save_checkpoint_interval=_number(fields, "save_checkpoint_interval", int),
            wandb_project=_text(fields, "wandb_project"),
            wandb_group=_text(fields, "wandb_group"),
        )
        if settings.batch_size < 1:
            raise _refuse(422, f"batch_size is {settings.batch_size}; it must be at least 1")
        starting_step = _number(fields, "starting_step", int)
        if starting_step < 0:
            raise _refuse(422, f"starting_step is {starting_step}; it must not be negative")
        result = await self._exchange.register_trainer(settings, starting_step)
        queued = self._exchange.ledger.sums()["queued"]
        # 53 bits: the number must survive JSON readers that know only doubles.
        return json_response({"uuid": uuid.uuid4().int >> 75, **result, "queue": "kept", "queued_groups": queued})

    async def _batch(self, _: Request) -> Response:
        exchange = self._exchange
        if exchange.ledger.epoch == 0 or (exchange.ledger.plain and exchange.ledger.settings.batch_size < 1):
            return json_response(
                {"status": "error", "message": "Trainer not registered. Call /register first.", "batch": []}
            )
        if not exchange.ledger.plain:
            raise _refuse(HTTPStatus.CONFLICT, "a trainer that leases its batches over gRPC holds this run", batch=[])
        batch = await exchange.next_plain_batch()
        if batch is None:
            return json_response({"batch": None})
        number, epoch = batch.number, batch.epoch
        return Response(
            stream=self._batch_text(batch), delivered=lambda arrived: exchange.delivered(number, epoch, arrived)
        )

    async def _batch_text(self, batch: Batch) -> AsyncIterator[bytes]:
        groups = [self._exchange.ledger.groups[number] for number in batch.groups]
        before = b'{"batch":['
        for group in groups:
            (payload,) = await self._exchange.payloads((group,))
            yield before + batches.to_json(payload)
            before = b","
        yield b"]}"

    async def _reset_data(self, _: Request) -> Response:
        if self._exchange.ledger.epoch and not self._exchange.ledger.plain:
            raise _refuse(HTTPStatus.CONFLICT, "a trainer that leases its batches over gRPC holds this run")
        await self._exchange.reset()
        return Response(body=b"Reset successful", content_type="text/plain; charset=utf-8")

    # -- looking in --------------------------------------------------------------------------------------------------

    def _status(self, _: Request) -> Response:
        ledger = self._exchange.ledger
        sums = ledger.sums()
        return json_response(
            {
                "current_step": ledger.step,
                "queue_size": sums["queued"],
                "epoch": ledger.epoch,
                "holder": ledger.holder,
                "waiting_for": self._exchange.waiting_for() if ledger.started else "no trainer has started",
                "ledger": sums,
                "dropped": dict(ledger.reasons),
                "environments": self._environments(),
                "pacing": self._exchange.pacing,
                "complaints": [warning.message for warning in self._exchange.starvation.warnings],
            }
        )

    def _environments(self) -> list[dict[str, object]]:
        """What each environment was asked for, what it gave, and whether it is there."""
        ledger = self._exchange.ledger
        targets, realised = ledger.mix.targets(ledger.shares()), ledger.mix.realised()
        queued = Counter[str]()
        for (name, _), count in ledger.queue.sizes().items():
            queued[name] += count
        refusals = self._exchange.refusals.environments
        registered = (environment.name for environment in ledger.registry.environments.values())
        names = {*targets, *queued, *refusals, *registered}
        return [
            {
                "name": name,
                "share": realised.get(name, 0.0),
                "target_share": targets.get(name),
                "queued_groups": queued[name],
                "duplicate_prompts": self._exchange.duplicate_prompts[name],
                "refused_posts": _plain(refusals[name]) if name in refusals else None,
                "instances": [
                    {
                        "id": environment.id,
                        "instance": environment.instance,
                        "wandb_name": environment.wandb_name,
                        "alive": ledger.registry.alive(environment.id),
                        "silent_seconds": round(ledger.registry.silent_seconds(environment.id), 1),
                    }
                    for environment in ledger.registry.environments.values()
                    if environment.name == name
                ],
            }
            for name in sorted(names)
        ]

    def _ledger(self, request: Request) -> Response:
        after, limit = _query(request, "after", 0), min(_query(request, "limit", 100), 1000)
        ledger = self._exchange.ledger
        rows = []
        for number in range(after + 1, after + 1 + limit):
            group = ledger.groups.get(number)
            if group is not None:
                rows.append(
                    {
                        "id": number,
                        "environment": group.environment,
                        "instance": group.instance,
                        "state": group.state,
                        "sequences": group.sequences,
                        "tokens": group.tokens,
                        "oldest": list(group.oldest) if group.oldest else None,
                        "batch": group.batch,
                        "epoch": group.epoch,
                        "step": group.step,
                        "reason": group.reason,
                        "stored_at": group.stored_at,
                    }
                )
        last = next(reversed(ledger.groups), 0)
        more = after + limit if after + limit < last else None
        return json_response({"sums": ledger.sums(), "dropped": dict(ledger.reasons), "entries": rows, "next": more})


def _plain(refused: Refused) -> dict[str, object]:
    return {"count": refused.count, "last": refused.last, "last_at": refused.last_at}


def _text_of(element: Any) -> bytes:
    if not isinstance(element, simdjson.Object):
        return b""
    text: Any = element.mini
    return bytes(text)


def _claimed_id(text: bytes | memoryview) -> int | None:
    """Whose a post is that could not be read, as far as its text tells."""
    found = _ENV_ID.search(text)
    return int(found[1]) if found else None


def _inflate_at_once(body: bytes | memoryview) -> bytes | None:
    """The usual body, which is one gzip member that says at its end how long its text is; None = look closer."""
    size = int.from_bytes(body[-4:], "little")
    if size > len(body) * _MOST_TIMES:
        return None
    try:
        whole: bytes = isal_zlib.decompress(body, _GZIP_WBITS, size + _SLACK)
    except _INFLATE_ERROR:
        return None
    return whole if len(whole) == size else None


def _number(fields: dict[str, Any], name: str, kind: type, default: float | None = None) -> Any:
    value = fields.get(name, default)
    if value is None:
        raise _refuse(422, f"{name} is missing")
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise _refuse(422, f"{name} is {json.dumps(value)}; it must be {'an integer' if kind is int else 'a number'}")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise _refuse(422, f"{name} is {'missing' if value is None else json.dumps(value)}; it must be a string")
    return value


def _query(request: Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isdecimal():
        raise _refuse(422, f"{name} is {text!r}; it must be a number")
    return int(text)
