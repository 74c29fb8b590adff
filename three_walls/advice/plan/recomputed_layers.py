"""What a run with full recompute takes if it recomputes more of its layers, or fewer.

Megatron recomputes every layer with the method ``uniform``, and the first ``recompute_num_layers`` layers of each model
chunk (a pipeline stage, or a virtual one) with ``block``. One layer more costs its share of what all layers cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from three_walls.advice.format.rule import Rule
from three_walls.advice.what_if import Changes
from three_walls.lib.fact import FactSheet, FactValue
from three_walls.lib.plain_data import ConfigData
from three_walls.replay.transformation import Action, Levels, Selection, Transformation

GRANULARITY, METHOD, LAYERS = "config.recompute_granularity", "config.recompute_method", "config.recompute_num_layers"
_UNEVEN = (
    "config.pipeline_model_parallel_layout",
    "config.num_layers_in_first_pipeline_stage",
    "config.num_layers_in_last_pipeline_stage",
    "config.account_for_embedding_in_pipeline_split",
    "config.account_for_loss_in_pipeline_split",
)
"""Settings with which stages differ in their number of layers."""
_RECOMPUTED = Selection(directions=("recompute",))


def change_recomputed_layers(
    name: str, shown: str, settings: Mapping[str, ConfigData], rules: Sequence[Rule], facts: FactSheet
) -> Changes | None:
    """What the setting ``name``, one of ``settings``, changes in a run that recomputes layers in full, and keeps to it.

    None where it is no such setting or no such run. ``shown``: the setting as it was asked for.
    """
    kept = settings.get(GRANULARITY, "full")
    if name not in (METHOD, LAYERS) or facts.get(GRANULARITY).value != "full" or kept != "full":
        return None
    method, number = (settings.get(key, facts.get(key).value) for key in (METHOD, LAYERS))
    layers = _count_layers(facts)
    if method is None or number is None:
        return None  # what belongs to no full recompute, a rule sets
    if layers is None:
        return Changes(unknown=(f"{shown}: how many layers each pipeline stage has is not known",))
    before = _count_recomputed(facts.get(METHOD).value, facts.get(LAYERS).value, layers)
    after = _count_recomputed(method, number, layers)
    if before is None:
        return Changes(unknown=(f"{shown}: how many layers the run recomputes is not known",))
    if after is None:
        return Changes(
            unknown=(
                f"{shown}: Megatron knows recompute_method=uniform (every layer) and block (the first "
                "recompute_num_layers layers of each stage, a number of at least 1)",
            )
        )
    how_many = f"{shown}: {after} of {layers} layers of each stage are recomputed, now {before}"
    if before == after:
        return Changes(notes=(f"{how_many}. The step keeps its time; what memory it takes is not predicted.",))
    changes = (
        _recompute_fewer(after / before) if after < before else _recompute_more((after - before) / layers, rules, facts)
    )
    return Changes(changes, notes=(f"{how_many}. Whether they fit into memory is not predicted.",)) if changes else None


def _count_layers(facts: FactSheet) -> int | None:
    """Layers of each model chunk; None where it is not known, or they differ."""
    if any(facts.get(name).value for name in _UNEVEN):
        return None
    layers = facts.number("config.num_layers")
    chunks = 1.0
    for name in ("config.pipeline_model_parallel_size", "config.virtual_pipeline_model_parallel_size"):
        chunks *= facts.number(name) or 1
    return round(layers / chunks) if layers and layers % chunks == 0 else None


def _count_recomputed(method: FactValue, number: FactValue, layers: int) -> int | None:
    """How many of the ``layers`` of a chunk are recomputed; None where Megatron refuses the settings."""
    if not isinstance(number, int) or number < 1:
        return None
    return {"uniform": layers, "block": min(number, layers)}.get(str(method))


def _recompute_fewer(kept: float) -> tuple[Transformation, ...]:
    """``kept``: of the recomputed layers."""
    less = Levels(kept, kept, kept)
    unwaited = Levels(1 - kept, 1 - kept, 1 - kept)
    reason = "layers take the same time each, so what is computed again falls with their number"
    return (
        Transformation(Action.SCALE, _RECOMPUTED, time=less, host=less, reason=reason),
        Transformation(Action.UNWAIT, _RECOMPUTED, share=unwaited, reason=reason),
    )


def _recompute_more(added: float, rules: Sequence[Rule], facts: FactSheet) -> tuple[Transformation, ...]:
    """What the rule that recomputes all layers says they cost, for the ``added`` share of them."""
    proposing = (
        rule
        for rule in rules
        if any(f"config.{edit.key}" == GRANULARITY and edit.literal == "full" for edit in rule.edits)
    )
    return tuple(
        replace(part, time=_times(part.time, added), host=_times(part.host, added))
        for rule in proposing
        for part in (entry.fill(facts) for entry in rule.gain.replay)
        if part.action is Action.REPEAT
    )


def _times(levels: Levels, factor: float) -> Levels:
    return Levels(levels.low * factor, levels.likely * factor, levels.high * factor)
