"""How every program logs: readable lines on a terminal, one JSON object a line otherwise.

One place, so that `kubectl logs`, local mode and log collectors see the same fields from each program.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys

_RESERVED = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time (UTC, ISO 8601), level, program, logger, message, then what `extra` gave."""

    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "program": self._program,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update({key: value for key, value in vars(record).items() if key not in _RESERVED})
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)


def configure(program: str, level: str = "INFO") -> None:
    """Route all logging of this process to stderr in the right form. `level` is a name such as "DEBUG"."""
    if level.upper() not in logging.getLevelNamesMapping():
        sys.exit(f"error: --log-level: {level!r} is no level; use DEBUG, INFO, WARNING or ERROR")
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(logging.Formatter(f"%(asctime)s {program} %(levelname)-7s %(message)s", "%H:%M:%S"))
    else:
        handler.setFormatter(JsonFormatter(program))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "aiohttp.access", "tinker", "jax", "filelock", "urllib3", "transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
