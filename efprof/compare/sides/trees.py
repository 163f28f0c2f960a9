"""A source tree for each side of a comparison: a detached worktree of git, or the working tree as it is."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

from efprof.model import EfprofError, frozen_dataclass
from efprof.units import MIB, format_bytes

WORKING_TREE = "."
"""How the tree is called as it is, with what is not committed."""
MAX_UNTRACKED_BYTES = 100 * MIB
"""Of files that git does not track: more is data, which a link serves better than a copy."""
PREFIX = "efprof-compare-"
LOCK = "efprof.lock"
"""Held by the comparison that made a folder, with the repository in it: where it is free, its maker is dead."""
OF_A_REPOSITORY = frozenset({
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT",
})  # fmt: skip
"""What git sets for its hooks, and takes for more than the folder that it is started in."""
IS_SUBMODULE = "160000"
"""The mode that git gives one in a tree."""


@frozen_dataclass
class Tree:
    """What a side runs: `folder` has what `root`, the user's repository, has at `commit`; `ref` was asked for.

    All trees of a comparison lie in `place`.
    """

    ref: str
    commit: str
    root: Path
    place: Path
    folder: Path

    @property
    def name(self) -> str:
        """Of the side: `base`, `head`."""
        return self.folder.relative_to(self.place).parts[0]

    def moved(self, path: Path) -> Path:
        """Where a path of the user's tree lies in this one; any other path as it is."""
        return self.folder / path.relative_to(self.root) if path.is_relative_to(self.root) else path

    @contextmanager
    def fresh(self) -> Iterator["Tree"]:
        """A copy for one run, so that none finds another's checkpoints; with the links beside it."""
        clean = self.folder.parent
        copy = clean.with_name("run")
        try:
            with _said_as_a_sentence(copy):
                shutil.copytree(clean, copy, symlinks=True)
            yield replace(self, folder=copy / self.folder.name)
        finally:
            shutil.rmtree(copy, ignore_errors=True)


