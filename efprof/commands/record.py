"""`efprof record [options] -- COMMAND`: run a training command and record it."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--name", help="What to call the run; default: the script's name.")
@click.option(
    "--windows", default="default", show_default=True, help="'none' turns off whatever slows some steps down."
)
@click.option(
    "--trace-steps",
    default="default",
    help="Steps that torch.profiler is on for: 'none' or ranges like 5:7,100:102.",
)
@click.option("--memory-steps", default="default", help="The same for the history of the CUDA allocator.")
@click.option(
    "--triggers",
    default="default",
    help="What opens a window by itself: 'none', or some of slow-step,memory-peak,non-finite,signal; default: all.",
)
@click.option("--host-memory", is_flag=True, help="Record host allocations with memray; slows training down.")
@click.option("--holders", is_flag=True, help="Count who keeps tensors alive, whether or not memory grows.")
@click.option("--no-diff", is_flag=True, help="Keep no diff of uncommitted changes.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def record(command: tuple[str, ...], name: str | None, no_diff: bool, **wanted: Any) -> int:
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
    from efprof.recorder.options import parse_options

    options = parse_options(**wanted, keeps_diff=not no_diff)
    folder, exit_code = launch(list(command), runs_folder=runs_folder(), name=name, wanted=options)
    _say_where(folder)
    return exit_code


def _say_where(folder: "Path") -> None:
    if any(folder.glob("rank*/steps.jsonl")):
        click.echo(f"efprof: recorded {folder.name}; read it with 'efprof report'", err=True)
    else:
        click.echo(
            f"efprof: {folder.name} holds no training step: the command ended before an optimizer stepped, "
            "or trained without PyTorch.",
            err=True,
        )
