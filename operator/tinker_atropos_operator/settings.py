"""What the operator is told once, when it starts: where it runs, which images runs are made of, its own limits."""

from __future__ import annotations

from dataclasses import dataclass, field

from tinker_atropos.protocol import ports


@dataclass(frozen=True)
class Image:
    """A container image and when a node fetches it."""

    reference: str
    pull_policy: str = "IfNotPresent"


@dataclass(frozen=True)
class RunImages:
    """Images of a run's pods, one for each kind of pod."""

    api_server: Image = Image("tinker-atropos/api-server:latest")
    trainer: Image = Image("tinker-atropos/trainer:latest")
    environment: Image = Image("tinker-atropos/environment:latest")
    local_tinker: Image = Image("tinker-atropos/local-tinker:latest")


@dataclass(frozen=True)
class Settings:
    """All settings of one operator process."""

    namespace: str
    """The operator's own: its Lease, its Secret and its canary live there."""
    identity: str
    """Name of this process in the Lease: the pod's name."""
    watch_namespaces: tuple[str, ...] = ()
    """Namespaces whose runs are looked after; empty = all."""
    images: RunImages = field(default_factory=RunImages)
    service: str = "tinker-atropos-operator"
    """Name of the operator's Service, through which trainers report progress."""
    progress_url: str = ""
    """Base address for progress reports; empty = the Service's."""
    host: str = "0.0.0.0"  # noqa: S104 - a pod's address is not known beforehand
    progress_port: int = ports.OPERATOR_PROGRESS
    metrics_port: int = ports.OPERATOR_METRICS
    probes_port: int = ports.OPERATOR_PROBES
    workers: int = 8
    resync_seconds: float = 600.0
    status_interval_seconds: float = 2.0
    """Progress alone writes a run's status at most this often."""
    canary_seconds: float = 60.0
    lease_seconds: float = 15.0
    leader_elect: bool = True
    kubeconfig: str | None = None

    @property
    def secret(self) -> str:
        """Name of the operator's own Secret."""
        return f"{self.service}-keys"

    @property
    def lease(self) -> str:
        return self.service

    @property
    def canary(self) -> str:
        """Name of the ConfigMap by which the operator checks that its watches deliver."""
        return f"{self.service}-canary"

    @property
    def progress_base_url(self) -> str:
        """Base address under which a run's pods reach the progress receiver."""
        return self.progress_url or f"https://{self.service}.{self.namespace}.svc:{ports.OPERATOR_PROGRESS}"
