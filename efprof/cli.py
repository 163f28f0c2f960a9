"""The command line: one file per subcommand, found by listing the folder, and one handler for our errors."""

import importlib
import itertools
import pkgutil
import sys
import traceback

import click

import efprof
from efprof import commands
from efprof.model.errors import EfprofError


class LazyGroup(commands.NamingGroup):
    """Imports a subcommand only when it is called, so that `--help` stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(module.name for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"efprof.commands.{cmd_name}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        return command


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
    except click.ClickException as error:
        click.echo(f"efprof: {_sentence(error)}", err=True)
        status = error.exit_code
    except click.Abort:
        status = 130
    sys.exit(status if isinstance(status, int) else 0)


def _sentence(error: click.ClickException) -> str:
    """What click refuses, by the name of the option or argument, and what to write instead."""
    match error:
        case click.NoSuchOption(option_name=name, possibilities=[nearest, *_]):
            return f"there is no option '{name}'; did you mean '{nearest}'?"
        case click.NoSuchOption(option_name=name, ctx=click.Context(command_path=path)):
            return f"there is no option '{name}'; '{path} --help' lists those that there are."
        case click.MissingParameter(param=click.Parameter() as parameter, ctx=click.Context() as context):
            return f"{_name_of(parameter)} is missing; write '{_usage(context)}'."
        case click.BadParameter(param=click.Parameter() as parameter):
            return f"{_name_of(parameter)} {error.message}"
        case click.UsageError(ctx=click.Context() as context):
            return f"{_as_part(error.format_message())}; write '{_usage(context)}'."
        case _:
            return f"{_as_part(error.format_message())}."


def _name_of(parameter: click.Parameter) -> str:
    return parameter.opts[0] if isinstance(parameter, click.Option) else parameter.human_readable_name


def _usage(context: click.Context) -> str:
    return " ".join([context.command_path, *context.command.collect_usage_pieces(context)])


def _as_part(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].rstrip(".")
