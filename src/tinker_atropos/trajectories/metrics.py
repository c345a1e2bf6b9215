"""What Prometheus is told."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from tinker_atropos.trajectories.ledger import Ledger
from tinker_atropos.trajectories.store import Store

_PREFIX = "tinker_atropos_trajectories"


class Metrics:
    """Counters of this process, and gauges that are read from the ledger when asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._refused = Counter(
            f"{_PREFIX}_refused_posts", "Posts refused, by the field that was wrong", ["field"], registry=self.registry
        )
        self._unknown = Counter(
            f"{_PREFIX}_unknown_versions",
            "Completions posted whose policy version is not on record",
            registry=self.registry,
        )

    def watch(self, ledger: Ledger, store: Store) -> None:
        self.registry.register(_State(ledger, store))

    def refused(self, field: str | int) -> None:
        self._refused.labels(str(field)).inc()

    def unknown_versions(self, count: int) -> None:
        if count:
            self._unknown.inc(count)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _State:
    """The ledger as gauges."""

    def __init__(self, ledger: Ledger, store: Store) -> None:
        self._ledger = ledger
        self._store = store

    def collect(self) -> Iterator[Metric]:
        sums = GaugeMetricFamily(f"{_PREFIX}_groups", "Groups by state (stored = ever acknowledged)", labels=["state"])
        for state, count in self._ledger.sums().items():
            sums.add_metric([state], count)
        yield sums
        dropped = GaugeMetricFamily(f"{_PREFIX}_dropped_groups", "Dropped groups by reason", labels=["reason"])
        for reason, count in self._ledger.reasons.items():
            dropped.add_metric([reason], count)
        yield dropped
        yield GaugeMetricFamily(f"{_PREFIX}_step", "Newest trained step", value=self._ledger.step)
        yield GaugeMetricFamily(f"{_PREFIX}_epoch", "Epoch that holds the run", value=self._ledger.epoch)
        yield GaugeMetricFamily(
            f"{_PREFIX}_queued_sequences", "Sequences waiting for a batch", value=self._ledger.queue.sequences
        )
        for name, value in self._store.statistics().items():
            yield GaugeMetricFamily(f"{_PREFIX}_store_{name}", f"Of the store: {name}", value=value)
