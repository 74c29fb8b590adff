"""``three-walls rules``: what is in the rule base, and whether one's own rules are sound."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from three_walls.model.errors import UsageError
from three_walls.model.rule import Rule
from three_walls.report.text_rule import describe_rule
from three_walls.resources import RULES_DIR
from three_walls.rules.cases import mismatches
from three_walls.rules.load import cases_file, load_cases, load_rules, rule_files
from three_walls.rules.small_gains import judge_with_size

_OWN = click.argument("directory", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))


@click.group("rules")
def rules_command() -> None:
    """List, show, check and test the rules."""


@rules_command.command("list")
@_OWN
def list_command(directory: Path | None) -> None:
    """One line per rule: id, wall, class, title. DIRECTORY: rules of your own besides."""
    for rule in _load(directory):
        wall = f"{rule.wall}.{rule.sub_wall}" if rule.sub_wall else str(rule.wall)
        click.echo(f"{rule.id:<36} {wall:<21} {rule.rule_class:<21} {rule.title}")


@rules_command.command("show")
@click.argument("rule_id", metavar="ID")
@_OWN
def show_command(rule_id: str, directory: Path | None) -> None:
    """Everything one rule says: conditions, requirements, edits, gain, evidence for and against."""
    rules = {rule.id: rule for rule in _load(directory)}
    if rule_id not in rules:
        raise UsageError(f"expected the id of a rule, found {rule_id!r} (see: three-walls rules list)")
    click.echo(describe_rule(rules[rule_id]))


@rules_command.command("check")
@_OWN
def check_command(directory: Path | None) -> None:
    """Read every rule; list all errors with file, line and column (exit code 5)."""
    click.echo(f"{len(_load(directory))} rules are sound")


@rules_command.command("test")
@_OWN
def test_command(directory: Path | None) -> None:
    """Run every case of every rule; exit code 1 if one fails."""
    rules = {rule.id: rule for rule in _load(directory)}
    failed = run = 0
    for path in _files(directory):
        if not cases_file(path).exists():
            click.echo(f"{path.stem}: has no cases ({cases_file(path).name} beside it)")
            failed += 1
            continue
        found = load_cases(cases_file(path))
        for case in found.cases:
            run += 1
            wrong = mismatches(case, judge_with_size(rules[found.rule], found.facts_of(case)))
            failed += bool(wrong)
            for sentence in wrong:
                click.echo(f"{found.rule}: {case.name}: {sentence}")
    click.echo(f"{run} cases, {failed} failed")
    if failed:
        sys.exit(1)


def _load(directory: Path | None) -> tuple[Rule, ...]:
    return load_rules(RULES_DIR, *([directory] if directory else []))


def _files(directory: Path | None) -> tuple[Path, ...]:
    return (*rule_files(RULES_DIR), *(rule_files(directory) if directory else ()))
