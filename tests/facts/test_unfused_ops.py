"""Work that fused kernels would take over, found by the operators around the launches."""

from __future__ import annotations

import polars as pl
import pytest

from tests.analyzed_samples import analyze_sample, reads_sample
from tests.facts import views
from tests.facts.model_runs import toy
from tests.facts.views import run_view, step_view
from tests.step.test_operators import nest
from three_walls.facts import unfused_ops
from three_walls.facts.recoverable import ProfilersPart
from three_walls.lib.fact import FactValue
from three_walls.step.intervals import mask_of
from three_walls.step.operators import Operators
from three_walls.step.ownership import LABELS
from three_walls.step.step_view import StepView

STEP = (0, 1000)
STARVED = mask_of(["launch_starved"], LABELS)
CONFIG = toy()  # hidden 8, 4 heads of 2 channels in 2 groups, 4 experts, 2 of them per token
UNLABELLED = pl.DataFrame({"pass": [None]})
TURNED = "aten::mul, op_id = 1, sizes = [[16, 1, 4, 2], [16, 1, 1, 2]]"


def operations(*rows: tuple[str, int, int, int]) -> pl.DataFrame:
    """Rows of (category, launch, start, end), launched on thread 1."""
    found = [(0, "kernel", category, start, end, 1, launch) for category, launch, start, end in rows]
    columns = ["rank_index", "kind", "category", "start_ns", "end_ns", "launch_thread", "launch_start_ns"]
    return pl.DataFrame(found, schema=columns, orient="row")


def slices(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"start_ns": pl.Int64, "end_ns": pl.Int64, "active": pl.Int64}, orient="row")


def measure_step(
    step: StepView, operators: Operators, labelled_step: pl.DataFrame = UNLABELLED
) -> dict[str, tuple[FactValue, str | None]]:
    """Without a log, which would take a share of the launch-starved time."""
    without = ProfilersPart(None, 1000)
    return views.measure(
        unfused_ops, step=step, run=step.run, operators=operators, labelled_step=labelled_step, profilers_part=without
    )


def measure(
    kernels: pl.DataFrame, *ranges: tuple[str, int, int], cut: pl.DataFrame | None = None
) -> dict[str, int | str | None]:
    """Each fact's value, or the reason why there is none."""
    operators = nest(*((text, start, end, 1) for text, start, end in ranges))
    step = step_view(kernels, slices() if cut is None else cut, run_view(CONFIG), STEP)
    found = measure_step(step, operators)
    return {name: reason or value for name, (value, reason) in found.items()}  # type: ignore[misc]


def test_the_kernels_of_the_loss_are_those_launched_inside_its_autograd_function() -> None:
    kernels = operations(("elementwise", 5, 100, 130), ("elementwise", 25, 200, 210), ("elementwise", 45, 300, 400))
    found = measure(
        kernels,
        ("_VocabParallelCrossEntropy, seq = 1, op_id = 1, sizes = [[16, 1, 32]]", 0, 10),
        ("_VocabParallelCrossEntropyBackward, seq = 1, op_id = 2", 20, 30),
        ("aten::add, op_id = 3, sizes = [[16, 1, 32]]", 40, 50),
    )
    assert found["loss_kernels_ns"] == 30 + 10


def test_time_in_which_something_else_computes_is_not_counted() -> None:
    kernels = operations(("elementwise", 5, 100, 130), ("gemm", 50, 110, 500))
    found = measure(kernels, ("_VocabParallelCrossEntropy, seq = 1, op_id = 1, sizes = [[16, 1, 32]]", 0, 10))
    assert found["loss_kernels_ns"] == 10


def test_concurrent_exchanges_do_not_make_it_less() -> None:
    kernels = operations(("elementwise", 5, 100, 130), ("ep_all_to_all", 50, 110, 500))
    found = measure(kernels, ("_VocabParallelCrossEntropy, seq = 1, op_id = 1, sizes = [[16, 1, 32]]", 0, 10))
    assert found["loss_kernels_ns"] == 30


