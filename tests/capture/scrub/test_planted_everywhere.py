"""A real export with a marker in every place where a text can stand: scrubbed and analyzed, no marker is left.

``SHOWN`` are the places that were looked at and left as they are, each with its reason.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.capture.scrub.planting import FAMILIES, Planted, plant_everywhere
from tests.capture.scrub.test_scrub import comparable
from tests.paths import SAMPLES
from three_walls import analyze
from three_walls.capture.scrub.scrub_export import scrub
from three_walls.cli.main import cli
from three_walls.cli.scrub import describe_scrubbed
from three_walls.report.html_report import render_html
from three_walls.report.json_report import render_json
from three_walls.report.overrides_file import render_overrides

pytestmark = [pytest.mark.slow, pytest.mark.attack]

SOURCES = {"megatron_lm": "wide-nvlink-alltoall.sqlite", "bridge": "healthy-two-gpus.sqlite.xz"}

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_NAMES_OF_KERNELS = "what analysis is about; a name is code, and only paths and what looks like a key are cut from it"

SHOWN = {
    f"{KERNELS}.demangledName -> StringIds": _NAMES_OF_KERNELS,
    f"{KERNELS}.shortName -> StringIds": _NAMES_OF_KERNELS,
    "StringIds.value": "a range names the code around a launch; only paths and what looks like a key are cut from it",
    "TARGET_INFO_SYSTEM_ENV: Hostname": "ranks of one host share a clock: the report names the hosts that do",
}

SHOWN |= {f"{family}, a name": "a report names the variables of known families that the run had" for family in FAMILIES}

_ITS_OWNER_READS_IT = "whoever scrubs has the original, and has to know what went; names alone, never a value"

SUMMED_UP = {
    **{f"{family}, a name": _ITS_OWNER_READS_IT for family in FAMILIES},
    "a table": _ITS_OWNER_READS_IT,
    "a column": _ITS_OWNER_READS_IT,
    "StringIds, an environment's name": _ITS_OWNER_READS_IT,
}


def plant(folder: Path, launcher: str, in_numbers: bool = True) -> Planted:
    source = SAMPLES / SOURCES[launcher]
    plain = folder / "source.sqlite"
    data = source.read_bytes()
    plain.write_bytes(lzma.decompress(data) if source.suffix == ".xz" else data)
    return plant_everywhere(plain, folder / "planted.sqlite", launcher, in_numbers)


@pytest.mark.parametrize("launcher", SOURCES)
def test_no_marker_survives_scrubbing(tmp_path: Path, launcher: str) -> None:
    planted = plant(tmp_path, launcher)
    leftovers = [path.read_bytes() for path in tmp_path.glob("planted.sqlite*")]
    assert planted.found_in(b"".join(leftovers)) == sorted(planted.places.values())  # each was there before
    (done,) = scrub(planted.path, tmp_path / "out.sqlite")
    assert planted.found_in((tmp_path / "out.sqlite").read_bytes()) == []
    summary = "\n".join(describe_scrubbed(done)).encode()
    assert set(planted.found_in(summary)) <= SUMMED_UP.keys()


@pytest.mark.parametrize("launcher", SOURCES)
def test_no_marker_is_shown_by_any_command(tmp_path: Path, launcher: str) -> None:
    planted = plant(tmp_path, launcher)
    report = analyze(planted.path)
    shown = [render_json(report), render_html(report), render_overrides(report)]
    runner = CliRunner()
    for arguments in (["analyze", "--out", str(tmp_path / "report")], ["doctor"], ["doctor", "--json"]):
        result = runner.invoke(cli, [arguments[0], str(planted.path), *arguments[1:]])
        assert result.exit_code in (0, 1), result.output
        shown.append(result.output)
    written = [path for path in sorted((tmp_path / "report").rglob("*")) if path.is_file()]
    assert written
    shown += [path.read_text(encoding="utf-8") for path in written]
    assert set(planted.found_in("\n".join(shown).encode())) <= SHOWN.keys()
    assert json.loads(shown[0])["config"]["withheld_environment"]["NCCL_DEBUG"]["value"] is None


@pytest.mark.parametrize("launcher", SOURCES)
def test_scrubbing_changes_nothing_in_the_analysis(tmp_path: Path, launcher: str) -> None:
    planted = plant(tmp_path, launcher, in_numbers=False)
    (tmp_path / "out").mkdir()
    scrub(planted.path, tmp_path / "out" / planted.path.name)
    assert comparable(tmp_path / "out" / planted.path.name) == comparable(planted.path)
