"""What an export records of the launch: the command line, and the environment variables that a report may show.

Nsight Systems stores the launched process's variables as rows of META_DATA_CAPTURE, the profiler's own environment in
one value of TARGET_INFO_SYSTEM_ENV, and the whole environment block of every process that it saw in StringIds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from three_walls.lib.shell import is_variable
from three_walls.megatron.settings.run_config import ConfigValue
from three_walls.megatron.settings.setting_sources import ENVIRONMENT, SettingsBuilder
from three_walls.tables.environment_variables import allowed_variables
from three_walls.trace.nsys_export import NsysExport

_ARGUMENT = re.compile(r"(?:PROCESS_0:)?ARGUMENT_(\d{1,6})", re.ASCII)
_COMMAND = ("PROCESS_0:COMMAND", "COMMAND")
_VARIABLE = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
UNNAMED_VARIABLE = "one without a name"


def launch_words(export: NsysExport) -> list[str]:
    """The words of the command line that the profiler launched; empty if not recorded."""
    words: dict[int, str] = {}
    for name, value in export.pairs("META_DATA_CAPTURE"):
        argument = _ARGUMENT.fullmatch(name)
        if argument:
            words[int(argument.group(1))] = value
        elif name in _COMMAND:
            words[-1] = value
    return [words[order] for order in sorted(words)]


def launch_environment(export: NsysExport) -> list[str]:
    """``NAME="value"`` rows of the launched processes."""
    return [value for name, value in export.pairs("META_DATA_CAPTURE") if name.endswith("ENVIRONMENT_VARIABLE")]


def other_environments(export: NsysExport) -> list[str]:
    """``NAME=value`` rows of every other environment in the export. They are never shown, only searched for names."""
    blocks = [value for name, value in export.pairs("TARGET_INFO_SYSTEM_ENV") if name == "DeviceEnvironment"]
    rows = [row for block in blocks for row in _split_at_semicolons(block)]
    for text in environment_blocks(export).values():
        rows.extend(row for row in text.split("\0") if "=" in row)
    return rows


def environment_blocks(export: NsysExport) -> dict[int, str]:
    """Texts of StringIds that are environment blocks (NUL between the variables), by id."""
    if not export.has("StringIds", "id", "value"):
        return {}
    rows = export.rows("SELECT id, value FROM StringIds WHERE instr(value, char(0)) > 0")
    return {number: text for number, text in rows if isinstance(number, int) and isinstance(text, str)}


def read_environment(rows: Iterable[str]) -> dict[str, ConfigValue]:
    """The variables of ``rows`` (``NAME="value"`` or ``NAME=value``) that a report may show, sorted by name.

    The last row of a variable counts. A value of the wrong form is withheld.
    """
    settings = SettingsBuilder(ENVIRONMENT)
    for row in rows:
        name, separator, value = row.partition("=")
        if separator:
            settings.set_variable(name, unquote(value))
    return dict(sorted(settings.environment.items()))


def secret_names(rows: Iterable[str]) -> tuple[str, ...]:
    """Names (never values) of the variables that look like secrets and are not empty, sorted.

    A text before ``=`` that is no name may hold a value itself, so ``UNNAMED_VARIABLE`` stands for it.
    """
    pairs = (row.partition("=") for row in rows)
    names = {name for name, _, value in pairs if unquote(value)}  # each is set for many processes
    secrets = filter(allowed_variables().looks_secret, names)
    return tuple(sorted({name if is_variable(name) else UNNAMED_VARIABLE for name in secrets}))


def unquote(value: str) -> str:
    """``value`` without the quotes around it."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value


def _split_at_semicolons(block: str) -> list[str]:
    """The variables of ``A=1;B=2``. A semicolon that no ``NAME=`` follows is part of a value."""
    rows: list[str] = []
    for part in block.split(";"):
        if _VARIABLE.match(part) or not rows:
            rows.append(part)
        else:
            rows[-1] += f";{part}"
    return rows
