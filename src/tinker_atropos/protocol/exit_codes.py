"""Exit statuses with which the trainer tells its supervisor (Job, local mode) what kind of end it was.

The numbers of the first three follow sysexits.h; the Job's podFailurePolicy fails the run at once on FATAL.
"""

from __future__ import annotations

CONFIG_ERROR = 78
"""The run file cannot work as it is (EX_CONFIG)."""

KEY_REFUSED = 77
"""The Tinker API refused the key (EX_NOPERM)."""

STARTUP_TIMEOUT = 75
"""A peer did not come within deadlines.startup (EX_TEMPFAIL)."""

FENCED = 79
"""A newer trainer holds the run; this one must not go on."""

STATE_LOST = 80
"""The saved state that the run must go on from no longer exists."""

FATAL = (KEY_REFUSED, CONFIG_ERROR, STATE_LOST)
"""Trying again cannot help."""
