"""What keeps a pod from doing its work, in words that name the cause and the next action."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from dataclasses import dataclass

from tinker_atropos.protocol.credentials import KEY_VARIABLE
from tinker_atropos.run import names
from tinker_atropos_operator.plan.observed import Object, condition, label, name_of, parse_time
from tinker_atropos_operator.specs import labels
from tinker_atropos_operator.specs.api_server import STORE_LOGIN_VARIABLE

MAX_MESSAGE = 600
"""Characters of foreign text (kubelet, log lines) in a status message."""

PROVEN_SECONDS = 60.0
"""A container that ended again and again is believed to work once it has run for this long."""

_PULL = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"})
_CONFIG = frozenset({"CreateContainerConfigError"})
_START = frozenset({"CreateContainerError", "RunContainerError", "StartError"})
_SECRET = re.compile(r'secret "(?P<missing>[^"]+)" not found|couldn\'t find key (?P<key>\S+) in Secret \S*/(?P<in>\S+)')


_SECRET_FIELDS = {
    KEY_VARIABLE: "tinkerAPI.keySecretRef",
    STORE_LOGIN_VARIABLE: "apiServer.store.secretRef",
}
"""Which field of a run file a variable with a Secret's value comes from."""
_CLAIM = re.compile(r'persistentvolumeclaim "(?P<name>[^"]+)" not found')
_NO_CLAIMS = re.compile(r"[\s,;.]*\bno new claims to deallocate\b")


@dataclass(frozen=True)
class Trouble:
    """One thing that is wrong with one pod."""

    reason: str
    message: str
    """All of it: whose fault, what happened, what to do."""
    pod: str
    part: str = ""
    """The part of the run, for people."""
    cause: str = ""
    """What happened in few words, the same for every part that it happens to."""
    fix: str = ""
    items: tuple[str, ...] = ()
    """What the cause is about, such as the resources of a quota."""
    until: dt.datetime | None = None
    """When it is over if nothing happens till then."""

    @property
    def is_missing_secret(self) -> bool:
        return self.reason == "SecretMissing"


