"""What another thread is running, read in one piece.

Frames of another thread, as `sys._current_frames` gives them, may be torn down while Python code walks along them: that
ended programs by a segmentation fault. faulthandler writes them in C, and the thread cannot go on meanwhile.
"""

import faulthandler
import re
import tempfile
from typing import Final, NamedTuple

MOST_CALLS: Final = 100
"""faulthandler writes no more; of a deeper stack the outermost calls are not known."""
MOST_BYTES: Final = 1 << 20
CALL: Final = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


class Call(NamedTuple):
    file: str
    line: int
    """0 where an instruction belongs to none."""
    function: str


class Stacks:
    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="efprof-stacks-", buffering=0)  # noqa: SIM115 - open until close

    def calls_of(self, ident: int | None) -> list[Call]:
        """The calls of the thread, innermost first; empty where it runs no Python."""
        self._file.seek(0)
        self._file.truncate()
        faulthandler.dump_traceback(self._file, all_threads=True)
        self._file.seek(0)
        text = self._file.read(MOST_BYTES).decode("ascii", "replace")
        _, _, calls = text.partition(f"hread 0x{ident or 0:016x} (most recent call first):\n")
        return [_call(*found) for found in CALL.findall(calls.partition("\n\n")[0])]

    def close(self) -> None:
        self._file.close()


def _call(file: str, line: str, function: str) -> Call:
    if "\\" in file:  # what is no ASCII
        file = file.encode().decode("unicode_escape")
    return Call(file, int(line) if line.isdigit() else 0, function)
