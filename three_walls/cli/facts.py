"""``three-walls facts``: the definition of every fact."""

from __future__ import annotations

import click

from three_walls.cli.signals import loading


@click.command("facts")
def facts_command() -> None:
    """List every fact that a report may hold and a rule may compare, with its unit and definition.

    Settings are facts too: config.<key> (keys of tables/config-keys.yaml) and env.<VARIABLE>.
    """
    with loading():
        from three_walls.facts.registry import DEFINITIONS
    for entry in DEFINITIONS:
        click.echo(f"{entry.name} [{entry.unit}]")
        click.echo(f"    {entry.meaning}")
        if entry.not_the_same_as:
            click.echo(f"    Not the same as: {entry.not_the_same_as}")
        if entry.needs:
            click.echo(f"    Needs of the trace: {', '.join(entry.needs)}")
