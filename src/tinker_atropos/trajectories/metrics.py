"""What Prometheus is told: what this process counted and measured, and the ledger as gauges when it is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric

from tinker_atropos.trajectories.ledger import BatchState, Ledger
from tinker_atropos.trajectories.store import Store

_PREFIX = "tinker_atropos_trajectories"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_STALENESS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32)


class Metrics:
    """Counters and histograms of this process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._refused = self._counter("refused_posts", "Posts refused, by the field that was wrong", "field")
        self._duplicates = self._counter("duplicate_posts", "Posts that were stored before and not stored again", "by")
        self._unknown = self._counter("unknown_versions", "Completions posted whose policy version is not on record")
        self._prompts = self._counter(
            "duplicate_prompts", "Groups whose prompt another instance posted too", "environment"
        )
        self._staleness = self._histogram("staleness", "Staleness of leased groups, in optimizer steps", _STALENESS)
        self._sync = self._histogram("sync_seconds", "Time to make a commit durable", _SECONDS)
        self._requests = self._histogram("request_seconds", "Time to answer, by path", _SECONDS, "path")
        self._paths: dict[str, Histogram] = {}

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{_PREFIX}_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"{_PREFIX}_{name}", text, labels, buckets=buckets, registry=self.registry)

    def watch(self, ledger: Ledger, store: Store, clock: Callable[[], float] = time.time) -> None:
        self.registry.register(_State(ledger, store, clock))

    def refused(self, field: str) -> None:
        self._refused.labels(field).inc()

    def duplicate(self, by: str) -> None:
        self._duplicates.labels(by).inc()

    def unknown_versions(self, count: int) -> None:
        if count:
            self._unknown.inc(count)

    def duplicate_prompt(self, environment: str) -> None:
        self._prompts.labels(environment).inc()

    def staleness(self, steps: int) -> None:
        self._staleness.observe(steps)

    def synced(self, seconds: float) -> None:
        self._sync.observe(seconds)

    def answered(self, path: str, seconds: float) -> None:
        """`path` must be one of the routes: anything else would be a label for everybody's typing errors."""
        histogram = self._paths.get(path)
        if histogram is None:
            histogram = self._paths[path] = self._requests.labels(path)
        histogram.observe(seconds)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class _State:
    """The ledger and the store as gauges."""

    def __init__(self, ledger: Ledger, store: Store, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._store = store
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        ledger, now = self._ledger, self._clock()
        groups = _gauge("groups", "Groups by environment and state", "environment", "state")
        tokens = _gauge("tokens", "Tokens by environment and state", "environment", "state")
        for (environment, state), (count, size) in ledger.totals.items():
            groups.add_metric([environment, state], count)
            tokens.add_metric([environment, state], size)
        yield groups
        yield tokens
        dropped = _gauge("dropped_groups", "Dropped groups by reason", "reason")
        for reason, count in ledger.reasons.items():
            dropped.add_metric([reason], count)
        yield dropped
        shares = _gauge("batch_share", "Share of the last 50 batches", "environment")
        for environment, share in ledger.mix.realised().items():
            shares.add_metric([environment], share)
        yield shares
        yield _gauge("step", "Newest trained step", value=ledger.step)
        yield _gauge("epoch", "Epoch that holds the run", value=ledger.epoch)
        yield _gauge("queued_sequences", "Sequences waiting for a batch", value=ledger.queue.sequences)
        oldest = ledger.queue.oldest()
        age = now - ledger.groups[oldest.number].stored_at if oldest is not None else 0.0
        yield _gauge("queue_age_seconds", "Age of the oldest queued group", value=age)
        leased = [batch.since for batch in ledger.batches.values() if batch.state is BatchState.LEASED]
        yield _gauge("lease_age_seconds", "Age of the oldest lease", value=now - min(leased) if leased else 0.0)
        for name, value in self._store.statistics().items():
            yield _gauge(f"store_{name}", f"Of the store: {name}", value=value)


def _gauge(name: str, text: str, *labels: str, value: float | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value, labels=labels or None)
