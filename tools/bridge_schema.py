"""Writes tables/generated/bridge/<release>.yaml: what a Megatron-Bridge configuration may hold, read from the source.

    pip download --no-deps megatron-bridge==0.6.2 megatron-core==0.19.0
    python tools/bridge_schema.py 0.6.2 0.19.0 megatron_bridge-0.6.2-*.whl megatron_core-0.19.0-*.whl

Arguments: the Bridge release, the Megatron Core release it was made for, then wheels or directories that hold
``megatron/``. Of a release with a schema of a later patch release, ``patches/`` gets what differs. Nothing is imported:
fields, types and defaults come from the syntax tree, so no GPU, no torch and no particular Python is needed. The
sections are those of ``ConfigContainer``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from dataclass_source import Field, Sources, home_of, read_enum, read_fields, read_registered, read_registered_values

OUT = Path(__file__).parent.parent / "tables" / "generated" / "bridge"
CONFIG = "megatron.bridge.training.config"
CONTAINER = "ConfigContainer"
ENUMS_MODULE = "megatron.core.transformer.enums"
ENUMS = ("AttnBackend", "CudaGraphScope", "CudaGraphModule")
"""Enums that are spelled in overrides; the fields' own ones are found by themselves."""

# Which class a section is read from, where the container's annotation names several or none.
MODELS = (
    "megatron.bridge.models.gpt_provider.GPTModelProvider",
    "megatron.bridge.models.mla_provider.MLAModelProvider",
)
DATASETS = (f"{CONFIG}.GPTDatasetConfig", f"{CONFIG}.FinetuningDatasetConfig", f"{CONFIG}.DatasetProvider")
CLASSES = {"model": MODELS, "dataset": DATASETS, "peft": ("megatron.bridge.peft.lora.LoRA",)}
REGISTERED = {"mixed_precision": "megatron.bridge.training.mixed_precision"}
"""Sections that may be a name, and the module that registers the names."""


def main(arguments: list[str]) -> None:
    release, core, *roots = arguments
    text = "\n".join(write_schema(Sources(tuple(map(Path, roots))), release, core)) + "\n"
    path = OUT / f"{release}.yaml"
    line = release.rpartition(".")[0]
    later = [found for found in OUT.glob(f"{line}.*.yaml") if _patch_number(found.stem) > _patch_number(release)]
    if later and release != "main":
        path = OUT / "patches" / path.name
        text = "\n".join(_write_differences(*(yaml.safe_load(found) for found in (text, later[0].read_text())))) + "\n"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{path}: {len(text)} bytes\n")


def _patch_number(release: str) -> int:
    return int(release.rpartition(".")[2])


def _write_differences(schema: dict[str, Any], later: dict[str, Any]) -> Iterator[str]:
    """Lines of the file of an earlier patch release; null where it lacks a field or a recipe."""
    names = f"Megatron-Bridge {schema['bridge']} and Megatron Core {schema['core']}"
    yield f"# Made by tools/bridge_schema.py from {names}: what differs from {later['bridge']}; do not edit."
    yield from (f"{name}: {json.dumps(schema[name])}" for name in ("bridge", "core"))
    assert schema["enums"] == later["enums"], "the enums differ: give the release a schema of its own"
    compared = {"fields": (_by_path(schema), _by_path(later))}
    compared["recipes"] = tuple(found["precision_recipes"] for found in (schema, later))
    for title, (own, others) in compared.items():
        changed = [name for name in sorted({*own, *others}) if own.get(name) != others.get(name)]
        yield f"{title}:" + ("" if changed else " {}")
        yield from (f"  {name}: {json.dumps(own.get(name))}" for name in changed)


def _by_path(schema: dict[str, Any]) -> dict[str, Any]:
    """Every section and field by its path."""
    paths = {name: section["itself"] for name, section in schema["sections"].items()}
    for name, section in schema["sections"].items():
        paths |= {f"{name}.{field}": kind for field, kind in section["fields"].items()}
    return paths


def write_schema(sources: Sources, release: str, core: str) -> Iterator[str]:
    """Lines of the file."""
    yield f"# Made by tools/bridge_schema.py from Megatron-Bridge {release} and Megatron Core {core}; do not edit."
    yield f"bridge: {json.dumps(release)}"
    yield f"core: {json.dumps(core)}"
    sections = read_fields(sources, CONFIG, CONTAINER)
    fields = {name: _section_fields(sources, name, found) for name, found in sections.items()}
    yield "enums:"
    yield from _write_enums(sources, fields)
    recipes = read_registered_values(sources, REGISTERED["mixed_precision"])
    yield "precision_recipes:" + ("" if recipes else " {}")
    for name, values in recipes.items():
        yield f"  {name}: {{{', '.join(f'{field}: {_plain(value)}' for field, value in values.items())}}}"
    yield "sections:"
    for name, found in sections.items():
        yield f"  {name}:"
        names = read_registered(sources, REGISTERED[name]) if name in REGISTERED else found.values
        yield f"    itself: {_write(replace(found, values=names))}"
        yield "    fields:" + ("" if fields[name] else " {}")
        yield from (f"      {field}: {_write(kind)}" for field, kind in sorted(fields[name].items()))


def _section_fields(sources: Sources, section: str, found: Field) -> dict[str, Field]:
    """Fields of every class the section may be an object of; the first class that has a field decides."""
    named = [kind.removeprefix("object:") for kind in found.kinds if kind.startswith("object:")]
    classes = CLASSES.get(section, tuple(f"{CONFIG}.{name}" for name in named))
    fields: dict[str, Field] = {}
    for path in classes:
        module, _, name = path.rpartition(".")
        if home_of(sources, module, name) is not None:
            fields = read_fields(sources, module, name) | fields
    return fields


def _write_enums(sources: Sources, fields: dict[str, dict[str, Field]]) -> Iterator[str]:
    kinds = {kind for section in fields.values() for field in section.values() for kind in field.kinds}
    own = {kind.rpartition(":")[2].rstrip("]") for kind in kinds if "enum:" in kind}
    for name in sorted(own | set(ENUMS)):
        home = home_of(sources, ENUMS_MODULE, name) or home_of(sources, CONFIG, name)
        members = read_enum(sources, home, name) if home else None
        if members:
            yield f"  {name}: {{module: {home}, members: {json.dumps(members)}}}"


def _write(found: Field) -> str:
    """``{type: [int, "null"], default: 1}``; a type of one kind is a word."""
    kinds = json.dumps(found.kinds[0] if len(found.kinds) == 1 else list(found.kinds))
    parts = [f"type: {kinds}"]
    if found.values:
        parts.append(f"values: {json.dumps(list(found.values))}")
    if found.has_default and isinstance(found.default, bool | int | float | str | list | None):
        parts.append(f"default: {_plain(found.default)}")
    return f"{{{', '.join(parts)}}}"


def _plain(value: object) -> str:
    """A value as strict YAML has it: a float with its point."""
    if isinstance(value, float):
        return f"{value:.12f}".rstrip("0") + "0" if "e" in repr(value) else repr(value)
    return json.dumps(value)


if __name__ == "__main__":
    main(sys.argv[1:])
