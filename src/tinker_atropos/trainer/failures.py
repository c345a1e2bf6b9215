"""What kinds of end a trainer can come to, and what each one means for whoever started it."""

from __future__ import annotations

from tinker_atropos.protocol import exit_codes


class TrainerError(Exception):
    """An end that is told to people: `str()` is one sentence with the next action, `status` the exit status."""

    status = 1


class ConfigError(TrainerError):
    """The run file cannot work as it is."""

    status = exit_codes.CONFIG_ERROR


class KeyRefusedError(TrainerError):
    """The Tinker API does not accept the key."""

    status = exit_codes.KEY_REFUSED


class StartupError(TrainerError):
    """A peer did not come in time."""

    status = exit_codes.STARTUP_TIMEOUT


class FencedError(TrainerError):
    """A newer trainer holds the run."""

    status = exit_codes.FENCED


class StateLostError(TrainerError):
    """The saved state that the run must go on from is gone."""

    status = exit_codes.STATE_LOST


class StoreDamagedError(TrainerError):
    """The trajectory server cannot read any more what it had taken. Another try helps only when somebody mends it."""


class StoreLostError(Exception):
    """The trajectory server has never heard of this epoch: its store was lost. Take over again at the current step."""


class TrainingClientLostError(Exception):
    """The training client cannot be used any more (a hole in its sequence, a restarted service): make a new one."""


class StoppedError(Exception):
    """A signal asked this process to end, and it has come to a good place to do so."""
