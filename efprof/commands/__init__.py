"""One file per subcommand: it parses, calls and prints; no logic. Here is what all groups of them do alike."""

import difflib

import click

from efprof.model import EfprofError

WRONG_USAGE = EfprofError.exit_code


def print_json(result: object) -> None:
    """What was found, for a program to read."""
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())


class NamingGroup(click.Group):
    """Names the nearest subcommand where the one given does not exist, and shows its help where none is given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help as an answer to wrong usage: on standard error."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(WRONG_USAGE)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises EfprofError with the nearest name, or all where none is near."""
        names = self.list_commands(ctx)
        if args[0] not in names and not ctx.resilient_parsing:
            near = difflib.get_close_matches(args[0], names, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(names)}."
            raise EfprofError(f"there is no command '{ctx.command_path} {args[0]}'; {hint}")
        return super().resolve_command(ctx, args)
