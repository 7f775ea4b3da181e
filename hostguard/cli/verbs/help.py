"""hostguard help and version: what others have as options."""

from __future__ import annotations

import click

from hostguard import __version__


@click.command()
@click.argument("verbs", metavar="[COMMAND]...", nargs=-1)
def help(verbs: tuple[str, ...]) -> None:
    """Show the help of a command.

    COMMAND --help shows the same.

    \b
    Examples:
      hostguard help
      hostguard help schedule add
    """
    context = click.get_current_context().find_root()
    command = context.command
    for verb in verbs:
        inner = command.get_command(context, verb) if isinstance(command, click.Group) else None
        if inner is None:
            raise click.UsageError(f"No such command {verb!r:.100}.", context)
        command, context = inner, click.Context(inner, context, verb)
    click.echo(command.get_help(context))


@click.command()
def version() -> None:
    """Show the version.

    --version shows the same.

    \b
    Example:
      hostguard version
    """
    click.echo(f"hostguard {__version__}")
