"""What is known of a configuration, and what overrides make of it.

It can start from what a trace or log showed of a run, from a ``run_config.yaml``, or from a recipe that Megatron-Bridge
itself resolved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from three_walls.lib.hydra import Override, Reference
from three_walls.lib.plain_data import ConfigData
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.tables.bridge_releases import (
    BridgeSchema,
    bridge_releases,
    bridge_schema,
    precision_recipe,
    precision_settings,
    release_number,
)
from three_walls.tables.config_keys import ConfigKey, config_keys, keys_by_path

COMM_OVERLAP, COMM_OVERLAP_CLASS = "comm_overlap", "CommOverlapConfig"
MIXED_PRECISION, MIXED_PRECISION_CLASS = "mixed_precision", "MixedPrecisionConfig"
OBJECT_CLASSES = {COMM_OVERLAP: COMM_OVERLAP_CLASS, MIXED_PRECISION: MIXED_PRECISION_CLASS}
"""Sections that are an object of this class, or else nothing or a name."""
SAME_AS_GATHER = ("fp8_param", "fp4_param")
"""Fields of the mixed precision that Bridge keeps equal to the field of that name with ``_gather``: the last one set
counts, which is that with ``_gather`` where all fields are set."""
MAPPING = "dict"
"""What a section holds that became a mapping instead of an object: it has no methods, and most sections need one."""

PathValues = dict[str, Any]
"""Value by Bridge path; by the section's name, the name of its class, a text, null or ``MAPPING``. Lists are tuples.

