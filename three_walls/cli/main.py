"""The command line: the group of commands, and the boundary where every error becomes one line and an exit code."""

from __future__ import annotations

import importlib
import io
import os
import sys
from contextlib import suppress
from typing import Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from three_walls.cli.signals import Terminated, finish_loading
from three_walls.lib.errors import InputError, RuleBaseError, ThreeWallsError, UsageError
from three_walls.lib.text import show_control_characters
from three_walls.lib.version import VERSION

SUMMARIES = {
    "analyze": "Find the wall in TRACES and plan the edits.",
    "attach": "Run COMMAND, the program of one rank, and profile it on some ranks.",
    "capture": "Print the commands that capture a run well, with reasons; nothing is run.",
    "compare": "Compare AFTER with BEFORE: the step, the settings, the buckets, the wall.",
    "completion": "Print the script with which SHELL completes commands and files.",
    "doctor": "Show what a capture can support, and how to record what is missing.",
    "export": "Write a step of TRACES for Perfetto or chrome://tracing.",
    "facts": "List every fact that a report may hold and a rule may compare.",
    "mcp": "Serve agents that may read the directories DIR, over the Model Context Protocol.",
    "plan": "Propose the next edit from the runs made so far.",
    "recipe": "Install nsys recipe three_walls, which gives the same report.",
    "render": "Make any format again from REPORT, a report.json or its directory.",
    "rules": "List, show, check and test the rules; write a new one.",
    "scrub": "Write a copy of the export IN that can be shared, to OUT.",
    "tune": "Try edits on a job, and keep those that are measured to be faster.",
    "verify": "Check that overrides apply and that the run they make is valid.",
    "whatif": "Predict the step of TRACES after changes, all taken together.",
}
"""Command -> the first sentence of its help. A command is the function ``<name>_command`` in the module of its name,
or in that of :data:`_MODULES`, imported when it is used: the imports that reading traces needs take a second."""
_MODULES = {"completion": "main", "facts": "rules", "plan": "compare"}
"""Commands in the module of another one."""

INTERNAL = 70
"""Exit code of an error in this program."""

TASKS = {
    "Record a run": ("capture", "attach", "doctor", "scrub"),
    "Analyze it": ("analyze", "render", "export", "recipe"),
    "Try edits": ("whatif", "verify", "tune", "compare", "plan"),
    "Look up and extend": ("rules", "facts", "mcp", "completion"),
}
"""Groups of commands in ``--help``. A command without a group is listed behind them."""


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in SUMMARIES:
            return None
        module = importlib.import_module(f"three_walls.cli.{_MODULES.get(cmd_name, cmd_name)}")
        finish_loading()
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The commands by task with a line each, written here so that ``--help`` imports none of them."""
        grouped = {name for names in TASKS.values() for name in names}
        others = tuple(name for name in SUMMARIES if name not in grouped)
        for task, names in (*TASKS.items(), ("Other commands", others)):
            lines = [(name, SUMMARIES[name]) for name in names if name in SUMMARIES]
            if lines:
                with formatter.section(task):
                    formatter.write_dl(lines, col_spacing=2)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """As click does it, without importing the commands."""
        commands = [
            CompletionItem(name, help=summary) for name, summary in SUMMARIES.items() if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="three-walls")
def cli() -> None:
    """Name the wall that holds a Megatron MoE training run back, and the config edits to try.

    Reads exports of Nsight Systems, works offline, and never changes a trace.
    """


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(context: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands and files.

    \b
    Install it once:
      bash  three-walls completion bash > ~/.local/share/bash-completion/completions/three-walls
      zsh   three-walls completion zsh > "${fpath[1]}/_three-walls"
      fish  three-walls completion fish > ~/.config/fish/completions/three-walls.fish
    In this shell only:
      eval "$(three-walls completion bash)"
    """
    completion = get_completion_class(shell)
    assert completion is not None  # click knows all three
    made = completion(context.find_root().command, {}, "three-walls", "_THREE_WALLS_COMPLETE")
    click.echo(made.source_template % made.source_vars())  # source() starts a bash to learn its version


class _Output(io.FileIO):
    """Standard output. Once its reader has read enough, as ``| head`` does, the rest goes nowhere.

    So a command ends as it would have, with the exit code of its work.
    """

    def write(self, data: Any, /) -> int:
        """Write ``data``, or drop it where nobody reads any more."""
        try:
            return super().write(data)
        except BrokenPipeError:
            _discard_output()
            return len(data)


def main() -> None:
    """Run the command line. Every error becomes one line on stderr and an exit code of its own."""
    if type(sys.stdout) is io.TextIOWrapper:  # not where the shell closed it, nor what stands in for it in a test
        raw = io.BufferedWriter(_Output(sys.stdout.fileno(), "w", closefd=False))
        errors = "backslashreplace" if sys.stdout.errors == "strict" else sys.stdout.errors  # of ± in ASCII
        sys.stdout = io.TextIOWrapper(raw, sys.stdout.encoding, errors, line_buffering=raw.raw.isatty())
    try:
        cli(standalone_mode=False)
        if sys.stdout is not None:  # it is where the shell closed it
            sys.stdout.flush()  # a full disk shows here, not in a traceback at exit
    except click.exceptions.Abort:
        _fail("interrupted", 130)
    except click.ClickException as error:
        if error.format_message().startswith("Usage:"):
            error.show()  # no command given: click's message is the help text
            sys.exit(error.exit_code)
        context = getattr(error, "ctx", None)
        hint = f" (see: {context.command_path} --help)" if context else ""
        _fail(error.format_message() + hint, UsageError.exit_code)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except Terminated as stop:
        _fail(stop.reason, stop.exit_code)
    except SystemExit:
        raise
    except BaseException as error:  # polars raises its panics as such
        message, exit_code = explain(error)
        if exit_code == INTERNAL and os.environ.get("THREE_WALLS_DEBUG"):
            raise
        _fail(message, exit_code)


def explain(error: BaseException) -> tuple[str, int]:
    """What a user is told of ``error``, and the exit code of the command that it ends."""
    if isinstance(error, ThreeWallsError):
        return str(error), error.exit_code
    if isinstance(error, OSError):
        where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else "output"
        return f"{where}: cannot be read or written ({error.strerror or error})", InputError.exit_code
    if isinstance(error, MemoryError):
        return "the inputs take more memory than there is; give fewer of them, or more memory", InputError.exit_code
    if isinstance(error, RecursionError):
        return "an input is nested too deeply to be read", InputError.exit_code
    text = str(error).splitlines()[0] if str(error) else "no message"
    hint = "THREE_WALLS_DEBUG=1 shows more"
    return f"internal error, please report it ({type(error).__name__}: {text}); {hint}", INTERNAL


def _fail(message: str, exit_code: int) -> None:
    """Print the error and exit. Errors of rules take a line each; any other message is kept on one line."""
    if exit_code != RuleBaseError.exit_code:
        message = show_control_characters(message, kept="")
    with suppress(OSError):  # stderr may be closed or full as well
        click.echo(f"three-walls: error: {message}", err=True)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _discard_output()
    sys.exit(exit_code)


def _discard_output() -> None:
    """Sends what is still buffered for stdout to nowhere, so that flushing at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
