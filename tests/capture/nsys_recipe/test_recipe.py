"""The recipe for nsys, against a small package with the part of nsys's recipe API that it uses."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner
from trace_builder import TraceBuilder

from tests.paths import REPOSITORY
from three_walls.cli.main import cli
from three_walls.cli.recipe import install_recipe
from three_walls.lib.errors import UsageError


class Recipe:
    """What nsys_recipe.lib.recipe.Recipe of release 2024.2.3 does, as far as a recipe uses it."""

    recipe_name = ""

    def __init__(self, parsed_args: argparse.Namespace) -> None:
        self._parsed_args = parsed_args
        self._output_files: dict[str, str] = {}
        self._analysis_dict: dict[str, Any] = {}

    @classmethod
    def get_argument_parser(cls) -> Any:
        parser = argparse.ArgumentParser(prog=cls.recipe_name)

        def add_recipe_argument(option: object, *arguments: Any, **options: Any) -> None:
            if isinstance(option, str):
                parser.add_argument(option, *arguments, **options)
            else:
                parser.add_argument("--output" if option is Option.OUTPUT else "--force-overwrite")

        parser.add_recipe_argument = add_recipe_argument  # type: ignore[attr-defined]
        return parser

    def run(self, context: Any) -> None:
        self._analysis_dict["Mode"] = context.mode

    def get_parsed_arg(self, name: str) -> Any:
        return getattr(self._parsed_args, name, None)

    def get_output_dir(self) -> str:
        Path(self._parsed_args.output).mkdir(parents=True, exist_ok=True)
        return str(self._parsed_args.output)

    def create_analysis_file(self) -> None:
        (Path(self.get_output_dir()) / "x.nsys-analysis").write_text(json.dumps(self._analysis_dict))


class Option:
    OUTPUT = object()
    FORCE_OVERWRITE = object()


class Context:
    mode = "none"

    def map(self, function: Any, items: list[str], **options: Any) -> list[Any]:
        return [function(item, **options) for item in items]

    def wait(self, results: list[Any]) -> list[Any]:
        return results


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The recipe's module; its nsys is a script that records how it was called and writes the export."""
    nsys = tmp_path / "target" / "nsys"
    nsys.parent.mkdir()
    nsys.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        'for word; do case "$word" in --output=*) target="${word#--output=}";; *broken*) echo damaged; exit 1;; esac\n'
        'done; echo exported > "$target"\n'
    )
    nsys.chmod(0o755)
    names = ("nsys_recipe", "nsys_recipe.lib", "nsys_recipe.lib.args", "nsys_recipe.lib.recipe")
    made = {name: ModuleType(name) for name in (*names, "nsys_recipe.lib.nsys_path")}
    made["nsys_recipe.lib.recipe"].Recipe = Recipe  # type: ignore[attr-defined]
    made["nsys_recipe.lib.args"].Option = Option  # type: ignore[attr-defined]
    made["nsys_recipe.lib.nsys_path"].find_installed_file = lambda _: str(nsys)  # type: ignore[attr-defined]
    for name, part in made.items():
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(made[parent], own, part)
        monkeypatch.setitem(sys.modules, name, part)
    yield importlib.import_module("three_walls.capture.nsys_recipe.recipe")
    sys.modules.pop("three_walls.capture.nsys_recipe.recipe")


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []


@pytest.mark.slow
def test_the_report_is_that_of_analyze(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "read_notes", lambda: {module.PYTHON: sys.executable, module.ROOT: str(REPOSITORY)})
    (tmp_path / "profiles").mkdir()
    TraceBuilder().steps(4).write(tmp_path / "profiles" / "rank0.sqlite")
    parser = module.ThreeWalls.get_argument_parser()
    arguments = ["--input", str(tmp_path / "profiles"), "--output", str(tmp_path / "out"), "--set", "num_layers=2"]
    module.ThreeWalls(parser.parse_args(arguments)).run(Context())
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["step"]["kept"] == 2
    assert report["config"]["values"]["num_layers"]["source"] == "--set"
    analysis = json.loads((tmp_path / "out" / "x.nsys-analysis").read_text())
    assert {"report.html", "report.json", "overrides.txt"} <= set(analysis["Outputs"])
    assert analysis["InputFiles"] == [str(tmp_path / "profiles" / "rank0.sqlite")]


