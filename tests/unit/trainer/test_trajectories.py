"""What the trainer makes of answers of the trajectory server that are no answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.protocol import trajectories_pb2_grpc as pb_grpc
from tinker_atropos.trainer.failures import ConfigError, FencedError, StoreDamagedError, StoreLostError
from tinker_atropos.trainer.trajectories import TrajectoryClient


class Refusing(pb_grpc.TrajectoriesServicer):
    """Answers Ack with one status; everything else is not implemented."""

    def __init__(self) -> None:
        self.code = grpc.StatusCode.OK

    async def Ack(self, request: pb.AckRequest, context: grpc.aio.ServicerContext) -> None:  # type: ignore[type-arg]
        await context.abort(self.code, "because of group 7")


@pytest.fixture
async def server() -> AsyncIterator[tuple[Refusing, TrajectoryClient]]:
    refusing, rpc = Refusing(), grpc.aio.server()
    pb_grpc.add_TrajectoriesServicer_to_server(refusing, rpc)  # type: ignore[no-untyped-call]
    port = rpc.add_insecure_port("127.0.0.1:0")
    await rpc.start()
    async with TrajectoryClient(f"127.0.0.1:{port}", None, lambda _: None) as client:
        yield refusing, client
    await rpc.stop(None)


ENDS = {
    "fenced": (grpc.StatusCode.FAILED_PRECONDITION, FencedError, "Ack was refused: because of group 7"),
    "a store that was lost": (grpc.StatusCode.ABORTED, StoreLostError, "because of group 7"),
    "a store that is damaged": (
        grpc.StatusCode.DATA_LOSS,
        StoreDamagedError,
        "the trajectory server's store is damaged: because of group 7; restore what it names from a copy, or start a "
        "new run",
    ),
    "another token": (grpc.StatusCode.UNAUTHENTICATED, ConfigError, "give both the same token file"),
    "a wrong field": (grpc.StatusCode.INVALID_ARGUMENT, ConfigError, "because of group 7 (INVALID_ARGUMENT)"),
}


@pytest.mark.parametrize(("code", "kind", "message"), ENDS.values(), ids=ENDS)
async def test_ends(
    code: grpc.StatusCode, kind: type[Exception], message: str, server: tuple[Refusing, TrajectoryClient]
) -> None:
    server[0].code = code
    with pytest.raises(kind) as caught:
        await server[1].ack(pb.AckRequest())
    assert message in str(caught.value)


async def test_a_server_of_an_earlier_version_knows_no_finish(server: tuple[Refusing, TrajectoryClient]) -> None:
    answer = await server[1].finish(1)
    assert not answer.HasField("ledger") and (answer.exported_to, answer.problem) == ("", "")
