"""The images of the project: what each holds and what it is built on."""

from __future__ import annotations

import sys
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
API_SERVER = Image("api-server", ("trajectories", "gateway"), ("build", "runtime"))
TRAINER = Image("trainer", ("trainer",), ("build", "runtime"))
ENVIRONMENT = Image("environment", ("relay", "environment"), ("build", "runtime"))
LOCAL_TINKER = Image("local-tinker", ("local-tinker",), ("build", "runtime"))
IMAGES = (OPERATOR, API_SERVER, TRAINER, ENVIRONMENT, LOCAL_TINKER)

# Layers that several images stand on: `base` under all, `runtime` under those that run in a run's pods.
SHARED = {"base": IMAGES, "runtime": (API_SERVER, TRAINER, ENVIRONMENT, LOCAL_TINKER)}
