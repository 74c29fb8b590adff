"""The option ``--nsys`` of every command that reads traces."""

from __future__ import annotations

import click

from three_walls.inputs.nsys.report_export import name_nsys


def _remember(_: click.Context, __: click.Parameter, path: str | None) -> None:
    if path is not None:
        name_nsys(path)


nsys_option = click.option(
    "--nsys",
    metavar="PATH",
    expose_value=False,
    callback=_remember,
    help="The nsys that exports reports (.nsys-rep).  [default: $NSYS, else the one on PATH]",
)
