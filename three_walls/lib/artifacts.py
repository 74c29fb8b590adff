"""Makes facts and artifacts when they are asked for, each once per run: see ``declare.py``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, overload

from three_walls.lib.declare import CATALOG, Catalog
from three_walls.lib.measurement import Measurement, known, missing

T = TypeVar("T")


class Artifacts:
    """The facts and artifacts of one run. ``given``: what is made elsewhere, by name."""

    def __init__(self, given: Mapping[str, object], catalog: Catalog = CATALOG) -> None:
        self._catalog = catalog
        self._found = {name: _as_measurement(value) for name, value in given.items()}

    @overload
    def find(self, function: Callable[..., Measurement[T]]) -> Measurement[T]: ...
    @overload
    def find(self, function: Callable[..., T]) -> Measurement[T]: ...
    def find(self, function: Callable[..., Any]) -> Measurement[Any]:
        """What ``function`` makes, or why there is none."""
        return self.named(function.__name__)

    @overload
    def pull(self, function: Callable[..., Measurement[T]]) -> T: ...
    @overload
    def pull(self, function: Callable[..., T]) -> T: ...
    def pull(self, function: Callable[..., Any]) -> Any:
        """What ``function`` makes, which cannot be missing."""
        found = self.find(function)
        assert not found.is_missing, f"{function.__name__} is missing: {found.missing_reason}"
        return found.value

    def named(self, name: str) -> Measurement[Any]:
        """The fact or artifact ``name``, or why there is none."""
        if name not in self._found:
            self._found[name] = self._make(name)
        return self._found[name]

    def with_given(self, given: Mapping[str, object]) -> Artifacts:
        """The same run, given something more or in place of what it made: only what follows from that is made again."""
        changed = Artifacts(given, self._catalog)
        stale = self.following(given)
        changed._found |= {name: found for name, found in self._found.items() if name not in stale}
        return changed

    def following(self, names: Collection[str]) -> set[str]:
        """``names``, and all that is made from these."""
        found = set(names)
        made = self._catalog.declared
        while more := {name for name, each in made.items() if found.intersection(each.sources)} - found:
            found |= more
        return found

    def _make(self, name: str) -> Measurement[Any]:
        declared = self._catalog.declared[name]
        for need in declared.definition.needs if declared.definition else ():
            run: Measurement[Any] = self.named("run")
            if run.value is None:
                return run
            if reason := run.value.lacks(need):
                return missing(reason)
        arguments: list[object] = []
        for parameter, takes_reason in declared.parameters.items():
            source = self.named(parameter)
            if source.is_missing and not takes_reason:
                return source
            arguments.append(source if takes_reason else source.value)
        return _as_measurement(declared.function(*arguments))


def _as_measurement(value: object) -> Measurement[Any]:
    return value if isinstance(value, Measurement) else known(value)
