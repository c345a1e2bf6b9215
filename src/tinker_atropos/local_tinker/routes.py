"""The HTTP side: every route of the Tinker API that this server has, and a few of its own under /local/v1."""

from __future__ import annotations

import asyncio
import datetime as dt
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from tinker_atropos.local_tinker import requests, wire
from tinker_atropos.local_tinker.checkpoints import SAMPLER, TRAINING
from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.faults import Fault, Faults
from tinker_atropos.local_tinker.service import Service

logger = logging.getLogger(__name__)

LONG_POLL = 10.0
CONFIG_REFRESH = 300
_MOST_LISTED = 1000

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

SERVICE: web.AppKey[Service] = web.AppKey("service", Service)
API_KEY: web.AppKey[str] = web.AppKey("api_key", str)
TOKENIZER: web.AppKey[bytes] = web.AppKey("tokenizer", bytes)


def _error(message: str, status: int) -> web.Response:
    return web.json_response({"detail": message, "error": message, "category": "user"}, status=status)


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What the caller did wrong comes back as a sentence; what broke here is logged and says where to look."""
    try:
        return await handler(request)
    except UserError as error:
        return _error(error.message, error.status)
    except web.HTTPException as error:
        if error.status in (404, 405):
            return _error(f"{request.method} {request.path} is not offered by the local server", error.status)
        raise
    except Exception:
        logger.exception("%s %s failed", request.method, request.path)
        return web.json_response(
            {"detail": "internal error; see the log of local-tinker", "category": "server"}, status=500
        )


@web.middleware
async def authorization(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Any key of the right form will do, or exactly the one that was set."""
    if request.path.startswith("/api/v1/") and request.path != "/api/v1/healthz":
        given, wanted = request.headers.get("X-API-Key", ""), request.app[API_KEY]
        if wanted and not hmac.compare_digest(given.encode(), wanted.encode()):
            return _error(
                "X-API-Key: not the key of this server; set TINKER_API_KEY to the value of its --api-key", 401
            )
        if not wanted and not given.startswith("tml-"):
            return _error("X-API-Key: missing or not of the form tml-…; set TINKER_API_KEY to e.g. tml-local", 401)
    return await handler(request)


def _promised(request_id: str, model_id: str | None = None, samples: list[str] | None = None) -> web.Response:
    body: dict[str, Any] = {"request_id": request_id}
    if model_id is not None:
        body["model_id"] = model_id
    if samples is not None:
        body["sample_sequence_ids"] = samples
    return web.json_response(body)


# ---------------------------------------------------------------------- clients and sessions


async def healthz(request: web.Request) -> web.Response:
    if not request.app[SERVICE].alive:
        return web.json_response({"status": "the engine has stopped; see the log of local-tinker"}, status=503)
    return web.json_response({"status": "ok"})


async def client_config(_: web.Request) -> web.Response:
    return web.json_response(
        {"pjwt_auth_enabled": False, "parallel_fwdbwd_chunks": True, "proto_compress_fwdbwd": True}
    )


async def dynamic_config(_: web.Request) -> web.Response:
    return web.json_response({"refresh_interval_sec": CONFIG_REFRESH, "sample_cancel_enabled": True})


