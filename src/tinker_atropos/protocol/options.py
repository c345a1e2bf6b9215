"""Kinds of command-line values that several programs take, with what is wrong with one said in one way."""

from __future__ import annotations

import math
import re
import shlex
from typing import Any
from urllib.parse import urlsplit

import click


class FiniteRange(click.FloatRange):
    """A float range that `nan` is not within, which compares as neither too small nor too large."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{number} is not a number of this range; give a finite one.", param, ctx)
        return number


class HostPort(click.ParamType):  # type: ignore[type-arg]
    """host:port of a gRPC server; a scheme that people put before it is taken off."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).removeprefix("http://").removeprefix("grpc://").rstrip("/")
        host, _, port = text.rpartition(":")
        bare = re.fullmatch(r"[^\s/:@]+|\[[0-9a-fA-F:.]+\]", host)
        if not bare or not port.isdecimal() or not 0 < int(port) < 65536:
            self.fail(f"{value!r} is no HOST:PORT, such as 127.0.0.1:8002.", param, ctx)
        return text


class HttpUrl(click.ParamType):  # type: ignore[type-arg]
    """http(s) address of a server."""

    name = "URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            parts = urlsplit(text)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and not re.search(r"\s", text)
            good = good and parts.port != 0
        except ValueError:
            good = False
        if not good:
            self.fail(f"{value!r} is no URL; give one such as http://127.0.0.1:8000.", param, ctx)
        return text


class CommandLine(click.ParamType):  # type: ignore[type-arg]
    """A program and its arguments in one text, as a shell splits it."""

    name = "COMMAND"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(shlex.split(str(value)))
        except ValueError as error:
            self.fail(f"{value!r} cannot be split into words: {str(error).lower()}.", param, ctx)
