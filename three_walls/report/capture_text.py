"""A capture recipe as a shell script: reasons are comments."""

from __future__ import annotations

import textwrap

from three_walls.model.capture import CaptureRecipe

_COLUMNS = 110


def format_recipe(recipe: CaptureRecipe) -> str:
    """The script; every command is one line, so that it can be copied."""
    blocks = []
    for step in recipe.steps:
        lines = [
            line
            for reason in step.reasons
            for line in textwrap.wrap(
                reason,
                _COLUMNS,
                initial_indent="# ",
                subsequent_indent="#   ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
        blocks.append("\n".join([*lines, step.command]))
    return "\n\n".join(blocks) + "\n"
