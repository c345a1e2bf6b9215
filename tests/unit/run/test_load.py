"""Files as people have them: manifests, plain tinker-atropos files, and files that are neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinker_atropos.run.load import load_run_file
from tinker_atropos.run.problems import InvalidRunError

HEAD = "apiVersion: tinker-atropos.dev/v1alpha1\nkind: TinkerAtroposRun\n"
SPEC = "spec:\n  environments:\n  - {name: a, command: [python, e.py]}\n"
PLAIN = "env: {group_size: 4, batch_size: 8}\nopenai: [{model_name: m}]\ntinker: {learning_rate: 4e-5}\n"


def write(folder: Path, text: str) -> Path:
    path = folder / "My Run.yaml"
    path.write_text(text)
    return path


def test_a_manifest(tmp_path: Path) -> None:
    run = load_run_file(write(tmp_path, HEAD + "metadata: {name: gsm8k}\n" + SPEC))
    assert (run.name, run.spec.environments[0].name) == ("gsm8k", "a")


def test_a_manifest_without_name_takes_the_files(tmp_path: Path) -> None:
    assert load_run_file(write(tmp_path, HEAD + SPEC)).name == "my-run"


def test_other_documents_of_the_file_are_passed_over(tmp_path: Path) -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: tinker}\n---\n"
    assert load_run_file(write(tmp_path, secret + HEAD + "metadata: {name: b}\n" + SPEC)).name == "b"


def test_a_plain_file_with_an_environment_command(tmp_path: Path) -> None:
    run = load_run_file(write(tmp_path, PLAIN), ["python", "env.py"], "tiny")
    assert run.spec.environments[0].command == ("python", "env.py")
    assert run.spec.config.tinker.learning_rate == 4e-5
    assert run.spec.tinker_api.local is not None
    assert run.spec.base_model == "m"


def test_a_single_server_as_a_mapping(tmp_path: Path) -> None:
    run = load_run_file(write(tmp_path, "openai: {model_name: m}\n"), ["x"])
    assert run.spec.base_model == "m"


REFUSED = {
    "plain file without a command": (PLAIN, "add --environment-command"),
    "misspelt section of a plain file": ("envv: {}\n", "envv: unknown section; did you mean 'env'?"),
    "wrong kind": (
        "apiVersion: tinker-atropos.dev/v1alpha1\nkind: TinkerAtroposRuns\nspec: {}\n",
        "must hold exactly one TinkerAtroposRun, it holds TinkerAtroposRuns",
    ),
    "old version": (
        f"apiVersion: tinker-atropos.dev/v9\nkind: TinkerAtroposRun\n{SPEC}",
        "use tinker-atropos.dev/v1alpha1",
    ),
    "a name that no object can have": (
        f"{HEAD}metadata: {{name: Läuf 1}}\n{SPEC}",
        "metadata.name: 'Läuf 1' is no name",
    ),
    "no spec": (HEAD, "spec: is missing"),
    "two runs": (f"{HEAD}{SPEC}---\n{HEAD}{SPEC}", "it holds 2"),
    "nothing": ("", "it holds 0"),
    "a list": ("- a\n", "is a list, not a mapping"),
    "no YAML": ("a: [\n", "is not valid YAML at line 2"),
    "a key twice": (HEAD + "kind: x\n", "the key 'kind' stands twice"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRunError) as caught:
        load_run_file(write(tmp_path, text))
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRunError, match="No such file"):
        load_run_file(tmp_path / "absent.yaml")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidRunError, match="not UTF-8"):
        load_run_file(path)