A field that is an object holds the name of its class, one that is a mapping ``{}``; their own fields are paths, too.
"""


@dataclass(frozen=True, slots=True)
class MergedConfig:
    """Values by config key (by Bridge path where a field has no key) and environment variables, as far as known.

    ``comm_overlap`` and ``mixed_precision`` hold the name of their class where they are objects. A setting that is not
    known is absent; one that is known to be unset is None.
    """

    values: Mapping[str, ConfigData]
    environment: Mapping[str, ConfigData] = field(default_factory=dict)
    environment_is_known: bool = False
    """Whether a variable that is not in ``environment`` is known to be unset."""
    platform: Mapping[str, ConfigData] = field(default_factory=dict)
    """Where the run happens: names under ``platform`` in tables/bridge-constraints.yaml, as far as known."""
    paths: Mapping[str, Any] = field(default_factory=dict)
    """Every field of the configuration by its Bridge path, where the whole configuration is known: a field that is not
    here does not exist. ``values`` wins where it says otherwise."""


def config_of_run(config: RunConfig) -> MergedConfig:
    """What the inputs of the analysis showed of the run."""
    return MergedConfig(
        values={name: found.value for name, found in config.values.items()},
        environment={name: found.value for name, found in config.environment.items()},
    )


def config_of_sections(sections: Mapping[str, Any]) -> MergedConfig:
    """The configuration that a parsed ``run_config.yaml`` holds, by section and field."""
    return config_of_paths(dict(_flatten(sections)))


def config_of_paths(values: Mapping[str, Any]) -> MergedConfig:
    """The configuration in a resolved mapping of Bridge paths (``model.recompute_granularity``) to plain values.

    Of a key that has several places, the first one that is set counts.
    """
    paths = {path: freeze(value) for path, value in values.items()}
    by_key: dict[str, ConfigData] = {}
    for path, value in paths.items():
        if not isinstance(value, dict):
            by_key.setdefault(key_of_path(path), value)
    by_key |= _values_of_keys(paths)
    for section in OBJECT_CLASSES:
        by_key.setdefault(section, None)
        paths.setdefault(section, None)
    if isinstance(by_key[MIXED_PRECISION], str):
        by_key |= precision_settings(by_key[MIXED_PRECISION])
    return MergedConfig(by_key, paths=paths)


def values_by_path(config: MergedConfig, schema: BridgeSchema) -> PathValues:
    """``config`` by Bridge path: a value that is known by its key counts at every place of the key."""
    paths: PathValues = dict(config.paths)
    known = config_of_paths(paths).values if paths else {}
    explicit: PathValues = {}
    for name, value in config.values.items():
        key = config_keys().keys.get(name)
        if key is None or key.bridge is None:
            paths[name] = value
        elif not (name in known and known[name] == value):
            explicit |= dict.fromkeys(_places_of(key, schema), value)
    paths |= explicit
    if any(path.startswith(f"{MIXED_PRECISION}.") for path in explicit):
        _expand_precision(paths, explicit, schema)
    for name in OBJECT_CLASSES:
        if paths.get(name, "") is None:  # there are no fields to read
            paths = {path: value for path, value in paths.items() if not path.startswith(f"{name}.")}
    return paths


class OverriddenConfig:
    """``base`` while overrides are merged into it one after the other, as OmegaConf merges them.

    A section is an object with fields, null, a text, or (``MAPPING``) a mapping that overrides made: ``paths`` has the
    name of its class, null, the text or ``MAPPING`` for it, and nothing where that is not known.
    """

    def __init__(self, base: PathValues, schema: BridgeSchema) -> None:
        self._base, self._schema = base, schema
        self.paths: PathValues = dict(base)
        self._touched: dict[str, dict[str, None]] = {}
        """Sections that are given a class, or that were no object, and the fields that overrides set there since, in
        their order."""
        self._removed: set[str] = set()
        """What ``~`` took from what overrides see; it keeps its value."""

    def is_object(self, section: str) -> bool:
        """Whether the section is known to be an object, or a mapping: something that has fields."""
        state = self.paths.get(section)
        return state == MAPPING or _is_class(section, state)

    def holds_object(self, path: str) -> bool:
        """Whether the setting takes objects alone and has one, which is shown by its name."""
        field = self._schema.find(path)
        takes_objects = field is not None and all(kind.startswith(("object:", "null")) for kind in field.kinds)
        return takes_objects and "." in path and isinstance(self.paths.get(path), str)

    def has_inner(self, path: str, name: str) -> bool:
        """Whether what the setting holds may have the field ``name``; it may have any where none of them is known."""
        value, inner = self.paths[path], f"{path}."
        known = {other.removeprefix(inner).partition(".")[0] for other in self.paths if other.startswith(inner)}
        known |= set(value) if isinstance(value, dict) else set()
        if known:
            return name in known
        field = self._schema.find(path)
        takes_fields = field is None or any(kind.startswith(("object", "dict", "any")) for kind in field.kinds)
        return isinstance(value, dict) or (takes_fields and isinstance(value, str))

    def has_field(self, section: str, name: str) -> bool:
        """Whether a plain override finds the field. An object has a ``_target_`` only where an override gave it one."""
        is_there = f"{section}.{name}" in self.paths
        return is_there and (name != "_target_" or name in self._touched.get(section, ()))

    def merge(self, override: Override) -> None:
        """Merge one override that applies. What ``~`` removes keeps the value that it had before all overrides."""
        section, _, name = override.path.partition(".")
        if override.prefix == "~":
            self._restore(override.path)
            return
        value = self._resolve(override.value)
        if not name and isinstance(value, dict):
            self._open(section)
            for inner, inner_value in value.items():
                self._set(section, inner, inner_value)
        elif not name:
            self._replace(section, value)
        else:
            self._open(section)
            self._set(section, name, value)
            if section == COMM_OVERLAP:  # of a section that is not known: the override applies only to an object
                self.paths.setdefault(section, COMM_OVERLAP_CLASS)

    def finish(self) -> PathValues:
        """The configuration once Bridge has read back what was merged."""
        paths = self.paths
        for section, fields in self._touched.items():
            if paths.get(section) == MAPPING or "_target_" in fields:
                self._read_back(section, fields)
        for path, value in self._base.items():
            if isinstance(value, str) and value.startswith("torch.") and path in paths:
                paths[path] = read_dtype(paths[path])
        return paths

    def _restore(self, removed: str) -> None:
        """Give a removed section, or a removed field, what the configuration had."""
        inner = f"{removed}."
        for path in [path for path in self.paths if path == removed or path.startswith(inner)]:
            del self.paths[path]
        self.paths |= {path: value for path, value in self._base.items() if path == removed or path.startswith(inner)}
        self._touched.pop(removed, None)
        self._removed.add(removed)

    def _replace(self, section: str, value: Any) -> None:
        self.paths[section] = value
        self._touched[section] = {}
        for path in [other for other in self.paths if other.startswith(f"{section}.")]:
            del self.paths[path]

    def _open(self, section: str) -> None:
        """Make a mapping of a section that holds no fields, or that was removed."""
        if section == "env_vars" or section not in self.paths:
            return
        if section in self._removed or not self.is_object(section):
            self._removed.discard(section)
            self._replace(section, MAPPING)

    def _set(self, section: str, name: str, value: Any) -> None:
        if section in self._touched or name == "_target_":
            self._touched.setdefault(section, {})[name] = None
        path = f"{section}.{name}"
        place = ".".join(path.split(".")[:2])
        is_known = path == place or path in self.paths or name.endswith("._target_")
        if isinstance(value, dict) and (isinstance(self.paths.get(path), dict) or self.holds_object(path)):
            for inner, inner_value in value.items():  # which sets fields of it
                self._set(section, f"{name}.{inner}", inner_value)
        elif is_known or isinstance(self.paths.get(place), dict):
            for known in [known for known in self.paths if known.startswith(f"{path}.")]:
                del self.paths[known]
            self.paths[path] = value
        elif not any(known.startswith(f"{place}.") for known in self.paths):
            self.paths.pop(place, None)  # a part of an object: what that becomes is not known here

    def _read_back(self, section: str, set_fields: Mapping[str, None]) -> None:
        """A mapping becomes an object of the class that it names, or sets fields of the object that was there."""
        paths, state = self.paths, self._base.get(section)
        was_object, is_mapping = _is_class(section, state), paths.get(section) == MAPPING
        target = str(paths.pop(f"{section}._target_", ""))
        name = _class_name(target)
        known = self._schema.sections[section].fields if section in self._schema.sections else {}
        values = (
            {field for field in known if f"{section}.{field}" in paths}
            if was_object
            else set_fields.keys() - {"_target_"}
        )
        is_class = target.startswith("megatron.") and name == OBJECT_CLASSES.get(section, name)
        is_made = is_class and values <= set(known) and _NEEDED.get(section, set()) <= values
        is_made = is_made and not any(_lacks_arguments(paths.get(f"{section}.{field}")) for field in values)
        named = {field: _class_name(paths.pop(f"{section}.{field}._target_", "")) for field in known}
        is_made = is_made and all(named[field] in ("", paths.get(f"{section}.{field}")) for field in known)
        if is_made:
            paths[section] = name
            for field, kind in known.items():
                if kind.has_default:
                    paths.setdefault(f"{section}.{field}", freeze(kind.default))
                if self.holds_object(f"{section}.{field}") and not named[field]:
                    paths[f"{section}.{field}"] = {}  # an object in the section is not made anew
        elif was_object:
            paths[section] = state
            for path, value in self._base.items():
                if path.startswith(f"{section}."):
                    given = paths.setdefault(path, value)
                    if isinstance(given, dict) and isinstance(value, str) and (not given or _lacks_arguments(given)):
                        paths[path] = value  # fields are set of the object that is there
            if section == MIXED_PRECISION and is_mapping:
                self._keep_names_the_same(set_fields)
        elif state is not None or section in self._base:
            paths[section] = MAPPING
        elif is_class:  # nothing is known of the section before
            paths[section] = name

    def _keep_names_the_same(self, set_fields: Mapping[str, None]) -> None:
        """Give each field with ``_gather`` the value of the one without, where a mapping sets that alone, or last."""
        for name in SAME_AS_GATHER:
            path, both = f"{MIXED_PRECISION}.{name}", (name, f"{name}_gather")
            if [field for field in set_fields if field in both][-1:] == [name]:
                self.paths[f"{path}_gather"] = self.paths[path]

    def _resolve(self, value: Any) -> Any:
        """``value`` with references replaced by what they refer to, as far as known."""
        if isinstance(value, Reference):
            return self.paths.get(value.path, "") if value.path else ""
        if isinstance(value, tuple):
            return tuple(self._resolve(element) for element in value)
        return value


def _is_class(section: str, state: Any) -> bool:
    """Whether ``state`` is the name of a class that the section may have."""
    return isinstance(state, str) and bool(state) and OBJECT_CLASSES.get(section, state) == state


_NEEDED = {COMM_OVERLAP: {"tp_comm_overlap"}}
"""Fields without a default of classes that overrides construct."""


_OVERLAP_PRESET = "TransformerLayerTPOverlapCfg"
PRESET_ARGUMENTS = {
    *(f"{layer}_{kind}" for layer in ("qkv", "fc1") for kind in ("dgrad", "wgrad", "fprop")),
    *(f"{layer}_{kind}" for layer in ("proj", "fc2") for kind in ("dgrad", "fprop")),
}
"""What the class of a preset takes: it has no defaults."""


def _class_name(target: Any) -> str:
    return str(target).rpartition(".")[2]


def _lacks_arguments(value: Any) -> bool:
    """Whether ``{_target_:...}`` fails, and what it stands in with it."""
    name = _class_name(value.get("_target_", "")) if isinstance(value, dict) else ""
    return name == _OVERLAP_PRESET and not set(value) >= PRESET_ARGUMENTS


def key_of_path(path: str) -> str:
    """The config key that a Megatron-Bridge path holds, else the path itself."""
    key = keys_by_path().get(path)
    if key is not None:
        return key.name
    section, _, name = path.partition(".")
    return name if section == "model" and name in config_keys().keys else path


def freeze(value: Any) -> Any:
    """Plain data with tuples in place of lists."""
    if isinstance(value, list | tuple):
        return tuple(freeze(element) for element in value)
    return value if isinstance(value, str | int | float | dict | None) else str(value)


def _values_of_keys(paths: Mapping[str, Any]) -> dict[str, Any]:
    """Values by config key: of a key that has several places, the first one that is set counts."""
    by_key: dict[str, Any] = {}
    for name, key in config_keys().keys.items():
        places = (*key.bridge.paths, *key.bridge.also_read) if key.bridge is not None else ()
        values = [paths[path] for path in places if path in paths]
        if values:
            by_key[name] = next((value for value in values if value is not None), None)
    return by_key


def _expand_precision(paths: PathValues, explicit: Mapping[str, Any], schema: BridgeSchema) -> None:
    """A named precision of which a field is stated to be another is an object."""
    name = paths.get(MIXED_PRECISION)
    recipe = precision_recipe(schema.release, name) if isinstance(name, str) else None
    if recipe is not None:
        paths[MIXED_PRECISION] = MIXED_PRECISION_CLASS
        paths |= {f"{MIXED_PRECISION}.{field}": freeze(value) for field, value in recipe.items()}
        paths |= explicit


def complete_sections(config: MergedConfig, version: str) -> frozenset[str]:
    """Sections whose every field is known: those of a whole configuration that the release itself wrote."""
    writer = _release_of(config.paths)
    fields = bridge_schema(version).sections["model"].fields
    present = sum(f"model.{name}" in config.paths for name in fields)
    if writer is None or release_number(writer) != release_number(version) or present < len(fields) / 2:
        return frozenset()
    return frozenset(path.partition(".")[0] for path in config.paths if "." in path)


def _release_of(paths: Mapping[str, Any]) -> str | None:
    """The newest release that came with one of ``paths``, else the oldest one if it was the last to have one."""
    releases = bridge_releases()
    newest = [release.name for release in releases if any(path in paths for path in release.came_with)]
    if newest:
        return newest[-1]
    return releases[0].name if any(path in paths for path in releases[0].last_with) else None


def _places_of(key: ConfigKey, schema: BridgeSchema) -> Iterator[str]:
    """Where the configuration holds a key, and where Bridge copies it to.

    An older name of the same section stays unset: Bridge lets it decide over the newer one, so that an override of that
    would change nothing.
    """
    assert key.bridge is not None
    sections = {path.partition(".")[0] for path in key.bridge.paths}
    copied_to = (path for path in key.bridge.also_read if path.partition(".")[0] not in sections)
    yield from (*key.bridge.paths, *copied_to, *key.bridge.in_force)
    names = {path.rpartition(".")[2] for path in key.bridge.paths} or {key.name}
    for name in names:
        yield from schema.model_paths.get(name, ())


_DTYPES = {
    "float32": ("fp32", "float", "float32", "32"),
    "float16": ("fp16", "half", "float16", "16"),
    "bfloat16": ("bf16", "bfloat16"),
    "float64": ("fp64", "double", "float64"),
    "uint8": ("uint8",),
}


def read_dtype(value: Any) -> Any:
    """A name of a dtype as Bridge reads it where a dtype stands; another text stays as it is."""
    if not isinstance(value, str):
        return value
    name = value.removeprefix("torch.")
    return next((f"torch.{dtype}" for dtype, names in _DTYPES.items() if name in names), value)


def _flatten(sections: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for section, fields in sections.items():
        if not isinstance(fields, dict):
            yield section, fields
            continue
        yield section, _class_name(fields.get("_target_", MAPPING))
        for name, value in fields.items():
            inner = value if isinstance(value, dict) else {}
            yield f"{section}.{name}", {} if inner and "_target_" not in inner else _name_of_object(value)
            for own_name, own_value in inner.items():
                if not str(own_name).startswith("_"):
                    yield f"{section}.{name}.{own_name}", _name_of_object(own_value)


def _name_of_object(value: Any) -> Any:
    """Enum members and types by their names: ``{_target_: torch.bfloat16, _call_: false}`` is torch.bfloat16."""
    if isinstance(value, list):
        return [_name_of_object(element) for element in value]
    if isinstance(value, dict) and "_target_" in value:
        return value.get("_name_") or str(value["_target_"])
    return value