@contextmanager
def source_trees(refs: Sequence[str], *, work: Path, here: Path, links: Sequence[Path]) -> Iterator[list[Tree]]:
    """A tree for each ref below the folder `work`, gone afterwards; of the repository that `here` lies in.

    Raises EfprofError where one cannot be had. What a comparison left behind that was killed is removed first.
    """
    root = Path(_git(here, "rev-parse", "--show-toplevel", why=f"{here} lies in no repository of git").strip())
    work.mkdir(parents=True, exist_ok=True)
    _remove_orphans(work)
    place = Path(tempfile.mkdtemp(dir=work, prefix=PREFIX)).resolve()
    try:
        with (place / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(str(root))
            lock.flush()
            with _said_as_a_sentence(work):
                trees = [_tree(ref, name, root, place, links) for ref, name in zip(refs, _names(), strict=False)]
            yield trees
    finally:
        _remove(place, root)


def _names() -> Iterator[str]:
    """`base`, `head`, `head-2` and so on."""
    yield from ("base", "head")
    yield from (f"head-{number}" for number in count(2))


@contextmanager
def _said_as_a_sentence(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EfprofError(f"the trees of the sides cannot be made below {folder}: {error.strerror or error}.") from None


def _tree(ref: str, side: str, root: Path, place: Path, links: Sequence[Path]) -> Tree:
    folder = place / side / "clean" / root.name
    name = "HEAD" if ref == WORKING_TREE else ref
    unknown = f"'{ref}' is no branch, tag or commit of {root}; `git branch --all` lists them"
    commit = _git(root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}", why=unknown).strip()
    _git(root, "worktree", "add", "--detach", str(folder), commit, why=f"no tree of '{ref}' could be made")
    tree = Tree(ref=ref, commit=commit, root=root, place=place, folder=folder)
    if ref == WORKING_TREE:
        _copy_changes(tree)
    for submodule, needed in _submodules(tree):
        _link_submodule(tree, submodule, needed)
    for link in links:
        _link(tree, link)
    return tree


def _copy_changes(tree: Tree) -> None:
    """What is not committed, byte for byte, in files that git tracks and in others that it does not ignore."""
    prefixes = ("--src-prefix=a/", "--dst-prefix=b/", "--no-ext-diff", "--no-textconv", "--ignore-submodules")
    diff = _run(tree.root, "diff", "--binary", "--no-color", *prefixes, "HEAD")
    if diff:
        _run(tree.folder, "apply", "--whitespace=nowarn", given=diff)
    for entry in _run(tree.root, "ls-files", "-v", "-z").split(b"\0"):
        tag, file = entry[:1], Path(os.fsdecode(entry[2:]))
        if (tag.islower() or tag == b"S") and (tree.root / file).is_file():  # git does not look whether these changed
            shutil.copy2(tree.root / file, tree.folder / file, follow_symlinks=False)
    names = _run(tree.root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0")
    files = [Path(os.fsdecode(name)) for name in names if name and not name.endswith(b"/")]
    sizes = {file: (tree.root / file).lstat().st_size for file in files}
    if sum(sizes.values()) > MAX_UNTRACKED_BYTES:
        largest = max(files, key=sizes.__getitem__)
        raise EfprofError(
            f"{largest} ({format_bytes(sizes[largest])}) is too large to copy: commit it, or have git ignore it and "
            f"give '--link {largest}'."
        )
    for file in files:
        (tree.folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree.root / file, tree.folder / file, follow_symlinks=False)


def _submodules(tree: Tree) -> Iterator[tuple[Path, str]]:
    """Where each lies, and the commit that the tree wants of it."""
    for entry in _run(tree.folder, "ls-files", "--stage", "-z").split(b"\0"):
        mode, _, rest = os.fsdecode(entry).partition(" ")
        if mode == IS_SUBMODULE:
            yield Path(rest.partition("\t")[2]), rest.partition(" ")[0]


def _link_submodule(tree: Tree, submodule: Path, needed: str) -> None:
    """The user's own copy serves where it is at that commit: another would have to be fetched."""
    there = tree.root / submodule
    if not (there / ".git").exists():
        return  # the user does without it as well
    if _run(there, "rev-parse", "HEAD").decode().strip() != needed:
        raise EfprofError(
            f"'{tree.ref}' wants the submodule {submodule} at {needed[:8]}, and here it is at another commit: "
            "commit or check out the same on both sides."
        )
    if tree.ref != WORKING_TREE and _run(there, "status", "--porcelain"):
        raise EfprofError(f"the submodule {submodule} has changes that are not committed, which '{tree.ref}' lacks.")
    (tree.folder / submodule).rmdir()
    (tree.folder / submodule).symlink_to(there)


def _link(tree: Tree, link: Path) -> None:
    """A file or folder of the user's at the same place as seen from the tree; raises EfprofError."""
    if not link.exists():
        raise EfprofError(f"--link {link}: there is no such file or folder.")
    place = Path(os.path.normpath(tree.folder / os.path.relpath(link, tree.root)))
    if not place.is_relative_to(tree.folder.parent):
        raise EfprofError(f"--link {link}: it lies too far from {tree.root}; name it by its whole path in the command.")
    if not place.parent.resolve().is_relative_to(tree.folder.parent):
        raise EfprofError(f"--link {link}: in '{tree.ref}' a link leads out of the tree there.")
    if os.path.lexists(place) and place.is_relative_to(tree.folder):
        raise EfprofError(f"--link {link}: '{tree.ref}' has it already, and each side runs its own.")
    if not os.path.lexists(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(link)


def _remove_orphans(work: Path) -> None:
    """The trees of comparisons that are no more, each with what its own repository has noted of them."""
    for place in work.glob(f"{PREFIX}*"):
        with suppress(OSError, EfprofError), (place / LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            root = lock.read()
            if root and not place.is_symlink():  # without it, its maker has not gone on yet
                _remove(place.resolve(), Path(root))


def _remove(place: Path, root: Path) -> None:
    """The trees in it, and what git has noted of them, finished or not: `git worktree remove` asks for whole ones."""
    noted = root / os.fsdecode(_run(root, "rev-parse", "--git-common-dir")).strip() / "worktrees"
    for note in noted.glob("*/gitdir"):
        with suppress(OSError):
            tree = os.path.normpath(note.parent / note.read_text().strip())
            if Path(tree).is_relative_to(place):
                shutil.rmtree(note.parent)
    with suppress(OSError):  # others are in it
        noted.rmdir()
    for side in place.glob("*/"):  # before the lock
        shutil.rmtree(side, ignore_errors=True)
    shutil.rmtree(place, ignore_errors=True)


def without_repository(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what leads git to another repository than that of its folder, as within a hook."""
    return {name: value for name, value in environment.items() if name not in OF_A_REPOSITORY}


def _git(folder: Path, *words: str, why: str) -> str:
    """What it prints; raises EfprofError that begins with `why` where it fails."""
    try:
        return os.fsdecode(_run(folder, *words))
    except EfprofError as error:
        raise EfprofError(f"{why} ({str(error).rstrip('.')}).") from None


def _run(folder: Path, *words: str, given: bytes | None = None) -> bytes:
    """git without the user's hooks, and without a lock on what is the user's."""
    command = ["git", "--no-optional-locks", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *words]
    try:
        environment = without_repository(os.environ)
        done = subprocess.run(command, input=given, env=environment, capture_output=True, check=False)
    except OSError as error:
        raise EfprofError(f"git cannot be started: {error.strerror}.") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise EfprofError(f"git {words[0]}: {said[-1] if said else 'it failed'}.")
    return done.stdout
