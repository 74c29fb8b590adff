"""``three-walls recipe``: installs the recipe that ``nsys recipe three_walls`` runs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from three_walls.lib.errors import UsageError
from three_walls.lib.files import write_texts
from three_walls.lib.shell import quote_file, quote_word
from three_walls.lib.text import show_control_characters

_PACKAGE = Path(__file__).parent.parent
_FOLDER = "nsys_recipe"
_METADATA = "metadata.json"


@click.group("recipe")
def recipe_command() -> None:
    """Install nsys recipe three_walls, which gives the same report."""


@recipe_command.command("install")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path, file_okay=False))
def install_command(directory: Path | None) -> None:
    """Write the recipe into DIR, and print how to run it.

    DIR is where nsys looks for recipes: the directory in NSYS_RECIPE_PATH, or the folder recipes of nsys's own
    nsys_recipe package.  [default: ~/.local/share/three-walls/nsys-recipes]

    \b
    Example:
      three-walls recipe install
      export NSYS_RECIPE_PATH=~/.local/share/three-walls/nsys-recipes
      nsys recipe three_walls --input profiles/ --log train.log
    """
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    directory = (directory or Path(data).expanduser() / "three-walls" / "nsys-recipes").absolute()
    target = install_recipe(directory)
    click.echo(f"Wrote {show_control_characters(str(target))}")
    click.echo("Run it with Nsight Systems 2024.2 or later:")
    click.echo(f"  export NSYS_RECIPE_PATH={quote_file(str(directory))}")
    click.echo("  nsys recipe three_walls --input DIR")
    click.echo(
        "nsys runs recipes with the python3 on PATH, which needs numpy, pandas, psutil and pyarrow; "
        f"three-walls itself runs in {quote_word(sys.executable)}."
    )


def install_recipe(directory: Path) -> Path:
    """Write the recipe into ``directory``; returns its folder. An earlier one of ours is replaced.

    Raises UsageError where the folder is somebody else's or cannot be written.
    """
    target = directory / "three_walls"
    source = _PACKAGE / "capture" / _FOLDER
    metadata = json.loads((source / _METADATA).read_text(encoding="utf-8"))
    notes = metadata | {"three_walls_python": sys.executable, "three_walls_root": str(_PACKAGE.parent)}
    try:
        links = [path for path in (target, target / _FOLDER) if path.is_symlink()]
        if links:  # a folder elsewhere would be written to
            raise UsageError(f"{links[0]}: expected a folder, found a symbolic link")
        if target.exists() and not _is_own(target, metadata["module_name"]):
            raise UsageError(f"{target}: expected no such folder, found one that is not of this recipe")
        (target / _FOLDER).mkdir(parents=True, exist_ok=True)
        written = json.dumps(notes, indent=2) + "\n"
        texts = {name: (source / name).read_text(encoding="utf-8") for name in ("__init__.py", "recipe.py")}
        write_texts(texts | {_METADATA: written}, target / _FOLDER)  # the recipe reads this one, nsys the other one
        write_texts({_METADATA: written}, target)
    except OSError as error:
        raise UsageError(f"cannot write the recipe to {target}: {error.strerror or error}") from error
    return target


def _is_own(target: Path, module_name: str) -> bool:
    try:
        found = json.loads((target / _METADATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("module_name") == module_name