async def capabilities(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    model = {
        "model_name": service.base_model,
        "max_context_length": service.engine.config.context_length,
        "trainable": True,
        "sampleable": True,
    }
    return web.json_response({"supported_models": [model]})


async def telemetry(_: web.Request) -> web.Response:
    return web.json_response({"status": "accepted"})


async def create_session(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.CreateSession)
    return web.json_response({"session_id": request.app[SERVICE].create_session(body), "type": "create_session"})


async def session_heartbeat(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.SessionHeartbeat)
    if not request.app[SERVICE].heartbeat(body.session_id):
        return _error(f"session_id: {body.session_id} has finished", 410)
    return web.json_response({"type": "session_heartbeat"})


async def finish_session(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.FinishSession)
    reason = str(body.reason.get("type", "finished"))
    request.app[SERVICE].finish_session(request.match_info["session"], reason)
    return web.Response(status=204)


async def list_sessions(request: web.Request) -> web.Response:
    start, end = _page(request)
    sessions = request.app[SERVICE].registry.sessions()
    return web.json_response({"sessions": [session.id for session in sessions[start:end]]})


async def get_session(request: web.Request) -> web.Response:
    registry = request.app[SERVICE].registry
    session = registry.session(request.match_info["session"])
    if session is None:
        raise UserError(f"session {request.match_info['session']!r} is not known here", status=404)
    return web.json_response(
        {
            "training_run_ids": registry.runs_of(session.id),
            "sampler_ids": registry.samplers_of(session.id),
            "user_metadata": session.user_metadata,
            "display_name": session.display_name,
        }
    )


# ---------------------------------------------------------------------- training


async def create_model(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.CreateModel)
    return _promised(*request.app[SERVICE].create_model(body))


async def load_weights(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.LoadWeights)
    return _promised(*request.app[SERVICE].load_weights(body))


async def get_info(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.ModelCall)
    service = request.app[SERVICE]
    model = service.model(body.model_id)
    return web.json_response(
        {
            "type": "get_info",
            "model_id": model.id,
            "model_data": {"arch": "llama", "model_name": service.base_model, "tokenizer_id": None},
            "is_lora": True,
            "lora_rank": model.settings.rank,
            "model_name": service.base_model,
        }
    )


async def unload_model(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.ModelCall)
    request.app[SERVICE].unload_model(body.model_id)
    return web.json_response({"model_id": body.model_id, "type": "unload_model"})


async def forward_backward(request: web.Request) -> web.Response:
    message = wire.parse_forward_backward(await request.read())
    return _promised(*request.app[SERVICE].forward_backward(message))


async def optim_step(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.OptimStep)
    return _promised(*request.app[SERVICE].optim_step(body))


async def save_weights(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.SaveWeights)
    return _promised(*request.app[SERVICE].save_weights(body))


async def save_weights_for_sampler(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.SaveWeightsForSampler)
    return _promised(*request.app[SERVICE].save_weights_for_sampler(body))


# ---------------------------------------------------------------------- sampling and futures


async def create_sampling_session(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.CreateSamplingSession)
    sampler = request.app[SERVICE].create_sampler(body)
    return web.json_response({"type": "create_sampling_session", "sampling_session_id": sampler})


async def get_sampler(request: web.Request) -> web.Response:
    sampler = request.app[SERVICE].sampler(request.match_info["sampler"])
    return web.json_response(
        {"sampler_id": sampler.id, "base_model": sampler.base_model, "model_path": sampler.model_path}
    )


async def asample(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.Sample)
    request_id, samples = request.app[SERVICE].sample(body)
    return _promised(request_id, samples=samples)


async def retrieve_future(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.RetrieveFuture)
    promises = request.app[SERVICE].promises
    promise = promises.find(body.request_id)
    if promise is None:
        # The SDK sends a lost sample again by itself; a lost training call it reports to its caller.
        return _error(f"request_id: {body.request_id} is not known here (the server was restarted since)", 410)
    try:
        async with asyncio.timeout(LONG_POLL):
            await promise.settled.wait()
    except TimeoutError:
        pending = {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}
        return web.json_response(pending, status=408)
    outcome = promise.outcome
    assert outcome is not None
    promises.fetched(promise)
    if outcome.proto is not None:
        return web.Response(body=outcome.proto, content_type=wire.CONTENT_TYPE)
    return web.json_response(outcome.json)


async def cancel_future(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.RetrieveFuture)
    request.app[SERVICE].cancel(body.request_id)
    return web.Response(status=204)


# ---------------------------------------------------------------------- runs and checkpoints


def _page(request: web.Request) -> tuple[int, int]:
    """(start, end) of a listing from `limit` and `offset`."""
    try:
        limit, offset = int(request.query.get("limit", 20)), int(request.query.get("offset", 0))
    except ValueError:
        raise UserError(f"limit and offset must be whole numbers (given: {request.query_string})") from None
    if not (0 <= limit <= _MOST_LISTED and offset >= 0):
        raise UserError(f"limit: {limit} must be 0 to {_MOST_LISTED}, offset: {offset} must not be negative")
    return offset, offset + limit


def _cursor(start: int, end: int, total: int) -> dict[str, int]:
    return {"offset": start, "limit": end - start, "total_count": total}


async def list_runs(request: web.Request) -> web.Response:
    service, (start, end) = request.app[SERVICE], _page(request)
    runs = service.registry.runs()
    shown = [service.run_json(run) for run in runs[start:end]]
    return web.json_response({"training_runs": shown, "cursor": _cursor(start, end, len(runs))})


async def get_run(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    run = service.registry.run(request.match_info["run"])
    if run is None:
        raise UserError(f"training run {request.match_info['run']!r} is not known here", status=404)
    return web.json_response(service.run_json(run))


async def list_run_checkpoints(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    records = service.checkpoints.listed(request.match_info["run"])
    return web.json_response({"checkpoints": [service.checkpoint_json(record) for record in records]})


async def list_checkpoints(request: web.Request) -> web.Response:
    service, (start, end) = request.app[SERVICE], _page(request)
    records = service.checkpoints.listed()[::-1]
    shown = [service.checkpoint_json(record) for record in records[start:end]]
    return web.json_response({"checkpoints": shown, "cursor": _cursor(start, end, len(records))})


def _checkpoint_path(request: web.Request) -> str:
    match = request.match_info
    if match["kind"] not in (TRAINING, SAMPLER):
        raise UserError(f"checkpoint kind {match['kind']!r} is not {TRAINING} or {SAMPLER}", status=404)
    return f"tinker://{match['run']}/{match['kind']}/{match['name']}"


async def delete_checkpoint(request: web.Request) -> web.Response:
    request.app[SERVICE].checkpoints.delete(_checkpoint_path(request))
    return web.Response(status=204)


async def set_checkpoint_ttl(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.TimeToLive)
    request.app[SERVICE].checkpoints.set_ttl(_checkpoint_path(request), body.ttl_seconds)
    return web.Response(status=204)


async def weights_info(request: web.Request) -> web.Response:
    body = await requests.read(request, requests.WeightsInfo)
    return web.json_response(request.app[SERVICE].weights_info(body.tinker_path))


# ---------------------------------------------------------------------- usage


async def billing_events(request: web.Request) -> web.Response:
    service = request.app[SERVICE]
    start, end = _moment(request, "starting_on"), _moment(request, "ending_before")
    return web.json_response(service.meter.events(start, end, service.base_model))


def _moment(request: web.Request, name: str) -> dt.datetime:
    given = request.query.get(name, "")
    try:
        moment = dt.datetime.fromisoformat(given)
    except ValueError:
        raise UserError(f"{name}: {given!r} is not a time such as 2026-01-31T10:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


async def local_usage(request: web.Request) -> web.Response:
    return web.json_response(request.app[SERVICE].meter.totals())


async def local_tokenizer(request: web.Request) -> web.Response:
    return web.Response(body=request.app[TOKENIZER], content_type="application/x-tar")


# ---------------------------------------------------------------------- the application


def make_app(service: Service, *, api_key: str, tokenizer: bytes, faults: Faults | None = None) -> web.Application:
    """All routes. `faults` adds the switch for injected faults."""
    middlewares = [errors, authorization] if faults is None else [errors, faults.middleware, authorization]
    app = web.Application(middlewares=middlewares, client_max_size=wire.MAX_BODY)
    app[SERVICE], app[API_KEY], app[TOKENIZER] = service, api_key, tokenizer
    run, checkpoint = "/api/v1/training_runs/{run}", "/api/v1/training_runs/{run}/checkpoints/{kind}/{name}"
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/api/v1/healthz", healthz),
            web.post("/api/v1/client/config", client_config),
            web.post("/api/v1/client/dynamic_config", dynamic_config),
            web.get("/api/v1/get_server_capabilities", capabilities),
            web.post("/api/v1/telemetry", telemetry),
            web.post("/api/v1/create_session", create_session),
            web.post("/api/v1/session_heartbeat", session_heartbeat),
            web.post("/api/v1/sessions/{session}/finish", finish_session),
            web.get("/api/v1/sessions", list_sessions),
            web.get("/api/v1/sessions/{session}", get_session),
            web.post("/api/v1/create_model", create_model),
            web.post("/api/v1/load_weights", load_weights),
            web.post("/api/v1/get_info", get_info),
            web.post("/api/v1/unload_model", unload_model),
            web.post("/api/v1/forward_backward", forward_backward),
            web.post("/api/v1/optim_step", optim_step),
            web.post("/api/v1/save_weights", save_weights),
            web.post("/api/v1/save_weights_for_sampler", save_weights_for_sampler),
            web.post("/api/v1/create_sampling_session", create_sampling_session),
            web.get("/api/v1/samplers/{sampler}", get_sampler),
            web.post("/api/v1/asample", asample),
            web.post("/api/v1/retrieve_future", retrieve_future),
            web.post("/api/v1/cancel_future", cancel_future),
            web.get("/api/v1/training_runs", list_runs),
            web.get(run, get_run),
            web.get(f"{run}/checkpoints", list_run_checkpoints),
            web.delete(checkpoint, delete_checkpoint),
            web.put(f"{checkpoint}/ttl", set_checkpoint_ttl),
            web.get("/api/v1/checkpoints", list_checkpoints),
            web.post("/api/v1/weights_info", weights_info),
            web.get("/api/v1/billing/usage/events", billing_events),
            web.get("/local/v1/usage", local_usage),
            web.get("/local/v1/tokenizer", local_tokenizer),
        ]
    )
    if faults is not None:
        _add_fault_routes(app, faults)
    return app


def _add_fault_routes(app: web.Application, faults: Faults) -> None:
    async def show(_: web.Request) -> web.Response:
        return web.json_response([fault.model_dump() for fault in faults.waiting])

    async def add(request: web.Request) -> web.Response:
        faults.add(await requests.read(request, Fault))
        return web.Response(status=204)

    async def clear(_: web.Request) -> web.Response:
        faults.clear()
        return web.Response(status=204)

    app.add_routes(
        [
            web.get("/local/v1/faults", show),
            web.post("/local/v1/faults", add),
            web.delete("/local/v1/faults", clear),
        ]
    )
