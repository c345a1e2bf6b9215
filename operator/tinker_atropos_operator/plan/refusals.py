"""Why the API server refuses pods of a part: a quota, a LimitRange, the pod security level. Controllers pass its
sentence on, each time with another pod's name in it."""

from __future__ import annotations

import re

from tinker_atropos_operator.plan.observed import Object, condition
from tinker_atropos_operator.plan.pods import Trouble, cut

REASON = "PodsRefused"
_POD = re.compile(r'^(Error creating: )?[Pp]ods? "[^"]*" is (forbidden|invalid): ')
_EXCEEDED = re.compile(
    r"exceeded quota: (?P<quota>\S+), requested: (?P<asked>\S+), used: (?P<used>\S+), limited: (?P<hard>\S+)"
)
_UNSAID = re.compile(r"failed quota: (?P<quota>\S+): must specify (?P<wanted>.+)")
LIMIT_RANGE = "give the namespace a LimitRange with defaults for them"


def refused_pods(deployment: Object | None, part: str, *, has_template: bool = False) -> list[Trouble]:
    """What a Deployment says of pods that could not be made. has_template: the run file has a podTemplate for them."""
    failure = condition(deployment, "ReplicaFailure") if deployment is not None else None
    if failure is None or failure.get("status") != "True":
        return []
    return [refusal(str(failure.get("message", "")), part, has_template=has_template)]


def refusal(text: str, part: str, *, has_template: bool) -> Trouble:
    """The trouble that one sentence of the API server is."""
    said = _POD.sub("", text)
    lower = ", or ask for less in its podTemplate" if has_template else ""
    exceeded = _EXCEEDED.search(said)
    if exceeded:
        asked, used, hard = (_amounts(exceeded[name]) for name in ("asked", "used", "hard"))
        each = "; ".join(
            f"{name}: {asked[name]} asked, {used.get(name, '0')} of {hard.get(name, '?')} used" for name in asked
        )
        fix = "raise the quota or free some of it"
        return Trouble(
            REASON,
            f"your cluster: the quota {exceeded['quota']} leaves no room for pods of {part} ({each}); {fix}{lower}",
            "",
            part,
            f"the quota {exceeded['quota']} leaves no room",
            fix,
            tuple(asked),
        )
    unsaid = _UNSAID.search(said)
    if unsaid:
        names = tuple(dict.fromkeys(entry.partition(" for: ")[0].strip() for entry in unsaid["wanted"].split(";")))
        return Trouble(
            REASON,
            f"your cluster: the quota {unsaid['quota']} takes pods of {part} only when their containers say "
            f"{', '.join(names)} (missing: {cut(unsaid['wanted'])}); {LIMIT_RANGE}",
            "",
            part,
            f"the quota {unsaid['quota']} wants every container to say",
            LIMIT_RANGE,
            names,
        )
    fix = "change the namespace's rules" + (" or the podTemplate" if has_template else "")
    return Trouble(
        REASON,
        f"your cluster: pods of {part} are refused: {cut(said)}; {fix}",
        "",
        part,
        f"pods are refused: {cut(said, 120)}",
        fix,
    )


def _amounts(text: str) -> dict[str, str]:
    """Amounts by resource, of `requests.cpu=200m,pods=1`."""
    return {name: amount for name, _, amount in (entry.partition("=") for entry in text.split(",")) if amount}
