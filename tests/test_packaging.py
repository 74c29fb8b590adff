"""What a release carries: the wheel all that it needs to run, the sdist all that it needs to be tested."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import click
import pytest
from trace_builder import TraceBuilder

from tests.paths import REPOSITORY
from three_walls.cli.main import cli

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from the unpacked sdist."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


@pytest.mark.exhaustive
def test_the_license_is_in_the_wheel_and_named_in_its_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        assert archive.read(names["licenses/LICENSE"]) == (REPOSITORY / "LICENSE").read_bytes()
        metadata = archive.read(names["METADATA"]).decode()
    assert "License-Expression: Apache-2.0\nLicense-File: LICENSE\n" in metadata


def test_the_sdist_holds_every_file_that_make_demo_fast_and_test_read(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    tracked = set(listed.stdout.split("\0")) - {""} if listed.returncode == 0 else {"LICENSE", "Makefile"}
    missing = {name for name in tracked if (REPOSITORY / name).exists()} - packed
    left_out = (".github/", ".pre-commit", "benchmarks/traces/")  # what only CI and `make accuracy` read
    assert {name for name in missing if not name.startswith(left_out)} == set()
    assert not any(name.startswith((".venv", "dist/", "sample_traces/.unpacked")) for name in packed)
    assert path.stat().st_size < 48 << 20


def test_every_rule_and_template_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    for folder in ("rules", "reports/templates"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file():
                assert f"three_walls/_bundled/{path.relative_to(REPOSITORY)}" in packed
    assert not [name for name in packed if name.startswith(("tests/", "sample_traces/"))]


def test_every_table_is_in_the_wheel_as_json_too(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    tables = [path.relative_to(REPOSITORY) for path in (REPOSITORY / "tables").rglob("*.yaml")]
    assert {f"three_walls/_bundled/parsed/{'.'.join(path.parts)}.json" for path in tables} <= packed


def test_the_unpacked_wheel_analyzes_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    TraceBuilder().steps(4).write(tmp_path / "trace.sqlite")
    done = subprocess.run(
        [sys.executable, "-m", "three_walls", "analyze", "trace.sqlite"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "trace.three-walls" / "report.html").exists()


def test_the_make_targets_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make (\w+) ", (REPOSITORY / "README.md").read_text())) <= targets


def test_the_commands_of_the_readme_exist_with_their_options() -> None:
    commands = re.findall(
        r"^three-walls (.*)$|`[^`]*three-walls ([^`]*)`", (REPOSITORY / "README.md").read_text(), re.MULTILINE
    )
    assert len(commands) > 12
    for line in map("".join, commands):
        words = shlex.split(line.partition(" -- ")[0])
        command: click.Command = cli
        while isinstance(command, click.Group):
            subcommand = command.get_command(click.Context(command), words.pop(0))
            assert subcommand is not None, line
            command = subcommand
        options = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options, line


def test_every_file_the_readme_names_exists() -> None:
    text = (REPOSITORY / "README.md").read_text()
    names = re.findall(r"\]\(([^)#:]*)|((?:three_walls|rules|docs|sample_traces)/[\w./-]*)", text)
    assert len(names) > 15
    for name in map("".join, names):
        assert (REPOSITORY / name).exists(), name
