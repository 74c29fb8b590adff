"""Whether a value fits a field of a Megatron-Bridge release. Hydra checks neither types nor allowed words."""

from __future__ import annotations

from three_walls.model.config import ConfigData, ConfigScalar
from three_walls.tables.bridge import BridgeSchema, FieldType, release_number
from three_walls.tables.config_keys import keys_by_path
from three_walls.tables.strict_yaml import suggest


def complaint_about_value(schema: BridgeSchema, path: str, field: FieldType, value: ConfigData) -> str:
    """Why ``value`` is none that ``path`` may have; empty if it may."""
    if value is None:
        may_be_null = "null" in field.kinds or "any" in field.kinds or (field.has_default and field.default is None)
        return "" if may_be_null else f"{path} cannot be null: it takes {_describe(field)}"
    if isinstance(value, tuple):
        return _complaint_about_list(schema, path, field, value)
    if not any(_fits(kind, value) for kind in field.kinds):
        return f"{path} takes {_describe(field)}, found {_show(value)}"
    return _complaint_about_word(schema, path, field, value)


def _complaint_about_list(schema: BridgeSchema, path: str, field: FieldType, value: tuple[ConfigScalar, ...]) -> str:
    kinds = [kind.removeprefix("list[").removesuffix("]") for kind in field.kinds if kind.startswith("list[")]
    if not kinds and "any" not in field.kinds:
        return f"{path} takes {_describe(field)}, found a list"
    for one in value:
        if kinds and not any(_fits(kind, one) for kind in kinds):
            return f"{path}: {_show(one)} is no element that it takes ({_describe(field)})"
        if complaint := _complaint_about_word(schema, path, field, one):
            return complaint
    return ""


def _complaint_about_word(schema: BridgeSchema, path: str, field: FieldType, value: ConfigScalar) -> str:
    """Words are checked against what the release names, else against what is known of the key."""
    allowed: tuple[ConfigData, ...] = field.values or _members(schema, field)
    key = keys_by_path().get(path)
    if not allowed and key is not None and key.values and key.bridge is not None:
        since = key.bridge.value_since
        number = release_number(schema.release)
        allowed = tuple(one for one in key.values if number >= release_number(since.get(str(one), "0")))
    if not allowed or value in allowed or not isinstance(value, str):
        return ""
    if path == "mixed_precision" and value.replace("-", "_") in allowed:
        return ""  # both spellings are registered
    words = [str(one) for one in allowed]
    return f"{path}: {value} is none of {', '.join(words)} in {schema.release}{suggest(value, words)}"


def _members(schema: BridgeSchema, field: FieldType) -> tuple[str, ...]:
    """Names of enum members, where the field takes them as words."""
    enums = [
        kind.removeprefix("list[").removesuffix("]").removeprefix("enum:") for kind in field.kinds if "enum:" in kind
    ]
    found = tuple(name for enum in enums if enum in schema.enums for name in schema.enums[enum].members)
    return tuple(dict.fromkeys((*found, "full"))) if found else ()


def _fits(kind: str, value: ConfigScalar) -> bool:
    """A member of an enum has to be spelled as an object: its name alone is text, which equals no member."""
    match value:
        case bool():
            return kind in ("bool", "any")
        case int():
            return kind in ("int", "float", "any")
        case float():
            return kind in ("float", "any")
        case str():
            return kind in ("str", "any")
    return kind in ("null", "any")


def _describe(field: FieldType) -> str:
    if field.values:
        return f"one of {', '.join(map(str, field.values))}"
    return " or ".join(
        kind.replace("enum:", "a member of ").replace("object:", "an object of ") for kind in field.kinds
    )


def _show(value: ConfigScalar) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
