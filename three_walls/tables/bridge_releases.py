"""Megatron-Bridge's releases: what their configurations may hold, and how to recognize them.

* ``generated/bridge/<release>.yaml``: what a configuration may hold; made by ``tools/bridge_schema.py``;
* ``generated/bridge/patches/``: how earlier patch releases differ from it; made by the same tool;
* ``generated/bridge/type-mismatches/``: which values of the wrong type a release refuses; made by
  ``tools/bridge_type_mismatches.py``;
* ``generated/bridge/recipe-overlaps/``: the comm_overlap section of every recipe; made by ``tools/recipe_overlaps.py``;
* ``bridge-accepted-values.yaml``: what happens to values of the wrong type that it accepts (reviewed);
* ``bridge-releases.yaml``: the keys by which a saved configuration shows its release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, cached_property
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from three_walls.lib.errors import UsageError
from three_walls.lib.load_documents import NOT_STATED, ByName, NamedRow, Scalar, Text, Texts, Value, load_table
from three_walls.lib.resources import GENERATED_DIR, TABLES_DIR

BRIDGE_DIR = GENERATED_DIR / "bridge"
MAIN = "main"
_KIND = re.compile(r"(list\[)?(bool|int|float|str|null|any|dict|dtype|callable|(enum|object):\w.*)\]?")
_RELEASE = re.compile(r"v?(\d+)(?:\.(\d+))?")
_PATCH = re.compile(r"v?(\d+\.\d+\.\d+)")
_AFTER_EVERY_RELEASE = (0, 7)
"""The release that main counts as; raise it when the schema of main is updated."""


@cache  # of thousands of fields a few dozen differ
def _check_kinds(kinds: tuple[str, ...]) -> tuple[str, ...]:
    for kind in kinds:
        if not _KIND.fullmatch(kind):
            raise ValueError(f"unknown kind {kind}")
    return kinds


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of one field of a configuration."""

    kinds: Annotated[Texts, AfterValidator(_check_kinds), Field(alias="type")]
    """Kinds of values: ``bool``, ``list[str]``, ``enum:AttnBackend``."""
    values: tuple[Scalar, ...] = ()
    """Allowed texts or numbers; empty: any."""
    default: Value = NOT_STATED

    @property
    def has_default(self) -> bool:
        return self.default is not NOT_STATED


@dataclass(frozen=True, slots=True)
class SchemaSection:
    """One part of the configuration, ``model`` for example."""

    itself: FieldType
    fields: Mapping[str, FieldType]


@dataclass(frozen=True, slots=True)
class EnumType:
    """An enum whose members an override spells by class and number."""

    module: Text
    members: Mapping[str, int]


@dataclass(frozen=True)
class BridgeSchema:
    """What a configuration of one release may hold."""

    release: Annotated[Text, Field(alias="bridge")]
    core: Text
    """The Megatron Core that the release ships with."""
    enums: Mapping[str, EnumType]
    sections: Mapping[str, SchemaSection]
    precision_recipes: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """What each named precision recipe sets of MixedPrecisionConfig; empty where the schema was made without them."""

    def patched(self, patch: BridgePatch) -> BridgeSchema:
        """The schema of an earlier patch release."""
        types = {name: found.itself for name, found in self.sections.items()}
        fields = {name: dict(found.fields) for name, found in self.sections.items()}
        for path, kind in patch.fields.items():
            name, _, field = path.partition(".")
            if kind is None:
                del fields[name][field]
            elif field:
                fields[name][field] = kind
            else:
                types[name] = kind
        sections = {name: SchemaSection(types[name], fields[name]) for name in types}
        recipes = {**self.precision_recipes, **patch.recipes}
        kept = {name: values for name, values in recipes.items() if values is not None}
        return replace(self, release=patch.bridge, core=patch.core, sections=sections, precision_recipes=kept)

    def find(self, path: str) -> FieldType | None:
        """The type of ``section`` or ``section.field``; ``None`` where the release has no such field."""
        name, _, field = path.partition(".")
        section = self.sections.get(name)
        if section is None:
            return None
        return section.fields.get(field) if field else section.itself

    @cached_property
    def model_paths(self) -> Mapping[str, tuple[str, ...]]:
        """Name of a field -> its paths in the sections of the model, DDP and the optimizer, in this order."""
        paths: dict[str, tuple[str, ...]] = {}
        for section in ("model", "ddp", "optimizer"):
            for name in self.sections[section].fields if section in self.sections else ():
                paths[name] = (*paths.get(name, ()), f"{section}.{name}")
        return paths

    def paths(self) -> tuple[str, ...]:
        """Every ``section.field``."""
        return tuple(f"{name}.{field}" for name, section in self.sections.items() for field in section.fields)


