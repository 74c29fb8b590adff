"""Definitions of facts, their labels and meanings."""

from __future__ import annotations

from tests.try_each import try_each
from three_walls.facts.sheet import DEFINITION_BY_NAME, DEFINITIONS


def test_every_fact_has_a_label_of_its_own() -> None:
    names_by_label: dict[str, list[str]] = {}
    for each in DEFINITIONS:
        names_by_label.setdefault(each.label.lower(), []).append(each.name)
    assert [names for names in names_by_label.values() if len(names) > 1] == []


@try_each(DEFINITION_BY_NAME)
def test_a_label_is_a_short_noun_phrase(name: str) -> None:
    label = DEFINITION_BY_NAME[name].label
    words = label.split()
    assert 2 <= len(words) <= 8
    assert label == " ".join(words) and label[-1].isalnum() and "_" not in label
    first = words[0]  # lower case unless a name: GEMM, HybridEP
    assert first.islower() or any(letter.isupper() for letter in first[1:])


@try_each(DEFINITION_BY_NAME)
def test_a_meaning_can_be_read_alone(name: str) -> None:
    each = DEFINITION_BY_NAME[name]
    assert not each.meaning.startswith(("The same", "Those", "Their", "Both"))
    assert not any(other in each.meaning for other in DEFINITION_BY_NAME if "_" in other)
    if each.unit == "fraction":
        assert each.meaning.startswith(("Fraction of the ", "Fraction of ", "Model FLOPs utilization of "))


def test_what_a_fraction_is_of_and_the_sentences_of_a_flag_are_stated_where_they_belong() -> None:
    for each in DEFINITIONS:
        assert not each.whole or each.unit == "fraction"
        assert bool(each.if_true) == bool(each.if_false) == (each.unit == "flag")


def test_the_meaning_of_a_time_with_a_share_of_the_step_begins_as_the_shares_does() -> None:
    shares = [each for each in DEFINITIONS if each.denominator == "unpaused_step_ns"]
    assert shares
    for share in shares:
        of_step = share.meaning.removeprefix("Fraction of the step ")
        assert DEFINITION_BY_NAME[share.numerator].meaning == f"Time per step {of_step}"


@try_each(DEFINITION_BY_NAME)
def test_a_fraction_is_of_defined_facts(name: str) -> None:
    each = DEFINITION_BY_NAME[name]
    assert {each.numerator, each.denominator} <= {"", *DEFINITION_BY_NAME}
    assert bool(each.numerator) == bool(each.denominator)
