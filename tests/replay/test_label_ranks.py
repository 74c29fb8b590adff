"""The labels of the operations of several ranks: on small traces, and on real ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from tests.facts.moe_model import (
    BACKWARD,
    FORWARD,
    NORM,
    NORM_BACKWARD,
    PERMUTE,
    ROUTER,
    ROUTER_BACKWARD,
    UNPERMUTE,
    command,
)
from tests.paths import SAMPLES
from tests.replay.small_graphs import build_graph
from tests.trace_builder import ADAM, GEMM, POINTWISE, SEND_RECV, TraceBuilder
from three_walls.layers.directions import align
from three_walls.layers.labels import LABELS
from three_walls.replay.label_ranks import label_ranks
from three_walls.step.build_timeline import build_timeline, wanted_ranges
from three_walls.step.find_steps import list_median_steps
from three_walls.step.ranks.matched_ranks import match_ranks
from three_walls.tables.kernel_names import load_api_patterns, union_of
from three_walls.trace.read_inputs import read_inputs
from three_walls.trace.run_request import RunRequest

pytestmark = pytest.mark.slow

FORWARD_KERNELS = (
    (NORM, "attention"), (GEMM, "attention"), (FORWARD, "attention"), (GEMM, "attention"), (NORM, "router"),
    (ROUTER, "router"), (PERMUTE, "dispatch"), (SEND_RECV, "dispatch"), (GEMM, "experts"), (GEMM, "experts"),
    (SEND_RECV, "combine"), (UNPERMUTE, "combine"), (POINTWISE, "combine"),
)  # fmt: skip
BACKWARD_KERNELS = (
    (POINTWISE, "combine"), (UNPERMUTE, "combine"), (SEND_RECV, "combine"), *[(GEMM, "experts")] * 4,
    (SEND_RECV, "dispatch"), (PERMUTE, "dispatch"), (ROUTER_BACKWARD, "router"), (NORM_BACKWARD, "router"),
    (GEMM, "attention"), (GEMM, "attention"), (BACKWARD, "attention"), (GEMM, "attention"), (GEMM, "attention"),
    (NORM_BACKWARD, "attention"),
)  # fmt: skip
MAIN, AUTOGRAD = 1, 2
_RANGES = "autograd::engine::evaluate_function: "


@dataclass
class Program(TraceBuilder):
    """Launches kernels one after the other, each 10 ns before it runs; a step is two micro-batches of two layers."""

    at: int = 100
    number: int = MAIN
    has_ranges: bool = True
    has_autograd_thread: bool = True

    @property
    def thread(self) -> int:
        return self.process + self.number

    def launch(self, *names: str) -> None:
        for name in names:
            self.kernel(name, self.at + 10, self.at + 18, launched=self.at)
            self.at += 20

    def inside(self, text: str, *names: str) -> None:
        """Launches inside a range."""
        begin = self.at - 1
        self.launch(*names)
        if self.has_ranges:
            self.nvtx(text, begin, self.at - 1)

    def go_back(self, accumulates: bool = False, replays: bool = False) -> None:
        """A backward layer."""
        self.number = AUTOGRAD if self.has_autograd_thread else MAIN
        begin = self.at - 1
        if replays:
            self.inside("CheckpointFunctionBackward, seq = 1", *(name for name, _ in FORWARD_KERNELS))
        for name, _ in BACKWARD_KERNELS:
            self.inside(f"{_RANGES}MulBackward0", name)
            if accumulates and name == GEMM:
                self.inside(f"{_RANGES}torch::autograd::AccumulateGrad", POINTWISE)
        if replays and self.has_ranges:
            self.nvtx(f"{_RANGES}CheckpointFunctionBackward", begin, self.at - 1)
        self.number = MAIN

    def step(self, accumulates: bool = False, replays: bool = False) -> None:
        for _ in range(2):
            for _ in range(2):
                self.inside("TransformerLayer", *(name for name, _ in FORWARD_KERNELS))
            self.inside("output_layer", NORM, GEMM)
            for _ in range(2):
                self.go_back(accumulates, replays)
        self.launch(ADAM)
        self.at += 500


def label(paths: list[Path]) -> pl.DataFrame:
    """The labelled operations of a rank's median step, in the order of their launches."""
    read = read_inputs(
        RunRequest(tuple(paths)), wanted_ranges(None), union_of(load_api_patterns(), "graph_launch"), lambda _: None
    )
    timeline = build_timeline(read.with_kernels, read.config, None)
    timeline, matched_ranks = match_ranks(timeline, read.with_kernels, read.config)
    graph = build_graph(
        timeline,
        matched_ranks,
        timeline.steps.filter("kept", pl.col("step") == list_median_steps(timeline.steps)["step"].min()),
    )
    labelled = label_ranks(graph, read.with_kernels, read.config, {})
    assert labelled.columns == [*graph.operations.columns, "rank_number", "name", *LABELS]
    assert labelled.select(graph.operations.columns).equals(graph.operations)
    return labelled.sort("rank", "launch_start_ns", "start_ns")


