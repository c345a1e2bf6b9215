"""Why a program cannot listen where it was told to, in one sentence that names the option."""

from __future__ import annotations

import errno
import socket


def cannot_listen(error: OSError, host: str, port: int, option: str = "--port", host_option: str = "--host") -> str:
    """The sentence for an error of bind or listen."""
    if error.errno == errno.EADDRINUSE:
        return f"{option} {port}: another program listens on {host}:{port}; end that one, or give another {option}"
    if error.errno == errno.EACCES:
        return f"{option} {port}: this user may not listen on {host}:{port}; give a port above 1023"
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return f"{host_option} {host}: is no address of this machine; 127.0.0.1 is, and 0.0.0.0 stands for all of them"
    return f"{option} {port}: cannot listen on {host}:{port}: {error.strerror or error}"


class CannotListenError(Exception):
    """`str()` is that sentence."""

    @classmethod
    def of(
        cls, error: OSError, host: str, port: int, option: str = "--port", host_option: str = "--host"
    ) -> CannotListenError:
        return cls(cannot_listen(error, host, port, option, host_option))
