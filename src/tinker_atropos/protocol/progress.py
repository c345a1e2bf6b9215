"""What a trainer reports about its run, and the answer: over HTTPS to the operator, over HTTP in local mode.

The same JSON goes into the pod's termination message, so the last step is never lost.
Losing a report never harms training.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PATH = "/v1/namespaces/{namespace}/runs/{name}/progress"
"""Route of the receiver; POST with `Authorization: Bearer <pod-bound token>`."""

MAX_BODY = 16 * 1024
"""Bytes; a longer report is refused with 413."""

MAX_TERMINATION_MESSAGE = 4096
"""Bytes that Kubernetes keeps of a container's termination message."""

SECONDS_BETWEEN_REPORTS = 2.0
"""A trainer sends at most this often; first, failing and final reports go at once."""


def audience(namespace: str, name: str, uid: str) -> str:
    """Audience of the projected token: of this run object only, not of a later one with the same name."""
    return f"tinker-atropos.dev/{namespace}/{name}/{uid}"


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True)


class CheckpointReport(_Message):
    """A saved training state."""

    path: str
    step: Annotated[int, Field(ge=0)]
    time: str
    """RFC 3339."""


class RewardReport(_Message):
    """Rewards of the newest trained batch, before advantages."""

    mean: float
    std: float = 0.0
    min: float = 0.0
    max: float = 0.0


class LedgerReport(_Message):
    """What became of the groups so far."""

    stored: int = 0
    queued: int = 0
    leased: int = 0
    trained: int = 0
    covered: int = 0
    dropped: int = 0


class TokensReport(_Message):
    """Tokens of the surviving lineage."""

    sampled: int = 0
    trained: int = 0


class EnvironmentReport(_Message):
    """One environment's part of the newest batch."""

    name: str
    groups: int = 0
    share: float = 0.0
    reward: float = 0.0


class WarningReport(_Message):
    """Something that keeps batches from being made as the run asks, as long as it does."""

    reason: str
    """CannotSupplyShare, GroupsDoNotPack or PostsRefused."""
    environment: str = ""
    """Empty = the whole run."""
    message: str
    """A sentence for people, with numbers."""


class ProgressReport(_Message):
    """One report. Newer epochs win over older ones; within an epoch a lower step is stale and ignored."""

    run_uid: str
    epoch: int = 0
    attempt: int = 0
    phase: Literal["Starting", "Waiting", "Training", "Saving", "Complete", "Failed"]
    step: Annotated[int, Field(ge=0)] = 0
    total_steps: Annotated[int, Field(ge=0)] = 0
    reward: RewardReport | None = None
    loss: float | None = None
    seconds_per_step: float | None = None
    staleness: float | None = None
    """Mean staleness of the newest batch in optimizer steps."""
    tokens: TokensReport = TokensReport()
    ledger: LedgerReport | None = None
    environments: tuple[EnvironmentReport, ...] = ()
    warnings: tuple[WarningReport, ...] | None = None
    """None = not known yet: nothing was leased."""
    checkpoint: CheckpointReport | None = None
    """Newest complete training state."""
    named_checkpoint: CheckpointReport | None = None
    """Newest of the named checkpoints."""
    ledger_export: str | None = None
    """Where the trajectory server exported the run's ledger to."""
    sampler_weights: str | None = None
    """tinker://…/sampler_weights/final once they are saved."""
    message: str = ""
    """A sentence for people: what it waits for, or why it failed and what to do."""
    time: str = ""
    """RFC 3339."""


class ProgressAnswer(_Message):
    """What the receiver knows of the run: a trainer whose trajectory store was lost goes on from here."""

    checkpoint: CheckpointReport | None = None
    """Checkpoint of the run's status, as stored before this report."""
    epoch: int = 0
    """Newest epoch of the run's status: the next one must be greater, also when the store was lost."""
    stop: bool = False
    """The run is over or gone; the trainer should end."""
