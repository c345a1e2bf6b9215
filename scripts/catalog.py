"""The images of the project: what each holds and what it is built on."""

from __future__ import annotations

import hashlib
import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PREFIX = "tinker-atropos"
sys.path.insert(0, str(ROOT / "devcluster"))  # the scripts stand on the cluster's package, which is not installed


@dataclass(frozen=True)
class Image:
    """One folder of images/: the extras of pyproject.toml that its programs need, and the images below it."""

    name: str
    extras: tuple[str, ...]
    on: tuple[str, ...]

    @property
    def requirements(self) -> Path:
        return ROOT / "images" / self.name / "requirements.txt"


OPERATOR = Image("operator", ("operator",), ("build", "base"))
API_SERVER = Image("api-server", ("trajectories", "gateway", "bucket"), ("build", "runtime"))
TRAINER = Image("trainer", ("trainer",), ("build", "runtime"))
ENVIRONMENT = Image("environment", ("relay", "environment"), ("build", "runtime"))
LOCAL_TINKER = Image("local-tinker", ("local-tinker",), ("build", "runtime"))
IMAGES = (OPERATOR, API_SERVER, TRAINER, ENVIRONMENT, LOCAL_TINKER)

# Layers that several images stand on: `base` under all, `runtime` under those that run in a run's pods.
SHARED = {"base": IMAGES, "runtime": (API_SERVER, TRAINER, ENVIRONMENT, LOCAL_TINKER)}

CONSTRAINTS = ROOT / "constraints.txt"


def dependency_digest(pyproject: str) -> str:
    """A digest of all that pyproject.toml says about dependencies, which the locks are marked with."""
    parsed = tomllib.loads(pyproject)
    said = [parsed["project"]["dependencies"], parsed["project"]["optional-dependencies"], parsed["dependency-groups"]]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def locks_are_fresh(pyproject: str, constraints: str) -> bool:
    return f"dependencies {dependency_digest(pyproject)}" in constraints.partition("\n")[0]
