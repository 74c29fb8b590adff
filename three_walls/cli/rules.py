"""``three-walls rules``: lists and shows rules, checks and tests your own. ``three-walls facts``: what they compare."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from three_walls.cli.signals import loading
from three_walls.lib.errors import InputError, RuleBaseError, UsageError
from three_walls.lib.expressions import Clause, Junction
from three_walls.lib.fact import FactDefinition
from three_walls.lib.files import read_text_file
from three_walls.lib.resources import RULES_DIR
from three_walls.lib.shell import quote_file
from three_walls.lib.text import show_control_characters
from three_walls.tables.buckets import SubWall, Wall

if TYPE_CHECKING:
    from three_walls.advice.format.load_rules import RuleBase


def _own_directory(_context: click.Context, _parameter: click.Parameter, directory: Path | None) -> Path | None:
    """The user's own directory of rules; None where it is the one that ships with the program, which is always read."""
    return None if directory is None or directory.resolve() == RULES_DIR.resolve() else directory


_OWN = click.argument(
    "directory",
    required=False,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    callback=_own_directory,
)


@click.group("rules")
def rules_command() -> None:
    """List, show, check and test the rules; write a new one."""


@rules_command.command("list")
@_OWN
def list_command(directory: Path | None) -> None:
    """List rules, one a line: id, wall, applicability, title. DIRECTORY adds rules of your own."""
    for rule in _load(directory).rules:
        wall = f"{rule.wall}.{rule.sub_wall}" if rule.sub_wall else str(rule.wall)
        click.echo(f"{rule.id:<36} {wall:<21} {rule.applicability:<21} {rule.title}")


@rules_command.command("warnings")
@_OWN
def warnings_command(directory: Path | None) -> None:
    """List the warnings of rules/warnings, one a line: code, conditions, exceptions."""
    for warning in _load(directory).warnings:
        unless = f" unless {_describe(warning.unless)}" if warning.unless else ""
        click.echo(f"{warning.code:<36} {_describe(warning.when)}{unless}")


@rules_command.command("new")
@click.argument("rule_id", metavar="ID")
@click.option("--wall", type=click.Choice([wall.value for wall in Wall]), required=True, help="Wall of the rule.")
@click.option("--sub-wall", type=click.Choice([part.value for part in SubWall]), help="For --wall compute_host.")
@click.option(
    "--into",
    "directory",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("rules"),
    help="Directory of rules (default: rules).",
)
def new_command(rule_id: str, wall: str, sub_wall: str | None, directory: Path) -> None:
    """Write a rule and its cases to fill in. rules test names every part that is still to do."""
    with loading():
        from three_walls.advice.format.scaffold import write_scaffold
    if any(rule.id == rule_id for rule in _load(None).rules):
        raise UsageError(f"{rule_id} is already the id of a rule")
    for path in write_scaffold(rule_id, Wall(wall), SubWall(sub_wall) if sub_wall else None, directory):
        click.echo(f"wrote {show_control_characters(str(path))}")
    click.echo(f"Fill in what is marked TODO, then run: three-walls rules test {quote_file(str(directory))}")


@rules_command.command("show")
@click.argument("rule_id", metavar="ID")
@_OWN
def show_command(rule_id: str, directory: Path | None) -> None:
    """Print the file of a rule: conditions, requirements, edits, gain, evidence for and against."""
    path = next((path for path in _files(directory) if path.stem == rule_id), None)
    if path is None:
        raise UsageError(f"expected the id of a rule, found {rule_id!r} (see: three-walls rules list)")
    try:
        text = read_text_file(path, "a rule (YAML)")
    except InputError as error:
        raise RuleBaseError(str(error)) from error
    click.echo(show_control_characters(text), nl=False)


@rules_command.command("check")
@_OWN
def check_command(directory: Path | None) -> None:
    """Read every rule, effect and warning; list all errors with file, line and column (exit code 5)."""
    click.echo(f"{len(_load(directory).rules)} rules have no errors")


@rules_command.command("test")
@_OWN
def test_command(directory: Path | None) -> None:
    """Run the written and the derived cases of every rule; exit code 1 if one fails."""
    with loading():
        from three_walls.advice.format.load_rules import cases_file
        from three_walls.advice.testing.derive_cases import check_cases
        from three_walls.advice.testing.rule_cases import load_cases
    rules = {rule.id: rule for rule in _load(directory).rules}
    written = derived = failed = 0
    for path in _files(directory):
        if not cases_file(path).exists():
            click.echo(f"{path.stem}: has no cases (expected {cases_file(path).name} in the same folder)")
            failed += 1
            continue
        cases = load_cases(cases_file(path), definitions=_list_definitions())
        report = check_cases(rules[cases.rule], cases)
        written += report.written
        derived += report.derived
        failed += len(report.failures)
        for sentence in report.failures:
            click.echo(f"{cases.rule}: {sentence}")
    click.echo(f"{written} written and {derived} derived cases, {failed} failed")
    if failed:
        sys.exit(1)


def _load(directory: Path | None) -> RuleBase:
    with loading():
        from three_walls.advice.format.load_rules import load_rule_base
    return load_rule_base(_list_definitions(), directory)


def _list_definitions() -> tuple[FactDefinition, ...]:
    with loading():
        from three_walls.facts.sheet import DEFINITIONS
    return DEFINITIONS


def _describe(conditions: Sequence[Clause]) -> str:
    return str(conditions[0] if len(conditions) == 1 else Junction("and", tuple(conditions)))


def _files(directory: Path | None) -> tuple[Path, ...]:
    with loading():
        from three_walls.advice.format.load_rules import rule_files
    return (*rule_files(RULES_DIR), *(rule_files(directory) if directory else ()))


@click.command("facts")
def facts_command() -> None:
    """List every fact that a report may hold and a rule may compare, with its unit and definition.

    Settings are facts too: config.<key> (keys of tables/config-keys.yaml) and env.<VARIABLE>.
    """
    for entry in _list_definitions():
        for line in describe_fact(entry):
            click.echo(line)


def describe_fact(entry: FactDefinition) -> Iterator[str]:
    """The definition of a fact: its name and unit, then indented lines."""
    yield f"{entry.name} [{entry.unit}]"
    yield f"    {entry.meaning}"
    if entry.not_the_same_as:
        yield f"    Not the same as: {entry.not_the_same_as}"
    if entry.needs:
        yield f"    Needs of the trace: {', '.join(entry.needs)}"
