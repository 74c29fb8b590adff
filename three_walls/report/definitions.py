"""Where the report takes the definition of a fact from."""

from __future__ import annotations

from three_walls.model.fact import FactDefinition
from three_walls.model.glossary import GLOSSARY_BY_NAME


def definition_of(name: str) -> FactDefinition | None:
    """The definition of the fact called ``name``; None for settings and environment variables."""
    return GLOSSARY_BY_NAME.get(name)
