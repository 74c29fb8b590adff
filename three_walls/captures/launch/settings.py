"""Profiling settings, spelled for Megatron-Bridge and for Megatron-LM."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from three_walls.model.config import ConfigData
from three_walls.tables.capture import BRIDGE
from three_walls.tables.config_keys import config_keys


def spell_settings(settings: Mapping[str, ConfigData], framework: str) -> tuple[str, ...]:
    """``settings`` (config keys) as quoted words for a shell; a key that the framework lacks is left out."""
    spelled = (_spell(key, value, framework) for key, value in settings.items())
    return tuple(word for words in spelled for word in words)


def _spell(key: str, value: ConfigData, framework: str) -> tuple[str, ...]:
    spelling = config_keys().keys[key]
    if framework == BRIDGE:
        path = spelling.bridge.paths[0] if spelling.bridge else None
        return () if path is None else (shlex.quote(f"{path}={_for_hydra(value)}"),)
    flag = spelling.megatron_lm.flag if spelling.megatron_lm else None
    if flag is None or value is False:
        return ()
    if value is True:
        return (flag,)
    return (flag, *(shlex.quote(str(one)) for one in (value if isinstance(value, tuple) else (value,))))


def _for_hydra(value: ConfigData) -> str:
    if isinstance(value, tuple):
        return f"[{','.join(map(str, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)
