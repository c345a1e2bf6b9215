"""Environments keep id, name and weight over restarts; those that fall silent are gone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tinker_atropos.trajectories.registry import SILENT_SECONDS, Environment, Registry


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def register(
    registry: Registry, name: str = "", instance: str = "", desired_name: str = "e", **more: Any
) -> Environment:
    values = {"max_token_length": 64, "weight": 1.0, "group_size": 4, "min_batch_allocation": None, **more}
    environment = registry.plan(name=name, instance=instance, desired_name=desired_name, **values)
    registry.put(asdict(environment))
    registry.heard(environment.id)
    return environment


def test_the_same_identity_is_the_same_environment() -> None:
    registry = Registry()
    first = register(registry, "gsm8k", "gsm8k-0", group_size=4)
    again = register(registry, "gsm8k", "gsm8k-0", group_size=8)
    other = register(registry, "gsm8k", "gsm8k-1")
    assert (first.id, again.id, other.id) == (0, 0, 1)
    assert (again.wandb_name, again.group_size) == (first.wandb_name, 8)


def test_without_identity_the_desired_name_is_it() -> None:
    registry = Registry()
    names = [register(registry, desired_name=name).wandb_name for name in ("a", "b", "a")]
    assert names == ["a_0", "b_0", "a_0"]


def test_a_direct_environment_is_not_taken_for_one_behind_a_relay() -> None:
    registry = Registry()
    register(registry, "a", "a-0", desired_name="a")
    assert register(registry, desired_name="a").id == 1


def test_who_falls_silent_is_gone_and_comes_back_when_heard() -> None:
    """AP-22, AP-29: upstream keeps the dead for ever, with their weight."""
    clock = Clock()
    registry = Registry(clock)
    register(registry, desired_name="a")
    register(registry, desired_name="b")
    clock.now = SILENT_SECONDS
    registry.heard(1)
    clock.now = SILENT_SECONDS + 1
    assert (registry.alive(0), registry.alive(1), registry.gone()) == (False, True, {"a"})
    registry.heard(0)
    assert registry.gone() == set()


def test_an_environment_that_is_busy_or_only_starting_is_not_gone() -> None:
    """AP-30: scoring blocks its event loop, and its libraries take 13 s to load; nothing answers meanwhile."""
    clock = Clock()
    registry = Registry(clock)
    register(registry)
    clock.now = 30.0
    assert registry.alive(0) and registry.gone() == set()


def test_one_living_instance_keeps_the_environment() -> None:
    clock = Clock()
    registry = Registry(clock)
    register(registry, "a", "a-0")
    register(registry, "a", "a-1")
    clock.now = SILENT_SECONDS + 1
    registry.heard(1)
    assert registry.gone() == set()


def test_after_a_start_of_the_server_everybody_has_time_to_be_heard() -> None:
    clock = Clock()
    registry = Registry(clock)
    register(registry)
    clock.now = 1000.0
    again = Registry(clock)
    for row in registry.to_json():
        again.put(row)
    assert again.alive(0)
    clock.now += SILENT_SECONDS + 1
    assert not again.alive(0)


def test_who_says_goodbye_is_gone_until_it_registers_again() -> None:
    registry = Registry()
    register(registry)
    registry.disconnect(0)
    assert registry.gone() == {"e"}
    register(registry)
    assert registry.gone() == set()


def test_strangers_leave_no_trace() -> None:
    registry = Registry()
    registry.heard(99)
    assert not registry.alive(99) and registry.gone() == set()
