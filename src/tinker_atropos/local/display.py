"""What a person sees while a run goes on: a progress bar on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from tinker_atropos.protocol.progress import ProgressReport


class Display(Protocol):
    """Shows reports and messages."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def report(self, report: ProgressReport) -> None: ...
    def message(self, text: str) -> None: ...


class Rates:
    """Tokens per second and time left, from the reports' own numbers."""

    def __init__(self) -> None:
        self._first: tuple[float, int, int] | None = None
        self.tokens_per_second: float | None = None
        self.seconds_left: float | None = None

    def update(self, report: ProgressReport, now: float) -> None:
        """now: seconds of a monotonic clock."""
        tokens = report.tokens.sampled
        if self._first is None:
            if report.step > 0:
                self._first = (now, report.step, tokens)
            return
        then, step, before = self._first
        if report.step > step and now > then:
            self.tokens_per_second = (tokens - before) / (now - then)
            self.seconds_left = (report.total_steps - report.step) * (now - then) / (report.step - step)


def display(console: Console, name: str, total_steps: int) -> Display:
    """The display that fits the console."""
    return _Bar(console, name, total_steps) if console.is_terminal else _Lines(console, name)


class _Left(ProgressColumn):
    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        return Text("--:--" if left is None else f"{int(left) // 60:02d}:{int(left) % 60:02d} left", style="cyan")


class _Bar:
    def __init__(self, console: Console, name: str, total_steps: int) -> None:
        self._rates = Rates()
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[reward]}"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            _Left(),
            TextColumn("[dim]{task.fields[note]}"),
            console=console,
        )
        self._task = self._progress.add_task(name, total=total_steps, reward="", rate="", left=None, note="starting")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def report(self, report: ProgressReport) -> None:
        self._rates.update(report, time.monotonic())
        rate = self._rates.tokens_per_second
        self._progress.update(
            self._task,
            completed=report.step,
            total=report.total_steps,
            reward=f"reward {report.reward.mean:.3f}" if report.reward else "",
            rate=f"{rate:,.0f} tokens/s" if rate is not None else "",
            left=self._rates.seconds_left,
            note=report.message or report.phase,
        )

    def message(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)


class _Lines:
    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = name
        self._rates = Rates()
        self._last: tuple[int, str] = (-1, "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def report(self, report: ProgressReport) -> None:
        self._rates.update(report, time.monotonic())
        note = "" if report.phase == "Training" else report.message or report.phase
        if (report.step, note) == self._last:
            return
        self._last = (report.step, note)
        parts = [f"{self._name}: step {report.step}/{report.total_steps}"]
        if report.reward:
            parts.append(f"reward {report.reward.mean:.3f}")
        if self._rates.tokens_per_second is not None:
            parts.append(f"{self._rates.tokens_per_second:,.0f} tokens/s")
        if self._rates.seconds_left is not None:
            parts.append(f"{self._rates.seconds_left:.0f} s left")
        if note:
            parts.append(note)
        self.message(", ".join(parts))

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
