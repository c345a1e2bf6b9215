"""The gateway's HTTP routes."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from aiohttp import web

from tinker_atropos.gateway import metrics as prometheus
from tinker_atropos.gateway.errors import RequestError, error_body
from tinker_atropos.gateway.generate import GaveUpError, Generator, NotRecordedError
from tinker_atropos.gateway.generation import Generated
from tinker_atropos.gateway.metrics import Metrics
from tinker_atropos.gateway.openai_requests import (
    OpenAIRequest,
    chat_request,
    completion_request,
    health_probe,
)
from tinker_atropos.gateway.openai_responses import (
    chat_response,
    completion_response,
    events,
    fingerprint,
    probe_response,
)
from tinker_atropos.gateway.pacing import Caller
from tinker_atropos.gateway.policies import Policies
from tinker_atropos.gateway.sglang_api import GenerateRequest, generate_request, generate_response
from tinker_atropos.gateway.text import Text
from tinker_atropos.protocol.identity import AUTHORIZATION_HEADER, ENVIRONMENT_HEADER, INSTANCE_HEADER, bearer

POLICY_HEADER = "X-Tinker-Atropos-Policy"
"""Of an answer: the policy version (epoch/step) that sampled it."""

LARGEST_BODY = 256 * 2**20

_OPEN_PATHS = frozenset({"/health", "/healthz", "/readyz", "/metrics"})
"""Paths that tell no secret and cost nothing: probes and Prometheus know no token."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_log = logging.getLogger(__name__)


