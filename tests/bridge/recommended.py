"""Every case in which a rule recommends edits, as requests to Megatron-Bridge.

A case's own ``config.*`` facts are the configuration that its edits are for, so the recipe gets them first. They are
set in Python: overrides cannot reach a field of a precision that is given by its name. A fact that the release has no
field for, or that is none, stays as the recipe has it; but without experts the model has none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tests.bridge.builders import config, edit
from tests.bridge.cases import PLATFORM, RECIPE, RELEASE, recipe_config
from tests.bridge.releases import recipe_in
from three_walls.advice.finding import Outcome, Overrides, PlannedEdit
from three_walls.advice.format.load_rules import cases_file, load_rule_base, rule_files
from three_walls.advice.judge import judge
from three_walls.advice.testing.rule_cases import load_cases
from three_walls.bridge.merged_config import COMM_OVERLAP, MIXED_PRECISION, MIXED_PRECISION_CLASS, MergedConfig
from three_walls.bridge.render_overrides import spell
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.resources import RULES_DIR
from three_walls.tables.bridge_releases import bridge_schema

FLAT: dict[str, ConfigData] = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "sequence_parallel": False,
    "expert_model_parallel_size": 8,
    "moe_token_dispatcher_type": "alltoall",
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
}
"""The recipe on 8 GPUs without pipeline and tensor parallelism and without recompute: where a case states no other."""
Requests = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
Gpu = tuple[str, int, int]
"""Name as the driver gives it, compute capability."""
H100: Gpu = (PLATFORM["gpu_name"], 9, 0)
GPUS: dict[str, Gpu] = {
    "H100": H100,
    "H200": ("NVIDIA H200", 9, 0),
    "B200": ("NVIDIA B200", 10, 0),
    "GB200": ("NVIDIA GB200", 10, 0),
    "L40S": ("NVIDIA L40S", 8, 9),
    "sm_89": ("NVIDIA L40S", 8, 9),
    "sm_80": ("NVIDIA A100-SXM4-80GB", 8, 0),
    "sm_90": H100,
    "sm_100": ("NVIDIA B200", 10, 0),
    "sm_103": ("NVIDIA GB300", 10, 3),
    "sm_120": ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0),
}
"""By the fact that names the GPU."""


@dataclass(frozen=True)
class EditedRun:
    """Edits, and what is known of the run that they are for."""

    name: str
    edits: tuple[PlannedEdit, ...]
    facts: dict[str, ConfigData]
    gpus: float | None = None
    """How many the run is known to have."""

    @property
    def values(self) -> dict[str, ConfigData]:
        """Settings that are known."""
        prefix = "config."
        return {name.removeprefix(prefix): value for name, value in self.facts.items() if name.startswith(prefix)}

    @property
    def environment(self) -> dict[str, str]:
        """Variables that are known."""
        return {
            name.removeprefix("env."): str(value)
            for name, value in self.facts.items()
            if name.startswith("env.") and value is not None
        }

    @property
    def started_from(self) -> dict[str, ConfigData]:
        """Settings before the edits. The precision's name comes first: its fields replace parts of it.

        A saved configuration has the precision's class in place of its name: the recipe's precision gets the fields.
        """
        stated = {name: value for name, value in self.values.items() if value is not None or name == "num_moe_experts"}
        if stated.get(MIXED_PRECISION) == MIXED_PRECISION_CLASS:
            del stated[MIXED_PRECISION]
        merged = FLAT | _complete(stated) | stated
        return dict(sorted(merged.items(), key=lambda setting: setting[0] != MIXED_PRECISION))

    @property
    def gpu(self) -> Gpu:
        """What the run is on; an H100 where no fact names it."""
        named = self.facts.get("gpu.family") or self.facts.get("gpu.sm")
        return GPUS[str(named)] if named else H100

    @property
    def world_size(self) -> int:
        """GPUs: where they are not known, as few whole copies of the model as fill whole nodes of 8."""
        if self.gpus is not None:
            return int(self.gpus)
        values = self.started_from
        tensor, context = values["tensor_model_parallel_size"], values["context_parallel_size"]
        stages, experts = values["pipeline_model_parallel_size"], values["expert_model_parallel_size"]
        expert_tensor = values.get("expert_tensor_parallel_size", tensor)
        sizes = [size for size in (tensor, context, stages, experts, expert_tensor) if isinstance(size, int)]
        assert len(sizes) == 5, self.name
        return math.lcm(8, sizes[2] * math.lcm(sizes[0] * sizes[1], sizes[3] * sizes[4]))

    def overrides(self, release: str = RELEASE) -> Overrides:
        """The edits as a user gets them whose saved configuration shows that the recipe has no comm_overlap section."""
        return spell(self.edits, config(**{COMM_OVERLAP: None}, **self.values), release)

    def requests(self) -> Requests:
        """The configuration alone, with the edits as overrides, with the edits in Python."""
        return self.requests_for(self.overrides(), RELEASE)

    def requests_for(self, printed: Overrides, release: str, prepare: Sequence[str] = ()) -> Requests:
        """The same with the edits as ``printed``, after the lines ``prepare``."""
        edits = [edit(name, value) for name, value in self.started_from.items()]
        before = spell(edits, config(**{COMM_OVERLAP: None}), release).python
        paths = [line.lstrip("+").partition("=")[0] for line in printed.bridge if "_target_" not in line]
        alone = {
            "recipe": recipe_in(release, RECIPE),
            "prepare": [*before, *prepare],
            "environment": self.environment,
            "world_size": self.world_size,
            "show": [path for path in paths if bridge_schema(release).find(path)],
        }
        edited = {**alone, "environment": self.environment | dict(printed.env)}
        return alone, {**edited, "overrides": list(printed.bridge)}, {**edited, "python": list(printed.python)}

    def config(self) -> MergedConfig:
        """The same configuration for our own checker."""
        recipe, before = recipe_config(), self.started_from
        name, major, minor = self.gpu
        platform = {**PLATFORM, "gpu_name": name, "gpu_sm": 10 * major + minor, "world_size": self.world_size}
        return replace(recipe, values={**recipe.values, **before}, environment=self.environment, platform=platform)


def is_fine(result: dict[str, Any]) -> bool:
    """Whether the edits applied and what they made is valid."""
    return bool(result["applied"] and result["validated"])


def check_edits(name: str, alone: dict[str, Any], overridden: dict[str, Any], in_python: dict[str, Any]) -> None:
    """The edits apply and validate in both forms and leave the same values."""
    without = f"without the edits: {alone['message'] or 'valid'}"
    assert is_fine(overridden), f"{name}: {overridden['message']} ({without})"
    assert is_fine(in_python), f"{name} in Python: {in_python['message']} ({without})"
    assert overridden["values"] == in_python["values"], name


def _complete(stated: dict[str, ConfigData]) -> dict[str, ConfigData]:
    """What a run with the settings ``stated`` has besides, for Megatron refuses it without."""
    completed: dict[str, ConfigData] = {}
    tensor, experts = stated.get("tensor_model_parallel_size"), stated.get("num_moe_experts")
    if isinstance(tensor, int) and tensor > 1:
        completed["sequence_parallel"] = True
    if stated.get("cuda_graph_impl", "none") != "none":
        completed["te_rng_tracker"] = True
    if isinstance(experts, int):
        completed["expert_model_parallel_size"] = math.gcd(8, experts)
    elif "num_moe_experts" in stated:
        completed |= {"expert_model_parallel_size": 1, "moe_ffn_hidden_size": None}
    return completed


@cache
def recommended_cases() -> tuple[EditedRun, ...]:
    """Every case of every rule that ends in edits, in the order of the files."""
    return tuple(_find_recommended())


def _find_recommended() -> Iterator[EditedRun]:
    rules = {rule.id: rule for rule in load_rule_base(DEFINITIONS).rules}
    for path in rule_files(RULES_DIR):
        found = load_cases(cases_file(path), definitions=DEFINITIONS)
        for case in found.cases:
            facts = found.facts_of(case)
            finding = judge(rules[found.rule], facts)
            if finding.outcome is Outcome.RECOMMENDED and finding.edits:
                values = {name: fact.value for name, fact in facts.facts.items()}
                yield EditedRun(f"{found.rule}: {case.name}", finding.edits, values)
