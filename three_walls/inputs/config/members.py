"""Enum members and torch dtypes as launchers, saved configs and logs write them, read as plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from three_walls.tables.config_keys import config_keys

# <CudaGraphScope.attn: 2> as Python's repr has it, AttnBackend.unfused as its str.
_WRITTEN = re.compile(r"<?(?P<enum>[A-Za-z_]\w*)\.(?P<member>\w+)(: .*>)?")


def read_construction(target: object, arguments: object, name: object = None) -> str | None:
    """The word that ``{_target_: module.Class, _args_: [number]}`` stands for; None if it is no known member.

    A dtype is its ``_target_`` alone. ``name`` is the ``_name_`` that newer releases write beside the number.
    """
    table = config_keys()
    if not isinstance(target, str):
        return None
    if target in table.dtypes:
        return table.dtypes[target]
    members = table.enums.get(target)
    if members is None:
        return None
    if isinstance(name, str) and name in members:
        return name
    first = arguments[0] if isinstance(arguments, Sequence) and not isinstance(arguments, str) and arguments else None
    return _member(members, first)


def read_written(text: str) -> str:
    """``AttnBackend.flash``, ``<CudaGraphScope.attn: 2>`` and ``torch.float32`` as words; other text as it is."""
    table = config_keys()
    if text in table.dtypes:
        return table.dtypes[text]
    match = _WRITTEN.fullmatch(text)
    if match is not None:
        for name, members in table.enums.items():
            if name.rpartition(".")[2] == match["enum"] and match["member"] in members:
                return match["member"]
    return text


def read_number(enum: str | None, value: object) -> object:
    """A member's number as its name, where the key holds members of ``enum``."""
    if enum is None or isinstance(value, bool) or not isinstance(value, int):
        return value
    return _member(config_keys().enums[enum], value) or value


def _member(members: Mapping[str, int], wanted: object) -> str | None:
    """The member with a number or a name."""
    if isinstance(wanted, str):
        return wanted if wanted in members else None
    if isinstance(wanted, bool):
        return None
    return next((member for member, number in members.items() if number == wanted), None)