@pytest.mark.slow
def test_what_analyze_refuses_ends_the_recipe_with_its_exit_code(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "read_notes", lambda: {module.PYTHON: sys.executable, module.ROOT: str(REPOSITORY)})
    (tmp_path / "rank0.sqlite").write_text("no export")
    parser = module.ThreeWalls.get_argument_parser()
    arguments = parser.parse_args(["--input", str(tmp_path / "rank0.sqlite"), "--output", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as stopped:
        module.ThreeWalls(arguments).run(Context())
    assert stopped.value.code == 3


def test_inputs_are_reports_and_exports_each_once(module: Any, tmp_path: Path) -> None:
    for name in ("b.nsys-rep", "a.nsys-rep", "a.sqlite", "c.sqlite.xz", "notes.txt"):
        (tmp_path / name).touch()

    def names(text: str) -> list[str]:
        return [Path(path).name for path in module.find_inputs(text)]

    assert names(str(tmp_path)) == ["a.nsys-rep", "b.nsys-rep", "c.sqlite.xz"]  # a.sqlite is the export of a
    assert names(f"{tmp_path}:2") == ["a.nsys-rep", "b.nsys-rep"]
    assert names(str(tmp_path / "a.sqlite")) == ["a.sqlite"]
    (tmp_path / "empty").mkdir()
    for text in (str(tmp_path / "notes.txt"), str(tmp_path / "empty"), str(tmp_path / "none"), f"{tmp_path}:x"):
        with pytest.raises(argparse.ArgumentTypeError):
            module.find_inputs(text)


def test_a_report_is_exported_once_beside_it(module: Any, tmp_path: Path) -> None:
    report = tmp_path / "rank 0.nsys-rep"
    report.touch()
    exported = module.export_report(str(report), str(tmp_path / "out"))
    assert Path(exported) == tmp_path / "rank 0.sqlite"
    assert Path(exported).read_text() == "exported\n"
    assert module.export_report(str(report), "") == exported  # as it is newer than the report
    assert len(calls(tmp_path)) == 1
    os.utime(exported, (0, 0))
    module.export_report(str(report), "")
    assert len(calls(tmp_path)) == 2
    assert module.export_report("rank1.sqlite", "") == "rank1.sqlite"


def test_a_report_that_cannot_be_exported_is_one_line(module: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.nsys-rep").touch()
    with pytest.raises(SystemExit) as stopped:
        module.export_report(str(tmp_path / "broken.nsys-rep"), "")
    assert stopped.value.code == "three-walls: error: broken.nsys-rep: nsys export failed: damaged"


def test_the_analysis_runs_in_its_own_python_without_the_libraries_of_nsys(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "read_notes", lambda: {module.PYTHON: "/venv/bin/python", module.ROOT: "/venv/lib"})
    monkeypatch.setenv("PYTHONPATH", "/nsys/packages")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}/target:/users/own")
    given = {"log": ["a.log", "b.log"], "config": "run_config.yaml"}
    command, environment = module.make_command(["x.sqlite"], "out", given.get)
    assert command == [
        "/venv/bin/python", "-m", "three_walls", "analyze", "x.sqlite", "--out", "out",
        "--log", "a.log", "--log", "b.log", "--config", "run_config.yaml",
    ]  # fmt: skip
    assert (environment["PYTHONPATH"], environment["LD_LIBRARY_PATH"]) == ("/venv/lib", "/users/own")
    monkeypatch.setenv("THREE_WALLS_PYTHON", "/other/python")
    assert module.make_command([], "out", given.get)[0][0] == "/other/python"


def test_the_installed_recipe_notes_the_python_that_has_three_walls(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = install_recipe(tmp_path)
    metadata = json.loads((target / "metadata.json").read_text())
    assert (metadata["module_name"], metadata["class_name"]) == ("nsys_recipe.recipe", "ThreeWalls")
    assert sorted(path.name for path in (target / "nsys_recipe").iterdir()) == [
        "__init__.py",
        "metadata.json",
        "recipe.py",
    ]
    assert module.read_notes() == {}
    monkeypatch.setenv("NSYS_RECIPE_PATH", str(tmp_path))
    assert module.read_notes()[module.PYTHON] == sys.executable
    assert install_recipe(tmp_path) == target  # again


def test_installing_prints_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data home"))
    lines = CliRunner().invoke(cli, ["recipe", "install"]).stdout.splitlines()
    folder = tmp_path / "data home" / "three-walls" / "nsys-recipes"
    assert lines[0] == f"Wrote {folder / 'three_walls'}"
    assert f"  export NSYS_RECIPE_PATH='{folder}'" in lines
    assert (folder / "three_walls" / "metadata.json").exists()


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "three_walls").mkdir()
    (tmp_path / "three_walls" / "metadata.json").write_text('{"module_name": "other"}')
    with pytest.raises(UsageError, match="found one that is not of this recipe"):
        install_recipe(tmp_path)
    assert [path.name for path in (tmp_path / "three_walls").iterdir()] == ["metadata.json"]


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    install_recipe(tmp_path)
    (tmp_path / "mine").write_text("mine")
    recipe = tmp_path / "three_walls" / "nsys_recipe" / "recipe.py"
    recipe.unlink()
    recipe.symlink_to(tmp_path / "mine")
    install_recipe(tmp_path)
    assert not recipe.is_symlink()
    (tmp_path / "elsewhere").mkdir()
    shutil.rmtree(recipe.parent)
    recipe.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="expected a folder, found a symbolic link"):
        install_recipe(tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"
    assert not list((tmp_path / "elsewhere").iterdir())
