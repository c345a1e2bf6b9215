"""What Prometheus sees of the gateway."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """One registry per gateway, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix = "tinker_atropos_gateway_"
        self.requests = Counter(f"{prefix}requests", "Requests answered.", ["route", "status"], registry=self.registry)
        self.prompt_tokens = Counter(
            f"{prefix}prompt_tokens", "Prompt tokens of answered requests.", registry=self.registry
        )
        self.cached_tokens = Counter(
            f"{prefix}cached_prompt_tokens", "Prompt tokens that the service billed as cached.", registry=self.registry
        )
        self.completion_tokens = Counter(
            f"{prefix}completion_tokens", "Sampled tokens that were answered.", registry=self.registry
        )
        self.probes = Counter(
            f"{prefix}health_probes", "One-token health probes answered without sampling.", registry=self.registry
        )
        self.running = Gauge(f"{prefix}running", "Generation requests inside.", registry=self.registry)
        self.held = Gauge(
            f"{prefix}held", "Generation requests that wait for something.", ["reason"], registry=self.registry
        )
        self.retries = Counter(
            f"{prefix}sampling_retries", "Sampling calls tried again.", ["reason"], registry=self.registry
        )
        self.sampling_seconds = Histogram(
            f"{prefix}sampling_seconds",
            "Time of one sampling call, retries included.",
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900),
            registry=self.registry,
        )
        self.rollouts = Counter(
            f"{prefix}rollouts",
            "Rollouts by what became of them: granted (new), continued (a later turn), abandoned (no answer).",
            ["outcome"],
            registry=self.registry,
        )
        self.capacity_seconds = Histogram(
            f"{prefix}capacity_wait_seconds",
            "Time for which a new rollout was held until the trajectory server granted it.",
            buckets=(0.01, 0.1, 1, 5, 15, 60, 300, 900, 3600),
            registry=self.registry,
        )
        self.policy_epoch = Gauge(f"{prefix}policy_epoch", "Epoch of the policy that answers.", registry=self.registry)
        self.policy_step = Gauge(f"{prefix}policy_step", "Step of the policy that answers.", registry=self.registry)
        self.policy_changes = Counter(f"{prefix}policy_changes", "Policies swapped in.", registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)
