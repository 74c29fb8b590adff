"""The recipe ``three_walls``: exports the reports in parallel, then runs ``three-walls analyze`` on all of them.

nsys imports this file with its own Python, beside libraries of its own (SQLite among them). So the analysis runs in
the Python in which three-walls is installed, as a process of its own. ``three-walls recipe install`` copies this folder
and notes that Python in ``metadata.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from nsys_recipe.lib import nsys_path, recipe
from nsys_recipe.lib.args import Option

NAME = "three_walls"
REPORT_SUFFIXES = (".nsys-rep", ".qdrep")
EXPORT_SUFFIXES = (".sqlite", ".sqlite.xz", ".sqlite.zst")
PASSED_ON = (
    "--log", "--config", "--set", "--step-range", "--kernel-names", "--bridge-version", "--rules", "--memory-snapshot"
)  # fmt: skip
"""Options of ``three-walls analyze``; those of :data:`REPEATED` may be given several times."""
REPEATED = ("--log", "--set")
PYTHON, ROOT = "three_walls_python", "three_walls_root"
"""Keys of ``metadata.json``: the interpreter that has three-walls, and the folder that it is imported from."""


class ThreeWalls(recipe.Recipe):  # type: ignore[misc]  # nsys has no types
    """Names the wall that holds a run back."""

    recipe_name = NAME

    @classmethod
    def get_argument_parser(cls) -> Any:
        """The options: nsys's own, and those of ``three-walls analyze``."""
        parser = super().get_argument_parser()
        parser.add_recipe_argument(
            "--input",
            nargs="+",
            type=find_inputs,
            required=True,
            help="Reports (.nsys-rep) or their exports (.sqlite), one per rank, or directories of them.\n"
            "A directory may be followed by ':n' to limit the number of files.",
        )
        parser.add_recipe_argument(Option.OUTPUT)
        parser.add_recipe_argument(Option.FORCE_OVERWRITE)
        for option in PASSED_ON:
            action = "append" if option in REPEATED else "store"
            parser.add_recipe_argument(option, action=action, help="As for three-walls analyze.")
        return parser

    def run(self, context: Any) -> None:
        """Export, analyze, and leave the report in the output directory."""
        super().run(context)
        inputs = [path for paths in self.get_parsed_arg("input") for path in paths]
        out_dir = self.get_output_dir()
        exports = context.wait(context.map(export_report, inputs, folder=str(Path(out_dir).absolute())))
        command, environment = make_command(exports, out_dir, self.get_parsed_arg)
        sys.stdout.flush()
        code = subprocess.run(command, env=environment, check=False).returncode
        if code:
            sys.exit(code)  # three-walls has printed why
        self._output_files.update({path.name: "" for path in sorted(Path(out_dir).iterdir())})
        self._analysis_dict.update(
            {"EndTime": str(datetime.now()), "InputFiles": inputs, "Outputs": self._output_files}  # noqa: DTZ005
        )
        self.create_analysis_file()


def find_inputs(text: str) -> list[str]:
    """The reports and exports that an argument of ``--input`` names. An export of a report stands for the report.

    Raises argparse.ArgumentTypeError where there are none.
    """
    path, most = Path(text), None
    if not path.exists() and ":" in text:
        name, _, number = text.rpartition(":")
        if number.isdecimal():
            path, most = Path(name), int(number)
    if path.is_file():
        if not path.name.endswith((*REPORT_SUFFIXES, *EXPORT_SUFFIXES)):
            raise argparse.ArgumentTypeError(f"{text}: expected a .nsys-rep report or a .sqlite export")
        return [str(path.absolute())]
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: no such file or directory")
    reports = sorted(file for file in path.iterdir() if file.name.endswith(REPORT_SUFFIXES))
    own = {report.with_suffix(".sqlite").name for report in reports}
    exports = sorted(file for file in path.iterdir() if file.name.endswith(EXPORT_SUFFIXES) and file.name not in own)
    files = [str(file.absolute()) for file in (*reports, *exports)][:most]
    if not files:
        raise argparse.ArgumentTypeError(f"{text}: expected .nsys-rep reports or .sqlite exports in it, found none")
    return files


def export_report(path: str, folder: str) -> str:
    """The SQLite export of a report: beside it, as ``nsys stats`` writes it, else in ``folder``.

    An export that is newer than its report is taken as it is, and so is ``path`` where it is one.
    """
    report = Path(path)
    if not report.name.endswith(REPORT_SUFFIXES):
        return path
    target = report.with_suffix(".sqlite")
    if target.exists() and target.stat().st_mtime >= report.stat().st_mtime:
        return str(target)
    if not os.access(target.parent, os.W_OK):
        target = Path(folder) / "exports" / report.parent.name / target.name
        target.parent.mkdir(parents=True, exist_ok=True)
    command = [find_nsys(), "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}", path]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        last = (done.stdout.strip().splitlines() or ["no message"])[-1]
        sys.exit(f"three-walls: error: {report.name}: nsys export failed: {last}")
    return str(target)


def find_nsys() -> str:
    """The nsys that runs this recipe."""
    try:
        return str(nsys_path.find_installed_file("nsys"))
    except Exception:  # its own error, of a class that has moved between releases
        return shutil.which("nsys") or "nsys"


def make_command(exports: list[str], out_dir: str, argument: Any) -> tuple[list[str], dict[str, str]]:
    """The command that analyzes, and its environment: that of the user, without what nsys added for itself."""
    notes = read_notes()
    python = os.environ.get("THREE_WALLS_PYTHON") or notes.get(PYTHON) or sys.executable
    command = [python, "-m", NAME, "analyze", *exports, "--out", out_dir]
    for option in PASSED_ON:
        value = argument(option[2:].replace("-", "_"))
        values = value if isinstance(value, list) else [] if value is None else [value]
        command += [word for value in values for word in (option, value)]
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)  # nsys's packages
    if notes.get(ROOT):
        environment["PYTHONPATH"] = notes[ROOT]
    own = str(Path(find_nsys()).resolve().parents[1]) if os.sep in find_nsys() else ""
    libraries = environment.pop("LD_LIBRARY_PATH", "").split(os.pathsep)
    others = [library for library in libraries if library and not (own and library.startswith(own))]
    if others:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(others)
    return command, environment


def read_notes() -> dict[str, str]:
    """What ``three-walls recipe install`` noted; empty where nsys found this file in an installed three-walls."""
    folders = [Path(__file__).parent]
    if os.environ.get("NSYS_RECIPE_PATH"):
        folders.append(Path(os.environ["NSYS_RECIPE_PATH"]) / NAME)
    for folder in folders:
        file = folder / "metadata.json"
        notes = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if PYTHON in notes:
            return {key: str(value) for key, value in notes.items()}
    return {}
