"""Why runs failed: what explains several failures, what a run disproves, and what an error names."""

from __future__ import annotations

import pytest

from three_walls.tuning.failure_causes import FailureCauses, find_named
from three_walls.tuning.trials import Choice, Tunable, Variant

NAMES = ("micro_batch_size", "recompute_granularity", "cuda_graph_impl", "moe_permute_fusion")
SETTINGS = tuple(Tunable(name, (Variant(f"{name}=other"),)) for name in NAMES)
BASE, GRAPHS = (0, 0, 0, 0), (0, 0, 1, 0)
SAYS_NOTHING = "its command ended with exit code 1"
NAMES_BOTH = "AssertionError: full recompute is only supported with full iteration CUDA graph"


def chance(choice: Choice, failures: dict[Choice, str], *harmless: Choice) -> float:
    said = {failed: [text] for failed, text in failures.items()}
    return float(FailureCauses(SETTINGS, said, [BASE, *harmless]).chances([choice])[0])


def test_without_a_failure_nothing_fails() -> None:
    assert chance(GRAPHS, {}) == 1.0
    assert FailureCauses(SETTINGS, {}, []).chances([]).shape == (0,)


def test_what_failed_fails_again_but_by_chance_and_so_does_what_has_it_in_it() -> None:
    failures = {GRAPHS: SAYS_NOTHING}
    assert chance(GRAPHS, failures) < 0.2
    assert chance((0, 0, 1, 1), failures) < 0.3
    assert chance((1, 0, 0, 1), failures) == pytest.approx(1.0)


def test_what_failed_though_all_its_parts_ran_may_run_and_what_an_error_names_does_not() -> None:
    both, elsewhere = (1, 1, 0, 0), ((1, 1, 1, 0), (1, 0, 0, 1), (0, 1, 0, 1), (1, 0, 0, 0), (0, 1, 0, 0))
    assert chance(both, {both: SAYS_NOTHING}, *elsewhere) > 0.5
    assert chance(both, {both: SAYS_NOTHING}, *elsewhere[1:]) < 0.5  # the two never ran together
    assert chance((0, 1, 1, 0), {(0, 1, 1, 0): NAMES_BOTH}) < 0.05


def test_an_error_of_the_machine_is_likelier_chance_but_not_where_it_comes_again() -> None:
    network = "torch.distributed.DistBackendError: NCCL error in: ..., unhandled system error, NCCL version 2.28.9"

    def chance_after(*said: str) -> float:
        return float(FailureCauses(SETTINGS, {GRAPHS: said}, [BASE]).chances([GRAPHS])[0])

    assert chance_after(network) > 0.5 > chance_after(SAYS_NOTHING)
    assert chance_after(network, network) < 0.5
    assert chance((1, 0, 1, 0), {GRAPHS: network, (0, 0, 1, 1): network}) < 0.5  # both had graphs


def test_a_value_that_failed_beside_the_bases_may_run_beside_another() -> None:
    once = chance((0, 1, 1, 0), {GRAPHS: SAYS_NOTHING})
    other = {(1, 0, 1, 1): SAYS_NOTHING}
    assert 0.2 < once < 0.4
    # Beside others, too: one cause explains all three, so the part of recomputation in it is as large as before.
    thrice = {GRAPHS: SAYS_NOTHING, (1, 0, 1, 0): SAYS_NOTHING, (0, 0, 1, 1): SAYS_NOTHING}
    assert chance((0, 1, 1, 0), thrice) > 0.1
    assert chance((1, 0, 1, 1), thrice) < chance((0, 1, 1, 0), thrice)
    assert chance((0, 0, 1, 0), other) < chance((0, 1, 1, 0), other)


def test_an_error_that_names_two_settings_is_about_both() -> None:
    graphs_without_recompute = (0, 1, 1, 0)
    failures = {GRAPHS: NAMES_BOTH}
    assert chance(graphs_without_recompute, failures) > 2 * chance(graphs_without_recompute, {GRAPHS: SAYS_NOTHING})
    assert chance((0, 0, 1, 1), failures) < 0.1  # nor was it by chance, which names nothing
    failures |= {(1, 0, 1, 0): NAMES_BOTH, (0, 0, 1, 1): NAMES_BOTH}
    assert chance(graphs_without_recompute, failures) > 0.8
    assert chance((1, 0, 1, 1), failures) < 0.05