def troubles_of(pod: Object, now: dt.datetime) -> list[Trouble]:
    """Everything that is wrong with a pod that should run; nothing when nothing is, or not yet."""
    status = pod.get("status") or {}
    if "deletionTimestamp" in pod["metadata"] or status.get("phase") == "Succeeded":
        return []
    before = [entry for entry in status.get("initContainerStatuses") or () if not _done(entry)]
    containers = (*before, *(status.get("containerStatuses") or ()))
    found = [trouble for entry in containers if (trouble := _container_trouble(pod, entry, now)) is not None]
    scheduled = condition(pod, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        found.append(_no_place(pod, cut(_NO_CLAIMS.sub("", str(scheduled.get("message", ""))))))
    return found


def _done(init_container: Object) -> bool:
    return ((init_container.get("state") or {}).get("terminated") or {}).get("exitCode") == 0


_ORDER = ("SecretMissing", "ConfigurationMissing", "ImagePullFailed", "ContainerCannotStart", "Unschedulable")


def all_troubles(pods: Iterable[Object], now: dt.datetime) -> list[Trouble]:
    """The troubles of a part's pods, one of each cause, what explains most first: a missing Secret before a pull error
    before the rest."""
    by_cause: dict[tuple[str, str], Trouble] = {}
    for pod in pods:
        for trouble in troubles_of(pod, now):
            by_cause.setdefault((trouble.reason, trouble.cause), trouble)
    rank = {reason: index for index, reason in enumerate(_ORDER)}
    return sorted(by_cause.values(), key=lambda trouble: rank.get(trouble.reason, len(_ORDER)))


def part_of(pod: Object) -> str:
    """The part of the run that a pod is, for people."""
    component = label(pod, labels.COMPONENT)
    if component == labels.ENVIRONMENT_COMPONENT:
        return f"environment {label(pod, labels.ENVIRONMENT)}"
    return {
        labels.API_SERVER: "the API server",
        labels.TRAINER: "the trainer",
        labels.LOCAL_TINKER: "the local Tinker server",
    }.get(component or "", "the run")


def _no_place(pod: Object, text: str) -> Trouble:
    part, namespace = part_of(pod), pod["metadata"].get("namespace", "")
    claim = _CLAIM.search(text)
    if claim:
        return Trouble(
            "Unschedulable",
            f"your config: the claim {claim['name']} that {part} needs does not exist: {text}; "
            f"create it in namespace {namespace}, or name another one in a new run",
            name_of(pod),
            part,
            f"the claim {claim['name']} does not exist",
            f"create it in namespace {namespace}",
        )
    has_template = label(pod, labels.COMPONENT) == labels.ENVIRONMENT_COMPONENT
    lower = ", or let the environment's podTemplate ask for less" if has_template else ""
    return Trouble(
        "Unschedulable",
        f"your cluster has no place for the pod {name_of(pod)} of {part}: {text.rstrip(_STOPS)}; add capacity{lower}",
        name_of(pod),
        part,
        f"no node has room: {cut(text.partition(' preemption:')[0].rstrip(_STOPS), 120)}",
        "add capacity",
    )


def _secret_use(pod: Object, name: str) -> tuple[str, str]:
    """Which key of a Secret the pod wants, and the field of the run file that says so."""
    spec = pod.get("spec") or {}
    for container in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        for source in container.get("envFrom") or ():
            if (source.get("secretRef") or {}).get("name") == name:
                ours = label(pod, labels.COMPONENT) == labels.API_SERVER
                return ("AWS_ACCESS_KEY_ID", "apiServer.store.export.secretRef") if ours else ("KEY", "the podTemplate")
        for variable in container.get("env") or ():
            reference = (variable.get("valueFrom") or {}).get("secretKeyRef") or {}
            if reference.get("name") == name:
                return str(reference.get("key")), _SECRET_FIELDS.get(variable.get("name"), "the podTemplate")
    return "api-key", "tinkerAPI.keySecretRef"


def _container_trouble(pod: Object, entry: Object, now: dt.datetime) -> Trouble | None:
    waiting = (entry.get("state") or {}).get("waiting") or {}
    reason, text = str(waiting.get("reason", "")), cut(str(waiting.get("message", "")))
    part, pod_name, container = part_of(pod), name_of(pod), str(entry.get("name", ""))
    if reason in _PULL:
        image = _image(pod, container) or str(entry.get("image", ""))
        is_program = container == "environment"
        kind = "your environment" if is_program else "this project"
        place = "environments[].image of a new run" if is_program else "the operator's runImages"
        return Trouble(
            "ImagePullFailed",
            f"{kind}: the image {image} of {part} cannot be pulled: {text or reason}; correct "
            f"{place}, or make the image "
            "available to the nodes",
            pod_name,
            part,
            f"the image {image} cannot be pulled{f': {cut(text, 80)}' if text else ''}",
            f"correct {place}",
        )
    if reason in _CONFIG:
        secret = _SECRET.search(str(waiting.get("message", "")))
        if secret and secret["missing"]:
            name, namespace = secret["missing"], pod["metadata"].get("namespace", "")
            if name == names.token_secret(label(pod, labels.RUN) or ""):
                return None  # the run's own: the operator makes it again
            key, field = _secret_use(pod, name)
            return Trouble(
                "SecretMissing",
                f"your config: the Secret {name} of {field} that {part} needs does not exist; create it with "
                f"`kubectl create secret generic {name} --namespace {namespace} --from-literal={key}=…`",
                pod_name,
                part,
                f"the Secret {name} of {field} does not exist",
                f"kubectl create secret generic {name} -n {namespace} --from-literal={key}=…",
            )
        if secret:
            _, field = _secret_use(pod, secret["in"])
            return Trouble(
                "SecretMissing",
                f"your config: the Secret {secret['in']} that {part} needs has no key "
                f"{secret['key']}; add the key, or name the right one in {field} of a new run",
                pod_name,
                part,
                f"the Secret {secret['in']} has no key {secret['key']}",
                "add the key",
            )
        return Trouble(
            "ConfigurationMissing",
            f"your config: {part} cannot be configured: {text or reason}",
            pod_name,
            part,
            cut(text or reason, 120),
        )
    if reason in _START:
        return Trouble(
            "ContainerCannotStart",
            f"{'your environment' if container == 'environment' else 'this project'}: the container "
            f"{container} of {part} "
            f"cannot be started: {text or reason}; check its command and image",
            pod_name,
            part,
            f"the container {container} cannot be started: {cut(text or reason, 120)}",
            "check its command and image",
        )
    if reason == "CrashLoopBackOff":
        return _crash(entry, part, container, pod_name)
    proven_at = _unproven_until(entry, now)
    return None if proven_at is None else _crash(entry, part, container, pod_name, proven_at)


def _unproven_until(entry: Object, now: dt.datetime) -> dt.datetime | None:
    """Until when a container that has been started again is still what it was: one that crashes at once.

    A single end, or the end of one that had worked, is no reason to say so: it is simply started again."""
    state, last = entry.get("state") or {}, (entry.get("lastState") or {}).get("terminated") or {}
    ended = state.get("terminated") or last
    if int(entry.get("restartCount") or 0) < 2 or not ended.get("startedAt") or not ended.get("finishedAt"):
        return None
    proven = dt.timedelta(seconds=PROVEN_SECONDS)
    if parse_time(str(ended["finishedAt"])) - parse_time(str(ended["startedAt"])) >= proven:
        return None
    started = (state.get("running") or {}).get("startedAt")
    until = (parse_time(str(started)) if started else now) + proven
    return until if until > now else None


def _crash(entry: Object, part: str, container: str, pod: str, until: dt.datetime | None = None) -> Trouble:
    last = (entry.get("lastState") or {}).get("terminated") or (entry.get("state") or {}).get("terminated") or {}
    kind = "your environment" if container == "environment" else "this project"
    said = last_lines(str(last.get("message", "")))
    see = f"see kubectl logs {pod} -c {container} --previous"
    count = max(1, int(entry.get("restartCount") or 0))
    often = {1: "ended once, with", 2: "ended twice, last with"}.get(count, f"ended {count} times, last with")
    often = f"{often} {exit_text(last)}"
    # Of a pod with one program the part says enough.
    who = "" if container in (labels.ENVIRONMENT_COMPONENT, labels.LOCAL_TINKER) else f"{container} "
    whole = f"{who}of {part}" if who else part if part.startswith("the ") else f"the {part}"
    return Trouble(
        "CrashLoop",
        f"{kind}: {whole} {often}" + (f", saying: {said}" if said else "") + f"; {see}",
        pod,
        part,
        f"{who}{often}" + (f": {tail(said, 80)}" if said else ""),
        see,
        until=until,
    )


def exit_text(terminated: Object) -> str:
    """How a container ended, in a few words."""
    reason = str(terminated.get("reason", ""))
    code = terminated.get("exitCode")
    if reason == "OOMKilled":
        return "OOMKilled (out of memory: raise its limit)"
    return f"exit status {code}" if code is not None else (reason or "an unknown status")


def last_lines(text: str, limit: int = 300) -> str:
    """The end of a program's output, where the cause stands: whole lines, and the last one in any case."""
    lines = [" ".join(line.split()) for line in text.strip().splitlines() if line.strip()]
    said = tail(lines[-1], MAX_MESSAGE) if lines else ""
    for line in reversed(lines[:-1]):
        if len(line) + len(said) + 3 > limit:
            break
        said = f"{line} / {said}"
    return said


def tail(text: str, limit: int) -> str:
    """The end of a text of bearable length, from the beginning of a word on."""
    if len(text) <= limit:
        return text
    end = text[-(limit - 1) :]
    _, space, words = end.partition(" ")
    return f"…{words if space and words else end}"


_STOPS = " ,.;"
"""What a foreign sentence may end with, and ours goes on behind it."""


def cut(text: str, limit: int = MAX_MESSAGE) -> str:
    """Foreign text of bearable length, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else f"{flat[: limit - 1]}…"


def _image(pod: Object, container: str) -> str | None:
    """The image as it was asked for; the status holds what the runtime made of it."""
    spec = pod.get("spec") or {}
    for entry in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ())):
        if entry.get("name") == container:
            return str(entry.get("image"))
    return None
