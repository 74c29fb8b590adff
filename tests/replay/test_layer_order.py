"""Parts of a layer by the order of its launches alone."""

from __future__ import annotations

from three_walls.layers.layer_order import Launches, SharedExperts, place_in_layers

FORWARD_LAYER = [
    ("norm", "attention", None),
    ("gemm", "attention", "projection"),
    ("attention", "attention", "attention_core"),
    ("gemm", "attention", "projection"),
    ("norm", "router", "router"),
    ("gemm", "router", "router"),
    ("router", "router", "router"),
    ("copy_d2h_pinned", "router", "preprocess"),
    ("permute", "dispatch", "permute"),
    ("ep_all_to_all", "dispatch", "dispatch"),
    ("permute", "dispatch", "permute"),
    ("memset", "experts", "expert"),
    ("gemm", "experts", "expert_gemm"),
    ("elementwise", "experts", "expert"),
    ("gemm", "experts", "expert_gemm"),
    ("permute", "combine", "unpermute"),
    ("ep_all_to_all", "combine", "combine"),
    ("permute", "combine", "unpermute"),
    ("elementwise", "combine", "unpermute"),
]
HEAD = [("norm", None, None), ("gemm", None, None), ("elementwise", None, None)]

Row = tuple[str, str | None, str | None]


def place(
    rows: list[Row], shared: SharedExperts | None = None, breaks: frozenset[int] = frozenset(), side: int | None = None
) -> list[tuple[str | None, str | None, int | None]]:
    """Module, work and pass of each launch; ``side``: the launch on stream 9, all others are on stream 7."""
    phases = ["forward" if row[0].startswith("attention") else None for row in rows]
    streams = [9 if number == side else 7 for number in range(len(rows))]
    launches = Launches([row[0] for row in rows], phases, streams, breaks)
    found = place_in_layers(launches, "forward", shared)
    return [(each.module, each.work, each.number) if each else (None, None, None) for each in found]


def expected(rows: list[Row], number: int | None) -> list[tuple[str | None, str | None, int | None]]:
    return [(module, work, number) for _, module, work in rows]


def test_layers_follow_one_another_and_the_head_is_in_none() -> None:
    rows = [*FORWARD_LAYER, *FORWARD_LAYER, *HEAD]
    assert place(rows) == [*expected(FORWARD_LAYER, 0), *expected(FORWARD_LAYER, 1), *expected(HEAD, None)]


def test_before_the_next_micro_batch_lie_the_head_and_the_embedding() -> None:
    embedding: list[Row] = [("copy_h2d_pinned", None, None), ("permute", None, None)]
    rows = [*FORWARD_LAYER, *FORWARD_LAYER, *HEAD, *embedding, *FORWARD_LAYER]
    found = place(rows)
    assert found[len(FORWARD_LAYER) * 2 :] == [
        *expected(HEAD, None), *expected(embedding, None), *expected(FORWARD_LAYER, 2)
    ]  # fmt: skip


def test_without_a_last_norm_a_layer_ends_where_the_other_direction_is_launched() -> None:
    tail: list[Row] = [("elementwise", None, None)]
    rows = [*FORWARD_LAYER, *FORWARD_LAYER, *tail]
    ends = 2 * len(FORWARD_LAYER)
    assert place(rows, breaks=frozenset([ends]))[-1] == (None, None, None)
    assert place(rows)[-1] == ("combine", "unpermute", 1)


def test_without_exchanges_the_gemms_after_the_router_are_the_experts() -> None:
    layer = [row for row in FORWARD_LAYER if row[0] != "ep_all_to_all"]
    assert place([*layer, *layer, *HEAD]) == [*expected(layer, 0), *expected(layer, 1), *expected(HEAD, None)]


def test_the_mlp_of_a_dense_layer_is_of_no_module() -> None:
    dense: list[Row] = [*FORWARD_LAYER[:4], ("norm", None, None), ("gemm", None, None), ("gemm", None, None)]
    rows = [*dense, *FORWARD_LAYER, *FORWARD_LAYER]
    assert place(rows) == [*expected(dense, 0), *expected(FORWARD_LAYER, 1), *expected(FORWARD_LAYER, 2)]


def test_of_unfused_attention_one_gemm_before_and_after_the_softmax_is_its_core() -> None:
    unfused: list[Row] = [
        ("norm", "attention", None),
        ("gemm", "attention", "projection"),
        ("gemm", "attention", "attention_core"),
        ("attention_unfused", "attention", "attention_core"),
        ("gemm", "attention", "attention_core"),
        ("gemm", "attention", "projection"),
    ]
    layer = [*unfused, *FORWARD_LAYER[4:]]
    assert place([*layer, *layer]) == [*expected(layer, 0), *expected(layer, 1)]


def test_shared_experts_run_between_the_norm_and_the_routers_gemm() -> None:
    shared: list[Row] = [("gemm", "router", "shared_expert"), ("elementwise", "router", "shared_expert")]
    layer = [*FORWARD_LAYER[:5], *shared, shared[0], *FORWARD_LAYER[5:]]
    assert place([*layer, *layer], SharedExperts(None)) == [*expected(layer, 0), *expected(layer, 1)]
    without = place([*layer, *layer])
    assert ("router", "shared_expert", 0) not in without


def test_shared_experts_on_a_stream_of_their_own_end_no_dispatch() -> None:
    layer = [*FORWARD_LAYER[:10], ("gemm", "router", "shared_expert"), *FORWARD_LAYER[9:]]
    found = place([*layer, *FORWARD_LAYER], SharedExperts(9), side=10)
    assert found == [*expected(layer, 0), *expected(FORWARD_LAYER, 1)]


def test_a_replayed_moe_layer_has_no_attention() -> None:
    replay = FORWARD_LAYER[4:]
    assert place(replay) == expected(replay, 0)


def test_what_neither_attends_nor_routes_is_no_layer() -> None:
    assert place([("gemm", None, None), ("norm", None, None)]) == [(None, None, None)] * 2
