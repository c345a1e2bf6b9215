"""Files as people have them: manifests, plain tinker-atropos files, and files that are neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tinker_atropos.run.load import load_run_file
from tinker_atropos.run.problems import InvalidRunError

HEAD = "apiVersion: tinker-atropos.dev/v1alpha1\nkind: TinkerAtroposRun\n"
META = "metadata: {name: gsm8k}\n"
SPEC = "spec:\n  tinkerAPI: {local: {model: tiny}}\n  environments:\n  - {name: a, command: [python, e.py]}\n"
PLAIN = "env: {group_size: 4, batch_size: 8}\nopenai: [{model_name: m}]\ntinker: {learning_rate: 4e-5}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "My Run.yaml"
    path.write_text(text)
    return path


def test_a_manifest(tmp_path: Path) -> None:
    run = load_run_file(write(tmp_path, HEAD + META + SPEC))
    assert (run.name, run.spec.environments[0].name) == ("gsm8k", "a")


def test_other_documents_of_the_file_are_passed_over(tmp_path: Path) -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: tinker}\n---\n"
    assert load_run_file(write(tmp_path, secret + HEAD + "metadata: {name: b}\n" + SPEC)).name == "b"


def test_a_plain_file_with_an_environment_command(tmp_path: Path) -> None:
    run = load_run_file(write(tmp_path, PLAIN), ["python", "env.py"], "tiny")
    assert run.spec.environments[0].command == ("python", "env.py")
    assert run.spec.config.tinker.learning_rate == 4e-5
    assert run.spec.tinker_api.local is not None
    assert run.spec.base_model == "tinker-atropos/tiny"
    assert [str(warning) for warning in run.warnings] == [
        "openai[0].model_name: 'm' gives way to 'tinker-atropos/tiny' of --local-model"
    ]


@pytest.mark.parametrize(
    ("name", "expected"), [("My Run", "my-run"), ("a" * 60, "a" * 31), ("---", "run"), ("läuft", "l-uft")]
)
def test_a_plain_file_is_named_after_its_file_as_far_as_names_go(tmp_path: Path, name: str, expected: str) -> None:
    path = tmp_path / f"{name}.yaml"
    path.write_text(PLAIN)
    assert load_run_file(path, ["x"]).name == expected


def test_a_single_server_as_a_mapping(tmp_path: Path) -> None:
    run = load_run_file(write(tmp_path, "openai: {model_name: m}\n"), ["x"])
    assert run.spec.base_model == "m"


POD = "spec:\n  tinkerAPI: {{local: {{}}}}\n  environments:\n  - name: a\n    command: [x]\n    podTemplate: {}\n"


def pod(template: str) -> str:
    return HEAD + META + POD.format(template)


REFUSED = {
    "plain file without a command": (PLAIN, "add --environment-command"),
    "misspelt section of a plain file": ("envv: {}\n", "envv: unknown section; did you mean 'env'?"),
    "misspelt section of a file with nothing else": ("sepc: {}\n", "sepc: unknown section; did you mean 'spec'?"),
    "wrong kind": (
        f"apiVersion: tinker-atropos.dev/v1alpha1\nkind: TinkerRun\n{META}{SPEC}",
        "kind: 'TinkerRun' is not known; did you mean 'TinkerAtroposRun'?",
    ),
    "a kind of somebody else": (
        "apiVersion: v1\nkind: Secret\n---\napiVersion: v1\nkind: TinkerAtroposRuns\n",
        "must hold exactly one TinkerAtroposRun, it holds only Secret, TinkerAtroposRuns; "
        "did you mean 'TinkerAtroposRun' for 'TinkerAtroposRuns'?",
    ),
    "only others": (
        "apiVersion: v1\nkind: Secret\n",
        "it holds only Secret; begin with apiVersion: tinker-atropos.dev",
    ),
    "old version": (
        f"apiVersion: tinker-atropos.dev/v9\nkind: TinkerAtroposRun\n{META}{SPEC}",
        "apiVersion: 'tinker-atropos.dev/v9' is not known; did you mean 'tinker-atropos.dev/v1alpha1'?",
    ),
    "no kind": (
        f"apiVersion: tinker-atropos.dev/v1alpha1\n{META}{SPEC}",
        "kind: is missing; write kind: TinkerAtroposRun",
    ),
    "misspelt apiVersion": (
        f"apiVerson: tinker-atropos.dev/v1alpha1\nkind: TinkerAtroposRun\n{META}{SPEC}",
        "apiVerson: unknown key; did you mean 'apiVersion'?",
    ),
    "misspelt spec": (f"{HEAD}{META}sepc: {{}}\n", "sepc: unknown key; did you mean 'spec'?"),
    "misspelt metadata": (f"{HEAD}metdata: {{name: a}}\n{SPEC}", "metdata: unknown key; did you mean 'metadata'?"),
    "misspelt name": (f"{HEAD}metadata: {{nam: a}}\n{SPEC}", "metadata.nam: unknown key; did you mean 'name'?"),
    "no name": (f"{HEAD}{SPEC}", "metadata.name: is missing; write metadata: {name: my-run}"),
    "no name in metadata": (
        f"{HEAD}metadata: {{labels: {{}}}}\n{SPEC}",
        "metadata.name: is missing; give the run a name",
    ),
    "a number as name": (
        f"{HEAD}metadata: {{name: 12}}\n{SPEC}",
        'metadata.name: 12 is not text; put it in quotes: "12"',
    ),
    "a label that is no text": (
        f"{HEAD}metadata: {{name: a, labels: {{team: 7}}}}\n{SPEC}",
        'metadata.labels.team: 7 is not text; put it in quotes: "7"',
    ),
    "a name that no object can have": (
        f"{HEAD}metadata: {{name: Läuf 1}}\n{SPEC}",
        "metadata.name: 'Läuf 1' is no name of a Kubernetes object; use lower-case letters, digits and '-', "
        "such as 'l-uf-1'",
    ),
    "names that are too long together": (
        f"{HEAD}metadata: {{name: {'r' * 42}}}\n{SPEC}",
        "and the environment's name 'a' have 43 characters together; shorten one",
    ),
    "no spec": (HEAD + META, "spec: is missing"),
    "text as spec": (f"{HEAD}{META}spec: here\n", "spec: 'here' is not a mapping (key: value)"),
    "no endpoint": (
        f"{HEAD}{META}spec:\n  environments: [{{name: a, command: [x]}}]\n",
        "spec.tinkerAPI: is missing; give keySecretRef: {name: tinker} for the hosted Tinker API, baseURL",
    ),
    "misspelt endpoint": (
        f"{HEAD}{META}spec:\n  tinkerApi: {{}}\n  environments: [{{name: a, command: [x]}}]\n",
        "spec.tinkerApi: unknown key; did you mean 'tinkerAPI'?",
    ),
    "two runs": (f"{HEAD}{META}{SPEC}---\n{HEAD}{META}{SPEC}", "it holds 2"),
    "nothing": ("", "is empty; begin with apiVersion: tinker-atropos.dev/v1alpha1, kind: TinkerAtroposRun"),
    "nothing but a comment": ("# later\n", "is empty; begin with"),
    "an empty mapping": ("{}\n", "run file: is empty; begin with"),
    "a list": ("- a\n", "run file: is a list, not a mapping (key: value); begin with"),
    "text": ("hello\n", "run file: is 'hello', not a mapping"),
    "no YAML": ("a: [\n", "is not valid YAML at line 2"),
    "a tab": ("env:\n\tgroup_size: 4\n", "indent with spaces, not with tabs"),
    "a key twice": (HEAD + "kind: x\n", "the key 'kind' stands twice"),
    "a tag of Python": ("a: !!python/object:os.system x\n", "python/object:os.system' has no meaning here"),
    "one text as metadata": (f"{HEAD}metadata: gsm8k\n{SPEC}", "write metadata: {name: gsm8k}"),
    "a NUL": ("env: {}\n\0\n", "holds the character U+0000 at line 2, which no YAML file may hold; take it out"),
    "an alias inside of itself": ("env: &a\n  x: *a\n", "an alias (*name) stands inside of what it names"),
    "aliases of aliases": (
        "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
        "it has more than 200000 values; are its aliases (*name) meant?",
    ),
    "endless nesting": ("a: " + "[" * 5000, "it is nested too deeply"),
    "no number": (f"{HEAD}{META}{SPEC}  config: {{env: {{own: .nan}}}}\n", "spec.config.env.own: nan is not a number"),
    "keys that are no text": (f"{HEAD}{META}{SPEC}  2: 2\n  yes: 3\n", "spec.true: unknown key"),
    "misspelt key of a pod": (
        pod("{spec: {nodeSelecter: {a: b}}}"),
        "spec.environments[0].podTemplate.spec.nodeSelecter: unknown key; did you mean 'nodeSelector'?",
    ),
    "misspelt key of a container": (
        pod("{spec: {containers: [{name: environment, resorces: {}}]}}"),
        "podTemplate.spec.containers[0].resorces: unknown key; did you mean 'resources'?",
    ),
    "misspelt key deep in a pod": (
        pod("{spec: {tolerations: [{key: gpu, operater: Exists}]}}"),
        "podTemplate.spec.tolerations[0].operater: unknown key; did you mean 'operator'?",
    ),
    "a key of containers at the pod": (
        pod("{spec: {volumeMounts: []}}"),
        "podTemplate.spec.volumeMounts: unknown key; ",
    ),
    "a key of the pod beside its spec": (pod("{nodeSelector: {a: b}}"), "podTemplate.nodeSelector: unknown key"),
    "a number as a variable's value": (
        pod("{spec: {containers: [{name: environment, env: [{name: A, value: 1}]}]}}"),
        'containers[0].env[0].value: 1 is not text; put it in quotes: "1"',
    ),
    "true as a node's label": (
        pod("{spec: {nodeSelector: {gpu: true}}}"),
        'podTemplate.spec.nodeSelector.gpu: true is not text; put it in quotes: "true"',
    ),
    "one container instead of a list": (
        pod("{spec: {containers: {name: environment}}}"),
        "podTemplate.spec.containers: a mapping (key: value) is not a list; write '- ' before each of its items",
    ),
    "a container without a name": (
        pod("{spec: {containers: [{resources: {}}]}}"),
        "containers[0].name: is missing; the program's container is called environment",
    ),
    "a container that is not there": (
        pod("{spec: {containers: [{name: main, resources: {}}]}}"),
        "containers[0].name: 'main' is no container of this pod; the program's is called environment",
    ),
    "misspelt key of a trainer's pod": (
        f"{HEAD}{META}{SPEC}  trainer: {{podTemplate: {{spec: {{prioritiClassName: x}}}}}}\n",
        "spec.trainer.podTemplate.spec.prioritiClassName: unknown key; did you mean 'priorityClassName'?",
    ),
    "misspelt key of a claim": (
        f"{HEAD}{META}{SPEC}  apiServer: {{store: {{volume: {{persistentVolumeClaim: {{claimNam: x}}}}}}}}\n",
        "spec.apiServer.store.volume.persistentVolumeClaim.claimNam: unknown key; did you mean 'claimName'?",
    ),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRunError) as caught:
        load_run_file(write(tmp_path, text))
    assert message in str(caught.value)


GOOD_PODS = {
    "quantities as numbers": "{spec: {containers: [{name: environment, resources: {limits: {cpu: 2, memory: 4Gi}}}]}}",
    "a container of one's own": "{spec: {containers: [{name: data, image: a:1, ports: [{containerPort: 80}]}]}}",
    "labels, tolerations, affinity": (
        "{metadata: {labels: {a: b}}, spec: {tolerations: [{operator: Exists}], affinity: {}}}"
    ),
    "a probe on a port by name or number": (
        "{spec: {containers: [{name: environment, livenessProbe: {httpGet: {port: 8080}, periodSeconds: 5}}]}}"
    ),
    "a key left empty": "{spec: {nodeSelector: }}",
}


@pytest.mark.parametrize("template", GOOD_PODS.values(), ids=GOOD_PODS)
def test_a_pod_template_that_kubernetes_takes(tmp_path: Path, template: str) -> None:
    assert load_run_file(write(tmp_path, pod(template))).name == "gsm8k"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment_command": ["x"]}, "--environment-command: is for a plain file"),
        (
            {"local_model": "tiny"},
            "--local-model: is for a plain file; this is a TinkerAtroposRun; leave it out, or write",
        ),
    ],
)
def test_options_of_plain_files_are_refused_for_a_manifest(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(InvalidRunError) as caught:
        load_run_file(write(tmp_path, HEAD + META + SPEC), **options)
    assert message in str(caught.value)


def test_problems_of_a_plain_file_name_its_own_fields(tmp_path: Path) -> None:
    with pytest.raises(InvalidRunError) as caught:
        load_run_file(write(tmp_path, "env: {group_size: x}\ntinker: {lora_rnk: 1}\n"), ["x"])
    assert [problem.field for problem in caught.value.problems] == ["tinker.lora_rnk", "env.group_size"]
    with pytest.raises(InvalidRunError) as caught:
        load_run_file(write(tmp_path, PLAIN), ["x"], "tinny")
    assert str(caught.value) == "--local-model: 'tinny' is no built-in model; did you mean 'tiny'?"


def test_every_problem_of_a_manifest_is_named_at_once(tmp_path: Path) -> None:
    text = "apiVersion: x\nkind: TinkerAtroposRun\nspec:\n  environments: [{name: a, command: x}]\n"
    with pytest.raises(InvalidRunError) as caught:
        load_run_file(write(tmp_path, text))
    fields = [problem.field for problem in caught.value.problems]
    assert fields == ["apiVersion", "metadata.name", "spec.tinkerAPI", "spec.environments[0].command"]


def test_a_number_that_is_none_hides_no_other_problem(tmp_path: Path) -> None:
    text = f"{HEAD}{META}{SPEC}  config: {{env: {{own: .nan, batch_size: x}}, tinker: {{learning_rate: .inf}}}}\n"
    with pytest.raises(InvalidRunError) as caught:
        load_run_file(write(tmp_path, text))
    assert [str(problem) for problem in caught.value.problems] == [
        "spec.config.env.own: nan is not a number; give a finite one",
        "spec.config.tinker.learning_rate: inf is not a number; give a finite one",
        "spec.config.env.batch_size: 'x' is not a whole number",
    ]


def test_a_file_without_end() -> None:
    with pytest.raises(InvalidRunError) as caught:
        load_run_file(Path("/dev/zero"))
    assert str(caught.value) == "/dev/zero: is larger than 1 MB; give the path of a run file"


def test_a_file_that_is_much_too_large(tmp_path: Path) -> None:
    with pytest.raises(InvalidRunError, match="is larger than 1 MB"):
        load_run_file(write(tmp_path, "#" * (1 << 20) + "\na: 1\n"))


def test_the_table_of_kubernetes_fields_is_fresh() -> None:
    script = Path(__file__).resolve().parents[3] / "scripts" / "generate_pod_fields.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRunError, match="No such file"):
        load_run_file(tmp_path / "absent.yaml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRunError, match="not UTF-8"):
        load_run_file(path)
