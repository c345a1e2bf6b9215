"""Names of saved weights, and which of them may go."""

from __future__ import annotations

import pytest

from tinker_atropos.trainer import checkpoints


def test_a_redone_step_never_collides_with_its_first_try() -> None:
    assert checkpoints.sampler_name(1, 7) != checkpoints.sampler_name(2, 7)
    assert checkpoints.rolling_name(1, 7) != checkpoints.rolling_name(2, 7)


@pytest.mark.parametrize(
    ("step", "interval", "named"), [(10, 10, True), (9, 10, False), (10, 0, False), (20, 10, True)]
)
def test_named_checkpoint_every_n_steps(step: int, interval: int, named: bool) -> None:
    assert checkpoints.is_named_step(step, interval) is named


def test_a_rolling_state_goes_when_the_next_is_covered_and_a_named_one_stays() -> None:
    retention = checkpoints.Retention()
    assert retention.state_covered("s1", is_named=False) == []
    assert retention.state_covered("s2", is_named=False) == ["s1"]
    assert retention.state_covered("named", is_named=True) == ["s2"]
    assert retention.state_covered("s4", is_named=False) == []
    assert retention.state_covered("s4", is_named=False) == []


def test_the_newest_sampler_weights_stay() -> None:
    retention = checkpoints.Retention()
    deleted = [path for number in range(6) for path in retention.sampler_saved(f"w{number}")]
    assert deleted == ["w0", "w1"]
    assert retention.current("state") == ["w5", "state"]
