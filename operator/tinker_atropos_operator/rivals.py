"""Other installations of the operator that look after the same runs: each would undo what the other one writes.

The chart refuses to be the second one; what renders it without a cluster (GitOps) cannot look, so the leader does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tinker_atropos_operator.kube import DEPLOYMENTS, ApiError, Kube, Object
from tinker_atropos_operator.settings import Settings

log = logging.getLogger(__name__)

SELECTOR = "app.kubernetes.io/component=operator"
_CHART = "tinker-atropos-"
_OPTION = "--watch-namespaces="


class Rivals:
    """What the log was told of them: once, until they change."""

    def __init__(self, kube: Kube, settings: Settings) -> None:
        self._kube = kube
        self._settings = settings
        self._told: list[str] = []

    async def look(self, namespaces: tuple[str, ...] | None) -> None:
        """namespaces: those that are looked after; None = all."""
        found: list[Object] = []
        try:
            for namespace in namespaces or (None,):
                async for page in self._kube.pages(DEPLOYMENTS, namespace, SELECTOR):
                    found += page
        except ApiError as error:
            log.info("cannot look for other operators: %s", error)
            return
        rivals = rivals_among(found, (self._settings.namespace, self._settings.service), namespaces)
        if rivals and rivals != self._told:
            log.error(
                "the same runs are looked after by another operator, %s: each undoes what the other one writes; "
                "uninstall one of them, or give each its own watchNamespaces",
                ", ".join(rivals),
            )
        self._told = rivals


def rivals_among(deployments: Iterable[Object], own: tuple[str, str], namespaces: tuple[str, ...] | None) -> list[str]:
    """namespace/name of each Deployment of another installation with a namespace in common; own: of this one."""
    rivals = []
    for deployment in deployments:
        metadata, spec = deployment["metadata"], deployment["spec"]
        place = (metadata["namespace"], metadata["name"])
        chart = (metadata.get("labels") or {}).get("helm.sh/chart", "")
        if place == own or not chart.startswith(_CHART) or spec.get("replicas") == 0:
            continue
        arguments = spec["template"]["spec"]["containers"][0].get("args") or ()
        named = [text.removeprefix(_OPTION).split(",") for text in arguments if text.startswith(_OPTION)]
        if namespaces is None or not named or {*named[-1], place[0]} & {*namespaces}:
            rivals.append("/".join(place))
    return sorted(rivals)
