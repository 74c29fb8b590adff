"""Every problem of a table is reported with its place, all at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, ValidationInfo

from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import (
    ByName,
    NamedRow,
    Pattern,
    Problem,
    Scalar,
    Text,
    Texts,
    Value,
    between,
    load_table,
    one_of,
    raise_contradictions,
    raise_problems,
    read_table,
)


def write(folder: Path, text: str) -> Path:
    path = folder / "table.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def complaints(folder: Path, text: str, kind: Any = Any, **context: object) -> list[str]:
    """All problems of ``text`` in the order of the report, as ``line:column: sentence``."""
    with pytest.raises(RuleBaseError) as caught:
        load_table(write(folder, text), kind, context)
    return [line.partition("table.yaml:")[2] for line in str(caught.value).splitlines()]


class Wall(StrEnum):
    HOST = "host"
    COMPUTE = "compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Greek:
    alpha: Text
    beta: Text = ""
    gamma: Text


def test_plain_values_keep_their_types(tmp_path: Path) -> None:
    text = "a: [1, 1_000, -2, 1.5, 1.0e-3, true, null, none, \"no\", '1e-3', deep_ep]\nb: {c: --flag}\nd: >\n  007\n"
    values = [1, 1000, -2, 1.5, 0.001, True, None, "none", "no", "1e-3", "deep_ep"]
    assert load_table(write(tmp_path, text), dict[str, Any]) == {"a": values, "b": {"c": "--flag"}, "d": "007\n"}


@pytest.mark.parametrize(
    ("value", "reading"),
    [
        ("no", "a boolean; quote it, or write true or false"),
        ("on", "a boolean"),
        ("Yes", "a boolean"),
        ("TRUE", "a boolean"),
        ("1e-3", "text, though it looks like a number; quote it, or write it as 1.0e-3 or 0.001"),
        ("08", "text, though it looks like a number"),
        ("1:30", "a number in an unusual form, which is easily taken for another; quote it"),
        ("0x1f", "a number in an unusual form"),
        ("010", "a number in an unusual form"),
        (".5", "a number in an unusual form"),
        (".inf", "a number in an unusual form"),
        ("2026-01-02", "a date; quote it"),
        ("NULL", "nothing; quote it, or write null"),
        ("!!float 3", ""),
        ("!thing x", ""),
    ],
)
def test_values_that_yaml_surprises_with_are_refused(tmp_path: Path, value: str, reading: str) -> None:
    found = complaints(tmp_path, f"a: {value}\n")
    assert len(found) == 1
    assert re.match(rf"1:4: .* is ambiguous: YAML reads {re.escape(reading)}", found[0])


@pytest.mark.parametrize(
    "kind", [Text, Texts, bool, int, float, Pattern, Value, Wall, list[str], dict[str, int], Greek, Literal["yes"]]
)
def test_a_refused_value_is_one_problem_whatever_it_is_read_as(tmp_path: Path, kind: Any) -> None:
    assert len(complaints(tmp_path, "a: no\n", dict[str, kind])) == 1


def test_a_repeated_key_is_an_error_at_its_second_place(tmp_path: Path) -> None:
    assert complaints(tmp_path, "a: 1\nb: 2\na: 3\n") == ["3:1: key a is repeated (first on line 1)"]
    assert complaints(tmp_path, "a: x\nb: 2\na: 3\n", dict[str, int]) == [
        "1:4: expected a whole number, found text, 'x'",
        "3:1: key a is repeated (first on line 1)",
    ]


def test_keys_are_text(tmp_path: Path) -> None:
    found = complaints(tmp_path, "1: a\nno: b\n[x]: c\n")
    assert found[0] == "1:1: expected a text key, found a number, 1 (quote it?)"
    assert found[1].startswith("2:1: no is ambiguous")
    assert found[2] == "3:1: expected a text key, found a list (quote it?)"


def test_aliases_and_tags_of_collections_are_not_read(tmp_path: Path) -> None:
    assert complaints(tmp_path, "a: &x [1]\nb: *x\n") == ["2:4: aliases are not read; write the value out"]
    assert len(complaints(tmp_path, "a: &x [*x]\n")) == 1
    found = complaints(tmp_path, "a: !!set {b}\n")
    assert len(found) == 1
    assert "is not read" in found[0]


@pytest.mark.parametrize("text", ["", "a: [1\n", "a: *nowhere\n", "\t- x\n", "a: 1\n---\nb: 1\n", "a: \x01\n"])
def test_what_is_no_document_is_one_problem(tmp_path: Path, text: str) -> None:
    assert len(complaints(tmp_path, text)) == 1


@pytest.mark.parametrize("levels", [42, 200_000])
def test_deep_nesting_is_one_problem_and_no_crash(tmp_path: Path, levels: int) -> None:
    assert complaints(tmp_path, "[" * levels + "]" * levels) == ["1:42: not valid YAML: more than 40 levels"]
    assert complaints(tmp_path, "[" * 40 + "]" * 40, int) == ["1:1: expected a whole number, found a list"]


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    for name in ("absent.yaml", "latin.yaml", "."):
        with pytest.raises(RuleBaseError, match=r":1:1: cannot be read: .*\w"):
            load_table(tmp_path / name, Greek)


def test_unknown_and_missing_keys_are_listed_together_in_order_of_place(tmp_path: Path) -> None:
    assert complaints(tmp_path, "alpha: 1\nbeat: x\n", Greek) == [
        "1:1: key gamma is missing",
        "1:8: expected text (quote it?), found a number, 1",
        "2:1: unknown key beat (did you mean beta?)",
    ]


@dataclass(frozen=True, slots=True)
class Everything:
    text: Text
    list: tuple[Scalar, ...]
    map: Annotated[float, between(0, 1)]
    flag: int
    five: Annotated[float, between(0, 1)]
    half: int
    none: tuple[Text, ...]
    word: Wall
    chosen: Annotated[Text, one_of(("host", "compute"))]
    pattern: Pattern
    patterns: tuple[Pattern, ...]
    pair: tuple[int, int]
    sort: Literal["step", "rank"]


def test_each_type_gives_what_it_expected_and_what_it_found(tmp_path: Path) -> None:
    text = (
        "text: '  '\nlist: [[1]]\nmap: {}\nflag: true\nfive: 5\nhalf: 0.5\nnone:\nword: hots\nchosen: hots\n"
        "pattern: '('\npatterns: [1, ' ']\npair: [1]\nsort: steps\n"
    )
    assert complaints(tmp_path, text, Everything) == [
        "1:7: expected text, found none",
        "2:8: expected text, a number, true, false or null, found a list",
        "3:6: expected a number, found a mapping",
        "4:7: expected a whole number, found a boolean, true",
        "5:7: expected a number from 0 to 1, found 5",
        "6:7: expected a whole number, found a number, 0.5",
        "7:6: expected a list, found nothing",
        "8:7: expected one of host, compute, found hots (did you mean host?)",
        "9:9: expected one of host, compute, found hots (did you mean host?)",
        "10:10: not a regular expression: missing ), unterminated subpattern at position 0",
        "11:12: expected text (quote it?), found a number, 1",
        "11:15: expected text, found none",
        "12:7: the list is too short: element 2 is missing",
        "13:7: expected one of step, rank, found steps (did you mean step?)",
    ]


@dataclass(frozen=True, slots=True)
class Friendly:
    one: Texts
    several: Texts
    value: Value
    number: float
    pattern: Pattern


def test_a_single_text_is_a_list_of_one_and_a_whole_number_is_a_number(tmp_path: Path) -> None:
    row = load_table(write(tmp_path, "one: a\nseveral: [a, b]\nvalue: [1, x]\nnumber: 2\npattern: ' a+ '\n"), Friendly)
    assert (row.one, row.several, row.value, row.number) == (("a",), ("a", "b"), (1, "x"), 2.0)
    assert row.pattern.pattern == "a+"


@dataclass(frozen=True, slots=True)
class Rank(NamedRow):
    host: Text
    after: Text = ""


@dataclass(frozen=True, slots=True)
class Ranks:
    ranks: ByName[Rank]

    def __post_init__(self) -> None:
        lost = {name: rank for name, rank in self.ranks.items() if rank.after and rank.after not in self.ranks}
        raise_contradictions([(("ranks", name, "after"), f"no rank {rank.after}") for name, rank in lost.items()])


def test_rows_of_a_mapping_know_their_names(tmp_path: Path) -> None:
    table = load_table(write(tmp_path, "ranks: {a: {host: x}, b: {host: y}}\n"), Ranks)
    assert [rank.name for rank in table.ranks.values()] == ["a", "b"]


def test_a_row_of_a_mapping_does_not_state_its_name(tmp_path: Path) -> None:
    assert complaints(tmp_path, "ranks: {a: {host: x, name: b}}\n", Ranks) == ["1:22: unknown key name"]
    assert complaints(tmp_path, "ranks: {a: {host: x, nam: b}}\n", Ranks) == ["1:22: unknown key nam"]


def test_all_contradictions_between_sound_rows_are_reported_with_their_places(tmp_path: Path) -> None:
    text = "ranks:\n  a: {host: x, after: c}\n  b: {host: y, after: d}\n"
    assert complaints(tmp_path, text, Ranks) == [
        "2:23: no rank c",
        "3:23: no rank d",
    ]


def test_errors_of_form_of_rows_and_between_rows_are_reported_together(tmp_path: Path) -> None:
    text = "ranks:\n  a: {host: x, after: nobody}\n  b: {hots: y}\n  c: {host: z, after: b}\n"
    assert complaints(tmp_path, text, Ranks) == [
        "2:23: no rank nobody",
        "3:6: key host is missing",
        "3:7: unknown key hots (did you mean host?)",
    ]


@dataclass(frozen=True, slots=True)
class Steps:
    steps: tuple[Rank, ...]

    def __post_init__(self) -> None:
        hosts = [step.host for step in self.steps]
        raise_contradictions(
            (("steps", position, "host"), f"{host} is listed twice")
            for position, host in enumerate(hosts)
            if host in hosts[:position]
        )


def test_a_contradiction_after_a_row_with_an_error_has_the_place_of_its_own_row(tmp_path: Path) -> None:
    text = "steps:\n  - {host: x}\n  - {host: 1}\n  - {host: x}\n"
    assert complaints(tmp_path, text, Steps) == [
        "3:12: expected text (quote it?), found a number, 1",
        "4:12: x is listed twice",
    ]


def test_contradictions_wait_until_the_sections_of_a_table_are_sound(tmp_path: Path) -> None:
    text = "ranks:\n  a: {host: x, after: nobody}\nrnaks: {}\n"
    assert complaints(tmp_path, text, Ranks) == ["3:1: unknown key rnaks (did you mean ranks?)"]


def check_pointer(pointer: str, info: ValidationInfo) -> str:
    if pointer not in info.context["sources"]:
        raise ValueError(f"unknown source {pointer}")
    return pointer


def test_a_validator_sees_what_the_caller_knows(tmp_path: Path) -> None:
    kind: Any = dict[str, Annotated[str, AfterValidator(check_pointer)]]
    assert load_table(write(tmp_path, "a: mcore\n"), kind, {"sources": {"mcore"}}) == {"a": "mcore"}
    assert complaints(tmp_path, "a: te\nb: mcore\nc: x\n", kind, sources={"mcore"}) == [
        "1:4: unknown source te",
        "3:4: unknown source x",
    ]


def test_problems_of_several_files_are_raised_together_in_reading_order(tmp_path: Path) -> None:
    problems: list[Problem] = []
    for name in ("b", "a"):
        (tmp_path / f"{name}.yaml").write_text("alpha: x\ngama: y\n", encoding="utf-8")
        assert read_table(tmp_path / f"{name}.yaml", Greek, problems) is None
    with pytest.raises(RuleBaseError) as caught:
        raise_problems(problems)
    found = [line.rpartition("/")[2] for line in str(caught.value).splitlines()]
    assert found == [
        "a.yaml:1:1: key gamma is missing",
        "a.yaml:2:1: unknown key gama (did you mean gamma?)",
        "b.yaml:1:1: key gamma is missing",
        "b.yaml:2:1: unknown key gama (did you mean gamma?)",
    ]
    raise_problems([])
