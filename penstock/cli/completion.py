"""``penstock completion``: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from penstock.cli.options import examples

#: Set by the shell's completion function, by click's convention.
VARIABLE = "_PENSTOCK_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog=examples(
        'eval "$(penstock completion bash)"                                      in ~/.bashrc',
        'eval "$(penstock completion zsh)"                                       in ~/.zshrc',
        "penstock completion fish > ~/.config/fish/completions/penstock.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the shell script that completes commands and options of penstock."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "penstock", VARIABLE).source())
