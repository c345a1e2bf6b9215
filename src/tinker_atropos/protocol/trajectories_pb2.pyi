from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunSettings(_message.Message):
    __slots__ = ("run_id", "batch_size", "group_size", "max_token_length", "total_steps", "base_model", "max_steps_off_policy", "checkpoint_dir", "save_checkpoint_interval", "wandb_project", "wandb_group", "environments", "unknown_version", "unpackable", "vocabulary_size")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKEN_LENGTH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_OFF_POLICY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINT_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    WANDB_PROJECT_FIELD_NUMBER: _ClassVar[int]
    WANDB_GROUP_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNPACKABLE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    batch_size: int
    group_size: int
    max_token_length: int
    total_steps: int
    base_model: str
    max_steps_off_policy: int
    checkpoint_dir: str
    save_checkpoint_interval: int
    wandb_project: str
    wandb_group: str
    environments: _containers.RepeatedCompositeFieldContainer[EnvironmentShare]
    unknown_version: str
    unpackable: str
    vocabulary_size: int
    def __init__(self, run_id: _Optional[str] = ..., batch_size: _Optional[int] = ..., group_size: _Optional[int] = ..., max_token_length: _Optional[int] = ..., total_steps: _Optional[int] = ..., base_model: _Optional[str] = ..., max_steps_off_policy: _Optional[int] = ..., checkpoint_dir: _Optional[str] = ..., save_checkpoint_interval: _Optional[int] = ..., wandb_project: _Optional[str] = ..., wandb_group: _Optional[str] = ..., environments: _Optional[_Iterable[_Union[EnvironmentShare, _Mapping]]] = ..., unknown_version: _Optional[str] = ..., unpackable: _Optional[str] = ..., vocabulary_size: _Optional[int] = ...) -> None: ...

