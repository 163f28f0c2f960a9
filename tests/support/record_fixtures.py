"""Records the runs in tests/runs/ anew: every single-fault case of the casebook, sick and healthy (`make fixtures`).

They are what the tests of the whole analysis read: real recordings, small enough for the repository.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.casebook.__main__ import EFPROF
from tests.casebook._cases import Case, find_cases

RUNS = Path(__file__).parents[1] / "runs"
WINDOWS = "5:6,40:41"
"""One step a window: half the size, and enough for all but these:"""
LONGER_WINDOWS = {"memory_growth": "5:7,40:42"}
"""What survives a step is known by the next one."""


def main() -> None:
    """Replace tests/runs/ by new recordings."""
    shutil.rmtree(RUNS, ignore_errors=True)
    for case in find_cases():
        if len(case.faults) == 1:
            for side, arguments in (("sick", []), ("healthy", ["--healthy"])):
                record(case, RUNS / f"{case.name}-{side}", arguments)
                print(f"{case.name} {side}", flush=True)


def record(case: Case, place: Path, arguments: list[str]) -> None:
    """Record one run and move its folder to `place`."""
    windows = LONGER_WINDOWS.get(case.name, WINDOWS)
    with tempfile.TemporaryDirectory() as home:
        options = ["--trace-steps", windows, "--triggers", "none", "--no-diff"]
        program = ["--", sys.executable, str(case.path.relative_to(Path.cwd())), *arguments]
        subprocess.run(
            [str(EFPROF), "record", "--name", case.name, *options, *program],
            env=os.environ | {"EFPROF_HOME": home},
            check=True,
            capture_output=True,
        )
        (folder,) = (Path(home) / "runs").iterdir()
        shutil.copytree(folder, place)


if __name__ == "__main__":
    main()