def test_an_error_that_names_two_settings_is_about_no_third() -> None:
    three, other_two = (1, 1, 1, 0), (0, 1, 1, 1)
    assert chance(other_two, {three: NAMES_BOTH}) < 0.25  # though the micro-batch was another, too
    assert chance(other_two, {three: SAYS_NOTHING}) > 0.3


def test_a_run_disproves_every_cause_that_it_has() -> None:
    failures = {(1, 1, 0, 1): SAYS_NOTHING}
    assert chance((1, 0, 0, 0), failures) < 1.0
    assert chance((1, 0, 0, 0), failures, (1, 0, 0, 0)) == pytest.approx(1.0)
    both_ran = chance((1, 0, 0, 1), failures, (1, 1, 0, 0), (0, 1, 0, 1))
    assert both_ran > chance((1, 1, 0, 1), failures, (1, 1, 0, 0), (0, 1, 0, 1))


def test_what_nothing_else_explains_failed_by_chance() -> None:
    neighbours = [(1, 1, 0, 0), (1, 0, 0, 1), (0, 1, 0, 1)]
    failures = {(1, 1, 0, 1): SAYS_NOTHING}
    assert chance((1, 1, 1, 1), failures, *neighbours) > 0.5


def test_hundreds_of_failures_leave_a_chance() -> None:
    values = tuple(Variant(str(value)) for value in range(1, 130))
    settings = (Tunable("first", values), Tunable("second", values))
    failures = {(value, 0): ["second: it hangs"] for value in range(1, 129)}
    causes = FailureCauses(settings, failures, [(0, 0)])
    assert causes.chances([(0, 1)])[0] == pytest.approx(1.0)
    assert causes.chances([(5, 0)])[0] < 0.1


def test_two_values_that_fail_apart_are_two_causes() -> None:
    failures = {(1, 0, 0, 0): SAYS_NOTHING, (0, 0, 0, 1): SAYS_NOTHING}
    alone = [chance(choice, failures) for choice in ((1, 0, 1, 0), (0, 0, 1, 1))]
    assert max(alone) < 0.3
    assert chance((1, 0, 1, 1), failures) < min(alone)


@pytest.mark.parametrize(
    ("said", "places"),
    [
        (NAMES_BOTH, {1, 2}),
        ("AssertionError: disable full recomputation when ...", {1}),
        ("ValueError: moe_permute_fusion needs Transformer Engine 2.1", {3}),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", set()),
        (SAYS_NOTHING, set()),
    ],
)
def test_an_error_names_settings_by_words_that_no_other_has(said: str, places: set[int]) -> None:
    assert find_named(SETTINGS, said) == places


def test_a_word_that_several_settings_have_names_none() -> None:
    settings = tuple(Tunable(name, ()) for name in ("overlap_grad_reduce", "overlap_param_gather"))
    assert find_named(settings, "AssertionError: overlap is not possible") == set()
    assert find_named(settings, "Must use --overlap-param-gather with --overlap-grad-reduce") == {0, 1}


def test_what_one_value_of_a_setting_is_refused_beside_another_may_be_beside() -> None:
    dispatchers = Tunable("token_dispatcher", (Variant("flex, deepep"), Variant("flex, hybridep")))
    settings = (dispatchers, Tunable("shared_overlap", (Variant("true"),)), Tunable("recompute", (Variant("full"),)))
    says = ["ValueError: the overlap of shared experts only works with the alltoall dispatcher"]
    causes = FailureCauses(settings, {(1, 1, 0): says}, [(0, 0, 0), (2, 0, 0)])
    beside_the_other, beside_the_base, fails_again = causes.chances([(2, 1, 0), (0, 1, 0), (1, 1, 1)])
    assert fails_again < 0.1
    assert fails_again < beside_the_other < beside_the_base - 0.1
