"""The rank folders of a run, and in which attempt of the training each was written.

A run's first attempt lies in the run folder itself, `rank<N>/`; each further one in `attempt<k>/rank<N>/`.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from efprof.artifacts.steps import STEPS_FILE

PROCESS_FILE = "process.json"


class Process(msgspec.Struct, kw_only=True, frozen=True):
    """The process that writes a rank folder; `group` names the launch it belongs to, where a launcher names one."""

    pid: int
    group: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One execution of the training within a run; its rank folders by their numbers."""

    number: int
    rank_folders: tuple[Path, ...]

    @property
    def has_steps(self) -> bool:
        """Whether any of its ranks finished a step."""
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
    except (OSError, msgspec.DecodeError):
        return None


def _rank_folders(folder: Path) -> tuple[Path, ...]:
    numbered = [(_number_after("rank", path), path) for path in folder.glob("rank*")]
    return tuple(path for number, path in sorted((number, path) for number, path in numbered if number is not None))


def _number_after(word: str, path: Path) -> int | None:
    digits = path.name.removeprefix(word)
    return int(digits) if digits.isdecimal() else None
