"""The training loop: take over, lease, train, acknowledge, cover, publish; again after every kind of trouble.

Exactly once rests on the order of these calls. `Ack(k)` follows the end of optim_step(k); the state of step k is
submitted before anything of step k + 1, and `Cover(k)` is recorded before `Ack(k + 1)`. Whenever the trainer dies, at
most one acknowledged step is not covered: the next epoch gets that batch again in the same composition.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol.progress import CheckpointReport, LedgerReport, ProgressAnswer, TokensReport
from tinker_atropos.trainer import checkpoints
from tinker_atropos.trainer.datums import build_batch
from tinker_atropos.trainer.failures import (
    StartupError,
    StoppedError,
    StoreLostError,
    TrainerError,
    TrainingClientLostError,
)
from tinker_atropos.trainer.reporting import Reporter
from tinker_atropos.trainer.rewards import environment_reports, mean_staleness, reward_report, warning_reports
from tinker_atropos.trainer.service import SubmittedStep, TinkerService
from tinker_atropos.trainer.settings import STATE_TTL, TrainerSettings
from tinker_atropos.trainer.trajectories import LEASE_SECONDS, TrajectoryClient

log = logging.getLogger(__name__)

EXPORT_PAUSES = (2.0, 5.0, 15.0, 0.0)
"""Seconds between the tries to have the ledger exported."""

CLIENTS_WITHOUT_PROGRESS = 5
"""So many training clients in a row may be lost without a step between them; then the Job decides."""


@dataclass
class Position:
    """Where the run is in this process's lineage."""

    epoch: int = 0
    state: pb.State = field(default_factory=pb.State)
    named: CheckpointReport | None = None


@dataclass(frozen=True)
class Result:
    """A run that is complete."""

    step: int
    sampler_weights: str
    state: str
    problem: str = ""
    """What could not be done besides, for people."""