def test_only_what_lies_in_the_step_counts() -> None:
    found = measure(operations(("elementwise", 5, 990, 1030)), (TURNED, 0, 10))
    assert found["rope_kernels_ns"] == 10


def test_a_gradient_is_summed_in_the_hook_of_its_accumulation() -> None:
    kernels = operations(("elementwise", 5, 100, 130), ("elementwise", 25, 200, 210))
    found = measure(
        kernels,
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad, op_id = 1", 0, 10),
        ("aten::add_, op_id = 3, sizes = [[8, 8], [8, 8], []]", 4, 7),
        ("aten::add_, op_id = 4, sizes = [[8, 8], [8, 8], []]", 20, 30),
    )
    assert found["wgrad_accumulation_kernels_ns"] == 30


@pytest.mark.parametrize(
    ("text", "is_turned"),
    [
        (TURNED, True),
        ("aten::neg, op_id = 1, sizes = [[16, 1, 2, 1]]", True),  # the half that is turned, of the keys
        (
            "aten::copy_, op_id = 1, sizes = [[16, 1, 2, 2, 2], [16, 1, 2, 2, 2]]",
            False,
        ),  # keys repeated for their group
        ("aten::mul, op_id = 1, sizes = [[16, 1, 3, 2], []]", False),  # no such number of heads
        ("aten::mul, op_id = 1, sizes = [[16, 1, 8], []]", False),
    ],
)
def test_the_rotary_embedding_works_on_tensors_of_queries_or_keys(text: str, is_turned: bool) -> None:
    found = measure(operations(("elementwise", 5, 100, 130)), (text, 0, 10))
    assert (found["rope_kernels_ns"] == 30) is is_turned


def test_the_innermost_operator_with_shapes_decides() -> None:
    found = measure(
        operations(("elementwise", 5, 100, 130)),
        ("MulBackward0, seq = 1, op_id = 1, sizes = [[16, 1, 8]]", 0, 10),
        (TURNED, 2, 8),
        ("Torch-Compiled Region: 1/2, op_id = 7", 3, 7),
    )
    assert found["rope_kernels_ns"] == 30


@pytest.mark.parametrize(
    ("category", "text", "is_choice"),
    [
        ("router", "aten::topk, op_id = 1, sizes = [[16, 4], [], []]", True),
        ("elementwise", "aten::sum, op_id = 1, sizes = [[16, 1, 2], []]", True),  # the two experts chosen
        ("gemm", "aten::mm, op_id = 1, sizes = [[16, 4], [4, 8]]", False),  # the router's own GEMM stays
        ("elementwise", "aten::mul, op_id = 1, sizes = [[4, 4], []]", False),  # no tokens
    ],
)
def test_the_choice_of_experts_works_on_tokens_by_experts(category: str, text: str, is_choice: bool) -> None:
    found = measure(operations((category, 5, 100, 130)), (text, 0, 10))
    assert (found["router_topk_kernels_ns"] == 30) is is_choice


def test_the_residual_path_adds_hidden_states() -> None:
    added, other = (f"aten::{name}, op_id = 1, sizes = [[16, 1, 8], [16, 1, 8]]" for name in ("add", "silu"))
    assert measure(operations(("elementwise", 5, 100, 130)), (added, 0, 10))["bias_dropout_add_kernels_ns"] == 30
    assert "no kernel of this operation" in str(
        measure(operations(("elementwise", 5, 100, 130)), (other, 0, 10))["bias_dropout_add_kernels_ns"]
    )


def test_launch_starved_time_belongs_to_the_operation_that_ends_it() -> None:
    kernels = operations(("elementwise", 5, 100, 130), ("elementwise", 35, 200, 210))
    cut = slices((0, 60, STARVED), (60, 90, STARVED), (90, 100, 0), (130, 200, STARVED))
    found = measure(kernels, (TURNED, 0, 10), ("aten::add, op_id = 2, sizes = [[16, 1, 8]]", 30, 40), cut=cut)
    assert (found["rope_launch_starved_ns"], found["bias_dropout_add_launch_starved_ns"]) == (90, 70)


