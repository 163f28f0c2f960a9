"""The command line: one file per subcommand, found by listing the folder, and one handler for our errors."""

import importlib
import itertools
import pkgutil
import sys
import traceback

import click

import efprof
from efprof import commands
from efprof.model.errors import EfprofError, nearest_to


class LazyGroup(click.Group):
    """Imports a subcommand only when it is called, so that `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = getattr(importlib.import_module(f"efprof.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Raises EfprofError with the nearest name: click looks among commands that are imported already."""
        if args[0] not in (names := self.list_commands(ctx)) and not ctx.resilient_parsing:
            raise EfprofError(f"there is no command 'efprof {args[0]}'; {nearest_to(args[0], names)}")
        return super().resolve_command(ctx, args)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(efprof.__version__, prog_name="efprof")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def group(debug: bool) -> None:
    """Find why PyTorch training runs out of memory, is slow or turns to NaN, and which line to change."""
    del debug


def main() -> None:
    """Run the command line; errors, our own and those of usage, end as one sentence and their exit code."""
    try:
        status = group.main(prog_name="efprof", standalone_mode=False)
    except EfprofError as error:
        if "--debug" in itertools.takewhile(lambda word: word != "--", sys.argv):  # behind it they are the program's
            traceback.print_exception(error)
        click.echo(f"efprof: {error}", err=True)
        status = error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        status = error.exit_code
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        see = f" Try '{context.command_path} --help'." if context else ""
        click.echo(f"efprof: {error.format_message()}{see}", err=True)
        status = error.exit_code
    except click.Abort:
        status = 130
    sys.exit(status if isinstance(status, int) else 0)