class Gateway:
    """State behind the routes. The tokenizer comes later than the first request may."""

    def __init__(
        self, generator: Generator, policies: Policies, metrics: Metrics, *, base_model: str, token: str | None
    ) -> None:
        self._generator = generator
        self._policies = policies
        self._metrics = metrics
        self._base_model = base_model
        self._token = token
        loop = asyncio.get_running_loop()
        self._text: asyncio.Future[Text] = loop.create_future()
        self._archive: asyncio.Future[bytes] = loop.create_future()
        self._started = int(time.time())

    def has_tokenizer(self, text: Text, archive: bytes) -> None:
        self._text.set_result(text)
        self._archive.set_result(archive)

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._middleware], client_max_size=LARGEST_BODY)
        app.router.add_get("/health", self._health)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/metrics", self._metrics_text)
        app.router.add_get("/tokenizer", self._tokenizer)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._model)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/generate", self._generate)
        return app

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await self._guarded(request, handler)
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        self._metrics.requests.labels(route, str(response.status)).inc()
        return response

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._token is not None and request.path not in _OPEN_PATHS:
            given = request.headers.get(AUTHORIZATION_HEADER, "")
            if not hmac.compare_digest(given.encode(), bearer(self._token).encode()):
                message = "the run's token is missing or wrong; environments reach the gateway through their relay"
                return _json(error_body(message, 401, code="invalid_api_key"), 401)
        try:
            return await handler(request)
        except RequestError as error:
            return _json(error.body(), error.status)
        except GaveUpError as error:
            return _json(error_body(str(error), 503), 503)
        except NotRecordedError as error:
            _log.error("%s", error)
            return _json(error_body(str(error), 500), 500)
        except web.HTTPException as error:
            # Unknown paths, wrong methods, bodies that are too large.
            message = f"{request.method} {request.path}: {error.reason}"
            headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
            return _json(error_body(message, error.status), error.status, headers)
        except asyncio.CancelledError:
            raise
        except Exception:
            _log.exception("%s %s failed", request.method, request.path)
            return _json(error_body("internal error of the gateway; its log has the details", 500), 500)

    async def _health(self, _: web.Request) -> web.Response:
        active = self._policies.active
        return _json(
            {
                "status": "ok",
                "policy": None
                if active is None
                else {
                    "epoch": active.policy.version.epoch,
                    "step": active.policy.version.step,
                    "sampler_path": active.policy.sampler_path,
                },
                "tokenizer": self._text.done(),
                "problem": self._policies.problem or None,
            }
        )

    async def _ready(self, _: web.Request) -> web.Response:
        """Ready does not mean that there is a policy: requests may come and wait for it, and the trainer that will
        publish the first one reaches the trajectory server through the same pod's readiness."""
        if self._text.done():
            return _json({"status": "ready"})
        return _json({"status": "waiting", "for": "the tokenizer"}, 503)

    async def _metrics_text(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": prometheus.CONTENT_TYPE})

    async def _tokenizer(self, _: web.Request) -> web.Response:
        return web.Response(body=await asyncio.shield(self._archive), content_type="application/x-tar")

    def _model_object(self) -> dict[str, Any]:
        return {"id": self._base_model, "object": "model", "created": self._started, "owned_by": "tinker"}

    async def _models(self, _: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._model_object()]})

    async def _model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name != self._base_model:
            raise RequestError(f"there is no model {name!r} here, only {self._base_model!r}", param="model", status=404)
        return _json(self._model_object())

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        if (kind := health_probe(body)) is not None:
            return self._probe(kind, body)
        asked = completion_request(body)
        results, text = await self._run(request, asked.prompts, asked, "prompt")
        response = completion_response(asked, results, text, model=self._name(asked), created=int(time.time()))
        return await self._send(request, asked, response, results)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await _body(request)
        if (kind := health_probe(body)) is not None:
            return self._probe(kind, body)
        asked = chat_request(body)
        text = await self._tokenizer_text()
        prompt = await text.run(lambda: text.encode_chat(asked.messages, asked.template_options))
        results, text = await self._run(request, (prompt,), asked, "messages")
        response = chat_response(asked, results, text, model=self._name(asked), created=int(time.time()))
        return await self._send(request, asked, response, results)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked = generate_request(await _body(request))
        results, text = await self._run(request, asked.prompts, asked, asked.field)
        return _json(generate_response(asked, results, text), headers={POLICY_HEADER: _versions(results)})

    async def _run(
        self,
        request: web.Request,
        prompts: Sequence[str | list[int]],
        asked: OpenAIRequest | GenerateRequest,
        field: str,
    ) -> tuple[list[Generated], Text]:
        text = await self._tokenizer_text()
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        encoded = iter(await text.run(lambda: [text.encode(prompt) for prompt in texts]) if texts else [])
        tokens = [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]
        results = await self._generator.generate(
            tokens,
            asked.samples,
            asked.sampling,
            caller=Caller(request.headers.get(ENVIRONMENT_HEADER, ""), request.headers.get(INSTANCE_HEADER, "")),
            text=text,
            field=field,
        )
        return results, text

    async def _tokenizer_text(self) -> Text:
        """Waits until the tokenizer is there. Shielded: a client that leaves must not cancel it for all."""
        return await asyncio.shield(self._text)

    def _probe(self, kind: str, body: object) -> web.Response:
        self._metrics.probes.inc()
        model = body.get("model") if isinstance(body, dict) else None
        return _json(probe_response(kind, model=str(model or self._base_model), created=int(time.time())))

    def _name(self, asked: OpenAIRequest) -> str:
        return asked.model or self._base_model

    async def _send(
        self, request: web.Request, asked: OpenAIRequest, response: dict[str, Any], results: Sequence[Generated]
    ) -> web.StreamResponse:
        headers = {POLICY_HEADER: _versions(results)}
        if not asked.stream:
            return _json(response, headers=headers)
        stream = web.StreamResponse(
            headers={**headers, "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )
        await stream.prepare(request)
        for event in events(response, usage=asked.stream_usage):
            await stream.write(event)
        await stream.write_eof()
        return stream


def _versions(results: Sequence[Generated]) -> str:
    return fingerprint(results).replace("policy-", "")


async def _body(request: web.Request) -> object:
    try:
        raw = await request.read()
    except ValueError as error:  # what the decompressor raises
        raise RequestError(f"the body cannot be decompressed: {error}") from error
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not JSON: {error}") from error


def _json(content: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=orjson.dumps(content), status=status, headers=headers, content_type="application/json")
