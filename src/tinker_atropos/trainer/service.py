"""The trainer's side of the Tinker API: one training client, its futures, and what its errors mean.

The SDK waits five minutes on posts and for ever on futures, and never heals a client after a hole in its sequence; the
deadlines and the decision to start anew are therefore here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tinker_atropos.run.model import TinkerConfig
from tinker_atropos.run.problems import nearest
from tinker_atropos.trainer.datums import Datum
from tinker_atropos.trainer.failures import (
    ConfigError,
    KeyRefusedError,
    StartupError,
    StateLostError,
    TrainingClientLostError,
)

log = logging.getLogger(__name__)

STEP_SECONDS = 3600.0
"""One optimizer step may take this long at the service before its client is given up."""


@dataclass(frozen=True)
class SubmittedStep:
    """Futures of one optimizer step, all submitted before the first is waited for."""

    forward_backward: Any
    optim_step: Any
    sampler: Any
    state: Any


@dataclass(frozen=True)
class StepResult:
    """What the service says of a step."""

    loss: float | None
    metrics: Mapping[str, float]


class TinkerService:
    """One ServiceClient and one TrainingClient; after TrainingClientLostError it is closed and a new one made."""

    def __init__(
        self, base_url: str | None, api_key: str | None, metadata: Mapping[str, str], display_name: str
    ) -> None:
        self._base_url = base_url
        self._api_key = api_key
        self._metadata = dict(metadata)
        self._display_name = display_name
        self._service: Any = None
        self._training: Any = None
        self._has_session = False

    async def open(
        self, base_model: str, tinker_config: TinkerConfig, state_path: str | None, deadline_seconds: float
    ) -> None:
        """Create the training client: anew, or from a saved state with its optimizer.

        Raises KeyRefusedError, ConfigError, StateLostError, StartupError, TrainingClientLostError.
        """
        import tinker

        async def connect() -> None:
            # The first use of a session blocks its caller, so it happens off the event loop.
            self._service = await asyncio.to_thread(
                tinker.ServiceClient,
                user_metadata=self._metadata,
                display_name=self._display_name,
                base_url=self._base_url,
                api_key=self._api_key,
            )
            if state_path:
                pending = await asyncio.to_thread(
                    self._service.create_training_client_from_state_with_optimizer,
                    state_path,
                    user_metadata=self._metadata,
                )
            else:
                pending = await asyncio.to_thread(
                    self._service.create_lora_training_client,
                    base_model,
                    rank=tinker_config.lora_rank,
                    seed=tinker_config.seed,
                    train_mlp=tinker_config.train_mlp,
                    train_attn=tinker_config.train_attn,
                    train_unembed=tinker_config.train_unembed,
                    user_metadata=self._metadata,
                )
            self._has_session = True
            self._training = await pending

        try:
            async with asyncio.timeout(deadline_seconds):
                await connect()
        except TimeoutError as error:
            raise StartupError(
                f"the Tinker API at {self._base_url or 'its default address'} did not give a training client within "
                f"{deadline_seconds:.0f} s; check the address and the service, or raise deadlines.startup"
            ) from error
        except tinker.RequestFailedError as error:
            raise await self._open_failure(base_model, state_path, str(error), error.category == "user") from error
        except (tinker.NotFoundError, tinker.BadRequestError, tinker.UnprocessableEntityError) as error:
            raise await self._open_failure(base_model, state_path, str(error), True) from error
        except Exception as error:  # the SDK also lets errors through that are none of its own kinds
            raise _meaning(error) from error

    async def _open_failure(self, base_model: str, state_path: str | None, text: str, by_user: bool) -> Exception:
        if not by_user:
            return TrainingClientLostError(text)
        if state_path:
            return StateLostError(
                f"the saved state {state_path} is gone ({_short(text)}); there is nothing to go on from, "
                "start a new run"
            )
        offered = await self._offered_models()
        if offered and base_model not in offered:
            meant = nearest(base_model, offered)
            fix = f"did you mean {meant!r}?" if meant else f"offered are {', '.join(sorted(offered)[:8])}"
            return ConfigError(f"the Tinker API does not offer the model {base_model!r}; {fix}")
        return ConfigError(f"the Tinker API refused the training client: {_short(text)}")

    async def _offered_models(self) -> set[str]:
        import tinker

        try:
            client = await asyncio.to_thread(tinker.RestClient, base_url=self._base_url, api_key=self._api_key)
            answer = await asyncio.wait_for(client.get_server_capabilities().coroutine(), 20)
        except (tinker.TinkerError, TimeoutError):
            return set()
        return {model.model_name for model in answer.supported_models if model.model_name}

    def submit(
        self,
        datums: Sequence[Datum],
        tinker_config: TinkerConfig,
        *,
        sampler_name: str,
        state_name: str,
        state_ttl: int | None,
        sampler_ttl: int,
    ) -> SubmittedStep:
        """Submit a whole step back to back: the service runs it in one go, in this order.

        Without datums (no learning signal) there is no update, only the saves.
        """
        import tinker

        forward_backward = optim_step = None
        if datums:
            wire = [_wire(datum, tinker_config.loss_fn) for datum in datums]
            forward_backward = self._training.forward_backward(
                wire, tinker_config.loss_fn, loss_fn_config=tinker_config.loss_fn_config
            )
            optim_step = self._training.optim_step(
                tinker.AdamParams(
                    learning_rate=tinker_config.learning_rate,
                    beta1=tinker_config.adam_beta1,
                    beta2=tinker_config.adam_beta2,
                    eps=tinker_config.adam_eps,
                    weight_decay=tinker_config.weight_decay,
                    grad_clip_norm=tinker_config.grad_clip_norm,
                )
            )
        sampler = self._training.save_weights_for_sampler(sampler_name, ttl_seconds=sampler_ttl)
        state = self._training.save_state(state_name, ttl_seconds=state_ttl, overwrite=True)
        return SubmittedStep(forward_backward, optim_step, sampler, state)

    async def step_result(self, submitted: SubmittedStep) -> StepResult:
        """Wait for forward_backward and optim_step."""
        if submitted.forward_backward is None:
            return StepResult(None, {})
        output = await self._wait(submitted.forward_backward, "forward_backward")
        answer = await self._wait(submitted.optim_step, "optim_step")
        metrics = {**dict(output.metrics), **dict(getattr(answer, "metrics", None) or {})}
        return StepResult(float(metrics["loss:sum"]) if "loss:sum" in metrics else None, metrics)

    async def path(self, future: Any, what: str) -> str:
        """Path that a save future resolves to."""
        return str((await self._wait(future, what)).path)

    async def save_sampler(self, name: str, ttl: int | None) -> str:
        """Save sampler weights and wait; their `tinker://` path."""
        return await self.path(
            self._training.save_weights_for_sampler(name, ttl_seconds=ttl), "save_weights_for_sampler"
        )

    async def save_state(self, name: str, ttl: int | None) -> str:
        """Save weights and optimizer and wait; their `tinker://` path."""
        return await self.path(self._training.save_state(name, ttl_seconds=ttl, overwrite=True), "save_state")

    async def _wait(self, future: Any, what: str) -> Any:
        try:
            async with asyncio.timeout(STEP_SECONDS):
                return await future
        except TimeoutError as error:
            raise TrainingClientLostError(f"{what} did not end within {STEP_SECONDS:.0f} s") from error
        except Exception as error:  # the SDK also lets errors through that are none of its own kinds
            raise _meaning(error) from error

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete saved states and sampler weights; what cannot be deleted expires by itself."""
        import tinker

        for path in paths:
            try:
                client = await asyncio.to_thread(tinker.RestClient, base_url=self._base_url, api_key=self._api_key)
                await asyncio.wait_for(client.delete_checkpoint_from_tinker_path(path).coroutine(), 30)
            except (tinker.TinkerError, TimeoutError) as error:
                log.info("could not delete %s, it expires by itself: %s", path, _short(str(error)))

    async def renew(self, paths: Sequence[str], ttl: int) -> None:
        """Let saved states and sampler weights live `ttl` seconds from now on."""
        import tinker

        for path in paths:
            try:
                client = await asyncio.to_thread(tinker.RestClient, base_url=self._base_url, api_key=self._api_key)
                await asyncio.wait_for(client.set_checkpoint_ttl_from_tinker_path(path, ttl).coroutine(), 30)
            except (tinker.TinkerError, TimeoutError) as error:
                log.warning("could not extend the life of %s: %s", path, _short(str(error)))

    async def close(self, status: Literal["success", "errored", "interrupted"], detail: str = "") -> None:
        """Finish the session; never fails, a service that is away forgets the session by itself."""
        if not self._has_session:
            return  # the SDK would make one now, and block this loop while the service is away
        try:
            async with asyncio.timeout(10):
                await self._service.close(status, detail=detail[:500] or None)
        except Exception as error:
            log.info("the session was not finished: %s", _short(str(error)))


