"""The store of recorded runs, which run a name means, and its rank folders."""

import os
import re
from pathlib import Path

import msgspec

from efprof.artifacts.files import NOT_JSON
from efprof.artifacts.run_file import RUN_FILE, RunFile, read_run_file
from efprof.artifacts.steps import STEPS_FILE
from efprof.model import UnreadableInput, frozen_dataclass, nearest_to

HOME_VARIABLE = "EFPROF_HOME"
HOME_FOLDER = ".efprof"

LATEST = "latest"

MIN_COMMIT_LETTERS = 4
"""The shortest abbreviation of a commit that git itself accepts."""

PROCESS_FILE = "process.json"


def runs_folder() -> Path:
    """Where runs are kept: under EFPROF_HOME, else under the nearest `.efprof` from the current folder upwards."""
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return Path(home) / "runs"
    here = Path.cwd()
    homes = (folder / HOME_FOLDER for folder in (here, *here.parents))
    return next((home for home in homes if home.is_dir()), here / HOME_FOLDER) / "runs"


def hide_from_git(store: Path) -> None:
    """Recordings would otherwise make every repository dirty."""
    store.mkdir(parents=True, exist_ok=True)
    ignore = store / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")


def list_runs() -> list[tuple[Path, RunFile]]:
    """Every readable run, the newest first."""
    return [(path, run) for path, run in _newest_first() if isinstance(run, RunFile)]


def find_run(name: str | None) -> Path:
    """The run folder that `name` means; where it fits several runs, the newest of them.

    A name is a path, a run's id or the beginning of just one, the name of a run, a git branch, or a commit;
    None and `latest` mean the newest run. Raises UnreadableInput where there is none, or where it cannot be read.
    """
    if name is None or name == LATEST:
        found = _newest_first()
        if not found:
            raise UnreadableInput(f"{runs_folder()} holds no runs; record one with 'efprof record -- COMMAND'.")
        path, run = found[0]
        if isinstance(run, UnreadableInput):  # it is refused by name, for an older run is not the latest
            raise run
        return path
    places = Path(name), runs_folder() / name
    for folder in places:
        if (folder / RUN_FILE).is_file():
            read_run_file(folder)
            return folder
    runs = list_runs()
    matches = _matches(name, runs)
    if matches:
        return matches[0]
    for folder in places:
        if name and folder.exists():
            read_run_file(folder)  # it is no run folder, and this says what it is instead
    raise UnreadableInput(_why_not_found(name, runs))


class Process(msgspec.Struct, kw_only=True, frozen=True):
    """The process that writes a rank folder; `group` names the launch it belongs to, where a launcher names one."""

    pid: int
    group: str = ""


@frozen_dataclass
class Attempt:
    """One execution of the training within a run; its rank folders by their numbers."""

    number: int
    rank_folders: tuple[Path, ...]

    @property
    def has_steps(self) -> bool:
        paths = [folder / STEPS_FILE for folder in self.rank_folders]
        return any(path.exists() and path.stat().st_size for path in paths)


def attempt_folder(run_folder: Path, number: int) -> Path:
    """Where the ranks of attempt `number`, counted from 0, are written."""
    return run_folder / f"attempt{number}" if number else run_folder


def list_attempts(run_folder: Path) -> list[Attempt]:
    """Every attempt that left a rank folder, in order."""
    numbers = [0, *sorted(filter(None, (_number_after("attempt", path) for path in run_folder.glob("attempt*"))))]
    attempts = [
        Attempt(number=number, rank_folders=_rank_folders(attempt_folder(run_folder, number))) for number in numbers
    ]
    return [attempt for attempt in attempts if attempt.rank_folders]


def last_trained(attempts: list[Attempt]) -> Attempt | None:
    """The attempt that holds the run's data: the last one that finished a step, else the last one."""
    trained = [attempt for attempt in attempts if attempt.has_steps]
    return next(reversed(trained or attempts), None)


def read_process(rank_folder: Path) -> Process | None:
    """Who writes, or wrote, this rank folder; None where that is not known."""
    try:
        return msgspec.json.decode((rank_folder / PROCESS_FILE).read_bytes(), type=Process)
    except (OSError, *NOT_JSON):
        return None


def _newest_first() -> list[tuple[Path, RunFile | UnreadableInput]]:
    """Every folder of the store with its run file, or why that cannot be read."""
    found: list[tuple[Path, RunFile | UnreadableInput]] = []
    for path in filter(Path.is_dir, runs_folder().glob("*")):
        try:
            found.append((path, read_run_file(path)))
        except UnreadableInput as error:
            found.append((path, error))
    return sorted(found, key=lambda entry: _when(*entry), reverse=True)


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
    commits = [(path, (run.git and run.git.commit) or "") for path, run in runs if len(name) >= MIN_COMMIT_LETTERS]
    by_commit = [path for path, commit in commits if commit.startswith(name.lower())]
    return (by_id if len(by_id) == 1 else []) or by_name or by_branch or by_commit


def _why_not_found(name: str, runs: list[tuple[Path, RunFile]]) -> str:
    if not runs:
        return f"there is no run '{name}': {runs_folder()} holds none; record one with 'efprof record -- COMMAND'."
    fitting = [run.run_id for _, run in runs if run.run_id.startswith(name)]
    if name and fitting:
        return f"'{name}' fits {len(fitting)} runs, {fitting[0]} the newest; write more of the id."
    known = [word for _, run in runs for word in (run.run_id, run.name, run.git and run.git.branch) if word]
    hint = nearest_to(name, known, f"the newest is {runs[0][1].run_id}.")
    return f"there is no run, branch or commit '{name}' in {runs_folder()}; {hint}"


def _rank_folders(folder: Path) -> tuple[Path, ...]:
    numbered = [(_number_after("rank", path), path) for path in folder.glob("rank*")]
    return tuple(path for number, path in sorted((number, path) for number, path in numbered if number is not None))


def _number_after(word: str, path: Path) -> int | None:
    digits = path.name.removeprefix(word)
    return int(digits) if digits.isdecimal() else None
