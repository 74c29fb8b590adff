"""How much of the expert-parallel transfer another micro-batch can cover."""

from __future__ import annotations

import pytest

from three_walls.facts.communication_facts import _overlappable_fraction
from three_walls.megatron.parallel_layout import ParallelLayout


def layout(microbatches: int | None, pipeline: int | None = 1, virtual: int = 1) -> ParallelLayout:
    return ParallelLayout(
        world=pipeline,
        ranks_per_node=None,
        tensor=1,
        pipeline=pipeline,
        virtual=virtual,
        context=1,
        expert=1,
        expert_tensor=1,
        micro_batch=1,
        global_batch=microbatches,
    )


def test_without_a_pipeline_the_first_forward_and_the_last_backward_pass_have_no_partner() -> None:
    assert _overlappable_fraction(layout(4)) == 3 / 4
    assert _overlappable_fraction(layout(1)) == 0


@pytest.mark.parametrize(
    ("virtual", "fraction"),
    [
        (1, 11 / 16),  # as with two chunks, because the overlap asks for chunks
        (2, 11 / 16),
        (4, 19 / 32),
    ],
)
def test_the_passes_that_fill_a_pipeline_have_no_partner(virtual: int, fraction: float) -> None:
    """Eight micro-batches on four stages: with two chunks 4 + 1 of 16 passes, with four 12 + 1 of 32."""
    assert _overlappable_fraction(layout(8, pipeline=4, virtual=virtual)) == fraction


def test_a_pipeline_that_is_never_full_covers_next_to_nothing() -> None:
    assert _overlappable_fraction(layout(2, pipeline=4)) == 0


def test_of_unknown_micro_batches_all_may_be_covered() -> None:
    assert _overlappable_fraction(layout(None)) == 1
    assert _overlappable_fraction(layout(8, pipeline=None)) == 1
