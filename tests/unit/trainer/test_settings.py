"""What a trainer tells the trajectory server of its run when it takes it over."""

from __future__ import annotations

from typing import Any

from tinker_atropos.protocol import trajectories_pb2 as pb
from tinker_atropos.run.parse import parse_spec
from tinker_atropos.trainer.settings import TrainerSettings
from tinker_atropos.trajectories.settings import Settings, Share


def told(**spec: Any) -> pb.RunSettings:
    base = {
        "config": {"env": {"group_size": 4, "batch_size": 16}},
        "tinkerAPI": {"local": {"model": "tiny"}},
        "environments": [{"name": "a", "command": ["x"]}],
    }
    parsed, _ = parse_spec({**base, **spec})
    return TrainerSettings("run", "uid", 1, "me", parsed, "here:1", None, "key").run_settings()


def test_shares_of_a_batch() -> None:
    settings = told(
        config={"env": {"group_size": 4, "batch_size": 16, "inference_weight": 3, "min_batch_allocation": 0.25}},
        environments=[
            {"name": "a", "command": ["x"]},
            {"name": "b", "command": ["x"], "weight": 1, "minBatchShare": 0.25, "maxBatchShare": 0.5},
            {"name": "c", "command": ["x"], "config": {"min_batch_allocation": 0}},
        ],
    )
    assert Settings.from_message(settings).shares == (
        Share("a", 3.0, 0.25, 0.0),
        Share("b", 1.0, 0.25, 0.5),
        Share("c", 3.0, 0.0, 0.0),
    )


def test_what_becomes_of_groups_that_do_not_pack_or_whose_version_nobody_knows() -> None:
    settings = Settings.from_message(told())
    assert (settings.unpackable, settings.unknown_version) == ("wait", "accept")
    settings = Settings.from_message(told(apiServer={"unpackable": "Short", "unknownVersion": "Drop"}))
    assert (settings.unpackable, settings.unknown_version) == ("short", "drop")
