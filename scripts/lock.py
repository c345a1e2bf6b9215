#!/usr/bin/env python3
"""Pin what the images install: `make lock` writes images/*/requirements.txt with hashes from pyproject.toml's extras.

All images are pinned against one common resolution, constraints.txt, which the development environment follows too: a
package has one version everywhere, what is tested is what is shipped, and layers can be shared.
No file names a registry: where packages come from is the machine's own configuration.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from catalog import CONSTRAINTS, IMAGES, ROOT, SHARED, dependency_digest

BUILD_TOOLS = "setuptools>=80\nuv>=0.9\n"
HEADER = "# Written by `make lock` from pyproject.toml; not for editing.\n"
PYTHON = ("--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28")
_NAME = re.compile(r"^([A-Za-z0-9._-]+)==")


def compile_requirements(source: Path, *options: str) -> str:
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
        "--no-emit-index-url",
        *PYTHON,
    ]
    done = subprocess.run([*command, *options, str(source)], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"lock: the requirements of {source.name} {' '.join(options)} do not resolve:\n{done.stderr}")
    return done.stdout


def entries(text: str) -> dict[str, str]:
    """The pinned packages of a requirements file, each with its hashes."""
    found: dict[str, str] = {}
    current = ""
    for line in text.splitlines(keepends=True):
        named = _NAME.match(line)
        if named:
            current = named.group(1)
            found[current] = ""
        if current:
            found[current] += line
    return found


def intersection(locks: list[dict[str, str]]) -> dict[str, str]:
    common = set(locks[0]).intersection(*locks[1:])
    return {name: locks[0][name] for name in sorted(common)}


def write(name: str, content: str) -> None:
    target = ROOT / "images" / name / "requirements.txt"
    target.write_text(HEADER + content)
    print(f"lock: {target.relative_to(ROOT)}: {len(entries(content))} packages")


def main() -> None:
    pyproject = ROOT / "pyproject.toml"
    with tempfile.TemporaryDirectory() as folder:
        everything = Path(folder) / "everything.txt"
        everything.write_text(compile_requirements(pyproject, "--extra", "all", "--group", "dev"))
        mark = (
            f"# Written by `make lock` from pyproject.toml, dependencies {dependency_digest(pyproject.read_text())}.\n"
        )
        CONSTRAINTS.write_text(mark + everything.read_text())
        locks: dict[str, dict[str, str]] = {}
        for image in IMAGES:
            extras = [argument for extra in image.extras for argument in ("--extra", extra)]
            text = compile_requirements(pyproject, "--generate-hashes", "-c", str(everything), *extras)
            locks[image.name] = entries(text)
            write(image.name, text)
        tools = Path(folder) / "tools.in"
        tools.write_text(BUILD_TOOLS)
        write("build", compile_requirements(tools, "--generate-hashes"))
    for layer, images in SHARED.items():
        write(layer, "".join(intersection([locks[image.name] for image in images]).values()))


if __name__ == "__main__":
    main()