def _wire(datum: Datum, loss_fn: str) -> Any:
    import tinker

    tensor = tinker.TensorData.from_numpy
    inputs: dict[str, Any] = {"target_tokens": tensor(datum.targets)}
    if loss_fn == "cross_entropy":
        inputs["weights"] = tensor(datum.advantages)
    else:
        inputs["logprobs"] = tensor(datum.logprobs)
        inputs["advantages"] = tensor(datum.advantages)
    return tinker.Datum(model_input=tinker.ModelInput.from_ints(datum.tokens.tolist()), loss_fn_inputs=inputs)


def _meaning(error: Exception) -> Exception:
    """What an SDK error means for the run."""
    import tinker

    # A key of the wrong form is refused by the SDK itself, with its most general error.
    refused = isinstance(error, tinker.AuthenticationError | tinker.PermissionDeniedError)
    if refused or (isinstance(error, tinker.TinkerError) and "api_key" in str(error)):
        return KeyRefusedError(
            f"the Tinker API refused the key ({_short(str(error))}); put a valid one into TINKER_API_KEY or into the "
            "Secret of tinkerAPI.keySecretRef"
        )
    return TrainingClientLostError(f"{type(error).__name__}: {_short(str(error))}")


def _short(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else "no reason given"
    return first[:300]
