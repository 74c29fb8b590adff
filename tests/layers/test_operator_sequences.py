"""Unfused work that the order of the operators identifies."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.step.test_operators import nest
from three_walls.layers.operator_sequences import FusedPart, Sequences, find_sequences
from three_walls.step.operators import EVALUATES, Operators

MAIN, AUTOGRAD = 1, 2
ROPE = "alias slice cos* mul* to* sin* mul* to* mul chunk neg cat mul add cat"
"""Operators of one rotary embedding. Those with a star need no gradient."""
CHOICE = "topk softmax type_as zeros_like* scatter zeros_like* to* scatter* to*"
SCORES = "softmax topk* zeros_like* to* scatter* to*"
LOSS = "sum mul sum mul"


@dataclass
class Program:
    """Writes one range of 10 ns per operator, one after the other, numbered as autograd does."""

    at: int = 0
    number: int = 100
    thread: int = MAIN
    rows: list[tuple[str, int, int | None, int]] = field(default_factory=list)
    attention: list[int] = field(default_factory=list)
    """When each attention kernel is launched."""

    def run(self, names: str) -> Program:
        """``names`` of operators; those of functions of autograd are capitalized."""
        for name in names.split():
            operator = name.removesuffix("*")
            prefix = "" if operator[0] in "_ABCDEFGHIJKLMNOPQRSTUVWXYZ" else "aten::"
            self.write(f"{prefix}{operator}, seq = {self.number}, op_id = 1")
            self.number += not name.endswith("*")
        return self

    def attend(self) -> Program:
        self.attention.append(self.at + 5)
        return self.run("FusedAttnFunc")

    def write(self, text: str) -> None:
        self.rows.append((text, self.at, self.at + 10, self.thread))
        self.at += 10

    def go_back(self, *numbers: int) -> Program:
        """Evaluates the nodes of the operators with ``numbers``: 6 ns, and 4 in which autograd adds up gradients."""
        for number in numbers:
            begin = self.at
            self.write(f"SomeBackward0, seq = {number}, op_id = 1")
            self.rows[-1] = (self.rows[-1][0], begin, begin + 6, self.thread)
            self.rows.append(("autograd::engine::evaluate_function: SomeBackward0", begin, self.at, self.thread))
        return self

    def find(self) -> tuple[Operators, Sequences]:
        operators = nest(*self.rows)
        inside = [operators.innermost(MAIN, at) for at in self.attention]
        return operators, find_sequences(operators, [index for index in inside if index is not None])


def part_at(program: Program, at: int, thread: int = MAIN) -> FusedPart | None:
    operators, found = program.find()
    around = operators.around(operators.innermost(thread, at))
    return next((found.parts[index] for index in around if index in found.parts), None)


def parts_of(program: Program) -> list[str]:
    """The part of each operator on the main thread, or ``-``."""
    operators, found = program.find()
    return [found.parts[index].part if index in found.parts else "-" for index in operators.order[MAIN]]


def reasons(program: Program) -> dict[str, str]:
    return dict(program.find()[1].ambiguous)


def test_queries_and_keys_are_turned_before_attention() -> None:
    program = Program().run(f"_LayerNormLinear {ROPE} {ROPE} contiguous").attend()
    assert parts_of(program) == ["-", *["turn"] * 30, "-", "-"]
    queries, keys = part_at(program, 10), part_at(program, 10 + 150)
    assert queries is not None
    assert keys is not None
    assert (queries.work, queries.number == keys.number) == ("rope", False)


@pytest.mark.parametrize(
    "operators",
    [
        "cos mul to sin mul to mul chunk neg cat mul add cat",
        "mul slice slice neg cat mul add",  # cos and sin are kept
        "alias slice cos mul sin mul mul slice slice slice slice neg stack view mul add cat",  # channels interleaved
        "cos mul to sin mul to mul chunk neg cat mul add cat squeeze narrow copy_",  # one packed sequence
    ],
)
def test_each_way_to_turn_channels_is_recognized(operators: str) -> None:
    program = Program().run(f"{operators} {operators}").attend()
    assert set(parts_of(program)[:-1]) == {"turn"}


def test_a_fused_rotary_embedding_or_another_product_is_not_one() -> None:
    for operators in ("FusedRoPEFunc FusedRoPEFunc", "mul neg mul add", "cos mul sin mul cat"):
        program = Program().run(operators).attend()
        assert set(parts_of(program)) == {"-"}
        assert not reasons(program)


def test_one_rotation_before_attention_is_ambiguous() -> None:
    program = Program().run(f"{ROPE} {ROPE}").attend().run(ROPE).attend()
    assert set(parts_of(program)) == {"-"}
    assert reasons(program) == {"rope": "1 precede an attention kernel, where queries and keys need two"}


def test_rotations_without_attention_after_them_are_ambiguous() -> None:
    assert reasons(Program().run(f"{ROPE} {ROPE}")) == {"rope": "no attention kernel follows"}


def test_what_autograd_evaluates_has_the_number_of_its_operator() -> None:
    # alias 100, slice 101, mul 102, chunk 103, neg 104, cat 105, mul 106, add 107, cat 108; keys from 109 to 117
    program = Program().run(f"{ROPE} {ROPE}").attend()
    program.thread, start = AUTOGRAD, program.at
    program.go_back(118, 117, 102, 99)
    assert part_at(program, start + 3, AUTOGRAD) is None  # attention
    keys, queries = part_at(program, start + 13, AUTOGRAD), part_at(program, start + 23, AUTOGRAD)
    forward = part_at(program, 0)
    assert keys is not None
    assert queries is not None
    assert forward is not None
    assert queries.forward == forward.number != queries.number
    assert keys.forward != queries.forward
    assert part_at(program, start + 27, AUTOGRAD) == queries  # the sum of two gradients
    assert part_at(program, start + 33, AUTOGRAD) is None  # what was computed before


def test_without_any_node_of_their_numbers_rotations_are_ambiguous() -> None:
    program = Program().run(f"{ROPE} {ROPE}").attend()
    program.thread = AUTOGRAD
    program.go_back(7, 8)
    assert reasons(program) == {"rope": "no node of the backward pass has the number of one of its operators"}


def test_the_router_has_three_parts_and_keeps_its_gemm_and_the_counts() -> None:
    program = Program().run(f"RouterGatingLinearFunction RandomSTE view {CHOICE} {SCORES} sum _Reduce {LOSS} div add_")
    assert parts_of(program) == [
        *["-"] * 3, *["choice"] * 9, *["scores"] * 6, "-", "-", *["loss"] * 4, "-", "-",
    ]  # fmt: skip


def test_an_operator_without_gradient_before_one_with_the_same_number_is_not_its_node() -> None:
    # gating 100, view 101, topk 102, softmax 103, type_as 104, scatter 105; softmax of the scores 106
    program = Program().run(f"RouterGatingLinearFunction view {CHOICE} {SCORES} sum {LOSS}")
    program.thread, start = AUTOGRAD, program.at
    program.go_back(106, 105, 100)
    scores, choice = part_at(program, start + 3, AUTOGRAD), part_at(program, start + 13, AUTOGRAD)
    assert scores is not None
    assert choice is not None
    assert (scores.part, choice.part) == ("scores", "choice")
    assert part_at(program, start + 8, AUTOGRAD) is None  # gradients of two fused functions are added still
    assert part_at(program, start + 23, AUTOGRAD) is None


@pytest.mark.parametrize(
    "choice",
    [
        "softmax topk mul type_as zeros_like scatter zeros_like to scatter to",  # scores before the choice
        "to sigmoid to add topk gather sum add div type_as zeros_like scatter zeros_like to scatter to",  # expert bias
        "to softplus sqrt topk sum add div mul type_as zeros_like scatter zeros_like to scatter to",
        "to sigmoid view topk sum topk zeros_like scatter_ unsqueeze expand reshape to bitwise_not masked_fill topk "
        "sum add div type_as zeros_like scatter zeros_like to scatter to",  # groups of experts
        "topk softmax type_as zeros_like arange unsqueeze index_put_ zeros_like ones_like index_put_ to",
    ],
)
def test_each_score_function_is_recognized_without_a_balancing_loss(choice: str) -> None:
    assert parts_of(Program().run(f"RouterGatingLinearFunction view {choice}"))[2:] == ["choice"] * len(choice.split())


def test_a_fused_router_is_none() -> None:
    program = Program().run("RouterGatingLinearFunction view FusedTopkScoreFunction FusedAuxLoss sum")
    assert set(parts_of(program)) == {"-"}
    assert not reasons(program)


def test_a_router_that_goes_on_in_another_way_makes_all_of_them_ambiguous() -> None:
    program = Program().run(f"RouterGatingLinearFunction {CHOICE} RouterGatingLinearFunction topk gather")
    assert set(parts_of(program)) == {"-"}
    assert reasons(program) == {"router_topk": "it follows 1 of 2 RouterGatingLinearFunction"}


def test_a_forward_pass_that_runs_again_has_numbers_of_its_own() -> None:
    program = Program().run("CheckpointFunction")  # the forward pass, without gradients and numbers
    program.rows.append(("aten::neg, op_id = 1", 2, 4, MAIN))
    program.thread = AUTOGRAD
    begin = program.at
    program.run(f"{ROPE} {ROPE}").attend()
    start = program.at
    program.go_back(103)
    program.rows.append(("CheckpointFunctionBackward, seq = 100, op_id = 1", begin, program.at, AUTOGRAD))
    program.rows.append(
        ("autograd::engine::evaluate_function: CheckpointFunctionBackward", begin, program.at, AUTOGRAD)
    )
    outside = program.at
    program.go_back(103)
    operators = nest(*program.rows)
    attention = operators.innermost(AUTOGRAD, program.attention[0])
    assert attention is not None
    found = find_sequences(operators, [attention])

    def part(at: int) -> FusedPart | None:
        around = operators.around(operators.innermost(AUTOGRAD, at))
        return next((found.parts[index] for index in around if index in found.parts), None)

    queries, back = part(begin + 3), part(start + 3)
    assert queries is not None
    assert back is not None
    assert back.forward == queries.number
    assert part(outside + 3) is None


def test_what_one_replay_runs_again_may_be_gone_back_through_in_the_next_of_its_thread() -> None:
    program = Program().run("CheckpointFunction")
    program.rows.append(("aten::neg, op_id = 1", 2, 4, MAIN))
    program.thread = AUTOGRAD
    first = program.at
    program.run(f"{ROPE} {ROPE}").attend()  # an up-projection runs again before attention does
    program.rows.append((f"{EVALUATES}CheckpointFunctionBackward", first, program.at, AUTOGRAD))
    start = program.at
    program.go_back(103)
    program.rows.append((f"{EVALUATES}CheckpointWithoutOutputFunctionBackward", start, program.at, AUTOGRAD))
    operators = nest(*program.rows)
    attention = operators.innermost(AUTOGRAD, program.attention[0])
    assert attention is not None
    found = find_sequences(operators, [attention])
    around = operators.around(operators.innermost(AUTOGRAD, start + 3))
    back = next(found.parts[index] for index in around if index in found.parts)
    queries = next(part for part in found.parts.values() if part.number == part.forward)
    assert (back.work, back.forward) == ("rope", queries.number)
    assert not found.ambiguous


def test_operators_inside_of_operators_and_ranges_of_the_program_do_not_count() -> None:
    program = Program().run(f"{ROPE} {ROPE}")
    program.rows.append(("aten::narrow, seq = 101, op_id = 1", 12, 18, MAIN))
    program.attend()
    program.rows.append(("self_attention", 0, program.at, MAIN))
    found = parts_of(program)
    assert (found[0], found.count("turn")) == ("-", 30)