@dataclass(frozen=True, slots=True)
class BridgePatch:
    """How an earlier patch release differs from the one that has a schema. None: it lacks the field, or the recipe."""

    bridge: Text
    core: Text
    fields: Mapping[str, FieldType | None]
    recipes: Mapping[str, Mapping[str, Value] | None]


@dataclass(frozen=True, slots=True)
class BridgeRelease(NamedRow):
    """Keys (or sections) that are new in a release, and keys that the next release no longer has."""

    came_with: Texts = ()
    last_with: Texts = ()
    snapshot: Text = ""
    """Of what is no release: the date of the commit that was read."""


@dataclass(frozen=True, slots=True)
class ReleaseTable:
    """``bridge-releases.yaml``, oldest release first."""

    releases: ByName[BridgeRelease]


MismatchKind = Literal["word", "text", "integer", "fraction", "flag", "list", "element", "mapping", "nothing"]
"""Kinds of values that do not fit a field. ``word`` is a text (or number) that is none of the field's values,
``element`` an element of the wrong kind in a list, ``nothing`` is null. The others are a value of that kind in a field
of another kind."""


@dataclass(frozen=True, slots=True)
class MeasuredMismatches:
    """What one release refuses, by path, measured by running its own checks."""

    bridge: Text
    configurations: tuple[Text, ...]
    """The configurations that were tried."""
    refused: Mapping[str, frozenset[MismatchKind]]
    """Kinds that were refused in every configuration."""
    sometimes: Mapping[str, frozenset[MismatchKind]]
    """Kinds that were refused in some configurations."""
    not_tried: frozenset[Text]

    def is_accepted(self, path: str, kind: str) -> bool | None:
        """Whether the release accepts such a value; None if that depends on the configuration, or was not tried."""
        if kind in self.refused.get(path, ()):
            return False
        return None if kind in self.sometimes.get(path, ()) or path in self.not_tried else True


def _check_path(path: str) -> str:
    if not any(bridge_schema(release).find(path) for release in known_releases()):
        raise ValueError(f"no release has a field {path}")
    return path


@dataclass(frozen=True, slots=True)
class OverlapGroup:
    """Recipes with the same comm_overlap section."""

    section: Mapping[str, Value] | None
    """The fields that it sets; None: there is no section."""
    recipes: Texts


@dataclass(frozen=True, slots=True)
class RecipeOverlaps:
    """``recipe-overlaps/<release>.yaml``."""

    bridge: Text
    groups: tuple[OverlapGroup, ...]


@dataclass(frozen=True, slots=True)
class AcceptedValue:
    """What happens to values that Bridge accepts although they do not fit, and where upstream decides it."""

    kinds: tuple[MismatchKind, ...]
    failure_mode: Literal[FailureMode.FAILS_AT_BUILD, FailureMode.IGNORED]
    source: Text


AcceptedValues = dict[Annotated[str, AfterValidator(_check_path)], AcceptedValue]
"""``bridge-accepted-values.yaml``, by path."""


@cache
def release_number(version: str) -> tuple[int, int]:
    """(major, minor) of a version: what constraints and keys name. ``main`` is newer than every release."""
    match = _RELEASE.match(version)
    return _AFTER_EVERY_RELEASE if match is None else (int(match[1]), int(match[2] or 0))


def is_between(release: tuple[int, int], since: str | None, until: str | None) -> bool:
    """Whether ``release`` is none before ``since`` and none after ``until``, where these are given."""
    is_early = since is not None and release < release_number(since)
    return not is_early and (until is None or release <= release_number(until))


@cache
def known_releases() -> tuple[str, ...]:
    """Releases with a schema, oldest first."""
    stems = (path.stem for path in BRIDGE_DIR.glob("*.yaml") if path.stem == MAIN or _RELEASE.match(path.stem))
    return tuple(sorted(stems, key=release_number))


