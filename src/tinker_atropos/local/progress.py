"""Receives the trainer's progress reports in local mode, as the operator does in a cluster."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from pydantic import ValidationError

from tinker_atropos.protocol.progress import MAX_BODY, PATH, ProgressAnswer, ProgressReport


async def serve_progress(port: int, on_report: Callable[[ProgressReport], None]) -> web.AppRunner:
    """Listen on loopback; `on_report` is called with each report. The caller cleans the runner up."""

    async def post(request: web.Request) -> web.Response:
        try:
            report = ProgressReport.model_validate_json(await request.read())
        except ValidationError as error:
            return web.json_response({"message": str(error)}, status=422)
        on_report(report)
        return web.Response(text=ProgressAnswer().model_dump_json(by_alias=True), content_type="application/json")

    application = web.Application(client_max_size=MAX_BODY)
    application.router.add_post(PATH, post)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner
