"""The run's token as the programs of a run are given it: a file, so that it stands on no command line."""

from __future__ import annotations

from pathlib import Path

import click


def read_token(path: Path | None) -> str | None:
    """The token of --token-file, None without one. Raises click.BadParameter when the file holds none."""
    if path is None:
        return None
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else error.strerror
        raise click.BadParameter(f"cannot read {path}: {reason}", param_hint="--token-file") from error
    if not token:
        raise click.BadParameter(f"{path} is empty; it must hold the run's token", param_hint="--token-file")
    return token
