"""The option ``--nsys`` of every command that reads traces."""

from __future__ import annotations

import os
import shutil

import click

from three_walls.inputs.nsys.report_export import NSYS_VARIABLE


def _remember(_: click.Context, __: click.Parameter, path: str | None) -> None:
    if path is not None:
        # As a path, because a name alone in the variable may be a script's switch.
        os.environ[NSYS_VARIABLE] = shutil.which(path) or os.path.join(os.curdir, path)  # noqa: PTH118


nsys_option = click.option(
    "--nsys",
    metavar="PATH",
    expose_value=False,
    callback=_remember,
    help="The nsys that exports reports (.nsys-rep).  [default: $NSYS, else the one on PATH]",
)
