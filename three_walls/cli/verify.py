"""``three-walls verify``: do the overrides apply, and would the run start?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from three_walls.overrides.real_bridge.verify import Target, verify
from three_walls.pipeline import check_release


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

    OVERRIDES is an overrides.txt, or any file with one Hydra override per line. The check of names, types, words and
    constraints needs nothing; where Megatron-Bridge can be imported, its own code applies and validates them too.

    \b
    Exit codes: 0 nothing fails, 1 something does, 2 usage, 3 an input cannot be read
    """
    check_release(bridge_version)
    target = Target(recipe, config, bridge_version, python, gpu_name, world_size, models)
    found = verify(overrides, target)
    for line in found.lines:
        click.echo(line)
    sys.exit(0 if found.is_fine else 1)
