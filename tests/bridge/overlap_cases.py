"""Edits of overlaps on recipes with and without a CommOverlapConfig, in every release.

``comm-overlap-cases.yaml`` holds, by case, the lines as they are printed and what Megatron-Bridge itself made of them:
every setting of model, optimizer, ddp and comm_overlap that they change, after its validation. All releases agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.bridge.builders import edit
from tests.bridge.releases import recipe_in
from three_walls.advice.finding import Overrides
from three_walls.bridge.merged_config import COMM_OVERLAP, COMM_OVERLAP_CLASS
from three_walls.bridge.render_overrides import spell
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig

RECORDED = Path(__file__).parent / "comm-overlap-cases.yaml"
RELEASES = ("0.3.1", "0.4.2", "0.5.1", "0.6.2")
_MOE = "qwen3_30b_a3b_pretrain_config"
WITH_SECTION = (
    "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
    "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)",
)
_FLAT = (
    "cfg.model.pipeline_model_parallel_size = 1",
    "cfg.model.recompute_granularity = cfg.model.recompute_method = cfg.model.recompute_num_layers = None",
    "cfg.model.moe_shared_expert_overlap = False",
    "cfg.model.expert_model_parallel_size = 8",
)
_TENSOR_PARALLEL = (
    "cfg.model.tensor_model_parallel_size = 2",
    "cfg.model.sequence_parallel = True",
)
_NO_DATA_PARALLEL_OVERLAP = (
    "cfg.ddp.overlap_grad_reduce = cfg.ddp.overlap_param_gather = False",
    "cfg.optimizer.overlap_param_gather = False",
)


@dataclass(frozen=True)
class OverlapCase:
    """A recipe, how it differs from its release's, and edits."""

    recipe: str
    edits: dict[str, ConfigData]
    prepare: tuple[str, ...] = ()
    has_section: bool = False
    distributed_optimizer: bool = True
    overrides: tuple[str, ...] = ()
    """Of the run's own command line."""
    world_size: int = 8

    def recipe_of(self, release: str) -> str:
        """The recipe's name in a release."""
        return recipe_in(release, self.recipe)

    @property
    def config(self) -> RunConfig:
        """What the run's saved configuration, or its command line, shows."""
        if self.overrides:
            return merge_sources([read_command_line(["run_recipe.py", "--recipe", self.recipe, *self.overrides])])
        shown: dict[str, ConfigData] = {
            COMM_OVERLAP: COMM_OVERLAP_CLASS if self.has_section else None,
            "use_distributed_optimizer": self.distributed_optimizer,
        }
        return RunConfig({name: ConfigValue(value, "config file") for name, value in shown.items()})

    def spell(self, release: str) -> Overrides:
        """The edits as printed for the run."""
        return spell([edit(name, value) for name, value in self.edits.items()], self.config, release)


DATA_PARALLEL: dict[str, ConfigData] = {"overlap_grad_reduce": True, "overlap_param_gather": True}
CASES = {
    "data parallelism, no section": OverlapCase(_MOE, DATA_PARALLEL, _NO_DATA_PARALLEL_OVERLAP),
    "data parallelism, no section, experts overlapped by the model": OverlapCase(
        _MOE, DATA_PARALLEL, (*_FLAT, *_NO_DATA_PARALLEL_OVERLAP, "cfg.model.overlap_moe_expert_parallel_comm = True")
    ),
    "delayed weight gradients, no section, experts overlapped by the model": OverlapCase(
        _MOE, {"delay_wgrad_compute": True}, (*_FLAT, "cfg.model.overlap_moe_expert_parallel_comm = True")
    ),
    "experts, no section": OverlapCase(
        _MOE, {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True}, _FLAT
    ),
    "tensor parallelism, no section": OverlapCase(_MOE, {"tp_comm_overlap": True}, (*_FLAT, *_TENSOR_PARALLEL)),
    "experts, section with tensor-parallel overlap": OverlapCase(
        _MOE,
        {"overlap_moe_expert_parallel_comm": True, "delay_wgrad_compute": True},
        (*_FLAT, *_TENSOR_PARALLEL, *WITH_SECTION),
        has_section=True,
    ),
    "buckets, recipe with tensor-parallel overlap": OverlapCase(
        "nemotron_3_nano_pretrain_config", {"ddp_bucket_size": 40_000_000}, has_section=True, world_size=64
    ),
    "data parallelism, recipe with a userbuffers preset": OverlapCase(
        "gpt3_175b_pretrain_config",
        {**DATA_PARALLEL, "ddp_bucket_size": 40_000_000},
        (
            "cfg.comm_overlap.overlap_grad_reduce = cfg.comm_overlap.overlap_param_gather = False",
            "cfg.model.gradient_accumulation_fusion = True",
        ),
        has_section=True,
        world_size=64,
    ),
    "data parallelism, section, no distributed optimizer": OverlapCase(
        _MOE,
        {"overlap_grad_reduce": True},
        (
            *_NO_DATA_PARALLEL_OVERLAP,
            *WITH_SECTION,
            "cfg.ddp.use_distributed_optimizer = cfg.optimizer.use_distributed_optimizer = False",
            "cfg.optimizer.use_precision_aware_optimizer = False",
        ),
        has_section=True,
        distributed_optimizer=False,
    ),
    "experts, section that the command line builds": OverlapCase(
        _MOE,
        {"overlap_moe_expert_parallel_comm": True},
        _FLAT,
        overrides=(
            "++comm_overlap._target_=megatron.bridge.training.comm_overlap.CommOverlapConfig",
            "++comm_overlap.tp_comm_overlap=false",
        ),
    ),
}


@cache
def recorded() -> dict[str, dict[str, Any]]:
    """By case: ``lines`` and ``changes``, the latter by path from and to."""
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(RECORDED.read_text(encoding="utf-8"))
    return loaded
