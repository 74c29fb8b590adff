"""A message stays readable, whatever it repeats of an input."""

from __future__ import annotations

from three_walls.lib.errors import MOST_MESSAGE_CHARACTERS, InputError, RuleBaseError


def test_a_message_that_repeats_a_huge_name_is_shortened_in_its_middle() -> None:
    text = str(InputError(f"a.txt: expected a name, found {'x' * 60_000}; choose another"))
    assert len(text) < MOST_MESSAGE_CHARACTERS
    assert text.startswith("a.txt: expected a name, found xxx")
    assert text.endswith("xxx; choose another")


def test_another_message_and_the_list_of_all_errors_of_rules_stay_whole() -> None:
    assert str(InputError("a.txt: no such file")) == "a.txt: no such file"
    problems = "\n".join(f"rules/a.yaml:{line}:1: unknown key x" for line in range(1_000))
    assert str(RuleBaseError(problems)) == problems
