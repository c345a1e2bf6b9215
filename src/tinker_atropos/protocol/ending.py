"""The last resort of a program that was asked to end.

The Tinker SDK blocks its caller's thread for minutes while a service is away; such a thread cannot be cancelled, and
asyncio waits for it at the end of the loop.
"""

from __future__ import annotations

import os
import threading


def end_in_any_case(seconds: float, status: int) -> None:
    """End this process with `status` after so many seconds, if it has not ended by itself until then."""
    timer = threading.Timer(seconds, os._exit, (status,))
    timer.daemon = True
    timer.start()
