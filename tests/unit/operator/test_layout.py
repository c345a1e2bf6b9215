"""The folder is called operator, and so is a module of the standard library: the two must not meet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_the_standard_librarys_operator_is_found_from_the_root_of_the_repository() -> None:
    assert not (ROOT / "operator" / "__init__.py").exists()
    program = "import operator, tinker_atropos_operator; print(operator.itemgetter(0)([7]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "7\n", done.stderr


def test_help_is_complete_and_quick_to_give() -> None:
    program = "import sys; from tinker_atropos_operator.__main__ import command; print('kopf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n", "heavy libraries are imported when the operator runs"
    from tinker_atropos_operator.__main__ import command

    assert all(parameter.help for parameter in command.params)
    assert "Example" in (command.help or "")


def test_without_a_cluster_it_says_so_and_fails() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tinker_atropos_operator"], capture_output=True, text=True, check=False, env={"PATH": ""}
    )
    assert done.returncode != 0
    assert "no cluster" in done.stderr and "--kubeconfig" in done.stderr and "Traceback" not in done.stderr
