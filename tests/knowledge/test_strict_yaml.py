"""Every problem of a table is reported with its place, all at once."""

from pathlib import Path

import pytest

from three_walls.knowledge.strict_yaml import Problems, load_strict, plain
from three_walls.vocabulary.errors import RuleBaseError


def read(tmp_path: Path, text: str) -> tuple[object, list[str]]:
    path = tmp_path / "table.yaml"
    path.write_text(text, encoding="utf-8")
    problems = Problems()
    node = load_strict(path, problems)
    return plain(node), [f"{place}: {message}" for place, message in problems.found]


def test_plain_values_keep_their_types(tmp_path: Path) -> None:
    text = 'a: [1, 1_000, -2, 1.5, 1.0e-3, true, null, none, "no", deep_ep]\nb: {c: --flag}\n'
    assert read(tmp_path, text) == (
        {"a": [1, 1000, -2, 1.5, 0.001, True, None, "none", "no", "deep_ep"], "b": {"c": "--flag"}},
        [],
    )


@pytest.mark.parametrize(
    "value", ["no", "on", "Yes", "1e-3", "1:30", "0x1f", "010", ".5", "2026-01-02", ".inf", "NULL"]
)
def test_values_that_yaml_surprises_with_are_refused(tmp_path: Path, value: str) -> None:
    _, found = read(tmp_path, f"a: {value}\n")
    assert len(found) == 1
    assert found[0].startswith(f"table.yaml:1:4: {value} is ambiguous")


def test_a_repeated_key_is_an_error_at_its_second_place(tmp_path: Path) -> None:
    assert read(tmp_path, "a: 1\nb: 2\na: 3\n")[1] == ["table.yaml:3:1: key a is given twice"]


@pytest.mark.parametrize("text", ["", "a: [1\n", "a: *nowhere\n", "\t- x\n"])
def test_what_is_no_document_is_one_problem(tmp_path: Path, text: str) -> None:
    assert len(read(tmp_path, text)[1]) == 1


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    problems = Problems()
    load_strict(tmp_path / "absent.yaml", problems)
    with pytest.raises(RuleBaseError, match=r"absent\.yaml:1:1: cannot be read"):
        problems.raise_if_any()


def test_unknown_and_missing_keys_are_listed_together_in_order_of_place(tmp_path: Path) -> None:
    path = tmp_path / "table.yaml"
    path.write_text("a: 1\nb: x\n", encoding="utf-8")
    problems = Problems()
    entries = problems.mapping(load_strict(path, problems), ("a", "c"), ())
    problems.text(entries["a"])
    with pytest.raises(RuleBaseError) as error:
        problems.raise_if_any()
    assert str(error.value).splitlines() == [
        "table.yaml:1:1: missing key c",
        "table.yaml:1:4: expected text, found 1",
        "table.yaml:2:1: unknown key b",
    ]
