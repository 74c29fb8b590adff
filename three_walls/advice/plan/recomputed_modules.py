"""What a run with full recompute takes if it recomputes some modules instead: no recompute, and theirs on top.

A rule that recomputes a module to free memory states what that costs. It is the same from full recompute, once all that
is computed again is taken away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from three_walls.advice.format.rule import Rule
from three_walls.advice.plan.recomputed_layers import GRANULARITY, LAYERS, METHOD
from three_walls.lib.fact import FactSheet
from three_walls.lib.load_documents import NOT_STATED
from three_walls.lib.plain_data import ConfigData

MODULES = "config.recompute_modules"


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
    found = [
        next(
            (rule for rule in rules if rule.gain.frees_memory and rule.gain.replay and _recomputes(rule, module)), None
        )
        for module in modules
    ]
    known = [rule for rule in found if rule is not None]
    return tuple({rule.id: rule for rule in known}.values()) if len(known) == len(found) else ()


def _recomputes(rule: Rule, module: ConfigData) -> bool:
    return any(
        f"config.{edit.key}" == MODULES
        and edit.remove is NOT_STATED
        and isinstance(edit.literal, tuple)
        and module in edit.literal
        for edit in rule.edits
    )
