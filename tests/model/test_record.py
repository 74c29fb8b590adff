"""Types made here behave as those of the standard library's ``dataclass``."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, is_dataclass, replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from three_walls.model import record


def describe(dataclass: Callable[..., Any]) -> tuple[type[Any], type[Any]]:
    """The same two types, made by ``dataclass``."""

    @dataclass(frozen=True, slots=True)
    class Point:
        """A type with every kind of field."""

        x: int
        names: tuple[str, ...] = ()
        seen: dict[str, int] = field(default_factory=dict, compare=False, repr=False)
        total: int = field(init=False)
        kept: int = field(init=False, default=3)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.x + len(self.names))

    @dataclass(slots=True)
    class Count:
        """One that changes."""

        number: int = 0
        step: int = field(default=1, kw_only=True)

    return Point, Count


OURS, STANDARD = describe(record.dataclass), describe(dataclasses.dataclass)


@pytest.mark.parametrize(
    "question",
    [
        lambda point: repr(point(1, ("a",))),
        lambda point: point(1) == point(1, seen={"a": 1}),
        lambda point: point(1) == point(2),
        lambda point: point(1) == 1,
        lambda point: len({point(1), point(1), point(2)}),
        lambda point: [(found.name, found.type) for found in fields(point)],
        lambda point: repr(replace(point(1), x=5)),
        lambda point: repr(copy.deepcopy(point(1, ("a",)))),
        lambda point: point.__match_args__,
        lambda point: point.__slots__,
        lambda point: point(1).seen is point(1).seen,
        lambda point: is_dataclass(point(1)),
    ],
)
def test_a_type_answers_as_the_standard_library_makes_it(question: Callable[[Any], object]) -> None:
    assert question(OURS[0]) == question(STANDARD[0])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda point, _: point(),
        lambda point, _: point(1, y=2),
        lambda point, _: point(1, (), {}, 4),
        lambda _, count: count(1, 2),
    ],
)
def test_wrong_arguments_are_refused_in_the_same_words(wrong: Callable[[Any, Any], object]) -> None:
    messages = []
    for point, count in (OURS, STANDARD):
        with pytest.raises(TypeError) as refused:
            wrong(point, count)
        messages.append(str(refused.value).partition("(")[2])
    assert messages[0] == messages[1]


def test_a_frozen_type_cannot_be_changed_and_another_can() -> None:
    frozen, changing = OURS
    point, count = frozen(1), changing(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    count.number = 2
    assert count == changing(2) != changing(2, step=3)
    with pytest.raises(TypeError, match="unhashable"):
        hash(count)


@record.dataclass(frozen=True, slots=True)
class Kept:
    """At the top of a module, where pickle finds it."""

    number: int
    names: tuple[str, ...] = ()


@record.dataclass(frozen=True, slots=True)
class Named(Kept):
    label: str = ""


def test_it_is_pickled_and_read_by_pydantic() -> None:
    named = Named(1, ("a",), "b")
    assert pickle.loads(pickle.dumps(named)) == named
    assert TypeAdapter(Named).validate_python({"number": 1, "names": ["a"], "label": "b"}) == named
    assert Kept(1, ("a",)) != named
