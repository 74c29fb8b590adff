"""Overrides are parsed as Hydra does, and read leniently where a run was started with them."""

from __future__ import annotations

from typing import Any

import pytest

from three_walls.lib.hydra import Reference, Sweep, parse_override, read_override


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=4_096", 4096),
        ("a='[b,c]'", "[b,c]"),
        ("a=[b,'c']", ("b", "c")),
        ("a=1e3", 1000.0),
        ("a=08", "08"),
        ("a=", ""),
        ("a=true-x", "true-x"),
        ("a=[[b,c],{d:1}]", (("b", "c"), {"d": 1})),
        ("a=b,c", Sweep()),
        ("a=${b}", Reference("b")),
    ],
)
def test_values_are_those_of_hydra(text: str, value: Any) -> None:
    assert parse_override(text).value == value


@pytest.mark.parametrize("text", ["a=[b", "a=[b,]", " a=b", "--a=b", "a", "a=#b", "a=b=c", "", "a=" + "[" * 5000])
def test_what_hydra_cannot_parse_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_override(text)


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=[1, 'b']", (1, "b")),
        ("a=int(4)", 4),
        (r"a=b\,c", "b,c"),
        ("a=null", None),
        ("a=#b", "#b"),
        ("a=[b", "[b"),
        ("a=b=c", "b=c"),
        ("a=b,c", "b,c"),
        ("a=${b}", "${b}"),
        ("a=nan", "nan"),
        ("a=[[b, c],{d:1},${e}]", ("[b, c]", "{d:1}", "${e}")),
        ("a=" + "1" * 19, "1" * 19),
        ("a=" + "[" * 5000, "[" * 5000),
    ],
)
def test_a_value_is_read_as_by_hydra_or_is_text(word: str, value: Any) -> None:
    assert [(override.path, override.value) for override in read_override(word)] == [("a", value)]


def test_every_entry_of_a_mapping_is_a_setting() -> None:
    found = read_override("++p={a:1,b:{c:[2],d:${e}}}")
    assert [(one.prefix, one.path, one.value) for one in found] == [
        ("++", "p.a", 1),
        ("++", "p.b.c", (2,)),
        ("++", "p.b.d", "${e}"),
    ]


@pytest.mark.parametrize("word", ["--a=b", "a", "group/a=b", "a@b=c", " a=b", "=b"])
def test_other_words_set_nothing(word: str) -> None:
    assert read_override(word) == []
