"""`efprof record [options] -- COMMAND`: run a training command and record it."""

from typing import TYPE_CHECKING

import click

from efprof.model import EfprofError

if TYPE_CHECKING:
    from pathlib import Path


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--name", help="What to call the run; default: the script's name.")
@click.option(
    "--windows",
    default="default",
    show_default=True,
    help="Steps that torch.profiler is on for: 'default', 'none', or half-open ranges such as 5:7,100:102.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def record(name: str | None, windows: str, command: tuple[str, ...]) -> int:
    """Run a training command unchanged and record it.

    COMMAND is any program that trains with PyTorch; its exit code is passed through. Write it after two dashes:
    efprof record -- python train.py --epochs 1
    """
    if not command:
        raise click.UsageError(
            "There is no command: write it after two dashes, as in 'efprof record -- python train.py'."
        )
    from efprof.artifacts.runs import runs_folder
    from efprof.recorder.launch import launch

    folder, exit_code = launch(list(command), runs_folder=runs_folder(), name=name, windows=_parse_windows(windows))
    _say_where(folder)
    return exit_code


def _parse_windows(text: str) -> tuple[tuple[int, int], ...]:
    from efprof.recorder.options import DEFAULT_WINDOWS

    if text == "default":
        return DEFAULT_WINDOWS
    if text == "none":
        return ()
    try:
        ranges = [tuple(int(end) for end in part.split(":")) for part in text.split(",")]
        return tuple((start, end) for start, end in ranges if _is_range(start, end))
    except ValueError:
        raise EfprofError(
            f"--windows {text!r} is not 'default', 'none' or ranges of steps such as 5:7,100:102."
        ) from None


def _is_range(start: int, end: int) -> bool:
    if not 0 <= start < end:
        raise ValueError
    return True


def _say_where(folder: "Path") -> None:
    if any(folder.glob("rank*/steps.jsonl")):
        click.echo(f"efprof: recorded {folder.name}; read it with 'efprof report'", err=True)
    else:
        click.echo(
            f"efprof: {folder.name} holds no training step: the command ended before an optimizer stepped, "
            "or trained without PyTorch.",
            err=True,
        )
