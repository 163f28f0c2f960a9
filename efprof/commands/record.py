"""`efprof record [options] -- COMMAND`: run a training command and record it."""

from pathlib import Path
from typing import Any

import click

from efprof.commands import COMMAND, show_status
from efprof.model import EfprofError


@click.command(context_settings={"allow_interspersed_args": False}, options_metavar="[OPTIONS] --")
@click.option("--name", metavar="NAME", help="Name of the run; default: the script's name.")
@click.option("--windows", metavar="default|none", help="'none' opens no window, whatever the next three options say.")
@click.option(
    "--trace-steps",
    metavar="STEPS",
    help="Steps to trace with torch.profiler: ranges such as 5:7,100:102 (5, 6, 100 and 101), or 'none'; "
    "default: two steps each at 4, 30, 300 and 3000.",
)
@click.option(
    "--memory-steps",
    metavar="STEPS",
    help="Steps whose CUDA allocator history is kept: ranges, or 'none'; default: 0:4,310:313.",
)
@click.option(
    "--triggers",
    metavar="NAMES",
    help="Events that open more windows: slow-step,memory-peak,non-finite,signal, or 'none'; default: all.",
)
@click.option(
    "--host-memory/--no-host-memory",
    default=None,
    help="Record host allocations with memray instead of traces; slows training down.",
)
@click.option(
    "--holders/--no-holders",
    default=None,
    help="Always or never count what keeps tensors alive; default: as far as the budget goes.",
)
@click.option(
    "--memory-ring/--no-memory-ring",
    default=None,
    help="Keep the CUDA allocator's last 10,000 events in memory, for out-of-memory errors; default: no.",
)
@click.option(
    "--overhead",
    metavar="SHARE",
    help="Share of the run time that recording may take beyond the first 3 s; default: 1%. With 100% every step is "
    "recorded in full.",
)
@click.option("--diff/--no-diff", "keeps_diff", default=None, help="Keep a diff of uncommitted changes; default: yes.")
@click.option("--hunt", "hunts", is_flag=True, help="Where it turned to NaN or Inf, run it again at once to see where.")
@click.option("--report", "reports", is_flag=True, help="Print `efprof report --brief` when the program has ended.")
@COMMAND
def record(command: tuple[str, ...], *, hunts: bool, reports: bool, **flags: Any) -> int:
    """Record a training command, which runs unchanged.

    COMMAND is any program that trains with PyTorch; its exit code is passed through. Write it after two dashes:

    \b
        efprof record -- python train.py --epochs 1
        efprof record --trace-steps 20:22 -- torchrun --nproc-per-node 2 train.py

    A window is a few steps that are recorded in detail, which slows them down.

    All options but --hunt and --report may also stand in efprof.toml under [record], or in pyproject.toml under
    [tool.efprof.record], with underscores for dashes and `diff = false` for --no-diff. What is given here wins.
    """
    if not command:
        raise EfprofError("there is no command: write it after two dashes, as in 'efprof record -- python train.py'.")
    from efprof.artifacts.runs import runs_folder
    from efprof.recorder.launch.launch import asked_for, launch

    try:
        name, options, configuration = asked_for(flags)
    except FileNotFoundError:
        raise EfprofError("The folder you are in is gone: change to one that exists.") from None
    folder, exit_code = launch(
        list(command), runs_folder=runs_folder(), name=name, wanted=options, configuration=configuration
    )
    _say_where(folder, exit_code)
    if hunts:
        _hunt(folder)
    if reports:
        click.echo(_brief(folder), nl=False)
    return exit_code


def _hunt(folder: Path) -> None:
    from efprof.commands.hunt import MAX_MINUTES, hunt_in, sentence_of

    try:
        show_status(sentence_of(folder, hunt_in(folder, max_minutes=MAX_MINUTES)))
    except EfprofError as error:
        show_status(f"{error}")


def _brief(folder: Path) -> str:
    """The report in one screen; a sentence where it cannot be made, as the program's exit code is what counts."""
    from efprof.commands.report import analyse, render_brief

    try:
        return render_brief(analyse(folder), "text")
    except EfprofError as error:
        return f"efprof: there is no report: {error}\n"


def _say_where(folder: Path, exit_code: int) -> None:
    if holds_training(folder):
        said = f"recorded {folder.name}; read it with 'efprof report'"
    elif exit_code:
        said = f"{folder.name} holds no training step: the command ended with exit code {exit_code}; "
        said += "what it printed itself says why."
    else:
        said = (
            f"{folder.name} holds no training step: no optimizer of PyTorch stepped in a process that is seen, which "
            "a pool's forked worker and Python with -I, -E or -S are not. Where there is no optimizer, call "
            "efprof.step() at the end of each step."
        )
    click.echo(f"efprof: {said}", err=True)


def holds_training(folder: Path) -> bool:
    """Steps, or the error that came before the first one; a loader or a module may serve an evaluation alone."""
    from efprof.artifacts.events import TrainingRaised, events_of
    from efprof.artifacts.runs import list_attempts

    attempts = list_attempts(folder)
    ranks = [rank for attempt in attempts for rank in attempt.rank_folders]
    return any(attempt.has_steps for attempt in attempts) or any(events_of(rank, TrainingRaised) for rank in ranks)
