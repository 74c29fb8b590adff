"""Writes docs/generated: the reference of commands, facts and limits, from the program itself.

    python -m tools.generate_docs           # write
    python -m tools.generate_docs --check   # exit 1 if a file is not up to date

Every page is plain Markdown, so it reads the same in the repository and on the site that mkdocs builds.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import click

from three_walls.cli.main import cli
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib import limits

OUT = Path(__file__).resolve().parent.parent / "docs" / "generated"
LIMITS = Path(limits.__file__)
NOTE = "<!-- Written by tools/generate_docs.py; do not edit. -->"


def command_reference() -> str:
    """The help text of every command, as the terminal prints it at 100 columns."""
    lines = [NOTE, "", "# Commands", ""]
    for context in _contexts(cli, "three-walls", None):
        lines += [f"## {context.command_path}", "", "```text", context.get_help(), "```", ""]
    return "\n".join(lines)


def _contexts(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    """A context of ``command`` and of every command below it, as a call from the shell has them."""
    settings = {"terminal_width": 100, "max_content_width": 100} | command.context_settings
    context = click.Context(command, info_name=name, parent=parent, **settings)
    command._help_option = None  # click keeps that of the first context, which may have been without the group
    yield context
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            assert child is not None
            yield from _contexts(child, child_name, context)


def fact_reference() -> str:
    """Every fact with its unit and definition, in order of definition."""
    lines = [
        NOTE,
        "",
        "# Facts",
        "",
        "What a report may hold and a rule may compare. Settings of the run are facts too: `config.<key>` and",
        "`env.<VARIABLE>`. A time per step, or a fraction of the step, is one of the representative step. What the",
        "inputs cannot give is missing, with the reason; it is never zero. Sentences of the report use the name in the",
        "third column.",
        "",
        "| fact | unit | called | meaning | not the same as | needs of the trace |",
        "|---|---|---|---|---|---|",
    ]
    for fact in DEFINITIONS:
        cells = (f"`{fact.name}`", fact.unit, fact.label, fact.meaning, fact.not_the_same_as, ", ".join(fact.needs))
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return "\n".join([*lines, ""])


def limit_reference() -> str:
    """Every limit on inputs with its value and the sentence that explains it, in their order in the code."""
    lines = [
        NOTE,
        "",
        "# Limits on inputs",
        "",
        "Files may be of unknown origin, so whatever could take unlimited time or memory has a limit, far above what a",
        "real run needs. They are constants of `three_walls/lib/limits.py`.",
        "",
        "| limit | value | of what |",
        "|---|---:|---|",
    ]
    statements = ast.parse(LIMITS.read_text(encoding="utf-8")).body
    for constant, comment in pairwise(statements):
        if (
            isinstance(constant, ast.Assign)
            and isinstance(comment, ast.Expr)
            and isinstance(comment.value, ast.Constant)
        ):
            name = ast.unparse(constant.targets[0])
            value = getattr(limits, name)
            meaning = " ".join(str(comment.value.value).replace("``", "`").split())
            shown = f"{value:,}" if isinstance(value, int | float) else ast.unparse(constant.value)
            lines.append(f"| `{name}` | {shown} | {meaning.replace('|', '&#124;')} |")
    return "\n".join([*lines, ""])


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": command_reference,
    "facts.md": fact_reference,
    "limits.md": limit_reference,
}


def main(arguments: list[str]) -> int:
    """Write every page, or name those that are not up to date."""
    stale = []
    for name, make in PAGES.items():
        path, text = OUT / name, make()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            OUT.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if "--check" in arguments and stale:
        print(f"not up to date: {', '.join(stale)}; run: make docs", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