def write(program: Program, path: Path, launched_as: str | None = None, **how: bool) -> Path:
    program.launched_as(launched_as or command(), RANK="0", WORLD_SIZE="4")
    for _ in range(5):
        program.step(**how)
    return program.write(path / f"rank{program.process}.sqlite")


LAYER = len(FORWARD_KERNELS)
BACK = len(BACKWARD_KERNELS)


@pytest.mark.parametrize("has_ranges", [True, False])
def test_every_kernel_of_every_layer_has_its_module_and_place(tmp_path: Path, has_ranges: bool) -> None:
    found = label([write(Program(has_ranges=has_ranges), tmp_path)])
    modules = [module for _, module in FORWARD_KERNELS], [module for _, module in BACKWARD_KERNELS]
    for micro_batch in range(2):
        begin = micro_batch * (2 * LAYER + 2 + 2 * BACK)
        for layer in range(2):
            forward = found[begin + layer * LAYER : begin + (layer + 1) * LAYER]
            assert forward["module"].to_list() == modules[0]
            places = forward.select("direction", "micro_batch", "layer").unique().rows()
            assert places == [("forward", micro_batch, layer)]
        head = found[begin + 2 * LAYER : begin + 2 * LAYER + 2]
        assert head.select("module", "direction", "micro_batch", "layer").unique().rows() == [
            ("outside", "forward", micro_batch, None)
        ]
        for layer in (1, 0):
            at = begin + 2 * LAYER + 2 + (1 - layer) * BACK
            backward = found[at : at + BACK]
            assert backward["module"].to_list() == modules[1]
            places = backward.select("direction", "micro_batch", "layer").unique().rows()
            assert places == [("backward", micro_batch, layer)]
    assert found.row(-1, named=True)["name"] == ADAM
    assert found.select("module", "part", "direction", "layer").row(-1) == ("outside", "optimizer", None, None)


def test_parts_distinguish_expert_gemms_exchanges_and_permutations(tmp_path: Path) -> None:
    found = label([write(Program(), tmp_path)])
    assert found["part"][:LAYER].to_list() == [
        None, "projection", "attention_core", "projection", "router", "router", "permute", "dispatch", "expert_gemm",
        "expert_gemm", "combine", "unpermute", "unpermute",
    ]  # fmt: skip
    assert found["rank_number"].unique().to_list() == [0]


def test_with_ranges_one_thread_is_enough(tmp_path: Path) -> None:
    found = label([write(Program(has_autograd_thread=False), tmp_path)])
    assert found["module"].null_count() == 0
    assert found.filter(pl.col("layer").is_not_null())["direction"].unique().sort().to_list() == ["backward", "forward"]


def test_gradients_are_accumulated_in_the_module_of_their_gemm(tmp_path: Path) -> None:
    found = label([write(Program(), tmp_path, accumulates=True)])
    added = found.filter(pl.col("operator") == "wgrad_accumulation")
    counts = dict(added.group_by("module").len().iter_rows())
    assert counts == {"experts": 4 * 4, "attention": 4 * 4}
    # What experts run besides their GEMMs; of attention it is no part of its own.
    assert dict(added.select("module", "part").unique().iter_rows()) == {"experts": "expert", "attention": None}
    assert added["layer"].null_count() == 0
    others = label([write(Program(process=Program().process + (1 << 24)), tmp_path)])
    assert others.filter(pl.col("operator") == "wgrad_accumulation").is_empty()


