"""What a trainer says about its run when it takes it over: batch size, limits, what environments are told."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tinker_atropos.protocol import trajectories_pb2 as pb


class InvalidSettingsError(ValueError):
    """A setting cannot work; the message names it."""


@dataclass(frozen=True, slots=True)
class Share:
    """How much of each batch an environment gets."""

    name: str
    weight: float = 1.0
    minimum: float = 0.0
    maximum: float = 0.0
    """0 = no limit."""


@dataclass(frozen=True, slots=True)
class Settings:
    """RunSettings of trajectories.proto, or a plain trainer's /register."""

    run_id: str = ""  # "" = a plain Atropos trainer, which has no name for its run
    batch_size: int = -1
    group_size: int = 0
    max_token_length: int = -1
    total_steps: int = -1
    base_model: str = ""
    max_steps_off_policy: int | None = None
    checkpoint_dir: str = ""
    save_checkpoint_interval: int = 0
    wandb_project: str | None = None
    wandb_group: str | None = None
    shares: tuple[Share, ...] = field(default=())
    unknown_version: str = "accept"
    """What becomes of groups whose policy version is not on record: accept or drop."""
    unpackable: str = "wait"
    """When no choice of the queued groups sums to batch_size: wait, short (a smaller batch) or drop."""
    vocabulary_size: int = -1
    """Token ids of posts are below it; -1 = not known."""

    def __post_init__(self) -> None:
        if self.batch_size < 1 and self.batch_size != -1:
            raise InvalidSettingsError(f"batch_size is {self.batch_size}; it must be at least 1")
        if self.max_steps_off_policy is not None and self.max_steps_off_policy < 0:
            raise InvalidSettingsError(f"max_steps_off_policy is {self.max_steps_off_policy}; it must not be negative")
        for name, allowed in (("unknown_version", ("accept", "drop")), ("unpackable", ("wait", "short", "drop"))):
            if getattr(self, name) not in allowed:
                raise InvalidSettingsError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        for share in self.shares:
            if share.weight < 0 or not 0 <= share.minimum <= 1 or not 0 <= share.maximum <= 1:
                raise InvalidSettingsError(
                    f"environments: {share.name!r} has weight {share.weight:g}, min_batch_share {share.minimum:g} and "
                    f"max_batch_share {share.maximum:g}; weights are not negative and shares between 0 and 1"
                )

    @classmethod
    def from_message(cls, message: pb.RunSettings) -> Settings:
        if message.batch_size < 1:
            raise InvalidSettingsError(f"settings.batch_size is {message.batch_size}; it must be at least 1")
        if not message.run_id:
            raise InvalidSettingsError("settings.run_id is empty; give the run's uid")
        return cls(
            run_id=message.run_id,
            batch_size=message.batch_size,
            group_size=message.group_size,
            max_token_length=message.max_token_length or -1,
            total_steps=message.total_steps,
            base_model=message.base_model,
            max_steps_off_policy=message.max_steps_off_policy if message.HasField("max_steps_off_policy") else None,
            checkpoint_dir=message.checkpoint_dir,
            save_checkpoint_interval=message.save_checkpoint_interval,
            wandb_project=message.wandb_project or None,
            wandb_group=message.wandb_group or None,
            shares=tuple(
                Share(share.name, share.weight, share.min_batch_share, share.max_batch_share)
                for share in message.environments
            ),
            unknown_version=message.unknown_version or "accept",
            unpackable=message.unpackable or "wait",
            vocabulary_size=message.vocabulary_size or -1,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Settings:
        return cls(**{**fields, "shares": tuple(Share(**share) for share in fields.get("shares", ()))})
