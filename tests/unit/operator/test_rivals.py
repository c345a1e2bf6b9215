"""An operator sees another one that looks after the same runs, and says so once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tinker_atropos_operator.kube import ApiError
from tinker_atropos_operator.rivals import Rivals, rivals_among
from tinker_atropos_operator.settings import Settings

OWN = ("system", "tinker-atropos-operator")


def deployment(
    namespace: str = "other",
    *arguments: str,
    name: str = "second",
    chart: str = "tinker-atropos-0.1.0",
    replicas: int = 1,
) -> dict[str, Any]:
    return {
        "metadata": {"namespace": namespace, "name": name, "labels": {"helm.sh/chart": chart}},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": [{"args": ["--workers=8", *arguments]}]}}},
    }


AMONG: dict[str, tuple[dict[str, Any], tuple[str, ...] | None, list[str]]] = {
    "both look everywhere": (deployment(), None, ["other/second"]),
    "itself": (deployment("system", name="tinker-atropos-operator"), None, []),
    "of its name elsewhere": (deployment(name="tinker-atropos-operator"), None, ["other/tinker-atropos-operator"]),
    "it has some namespaces, this one all": (deployment("other", "--watch-namespaces=a"), None, ["other/second"]),
    "this one has some namespaces, it all": (deployment(), ("a", "system"), ["other/second"]),
    "one namespace in common": (deployment("other", "--watch-namespaces=b,a"), ("a", "system"), ["other/second"]),
    "its own namespace in common": (deployment("a", "--watch-namespaces=b"), ("a", "system"), ["a/second"]),
    "none in common": (deployment("other", "--watch-namespaces=b"), ("a", "system"), []),
    "switched off": (deployment(replicas=0), None, []),
    "somebody else's operator": (deployment(chart="cert-manager-1.0"), None, []),
}


@pytest.mark.parametrize(("other", "namespaces", "rivals"), AMONG.values(), ids=AMONG)
def test_who_looks_after_the_same_runs(
    other: dict[str, Any], namespaces: tuple[str, ...] | None, rivals: list[str]
) -> None:
    assert rivals_among([other], OWN, namespaces) == rivals


class Cluster:
    def __init__(self) -> None:
        self.found: list[dict[str, Any]] | None = []

    async def pages(self, *_: object) -> AsyncIterator[list[dict[str, Any]]]:
        if self.found is None:
            raise ApiError(403, "Forbidden", "no right")
        yield self.found


async def test_it_is_said_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    rivals = Rivals(cluster, Settings(namespace=OWN[0], identity="pod", service=OWN[1]))  # type: ignore[arg-type]
    for found in ([], [deployment()], [deployment()], None, [], [deployment()]):
        cluster.found = found
        await rivals.look(None)
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == 2
    assert said[0].startswith("the same runs are looked after by another operator, other/second: ")
