"""`efprof record [options] -- COMMAND`: run a training command and record it."""

from pathlib import Path
from typing import Any

import click

from efprof.model import EfprofError


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--name", help="What to call the run; default: the script's name.")
@click.option("--windows", help="'none': no window opens at any step, whatever the next three say; default: 'default'.")
@click.option(
    "--trace-steps", help="Steps that torch.profiler is on for: 'default', 'none' or ranges like 5:7,100:102."
)
@click.option("--memory-steps", help="The same for the history of the CUDA allocator.")
@click.option(
    "--triggers",
    help="What opens a window by itself: 'none', or some of slow-step,memory-peak,non-finite,signal; default: all.",
)
@click.option(
    "--host-memory/--no-host-memory", default=None, help="Record host allocations with memray; slows training down."
)
@click.option(
    "--holders/--no-holders",
    default=None,
    help="Count who keeps tensors alive at set steps, or never; default: when memory grows.",
)
@click.option(
    "--diff/--no-diff", "keeps_diff", default=None, help="Whether to keep a diff of uncommitted changes; default: yes."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def record(command: tuple[str, ...], **flags: Any) -> int:
    """Run a training command unchanged and record it.

    COMMAND is any program that trains with PyTorch; its exit code is passed through. Write it after two dashes:
    efprof record -- python train.py --epochs 1

    The options may also stand in efprof.toml, or under [tool.efprof] in pyproject.toml: there in a section [record],
    with underscores. What is given here wins.
    """
    if not command:
        raise click.UsageError(
            "There is no command: write it after two dashes, as in 'efprof record -- python train.py'."
        )
    from efprof.artifacts.runs import runs_folder
    from efprof.artifacts.settings import merge, read_settings
    from efprof.recorder.launch import launch
    from efprof.recorder.machine import kept_configuration, refuse_missing_memray
    from efprof.recorder.options import parse_options

    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise EfprofError("The folder you are in is gone: change to one that exists.") from None
    settings = read_settings(here)
    wanted = merge(settings.record, flags)
    name = wanted.pop("name", None)
    options = parse_options(**wanted)
    refuse_missing_memray(options)
    configuration = kept_configuration(settings.configuration)
    folder, exit_code = launch(
        list(command), runs_folder=runs_folder(), name=name, wanted=options, configuration=configuration
    )
    _say_where(folder)
    return exit_code


def _say_where(folder: Path) -> None:
    if any(folder.glob("**/rank*/steps.jsonl")):
        click.echo(f"efprof: recorded {folder.name}; read it with 'efprof report'", err=True)
    else:
        click.echo(
            f"efprof: {folder.name} holds no training step: the command ended before an optimizer stepped, trained "
            "without PyTorch, or in a process that is not seen: a forked worker of a pool, Python with -I, -E or -S.",
            err=True,
        )
