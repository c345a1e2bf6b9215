"""Why a program cannot listen, in a sentence that names the option."""

from __future__ import annotations

import errno
import socket

import pytest

from tinker_atropos.protocol.listening import CannotListenError


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(errno.EADDRINUSE, "x"),
            "--gateway-port 80: another program listens on h:80; end that one, or give another --gateway-port",
        ),
        (
            OSError(errno.EACCES, "x"),
            "--gateway-port 80: this user may not listen on h:80; give a port above 1023",
        ),
        (OSError(errno.EADDRNOTAVAIL, "x"), "--host h: is no address of this machine"),
        (socket.gaierror(-2, "x"), "--host h: is no address of this machine"),
        (OSError(errno.EMFILE, "too many files"), "--gateway-port 80: cannot listen on h:80: too many files"),
    ],
)
def test_the_option_is_named(error: OSError, sentence: str) -> None:
    assert str(CannotListenError.of(error, "h", 80, "--gateway-port")).startswith(sentence)
