"""The command line: one file per subcommand, found by listing the folder, and one handler for our errors."""

import difflib
import importlib
import pkgutil
import sys
import traceback

import click

import efprof
from efprof import commands
from efprof.model.errors import EfprofError


class LazyGroup(click.Group):
    """Imports a subcommand only when it is called, so that `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the files in `commands/`."""
        del ctx
        return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The click command of that name in the file of that name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"efprof.commands.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest subcommand when the one given does not exist."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            there_are = ", ".join(self.list_commands(ctx))
            hint = f" Did you mean '{near[0]}'?" if near else f" There are {there_are}."
            raise click.UsageError(f"There is no command '{args[0]}'.{hint}", ctx) from None


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(efprof.__version__, prog_name="efprof")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def group(debug: bool) -> None:
    """Find why PyTorch training runs out of memory, is slow or turns to NaN, and which line to change."""
    del debug


def main() -> None:
    """Run the command line; our own errors end as one sentence and their exit code."""
    try:
        status = group.main(standalone_mode=False)
    except EfprofError as error:
        _say(error)
        status = error.exit_code
    except click.ClickException as error:
        error.show()
        status = error.exit_code
    except click.Abort:
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


def _say(error: EfprofError) -> None:
    if "--debug" in sys.argv[1 : _end_of_our_arguments()]:
        traceback.print_exception(error)
    click.echo(f"efprof: {error}", err=True)


def _end_of_our_arguments() -> int:
    return sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
