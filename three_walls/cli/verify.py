"""``three-walls verify``: checks whether overrides apply and whether the run would start."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from three_walls.bridge.merged_config import MergedConfig, config_of_sections, freeze
from three_walls.bridge.real_bridge.verify_overrides import Target, Verification, WrittenOverrides, verify
from three_walls.lib import limits
from three_walls.lib.errors import InputError, UsageError
from three_walls.lib.files import read_text_file
from three_walls.lib.hydra import flatten, write_value
from three_walls.lib.shell import is_variable, quote_file
from three_walls.lib.text import escape_in_json, show_control_characters
from three_walls.lib.yaml import read_yaml
from three_walls.megatron.settings.launchers import find_program
from three_walls.megatron.settings.merge_settings import merge_sources
from three_walls.megatron.settings.option_words import read_command_line
from three_walls.megatron.settings.saved_config import infer_release
from three_walls.tables.bridge_releases import check_release, nearest_release

_RUN_CONFIG = "Megatron-Bridge's configuration as YAML (run_config.yaml)"


@click.command("verify")
@click.argument("what", nargs=-1, required=True)
@click.option("--recipe", metavar="NAME", help="Recipe function that the overrides are for.")
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), help="run_config.yaml of the run."
)
@click.option("--bridge-version", "release", metavar="X.Y.Z", help="Megatron-Bridge release to check against.")
@click.option("--python", default=sys.executable, help="Interpreter that has Megatron-Bridge.  [default: this one]")
@click.option("--gpu", "gpu_name", metavar="NAME", help="GPU of the run, as in 'NVIDIA B200'.  [default: an H100]")
@click.option("--transformer-engine", metavar="X.Y", help="Release of Transformer Engine of the run.")
@click.option("--world-size", type=int, help="Number of GPUs of the run.  [default: as torchrun's options give it]")
@click.option(
    "--models",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of <owner>/<model>/config.json to read model shapes from, instead of the model hub.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; docs/verify.md states its fields.")
def verify_command(what: tuple[str, ...], as_json: bool, **target: Any) -> None:
    """Check that overrides apply and that the run they make is valid.

    WHAT is an overrides.txt, or any file with Hydra overrides or with the command that starts the run; a
    run_config.yaml, which is checked as it is; another YAML file of settings, with --config or --recipe; or, after --,
    the command itself. Names, types, values and constraints are checked without Megatron-Bridge. Where it can be
    imported, its own code applies and validates them too.

    \b
    Examples:
      three-walls verify overrides.txt --config run_config.yaml
      three-walls verify run_config.yaml --gpu 'NVIDIA GB200' --world-size 64
      three-walls verify -- torchrun --nproc-per-node 8 run_recipe.py --recipe NAME train.micro_batch_size=2

    \b
    Exit codes, also with --json:
      0  no override fails (a WARNING states where too little of the run is known to compare much)
      1  an override fails            2  usage                        3  an input cannot be read
    """
    verification = verify_given(what, Target(config=None, **target))
    if as_json:
        click.echo(escape_in_json(json.dumps(verification.document, indent=2, ensure_ascii=False)))
    else:
        for line in verification.lines:
            click.echo(show_control_characters(line))
    sys.exit(0 if verification.is_valid else 1)


def verify_given(what: Sequence[str], target: Target) -> Verification:
    """Checks ``what``, the words of the command line, for ``target``, of which no file was read yet."""
    check_release(target.release)
    _check_engine(target.transformer_engine)
    written, config = _read_what(what, target.recipe, target.config_file)
    saved, saved_by = read_run_config(config) if config is not None else (None, None)
    complete = replace(
        target,
        recipe=target.recipe or (None if config is not None else written.recipe),
        config_file=config,
        config=saved,
        release=target.release or saved_by,
        world_size=target.world_size or written.world_size,
    )
    return verify(written, complete)


def _read_what(what: Sequence[str], recipe: str | None, config: Path | None) -> tuple[WrittenOverrides, Path | None]:
    """The overrides, and the run's configuration, which may be what is checked."""
    path = Path(what[0]) if len(what) == 1 and "=" not in what[0] else None
    is_yaml = path is not None and path.suffix in (".yaml", ".yml")
    if is_yaml and config is None and recipe is None:
        return WrittenOverrides(()), path
    if path is None:
        written = read_command(what)
    else:
        written = WrittenOverrides(tuple(_read_sections(path))) if is_yaml else read_overrides(path)
    _limit(written.overrides, what[0])
    are_both = recipe is not None and config is not None
    if are_both or (recipe is None and config is None and not written.is_command):
        command = f"three-walls verify {quote_file(what[0])} --config run_config.yaml"
        raise UsageError(
            f"verify: expected either --config or --recipe, found {'both' if are_both else 'neither'}: type {command} "
            "with the run's own file (Megatron-Bridge saves it in each checkpoint; logger.save_config_filepath=FILE "
            "writes it at the start), or --recipe NAME for an unchanged recipe"
        )
    return written, config


