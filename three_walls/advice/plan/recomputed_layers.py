"""What a run with full recompute takes if it recomputes more of its layers, or fewer, or some modules instead.

Megatron recomputes every layer with the method ``uniform``, and the first ``recompute_num_layers`` layers of each model
chunk (a pipeline stage, or a virtual one) with ``block``. One layer more costs its share of what all layers cost.

A rule that recomputes a module to free memory says what that costs. It is the same from full recompute, once all that
is computed again is taken away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from three_walls.advice.format.rule import Rule
from three_walls.advice.what_if import Changes
from three_walls.lib.fact import FactSheet, FactValue
from three_walls.lib.load_documents import NOT_STATED
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.parallel_layout import UNEVEN_STAGES
from three_walls.replay.transformation import Action, Levels, Selection, Transformation

GRANULARITY, METHOD, LAYERS = "config.recompute_granularity", "config.recompute_method", "config.recompute_num_layers"
MODULES = "config.recompute_modules"
_RECOMPUTED = Selection(directions=("recompute",))


def change_recomputed_layers(
    name: str, shown: str, settings: Mapping[str, ConfigData], rules: Sequence[Rule], facts: FactSheet
) -> Changes | None:
    """What the setting ``name``, one of ``settings``, changes in a run that recomputes layers in full, and keeps to it.

    None where it is no such setting or no such run. ``shown``: the setting as it was asked for.
    """
    granularities = (facts.get(GRANULARITY).value, settings.get(GRANULARITY, "full"))
    if name not in (METHOD, LAYERS) or granularities != ("full", "full"):
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
    if any(facts.get(f"config.{key}").value for key in UNEVEN_STAGES):
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


def _recompute_fewer(fraction: float) -> tuple[Transformation, ...]:
    """``fraction``: of the recomputed layers that still are."""
    less = Levels(fraction, fraction, fraction)
    unwaited = Levels(1 - fraction, 1 - fraction, 1 - fraction)
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


def find_module_rules(
    name: str, settings: Mapping[str, ConfigData], rules: Sequence[Rule], facts: FactSheet
) -> tuple[Rule, ...]:
    """The rules that say what the modules asked for cost, where ``name`` is a step to them from full recompute.

    Empty where it is not, or no rule says that of one of the modules.
    """
    modules = settings.get(MODULES)
    if name not in (GRANULARITY, METHOD, LAYERS, MODULES) or not isinstance(modules, tuple):
        return ()
    if facts.get(GRANULARITY).value != "full" or settings.get(GRANULARITY) != "selective":
        return ()
    rules_by_module = [
        next(
            (rule for rule in rules if rule.gain.frees_memory and rule.gain.replay and _recomputes(rule, module)), None
        )
        for module in modules
    ]
    known = [rule for rule in rules_by_module if rule is not None]
    return tuple({rule.id: rule for rule in known}.values()) if len(known) == len(modules) else ()


def _recomputes(rule: Rule, module: ConfigData) -> bool:
    return any(
        f"config.{edit.key}" == MODULES
        and edit.remove is NOT_STATED
        and isinstance(edit.literal, tuple)
        and module in edit.literal
        for edit in rule.edits
    )
