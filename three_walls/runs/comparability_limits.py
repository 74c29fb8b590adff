"""What makes two runs unlike: ``tables/comparison.yaml``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from three_walls.lib.load_documents import Pattern, Text, load_table, raise_contradictions, suggest
from three_walls.lib.resources import TABLES_DIR
from three_walls.tables.config_keys import config_keys


@dataclass(frozen=True, slots=True)
class ComparisonRules:
    """``comparison.yaml``."""

    model: tuple[Text, ...]
    work: tuple[Text, ...]
    layout: tuple[Text, ...]
    capture: Mapping[Text, Text]
    ignored: tuple[Pattern, ...]

    def __post_init__(self) -> None:
        known = config_keys().keys
        raise_contradictions(
            ((section, place), f"{key} is not in config-keys.yaml{suggest(key, known)}")
            for section, keys in (("model", self.model), ("work", self.work), ("layout", self.layout))
            for place, key in enumerate(keys)
            if key not in known
        )

    def ignores(self, name: str) -> bool:
        """Whether the setting or variable ``name`` says nothing about the work of a step."""
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


@cache
def comparison_rules() -> ComparisonRules:
    """The rules that ship with the program."""
    return load_table(TABLES_DIR / "comparison.yaml", ComparisonRules)
