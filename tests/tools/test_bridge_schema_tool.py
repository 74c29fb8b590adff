"""The schema script reads a small package as a person would, and the shipped data has its form."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tests.paths import REPOSITORY
from three_walls.lib.load_documents import load_table
from three_walls.tables.bridge_releases import (
    BridgePatch,
    BridgeSchema,
    FieldType,
    bridge_schema,
    known_releases,
    nearest_release,
    release_number,
)

TOOLS = REPOSITORY / "tools"

CONFIG = """
from dataclasses import dataclass, field
from typing import Literal, Optional
import torch
from megatron.core.base import Base
from megatron.core.transformer.enums import AttnBackend

Strategy = Literal["none", "all"]

@dataclass
class TrainConfig(Base):
    size: Optional[int] = None
    level: Literal[0, 1] = 0
    strategy: Strategy = "none"
    modules: list[str] | None = field(default_factory=list)
    nested: list[list[str]] = None
    limit: int = 2**4 * 3
    small: float = 1e-6
    dtype: torch.dtype = torch.float32
    backend: AttnBackend = AttnBackend.auto
    _hidden: int = 1

@dataclass
class ConfigContainer:
    train: TrainConfig
    ft: Optional[TrainConfig] = None
"""
BASE = "from dataclasses import dataclass\n@dataclass\nclass Base:\n    size: int = 1\n    inherited: bool = False\n"
ENUMS = "import enum\nclass AttnBackend(enum.Enum):\n    flash = 1\n    auto = 5\n"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for path, text in {
        "bridge/training/config.py": CONFIG,
        "core/base.py": BASE,
        "core/transformer/enums.py": ENUMS,
    }.items():
        file = tmp_path / "megatron" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(str(TOOLS))
    import bridge_schema as tool

    monkeypatch.setattr(tool, "OUT", tmp_path / "out")
    tool.main(["9.1.1", "9.0", str(tmp_path)])
    config = tmp_path / "megatron" / "bridge" / "training" / "config.py"
    config.write_text(
        CONFIG.replace("limit: int = 2**4 * 3", "limit: int = 3").replace("small: float = 1e-6", "own: int = 1")
    )
    tool.main(["9.1.0", "9.0", str(tmp_path)])
    sys.modules.pop("bridge_schema")
    return tmp_path / "out" / "9.1.1.yaml"


def test_fields_types_values_and_defaults_are_read_without_importing(written: Path) -> None:
    fields = load_table(written, BridgeSchema).sections["train"].fields
    stated = {
        "size": {"type": ("int", "null"), "default": None},
        "inherited": {"type": "bool", "default": False},
        "level": {"type": "int", "values": (0, 1), "default": 0},
        "strategy": {"type": "str", "values": ("none", "all"), "default": "none"},
        "modules": {"type": ("list[str]", "null"), "default": ()},
        "nested": {"type": "list[any]", "default": None},
        "limit": {"type": "int", "default": 48},
        "small": {"type": "float", "default": 0.000001},
        "dtype": {"type": "dtype"},
        "backend": {"type": "enum:AttnBackend", "default": "auto"},
    }
    assert fields == TypeAdapter(dict[str, FieldType]).validate_python(stated)
    assert fields["size"].has_default and not fields["dtype"].has_default


def test_enums_and_every_section_of_the_container_are_read(written: Path) -> None:
    schema = load_table(written, BridgeSchema)
    assert (schema.release, schema.core, list(schema.sections)) == ("9.1.1", "9.0", ["train", "ft"])
    assert schema.enums["AttnBackend"].members == {"flash": 1, "auto": 5}


def test_of_an_earlier_patch_release_only_what_differs_is_written(written: Path) -> None:
    patch = load_table(written.parent / "patches" / "9.1.0.yaml", BridgePatch)
    assert {path: kind and kind.default for path, kind in patch.fields.items()} == {
        f"{section}.{name}": default
        for section in ("ft", "train")
        for name, default in (("limit", 3), ("own", 1), ("small", None))
    }
    earlier, later = (load_table(written, BridgeSchema), load_table(written, BridgeSchema).patched(patch))
    assert (earlier.find("train.own"), earlier.find("train.small") is None) == (None, False)
    assert (later.release, later.find("train.small"), later.find("train.own") is None) == ("9.1.0", None, False)


def test_every_shipped_release_has_the_sections_that_edits_write() -> None:
    assert known_releases() == ("0.3.1", "0.4.2", "0.5.1", "0.6.2", "main")
    for release in known_releases():
        schema = bridge_schema(release)
        for section in ("model", "train", "ddp", "optimizer", "comm_overlap", "mixed_precision", "checkpoint", "dist"):
            assert len(schema.sections[section].fields) > 10, (release, section)


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.3.0", "0.3.1"), ("0.6.0", "0.6.2"), ("0.2", "0.3.1"), ("0.8", "main"), ("main", "main")],
)
def test_a_release_without_a_schema_is_judged_by_the_last_one_before_it(version: str, release: str) -> None:
    assert nearest_release(version) == release


def test_releases_are_ordered_by_number() -> None:
    assert release_number("0.10.1") > release_number("main") > release_number("0.6.2")
