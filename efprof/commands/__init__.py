"""One file per subcommand: it parses, calls and prints; no logic. Here is what several of them do alike."""

import datetime
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from efprof.compare.sides.trees import Tree

COMMAND = click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")


def print_json(result: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(result)).decode())


@contextmanager
def trees_of(refs: Sequence[str], here: Path, links: Sequence[Path]) -> "Iterator[tuple[list[Tree], Path]]":
    """A source tree for each, and a new folder for their runs; SIGTERM ends all of it as Ctrl-C does."""
    from efprof.artifacts.runs import hide_from_git, runs_folder
    from efprof.compare.sides.trees import source_trees

    store = runs_folder().parent.absolute()
    hide_from_git(store)
    home = store / "compare" / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%fZ}"
    own = [Path(os.path.normpath(Path.cwd() / link)) for link in links]
    with ending_in_order(), source_trees(refs, work=store / "work", here=here, links=own) as trees:
        yield trees, home


def show_status(what: str) -> None:
    """Beside the output, which may be for programs."""
    click.echo(f"efprof: {what}", err=True)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """SIGTERM ends what goes on here as Ctrl-C does."""
    import signal

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
