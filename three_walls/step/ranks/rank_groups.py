"""Which ranks take part in the calls of a communication class: Megatron's rank groups, from the parallel sizes.

Megatron numbers ranks in the order tp-cp-ep-dp-pp (``RankGenerator`` of megatron/core/parallel_state.py): the
tensor-parallel rank changes fastest, the pipeline stage slowest. Dense layers divide the world into tp x cp x dp x pp,
experts into etp x ep x edp x pp. The dispatcher's NCCL all-to-all runs in the EP group, DeepEP and HybridEP in the
ETP x EP group. Data-parallel collectives run in the groups of dense and of expert layers, other collectives in any
group: which group a call belongs to is known only where all of them are the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from three_walls.megatron.parallel_layout import read_layout
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.step.step_tables import MEMBERS, Members
from three_walls.tables.buckets import COMMUNICATION_CATEGORIES
from three_walls.trace.identity import Rank

PAIRWISE = ("pipeline_p2p", "context_ring")
"""Exchanges between neighbours: the calls of a rank have different partners, so order does not match them."""

GroupOf = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class _RankGroups:
    """The parallel sizes, and the groups of each rank by number. ``world`` is divisible as Megatron requires."""

    world: int
    tp: int
    cp: int
    pp: int
    ep: int
    etp: int

    @property
    def dp(self) -> int:
        """Data-parallel size of the dense layers."""
        return self.world // (self.tp * self.cp * self.pp)

    @property
    def edp(self) -> int:
        """Data-parallel size of the experts."""
        return self.world // (self.etp * self.ep * self.pp)

    def expert(self, rank: int) -> int:
        """EP group of ``rank``: ranks that differ only in their expert-parallel rank."""
        return rank // (self.etp * self.ep) * self.etp + rank % self.etp

    def expert_and_tensor(self, rank: int) -> int:
        """ETP x EP group of ``rank``: consecutive ranks."""
        return rank // (self.etp * self.ep)

    def tensor(self, rank: int) -> int:
        """Tensor-parallel group of ``rank``: consecutive ranks."""
        return rank // self.tp

    def expert_data(self, rank: int) -> int:
        """Data-parallel group of the experts on ``rank``."""
        width = self.etp * self.ep
        return rank // (width * self.edp) * width + rank % width

    def pipeline(self, rank: int) -> int:
        """Pipeline group of ``rank``: one rank of each stage."""
        return rank % (self.world // self.pp)

    def model(self, rank: int) -> int:
        """Ranks that share one replica of the dense layers: tensor and pipeline parallel together."""
        return rank % (self.world // self.pp) // self.tp

    def data(self, rank: int) -> int:
        """Dense data-parallel group of ``rank``, context parallelism included: gradients are reduced over both."""
        return rank // (self.tp * self.cp * self.dp) * self.tp + rank % self.tp


def find_members(ranks: Sequence[Rank], config: RunConfig) -> Members:
    """MEMBERS: the group of every captured rank, for every class whose calls all members of a group make together."""
    world = _world_size(ranks, config)
    groups = _read_groups(ranks, config, world)
    rows = []
    for name in COMMUNICATION_CATEGORIES:
        if name in PAIRWISE:
            continue
        group_of, size, sure = _group_of_class(name, groups, world)
        captured = Counter(group_of(rank.rank) for rank in ranks)
        for rank in ranks:
            group = group_of(rank.rank)
            rows.append((rank.rank_index, name, group, captured[group], size, sure))
    return pl.DataFrame(rows, schema=MEMBERS, orient="row")


def captures_everyone(ranks: Sequence[Rank], config: RunConfig) -> bool:
    """Whether every rank of the run was captured; False where the number of ranks is not known."""
    return _world_size(ranks, config) == len(ranks)


def list_groups(ranks: Sequence[Rank], config: RunConfig) -> tuple[frozenset[int], ...]:
    """Rank indices of every group of several ranks that Megatron makes and whose ranks were all captured, each once."""
    world = _world_size(ranks, config)
    groups = _read_groups(ranks, config, world)
    if groups is None:
        return ()
    rank_index_of = {rank.rank: rank.rank_index for rank in ranks}
    found: dict[frozenset[int], None] = {}
    for group_of in (
        lambda _: 0,
        groups.data,
        groups.expert_data,
        groups.tensor,
        groups.pipeline,
        groups.model,
        groups.expert,
        groups.expert_and_tensor,
    ):
        members: dict[int, list[int]] = {}
        for rank in range(groups.world):
            members.setdefault(group_of(rank), []).append(rank)
        lists = list(members.values())
        if group_of == groups.pipeline and _are_numbered(ranks):  # the first and last stage share their embeddings
            lists += [[group[0], group[-1]] for group in lists]
        for group in lists:
            if len(set(group)) > 1 and all(rank in rank_index_of for rank in group):
                found[frozenset(rank_index_of[rank] for rank in group)] = None
    return tuple(found)


def _group_of_class(name: str, groups: _RankGroups | None, world: int | None) -> tuple[GroupOf, int | None, bool]:
    """The group of each rank, the size of a group (None if not known), and whether the class can run in no other."""

    def everyone(_: int) -> int:
        return 0

    if groups is None or name == "send_recv_ambiguous":
        # An exchange of experts among all ranks is a single group whatever the config is, but this may be another.
        return everyone, world, False
    if name == "ep_all_to_all":
        return groups.expert, groups.ep, True
    if name in ("ep_dispatch_combine", "ep_control"):
        return groups.expert_and_tensor, groups.ep * groups.etp, True
    if name == "tensor_parallel" and groups.etp in (1, groups.tp):
        return groups.tensor, groups.tp, True
    if name == "data_parallel" and groups.edp in (1, groups.dp * groups.cp):
        same = groups.edp == 1 or groups.ep * groups.etp == groups.tp
        return groups.data, groups.dp * groups.cp, same
    sizes = {groups.tp, groups.cp, groups.pp, groups.ep, groups.etp, groups.dp, groups.edp, groups.dp * groups.cp}
    if sizes <= {1, groups.world}:
        return everyone, groups.world, True
    if groups.dp * groups.cp > 1:
        return groups.data, groups.dp * groups.cp, False
    return everyone, groups.world, False


def _are_numbered(ranks: Sequence[Rank]) -> bool:
    """Whether the launcher recorded every rank's number."""
    return all(rank.rank_source == "environment" for rank in ranks)


