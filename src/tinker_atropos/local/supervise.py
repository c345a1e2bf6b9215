"""Runs a run file on this machine: starts its programs, watches them, ends them all, and says honestly how it went."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import httpx

from tinker_atropos.local.display import Display
from tinker_atropos.local.folder import RunFolder
from tinker_atropos.local.preflight import search_path
from tinker_atropos.local.processes import Process
from tinker_atropos.local.programs import (
    Folders,
    Ports,
    Program,
    instance_config,
    instances,
    programs,
)
from tinker_atropos.local.progress import serve_progress
from tinker_atropos.protocol import exit_codes
from tinker_atropos.protocol.progress import ProgressReport
from tinker_atropos.run import yaml_text
from tinker_atropos.run.load import RunFile

INTERRUPTED = 130

PASSED_ON = {
    "trainer": (
        *(exit_codes.STARTUP_TIMEOUT, exit_codes.KEY_REFUSED, exit_codes.CONFIG_ERROR),
        *(exit_codes.FENCED, exit_codes.STATE_LOST),
    ),
    "gateway": (exit_codes.KEY_REFUSED, exit_codes.CONFIG_ERROR),
}
"""Exit statuses of our programs that say what kind of end it was, and are the run's; every other failure is 1."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    status: int
    """Exit status: 0 only when the final weights are saved."""
    message: str
    report: ProgressReport | None
    failed: Process | None = None


async def supervise(
    run: RunFile, folder: RunFolder, api_key: str | None, working_directory: Path, display: Display
) -> Outcome:
    """Run to the end, or go on with the unfinished run that the folder holds."""
    folders = folder.folders
    ports = Ports.of(_free_ports(Ports.count(run.spec)))
    for instance in instances(run.spec, ports):
        file = folders.environment_file(instance.name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml_text.dump(instance_config(run.spec, instance, folders)))

    newest: list[ProgressReport] = []
    warned: set[tuple[str, str]] = set()

    def on_report(report: ProgressReport) -> None:
        newest[:] = [report]
        if report.warnings is not None:
            for warning in report.warnings:
                if (warning.reason, warning.environment) not in warned:
                    display.message(f"warning: {warning.message}")
            warned.clear()
            warned.update((warning.reason, warning.environment) for warning in report.warnings)
        display.report(report)

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    receiver = await serve_progress(ports.progress, on_report)
    processes: list[Process] = []
    try:
        listed = programs(run, folder.uid, ports, folders, api_key, working_directory)
        status, message, failed = await _watch(listed, folders, processes, stopping, run.spec.deadlines.startup_seconds)
    finally:
        # Reverse order: whoever asks goes before whoever answers.
        await asyncio.shield(_end_all(processes))
        await receiver.cleanup()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
    report = newest[0] if newest else None
    if status == 0 and (report is None or not report.sampler_weights):
        return Outcome(1, "the trainer ended without naming final weights; this is a fault of tinker-atropos", report)
    return Outcome(status, message, report, failed)


async def _watch(
    listed: list[Program], folders: Folders, processes: list[Process], stopping: asyncio.Event, startup_seconds: float
) -> tuple[int, str, Process | None]:
    variables = {"PATH": search_path()}
    stop = asyncio.create_task(stopping.wait())
    waits: dict[asyncio.Task[int], Process] = {}
    starters: set[asyncio.Task[None]] = set()

    async def start(program: Program) -> None:
        process = Process(program, folders.logs / f"{program.name.replace(' ', '-')}.log")
        if program.after:
            await _answers(program.after, startup_seconds)
        processes.append(process)
        await process.start(variables)
        waits[asyncio.create_task(process.wait())] = process

    try:
        for program in listed:
            if program.after is None:
                await start(program)
            else:
                starters.add(asyncio.create_task(start(program)))
        while True:
            done, _ = await asyncio.wait({stop, *waits, *starters}, return_when=asyncio.FIRST_COMPLETED)
            if stop in done:
                return INTERRUPTED, "interrupted", None
            for task in done & starters:
                starters.discard(task)
                task.result()
            ended = [waits.pop(task) for task in done if task in waits]  # type: ignore[arg-type]
            verdict = await _verdict(ended)
            if verdict is not None:
                return verdict
    except TimeoutError:  # before OSError, of which it is a kind
        waited = f"no environment could start within {startup_seconds:g} s (deadlines.startup)"
        return exit_codes.STARTUP_TIMEOUT, f"{waited}: the gateway gave no tokenizer", _first_slow(processes)
    except OSError as error:
        name = processes[-1].program.name if processes else "a program"
        return 1, f"{name} could not be started: {error.strerror or error} ({error.filename})", None
    finally:
        stop.cancel()
        for starter in starters:
            starter.cancel()
        for wait in waits:
            wait.cancel()


async def _verdict(ended: list[Process]) -> tuple[int, str, Process | None] | None:
    trainer = next((process for process in ended if process.program.name == "trainer"), None)
    if trainer is not None and await trainer.wait() == 0:
        return 0, "complete", None
    for process in ended:
        status = await process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        if status == 0 and process.program.name.startswith("environment"):
            how += "; an environment goes on until the run ends, as `serve` of an Atropos environment does"
        passed_on = PASSED_ON.get(process.program.name, ())
        return (status if status in passed_on else 1), f"{process.program.name} {how}", process
    return None


def _first_slow(processes: list[Process]) -> Process | None:
    return next((process for process in processes if process.program.name.startswith("gateway")), None)


async def _answers(url: str, seconds: float) -> None:
    async with asyncio.timeout(seconds), httpx.AsyncClient(timeout=2, trust_env=False) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                if (await client.get(url)).status_code == 200:
                    return
            await asyncio.sleep(0.1)


async def _end_all(processes: list[Process]) -> None:
    environments = [
        process for process in processes if process.program.name.startswith(("environment", "relay", "trainer"))
    ]
    await asyncio.gather(*(process.end() for process in environments))
    await asyncio.gather(*(process.end() for process in processes if process not in environments))


def _free_ports(count: int) -> list[int]:
    """Free loopback ports, held together while they are chosen so that none comes twice."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()
