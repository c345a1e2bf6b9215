"""Labels and annotations on what the operator makes: how it finds its objects again and people find a run's pods."""

from __future__ import annotations

MANAGER = "tinker-atropos-operator"
"""Value of the managed-by label and name of the field manager."""

MANAGED_BY = "app.kubernetes.io/managed-by"
SELECTOR = f"{MANAGED_BY}={MANAGER}"
"""Server-side selector of every watch beside the runs'."""

APP_NAME = "app.kubernetes.io/name"
COMPONENT = "app.kubernetes.io/component"
RUN = "tinker-atropos.dev/run"
ENVIRONMENT = "tinker-atropos.dev/environment"
ATTEMPT = "tinker-atropos.dev/attempt"

INPUTS = "tinker-atropos.dev/inputs"
"""Annotation: digest of what the user said that went into an object. An object is made again when this changes and
not when only the operator's own way of building it did: an operator upgrade must not restart running pods."""

CONFIG = "tinker-atropos.dev/config"
"""Annotation of an environment's pod template: digest of its configuration file, so that a change restarts it."""

API_SERVER = "api-server"
TRAINER = "trainer"
LOCAL_TINKER = "local-tinker"
ENVIRONMENT_COMPONENT = "environment"
CONFIGURATION = "configuration"


def of_run(run: str, component: str) -> dict[str, str]:
    """Labels of one object of a run."""
    return {APP_NAME: "tinker-atropos", MANAGED_BY: MANAGER, COMPONENT: component, RUN: run}


def selector_of(run: str, component: str) -> dict[str, str]:
    """Labels by which Services and Deployments find their pods; these never change for an object."""
    return {RUN: run, COMPONENT: component}
