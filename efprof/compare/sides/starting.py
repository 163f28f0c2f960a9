"""The user's command in the tree of a side, recorded: its words, its variables, and what it said where it fails."""

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path

from efprof.compare.sides.trees import WORKING_TREE, Tree, without_repository
from efprof.model import NotComparable, frozen_dataclass
from efprof.processes import Command, last_line, own_path, started

LOG = "output.txt"
MISSING = re.compile(r"No such file or directory: '([^']+)'|(\S+): No such file or directory")
"""How Python and shells say it."""
NO_MODULE = re.compile(r"No module named '([\w.]+)'")


class CannotTell(NotComparable):
    """A side may be all right, and was not seen to be: time was up, or it ran code of another tree."""


@frozen_dataclass
class Training:
    """The command as the user gave it, in the folder `here`; a whole run ends after `num_steps`.

    `pythons` begin it in place of its first word, by the name of the side.
    """

    command: tuple[str, ...]
    here: Path
    num_steps: int | None = None
    pythons: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def started_in(
        self, tree: Tree, home: Path, options: Sequence[str], variables: Mapping[str, str]
    ) -> Iterator[Command]:
        """The recorded command where `here` lies in the tree; its run, its log and notes of others' code go to `home`.

        Raises NotComparable where the tree lacks that folder.
        """
        folder = tree.moved(self.here)
        if not folder.is_dir():
            raise NotComparable(f"'{tree.ref}' has no folder {self.here.relative_to(tree.root)}, which you are in.")
        home.mkdir(parents=True)
        own = {"root": str(tree.root), "tree": str(tree.folder), "place": str(tree.place), "notes": str(home)}
        environment = without_repository(os.environ) | {
            "EFPROF_HOME": str(home),
            "EFPROF_TREE": json.dumps(own),
            "PWD": str(folder),
            "PATH": own_path(),
            **variables,
        }
        name = "working-tree" if tree.ref == WORKING_TREE else tree.ref
        recorder = [sys.executable, "-P", "-m", "efprof", "record", *options, "--no-diff", "--name", name, "--"]
        words = moved_words(tree, self.command, self.here)
        words[0] = self.pythons.get(tree.name, words[0])
        with started([*recorder, *words], folder=folder, environment=environment, log=home / LOG) as command:
            yield command

    def check(self, tree: Tree, home: Path) -> None:
        """Raises CannotTell where code ran that is not the side's own."""
        others = [name for note in home.glob("*.json") for name in json.loads(note.read_text())]
        if others:
            raise CannotTell(
                f"'{tree.ref}' ran {others[0]} of your own tree instead of its own: start the command so that Python "
                "finds the side's modules, by paths relative to the repository."
            )

    def said(self, tree: Tree, home: Path) -> str:
        """What it said last, where all of that is, and what to do about a file that only the user's tree has."""
        log = home / LOG
        return f"it said '{last_line(log)}'{_advice(log, tree, self.here)} ({log})"


def moved_words(tree: Tree, command: Sequence[str], here: Path) -> list[str]:
    """The command with all paths in the user's tree moved to this one; a program that it lacks stays the user's."""
    program, *words = command
    path = here / program
    if os.sep in program and path.exists() and not tree.moved(Path(os.path.normpath(path))).exists():
        program = os.path.normpath(path)
        return [program, *(_moved(tree, word) for word in words)]
    return [_moved(tree, word) for word in command]


def _moved(tree: Tree, word: str) -> str:
    """`/home/user/project/train.py`, or `--config=/home/user/project/small.yaml`."""
    option, sign, value = ("", "", word) if word.startswith(os.sep) else word.rpartition("=")
    if not value.startswith(os.sep):
        return word
    path = Path(os.path.normpath(value))
    for above in (path, *path.parents):
        if above.exists() and above.samefile(tree.root):  # by whatever name
            return f"{option}{sign}{tree.folder / path.relative_to(above)}"
    return word


def _advice(log: Path, tree: Tree, here: Path) -> str:
    """Where a file is missing that the user has: it is ignored by git."""
    for found in reversed(MISSING.findall(log.read_text(errors="replace"))):
        name = next(filter(None, found))
        path = Path(os.path.normpath(here / name))
        if path.is_relative_to(tree.folder):
            path = tree.root / path.relative_to(tree.folder)
        if path.exists() and path.is_relative_to(tree.root):
            return _link_it(tree.root / path.relative_to(tree.root).parts[0], here)
    for module in reversed(NO_MODULE.findall(log.read_text(errors="replace"))):
        name = module.replace(".", os.sep)
        for folder in (tree.root, tree.root / "src"):  # a compiled one, say, of any Python's suffix
            for found in (*folder.glob(name), *folder.glob(f"{name}.*")):
                if not tree.moved(found).exists():
                    return _link_it(found, here)
    return ""


def _link_it(path: Path, here: Path) -> str:
    return f"; your tree has it, so give '--link {os.path.relpath(path, here)}'"
