"""Public training programs, bare and recorded by turns: `make programs FOLDER=...`.

They are not part of this repository: FOLDER holds checkouts of theirs, which are edited and given data (`--list` says
what). Each ends with the same output and exit code, or the table says what differs.
"""

import sys
from pathlib import Path
from typing import Final

import click

from benchmarks.machine import machine_line
from benchmarks.public_programs.judgements import JUDGEMENTS
from benchmarks.public_programs.listed import PROGRAMS, Program
from benchmarks.public_programs.preparing import NotRunnable, prepare
from benchmarks.public_programs.running import Ended, Recorded, read_recorded, run_bare, run_recorded
from benchmarks.public_programs.table import (
    ALLOWANCE_S,
    HEAD,
    MAX_RATIO,
    Measured,
    details,
    missing_package,
    row,
    summary,
)

METHOD: Final = f"""
Nobody here wrote these programs. Each runs bare and recorded with default options, by turns, with data made for it and
one thread. Equal means the same lines on both outputs, but for times, addresses, numbers of folders, and what a
progress bar drew before its last state; the recorder's own lines and one of torch's profiler are left out. CPU time is
that of all processes, start-up included; each figure is the median of the rounds. At most: {MAX_RATIO} times the bare
one and {ALLOWANCE_S:.0f} s. Steps and micro-batches of the last recording are held against a count without efprof.
*True?* was judged by hand, by reading the program, for just these findings."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
@click.option("--only", default="", help="Names of programs, with commas; default: all.")
@click.option("--rounds", default=2, show_default=True, help="Runs of each program, bare and recorded.")
@click.option("--list", "is_list", is_flag=True, help="Only say which checkouts are needed, and what is changed.")
@click.option("--write", type=click.Path(path_type=Path), help="Also write the table to this file.")
def main(folder: Path | None, only: str, rounds: int, is_list: bool, write: Path | None) -> None:
    """Print one table row per program in FOLDER; exits with 1 where one differs, costs too much or is miscounted."""
    chosen = _chosen(only)
    if is_list:
        click.echo("\n".join(listing(chosen)))
        return
    if folder is None:
        raise click.UsageError("Name the folder with the checkouts; --list says which it needs.")
    heading = ["# Public training programs", "", machine_line(), *METHOD.splitlines(), "", *HEAD]
    print("\n".join(heading), flush=True)
    ran: list[Measured] = []
    not_run: dict[str, str] = {}
    for program in chosen:
        try:
            ran.append(measure(program, folder.resolve(), rounds))
            print(row(ran[-1], JUDGEMENTS.get(program.name)), flush=True)
        except NotRunnable as error:
            not_run[program.name] = str(error)
        if write is not None:  # after each program: what ends early has said what it knows
            write.write_text("\n".join([*heading, *rows(ran), *below(ran, not_run)]) + "\n", encoding="utf-8")
    print("\n".join(below(ran, not_run)))
    sys.exit(bool(not_run) or not all(is_right(measured) for measured in ran))


def is_right(measured: Measured) -> bool:
    return measured.ends_alike and measured.is_cheap and measured.is_counted


def rows(ran: list[Measured]) -> list[str]:
    return [row(measured, JUDGEMENTS.get(measured.program.name)) for measured in ran]


def below(ran: list[Measured], not_run: dict[str, str]) -> list[str]:
    """What stands below the table: how many hold, and more on each program."""
    lines = summary(ran, not_run, JUDGEMENTS)
    for measured in ran:
        lines += details(measured, JUDGEMENTS.get(measured.program.name))
    return lines


def measure(program: Program, folder: Path, rounds: int) -> Measured:
    """Raises NotRunnable where there is no checkout, or a package is missing."""
    prepare(program, folder)
    bare: list[Ended] = []
    recorded: list[Ended] = []
    for turn in range(rounds):
        bare.append(run_bare(program, folder, turn))
        missing = missing_package(bare[-1])
        if missing is not None:
            raise NotRunnable(missing)
        recorded.append(run_recorded(program, folder, turn))
    return Measured(
        program=program, bare=tuple(bare), recorded=tuple(recorded), recording=_recording_of(program, folder)
    )


def listing(programs: list[Program]) -> list[str]:
    """Of each program: its repository, the name of the checkout, the command, and what is changed in it."""
    lines = ["| program | repository | checkout | command | edits | data |", f"|{' --- |' * 6}"]
    for program in programs:
        edits = "; ".join(f"{edit.file}: `{edit.old}` -> `{edit.new}`" for edit in program.edits)
        made = program.make_data.__name__ if program.make_data is not None else "its own"
        command = " ".join(program.command)
        folder = f"{program.checkout}/{program.directory}"
        lines.append(f"| {program.name} | {program.repository} | {folder} | {command} | {edits or '-'} | {made} |")
    return lines


def _recording_of(program: Program, folder: Path) -> Recorded | str:
    try:
        return read_recorded(program, folder)
    except FileNotFoundError as error:
        return str(error)


def _chosen(only: str) -> list[Program]:
    names = only.split(",") if only else [program.name for program in PROGRAMS]
    known = {program.name: program for program in PROGRAMS}
    for name in names:
        if name not in known:
            raise click.BadParameter(f"{name!r} is not one of {', '.join(known)}.", param_hint="--only")
    return [known[name] for name in names]


if __name__ == "__main__":
    main()
