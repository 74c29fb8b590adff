"""When a value strikes that does not fit its field: as measured of each release, or as upstream's code was read."""

from __future__ import annotations

from three_walls.model.config import ConfigData
from three_walls.model.failure_mode import FailureMode
from three_walls.tables.bridge import BridgeSchema, FieldType, accepted_values, measured_mismatches


def failure_mode_of_mismatch(schema: BridgeSchema, path: str, field: FieldType, value: ConfigData) -> FailureMode:
    """``value`` is none that ``path`` may have (``override_types.complaint_about_value``)."""
    kind = _kind_of(field, value)
    is_taken = measured_mismatches(schema.release).is_accepted(path, kind)
    if is_taken is None:
        return FailureMode.UNKNOWN
    if not is_taken:
        return FailureMode.REFUSED
    reviewed = accepted_values().get((path, kind))
    return reviewed.failure_mode if reviewed is not None else FailureMode.NOT_VALIDATED


def _kind_of(field: FieldType, value: ConfigData) -> str:
    """One of ``bridge_type_mismatches.KINDS``."""
    lists = [kind for kind in field.kinds if kind.startswith("list[")]
    match value:
        case None:
            return "nothing"
        case tuple():
            return _kind_of_element(lists, value) if lists else "list"
        case bool():
            return "flag"
        case int():
            return "word" if "int" in field.kinds else "integer"
        case float():
            return "fraction"
    return "word" if "str" in field.kinds else "text"


def _kind_of_element(lists: list[str], value: tuple[object, ...]) -> str:
    """Of a list that holds an element it may not: a word among words, or an element of another kind."""
    takes_text = any("str" in kind or "enum" in kind for kind in lists)
    return "word" if takes_text and all(isinstance(one, str) for one in value) else "element"
