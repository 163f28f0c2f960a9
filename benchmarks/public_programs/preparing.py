"""The checkout of a program made ready: its edits applied, its data written, or the reason why it cannot run."""

from pathlib import Path

from benchmarks.public_programs.listed import Edit, Program

MADE_BY = "made-for-efprof"
"""A file in a program's folder: what it holds was made of, and is not made again."""


class NotRunnable(Exception):
    """A program that cannot run here, and why."""


def directory_of(program: Program, folder: Path) -> Path:
    """Where the program runs. Raises NotRunnable where there is no checkout."""
    directory = folder / program.checkout / program.directory
    script = next(word for word in program.command if word.endswith(".py"))
    if not (directory / script).is_file():
        missing = directory / script
        raise NotRunnable(f"{missing} is missing: check out {program.repository} as {folder / program.checkout}.")
    return directory


def prepare(program: Program, folder: Path) -> None:
    """Edit the checkout and make its data, once. Raises NotRunnable where an edit finds no place."""
    directory = directory_of(program, folder)
    mark = directory / f"{MADE_BY}-{program.name}"
    if mark.exists():
        return
    for edit in program.edits:
        _apply(edit, directory)
    if program.make_data is not None:
        program.make_data(directory)
    mark.touch()


def _apply(edit: Edit, directory: Path) -> None:
    file = directory / edit.file
    text = file.read_text(encoding="utf-8")
    if edit.new in text:
        return
    if edit.old not in text:
        raise NotRunnable(f"{file} no longer has {edit.old!r}, which is to become {edit.new!r}.")
    file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
