"""Rows of tables, and the types that check their fields: what pydantic reads a file as, without importing pydantic.

It is imported where a file is checked. Most runs take every table as an earlier one checked it
(``checked_documents.py``): importing pydantic and making its models takes a tenth of the CPU time of a short run.
What stands here is named as in pydantic, which reads classes and types through ``__get_pydantic_core_schema__``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, dataclass_transform, get_type_hints

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

Method = TypeVar("Method", bound=Callable[..., object])


class _Validator:
    """The validator of pydantic that has the same name, for ``Annotated``."""

    def __init__(self, check: Callable[..., Any]) -> None:
        self.check = check

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        import pydantic

        schema: CoreSchema = getattr(pydantic, type(self).__name__)(self.check).__get_pydantic_core_schema__(
            source, handler
        )
        return schema


class AfterValidator(_Validator):
    """Checks or changes a value that is of its type."""


class BeforeValidator(_Validator):
    """Changes what the file holds before its type is checked."""


class PlainValidator(_Validator):
    """Reads what the file holds."""


class NotBlank:
    """Of a text: it is not blank, and taken without the spaces around it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core.core_schema import str_schema

        return str_schema(strip_whitespace=True, min_length=1)


class _Field:
    def __init__(self, alias: str, default: object) -> None:
        self.alias, self.default = alias, default


def Field(*, alias: str = "", default: Any = ...) -> Any:  # noqa: N802 - as in pydantic
    """A field whose key in the file is ``alias``. ``default``: its value where the file does not state it."""
    return _Field(alias, default)


def checked(method: Method) -> Method:
    """A method that checks a row whose fields are sound, and raises ValueError."""
    method.__dict__["checks_row"] = True
    return method


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Row:
    """Base of every table and row: immutable, no undeclared key, no silent conversion.

    Annotated names are its fields. What the file does not state is left to the default on the class.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _aliases: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(cls) -> None:
        own = [name for name in vars(cls).get("__annotations__", {}) if not name.startswith("_")]
        cls._fields = (*cls._fields, *own)
        for name in own:
            if isinstance(field := vars(cls).get(name), _Field):
                setattr(cls, name, field.default)
                if field.default is ...:
                    delattr(cls, name)
                if field.alias:
                    cls._aliases = {**cls._aliases, name: field.alias}

    def __init__(self, **values: Any) -> None:
        """For tests and tools: ``values`` are not checked."""
        vars(self).update(values)

    @property
    def fields_stated(self) -> frozenset[str]:
        """The fields that the file states."""
        return frozenset(self._fields) & vars(self).keys()

    @classmethod
    def hints(cls) -> Mapping[str, tuple[str, Any]]:
        """Key in the file -> name of the field, and its type."""
        types = get_type_hints(cls, include_extras=True)
        return {cls._aliases.get(name, name): (name, types[name]) for name in cls._fields}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        fields = {
            name: core_schema.model_field(
                core_schema.with_default_schema(handler.generate_schema(hint), default=None)
                if hasattr(cls, name)
                else handler.generate_schema(hint),
                validation_alias=key,
            )
            for key, (name, hint) in cls.hints().items()
        }
        read = core_schema.model_fields_schema(fields, model_name=cls.__name__, extra_behavior="forbid")
        row = core_schema.no_info_after_validator_function(cls._make, read)
        for kind in reversed(cls.__mro__):
            for method in vars(kind).values():
                if hasattr(method, "checks_row"):
                    row = core_schema.no_info_after_validator_function(method, row)
        return row

    @classmethod
    def _make(cls, read: tuple[dict[str, Any], object, set[str]]) -> Self:
        values, _, stated = read
        return cls(**{name: value for name, value in values.items() if name in stated})

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and isinstance(other, Row) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self._fields)})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable: cannot set {name}")


class NamedRow(Row):
    """A row of a mapping; its key in the mapping is its name. Declare the mapping as ``ByName``."""

    @property
    def name(self) -> str:
        found: str = vars(self).get("_name", "")
        return found
