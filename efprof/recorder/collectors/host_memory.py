"""With `--host-memory`: records every allocation of the host with memray, from the import of torch to the end.

A process that is killed leaves a file that memray reads. It needs Python's one profile hook for its lines, which a
torch.profiler with stacks takes away.
"""

import os
from pathlib import Path

from efprof.recorder.loop.open_step import OpenStep
from efprof.recorder.session.endings import ExitWatcher
from efprof.recorder.session.session import Session
from efprof.recorder.session.writing import RankFolder

HOST_FILE = "host.memray"


class HostMemory:
    """Writes beside the rank folders until the first step: which rank this is, and whether it trains, shows then."""

    def __init__(self, run_folder: Path, rank_folder: RankFolder, endings: ExitWatcher) -> None:
        import memray

        self._rank_folder, self._endings = rank_folder, endings
        self._is_moved = False
        self._waiting = run_folder / f"host-{os.getpid()}.memray"
        # memray would compress the file at its end by its first name, which it has no longer then.
        destination = memray.FileDestination(self._waiting, compress_on_exit=False)
        self._tracker = memray.Tracker(destination=destination, native_traces=False, follow_fork=False)
        self._tracker.__enter__()

    def step_began(self, _: OpenStep) -> None:
        """Move the file into the rank folder; memray goes on writing to it."""
        if not self._is_moved:
            self._is_moved = True
            self._waiting.rename(self._rank_folder.path / HOST_FILE)

    def at_end(self) -> None:
        """Stop recording; the file of a process that never trained goes, unless an error may be why it did not."""
        self._tracker.__exit__(None, None, None)
        if not self._is_moved and not self._endings.events:
            self._waiting.unlink(missing_ok=True)


def start(session: Session) -> None:
    """Begin at once: much of what the host keeps is loaded before the first step."""
    if session.options.host_memory:
        host_memory = HostMemory(session.run_folder, session.rank_folder, session.endings)
        session.attach("host_memory", host_memory)
        session.shell.when_stopped("host_memory", host_memory.at_end)
