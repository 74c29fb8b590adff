"""The plan of a configuration that was kept joins the plan of the base."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from three_walls.tuning.make_space import join_planned
from three_walls.tuning.trials import ExpectedGain, Tunable, Variant


def entry(rule: str, label: str, gain: float, **config: int) -> Tunable:
    words = tuple(f"{key}={value}" for key, value in config.items())
    expected = ExpectedGain(gain - 0.1, gain, gain + 0.1)
    return Tunable(rule, (Variant(label, words, gain=expected, config=config),), kind="lever")


BATCH = entry("micro-batch", "batch of 2", 0.2, micro_batch_size=2)
FUSED = entry("fuse", "fuse", 0.1, fused=1)


def test_a_new_entry_is_another_setting_and_one_known_already_is_not_repeated() -> None:
    assert join_planned((BATCH,), (FUSED, BATCH), {}) == (BATCH, FUSED)


def test_an_entry_that_was_kept_goes_on_from_its_value() -> None:
    (joined,) = join_planned(
        (BATCH,), (entry("micro-batch", "batch of 4", 0.1, micro_batch_size=4),), {"micro-batch": "batch of 2"}
    )
    first, further = joined.values
    assert first == BATCH.values[0]  # runs of it keep their number
    assert further.words == ("micro_batch_size=2", "micro_batch_size=4")
    assert further.config == {"micro_batch_size": 4}
    assert further.gain
    assert astuple(further.gain) == pytest.approx((1 - 0.9 * 1.0, 1 - 0.8 * 0.9, 1 - 0.7 * 0.8))


def test_another_value_of_an_entry_that_was_dropped_is_tried_by_itself() -> None:
    (joined,) = join_planned((BATCH,), (entry("micro-batch", "batch of 2", 0.1, micro_batch_size=4),), {})
    assert [each.words for each in joined.values] == [("micro_batch_size=2",), ("micro_batch_size=4",)]
    assert len({each.label for each in joined.values}) == 2
