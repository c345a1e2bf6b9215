"""The interpreter, set for a server that keeps millions of small objects, passes on large ones and may never pause."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys

_YOUNG = 10_000
_YOUNG_COLLECTIONS = 3
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt, in malloc.h


def keep_short() -> None:
    """No pause grows with the ledger, compaction's thread holds nobody up for long, no body costs fresh pages.

    The collector looks at each object once or twice while it is young; what survives (the ledger) is never looked at
    again. Reference counts free nearly everything, so what this leaves behind is next to nothing.
    """

    def keep(phase: str, information: dict[str, int]) -> None:
        if phase == "stop" and information["generation"] > 0:
            gc.freeze()

    gc.freeze()
    gc.set_threshold(_YOUNG, _YOUNG_COLLECTIONS, 1_000_000)
    gc.callbacks.append(keep)
    sys.setswitchinterval(0.001)
    with contextlib.suppress(OSError, AttributeError):  # glibc's; other C libraries keep memory as they like
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, 64 << 20)
