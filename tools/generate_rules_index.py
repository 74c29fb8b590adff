"""Writes ``docs/generated/rules.md``, the index of the rule base: ``python -m tools.generate_rules_index``.

A test compares the file with what this writes, so it has to be run after every change of a title, a wall or a lever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from three_walls.advice.format.effect import Effect
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.advice.format.rule import Edit, Rule
from three_walls.advice.judge_warnings import WarningRule, warning_files
from three_walls.facts.sheet import DEFINITIONS
from three_walls.lib.expressions import list_names
from three_walls.lib.resources import EFFECTS_FOLDER, RULES_DIR, WARNINGS_FOLDER

INDEX = Path(__file__).resolve().parent.parent / "docs" / "generated" / "rules.md"
_WALLS = {
    "memory": "Memory wall",
    "communication": "Communication wall",
    "compute_host.compute": "Compute/host wall: compute",
    "compute_host.host": "Compute/host wall: host",
}
_TO_RULES = "../../rules"


def index_of(rules: Iterable[Rule], effects: Iterable[Effect], warnings: Iterable[WarningRule]) -> str:
    """The index as Markdown: one table per wall, then the effects and the warnings."""
    return "\n".join(_lines(tuple(rules), tuple(effects), tuple(warnings))) + "\n"


def _lines(rules: tuple[Rule, ...], effects: tuple[Effect, ...], warnings: tuple[WarningRule, ...]) -> Iterator[str]:
    yield "# Rules"
    yield ""
    yield "<!-- written by `python -m tools.generate_rules_index`: do not edit -->"
    yield ""
    yield f"{len(rules)} rules, {len(effects)} effects of settings and {len(warnings)} warnings."
    yield "`three-walls rules show ID` prints the file of a rule;"
    yield f"[the rule base]({_TO_RULES}/README.md) describes how to write one."
    for wall, title in _WALLS.items():
        yield from (
            "",
            f"## {title}",
            "",
            "| rule | what it recommends | changes | lever | gains | in a replay |",
            "|---|---|---|---|---|---|",
        )
        for rule in rules:
            if ".".join(filter(None, (rule.wall, rule.sub_wall))) == wall:
                lever = rule.lever.replace("_", " ")
                link = f"[{rule.id}]({_TO_RULES}/{rule.path})"
                gains = "memory" if rule.gain.frees_memory else "time"
                replayed = ", ".join(_describe_replay(rule, effects)) or "not replayed"
                row = (link, rule.title, rule.applicability, lever or "no setting", gains, replayed)
                yield f"| {' | '.join(row)} |"
    yield from ("", "## Effects", "", "| effect | of | applied as |", "|---|---|---|")
    for effect in effects:
        names = ", ".join(f"`{name.removeprefix('config.')}`" for name in effect.settings)
        of = f"{', '.join(f'`{element}`' for element in effect.elements)} in {names}" if effect.elements else names
        yield f"| {_link(effect)} | {of} | {effect.phase} |"
    yield from ("", "## Warnings", "", "| code | given where |", "|---|---|")
    for path, warning in zip(warning_files(RULES_DIR), warnings, strict=True):
        facts = ", ".join(dict.fromkeys(f"`{name}`" for condition in warning.when for name in list_names(condition)))
        yield f"| [{warning.code}]({_TO_RULES}/{WARNINGS_FOLDER}/{path.name}) | a comparison of {facts} holds |"


def _describe_replay(rule: Rule, effects: Iterable[Effect]) -> Iterator[str]:
    """The effects of the settings that ``rule`` edits, or what following its advice changes."""
    yield from dict.fromkeys(entry.action.replace("_", " ") for entry in rule.gain.replay)
    yield from (_link(effect) for effect in effects if any(_is_about(effect, edit) for edit in rule.edits))


def _is_about(effect: Effect, edit: Edit) -> bool:
    listed = edit.literal if isinstance(edit.literal, tuple) else ()
    is_other = effect.elements and not set(effect.elements).intersection(listed)
    return f"{edit.kind}.{edit.key}" in effect.settings and not is_other


def _link(effect: Effect) -> str:
    return f"[{effect.id}]({_TO_RULES}/{EFFECTS_FOLDER}/{effect.id}.yaml)"


def main() -> None:
    """Writes the file."""
    INDEX.parent.mkdir(parents=True, exist_ok=True)
    rules = load_rule_base(DEFINITIONS).rules
    effects = load_rule_base(DEFINITIONS).effects
    warnings = load_rule_base(DEFINITIONS).warnings
    INDEX.write_text(index_of(rules, effects, warnings), encoding="utf-8")


if __name__ == "__main__":
    main()
