"""The run file's `spec` as types: what every program means by a field, and its default.

`config` speaks the ecosystem's snake_case (a tinker-atropos file pasted unchanged); everything beside it is Kubernetes'
camelCase. `parse.py` turns plain data into these types and says what is wrong with it.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, field_validator
from pydantic.alias_generators import to_camel

from tinker_atropos.run.bucket_address import BUCKET_ADDRESS, ENDPOINT
from tinker_atropos.run.duration import parse_duration

LARGEST = 2**63 - 1
"""Kubernetes keeps whole numbers in 64 bits."""

LONGEST_DEADLINE_SECONDS = 365 * 86400.0


def _whole(value: object) -> object:
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, int) and not -LARGEST <= number <= LARGEST:
        raise ValueError(f"{value} is too {'large' if number > 0 else 'small'} for a whole number")
    return number


# What the API server takes for these types, and nothing that would only be turned into one ("8", true for 1).
Whole = Annotated[int, Strict(), BeforeValidator(_whole)]
"""A whole number, also one written like 1e3."""
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Switch = Annotated[bool, Strict()]
Text = Annotated[str, Strict()]

LossFunction = Literal["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"]


class _Section(BaseModel):
    """A part of `config`: unknown keys are kept, `parse.py` judges them."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=False)


class EnvConfig(_Section):
    """`config.env`: what the environments read; a few of its keys also steer the trainer."""

    group_size: Annotated[Whole, Field(ge=1, le=4096)] = 16
    """Rollouts of one prompt."""
    batch_size: Annotated[Whole, Field(ge=1, le=1_000_000)] = 128
    """Sequences of one optimizer step (not groups)."""
    tokenizer_name: Annotated[Text, Field(min_length=1)] = "meta-llama/Llama-3.1-8B-Instruct"
    """Hub name or path; also the base model unless openai.model_name names one."""
    total_steps: Annotated[Whole, Field(ge=1)] = 50
    """Optimizer steps of the run."""
    max_token_length: Annotated[Whole, Field(ge=1)] = 256
    """Longest completion that an environment asks for, in tokens."""
    max_batches_offpolicy: Annotated[Whole, Field(ge=0)] = 3
    max_num_workers: Whole = 24
    steps_per_eval: Whole = 100
    ensure_scores_are_not_same: Switch = False
    use_wandb: Switch = True
    inference_weight: Annotated[Number, Field(gt=0)] | None = None
    min_batch_allocation: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Least part of every batch for each environment whose entry says none."""


class OpenAIConfig(_Section):
    """One entry of `config.openai`; base_url and api_key are filled in for each run."""

    model_name: Text | None = None
    num_requests_for_eval: Whole = 256


class TinkerConfig(_Section):
    """`config.tinker`: how the trainer trains."""

    lora_rank: Annotated[Whole, Field(ge=1, le=1024)] = 32
    learning_rate: Annotated[Number, Field(gt=0, lt=1)] = 4e-5
    loss_fn: LossFunction = "importance_sampling"
    loss_fn_config: dict[str, Number] | None = None
    """Numbers for the loss, such as clip_low_threshold."""
    adam_beta1: Annotated[Number, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[Number, Field(ge=0, lt=1)] = 0.95
    adam_eps: Annotated[Number, Field(gt=0)] = 1e-8
    weight_decay: Annotated[Number, Field(ge=0)] = 0.0
    grad_clip_norm: Annotated[Number, Field(ge=0)] = 0.0
    """0 = no clipping."""
    max_token_trainer_length: Annotated[Whole, Field(ge=2)] = 2048
    """Longest sequence that is trained, prompt included, in tokens."""
    max_steps_off_policy: Annotated[Whole, Field(ge=0)] | None = None
    """Hard staleness limit in optimizer steps; absent = env.max_batches_offpolicy."""
    checkpoint_dir: Text | None = None
    """Told to the environments for their own checkpoints; absent = a folder in their /tmp."""
    save_checkpoint_interval: Annotated[Whole, Field(ge=0)] | None = None
    """Named checkpoint every n steps, 0 = none; `checkpoints.every` is the same setting."""
    seed: Whole | None = None
    train_attn: Switch = True
    train_mlp: Switch = True
    train_unembed: Switch = True


class Config(_Section):
    """`config`: the sections of a tinker-atropos file."""

    env: EnvConfig = EnvConfig()
    openai: Annotated[tuple[OpenAIConfig, ...], Field(max_length=16)] = ()
    tinker: TinkerConfig = TinkerConfig()


class _Kubernetes(BaseModel):
    """A part beside `config`: camelCase, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


