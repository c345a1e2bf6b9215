"""How a program that uses the Tinker SDK ends with the exit status that it means.

The SDK blocks its caller's thread for minutes while a service is away; such a thread cannot be cancelled, and asyncio
waits for it at the end of the loop. Its native threads also run on while the interpreter is taken apart, and now and
then one of them aborts the process then: status 134 instead of the one that Kubernetes is to act on.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import NoReturn


def end_now(status: int) -> NoReturn:
    """End this process with `status`, all that it wrote being out, without taking the interpreter apart."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def end_in_any_case(seconds: float, status: int) -> None:
    """End this process with `status` after so many seconds, if it has not ended by itself until then."""
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True
    timer.start()
