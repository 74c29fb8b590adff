"""``three-walls completion``: the script with which a shell completes commands and files."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

PROGRAM = "three-walls"
_VARIABLE = "_THREE_WALLS_COMPLETE"
"""With this variable set, click answers the shell instead of running a command."""


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
    made = completion(context.find_root().command, {}, PROGRAM, _VARIABLE)
    click.echo(made.source_template % made.source_vars())  # source() starts a bash to learn its version
