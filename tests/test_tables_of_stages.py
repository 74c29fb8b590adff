"""Tables that stages pass on have the columns that their names promise, on real captures.

Every function is watched whose parameters or result are tables with a schema (``Annotated[pl.DataFrame, SCHEMA]``).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType, ModuleType
from typing import Annotated, Any, get_args, get_origin

import polars as pl
import pytest

import three_walls
from tests.paths import SAMPLES
from three_walls.lib.measurement import Measurement

TEXT = (pl.String, pl.Categorical, pl.Enum)

Small = Annotated[pl.DataFrame, pl.Schema({"ns": pl.Int64, "name": pl.String})]


def check(value: object, annotation: object) -> Iterator[str]:
    """What ``value`` lacks of the tables in ``annotation``. Text may be a category; a table without columns is none."""
    of, arguments = get_origin(annotation), get_args(annotation)
    if isinstance(value, pl.DataFrame):
        for schema in getattr(annotation, "__metadata__", ()):
            for name, expected in schema.items() if value.width else ():
                found = value.schema.get(name)
                if found != expected and not (expected in TEXT and found in TEXT):
                    yield f"{name}: expected {expected}, found {found}"
        for part in arguments if getattr(annotation, "__metadata__", None) is None else ():
            yield from check(value, part)
    elif isinstance(value, Measurement):
        yield from check(value.value, arguments[0]) if arguments else ()
    elif isinstance(value, tuple) and of is tuple and arguments[-1:] != (...,):
        for each, part in zip(value, arguments, strict=False):
            yield from check(each, part)
    elif isinstance(value, list | tuple) and of in (tuple, list, Sequence):
        for each in value:
            yield from check(each, arguments[0])


def test_a_missing_column_and_one_of_another_type_are_found() -> None:
    table = pl.DataFrame({"ns": [1.0]})
    assert [*check(table, Small)] == ["ns: expected Int64, found Float64", "name: expected String, found None"]
    assert [*check([table.cast(pl.Int64)], Sequence[Small])] == ["name: expected String, found None"]
    assert [*check(pl.DataFrame({"ns": [1], "name": ["a"], "more": [2]}), Small)] == []


def list_modules() -> Iterator[ModuleType]:
    """The modules of the product."""
    for module in pkgutil.walk_packages(three_walls.__path__, "three_walls."):
        if not module.name.endswith("__main__") and ".real_bridge" not in module.name and "recipe" not in module.name:
            yield importlib.import_module(module.name)


def read_tables(function: FunctionType) -> dict[str, object]:
    """The annotations of ``function`` with a table that has a schema."""
    found = {}
    for name, note in function.__annotations__.items():
        if any(getattr(function.__globals__.get(word), "__metadata__", ()) for word in re.findall(r"\w+", str(note))):
            # A union cannot hold a schema.
            found[name] = eval(str(note).removesuffix(" | None"), function.__globals__)
    return found


class Watch:
    """Checks the tables of every call of the functions that it wraps."""

    def __init__(self) -> None:
        self.faults: set[str] = set()
        self.called: set[str] = set()

    def wrap(self, function: FunctionType) -> Callable[..., Any]:
        notes, signature = read_tables(function), inspect.signature(function)
        if not notes:
            return function
        where = f"{function.__module__}.{function.__qualname__}"

        @functools.wraps(function)
        def watched(*given: Any, **named: Any) -> Any:
            self.called.add(where)
            values = signature.bind(*given, **named).arguments
            result = function(*given, **named)
            for name, note in notes.items():
                faults = check(result if name == "return" else values.get(name), note)
                self.faults |= {f"{where}({name}): {fault}" for fault in faults}
            return result

        return watched


@pytest.fixture(name="watch")
def make_watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    """Wraps all functions of modules and classes, wherever they are imported."""
    watch, modules = Watch(), [*list_modules()]
    wrapped: dict[object, object] = {}
    for module in modules:
        for owner in (module, *(kind for kind in vars(module).values() if inspect.isclass(kind))):
            for name, member in [*vars(owner).items()]:
                if inspect.isfunction(member) and member.__module__.startswith("three_walls."):
                    new = wrapped.setdefault(member, watch.wrap(member))
                    if new is not member:
                        monkeypatch.setattr(owner, name, new)
    return watch


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["wide-slowlink-ep-overlap.sqlite.xz", pytest.param("slow-gpu", marks=pytest.mark.exhaustive)]
)
def test_the_tables_of_real_captures_have_their_columns(watch: Watch, name: str) -> None:
    three_walls.analyze(SAMPLES / name)
    assert sorted(watch.faults) == []
    assert len(watch.called) > 150
