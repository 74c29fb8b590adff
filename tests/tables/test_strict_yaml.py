"""Every problem of a table is reported with its place, all at once."""

import re
from pathlib import Path

import pytest
import yaml

from three_walls.model.errors import RuleBaseError
from three_walls.resources import RULES_DIR
from three_walls.tables import strict_yaml
from three_walls.tables.strict_yaml import Problems, load_strict
from three_walls.tables.yaml_nodes import Node, plain


@pytest.fixture(params=["C", "Python"], autouse=True)
def each_loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """libyaml where PyYAML has it, and PyYAML alone."""
    if request.param == "Python":
        monkeypatch.setattr(strict_yaml, "_LOADER", yaml.SafeLoader)


def parse(tmp_path: Path, text: str) -> tuple[Node | None, Problems]:
    path = tmp_path / "table.yaml"
    path.write_text(text, encoding="utf-8")
    problems = Problems()
    return load_strict(path, problems), problems


def complaints(problems: Problems) -> list[str]:
    """All problems in the order they are told, by ``line:column: sentence``."""
    if not problems.found:
        return []
    with pytest.raises(RuleBaseError) as caught:
        problems.raise_if_any()
    return [line.partition("table.yaml:")[2] for line in str(caught.value).splitlines()]


def read(tmp_path: Path, text: str) -> tuple[object, list[str]]:
    node, problems = parse(tmp_path, text)
    return None if node is None else plain(node), complaints(problems)


def test_plain_values_keep_their_types(tmp_path: Path) -> None:
    text = "a: [1, 1_000, -2, 1.5, 1.0e-3, true, null, none, \"no\", '1e-3', deep_ep]\nb: {c: --flag}\nd: >\n  007\n"
    values = [1, 1000, -2, 1.5, 0.001, True, None, "none", "no", "1e-3", "deep_ep"]
    assert read(tmp_path, text) == ({"a": values, "b": {"c": "--flag"}, "d": "007\n"}, [])


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
    _, found = read(tmp_path, f"a: {value}\n")
    assert len(found) == 1
    assert re.match(rf"1:4: .* is ambiguous: YAML reads {re.escape(reading)}", found[0])


def test_a_refused_value_is_one_problem_whatever_it_is_read_as(tmp_path: Path) -> None:
    node, problems = parse(tmp_path, "a: no\n")
    value = problems.entries(node)["a"]
    for reader in (problems.text, problems.texts, problems.flag, problems.integer, problems.items, problems.entries):
        reader(value)
    problems.choice(value, ("yes",))
    problems.number(value, 0, 1)
    problems.value(value)
    problems.pattern(value)
    assert len(complaints(problems)) == 1


def test_a_repeated_key_is_an_error_at_its_second_place_and_the_first_counts(tmp_path: Path) -> None:
    assert read(tmp_path, "a: 1\nb: 2\na: 3\n") == ({"a": 1, "b": 2}, ["3:1: key a is repeated (first on line 1)"])


def test_keys_are_text(tmp_path: Path) -> None:
    found = read(tmp_path, "1: a\nno: b\n[x]: c\n")[1]
    assert found[0] == "1:1: expected a text key, found a number, 1 (quote it?)"
    assert found[1].startswith("2:1: no is ambiguous")
    assert found[2] == "3:1: expected a text key, found a list (quote it?)"


def test_aliases_and_tags_of_collections_are_not_read(tmp_path: Path) -> None:
    assert read(tmp_path, "a: &x [1]\nb: *x\n")[1] == ["1:4: aliases are not read; write the value out"]
    assert len(read(tmp_path, "a: &x [*x]\n")[1]) == 1
    assert "tag !!python" not in str(read(tmp_path, "a: !!set {b}\n")[1])
    assert len(read(tmp_path, "a: !!set {b}\n")[1]) == 1


@pytest.mark.parametrize("text", ["", "a: [1\n", "a: *nowhere\n", "\t- x\n", "a: 1\n---\nb: 1\n", "a: \x01\n"])
def test_what_is_no_document_is_one_problem(tmp_path: Path, text: str) -> None:
    node, problems = parse(tmp_path, text)
    assert node is None
    assert len(complaints(problems)) == 1


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9\n")
    for name in ("absent.yaml", "latin.yaml", "."):
        problems = Problems()
        assert load_strict(tmp_path / name, problems) is None
        with pytest.raises(RuleBaseError, match=r":1:1: cannot be read: .*\w"):
            problems.raise_if_any()


def test_unknown_and_missing_keys_are_listed_together_in_order_of_place(tmp_path: Path) -> None:
    node, problems = parse(tmp_path, "alpha: 1\nbeat: x\n")
    entries = problems.fields(node, ("alpha", "gamma"), ("beta",))
    problems.text(entries["alpha"])
    assert problems.text(entries.get("gamma")) == ""
    assert complaints(problems) == [
        "1:1: key gamma is missing",
        "1:8: expected text, found a number, 1 (quote it?)",
        "2:1: unknown key beat (did you mean beta?)",
    ]


def test_each_reader_says_what_it_expected_and_what_it_found(tmp_path: Path) -> None:
    text = "text: '  '\nlist: [[1]]\nmap: {}\nflag: true\nfive: 5\nhalf: 0.5\nnone:\nword: hots\n"
    node, problems = parse(tmp_path, text)
    entries = problems.entries(node)
    problems.text(entries["text"])
    problems.value(entries["list"])
    problems.number(entries["map"], 0, 1)
    problems.integer(entries["flag"])
    problems.number(entries["five"], 0, 1)
    problems.integer(entries["half"])
    problems.items(entries["none"])
    problems.choice(entries["word"], ("host", "compute"))
    problems.expression("(", entries["word"])
    assert complaints(problems) == [
        "1:7: expected text, found none",
        "2:8: expected text, a number, true, false or null, found a list",
        "3:6: expected a number, found a mapping",
        "4:7: expected a whole number, found a boolean, true",
        "5:7: expected a number from 0 to 1, found 5",
        "6:7: expected a whole number, found a number, 0.5",
        "7:6: expected a list, found nothing",
        "8:7: expected one of host, compute, found hots (did you mean host?)",
        "8:7: not a regular expression: missing ), unterminated subpattern at position 0",
    ]


def test_an_absent_node_reads_as_something_harmless_without_a_problem() -> None:
    problems = Problems()
    assert (problems.text(None), problems.texts(None), problems.choice(None, ("a",))) == ("", (), "")
    assert (problems.flag(None), problems.integer(None), problems.number(None, 1, 2)) == (False, 0, 0.0)
    assert (problems.items(None), problems.entries(None), problems.fields(None, ("a",)), problems.value(None)) == (
        (), {}, {}, None,
    )  # fmt: skip
    assert problems.pattern(None).search("") is None
    assert problems.found == []


@pytest.mark.parametrize("path", sorted(RULES_DIR.rglob("*.yaml")), ids=lambda path: path.stem)
def test_both_loaders_see_the_same_in_the_rule_base(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = Problems()
    first = load_strict(path, problems)
    monkeypatch.setattr(strict_yaml, "_LOADER", yaml.SafeLoader)
    assert first == load_strict(path, problems)
    assert problems.found == []