def test_a_barrier_is_the_sum_of_one_element_with_nothing_computing() -> None:
    kernels = operations(("all_reduce", 5, 100, 150), ("all_reduce", 25, 200, 300), ("gemm", 50, 140, 170))
    barrier = ("nccl:all_reduce_barrier, op_id = 1, sizes = [[1]]", 0, 10)
    found = measure(kernels, barrier, ("nccl:all_reduce, op_id = 2, sizes = [[1]]", 20, 30))
    assert found["barrier_exposed_ns"] == 40
    assert measure(kernels, ("aten::add, op_id = 2, sizes = [[16, 1, 8]]", 0, 3))["barrier_exposed_ns"] == 0


def test_without_ranges_of_operators_nothing_is_known_rather_than_zero() -> None:
    found = measure(operations(("elementwise", 5, 100, 130)), ("training_step_3", 0, 10))
    for name in ("activation_ns", "activation_fraction"):  # labels name it, not operators
        assert "told apart" in str(found.pop(name))
    assert all("no ranges of PyTorch's operators" in str(reason) for reason in found.values())


def test_where_few_kernels_have_shapes_work_found_by_shapes_is_unknown() -> None:
    kernels = operations(*(("elementwise", at, 100 + at, 101 + at) for at in (5, 15, 25)))
    found = measure(kernels, (TURNED, 0, 10), ("aten::mul, op_id = 2", 11, 30))
    assert "launched only 33% of the pointwise work" in str(found["rope_kernels_ns"])
    everywhere = measure(kernels, (TURNED, 0, 30))
    assert everywhere["rope_kernels_ns"] == 3


def turned_in_order(attention: str = "attention") -> tuple[pl.DataFrame, list[tuple[str, int, int]]]:
    """Kernels of 30, 10, 40, 30 and 30 ns that turn queries, then keys, before attention; ranges without shapes."""
    rows, ranges, at = [], [], 0
    for number, (name, ns) in enumerate([("mul", 30), ("neg", 10), ("cat", 40), ("mul", 30), ("add", 30)] * 2):
        ranges.append((f"aten::{name}, seq = {number}, op_id = 1", at, at + 8))
        rows.append(("elementwise", at + 5, 100 + 8 * at, 100 + 8 * at + ns))
        at += 10
    ranges.append(("FusedAttnFunc, seq = 10, op_id = 1", at, at + 8))
    rows.append((attention, at + 5, 950, 960))
    kernels = operations(*rows).with_columns(phase=pl.when(pl.col("category") == "attention").then(pl.lit("forward")))
    return kernels, ranges


def test_without_shapes_the_order_of_the_operators_shows_the_rotary_embedding() -> None:
    kernels, ranges = turned_in_order()
    found = measure(kernels, *ranges)
    assert found["rope_kernels_ns"] == 2 * 140
    assert "not found in their known order" in str(found["router_topk_kernels_ns"])
    assert "launched only 0%" in str(found["bias_dropout_add_kernels_ns"])


def test_a_fused_kernel_is_as_fast_as_an_addition_or_as_slow_as_what_it_replaces() -> None:
    kernels, ranges = turned_in_order()
    found = measure(kernels, *ranges)
    # Two of three tensors that the addition moves: 0.67 x 30 of 140 ns; the slowest operator takes 40.
    assert found["rope_fused_least_fraction"] == pytest.approx(0.67 * 30 / 140)
    assert found["rope_fused_most_fraction"] == pytest.approx(40 / 140)
    assert found["rope_fused_fraction"] == pytest.approx((0.67 * 30 + 40) / 2 / 140)


def test_an_ambiguous_order_is_a_reason_and_no_number() -> None:
    kernels, ranges = turned_in_order(attention="gemm")
    found = measure(kernels, *ranges)
    assert "the order of the operators is ambiguous: no attention kernel follows" in str(found["rope_kernels_ns"])
    assert "none was found" in str(found["rope_fused_fraction"])


def test_where_shapes_were_recorded_the_order_does_not_count() -> None:
    kernels, ranges = turned_in_order()
    found = measure(kernels, *((f"{text}, sizes = [[16, 1, 8]]", start, end) for text, start, end in ranges))
    assert "no kernel of this operation" in str(found["rope_kernels_ns"])