class SecretKeyRef(_Kubernetes):
    """Key of a Secret in the run's namespace."""

    name: Annotated[Text, Field(min_length=1, max_length=253)]
    key: Annotated[Text, Field(min_length=1, max_length=253)] = "api-key"


class LocalTinker(_Kubernetes):
    """This project's CPU server, started for the run."""

    model: Annotated[Text, Field(min_length=1)] = "tiny"


class TinkerAPI(_Kubernetes):
    """Which endpoint trains and samples."""

    key_secret_ref: SecretKeyRef | None = None
    base_url: Annotated[Text, Field(pattern=r"^https?://", max_length=2048)] | None = Field(
        default=None, alias="baseURL"
    )
    local: LocalTinker | None = None


class Environment(_Kubernetes):
    """A program that produces scored groups: one Deployment, `replicas` instances."""

    name: Annotated[Text, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=30)]
    image: Annotated[Text, Field(min_length=1, max_length=1024)] | None = None
    """Container image; absent = this project's environment image."""
    command: Annotated[tuple[Annotated[Text, Field(max_length=4096)], ...], Field(min_length=1, max_length=100)]
    """The program; `serve --config …` is appended."""
    replicas: Annotated[Whole, Field(ge=0, le=1000)] = 1
    weight: Annotated[Number, Field(gt=0)] = 1.0
    min_batch_share: Annotated[Number, Field(ge=0, le=1)] | None = None
    """Least part of every batch; absent = config.env.min_batch_allocation, else none."""
    max_batch_share: Annotated[Number, Field(gt=0, le=1)] | None = None
    """Most of any batch; absent = no limit."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Overrides of config.env for this environment."""
    pod_template: dict[str, Any] = Field(default_factory=dict)
    """Overlay on the pod template (resources, nodeSelector, volumes …)."""


class StoreSecretRef(SecretKeyRef):
    """Key of a Secret that holds the password of a Redis server."""

    key: Annotated[Text, Field(min_length=1, max_length=253)] = "password"


class SecretRef(_Kubernetes):
    """A Secret, all of it."""

    name: Annotated[Text, Field(min_length=1, max_length=253)]


class Export(_Kubernetes):
    """Where the run's ledger is left when the run is over: a folder of a volume, or a bucket."""

    volume: dict[str, Any] | None = None
    """A Kubernetes volume source that outlives the run's pods."""
    path: Annotated[Text, Field(max_length=256, pattern=r"^([^/.][^/]*(/[^/.][^/]*)*)?$")] = ""
    """Folder in the volume; the run's own, <name>-<uid>, is made in it."""
    bucket: Annotated[Text, Field(max_length=512, pattern=BUCKET_ADDRESS)] | None = None
    """Bucket and prefix; the run's own, <name>-<uid>, is put behind it."""
    endpoint: Annotated[Text, Field(max_length=512, pattern=ENDPOINT)] | None = None
    """URL of a service other than Amazon's."""
    region: Annotated[Text, Field(max_length=64, pattern=r"^[a-z0-9-]+$")] | None = None
    secret_ref: SecretRef | None = None
    """Its keys become variables of the trajectory server: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY …"""

    def bucket_of(self, run: str) -> str:
        """The run's own place in the bucket; run: <name>-<uid>."""
        return f"{(self.bucket or '').rstrip('/')}/{run}"


class Store(_Kubernetes):
    """Where the trajectory server keeps its groups."""

    type: Literal["Embedded", "Redis"] = "Embedded"
    volume: dict[str, Any] = Field(default_factory=lambda: {"emptyDir": {}})
    """A Kubernetes volume source: emptyDir survives a killed container, persistentVolumeClaim the pod."""
    url: Annotated[Text, Field(pattern=r"^rediss?://[^@]+$", max_length=512)] | None = None
    """Of the Redis server, without a password; only for type Redis."""
    secret_ref: StoreSecretRef | None = None
    """Password of the Redis server."""
    export: Export | None = None