def nearest_release(version: str) -> str:
    """The known release that stands for ``version``: the last one that is not newer, else the oldest."""
    not_newer = [release for release in known_releases() if release_number(release) <= release_number(version)]
    return not_newer[-1] if not_newer else known_releases()[0]


@cache
def patch_releases() -> tuple[str, ...]:
    """Releases that are known by how they differ from a later patch release, oldest first."""
    return tuple(sorted(path.stem for path in (BRIDGE_DIR / "patches").glob("*.yaml")))


@cache
def bridge_schema(version: str) -> BridgeSchema:
    """The schema that stands for ``version``."""
    schema = load_table(BRIDGE_DIR / f"{nearest_release(version)}.yaml", BridgeSchema)
    patch = _PATCH.match(version)
    if patch is None or patch[1] not in patch_releases():
        return schema
    return schema.patched(load_table(BRIDGE_DIR / "patches" / f"{patch[1]}.yaml", BridgePatch))


def core_of(core: str | None, bridge: str | None) -> str | None:
    """The release of Megatron Core: ``core`` where it is known, else the one that the release ``bridge`` comes with."""
    return core or (bridge_schema(bridge).core if bridge is not None else None)


@cache
def precision_recipe(version: str, name: str) -> Mapping[str, Value] | None:
    """Every field of the MixedPrecisionConfig that ``name`` stands for; None where no such recipe is known.

    Both spellings of a name, with ``_`` and with ``-``, are registered. A schema without recipes has those of the
    newest release that has them.
    """
    schemas = map(bridge_schema, (version, *reversed(known_releases())))  # most runs need the first alone
    schema = next(schema for schema in schemas if schema.precision_recipes)
    values = schema.precision_recipes.get(name.replace("-", "_"))
    if values is None:
        return None
    fields = bridge_schema(version).sections["mixed_precision"].fields
    return {field: kind.default for field, kind in fields.items() if kind.has_default} | dict(values)


_PRECISION = ("bf16", "fp16", "fp8", "fp8_recipe", "fp4", "fp4_recipe")


@cache
def precision_settings(name: str) -> Mapping[str, Value]:
    """The formats of numbers that the precision recipe ``name`` sets in every release, by key; empty for others."""
    recipe = precision_recipe(MAIN, name)
    if recipe is None:
        return {}
    is_on = {key: recipe[key.removesuffix("_recipe")] for key in _PRECISION}
    return {key: recipe[key] for key in _PRECISION if is_on[key] or key in ("fp8", "fp4")}


@cache
def bridge_releases() -> tuple[BridgeRelease, ...]:
    """The releases that can be recognized by the keys of a configuration, oldest first."""
    return tuple(load_table(TABLES_DIR / "bridge-releases.yaml", ReleaseTable).releases.values())


@cache
def recipe_overlaps(version: str) -> Mapping[str, Mapping[str, Value] | None]:
    """The comm_overlap section of every recipe whose section is known, by the recipe's name; None: it has none."""
    path = BRIDGE_DIR / "recipe-overlaps" / f"{nearest_release(version)}.yaml"
    groups = load_table(path, RecipeOverlaps).groups if path.is_file() else ()
    return {recipe: group.section for group in groups for recipe in group.recipes}


@cache
def measured_mismatches(version: str) -> MeasuredMismatches:
    """What is measured of the release that stands for ``version``."""
    return load_table(BRIDGE_DIR / "type-mismatches" / f"{nearest_release(version)}.yaml", MeasuredMismatches)


@cache
def accepted_values() -> Mapping[tuple[str, str], AcceptedValue]:
    """What happens to values that Bridge accepts, by path and kind, as far as reviewed."""
    rows = load_table(TABLES_DIR / "bridge-accepted-values.yaml", AcceptedValues)
    return MappingProxyType({(path, kind): row for path, row in rows.items() for kind in row.kinds})


def is_known_release(version: str) -> bool:
    """Whether there are data of this very release."""
    patch = _PATCH.match(version)
    return version == MAIN or (patch is not None and patch[1] in (*known_releases(), *patch_releases()))


def name_release(version: str) -> str:
    """The release as shown: what is no release is named as the snapshot that it is."""
    dates = {release.name: release.snapshot for release in bridge_releases()}
    return f"{version} (a snapshot of {dates[version]})" if dates.get(version) else version


