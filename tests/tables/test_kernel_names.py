"""Names of kernels as upstream's sources have them, and the category that each must get.

``kernel-names/`` holds a file per library. Its comment says where the names come from; the headings are their category
and, for the kernel that counts a pass of attention, its phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from three_walls.tables.kernel_names import KernelPack, load_kernel_packs, match_kernel

LISTS = sorted(Path(__file__).with_name("kernel-names").glob("*.txt"))
PACKS = load_kernel_packs()
WITHOUT_LIST = {"words"}
OF_NO_RELEASE = "ncclSymkDevKernel_AllToAll_LL"


def listed(path: Path) -> Iterator[tuple[str, str, str | None]]:
    """(name, category, phase) of each kernel in a list."""
    category, phase = "", None
    for line in path.read_text().splitlines():
        if line.startswith("["):
            category, _, after = line.strip("[]").partition(" ")
            phase = after or None
        elif line and not line.startswith("# "):
            yield line, category, phase


def kind(name: str) -> tuple[str, str | None] | None:
    row = match_kernel(name)
    return (row.category, row.phase) if row else None


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_every_name_of_a_list_is_known_as_what_it_is(path: Path) -> None:
    expected = {name: (category, phase) for name, category, phase in listed(path)}
    assert expected
    assert {name: kind(name) for name in expected} == expected


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_a_list_says_where_its_names_come_from(path: Path) -> None:
    assert path.read_text().startswith("# ")


def test_every_pack_has_a_list_and_says_where_its_names_come_from() -> None:
    assert set(PACKS) - {path.stem for path in LISTS} == WITHOUT_LIST
    for name, pack in PACKS.items():
        assert pack.source, name
        assert pack.release, name
        assert pack.files or name in WITHOUT_LIST, name
        assert all(row.reason for row in pack.patterns), name


def test_every_pattern_of_a_library_is_the_first_for_a_listed_name() -> None:
    names = [name for path in LISTS for name, *_ in listed(path)]
    used = {id(match_kernel(name)) for name in [*names, OF_NO_RELEASE]}
    unused = {
        (pack, row.pattern.pattern)
        for pack, content in PACKS.items()
        if not content.is_general
        for row in content.patterns
        if id(row) not in used
    }
    assert unused == set()


def test_the_words_of_a_pack_spare_no_name_that_its_patterns_know() -> None:
    for path in LISTS:
        for name, *_ in listed(path):
            for pack in PACKS.values():
                assert pack.match(name) is KernelPack(patterns=pack.patterns).match(name), name


def test_packs_of_libraries_are_searched_before_general_ones() -> None:
    order = [pack.is_general for pack in PACKS.values()]
    assert order == sorted(order)
    assert order.count(True) == 2


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("transformer_engine::unary_kernel<16, float, &transformer_engine::dispatch::fp8::identity>", "quantize"),
        ("transformer_engine::unary_kernel<16, float, &transformer_engine::gelu>", "elementwise"),
    ],
)
def test_the_operation_of_a_pointwise_kernel_tells_a_cast_from_an_activation(name: str, category: str) -> None:
    assert kind(name) == (category, None)


@pytest.mark.parametrize(
    "name",
    [
        "my_custom_kernel",
        "void acme::dispatch_work<4>",
        "compute_cuda_kernel",
        "nccl_ep_jit_ht_unheard_of_kernel",
        "uccl::unheard_of",
    ],
)
def test_an_unknown_kernel_matches_nothing(name: str) -> None:
    assert match_kernel(name) is None


@pytest.mark.parametrize(
    "names",
    [
        "FlashAttentionBackwardPreprocess FlashAttentionBackwardSm100 FlashAttentionBackwardPostprocess",
        "recompute_w_u_fwd_kernel chunk_gated_delta_rule_fwd_kernel_h_blockdim64 chunk_bwd_kernel_dv_local "
        "chunk_gated_delta_rule_bwd_kernel_dhu_blockdim64 chunk_bwd_kernel_dqkwg prepare_wy_repr_bwd_kernel",
        "_chunk_cumsum_fwd_kernel _bmm_chunk_fwd_kernel _chunk_state_fwd_kernel _state_passing_fwd_kernel "
        "_chunk_scan_bwd_dstates_kernel _state_passing_bwd_kernel _chunk_scan_chunk_state_bwd_dx_kernel",
    ],
    ids=["FlashAttention 4", "gated delta net", "Mamba 2"],
)
def test_a_backward_pass_counts_once_though_it_recomputes_states(names: str) -> None:
    phases = [row.phase for name in names.split() if (row := match_kernel(name)) and row.phase]
    assert phases == ["backward"]
