"""The store of recorded runs: where it lies, what is in it, and which run a name means."""

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from efprof.artifacts.run_file import RUN_FILE, RunFile, read_run_file
from efprof.model import UnreadableInput

HOME_VARIABLE = "EFPROF_HOME"
HOME_FOLDER = ".efprof"

LATEST = "latest"

MIN_COMMIT_LETTERS = 4
"""The shortest abbreviation of a commit that git itself accepts."""


def runs_folder() -> Path:
    """Where runs are kept: under EFPROF_HOME, else under the nearest `.efprof` from the current folder upwards."""
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home) / "runs"
    here = Path.cwd()
    homes = (folder / HOME_FOLDER for folder in (here, *here.parents))
    return next((home for home in homes if home.is_dir()), here / HOME_FOLDER) / "runs"


def list_runs() -> list[tuple[Path, RunFile]]:
    """Every readable run, the newest first."""
    runs = [(path, run) for path, run in _read_all() if isinstance(run, RunFile)]
    return sorted(runs, key=lambda entry: _when(*entry), reverse=True)


def find_run(name: str | None) -> Path:
    """The run folder that `name` means; where it fits several runs, the newest of them.

    A name is a path, a run's id or the beginning of just one, the name of a run, a git branch, or a commit;
    None and `latest` mean the newest run. Raises UnreadableInput where there is none, or where it cannot be read.
    """
    if name is None or name == LATEST:
        found = sorted(_read_all(), key=lambda entry: _when(*entry), reverse=True)
        if not found:
            raise UnreadableInput(f"{runs_folder()} holds no runs; record one with 'efprof record -- COMMAND'.")
        path, run = found[0]
        if isinstance(run, UnreadableInput):  # it is refused by name, for an older run is not the latest
            raise run
        return path
    for folder in (Path(name), runs_folder() / name):
        if (folder / RUN_FILE).is_file():
            read_run_file(folder)
            return folder
    runs = list_runs()
    matches = _matches(name, runs)
    if matches:
        return matches[0]
    for folder in (Path(name), runs_folder() / name):
        if name and folder.exists():
            read_run_file(folder)  # it is no run folder, and this says what it is instead
    raise UnreadableInput(_why_not_found(name, runs))


def _read_all() -> Iterator[tuple[Path, RunFile | UnreadableInput]]:
    """Every folder of the store with its run file, or why that cannot be read."""
    folder = runs_folder()
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if path.is_dir():
            try:
                yield path, read_run_file(path)
            except UnreadableInput as error:
                yield path, error


def _when(path: Path, run: RunFile | UnreadableInput) -> tuple[str, str]:
    """The digits of the start in UTC, and the folder's name to settle ties; a folder's name begins with them too."""
    started = run.started if isinstance(run, RunFile) else path.name.partition("-")[0]
    return re.sub(r"\D", "", started.partition("+")[0]), path.name


def _matches(name: str, runs: list[tuple[Path, RunFile]]) -> list[Path]:
    """The runs of the first kind of name that fits any: id, name, branch, commit; the newest first."""
    if not name:
        return []
    by_id = [path for path, run in runs if run.run_id.startswith(name)]
    by_name = [path for path, run in runs if run.name == name]
    by_branch = [path for path, run in runs if run.git and run.git.branch == name]
    by_commit = [path for path, run in runs if _is_at_commit(run, name.lower())]
    return (by_id if len(by_id) == 1 else []) or by_name or by_branch or by_commit


def _is_at_commit(run: RunFile, name: str) -> bool:
    commit = run.git.commit if run.git else None
    return commit is not None and len(name) >= MIN_COMMIT_LETTERS and commit.startswith(name)


def _why_not_found(name: str, runs: list[tuple[Path, RunFile]]) -> str:
    if not runs:
        return f"there is no run '{name}': {runs_folder()} holds none; record one with 'efprof record -- COMMAND'."
    fitting = [run.run_id for _, run in runs if run.run_id.startswith(name)]
    if name and fitting:
        return f"'{name}' fits {len(fitting)} runs, {fitting[0]} the newest; write more of the id."
    known = [word for _, run in runs for word in (run.run_id, run.name, run.git and run.git.branch) if word]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean '{near[0]}'?" if near else f"the newest is {runs[0][1].run_id}."
    return f"there is no run, branch or commit '{name}' in {runs_folder()}; {hint}"
