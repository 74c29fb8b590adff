"""Spells edits for a launcher: Megatron-Bridge overrides, Megatron-LM flags, environment variables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from three_walls.model.config import RunConfig
from three_walls.model.finding import Overrides, PlannedEdit
from three_walls.overrides.spell_bridge import BridgeSpeller
from three_walls.overrides.spell_megatron_lm import MegatronLmSpeller
from three_walls.tables.config_keys import config_keys
from three_walls.tables.config_values import is_allowed

NEWEST_BRIDGE = "0.6.2"


def spell(edits: Sequence[PlannedEdit], config: RunConfig, bridge_version: str | None = None) -> Overrides:
    """The edits as lines to paste, in their order; of two edits of one key the later one counts.

    What a launcher cannot say is a note that begins with the launcher's name, never a line. Nothing is quoted
    for a shell: a Megatron-LM line is a flag, then its values, each after one space.
    """
    version = bridge_version or config.bridge_version or NEWEST_BRIDGE
    final = _last_of_each_key(edits)
    sound, notes = _check([edit for edit in final if edit.kind == "config"])
    bridge, megatron_lm = BridgeSpeller(sound, config, version), MegatronLmSpeller(sound, config)
    bridge.spell_all()
    megatron_lm.spell_all()
    environment, unset = _spell_environment(edit for edit in final if edit.kind == "env")
    bridge.spell_environment(environment)
    if bridge.lines and bridge_version is None and config.bridge_version is None:
        bridge.note(f"release not known, so the overrides are for {NEWEST_BRIDGE}")
    return Overrides(
        bridge_version=version,
        bridge=tuple(bridge.lines),
        megatron_lm=tuple(megatron_lm.lines),
        env=dict(environment),
        python=tuple(bridge.python.lines),
        notes=tuple(dict.fromkeys([*notes, *bridge.notes, *megatron_lm.notes, *unset])),
    )


def _last_of_each_key(edits: Sequence[PlannedEdit]) -> list[PlannedEdit]:
    """Edits without those that a later one replaces; each key stands where it was first edited."""
    last: dict[tuple[str, str], PlannedEdit] = {}
    for edit in edits:
        last[edit.kind, edit.key] = edit
    return list(last.values())


def _check(edits: Iterable[PlannedEdit]) -> tuple[list[PlannedEdit], list[str]]:
    """Edits of known keys to values they may have; notes on the others. Launchers do not check values."""
    keys = config_keys().keys
    sound, notes = [], []
    for edit in edits:
        if edit.key not in keys:
            notes.append(f"{edit.key}: no launcher's spelling is known; set it by hand to {edit.to}")
        elif not is_allowed(keys[edit.key], edit.to):
            notes.append(f"{edit.key}: {edit.to} is not one of its values; left out")
        else:
            sound.append(edit)
    return sound, notes


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
