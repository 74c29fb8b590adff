"""Writes ``docs/generated/rules.md``, the index of rules and warnings: ``python -m tools.generate_rules_index``.

A test compares the file with what this writes, so it has to be run after every change of a title, a wall or a lever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from three_walls.advice.format.load_rules import load_rules
from three_walls.advice.format.rule import Rule, WarningRule
from three_walls.advice.judge_warnings import load_warnings
from three_walls.facts.registry import DEFINITIONS
from three_walls.lib.expressions import list_names
from three_walls.lib.resources import RULES_DIR

INDEX = Path(__file__).resolve().parent.parent / "docs" / "generated" / "rules.md"
_WALLS = {
    "memory": "Memory wall",
    "communication": "Communication wall",
    "compute_host.compute": "Compute/host wall: compute",
    "compute_host.host": "Compute/host wall: host",
}
_TO_RULES = "../../rules"


def index_of(rules: Iterable[Rule], warnings: Iterable[WarningRule]) -> str:
    """The index as Markdown: one table per wall, then the warnings."""
    return "\n".join(_lines(tuple(rules), tuple(warnings))) + "\n"


def _lines(rules: tuple[Rule, ...], warnings: tuple[WarningRule, ...]) -> Iterator[str]:
    yield "# Rules"
    yield ""
    yield "<!-- written by `python -m tools.generate_rules_index`: do not edit -->"
    yield ""
    yield f"{len(rules)} rules and {len(warnings)} warnings. `three-walls rules show ID` prints the file of a rule;"
    yield f"[the rule base]({_TO_RULES}/README.md) describes how to write one."
    for wall, title in _WALLS.items():
        yield from (
            "",
            f"## {title}",
            "",
            "| rule | what it recommends | changes | lever | gain | in a replay |",
            "|---|---|---|---|---|---|",
        )
        for rule in rules:
            if ".".join(filter(None, (rule.wall, rule.sub_wall))) == wall:
                lever = rule.lever.replace("_", " ")
                link = f"[{rule.id}]({_TO_RULES}/{rule.path})"
                basis = rule.gain.basis.replace("_", " ")
                actions = ", ".join(dict.fromkeys(part.action.replace("_", " ") for part in rule.gain.replay))
                row = (link, rule.title, rule.applicability, lever or "no setting", basis, actions or "not replayed")
                yield f"| {' | '.join(row)} |"
    yield from ("", "## Warnings", "", "| code | given where |", "|---|---|")
    for warning in warnings:
        facts = ", ".join(dict.fromkeys(f"`{name}`" for condition in warning.when for name in list_names(condition)))
        yield f"| [{warning.code}]({_TO_RULES}/{warning.path}) | a comparison of {facts} holds |"


def main() -> None:
    """Writes the file."""
    INDEX.parent.mkdir(parents=True, exist_ok=True)
    rules = load_rules(RULES_DIR, definitions=DEFINITIONS)
    INDEX.write_text(index_of(rules, load_warnings(RULES_DIR, definitions=DEFINITIONS)), encoding="utf-8")


if __name__ == "__main__":
    main()
