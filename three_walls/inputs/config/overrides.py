"""Hydra overrides as settings: what constructs an enum member or a dtype is read as its name."""

from __future__ import annotations

from three_walls.inputs.config.members import read_construction
from three_walls.tables.hydra_overrides import Override, read_override

_TARGET, _ARGUMENTS = "._target_", "._args_"


def read_setting(word: str) -> list[Override]:
    """The settings of one override: ``x={_target_:...AttnBackend,_args_:[2]}`` is ``x=fused``."""
    found = read_override(word)
    values = {one.path: one.value for one in found}
    words: list[Override] = []
    for one in found:
        path = one.path.removesuffix(_TARGET).removesuffix(_ARGUMENTS)
        member = (
            read_construction(values.get(path + _TARGET), values.get(path + _ARGUMENTS)) if path != one.path else None
        )
        if member is None:
            words.append(one)
        elif one.path.endswith(_TARGET):
            words.append(Override(one.prefix, path, member))
    return words