class Pipeline:
    """One trainer process. `run()` returns only when the final weights are saved."""

    def __init__(
        self,
        settings: TrainerSettings,
        trajectories: TrajectoryClient,
        open_service: Callable[[], TinkerService],
        reporter: Reporter,
        stopping: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._spec = settings.spec
        self._tinker = settings.spec.config.tinker
        self._total = settings.spec.config.env.total_steps
        self._trajectories = trajectories
        self._open_service = open_service
        self._reporter = reporter
        self._stopping = stopping
        self._service: TinkerService | None = None
        self._position = Position()
        self._tokens = pb.Tokens()
        self._retention = checkpoints.Retention()
        self._background: set[asyncio.Task[None]] = set()
        self._seconds_per_step: float | None = None
        self.is_training = False
        """Whether there may be a step in flight, which is worth a wait when a signal comes."""

    async def run(self) -> Result:
        """Train to the end. Raises TrainerError with the sentence for people, StoppedError after a signal."""
        lost_without_progress = 0
        while True:
            before = self._position.state.step
            try:
                self.is_training = False
                await self._take_over()
                self.is_training = True
                return await self._train()
            except StoreLostError as error:
                log.warning(
                    "the trajectory store was lost (%s); taking over again at step %d", error, self._position.state.step
                )
                await self._close("interrupted", "trajectory store lost")
            except TrainingClientLostError as error:
                await self._close("errored", str(error))
                lost_without_progress = 1 if self._position.state.step > before else lost_without_progress + 1
                if lost_without_progress >= CLIENTS_WITHOUT_PROGRESS:
                    raise TrainerError(
                        f"{lost_without_progress} training clients were lost in a row at step {before}, "
                        f"the last one by {error}; the Tinker API is not usable now"
                    ) from error
                pause = min(60.0, 2.0**lost_without_progress)
                self._reporter.waiting(f"the training client was lost ({error}); a new one follows in {pause:.0f} s")
                await asyncio.sleep(pause)

    # -- taking over

    async def _take_over(self) -> None:
        known = self._fallback(self._reporter.answer)
        request = pb.TakeoverRequest(
            settings=self._settings.run_settings(),
            holder=self._settings.holder,
            fallback=known,
            after_epoch=max(self._position.epoch, self._reporter.answer.epoch),
        )
        deadline = self._spec.deadlines.startup_seconds
        try:
            async with asyncio.timeout(deadline):
                answer = await self._trajectories.takeover(request)
        except TimeoutError as error:
            raise StartupError(
                f"the trajectory server at {self._settings.trajectories} did not answer within {deadline:.0f} s; "
                "see the logs of the API server's pod, or raise deadlines.startup"
            ) from error
        if answer.store_was_empty and known is not None:
            log.warning("the trajectory store is empty; going on from step %d of the run's status", known.step)
        self._position.epoch = answer.epoch
        self._position.state = answer.state if answer.HasField("state") else pb.State()
        state = self._position.state
        self._tokens = pb.Tokens(sampled=state.tokens.sampled, trained=state.tokens.trained)
        log.info(
            "took the run over",
            extra={"epoch": answer.epoch, "step": state.step, "replayed_batches": answer.replayed_batches},
        )
        self._reporter.update(epoch=answer.epoch, step=state.step, message="opening the training client")
        self._service = self._open_service()
        await self._service.open(self._spec.base_model, self._tinker, state.checkpoint_path or None, deadline)
        self._retention = checkpoints.Retention()
        path = await self._service.save_sampler(checkpoints.sampler_name(answer.epoch, state.step), STATE_TTL)
        await self._publish(state.step, path)
        if not state.checkpoint_path:
            # Without a state of step 0 a crash in step 1 would start from new random LoRA weights.
            await self._cover_start(path)

    async def _cover_start(self, sampler_path: str) -> None:
        assert self._service is not None
        path = await self._service.save_state(checkpoints.rolling_name(self._position.epoch, 0), STATE_TTL)
        await self._cover(
            pb.State(step=0, checkpoint_path=path, sampler_path=sampler_path, time=time.time()), is_named=False
        )

    def _fallback(self, answer: ProgressAnswer) -> pb.State | None:
        """Newest state that this process or the run's status knows, for a store that knows none."""
        if self._position.state.checkpoint_path:
            return self._position.state
        if answer.checkpoint is not None:
            return pb.State(step=answer.checkpoint.step, checkpoint_path=answer.checkpoint.path)
        return None

    # -- training

    async def _train(self) -> Result:
        settling: asyncio.Task[None] | None = None
        try:
            for step in range(self._position.state.step + 1, self._total + 1):
                started = time.monotonic()
                batch = await self._lease_beside(step, settling)
                async with self._renewing(batch.lease_id):
                    settling = await self._step(step, batch, settling)
                self._timed(time.monotonic() - started)
            if settling is not None:
                await settling
        finally:
            if settling is not None:
                settling.cancel()
        return await self._finish()

    async def _lease_beside(self, step: int, settling: asyncio.Task[None] | None) -> pb.Batch:
        """Lease while the last step settles. A failure there ends the wait: without its policy none comes."""
        lease = asyncio.create_task(self._lease(step))
        stop = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({lease, stop, *([settling] if settling else [])}, return_when=asyncio.FIRST_COMPLETED)
            if settling is not None and settling.done():
                settling.result()
                await asyncio.wait({lease, stop}, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                if settling is not None:
                    await settling
                raise StoppedError
            return await lease
        finally:
            lease.cancel()
            stop.cancel()

    async def _lease(self, step: int) -> pb.Batch:
        started = renewed = time.monotonic()
        while True:
            answer = await self._trajectories.lease(self._position.epoch, step)
            self._reporter.warned(warning_reports(answer.warnings))
            if answer.HasField("batch"):
                return answer.batch
            self._reporter.update(phase="Waiting")
            self._reporter.waiting(answer.waiting_for or "waiting for rollouts")
            now = time.monotonic()
            if step == 1 and now - started > self._spec.deadlines.startup_seconds:
                raise StartupError(
                    f"no batch came within {self._spec.deadlines.startup} ({answer.waiting_for or 'no rollouts'}); "
                    "see the logs of the environments, or raise deadlines.startup"
                )
            if now - renewed > STATE_TTL / 4 and self._service is not None:
                renewed = now
                paths = self._retention.current(self._position.state.checkpoint_path)
                await self._service.renew(paths, STATE_TTL)

    @contextlib.asynccontextmanager
    async def _renewing(self, lease_id: str) -> AsyncIterator[None]:
        async def renew() -> None:
            while True:
                await asyncio.sleep(LEASE_SECONDS / 3)
                await self._trajectories.renew(self._position.epoch, lease_id)

        task = asyncio.create_task(renew())
        try:
            yield
        finally:
            task.cancel()

    async def _step(self, step: int, batch: pb.Batch, settling: asyncio.Task[None] | None) -> asyncio.Task[None]:
        """Train one batch; returns the task that covers and publishes it, which the next step waits for."""
        assert self._service is not None
        epoch = self._position.epoch
        groups = list(batch.groups)
        built = build_batch(
            groups,
            max_length=self._tinker.max_token_trainer_length,
            needs_logprobs=self._tinker.loss_fn != "cross_entropy",
        )
        self._reporter.update(phase="Training", message=f"step {step} of {self._total}")
        is_named = checkpoints.is_named_step(step, self._spec.checkpoint_interval)
        submitted = self._service.submit(
            built.datums,
            self._tinker,
            sampler_name=checkpoints.sampler_name(epoch, step),
            state_name=checkpoints.named(step) if is_named else checkpoints.rolling_name(epoch, step),
            state_ttl=None if is_named else STATE_TTL,
            sampler_ttl=STATE_TTL,
        )
        result = await self._service.step_result(submitted)
        if settling is not None:
            await settling  # Cover(k - 1) before Ack(k)
        ledger = await self._trajectories.ack(
            pb.AckRequest(
                epoch=epoch,
                lease_id=batch.lease_id,
                step=step,
                no_signal=not built.has_signal,
                dropped=[pb.DroppedGroup(id=group, reason=reason) for group, reason in built.dropped.items()],
            )
        )
        reward = reward_report(groups)
        self._tokens.sampled += built.sampled_tokens
        self._tokens.trained += built.trained_tokens
        state = pb.State(step=step, tokens=self._tokens, reward=reward.mean if reward else 0.0)
        self._reporter.update(
            step=step,
            reward=reward,
            loss=result.loss,
            staleness=mean_staleness(groups),
            environments=environment_reports(groups),
            tokens=TokensReport(sampled=state.tokens.sampled, trained=state.tokens.trained),
            ledger=_ledger(ledger),
            message="" if built.has_signal else f"step {step}: no group taught anything, the weights did not change",
        )
        log.info(
            "step %d/%d reward %.4f",
            step,
            self._total,
            state.reward,
            extra={
                "step": step,
                "epoch": epoch,
                "reward": state.reward,
                "loss": result.loss,
                "groups": len(groups),
                "datums": len(built.datums),
                "groups_without_signal": built.without_signal,
                "groups_dropped": len(built.dropped),
                "replay": batch.replay,
                "queued_groups": batch.queued_groups,
            },
        )
        return asyncio.create_task(self._settle(submitted, state, is_named))

    async def _settle(self, submitted: SubmittedStep, state: pb.State, is_named: bool) -> None:
        assert self._service is not None
        state.sampler_path = await self._service.path(submitted.sampler, "save_weights_for_sampler")
        await self._publish(state.step, state.sampler_path)
        state.checkpoint_path = await self._service.path(submitted.state, "save_state")
        state.time = time.time()
        await self._cover(state, is_named)

    async def _publish(self, step: int, path: str) -> None:
        epoch = self._position.epoch
        policy = pb.Policy(
            version=pb.PolicyVersion(epoch=epoch, step=step), sampler_path=path, base_model=self._spec.base_model
        )
        await self._trajectories.publish(epoch, policy)
        self._delete_later(self._retention.sampler_saved(path))

    async def _cover(self, state: pb.State, is_named: bool) -> None:
        ledger = await self._trajectories.cover(self._position.epoch, state)
        self._position.state = state
        report = CheckpointReport(path=state.checkpoint_path, step=state.step, time=_rfc3339(state.time))
        if is_named:
            self._position.named = report
        self._reporter.update(checkpoint=report, named_checkpoint=self._position.named, ledger=_ledger(ledger))
        self._delete_later(self._retention.state_covered(state.checkpoint_path, is_named))

    async def _finish(self) -> Result:
        """Save the final weights, really; only then is the run complete."""
        assert self._service is not None
        self._reporter.update(phase="Saving", message="saving the final weights")
        weights = await self._service.save_sampler(checkpoints.FINAL, None)
        path = await self._service.save_state(checkpoints.FINAL, None)
        state = pb.State()
        state.CopyFrom(self._position.state)
        state.checkpoint_path, state.sampler_path, state.time = path, weights, time.time()
        await self._cover(state, is_named=True)
        await self._service.delete([*self._retention.samplers])
        if self._background:
            await asyncio.wait(self._background, timeout=30)
        problem = await self._export()
        await self._close("success")
        return Result(state.step, weights, path, problem)

    async def _export(self) -> str:
        """Have the ledger exported where the run wants it. A problem with that undoes no training: it is told."""
        problem = ""
        for pause in EXPORT_PAUSES:
            answer = await self._trajectories.finish(self._position.epoch)
            if answer.HasField("ledger"):
                self._reporter.update(ledger=_ledger(answer.ledger), ledger_export=answer.exported_to or None)
            problem = answer.problem
            if not problem:
                break
            log.warning("%s", problem)
            self._reporter.waiting(f"{problem}; trying again")
            await asyncio.sleep(pause)
        return problem

    # -- housekeeping

    def _delete_later(self, paths: list[str]) -> None:
        if not paths or self._service is None:
            return
        task = asyncio.create_task(self._service.delete(paths))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _close(self, status: str, detail: str = "") -> None:
        service, self._service = self._service, None
        if service is not None:
            await service.close(status, detail)  # type: ignore[arg-type]

    async def stop(self, detail: str) -> None:
        """Give the session back after an end that is not success."""
        await self._close("interrupted" if self._stopping.is_set() else "errored", detail)

    def _timed(self, seconds: float) -> None:
        previous = self._seconds_per_step
        self._seconds_per_step = seconds if previous is None else 0.7 * previous + 0.3 * seconds
        self._reporter.update(seconds_per_step=round(self._seconds_per_step, 3))


def _ledger(sums: pb.LedgerSums) -> LedgerReport:
    return LedgerReport(
        stored=sums.stored,
        queued=sums.queued,
        leased=sums.leased,
        trained=sums.trained,
        covered=sums.covered,
        dropped=sums.dropped,
    )


def _rfc3339(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
