"""``dataclass`` of the standard library, made in a tenth of the time: for the types that every run imports.

The standard library compiles six methods for every class, which takes half a millisecond. Here a class has only an
``__init__`` of its own, compiled when the first object is made: a run makes objects of half of its types. The methods
that compare, hash, show and pickle go over the fields, and all classes share them.
``fields``, ``replace`` and ``is_dataclass`` know these classes as any others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, FrozenInstanceError, fields
from dataclasses import dataclass as make_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

__all__ = ["dataclass"]


def _define(*, frozen: bool = False, slots: bool = False, kw_only: bool = False) -> Callable[[type[Any]], type[Any]]:
    """As ``dataclasses.dataclass(frozen=frozen, slots=slots, kw_only=kw_only)``."""

    def decorate(kind: type[Any]) -> type[Any]:
        own = set(vars(kind))
        kind.__doc__ = kind.__doc__ or kind.__name__  # else dataclass works out the signature, to show it as that
        made = make_dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(kind)
        made._compared = attrgetter("__class__", *(field.name for field in fields(made) if field.compare))
        made._names = tuple(field.name for field in fields(made))
        methods: dict[str, Any] = {"__init__": _make_init_later(made, frozen), "__repr__": _show, "__eq__": _is_equal}
        methods["__hash__"] = _hash if frozen else None
        if frozen:
            methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if slots:
            methods |= {"__getstate__": _get_state, "__setstate__": _set_state}
        for name, method in methods.items():
            if name not in own:
                setattr(made, name, method)
        return made

    return decorate


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _define


def _make_init_later(kind: type[Any], frozen: bool) -> Callable[..., None]:
    """An ``__init__`` that puts the real one in its place when it is called."""

    def __init__(self: Any, *values: Any, **named: Any) -> None:  # noqa: N807 - what it stands for
        made = kind.__init__ = _make_init(kind, frozen)
        made(self, *values, **named)

    return __init__


def _make_init(kind: type[Any], frozen: bool) -> Callable[..., None]:
    """The ``__init__`` of ``kind``: a parameter for every field, with its default, and ``__post_init__`` at the end."""
    parameters, by_name, lines = ["self"], ["*"], []
    names: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    for field in fields(kind):
        name = value = field.name
        if field.default_factory is not MISSING:
            names[f"_make_{name}"] = field.default_factory
            default, value = "=_missing", f"_make_{name}() if {name} is _missing else {name}"
        elif field.default is not MISSING:
            names[f"_default_{name}"] = field.default
            default = f"=_default_{name}"
        else:
            default = ""
        if field.init:
            (by_name if field.kw_only else parameters).append(name + default)
        elif default:
            lines.append(f" {name} = {default[1:]}")
        else:  # __post_init__ sets it
            continue
        lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(kind, "__post_init__"):
        lines.append(" self.__post_init__()")
    parameters += by_name if len(by_name) > 1 else []
    exec(f"def __init__({', '.join(parameters)}):\n" + ("\n".join(lines) or " pass"), names)
    made: Callable[..., None] = names["__init__"]
    made.__qualname__ = f"{kind.__qualname__}.__init__"
    return made


def _show(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _is_equal(self: Any, other: Any) -> Any:
    if type(self) is not type(other):
        return NotImplemented
    return self._compared(self) == self._compared(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _refuse_to_set(_: object, name: str, __: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self._names]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self._names, state, strict=True):
        object.__setattr__(self, name, value)
