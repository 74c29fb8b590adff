"""The plan's edits as shell text: overrides.txt, and the lines that the report offers for copying."""

from __future__ import annotations

import shlex

from three_walls.model.finding import Overrides
from three_walls.model.report import Report

_HOW_TO_USE = """\
# Each line is quoted for the shell. The start of a line shows its kind:
#   "export "  environment       . <(grep '^export ' overrides.txt)
#   "--"       Megatron-LM       grep '^--' overrides.txt | xargs torchrun pretrain_gpt.py <your flags>
#   the rest   Megatron-Bridge   grep -vE '^(#|export |--|$)' overrides.txt | xargs torchrun run_recipe.py <your flags>
# Use the part of your launcher, not both."""


def quote_bridge(overrides: Overrides) -> tuple[str, ...]:
    """Hydra overrides, one per line: ``'model.cuda_graph_scope=[attn]'`` (brackets are globs to a shell)."""
    return tuple(shlex.quote(override) for override in overrides.bridge)


def quote_megatron_lm(overrides: Overrides) -> tuple[str, ...]:
    """Megatron-LM flags, one flag with its values per line; each word is quoted alone."""
    return tuple(shlex.join(flag.split()) for flag in overrides.megatron_lm)


def quote_env(overrides: Overrides) -> tuple[str, ...]:
    """Environment variables as ``export NAME=value``."""
    return tuple(f"export {name}={shlex.quote(value)}" for name, value in overrides.env.items())


def list_forms(overrides: Overrides) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """Id, title and lines of each launcher's form; forms without a line are left out."""
    forms = (
        ("env", "Environment", quote_env(overrides)),
        ("bridge", f"Megatron-Bridge {overrides.bridge_version}", quote_bridge(overrides)),
        ("megatron-lm", "Megatron-LM", quote_megatron_lm(overrides)),
        ("python", "Python, in the recipe", overrides.python),
    )
    return tuple(form for form in forms if form[2])


def render_overrides(report: Report) -> str:
    """Text of overrides.txt; ends with a newline."""
    overrides = report.overrides
    head = f"# three-walls {report.tool_version}: the edits of the plan, all of them."
    if not report.plan:
        return f"{head}\n# The plan is empty: nothing to change.\n"
    parts = [
        f"{head}\n{_HOW_TO_USE}",
        *_comment("Notes: what no line below can express", overrides.notes),
        *_section("Environment", quote_env(overrides)),
        *_section(f"Megatron-Bridge {overrides.bridge_version}", quote_bridge(overrides)),
        *_section("Megatron-LM", quote_megatron_lm(overrides)),
        *_comment("The same in Python, for a recipe that is edited", overrides.python),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    return ("\n".join((f"# {title}", *lines)),) if lines else ()


def _comment(title: str, notes: tuple[str, ...]) -> tuple[str, ...]:
    """A section of comments: every line of a note that holds line breaks is one."""
    lines = tuple(f"#   {line}" for note in notes for line in note.splitlines())
    return _section(title, lines)