LATENT = [
    *["split_with_sizes"] * 2,
    *["slice", "cat", "mul", "neg", "cat", "mul", "add", "cat"] * 2,
    "cat",
    "expand",
    "cat",
]
"""Turns queries, then keys, of latent attention: channels are split off, sorted, turned, and joined again."""


@pytest.mark.parametrize("sizes", ["", ", sizes = [[16, 1, 8]]"])
@pytest.mark.parametrize("rope_type", ["yarn", "rope"])
def test_the_rotary_embedding_of_latent_attention_goes_by_the_order_and_is_fused_with_yarn(
    rope_type: str, sizes: str
) -> None:
    ranges = [(f"aten::{name}, seq = {at}, op_id = 1{sizes}", 10 * at, 10 * at + 8) for at, name in enumerate(LATENT)]
    ranges.append((f"FusedAttnFunc, seq = 40, op_id = 1{sizes}", 400, 408))
    launched = [at for at, name in enumerate(LATENT) if name not in ("slice", "expand", "split_with_sizes")]
    kernels = operations(
        *(("elementwise", 10 * at + 5, 500 + 10 * at, 510 + 10 * at) for at in launched), ("attention", 405, 950, 960)
    ).with_columns(phase=pl.when(pl.col("category") == "attention").then(pl.lit("forward")))
    step = step_view(kernels, slices(), run_view(toy(multi_latent_attention=True, rope_type=rope_type)), STEP)
    operators = nest(*((text, start, end, 1) for text, start, end in ranges))
    measured = measure_step(step, operators)["rope_kernels_ns"][0]
    assert measured == (len(launched) * 10 if rope_type == "yarn" else None)


def test_the_cast_after_the_backward_pass_of_the_loss_is_part_of_it() -> None:
    kernels = operations(("elementwise", 5, 100, 130), ("elementwise", 25, 200, 210))
    found = measure(
        kernels,
        ("autograd::engine::evaluate_function: _VocabParallelCrossEntropyBackward, op_id = 1", 0, 30),
        ("_VocabParallelCrossEntropyBackward, seq = 1, op_id = 2", 1, 20),
        ("aten::to, op_id = 3", 22, 28),
    )
    assert found["loss_kernels_ns"] == 30 + 10


@pytest.mark.slow
@reads_sample("wide-nvlink-alltoall.sqlite")
def test_on_a_real_trace_the_parts_fit_into_the_pointwise_work_that_they_are_part_of() -> None:
    facts = analyze_sample("wide-nvlink-alltoall.sqlite").facts
    parts = {
        work: facts.number(f"{work}_kernels_ns") for work in ("loss", "wgrad_accumulation", "rope", "bias_dropout_add")
    }
    assert all(ns is not None and ns > 500_000 for ns in parts.values()), parts
    assert sum(ns or 0 for ns in parts.values()) < (facts.number("elementwise_ns") or 0) + (
        facts.number("permute_ns") or 0
    )
    assert facts.number("rope_ns") == (parts["rope"] or 0) + (facts.number("rope_launch_starved_ns") or 0)


def test_activations_are_the_pointwise_work_of_experts_and_mlps_that_has_no_other_name() -> None:
    labelled = pl.DataFrame(
        [
            ("experts", "expert", "elementwise", None, 7),
            ("router", "shared_expert", "elementwise", None, 11),
            ("mlp", None, "elementwise", None, 13),
            ("experts", "expert", "elementwise", "wgrad_accumulation", 100),
            ("experts", "expert", "quantize", None, 100),
            ("attention", None, "elementwise", None, 100),
        ],
        schema=["module", "part", "category", "operator", "end_ns"],
        orient="row",
    ).with_columns(pl.lit(0).alias("pass"), start_ns=pl.lit(0))
    step = step_view(operations(), slices(), run_view(CONFIG), STEP)
    assert measure_step(step, nest(), labelled)["activation_ns"] == (7 + 11 + 13, None)
    assert "told apart" in str(measure_step(step, nest())["activation_ns"])
