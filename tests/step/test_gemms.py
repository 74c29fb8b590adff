"""GEMMs from PyTorch's operators: shapes, directions, linear layers whose GEMMs were not recorded."""

from __future__ import annotations

from tests.step.test_operators import nest
from three_walls.step.gemms import Gemm, find_gemms
from three_walls.tables.nvtx_ranges import torch_operators

LINEAR = "LinearWithGradAccumulationAndAsyncCommunication"
FORWARD = f"{LINEAR}, seq = 5, op_id = 1, sizes = [[16, 1, 8], [32, 8], [], []]"
BACKWARD = f"{LINEAR}Backward, seq = 5, op_id = 2, sizes = [[16, 1, 32]]"


def gemms(*rows: tuple[str, int, int], may_gather_tokens: bool = False) -> dict[str, Gemm]:
    """GEMMs by the name of their range; rows of (text, start, end) on one thread."""
    operators = nest(*((text, start, end, 1) for text, start, end in rows))
    found = find_gemms(operators, torch_operators(), may_gather_tokens)
    return {f"{operators.found[index].name}@{operators.starts[1][index]}": gemm for index, gemm in found.items()}


def test_a_gemm_of_two_matrices() -> None:
    found = gemms(("aten::mm, op_id = 1, sizes = [[4, 8], [8, 2]]", 0, 9))
    assert found == {"aten::mm@0": Gemm(1, 4, 2, 8, "forward")}
    assert found["aten::mm@0"].flops == 2 * 4 * 2 * 8


def test_a_batch_of_gemms_behind_an_added_matrix() -> None:
    found = gemms(("aten::baddbmm, op_id = 1, sizes = [[3, 4, 2], [3, 4, 8], [3, 8, 2]]", 0, 9))
    assert found == {"aten::baddbmm@0": Gemm(3, 4, 2, 8, "forward")}


def test_a_grouped_gemm_multiplies_each_token_once() -> None:
    found = gemms(("aten::_grouped_mm, op_id = 1, sizes = [[64, 8], [4, 8, 2], [4]]", 0, 9))
    assert found["aten::_grouped_mm@0"].flops == 2 * 64 * 8 * 2


def test_factors_that_do_not_fit_each_other_are_no_gemm() -> None:
    assert gemms(("aten::mm, op_id = 1, sizes = [[4, 8], [9, 2]]", 0, 9)) == {}
    assert gemms(("aten::mm, op_id = 1", 0, 9)) == {}
    assert gemms(("aten::add, op_id = 1, sizes = [[4, 8], [8, 2]]", 0, 9)) == {}


def test_the_gemm_inside_a_linear_layer_is_the_layers_own() -> None:
    found = gemms((FORWARD, 0, 20), ("aten::mm, op_id = 3, sizes = [[16, 8], [8, 32]]", 5, 9))
    assert found == {"aten::mm@5": Gemm(1, 16, 32, 8, "forward", (32, 8), 16)}


def test_the_two_gradients_of_a_linear_layer_are_distinguished_by_what_they_sum_over() -> None:
    of_input, of_weight = (
        f"aten::mm, op_id = 3, sizes = [[{m}, {k}], [{k}, {n}]]" for m, k, n in ((16, 32, 8), (32, 16, 8))
    )
    found = gemms((FORWARD, 0, 9), (BACKWARD, 100, 200), (of_weight, 110, 120), (of_input, 130, 140))
    assert (found["aten::mm@110"].direction, found["aten::mm@130"].direction) == ("weight gradient", "input gradient")
    assert found["aten::mm@110"].weight == found["aten::mm@130"].weight == (32, 8)


def test_where_all_sizes_are_equal_the_inputs_gradient_comes_first() -> None:
    square = "aten::mm, op_id = 3, sizes = [[8, 8], [8, 8]]"
    layer = f"{LINEAR}, seq = 5, op_id = 1, sizes = [[8, 1, 8], [8, 8]]"
    backward = f"{LINEAR}Backward, seq = 5, op_id = 2, sizes = [[8, 1, 8]]"
    found = gemms((layer, 0, 9), (backward, 100, 200), (square, 110, 120), (square, 130, 140))
    assert [found[f"aten::mm@{at}"].direction for at in (110, 130)] == ["input gradient", "weight gradient"]


def test_a_layer_whose_gemms_have_no_ranges_of_their_own_runs_one_forward_and_two_backward() -> None:
    found = gemms((FORWARD, 0, 9), (BACKWARD, 100, 200))
    assert found[f"{LINEAR}@0"] == Gemm(1, 16, 32, 8, "forward", (32, 8), 16)
    assert found[f"{LINEAR}Backward@100"] == Gemm(1, 16, 32, 8, "backward", (32, 8), 16, 2)
    assert found[f"{LINEAR}Backward@100"].flops == 2 * found[f"{LINEAR}@0"].flops


def test_a_fused_weight_gradient_next_to_a_recorded_input_gradient_is_the_layers_other_gemm() -> None:
    found = gemms((FORWARD, 0, 9), (BACKWARD, 100, 200), ("aten::mm, op_id = 3, sizes = [[16, 32], [32, 8]]", 110, 120))
    assert found["aten::mm@110"].direction == "input gradient"
    assert found[f"{LINEAR}Backward@100"] == Gemm(1, 16, 32, 8, "weight gradient", (32, 8), 16, 1)


def test_a_backward_of_an_unknown_forward_is_no_gemm() -> None:
    assert gemms((BACKWARD, 100, 200)) == {}
    assert f"{LINEAR}Backward@100" not in gemms((FORWARD.replace("seq = 5", "seq = 6"), 0, 9), (BACKWARD, 100, 200))


def test_the_weight_of_a_grouped_layer_is_the_first_matrix_behind_the_input() -> None:
    found = gemms(("_GroupedLinear, seq = 1, op_id = 1, sizes = [[64, 8], [], [32, 8], [32, 8], [32]]", 0, 9))
    assert found["_GroupedLinear@0"] == Gemm(1, 64, 32, 8, "forward", (32, 8), 64)


def test_forward_work_inside_a_checkpoints_backward_is_a_replay_and_the_backward_inside_it_is_not() -> None:
    gemm = "aten::mm, op_id = 3, sizes = [[4, 8], [8, 2]]"
    found = gemms(
        ("CheckpointFunctionBackward, seq = 9, op_id = 1", 0, 100), (gemm, 10, 20),
        ("MmBackward0, seq = 8, op_id = 4", 50, 90), (gemm, 60, 70),
    )  # fmt: skip
    assert (found["aten::mm@10"].direction, found["aten::mm@60"].direction) == ("replay", "backward")


def test_with_sequence_parallelism_the_gradient_shows_how_many_tokens_were_gathered() -> None:
    backward = BACKWARD.replace("[16, 1, 32]", "[64, 1, 32]")
    found = gemms((FORWARD, 0, 9), (backward, 100, 200), may_gather_tokens=True)
    assert found[f"{LINEAR}@0"].m == found[f"{LINEAR}Backward@100"].m == 64


def test_with_sequence_parallelism_and_no_gradient_a_layers_tokens_are_not_known() -> None:
    assert gemms((FORWARD, 0, 9), may_gather_tokens=True) == {}
    recorded = "aten::mm, op_id = 3, sizes = [[64, 8], [8, 32]]"
    assert gemms((FORWARD, 0, 9), (recorded, 2, 5), may_gather_tokens=True)["aten::mm@2"].m == 64