_OWN_FIELDS = ("env_vars", "dataset", "peft", "tokenizer")
"""Sections whose fields differ from run to run."""
_SCHEMA_MODELS = ("GPTModelProvider", "MLAModelProvider")
"""Models whose fields the schemas have. Others (Mamba's, Gemma's) may have fields of their own."""
_SHOWN_PATHS = 6


@cache
def _every_path() -> frozenset[str]:
    return frozenset(path for release in known_releases() for path in bridge_schema(release).paths())


def list_unknown_paths(paths: Mapping[str, Any]) -> tuple[str, ...]:
    """Those ``section.field`` of a configuration that no known release has, as far as they are the releases' own."""
    model = paths.get("model._target_", paths.get("model"))
    own = _OWN_FIELDS if model is None or str(model).endswith(_SCHEMA_MODELS) else (*_OWN_FIELDS, "model")
    return tuple(
        path
        for path in paths
        if "." in path
        and ".".join(path.split(".")[:2]) not in _every_path()  # what an object in a setting holds is not listed
        and path.partition(".")[0] not in own
        and not path.endswith("._target_")
    )


def describe_unknown_paths(paths: Sequence[str]) -> str:
    """A sentence about them, which names the first ones that can be names."""
    shown = [path for path in paths if re.fullmatch(r"[\w.]{1,80}", path)][:_SHOWN_PATHS]
    rest = len(paths) - len(shown)
    more = [f"{rest} {'more' if shown else 'of the settings'}"] if rest else []
    return (
        f"no known release of Megatron-Bridge has {', '.join([*shown, *more])}: not checked "
        "(misspelt, of a newer release, or of the model's own class)"
    )


def check_release(bridge_version: str | None) -> None:
    """Raises UsageError unless ``bridge_version`` is None, ``main`` or a release, or a line of them, that is known."""
    if bridge_version is None:
        return
    is_line = re.fullmatch(r"\d+\.\d+", bridge_version) is not None
    lines = map(release_number, set(known_releases()) - {MAIN})
    if is_known_release(bridge_version) or (is_line and release_number(bridge_version) in lines):
        return
    problem = f"found {bridge_version!r}"
    if re.fullmatch(r"\d+\.\d+(\.\d+)?", bridge_version):
        nearest = name_release(nearest_release(bridge_version))
        problem = f"no data of {bridge_version} is known; the nearest is {nearest}"
    releases = sorted((*patch_releases(), *(name for name in known_releases() if name != MAIN)))
    raise UsageError(f"--bridge-version: expected one of {', '.join(releases)}, or {name_release(MAIN)}: {problem}")


class FailureMode(StrEnum):
    """How a wrong override fails: at once, when the model is built, or silently. Only ``REFUSED`` stops a launch."""

    REFUSED = "refused"
    """Megatron-Bridge fails when it applies the override or validates the configuration."""
    FAILS_AT_BUILD = "fails_at_build"
    """Megatron-Bridge accepts it, and the run fails when the model is built, or in a step."""
    IGNORED = "ignored"
    """Megatron-Bridge accepts it and silently drops or resets it: the edit does nothing."""
    NOT_VALIDATED = "not_validated"
    """Megatron-Bridge accepts it without a check; what a value of this kind then does is not known."""
    UNKNOWN = "unknown"
    """Whether Megatron-Bridge accepts it depends on other settings, or was not tried."""

    def describe(self, problem: str, release: str) -> str:
        """``problem`` as a sentence that also states how it fails, unless it is refused at once."""
        return _SENTENCES[self].format(release=release, problem=problem)


_SENTENCES = {
    FailureMode.REFUSED: "{problem}",
    FailureMode.FAILS_AT_BUILD: (
        "Megatron-Bridge {release} accepts this, but the model cannot be built or trained: {problem}"
    ),
    FailureMode.IGNORED: "Megatron-Bridge {release} accepts this but silently ignores it: {problem}",
    FailureMode.NOT_VALIDATED: "Megatron-Bridge {release} accepts this without checking it: {problem}",
    FailureMode.UNKNOWN: "Megatron-Bridge {release} may refuse this, depending on other settings: {problem}",
}