def test_replayed_layers_are_those_of_the_backward_pass_that_follows(tmp_path: Path) -> None:
    found = label([write(Program(), tmp_path, replays=True)])
    replayed = found.filter(pl.col("direction") == "recompute")
    assert replayed["module"].to_list() == [module for _, module in FORWARD_KERNELS] * 4
    places = replayed.select("micro_batch", "layer").unique(maintain_order=True).rows()
    assert places == [(0, 1), (0, 0), (1, 1), (1, 0)]
    assert found["module"].null_count() == 0


def test_layers_have_no_numbers_where_the_config_does_not_fit(tmp_path: Path) -> None:
    launched_as = command().replace("--global-batch-size 8", "--global-batch-size 12")  # three micro-batches
    found = label([write(Program(), tmp_path, launched_as)])
    assert found["layer"].null_count() == found["micro_batch"].null_count() == found.height
    assert found["module"][:LAYER].to_list() == [module for _, module in FORWARD_KERNELS]


def test_without_the_number_of_ranks_the_layers_are_those_of_the_model(tmp_path: Path) -> None:
    program = Program().launched_as(command())
    assert isinstance(program, Program)
    for _ in range(5):
        program.step()
    found = label([program.write(tmp_path / "rank0.sqlite")])
    places = found.filter(pl.col("direction") == "backward").select("micro_batch", "layer").unique(maintain_order=True)
    assert places.rows() == [(0, 1), (0, 0), (1, 1), (1, 0)]


def test_a_rank_whose_ranges_are_not_read_has_the_labels_of_the_one_that_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("three_walls.replay.replay_thresholds.MOST_RANKS_READ", 1)
    first, second = Program(), Program(process=Program().process + (1 << 24), device=1)
    paths = []
    for rank, program in enumerate((first, second)):
        program.launched_as(command(), RANK=str(rank), WORLD_SIZE="4")
        for _ in range(5):
            program.step()
        paths.append(program.write(tmp_path / f"rank{rank}.sqlite"))
    found = label(paths)
    columns = [name for name in LABELS if name != "operator_range"]
    halves = [found.filter(pl.col("rank") == place).select(columns) for place in range(2)]
    assert halves[0].equals(halves[1])
    assert found["rank_number"].unique().sort().to_list() == [0, 1]


def test_sequences_are_aligned_around_what_only_one_has() -> None:
    reference = list("abcdefgh") * 2
    longer = list("abcdXefgh") + list("abcdefgh")
    assert align(longer, reference) == [*range(4), None, *range(4, 16)]
    shorter = list("abcdfghabcdefgh")
    assert align(shorter, reference) == [*range(4), *range(5, 16)]
    assert align(list("xyz"), reference) == [None] * 3


@pytest.mark.parametrize(
    ("name", "expert_gemms"),
    [
        ("wide-nvlink-alltoall.sqlite", 96),
        ("wide-nvlink-deepep.sqlite.xz", 96),
        ("wide-slowlink-ep-overlap.sqlite.xz", 96),
    ],
)
def test_every_operation_of_a_real_step_has_a_module(name: str, expert_gemms: int) -> None:
    found = label([SAMPLES / name])
    assert found["module"].null_count() == 0
    # Two experts per rank, four layers, two micro-batches: two GEMMs forward and four backward each.
    assert found.filter(pl.col("part") == "expert_gemm").height == expert_gemms
    for direction in ("forward", "backward"):
        layers = found.filter((pl.col("direction") == direction) & pl.col("layer").is_not_null())
        assert layers.select("micro_batch", "layer").unique().height == 2 * 4
        exchanges = layers.filter(pl.col("part").is_in(["dispatch", "combine"]))
        assert exchanges.group_by("micro_batch", "layer").len()["len"].n_unique() == 1
