"""Values of the command line that several programs take."""

from __future__ import annotations

from typing import Any

import click
import pytest

from tinker_atropos.protocol.options import CommandLine, FiniteRange, HostPort, HttpUrl

TAKEN: list[tuple[Any, str, Any]] = [
    (HostPort(), "127.0.0.1:8002", "127.0.0.1:8002"),
    (HostPort(), "tar-run-api.team.svc:8002", "tar-run-api.team.svc:8002"),
    (HostPort(), "[::1]:8002", "[::1]:8002"),
    (HostPort(), "grpc://host:1/", "host:1"),
    (HttpUrl(), "http://127.0.0.1:8000", "http://127.0.0.1:8000"),
    (HttpUrl(), "https://own.example/path", "https://own.example/path"),
    (FiniteRange(min=0), "0.5", 0.5),
    (CommandLine(), "python 'my env.py' --fast", ("python", "my env.py", "--fast")),
    (CommandLine(), "", ()),
]

REFUSED: list[tuple[Any, str, str]] = [
    *(
        (HostPort(), text, "is no HOST:PORT")
        for text in ("", "host", ":8002", "host:", "host:x", "host:0", "host:65536")
    ),
    *(
        (HostPort(), text, "is no HOST:PORT")
        for text in ("https://host:1", "a b:1", "user@host:1", "host:1/path", "::1:2")
    ),
    *((HttpUrl(), text, "is no URL") for text in ("", "host:80", "ftp://host", "http://", "http://a:x", "http://a b")),
    *((HttpUrl(), text, "is no URL") for text in ("http://a:99999", "http://a:0", "//host")),
    (FiniteRange(min=0), "nan", "nan is not a number of this range"),
    (FiniteRange(min=0), "inf", "inf is not a number of this range"),
    (FiniteRange(min=0), "-1", "not in the range"),
    (FiniteRange(min=0), "x", "not a valid float"),
    (CommandLine(), "python 'x", "cannot be split into words: no closing quotation"),
]


@pytest.mark.parametrize(("kind", "text", "value"), TAKEN)
def test_taken(kind: Any, text: str, value: Any) -> None:
    assert kind.convert(text, None, None) == value


@pytest.mark.parametrize(("kind", "text", "message"), REFUSED)
def test_refused(kind: Any, text: str, message: str) -> None:
    with pytest.raises(click.BadParameter, match=message):
        kind.convert(text, None, None)