def _world_size(ranks: Sequence[Rank], config: RunConfig) -> int | None:
    """Ranks of the run; None if it is not recorded or the captured ranks contradict it."""
    world = read_layout(config).world
    if world is None:
        return None
    numbers = {rank.rank for rank in ranks}
    return world if len(numbers) == len(ranks) and numbers <= set(range(world)) else None


def _read_groups(ranks: Sequence[Rank], config: RunConfig, world: int | None) -> _RankGroups | None:
    layout = read_layout(config)
    tp, cp, pp, ep, etp = layout.tensor, layout.context, layout.pipeline, layout.expert, layout.expert_tensor
    if world is None or tp is None or cp is None or pp is None or ep is None or etp is None:
        return None
    if world % (tp * cp * pp) or world % (etp * ep * pp):
        return None
    # Ranks numbered in the order in which they were found cannot be placed in a group smaller than the world.
    if not _are_numbered(ranks) and any(1 < size < world for size in (tp, cp, pp, ep, etp, ep * etp)):
        return None
    return _RankGroups(world, tp, cp, pp, ep, etp)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of the pipeline, and where each captured rank stands."""

    stages: int
    micro_batches: int | None
    """Per step and rank, from the config; None where it does not state them."""
    places: Mapping[int, tuple[int, int]]
    """Stage and lane by rank index. Ranks of a lane differ only in their stage and exchange with each other."""


def find_pipeline(ranks: Sequence[Rank], config: RunConfig) -> Pipeline | None:
    """Where each captured rank stands in the pipeline; None without a pipeline, or where the layout is not known.

    None also where ranks are numbered in the order in which they were found: processes start in any order, so such a
    number shows no stage.
    """
    groups = _read_groups(ranks, config, _world_size(ranks, config))
    if groups is None or groups.pp == 1 or not _are_numbered(ranks):
        return None
    width = groups.world // groups.pp
    micro, total = config.size("micro_batch_size"), config.size("global_batch_size")
    count = None
    if micro is not None and total is not None and total % (micro * groups.dp) == 0:
        count = total // (micro * groups.dp)
    return Pipeline(groups.pp, count, {rank.rank_index: divmod(rank.rank, width) for rank in ranks})
