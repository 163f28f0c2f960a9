"""One file per subcommand: it parses, calls and prints; no logic. Here is what all groups of them do alike."""

import click

from efprof.model import EfprofError, nearest_to

WRONG_USAGE = EfprofError.exit_code


def print_json(result: object) -> None:
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
            raise EfprofError(f"there is no command '{ctx.command_path} {args[0]}'; {nearest_to(args[0], names)}")
        return super().resolve_command(ctx, args)
