"""The chart: installed, upgraded without effect, uninstalled without losing runs; and rights that are just enough."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "tinker-atropos"
ACCOUNT = "system:serviceaccount:tinker-system:tinker-atropos-operator"

Helm = Callable[..., str]
Kubectl = Callable[..., subprocess.CompletedProcess[str]]


def rendered(helm: Helm, *values: str) -> list[dict[str, Any]]:
    arguments = [part for value in values for part in ("--set", value)]
    text = helm("template", "x", str(CHART), "--namespace", "somewhere", *arguments)
    return [document for document in yaml.safe_load_all(text) if document]


def test_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART))


def test_the_charts_copy_of_the_crd_is_fresh() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_chart_crd.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_rendered_crd_has_the_same_schema(helm: Helm) -> None:
    source = yaml.safe_load((ROOT / "crds" / "tinkeratroposruns.yaml").read_text())
    crds = [document for document in rendered(helm) if document["kind"] == "CustomResourceDefinition"]
    assert [crd["spec"] for crd in crds] == [source["spec"]]
    assert crds[0]["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not [d for d in rendered(helm, "crds.enabled=false") if d["kind"] == "CustomResourceDefinition"]


@pytest.mark.parametrize("values", [(), ("watchNamespaces={a,b}",)], ids=["all namespaces", "two namespaces"])
def test_no_right_is_wider_than_it_must_be(helm: Helm, values: tuple[str, ...]) -> None:
    documents = rendered(helm, *values)
    roles = [document for document in documents if document["kind"] in ("ClusterRole", "Role")]
    assert roles
    for role in roles:
        for rule in role["rules"]:
            everything = [*rule.get("apiGroups", []), *rule.get("resources", []), *rule["verbs"]]
            assert "*" not in everything, role["metadata"]["name"]
            if "secrets" in rule.get("resources", []) and {"get", "list", "watch"} & set(rule["verbs"]):
                assert role["kind"] == "Role" and rule["resourceNames"] == ["x-tinker-atropos-operator-keys"]
    bound = [d for d in documents if d["kind"] == "ClusterRoleBinding"]
    assert bool(bound) != bool(values), "with named namespaces there are no rights on the whole cluster"
    if values:
        places = {
            d["metadata"]["namespace"] for d in documents if d["kind"] == "Role" and "-runs" in d["metadata"]["name"]
        }
        assert places == {"a", "b", "somewhere"}


@pytest.mark.parametrize(
    ("verb", "resource", "allowed"),
    [
        ("list", "tinkeratroposruns.tinker-atropos.dev", True),
        ("update", "tinkeratroposruns.tinker-atropos.dev", False),
        ("delete", "tinkeratroposruns.tinker-atropos.dev", False),
        ("get", "secrets", False),
        ("list", "secrets", False),
        ("delete", "secrets", False),
        ("create", "pods", False),
        ("delete", "pods", False),
        ("list", "namespaces", False),
        ("get", "nodes", False),
    ],
)
def test_rights_of_the_operators_account(
    installed: None, kubectl: Kubectl, verb: str, resource: str, allowed: bool
) -> None:
    done = kubectl("auth", "can-i", verb, resource, "--as", ACCOUNT, "-n", "default")
    assert done.stdout.strip() == ("yes" if allowed else "no"), done.stderr


def test_the_operators_pod_passes_the_restricted_level(installed: None, helm: Helm, kubectl: Kubectl) -> None:
    done = kubectl("create", "namespace", "strict")
    assert done.returncode == 0, done.stderr
    kubectl("label", "namespace", "strict", "pod-security.kubernetes.io/warn=restricted")
    text = helm("template", "x", str(CHART), "--namespace", "strict", "--set", "crds.enabled=false")
    done = kubectl("apply", "--dry-run=server", "-f", "-", text=text)
    assert done.returncode == 0, done.stderr
    assert "would violate PodSecurity" not in done.stderr


def test_the_pod_starts_the_operator_with_options_that_exist(helm: Helm) -> None:
    deployment = next(
        d for d in rendered(helm, "watchNamespaces={a}", "progressURL=https://x") if d["kind"] == "Deployment"
    )
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    help_text = subprocess.run(
        [sys.executable, "-m", "tinker_atropos_operator", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for argument in container["args"]:
        assert argument.split("=")[0] in help_text
    assert "--watch-namespaces=a" in container["args"]
    assert deployment["spec"]["template"]["spec"]["enableServiceLinks"] is False


IMAGES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "as the chart has them": ((), "tinker-atropos/operator:0.1.0", "tinker-atropos/trainer:0.1.0"),
    "from a registry": (
        ("images.registry=localhost:5000/team/", "images.tag=dev-1"),
        "localhost:5000/team/operator:dev-1",
        "localhost:5000/team/trainer:dev-1",
    ),
    "one of them another": (
        (
            "images.registry=r.example",
            "images.tag=v2",
            "runImages.trainer.repository=x/mine",
            "runImages.trainer.tag=v3",
        ),
        "r.example/operator:v2",
        "r.example/mine:v3",
    ),
}


@pytest.mark.parametrize(("values", "operator", "trainer"), IMAGES.values(), ids=IMAGES)
def test_where_images_come_from(helm: Helm, values: tuple[str, ...], operator: str, trainer: str) -> None:
    deployment = next(d for d in rendered(helm, *values) if d["kind"] == "Deployment")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == operator
    assert f"--trainer-image={trainer}" in container["args"]


def test_a_second_upgrade_changes_nothing(installed: None, helm: Helm, kubectl: Kubectl) -> None:
    def versions() -> dict[str, str]:
        kinds = "deployments,services,serviceaccounts,roles,rolebindings"
        done = kubectl(
            "get", kinds, "-n", "tinker-system", "-l", "app.kubernetes.io/instance=tinker-atropos", "-o", "json"
        )
        cluster = kubectl(
            "get",
            "crd,clusterroles,clusterrolebindings",
            "-l",
            "app.kubernetes.io/instance=tinker-atropos",
            "-o",
            "json",
        )
        items = json.loads(done.stdout)["items"] + json.loads(cluster.stdout)["items"]
        return {
            f"{item['kind']}/{item['metadata']['name']}": str(
                item["metadata"].get("generation", item["metadata"]["resourceVersion"])
            )
            for item in items
        }

    before = versions()
    assert len(before) >= 9
    helm("upgrade", "tinker-atropos", str(CHART), "--namespace", "tinker-system", "--set", "replicaCount=0")
    assert versions() == before


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("image.tagg=1", "tagg"),
        ("replicaCount=-1", "replicaCount"),
        ("runImages.trainer.pullPolicy=Sometimes", "pullPolicy"),
        ("progressURL=http://x", "progressURL"),
        ("images.registy=x", "registy"),
        ("images.registry=registry.example.com/team:1", "registry"),
        ("unknown=1", "unknown"),
    ],
)
def test_values_that_cannot_be_are_refused(helm: Helm, value: str, word: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        helm("template", "x", str(CHART), "--set", value)
    assert word in refused.value.stderr


def test_uninstalling_keeps_runs_and_installing_again_finds_them(helm: Helm, kubectl: Kubectl, installed: None) -> None:
    text = (ROOT / "examples" / "quickstart.yaml").read_text()
    assert kubectl("create", "namespace", "keeps").returncode == 0
    assert kubectl("apply", "-n", "keeps", "-f", "-", text=text).returncode == 0
    helm("uninstall", "tinker-atropos", "--namespace", "tinker-system")
    try:
        assert "quickstart" in kubectl("get", "tar", "-n", "keeps").stdout
        left = kubectl(
            "get", "all,roles,rolebindings,serviceaccounts", "-n", "tinker-system", "-o", "name"
        ).stdout.split()
        assert [name for name in left if "tinker-atropos" in name] == []
    finally:
        helm("install", "tinker-atropos", str(CHART), "--namespace", "tinker-system", "--set", "replicaCount=0")
    assert "quickstart" in kubectl("get", "tar", "-n", "keeps").stdout
    kubectl("delete", "namespace", "keeps", "--wait=false")


@pytest.fixture
def nothing_installed(helm: Helm, kubectl: Kubectl, installed: None) -> Iterator[None]:
    """As after `helm uninstall`: the CustomResourceDefinition is there, and of no release."""
    helm("uninstall", "tinker-atropos", "--namespace", "tinker-system")
    yield
    for namespace in ("one", "two"):
        helm("uninstall", namespace, "--namespace", namespace, "--ignore-not-found")
    adopt(kubectl, "tinker-atropos", "tinker-system")
    helm("install", "tinker-atropos", str(CHART), "--namespace", "tinker-system", "--set", "replicaCount=0")


def adopt(kubectl: Kubectl, release: str, namespace: str) -> None:
    """The commands of docs/installing.md."""
    for command in COMMANDS:
        words = [{"NAME": release, "NAMESPACE": namespace}.get(word, word) for word in re.split(r"([ =])", command)]
        done = kubectl(*"".join(words).split()[1:])
        assert done.returncode == 0, done.stderr


COMMANDS = [
    line.strip()
    for line in (ROOT / "docs" / "installing.md").read_text().replace("\\\n", "").splitlines()
    if line.startswith(("kubectl annotate", "kubectl label"))
]


def install(helm: Helm, name: str, *values: str) -> str:
    """A release in the namespace of its name; what it is refused for."""
    sets = [part for value in ("replicaCount=0", *values) for part in ("--set", value)]
    try:
        helm("upgrade", "--install", name, str(CHART), "--namespace", name, "--create-namespace", *sets)
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    return ""


def test_a_definition_that_was_kept_can_be_taken_over_by_another_release(
    helm: Helm, kubectl: Kubectl, nothing_installed: None
) -> None:
    assert "cannot be imported into the current release" in install(helm, "one")
    assert install(helm, "one", "crds.enabled=false") == ""
    adopt(kubectl, "one", "one")
    assert install(helm, "one", "crds.enabled=true") == ""


def test_a_second_operator_for_the_same_runs_is_refused(helm: Helm, kubectl: Kubectl, nothing_installed: None) -> None:
    for namespace in ("a", "b"):
        kubectl("create", "namespace", namespace)
    narrow = ("crds.enabled=false", "rbac.aggregateRoles=false")
    assert install(helm, "one", "crds.enabled=false") == ""
    for values, shared in ((), "all namespaces"), (("watchNamespaces={a,b}",), "a, b, two"):
        refusal = install(helm, "two", "crds.enabled=false", *values)
        assert f"the operator of release one in namespace one looks after runs of {shared} already" in refusal
        assert "helm uninstall one --namespace one" in refusal
    assert install(helm, "one", "crds.enabled=false", "watchNamespaces={a}") == "", "an upgrade is no second one"
    for values, shared in (
        (("crds.enabled=false",), "a, one"),
        (("crds.enabled=false", "watchNamespaces={b,a}"), "a"),
        (("crds.enabled=false", "watchNamespaces={one}"), "one"),
        ((*narrow, "watchNamespaces={one}"), "one"),
    ):
        assert f"looks after runs of {shared} already" in install(helm, "two", *values), values
    assert install(helm, "two", "crds.enabled=false", "watchNamespaces={b}") == ""
