"""``three-walls verify``: checks whether overrides apply and whether the run would start."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from three_walls.bridge.merged_config import MergedConfig, config_of_sections
from three_walls.bridge.real_bridge.verify_overrides import Target, WrittenOverrides, verify
from three_walls.lib import limits
from three_walls.lib.errors import InputError, UsageError
from three_walls.lib.files import read_text_file
from three_walls.lib.shell import is_variable, quote_file
from three_walls.lib.text import show_control_characters
from three_walls.lib.yaml import read_yaml
from three_walls.megatron.settings.saved_config import infer_release
from three_walls.tables.bridge_releases import check_release, nearest_release

_RUN_CONFIG = "Megatron-Bridge's configuration as YAML (run_config.yaml)"


@click.command("verify")
@click.argument("overrides", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--recipe", metavar="NAME", help="Recipe function that the overrides are for.")
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="run_config.yaml of the run.")
@click.option("--bridge-version", metavar="X.Y.Z", help="Megatron-Bridge release to check against.")
@click.option("--python", default=sys.executable, help="Interpreter that has Megatron-Bridge.  [default: this one]")
@click.option("--gpu", "gpu_name", metavar="NAME", help="GPU of the run, as in 'NVIDIA B200'.  [default: an H100]")
@click.option("--world-size", type=int, help="Number of GPUs of the run.")
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of <owner>/<model>/config.json to read model shapes from, instead of the model hub.",
)
def verify_command(
    overrides: Path,
    recipe: str | None,
    config: Path | None,
    bridge_version: str | None,
    python: str,
    gpu_name: str | None,
    world_size: int | None,
    models: Path | None,
) -> None:
    """Check that OVERRIDES apply and that the run they make is valid.

    OVERRIDES is an overrides.txt, or any file with one Hydra override per line. Names, types, values and constraints
    are checked without Megatron-Bridge. Where it can be imported, its own code applies and validates them too.

    \b
    Exit codes:
      0  no override fails (a WARNING states where too little of the run is known to compare much)
      1  an override fails            2  usage                        3  an input cannot be read
    """
    check_release(bridge_version)
    if (recipe is None) == (config is None):
        found = "both" if recipe is not None else "neither"
        command = f"three-walls verify {quote_file(str(overrides))} --config run_config.yaml"
        raise UsageError(
            f"verify: expected either --config or --recipe, found {found}: type {command} with the run's own file "
            "(Megatron-Bridge saves it in each checkpoint; logger.save_config_filepath=FILE writes it at the start), "
            "or --recipe NAME for an unchanged recipe"
        )
    written = read_overrides(overrides)
    saved, saved_by = read_run_config(config) if config is not None else (None, None)
    release = bridge_version or saved_by
    target = Target(recipe, config, saved, release, python, gpu_name, world_size, models)
    lines, is_valid = verify(written, target)
    for line in lines:
        click.echo(show_control_characters(line))
    sys.exit(0 if is_valid else 1)


def read_overrides(path: Path) -> WrittenOverrides:
    """Read the overrides in ``path``, without Megatron-LM flags and comments.

    Raises InputError where a quote is not closed, for a line that is too long and for too many overrides.
    """
    text = read_text_file(path, "overrides, one per line (overrides.txt)")
    overrides: list[str] = []
    environment: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > limits.LONGEST_OVERRIDES_LINE:
            most = f"{limits.LONGEST_OVERRIDES_LINE:,}"
            raise InputError(f"{path}:{number}: expected a line of at most {most} characters, found {len(line):,}")
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise InputError(f"{path}:{number}: expected words quoted for a shell, found {error}") from error
        if words[:1] == ["export"]:
            environment |= _read_variables(words[1:], f"{path}:{number}")
        elif words and not words[0].startswith("--"):
            overrides += words
    if len(overrides) > limits.MOST_OVERRIDES:
        raise InputError(f"{path}: expected at most {limits.MOST_OVERRIDES:,} overrides, found {len(overrides):,}")
    return WrittenOverrides(tuple(overrides), environment)


def _read_variables(words: Sequence[str], place: str) -> dict[str, str]:
    variables = {name: value for name, _, value in (word.partition("=") for word in words)}
    wrong = [name for name in variables if not is_variable(name)]
    if wrong:
        raise InputError(
            f"{place}: expected export NAME=value, with letters, digits and _ in the name, found {wrong[0]}"
        )
    return variables


def read_run_config(path: Path) -> tuple[MergedConfig, str | None]:
    """Read a ``run_config.yaml``: its configuration, and the release that wrote it where its keys show that.

    Raises InputError where the file is no such configuration.
    """
    try:
        sections = read_yaml(read_text_file(path, _RUN_CONFIG))
    except ValueError as error:
        raise InputError(f"{path}: expected {_RUN_CONFIG}, found {error}") from error
    if not isinstance(sections, dict) or not isinstance(sections.get("model"), dict):
        raise InputError(f"{path}: expected a run_config.yaml with a section model, found none")
    fields = {f"{section}.{name}" for section, part in sections.items() if isinstance(part, dict) for name in part}
    release, _ = infer_release({*sections, *fields})
    return config_of_sections(sections), nearest_release(release) if release is not None else None
