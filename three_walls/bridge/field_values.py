"""Whether a value fits its field, and how it fails where it does not. Hydra checks neither types nor allowed values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from three_walls.bridge.constraints import compared_names
from three_walls.bridge.merged_config import MIXED_PRECISION, OBJECT_CLASSES, read_dtype
from three_walls.lib.hydra import Sweep
from three_walls.lib.load_documents import suggest
from three_walls.lib.plain_data import ConfigData
from three_walls.tables.bridge_releases import (
    BridgeSchema,
    FailureMode,
    FieldType,
    accepted_values,
    measured_mismatches,
    release_number,
)
from three_walls.tables.config_keys import keys_by_path
from three_walls.tables.config_values import show

ACTIVATIONS_NAMED_SINCE = (0, 4)
"""The first release that reads the name of an activation function."""
ACTIVATIONS = ("silu", "gelu", "relu", "quick_gelu", "fast_gelu", "squared_relu", "sigmoid", "identity")
"""The names that it reads."""
DTYPES_NAMED_SINCE = (0, 4)
"""The first release whose model reads the name of a dtype."""
NAMED_DTYPES = ("model.params_dtype", "model.pipeline_dtype")
"""The settings of which it reads it."""
_JUDGED = (
    "train.train_iters",
    "train.train_samples",
    "train.micro_batch_size",
    "comm_overlap.tp_comm_overlap_cfg",
    "model.num_layers",
    "model.no_rope_freq",
    "model.hierarchical_context_parallel_sizes",
    "model.moe_router_group_topk",
    "ddp.param_name_patterns_for_fp32_local_accumulation",
    "model.moe_deepep_num_sms",
    "model.moe_hybridep_num_sms",
)
"""Settings of which constraints know every use."""
_WORDS_IN_ONE = ("model.cuda_graph_scope", "model.cuda_graph_modules")
"""Lists that may also be given as one text, with commas."""
_NAMED_MEMBERS = ("model.inference_cuda_graph_scope",)
"""Fields whose member of an enum may be given by its name."""


class FieldValues:
    """Values of the fields of one release. ``before``: the configuration without the overrides, by path."""

    def __init__(self, schema: BridgeSchema, before: Mapping[str, Any]) -> None:
        self.schema = schema
        self.before = before

    def find_problem(self, path: str, field: FieldType, value: Any) -> str:
        """Why ``path`` cannot hold ``value``; empty if it can."""
        takes = describe_field(field)
        if value is None:
            may_be_null = {"null", "any"} & set(field.kinds) or (field.has_default and field.default is None)
            return "" if may_be_null else f"{path} cannot be null: it takes {takes}"
        if isinstance(value, dict | Sweep):
            takes_mapping = any(kind.startswith(("dict", "object", "any")) for kind in field.kinds)
            return "" if takes_mapping else f"{path} takes {takes}, found a mapping"
        is_named = release_number(self.schema.release) >= ACTIVATIONS_NAMED_SINCE
        if path == "model.activation_func" and is_named and value in ACTIVATIONS:
            return ""
        replaces_dtype = isinstance(value, str) and str(self.before.get(path)).startswith("torch.")
        if replaces_dtype and str(read_dtype(value)).startswith("torch."):
            return ""  # a name replaces a dtype
        if self._reads_dtype(path, field) and str(read_dtype(value)).startswith("torch."):
            return ""
        if path in _NAMED_MEMBERS and value in self.enum_members(field):
            return ""
        if not isinstance(value, tuple):
            if not any(_fits(kind, value) for kind in field.kinds):
                return f"{path} takes {takes}, found {show(value)}"
            return self._check_allowed(path, field, value)
        kinds = [element_kind(kind) for kind in field.kinds if kind.startswith("list[")]
        if not kinds and "any" not in field.kinds:
            return f"{path} takes {takes}, found a list"
        for element in value:
            if kinds and not any(_fits(kind, element) for kind in kinds):
                return f"{path} takes {takes}, found the element {show(element)}"
            if problem := self._check_allowed(path, field, element):
                return problem
        return ""

    def _reads_dtype(self, path: str, field: FieldType) -> bool:
        """Whether the model, which gets the setting, reads a dtype by its name."""
        copied = f"model.{path.removeprefix(f'{MIXED_PRECISION}.')}"
        is_in_time = release_number(self.schema.release) >= DTYPES_NAMED_SINCE
        return is_in_time and copied in NAMED_DTYPES and "dtype" in field.kinds

    def _check_allowed(self, path: str, field: FieldType, value: Any) -> str:
        """Text is compared with the values that the release names, else with those of ``tables/config-keys.yaml``."""
        allowed: tuple[ConfigData, ...] = field.values or self.enum_members(field)
        key = keys_by_path().get(path)
        if not allowed and key is not None and key.values and key.bridge is not None:
            since, release = key.bridge.value_since, release_number(self.schema.release)
            allowed = tuple(word for word in key.values if release >= release_number(since.get(str(word), "0")))
        if not allowed or value in allowed or not isinstance(value, str):
            return ""
        if path in _WORDS_IN_ONE and all(word in allowed for word in value.split(",") if value):
            return ""
        if path == MIXED_PRECISION and value.replace("-", "_") in allowed:
            return ""  # both spellings are registered
        names = [str(name) for name in allowed]
        listed = ", ".join(names)
        return f"{path}: {value} is not one of {listed} in release {self.schema.release}{suggest(value, names)}"

    def enum_members(self, field: FieldType) -> tuple[str, ...]:
        """Names of the enum members that the field takes."""
        enums = [element_kind(kind).removeprefix("enum:") for kind in field.kinds if "enum:" in kind]
        members = [name for enum in enums if enum in self.schema.enums for name in self.schema.enums[enum].members]
        return tuple(dict.fromkeys((*members, "full"))) if members else ()

    def find_failure_mode(self, path: str, field: FieldType, value: Any) -> FailureMode:
        """How a value fails that ``path`` cannot hold: as measured of each release, or as upstream's code was read."""
        kind = _mismatch_kind(field, value)
        reviewed = accepted_values().get((path, kind))
        accepted = reviewed.failure_mode if reviewed is not None else FailureMode.NOT_VALIDATED
        is_compared = not isinstance(value, Sweep | None) and not (isinstance(value, dict) and path in _JUDGED)
        if is_compared and self._is_switch(path, field):
            return accepted  # it counts as on or off, and constraints judge which
        if value is None and path.startswith(f"{MIXED_PRECISION}.") and set(field.kinds) <= {"bool", "null"}:
            return FailureMode.NOT_VALIDATED  # the model gets it, where it counts as off, as constraints know
        if isinstance(value, float) and value.is_integer() and path.removeprefix("model.") in compared_names():
            return FailureMode.NOT_VALIDATED  # it counts as the whole number wherever it is compared
        is_accepted = measured_mismatches(self.schema.release).is_accepted(path, kind)
        if is_accepted is None:
            return FailureMode.UNKNOWN
        if not is_accepted:
            return FailureMode.REFUSED
        return accepted

    def _is_switch(self, path: str, field: FieldType) -> bool:
        """Whether only constraints ask for the value, and ask for no more than whether it counts as true."""
        section, _, name = path.partition(".")
        copied = (name, name.removesuffix("_gather")) if section in ("model", *OBJECT_CLASSES) else ()
        is_judged = not {path, *copied}.isdisjoint(compared_names())
        return path in _JUDGED or (is_judged and set(field.kinds) <= {"bool", "null"})


def element_kind(kind: str) -> str:
    return kind.removeprefix("list[").removesuffix("]")


def _fits(kind: str, value: Any) -> bool:
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


def _mismatch_kind(field: FieldType, value: Any) -> str:
    """The kind, of ``bridge_type_mismatches.KINDS``, of a value that does not fit ``field``."""
    match value:
        case None:
            return "nothing"
        case dict() | Sweep():
            return "mapping"
        case tuple():
            lists = [kind for kind in field.kinds if kind.startswith("list[")]
            if not lists:
                return "list"
            # An element of the list does not fit: unknown text in a list of names, or an element of another kind.
            takes_text = any("str" in kind or "enum" in kind for kind in lists)
            return "word" if takes_text and all(isinstance(element, str) for element in value) else "element"
        case bool():
            return "flag"
        case int():
            return "word" if "int" in field.kinds else "integer"
        case float():
            return "fraction"
    return "word" if "str" in field.kinds else "text"


def describe_field(field: FieldType) -> str:
    if field.values:
        return f"one of {', '.join(map(str, field.values))}"
    return " or ".join(
        kind.replace("enum:", "a member of ").replace("object:", "an object of ") for kind in field.kinds
    )
