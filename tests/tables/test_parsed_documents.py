"""The program's own documents are read from JSON while their YAML is unchanged; all others are read as YAML."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from three_walls.lib import parsed_documents, yaml
from three_walls.lib.errors import RuleBaseError
from three_walls.lib.load_documents import load_table


@dataclass(frozen=True, slots=True)
class Limits:
    lowest: int
    highest: int


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A document that ships with the program, in a folder for bytecode of its own."""
    for name in ("rules", "tables"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(parsed_documents, f"{name.upper()}_DIR", tmp_path / name)
    monkeypatch.setattr(parsed_documents, "ROOT", tmp_path)
    monkeypatch.setattr(parsed_documents, "PARSED_DIR", tmp_path / "parsed")
    monkeypatch.setattr(parsed_documents, "IS_BUNDLED", False)
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    path = tmp_path / "tables" / "limits.yaml"
    path.write_text("lowest: 1\nhighest: 2\n")
    return path


def refuse_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> None:
        raise AssertionError(f"{path} was read as YAML")

    monkeypatch.setattr(yaml, "read_document", refuse)


def test_a_shipped_document_is_read_as_yaml_once(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_table(shipped, Limits)
    refuse_yaml(monkeypatch)
    assert load_table(shipped, Limits) == first == Limits(lowest=1, highest=2)


def test_a_changed_document_is_read_again(shipped: Path) -> None:
    load_table(shipped, Limits)
    shipped.write_text("lowest: 1\nhighest: 3\n")
    assert load_table(shipped, Limits).highest == 3
    assert json.loads(parsed_documents.read_parsed(shipped) or b"") == {"lowest": 1, "highest": 3}


@pytest.mark.parametrize("kept", [b"", b"no digest", b"{digest}\n{", b"{digest}\n{}"])
def test_damaged_json_counts_for_nothing(shipped: Path, kept: bytes) -> None:
    load_table(shipped, Limits)
    (file,) = (shipped.parent.parent / "parsed").iterdir()
    file.write_bytes(kept.replace(b"{digest}", file.read_bytes().partition(b"\n")[0]))
    assert load_table(shipped, Limits).highest == 2
    assert json.loads(parsed_documents.read_parsed(shipped) or b"") == {"lowest": 1, "highest": 2}


def test_errors_name_the_place_in_the_yaml_also_where_json_is_kept(shipped: Path) -> None:
    shipped.write_text("lowest: 1\nhighest: two\n")
    for _ in range(2):
        with pytest.raises(RuleBaseError, match=r"limits\.yaml:2:10: expected a whole number"):
            load_table(shipped, Limits)


def test_an_ambiguous_document_is_never_kept(shipped: Path) -> None:
    shipped.write_text("lowest: 1\nhighest: 1:30\n")
    for _ in range(2):
        with pytest.raises(RuleBaseError, match=r"limits\.yaml:2:10: 1:30 is ambiguous"):
            load_table(shipped, Limits)
    assert parsed_documents.read_parsed(shipped) is None


def test_a_file_from_elsewhere_is_always_read_as_yaml(shipped: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "limits.yaml"
    elsewhere.write_bytes(shipped.read_bytes())
    load_table(elsewhere, Limits)
    assert not (tmp_path / "parsed").exists()


@pytest.mark.parametrize("setting", ["sys.dont_write_bytecode", "three_walls.lib.parsed_documents.IS_BUNDLED"])
def test_nothing_is_kept_without_bytecode_nor_in_an_installed_wheel(
    shipped: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setattr(setting, True)
    assert load_table(shipped, Limits).highest == 2
    assert not (shipped.parent.parent / "parsed").exists()


def test_a_folder_that_cannot_be_written_is_no_error(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsed_documents, "PARSED_DIR", shipped / "parsed")  # below a file
    assert load_table(shipped, Limits).highest == 2


def test_a_wheel_gets_every_document_but_cases(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rules" / "a.cases.yaml").write_text("case: 1\n")
    (tmp_path / "parsed").mkdir()
    parsed_documents.write_all(tmp_path / "parsed")
    assert [file.name for file in (tmp_path / "parsed").iterdir()] == ["tables.limits.yaml.json"]
    refuse_yaml(monkeypatch)
    assert load_table(shipped, Limits).highest == 2


def test_a_document_of_the_wrong_form_stops_the_build(shipped: Path, tmp_path: Path) -> None:
    shipped.write_text("highest: 1:30\n")
    with pytest.raises(ValueError, match="ambiguous"):
        parsed_documents.write_all(tmp_path)
