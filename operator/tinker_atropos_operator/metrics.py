"""What Prometheus can ask the operator. No label has a run's name: their number has no limit."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY = CollectorRegistry()
_PREFIX = "tinker_atropos_operator"

RECONCILES = Counter(f"{_PREFIX}_reconcile", "Reconciliations by result.", ["result"], registry=REGISTRY)
RECONCILE_DURATION = Histogram(
    f"{_PREFIX}_reconcile_duration_seconds", "Duration of a reconciliation.", registry=REGISTRY
)
QUEUE_DEPTH = Gauge(f"{_PREFIX}_workqueue_depth", "Runs that wait for a worker.", registry=REGISTRY)
QUEUE_LATENCY = Histogram(
    f"{_PREFIX}_workqueue_latency_seconds",
    "Time between a change and the start of its reconciliation.",
    registry=REGISTRY,
)
QUEUE_RETRIES = Counter(f"{_PREFIX}_workqueue_retries", "Reconciliations put off after an error.", registry=REGISTRY)
CACHED = Gauge(f"{_PREFIX}_cache_objects", "Objects in the cache by kind.", ["kind"], registry=REGISTRY)
WATCH_EVENTS = Counter(f"{_PREFIX}_watch_events", "Watch events by kind.", ["kind"], registry=REGISTRY)
API_REQUESTS = Counter(
    f"{_PREFIX}_k8s_requests",
    "Requests to the API server; code 0 = no answer.",
    ["verb", "resource", "code"],
    registry=REGISTRY,
)
API_DURATION = Histogram(
    f"{_PREFIX}_k8s_request_duration_seconds", "Duration of requests to the API server.", ["verb"], registry=REGISTRY
)
STATUS_WRITES = Counter(
    f"{_PREFIX}_status_writes", "Writes of a run's status by result.", ["result"], registry=REGISTRY
)
PROGRESS_REPORTS = Counter(f"{_PREFIX}_progress_reports", "Progress reports by result.", ["result"], registry=REGISTRY)
RUNS = Gauge(f"{_PREFIX}_runs", "Runs by phase.", ["phase"], registry=REGISTRY)
LEADER = Gauge(f"{_PREFIX}_is_leader", "1 when this process reconciles.", registry=REGISTRY)
LOOP_LAG = Gauge(f"{_PREFIX}_event_loop_lag_seconds", "How late the event loop wakes up.", registry=REGISTRY)