class EnvironmentShare(_message.Message):
    __slots__ = ("name", "weight", "min_batch_share", "max_batch_share")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    MIN_BATCH_SHARE_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SHARE_FIELD_NUMBER: _ClassVar[int]
    name: str
    weight: float
    min_batch_share: float
    max_batch_share: float
    def __init__(self, name: _Optional[str] = ..., weight: _Optional[float] = ..., min_batch_share: _Optional[float] = ..., max_batch_share: _Optional[float] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("sampled", "trained")
    SAMPLED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    sampled: int
    trained: int
    def __init__(self, sampled: _Optional[int] = ..., trained: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("step", "checkpoint_path", "sampler_path", "rng", "cursor", "tokens", "cost", "reward", "time")
    STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_PATH_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_PATH_FIELD_NUMBER: _ClassVar[int]
    RNG_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    step: int
    checkpoint_path: str
    sampler_path: str
    rng: bytes
    cursor: str
    tokens: Tokens
    cost: float
    reward: float
    time: float
    def __init__(self, step: _Optional[int] = ..., checkpoint_path: _Optional[str] = ..., sampler_path: _Optional[str] = ..., rng: _Optional[bytes] = ..., cursor: _Optional[str] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., cost: _Optional[float] = ..., reward: _Optional[float] = ..., time: _Optional[float] = ...) -> None: ...

class PolicyVersion(_message.Message):
    __slots__ = ("epoch", "step")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    step: int
    def __init__(self, epoch: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class Policy(_message.Message):
    __slots__ = ("version", "sampler_path", "base_model", "published_at")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_PATH_FIELD_NUMBER: _ClassVar[int]
    BASE_MODEL_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_AT_FIELD_NUMBER: _ClassVar[int]
    version: PolicyVersion
    sampler_path: str
    base_model: str
    published_at: float
    def __init__(self, version: _Optional[_Union[PolicyVersion, _Mapping]] = ..., sampler_path: _Optional[str] = ..., base_model: _Optional[str] = ..., published_at: _Optional[float] = ...) -> None: ...

class TakeoverRequest(_message.Message):
    __slots__ = ("settings", "holder", "fallback", "after_epoch")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    AFTER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    settings: RunSettings
    holder: str
    fallback: State
    after_epoch: int
    def __init__(self, settings: _Optional[_Union[RunSettings, _Mapping]] = ..., holder: _Optional[str] = ..., fallback: _Optional[_Union[State, _Mapping]] = ..., after_epoch: _Optional[int] = ...) -> None: ...

class TakeoverResponse(_message.Message):
    __slots__ = ("epoch", "state", "replayed_batches", "store_was_empty", "policy")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    STORE_WAS_EMPTY_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    state: State
    replayed_batches: int
    store_was_empty: bool
    policy: Policy
    def __init__(self, epoch: _Optional[int] = ..., state: _Optional[_Union[State, _Mapping]] = ..., replayed_batches: _Optional[int] = ..., store_was_empty: _Optional[bool] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("epoch", "for_step", "wait_seconds", "lease_seconds")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FOR_STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    for_step: int
    wait_seconds: float
    lease_seconds: float
    def __init__(self, epoch: _Optional[int] = ..., for_step: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("batch", "waiting_for", "warnings")
    BATCH_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    batch: Batch
    waiting_for: str
    warnings: _containers.RepeatedCompositeFieldContainer[SupplyWarning]
    def __init__(self, batch: _Optional[_Union[Batch, _Mapping]] = ..., waiting_for: _Optional[str] = ..., warnings: _Optional[_Iterable[_Union[SupplyWarning, _Mapping]]] = ...) -> None: ...

class SupplyWarning(_message.Message):
    __slots__ = ("reason", "environment", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    environment: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., environment: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("lease_id", "for_step", "lease_seconds", "replay", "groups", "queued_groups")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    FOR_STEP_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    lease_id: str
    for_step: int
    lease_seconds: float
    replay: bool
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    queued_groups: int
    def __init__(self, lease_id: _Optional[str] = ..., for_step: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., replay: _Optional[bool] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., queued_groups: _Optional[int] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("id", "environment", "instance", "oldest", "staleness", "sequences", "group_overrides", "atropos")
    ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    GROUP_OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    ATROPOS_FIELD_NUMBER: _ClassVar[int]
    id: int
    environment: str
    instance: str
    oldest: PolicyVersion
    staleness: int
    sequences: _containers.RepeatedCompositeFieldContainer[Sequence]
    group_overrides: str
    atropos: str
    def __init__(self, id: _Optional[int] = ..., environment: _Optional[str] = ..., instance: _Optional[str] = ..., oldest: _Optional[_Union[PolicyVersion, _Mapping]] = ..., staleness: _Optional[int] = ..., sequences: _Optional[_Iterable[_Union[Sequence, _Mapping]]] = ..., group_overrides: _Optional[str] = ..., atropos: _Optional[str] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("tokens", "loss_mask", "logprobs", "score", "advantages", "ref_logprobs", "overrides", "distill_token_ids", "distill_logprobs", "distill_k", "masks")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGES_FIELD_NUMBER: _ClassVar[int]
    REF_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    DISTILL_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DISTILL_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    DISTILL_K_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    loss_mask: bytes
    logprobs: bytes
    score: float
    advantages: bytes
    ref_logprobs: bytes
    overrides: str
    distill_token_ids: bytes
    distill_logprobs: bytes
    distill_k: int
    masks: bytes
    def __init__(self, tokens: _Optional[bytes] = ..., loss_mask: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., score: _Optional[float] = ..., advantages: _Optional[bytes] = ..., ref_logprobs: _Optional[bytes] = ..., overrides: _Optional[str] = ..., distill_token_ids: _Optional[bytes] = ..., distill_logprobs: _Optional[bytes] = ..., distill_k: _Optional[int] = ..., masks: _Optional[bytes] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("epoch", "lease_id", "lease_seconds")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    lease_id: str
    lease_seconds: float
    def __init__(self, epoch: _Optional[int] = ..., lease_id: _Optional[str] = ..., lease_seconds: _Optional[float] = ...) -> None: ...

class RenewResponse(_message.Message):
    __slots__ = ("lease_seconds",)
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lease_seconds: float
    def __init__(self, lease_seconds: _Optional[float] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("epoch", "lease_id", "step", "no_signal", "dropped")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    NO_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    lease_id: str
    step: int
    no_signal: bool
    dropped: _containers.RepeatedCompositeFieldContainer[DroppedGroup]
    def __init__(self, epoch: _Optional[int] = ..., lease_id: _Optional[str] = ..., step: _Optional[int] = ..., no_signal: _Optional[bool] = ..., dropped: _Optional[_Iterable[_Union[DroppedGroup, _Mapping]]] = ...) -> None: ...

class DroppedGroup(_message.Message):
    __slots__ = ("id", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: int
    reason: str
    def __init__(self, id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("ledger",)
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ledger: LedgerSums
    def __init__(self, ledger: _Optional[_Union[LedgerSums, _Mapping]] = ...) -> None: ...

class LedgerSums(_message.Message):
    __slots__ = ("stored", "queued", "leased", "trained", "covered", "dropped")
    STORED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    COVERED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    stored: int
    queued: int
    leased: int
    trained: int
    covered: int
    dropped: int
    def __init__(self, stored: _Optional[int] = ..., queued: _Optional[int] = ..., leased: _Optional[int] = ..., trained: _Optional[int] = ..., covered: _Optional[int] = ..., dropped: _Optional[int] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("epoch", "lease_id", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    lease_id: str
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., lease_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class NackResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CoverRequest(_message.Message):
    __slots__ = ("epoch", "state")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    state: State
    def __init__(self, epoch: _Optional[int] = ..., state: _Optional[_Union[State, _Mapping]] = ...) -> None: ...

class CoverResponse(_message.Message):
    __slots__ = ("ledger",)
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    ledger: LedgerSums
    def __init__(self, ledger: _Optional[_Union[LedgerSums, _Mapping]] = ...) -> None: ...

class FinishRequest(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class FinishResponse(_message.Message):
    __slots__ = ("ledger", "exported_to", "problem")
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    EXPORTED_TO_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ledger: LedgerSums
    exported_to: str
    problem: str
    def __init__(self, ledger: _Optional[_Union[LedgerSums, _Mapping]] = ..., exported_to: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("epoch", "policy")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    policy: Policy
    def __init__(self, epoch: _Optional[int] = ..., policy: _Optional[_Union[Policy, _Mapping]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordRequest(_message.Message):
    __slots__ = ("instance", "version", "digests", "vocabulary_size")
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    instance: str
    version: PolicyVersion
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    vocabulary_size: int
    def __init__(self, instance: _Optional[str] = ..., version: _Optional[_Union[PolicyVersion, _Mapping]] = ..., digests: _Optional[_Iterable[bytes]] = ..., vocabulary_size: _Optional[int] = ...) -> None: ...

class RecordResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CapacityRequest(_message.Message):
    __slots__ = ("rollout", "kind", "environment", "instance", "sequences", "prompt")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        WANT: _ClassVar[CapacityRequest.Kind]
        SAMPLED: _ClassVar[CapacityRequest.Kind]
        CONTINUED: _ClassVar[CapacityRequest.Kind]
        ABANDONED: _ClassVar[CapacityRequest.Kind]
    WANT: CapacityRequest.Kind
    SAMPLED: CapacityRequest.Kind
    CONTINUED: CapacityRequest.Kind
    ABANDONED: CapacityRequest.Kind
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    rollout: str
    kind: CapacityRequest.Kind
    environment: str
    instance: str
    sequences: int
    prompt: bytes
    def __init__(self, rollout: _Optional[str] = ..., kind: _Optional[_Union[CapacityRequest.Kind, str]] = ..., environment: _Optional[str] = ..., instance: _Optional[str] = ..., sequences: _Optional[int] = ..., prompt: _Optional[bytes] = ...) -> None: ...

class CapacityGrant(_message.Message):
    __slots__ = ("rollout", "seconds")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    rollout: str
    seconds: float
    def __init__(self, rollout: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class PostRequest(_message.Message):
    __slots__ = ("number", "post_id", "environment", "instance", "group")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    POST_ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    number: int
    post_id: str
    environment: str
    instance: str
    group: Group
    def __init__(self, number: _Optional[int] = ..., post_id: _Optional[str] = ..., environment: _Optional[str] = ..., instance: _Optional[str] = ..., group: _Optional[_Union[Group, _Mapping]] = ...) -> None: ...

class PostResponse(_message.Message):
    __slots__ = ("number", "error", "duplicate", "retry")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FIELD_NUMBER: _ClassVar[int]
    number: int
    error: str
    duplicate: bool
    retry: bool
    def __init__(self, number: _Optional[int] = ..., error: _Optional[str] = ..., duplicate: _Optional[bool] = ..., retry: _Optional[bool] = ...) -> None: ...

class StoredGroup(_message.Message):
    __slots__ = ("lengths", "tokens", "loss_mask", "scores", "logprobs", "masks", "ref_logprobs", "advantages", "advantage_lengths", "overrides", "group_overrides", "atropos", "distill_k", "distill_token_ids", "distill_logprobs")
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOSS_MASK_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MASKS_FIELD_NUMBER: _ClassVar[int]
    REF_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGES_FIELD_NUMBER: _ClassVar[int]
    ADVANTAGE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    GROUP_OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    ATROPOS_FIELD_NUMBER: _ClassVar[int]
    DISTILL_K_FIELD_NUMBER: _ClassVar[int]
    DISTILL_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DISTILL_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    lengths: bytes
    tokens: bytes
    loss_mask: bytes
    scores: bytes
    logprobs: bytes
    masks: bytes
    ref_logprobs: bytes
    advantages: bytes
    advantage_lengths: bytes
    overrides: _containers.RepeatedScalarFieldContainer[str]
    group_overrides: str
    atropos: str
    distill_k: bytes
    distill_token_ids: bytes
    distill_logprobs: bytes
    def __init__(self, lengths: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., loss_mask: _Optional[bytes] = ..., scores: _Optional[bytes] = ..., logprobs: _Optional[bytes] = ..., masks: _Optional[bytes] = ..., ref_logprobs: _Optional[bytes] = ..., advantages: _Optional[bytes] = ..., advantage_lengths: _Optional[bytes] = ..., overrides: _Optional[_Iterable[str]] = ..., group_overrides: _Optional[str] = ..., atropos: _Optional[str] = ..., distill_k: _Optional[bytes] = ..., distill_token_ids: _Optional[bytes] = ..., distill_logprobs: _Optional[bytes] = ...) -> None: ...