class APIServer(_Kubernetes):
    """The pod of trajectory server and gateway."""

    store: Store = Store()
    unpackable: Literal["Wait", "Short", "Drop"] = "Wait"
    """When no choice of the queued groups sums to batch_size for a minute: wait on, train a short one, or drop them."""
    unknown_version: Literal["Accept", "Drop"] = "Accept"
    """What becomes of groups whose policy version is not on record."""


class Checkpoints(_Kubernetes):
    """Named checkpoints; a rolling state is saved every step in any case."""

    every: Annotated[Whole, Field(ge=0)] | None = None
    """A named checkpoint every n steps; 0 = none; absent = tinker.save_checkpoint_interval."""


class Trainer(_Kubernetes):
    """The trainer Job."""

    backoff_limit: Annotated[Whole, Field(ge=0, le=100)] = 6
    """How often a failed trainer pod is replaced before the run fails."""
    pod_template: dict[str, Any] = Field(default_factory=dict)


class Deadlines(_Kubernetes):
    """How long the run may take to get somewhere."""

    startup: Annotated[Text, Field(max_length=64)] = "10m"
    """Every program waits this long for its peers; the first step may take that long."""

    @field_validator("startup")
    @classmethod
    def _is_duration(cls, value: str) -> str:
        seconds = parse_duration(value)
        if seconds <= 0:
            raise ValueError(f"{value!r} leaves no time; write it like 90s, 10m or 1h30m")
        if seconds > LONGEST_DEADLINE_SECONDS:
            raise ValueError(f"{value!r} is more than a year; write it like 90s, 10m or 1h30m")
        return value

    @property
    def startup_seconds(self) -> float:
        return parse_duration(self.startup)


class RunSpec(_Kubernetes):
    """`spec` of a TinkerAtroposRun for a language model."""

    config: Config = Config()
    tinker_api: TinkerAPI = Field(default=TinkerAPI(), alias="tinkerAPI")
    environments: Annotated[tuple[Environment, ...], Field(min_length=1, max_length=50)]
    api_server: APIServer = APIServer()
    checkpoints: Checkpoints = Checkpoints()
    trainer: Trainer = Trainer()
    deadlines: Deadlines = Deadlines()

    # -- settings that both halves may speak of: the table of docs/run-file.md, in one place

    @property
    def base_model(self) -> str:
        """The model that is trained, as the Tinker API names it."""
        named = next((entry.model_name for entry in self.config.openai if entry.model_name), None)
        if named is not None:
            return named
        return (
            local_model_name(self.tinker_api.local.model) if self.tinker_api.local else self.config.env.tokenizer_name
        )

    @property
    def checkpoint_interval(self) -> int:
        """Named checkpoint every n steps, 0 = none."""
        if self.checkpoints.every is not None:
            return self.checkpoints.every
        return self.config.tinker.save_checkpoint_interval or 0

    @property
    def max_steps_off_policy(self) -> int:
        """Hard staleness limit in optimizer steps."""
        limit = self.config.tinker.max_steps_off_policy
        return self.config.env.max_batches_offpolicy if limit is None else limit

    def weight_of(self, environment: Environment) -> float:
        """Weight of one environment: the entry wins over its default of 1."""
        if "weight" in environment.model_fields_set or self.config.env.inference_weight is None:
            return environment.weight
        return self.config.env.inference_weight

    def min_batch_share_of(self, environment: Environment) -> float:
        """Least part of every batch, 0 = none: the entry, else its own config, else config.env."""
        if environment.min_batch_share is not None:
            return environment.min_batch_share
        own = environment.config.get("min_batch_allocation")
        return float(own) if own is not None else self.config.env.min_batch_allocation or 0.0


LOCAL_MODELS = {"tiny": "tinker-atropos/tiny"}
"""Built-in models of the local Tinker server and the names under which it serves them."""


def local_model_name(model: str) -> str:
    """Name under which the local Tinker server serves a model: a built-in one, or a folder."""
    return LOCAL_MODELS.get(model) or f"local/{PurePath(model).name}"
