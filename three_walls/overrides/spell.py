"""Spells edits for a launcher: Megatron-Bridge overrides, Megatron-LM flags, environment variables, Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from three_walls.model.config import RunConfig
from three_walls.model.finding import Overrides, PlannedEdit
from three_walls.overrides.spell_bridge import BridgeSpeller
from three_walls.overrides.spell_megatron_lm import MegatronLmSpeller
from three_walls.tables.config_keys import config_keys, is_allowed

NEWEST_BRIDGE = "0.6.2"


def spell(edits: Sequence[PlannedEdit], config: RunConfig, bridge_version: str | None = None) -> Overrides:
    """The edits as lines to paste, in their order; of two edits of one key the later one counts.

    What a launcher cannot express is a note that begins with the launcher's name, never a line. Nothing is quoted for
    a shell: a Megatron-LM line is a flag, then its values, each after one space.
    """
    version = bridge_version or config.bridge_version or NEWEST_BRIDGE
    last: dict[tuple[str, str], PlannedEdit] = {}  # each key stands where it was first edited
    for edit in edits:
        last[edit.kind, edit.key] = edit
    writable, notes = _keep_valid([edit for edit in last.values() if edit.kind == "config"], config)
    bridge, megatron_lm = BridgeSpeller(writable, config, version), MegatronLmSpeller(writable, config)
    bridge.spell_all()
    megatron_lm.spell_all()
    environment, unset = _spell_environment(edit for edit in last.values() if edit.kind == "env")
    bridge.spell_environment(environment)
    if bridge.lines and bridge_version is None and config.bridge_version is None:
        bridge.note(f"the run's release is not known, so the overrides are for {NEWEST_BRIDGE}")
    return Overrides(
        bridge_version=version,
        bridge=tuple(bridge.lines),
        megatron_lm=tuple(megatron_lm.lines),
        env=environment,
        python=tuple(bridge.python.lines),
        notes=tuple(dict.fromkeys([*notes, *bridge.notes, *megatron_lm.notes, *unset])),
    )


def _keep_valid(edits: Iterable[PlannedEdit], config: RunConfig) -> tuple[list[PlannedEdit], list[str]]:
    """Edits of known keys to values they may have, and notes on the others: launchers do not check values."""
    keys = config_keys().keys
    valid, notes = [], []
    for edit in edits:
        if edit.key not in keys:
            notes.append(f"{edit.key}: no launcher's spelling of it is known; set it to {edit.to} by hand")
        elif not is_allowed(keys[edit.key], edit.to):
            notes.append(f"{edit.key}: {edit.to} is not one of its values; left out")
        else:
            valid.append(_with_writable_key(edit, config))
    return valid, notes


def _with_writable_key(edit: PlannedEdit, config: RunConfig) -> PlannedEdit:
    """The edit under the name that the run uses: cuda_graph_scope excludes cuda_graph_modules, its newer name."""
    modules = config_keys().keys["cuda_graph_modules"]
    given = config.values.get(modules.name)
    if (
        edit.key == "cuda_graph_scope"
        and given is not None
        and (given.is_stated_by("command line") or (given.is_stated and bool(given.value)))
        and is_allowed(modules, edit.to)
    ):
        return replace(edit, key=modules.name)
    return edit


def _spell_environment(edits: Iterable[PlannedEdit]) -> tuple[tuple[tuple[str, str], ...], list[str]]:
    """Variables to set, sorted by name, and notes on those to unset."""
    values: dict[str, str] = {}
    notes = []
    for edit in edits:
        if edit.to is None:
            notes.append(f"Environment: unset {edit.key}")
        elif isinstance(edit.to, bool):
            values[edit.key] = "1" if edit.to else "0"
        else:
            values[edit.key] = ",".join(map(str, edit.to)) if isinstance(edit.to, tuple) else str(edit.to)
    return tuple(sorted(values.items())), notes