def _check_engine(version: str | None) -> None:
    if version is not None and not re.fullmatch(r"\d{1,3}\.\d{1,3}(\.\w+)*", version):
        raise UsageError(f"--transformer-engine: expected a release like 2.14, found {version!r}")


def read_overrides(path: Path) -> WrittenOverrides:
    """Read the overrides in ``path``, without Megatron-LM flags and comments; or the command that it holds.

    Raises InputError for JSON, where a quote is not closed, for a line that is too long and for too many overrides.
    """
    expected = "overrides, one per line (overrides.txt)"
    text = read_text_file(path, expected)
    if text.lstrip().startswith("{"):
        raise InputError(f"{path}: expected {expected}, found JSON: a report has its overrides in the file next to it")
    overrides: list[str] = []
    environment: dict[str, str] = {}
    command = WrittenOverrides(())
    for number, line in _logical_lines(text):
        if len(line) > limits.LONGEST_OVERRIDES_LINE:
            most = f"{limits.LONGEST_OVERRIDES_LINE:,}"
            raise InputError(f"{path}:{number}: expected a line of at most {most} characters, found {len(line):,}")
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise InputError(f"{path}:{number}: expected words quoted for a shell, found {error}") from error
        if words[:1] == ["export"]:
            environment |= _read_variables(words[1:], f"{path}:{number}")
        elif "=" not in (find_program(words).script or "="):
            command = read_command(words)
            overrides += command.overrides
        elif words and not words[0].startswith("--"):
            overrides += words
    _limit(overrides, str(path))
    return replace(command, overrides=tuple(overrides), environment=environment | dict(command.environment))


def _limit(overrides: Sequence[str], place: str) -> None:
    if len(overrides) > limits.MOST_OVERRIDES:
        raise InputError(f"{place}: expected at most {limits.MOST_OVERRIDES:,} overrides, found {len(overrides):,}")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Every line with its number; a backslash at the end joins it with the next one."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first if begun else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            begun += f"{line[:-1]} "
            continue
        yield first, begun + line
        begun = ""
    if begun:
        yield first, begun


def read_command(words: Sequence[str]) -> WrittenOverrides:
    """Read the command that starts a run: its variables, launchers, options and overrides."""
    script = find_program(words)
    before = words[: len(words) - len(script.arguments)]
    variables = {name: value for name, has_value, value in (word.partition("=") for word in before) if has_value}
    arguments = script.arguments
    overrides = [word for word in arguments if not word.startswith("-") and ("=" in word or word.startswith("~"))]
    source = read_command_line([word for word in words if word not in overrides])
    return WrittenOverrides(
        tuple(overrides),
        {name: value for name, value in variables.items() if is_variable(name)},
        is_command=True,
        recipe=source.recipe,
        settings=merge_sources([source]),
        world_size=_count_processes(before),
    )


def _count_processes(words: Sequence[str]) -> int | None:
    """The processes that torchrun's options start on all nodes."""
    text = " ".join(words)
    each = re.search(r"--nproc[-_]per[-_]node[ =](\d{1,6})\b", text)
    nodes = re.search(r"--nnodes[ =](\d{1,6})\b(?!:)", text)
    return int(each[1]) * (int(nodes[1]) if nodes else 1) if each else None


def _read_sections(path: Path) -> Iterator[str]:
    """The settings of a YAML file as overrides."""
    sections = _read_mapping(path, "settings of Megatron-Bridge by section, as YAML")
    for section, fields in sections.items():
        yield from (f"{key}={write_value(freeze(value))}" for key, value in flatten(str(section), fields))


def _read_mapping(path: Path, expected: str) -> dict[str, Any]:
    try:
        sections = read_yaml(read_text_file(path, expected))
    except ValueError as error:
        raise InputError(f"{path}: expected {expected}, found {error}") from error
    if not isinstance(sections, dict):
        raise InputError(f"{path}: expected {expected}, found none")
    return sections


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
    sections = _read_mapping(path, _RUN_CONFIG)
    if not isinstance(sections.get("model"), dict):
        raise InputError(f"{path}: expected a run_config.yaml with a section model, found none")
    fields = {f"{section}.{name}" for section, part in sections.items() if isinstance(part, dict) for name in part}
    release, _ = infer_release({*sections, *fields})
    return config_of_sections(sections), nearest_release(release) if release is not None else None
