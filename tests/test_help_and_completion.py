"""Help by task on one screen, completion for three shells, and neither imports what analysis needs."""

from __future__ import annotations

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from tests.paths import REPOSITORY
from three_walls.cli.main import SUMMARIES, TASKS, cli


def in_a_process(*arguments: str, **variables: str) -> str:
    """What the command prints, then the names of the heavy packages that it imported."""
    program = (
        "import atexit, sys\n"
        "heavy = ('polars', 'pydantic', 'rich', 'jinja2', 'numpy', 'plotly')\n"
        "atexit.register(lambda: print('imported:', [name for name in heavy if name in sys.modules]))\n"
        f"sys.argv = ['three-walls', *{arguments!r}]\n"
        "from three_walls.__main__ import main\n"
        "main()"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "100"} | variables
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def test_the_version_and_the_help_import_nothing_heavy() -> None:
    assert in_a_process("--version").endswith("imported: []\n")
    lines = in_a_process("--help").splitlines()
    assert lines[-1] == "imported: []"
    assert len(lines) <= 40


def test_a_shell_is_offered_the_commands_without_importing_them() -> None:
    asked = {"_THREE_WALLS_COMPLETE": "bash_complete", "COMP_WORDS": "three-walls ren", "COMP_CWORD": "1"}
    assert in_a_process(**asked) == "plain,render\nimported: []\n"


def test_a_shell_is_offered_the_formats() -> None:
    asked = {"_THREE_WALLS_COMPLETE": "zsh_complete", "COMP_WORDS": "three-walls render --format h", "COMP_CWORD": "3"}
    assert in_a_process(**asked).splitlines()[:2] == ["plain", "html"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_asks_the_command(shell: str) -> None:
    done = CliRunner().invoke(cli, ["completion", shell])
    assert done.exit_code == 0
    assert f"_THREE_WALLS_COMPLETE={shell}_complete" in done.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


def test_another_shell_is_refused() -> None:
    assert CliRunner().invoke(cli, ["completion", "tcsh"]).exit_code == 2


def test_every_command_is_in_one_group_and_its_line_begins_its_help() -> None:
    named = [name for names in TASKS.values() for name in names]
    assert len(named) == len(set(named))
    assert set(SUMMARIES) <= set(named)
    for name, summary in SUMMARIES.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        assert (command.help or "").startswith((summary, summary.removesuffix("."))), name
