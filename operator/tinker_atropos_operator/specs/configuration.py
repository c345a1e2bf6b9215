"""The ConfigMap that a run's programs read and the Secret by which they know each other."""

from __future__ import annotations

from base64 import b64encode

from tinker_atropos.protocol import ports
from tinker_atropos.run import names, yaml_text
from tinker_atropos.run.environment_config import environment_config
from tinker_atropos.run.load import API_VERSION, KIND
from tinker_atropos.run.model import Environment
from tinker_atropos_operator.specs import labels, pods
from tinker_atropos_operator.specs.run_objects import Child, Object, RunContext, metadata

TOKENIZER_DIR = "/var/run/tinker-atropos/tokenizer"
RUN_FILE = "run.yaml"
CA_FILE = "ca.crt"


def environment_file(environment: Environment) -> str:
    """Key of an environment's configuration in the ConfigMap."""
    return f"environment-{environment.name}.yaml"


def configuration_of(context: RunContext, environment: Environment) -> Object:
    """What `serve --config` of an environment reads; the same for each of its instances."""
    return environment_config(
        context.spec,
        environment,
        trajectories_url=f"http://127.0.0.1:{ports.RELAY_TRAJECTORIES}",
        gateway_url=f"http://127.0.0.1:{ports.RELAY_GATEWAY}",
        tokenizer_dir=TOKENIZER_DIR,
    )


def run_file(context: RunContext) -> Object:
    """The run as the trainer reads it: the user's spec without what concerns only Kubernetes."""
    spec = dict(context.source)
    spec["environments"] = [
        {key: value for key, value in environment.items() if key != "podTemplate"}
        for environment in context.source["environments"]
    ]
    if isinstance(spec.get("trainer"), dict):
        spec["trainer"] = {key: value for key, value in spec["trainer"].items() if key != "podTemplate"}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": context.name, "namespace": context.namespace, "uid": context.uid},
        "spec": spec,
    }


def config_map(context: RunContext) -> Child:
    """Run file, one configuration per environment, and the authority of the progress receiver."""
    manifest = run_file(context)
    files = {RUN_FILE: yaml_text.dump(manifest), CA_FILE: context.platform.ca_certificate}
    for environment in context.spec.environments:
        files[environment_file(environment)] = yaml_text.dump(configuration_of(context, environment))
    # The authority is part of the inputs: when it is made anew, running trainers must learn of it.
    inputs = [manifest, context.platform.ca_certificate]
    return Child(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(
                context, names.config_map(context.name), labels.of_run(context.name, labels.CONFIGURATION), inputs
            ),
            "data": files,
        }
    )


def token_secret(context: RunContext) -> Child:
    """The run's token, and the key of its local Tinker server. Derived from the run's uid, so nothing is ever read
    back."""
    data = {pods.TOKEN_KEY: context.secret_for("token")}
    if context.spec.tinker_api.local is not None:
        data[pods.LOCAL_TINKER_KEY] = f"tml-{context.secret_for('local-tinker')}"
    return Child(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata(
                context,
                names.token_secret(context.name),
                labels.of_run(context.name, labels.CONFIGURATION),
                sorted(data.items()),
            ),
            "type": "Opaque",
            "data": {key: b64encode(value.encode()).decode() for key, value in data.items()},
        }
    )
