"""Everything a trainer process is told: the run file and where its peers are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.run.model import RunSpec

STATE_TTL = 24 * 3600
"""Seconds that rolling states and sampler weights outlive a trainer that dies; renewed while one waits."""

DEFAULT_CHECKPOINT_DIR = "/tmp/tinker-atropos"  # noqa: S108 - a path in the environment's pod, where /tmp is its own
SAVE_INTERVAL_OFF = 0


@dataclass(frozen=True)
class TrainerSettings:
    """One trainer process of one run."""

    name: str
    run_uid: str
    attempt: int
    holder: str
    spec: RunSpec
    trajectories: str
    """host:port of the trajectory server's gRPC."""
    tinker_base_url: str | None
    api_key: str | None
    token: str | None = None
    """The run's token for the trajectory server."""
    progress_url: str | None = None
    progress_ca: Path | None = None
    progress_token_file: Path | None = None
    termination_log: Path | None = None

    def run_settings(self) -> pb.RunSettings:
        """What the trajectory server has to know of the run."""
        env, tinker = self.spec.config.env, self.spec.config.tinker
        extra = tinker.model_extra or {}
        return pb.RunSettings(
            run_id=self.run_uid,
            batch_size=env.batch_size,
            group_size=env.group_size,
            max_token_length=tinker.max_token_trainer_length,
            total_steps=env.total_steps,
            base_model=self.spec.base_model,
            max_steps_off_policy=self.spec.max_steps_off_policy,
            checkpoint_dir=tinker.checkpoint_dir or DEFAULT_CHECKPOINT_DIR,
            save_checkpoint_interval=self.spec.checkpoint_interval or SAVE_INTERVAL_OFF,
            wandb_project=str(extra.get("wandb_project", "")),
            wandb_group=str(extra.get("wandb_group") or ""),
            unpackable=self.spec.api_server.unpackable.lower(),
            unknown_version=self.spec.api_server.unknown_version.lower(),
            environments=[
                pb.EnvironmentShare(
                    name=entry.name,
                    weight=self.spec.weight_of(entry),
                    min_batch_share=self.spec.min_batch_share_of(entry),
                    max_batch_share=entry.max_batch_share or 0.0,
                )
                for entry in self.spec.environments
            ],
        )
