"""The cache: newest versions only, children by their run, nothing kept of what is gone."""

from __future__ import annotations

from typing import Any

from tinker_atropos_operator.cache import Cache
from tinker_atropos_operator.plan.observed import Run


def body(
    kind: str, name: str, version: int = 1, *, uid: str | None = None, namespace: str = "ns", **more: Any
) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{name}",
        "resourceVersion": str(version),
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    metadata.update(more.pop("metadata", {}))
    return {"kind": kind, "metadata": metadata, **more}


def child(kind: str, name: str, version: int = 1, owner: str = "uid-run", **more: Any) -> dict[str, Any]:
    metadata = {
        "labels": {"tinker-atropos.dev/run": "run", **more.pop("labels", {})},
        "ownerReferences": [{"uid": owner, "controller": True}],
    }
    return body(kind, name, version, metadata=metadata, **more)


RUN = Run(body("TinkerAtroposRun", "run"))


def test_an_older_version_never_replaces_a_newer_one() -> None:
    cache = Cache()
    assert cache.upsert("Service", child("Service", "a", 9))
    assert not cache.upsert("Service", child("Service", "a", 8))
    assert not cache.upsert("Service", child("Service", "a", 9))
    assert cache.upsert("Service", child("Service", "a", 10))
    assert cache.observed(RUN).services["a"]["metadata"]["resourceVersion"] == "10"


def test_late_news_of_a_deleted_object_are_ignored() -> None:
    cache = Cache()
    cache.upsert("Service", child("Service", "a", 1))
    cache.remove("Service", child("Service", "a", 2))
    assert not cache.upsert("Service", child("Service", "a", 1))
    assert cache.observed(RUN).services == {}


def test_an_object_made_anew_under_its_name_takes_the_place_of_the_old_one() -> None:
    cache = Cache()
    cache.upsert("Service", child("Service", "a", 5, uid="old"))
    cache.upsert("Service", child("Service", "a", 6, uid="new"))
    cache.remove("Service", child("Service", "a", 7, uid="old"))
    assert cache.observed(RUN).services["a"]["metadata"]["uid"] == "new"


def test_what_an_earlier_run_of_that_name_owned_is_not_the_runs() -> None:
    cache = Cache()
    cache.upsert("Service", child("Service", "old", owner="uid-earlier"))
    cache.upsert("Service", child("Service", "mine"))
    assert set(cache.observed(RUN).services) == {"mine"}


def test_a_trainer_pod_counts_only_if_it_belongs_to_a_job_of_the_run() -> None:
    cache = Cache()
    labels = {"app.kubernetes.io/component": "trainer"}
    cache.upsert("Job", child("Job", "job"))
    cache.upsert("Pod", child("Pod", "right", owner="uid-job", labels=labels))
    cache.upsert("Pod", child("Pod", "wrong", owner="uid-other", labels=labels))
    assert cache.trainer_pod(RUN, "uid-right") is not None
    assert cache.trainer_pod(RUN, "uid-wrong") is None


def test_a_list_removes_what_is_gone_but_not_what_came_after_it_began() -> None:
    cache = Cache()
    cache.upsert("Service", child("Service", "gone"))
    cache.upsert("Service", child("Service", "stays"))
    since = cache.mark()
    cache.upsert("Service", child("Service", "young"))
    changed = cache.replace("Service", [child("Service", "stays")], since, None)
    assert set(cache.observed(RUN).services) == {"stays", "young"}
    assert changed == {("ns", "run")}


def test_a_list_of_some_namespaces_leaves_others_alone() -> None:
    cache = Cache()
    cache.upsert("TinkerAtroposRun", body("TinkerAtroposRun", "a", namespace="one"))
    cache.upsert("TinkerAtroposRun", body("TinkerAtroposRun", "b", namespace="two"))
    cache.replace("TinkerAtroposRun", [], cache.mark(), ["one"])
    assert [run.name for run in cache.runs()] == ["b"]


def test_nothing_heavy_is_kept() -> None:
    cache = Cache()
    metadata = {
        "labels": {"tinker-atropos.dev/run": "run", "app.kubernetes.io/component": "environment"},
        "managedFields": [1],
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 1000, "mine": "y"},
    }
    spec = {"containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "b"}] * 100}], "volumes": [1]}
    cache.upsert("Pod", body("Pod", "p", metadata=metadata, spec=spec))
    (pod,) = cache.observed(RUN).pods
    assert pod["spec"] == {"initContainers": [], "containers": [{"name": "c", "image": "i"}]}
    assert pod["metadata"]["annotations"] == {"mine": "y"} and "managedFields" not in pod["metadata"]


def test_which_secrets_a_pod_wants_is_kept_for_the_message_about_a_missing_one() -> None:
    cache = Cache()
    metadata = {"labels": {"tinker-atropos.dev/run": "run", "app.kubernetes.io/component": "api-server"}}
    key = {"name": "TINKER_API_KEY", "valueFrom": {"secretKeyRef": {"name": "tinker", "key": "my-key"}}}
    bucket = {"secretRef": {"name": "s3"}}
    plain: list[Any] = [{"name": "A", "value": "b"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]
    container = {"name": "c", "image": "i", "env": [*plain, key], "envFrom": [{"configMapRef": {"name": "x"}}, bucket]}
    cache.upsert("Pod", body("Pod", "p", metadata=metadata, spec={"containers": [container]}))
    (pod,) = cache.observed(RUN).pods
    assert pod["spec"]["containers"] == [{"name": "c", "image": "i", "env": [key], "envFrom": [bucket]}]


def test_nothing_is_left_of_a_run_that_is_gone() -> None:
    cache = Cache()
    things = [("Service", child("Service", "a")), ("Job", child("Job", "j")), ("Pod", child("Pod", "p", owner="uid-j"))]
    for kind, thing in things:
        cache.upsert(kind, thing)
    for kind, thing in things:
        cache.remove(kind, thing)
    assert not cache._by_run and not any(cache._objects.values()) and not cache._stored_at
