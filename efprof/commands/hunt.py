"""`efprof hunt RUN`: run the command again, traced around the bad step, and say where the NaN or Inf was born."""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from efprof.commands import ending_in_order, print_json, show_status
from efprof.model import HIDDEN, EfprofError

if TYPE_CHECKING:
    from efprof.artifacts.hunts import Hunt

NOT_FOUND = 3
MAX_MINUTES = 30.0


@click.command(context_settings={"allow_interspersed_args": True}, options_metavar="[OPTIONS]")
@click.argument("run", default="latest")
@click.option("--in-place", is_flag=True, help="Let it write to the working folder, as the recorded run did.")
@click.option("--anyway", is_flag=True, help="Also where the source code is not as it was recorded.")
@click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), default=MAX_MINUTES, show_default=True)
@click.option("--json", "is_json", is_flag=True, help="For programs.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def hunt(run: str, *, in_place: bool, anyway: bool, max_minutes: float, is_json: bool, command: tuple[str, ...]) -> int:
    """Find where the NaN or Inf of a recorded run was born.

    \b
        efprof hunt latest
        efprof hunt latest -- python train.py --resume last.pt   # hours later: from a checkpoint of yours

    The command runs again with the random numbers that the recorded run began with, and from two steps before the bad
    one every operation is traced. What it writes below its folder is thrown away. The report of the run then has the
    line, and what it was given.

    Exit code: 0 the origin was seen, 3 the run went otherwise this time, or nothing that was traced made it.
    """
    from efprof.artifacts.runs import find_run

    folder = find_run(run)
    with ending_in_order():
        found = hunt_in(folder, command, in_place=in_place, anyway=anyway, max_minutes=max_minutes)
    if is_json:
        print_json(found)
    else:
        click.echo(sentence_of(folder, found))
    return 0 if found.verdict == "born" else NOT_FOUND


def hunt_in(
    folder: Path, command: tuple[str, ...] = (), *, in_place: bool = False, anyway: bool = False, max_minutes: float
) -> "Hunt":
    """What `efprof hunt` does, also for `efprof record --hunt`; the result is kept in the run folder."""
    from efprof.artifacts.hunts import keep_hunt, read_hunt
    from efprof.facts.run.run import open_run
    from efprof.hunt import Hit, Setting, changed_sources, hunt, seconds_needed
    from efprof.recorder.launch.launch import find_program
    from efprof.recorder.session.redaction import without_secrets

    run = open_run(folder)
    if run.is_foreign:
        raise EfprofError(f"{folder} holds no command that could run again: hunt in a run of 'efprof record'.")
    hit = Hit.find(run)
    here = Path(run.run_file.working_folder)
    if not here.is_dir():
        raise EfprofError(f"{here}, where the run was recorded, is gone: record one here.")
    if not command and any(HIDDEN in word for word in run.run_file.command):
        raise EfprofError(
            f"the command of {folder.name} holds a secret that was not recorded: give it after two dashes, as in "
            "'efprof hunt latest -- python train.py'."
        )
    changed = [] if anyway else changed_sources(run, without_secrets)
    if changed:
        raise EfprofError(f"{changed[0]} is not as it was recorded: take it back, or hunt with --anyway.")
    needed = seconds_needed(hit) * (not command)
    if math.isnan(max_minutes):
        raise EfprofError("--max-minutes: nan is no number of minutes.")
    if needed > 60 * max_minutes:
        raise EfprofError(
            f"step {hit.step:,} came {hit.seconds:,.0f} s after the start: give --max-minutes "
            f"{math.ceil(needed / 60)}, or after two dashes a command that resumes from a checkpoint before it."
        )
    words = command or tuple(run.run_file.command)
    kept = "" if in_place else f"; what it writes below {here} is thrown away"
    show_status(f"running it again up to step {hit.step:,}, {max(hit.seconds, 1):.0f} s after its start{kept}")
    setting = Setting(
        command=(find_program(words[0]), *words[1:]),
        folder=here,
        environment=_environment(),
        end=time.monotonic() + 60 * max_minutes,
        is_in_place=in_place,
        is_resumed=bool(command),
    )
    found, before = hunt(run, hit, setting), read_hunt(folder)
    if found.origin is not None or before is None or before.origin is None:  # what was seen once stays seen
        keep_hunt(folder, found)
    return found


def sentence_of(folder: Path, found: "Hunt") -> str:
    from efprof.facts.numbers.hunted import hunted_sentence
    from efprof.facts.run.run import open_run

    return hunted_sentence(open_run(folder), found)


def _environment() -> dict[str, str]:
    from efprof.processes import own_path
    from efprof.recorder.launch.launch import hooked_environment

    hidden = {"EFPROF_RECORD", "EFPROF_TREE"}
    return {name: value for name, value in hooked_environment().items() if name not in hidden} | {"PATH": own_path()}
