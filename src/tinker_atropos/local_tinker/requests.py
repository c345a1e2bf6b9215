"""JSON bodies of the Tinker API as this server reads them; fields it has no use for are let through."""

from __future__ import annotations

from typing import Any, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tinker_atropos.local_tinker.errors import UserError
from tinker_atropos.local_tinker.lora import LoraSettings

MAX_SAMPLES = 1024


class Body(BaseModel):
    """Newer clients may send more than is known here."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class CreateSession(Body):
    tags: list[str] = []
    user_metadata: dict[str, Any] | None = None
    project_id: str | None = None
    display_name: str | None = None


class SessionHeartbeat(Body):
    session_id: str


class FinishSession(Body):
    reason: dict[str, Any] = {}
    detail: str | None = None


class LoraConfig(Body):
    rank: int
    seed: int | None = None
    train_attn: bool = True
    train_mlp: bool = True
    train_unembed: bool = True

    def settings(self) -> LoraSettings:
        return LoraSettings(self.rank, self.seed, self.train_attn, self.train_mlp, self.train_unembed)


class OptimizerConfig(Body):
    type: str = "adamw"


class CreateModel(Body):
    session_id: str
    model_seq_id: int
    base_model: str
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = OptimizerConfig()
    user_metadata: dict[str, Any] | None = None


class LoadWeights(Body):
    """Either `session_id` and `model_seq_id` (create by loading) or `model_id` and `seq_id` (into a fresh model)."""

    model_id: str | None = None
    seq_id: int | None = None
    session_id: str | None = None
    model_seq_id: int | None = None
    base_model: str | None = None
    path: str
    optimizer: bool = False
    user_metadata: dict[str, Any] | None = None


class ModelCall(Body):
    model_id: str


class AdamFields(Body):
    learning_rate: float = Field(default=1e-4, ge=0, allow_inf_nan=False)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-12, ge=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    grad_clip_norm: float = Field(default=0.0, allow_inf_nan=False)


class SequencedCall(ModelCall):
    seq_id: int | None = None


class OptimStep(SequencedCall):
    """Parameters are checked when the call's turn comes: refusing it earlier would leave a hole in the sequence."""

    adam_params: dict[str, Any] | None = None
    optimizer_params: dict[str, Any] | None = None


class SaveWeights(SequencedCall):
    path: str | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveWeightsForSampler(SequencedCall):
    path: str | None = None
    sampling_session_seq_id: int | None = None
    kind: str = "snapshot"
    ttl_seconds: int | None = None
    user_metadata: dict[str, str] | None = None


class CreateSamplingSession(Body):
    session_id: str
    sampling_session_seq_id: int
    base_model: str | None = None
    model_path: str | None = None


class Chunk(Body):
    type: str = "encoded_text"
    tokens: list[int] | None = None


class Prompt(Body):
    chunks: list[Chunk]

    def token_ids(self) -> list[int]:
        ids: list[int] = []
        for chunk in self.chunks:
            if chunk.type != "encoded_text" or chunk.tokens is None:
                raise UserError(
                    f"prompt: a chunk of type {chunk.type!r} is not supported; the local model reads only tokens"
                )
            ids.extend(chunk.tokens)
        return ids


class SamplingParams(Body):
    max_tokens: int | None = Field(default=None, ge=1)
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None
    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_k: int = -1
    top_p: float = Field(default=1.0, gt=0, le=1)


class Sample(Body):
    num_samples: int = Field(default=1, ge=1, le=MAX_SAMPLES)
    prompt: Prompt
    sampling_params: SamplingParams
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: int | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: Any = None
    prompt_alt_tokens_k: int = 0


class RetrieveFuture(Body):
    request_id: str


class WeightsInfo(Body):
    tinker_path: str


class TimeToLive(Body):
    ttl_seconds: int | None = None


AnyBody = TypeVar("AnyBody", bound=BaseModel)


async def read(request: web.Request, form: type[AnyBody]) -> AnyBody:
    """The request's body in its form; a wrong one is answered with every field that is wrong."""
    body = await request.read()
    try:
        return form.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise UserError(describe(error)) from None


def describe(error: ValidationError) -> str:
    """Field, value and fix of everything that a check found, in one line."""
    found = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"]) or "body"
        given = "" if item["type"] == "missing" else f" (given: {str(item['input'])[:80]})"
        found.append(f"{field}: {item['msg']}{given}")
    return "; ".join(found)
