"""Records the training in a `with` statement or under a framework's callback, into a run folder as the command does."""

from __future__ import annotations

import atexit
import hashlib
import itertools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import msgspec

from efprof.artifacts.events import RecordingEnded, events_of
from efprof.artifacts.files import locked
from efprof.artifacts.run_file import RunFile
from efprof.artifacts.runs import runs_folder
from efprof.model import EfprofError
from efprof.recorder.launch.launch import asked_for, close_run, describe_run, make_run_folder, options_in
from efprof.recorder.launch.start import start_session
from efprof.recorder.loop.user_marks import UserMarks
from efprof.recorder.session import current
from efprof.recorder.session.endings import ExitWatcher, exit_code_of, origin_of
from efprof.recorder.session.options import parse_options, read_options
from efprof.recorder.session.writing import RankFolder


class RecordOptions(TypedDict, total=False):
    """The options of `efprof record`, in the same words; what is left out is as efprof.toml says, or the default."""

    windows: str
    trace_steps: str
    memory_steps: str
    triggers: str
    host_memory: bool
    holders: bool
    memory_ring: bool
    overhead: str
    keeps_diff: bool


@contextmanager
def record(name: str | None = None, **wanted: Unpack[RecordOptions]) -> Iterator[Recording]:
    """Record the training in this `with` statement, or in the function under this decorator.

    Inside a process that `efprof record` records already, that recording goes on and this one does nothing.
    Raises EfprofError for a wrong option, a run folder that cannot be made, and a recording inside another.
    """
    recording = begin_recording(name, **wanted)
    with ExitStack() as ending:
        ending.push(lambda _, error, __: recording.end(error))
        yield recording


def begin_recording(name: str | None = None, **wanted: Unpack[RecordOptions]) -> Recording:
    """Record this process until the result is ended, or the program ends; raises as `record` does."""
    unknown = sorted(wanted.keys() - RecordOptions.__annotations__.keys())
    if unknown:
        raise EfprofError(
            f"efprof.record knows no {unknown[0]!r}; it takes {', '.join(RecordOptions.__annotations__)}."
        )
    name, options, configuration = asked_for({**wanted, "name": name})
    running = read_options()
    if running is not None:
        return Recording(running.run_folder, None, is_ours=False)
    if current.session is not None:
        raise EfprofError(
            f"this process is being recorded already, into {current.session.run_folder}; "
            "let that recording end before the next one begins."
        )
    run = describe_run(sys.orig_argv, name, configuration)
    folder = _join_or_make(runs_folder(), run)
    session = start_session(options_in(folder, run, options))
    if session is None:
        return Recording(folder, None)
    recording = Recording(folder, Recorder(session.end, session.endings, session.rank_folder))
    session.undo_at_end(recording.close_if_killed)
    return recording


class Recorder(NamedTuple):
    """What records in this process: how it is ended, what it saw of the program's end, and where it writes."""

    end: Callable[[], None]
    endings: ExitWatcher
    rank_folder: RankFolder


class Recording:
    """A recording of this process; `folder` is where it is written.

    One that is not ours stands for the one that `efprof record` began, and ending it does nothing.
    """

    def __init__(self, folder: Path, recorder: Recorder | None, *, is_ours: bool = True) -> None:
        self.folder = folder
        self._recorder = recorder
        self._start = time.monotonic()
        self._process = os.getpid() if is_ours else None
        """Which process ends it; a child that was forked meanwhile does not."""
        if is_ours:
            atexit.register(self._end_with_program)

    def end(self, error: BaseException | None = None) -> None:
        """Take the recorder out of the process and note how the training ended; safe to call twice."""
        if self._process != os.getpid():
            return
        self._process = None
        atexit.unregister(self._end_with_program)
        if isinstance(error, GeneratorExit):
            error = None
        if self._recorder is not None:
            with _last_error(error):
                self._recorder.end()
        code = exit_code_of(error.code) if isinstance(error, SystemExit) else int(error is not None)
        close_run(self.folder, code, time.monotonic() - self._start)

    def _end_with_program(self) -> None:
        last = getattr(sys, "last_value", None)
        status = None if self._recorder is None else self._recorder.endings.exit_status
        self.end(last if isinstance(last, BaseException) else SystemExit(status))

    def close_if_killed(self) -> None:
        """The session ends: where a signal made it, the program will not come back to say so."""
        if self._process is None or self._recorder is None:
            return
        for event in events_of(self._recorder.rank_folder.path, RecordingEnded):
            if event.signal is not None:
                close_run(self.folder, -signal.Signals[event.signal], time.monotonic() - self._start)


@contextmanager
def _last_error(error: BaseException | None) -> Iterator[None]:
    """Let the session find this error where Python keeps the one that ends a program, and no older one."""
    before = sys.__dict__.pop("last_value", None)
    origin = None if error is None else origin_of(error)
    if origin is not None:
        sys.last_value = origin
    try:
        yield
    finally:
        sys.__dict__.pop("last_value", None)
        if before is not None:
            sys.last_value = before


_ordinals = itertools.count()
"""Numbers the recordings of this process: the n-th of one rank belongs with the n-th of the others."""


def _join_or_make(runs: Path, run: RunFile) -> Path:
    """The folder of this run under `runs`: the one that a rank beside this process has made, or a new one."""
    ordinal, launch = next(_ordinals), _launch_of_ranks()
    if launch is None:
        return make_run_folder(runs, run)
    unique = hashlib.sha256(f"{launch} {ordinal}".encode()).hexdigest()[:12]
    with locked(runs):
        for folder in runs.glob(f"*-{unique}"):
            return folder
        stem = run.run_id.rpartition("-")[0]
        return make_run_folder(runs, msgspec.structs.replace(run, run_id=f"{stem}-{unique}"))


def _launch_of_ranks() -> str | None:
    environment = os.environ
    if environment.get("WORLD_SIZE", "1") in ("", "1"):
        return None
    # torchrun starts every rank; Lightning starts the others from rank 0, which alone has no RANK and no LOCAL_RANK.
    is_child = "RANK" in environment or environment.get("LOCAL_RANK", "0") != "0"
    leader = os.getppid() if is_child else os.getpid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        started = Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[_START_TIME]
    except OSError:
        return None
    return f"{boot} {leader} {started}"


_START_TIME = 19
"""Where proc(5) puts the ticks from the machine's start to the process's, counted after the command's name."""


class TrainingMarks:
    """One training at a time; every method does nothing where nothing is recorded."""

    def __init__(self, name: str | None = None, **wanted: Unpack[RecordOptions]) -> None:
        parse_options(**wanted)  # a wrong option is told here, not hours later
        self._name = name
        self._wanted = wanted
        self._recording: Recording | None = None
        self._session: current.Recording | None = None

    def begin(self) -> None:
        """Record from here on, unless a recording goes on already."""
        if current.session is None:
            self._recording = begin_recording(self._name, **self._wanted)
        self._session = current.session
        self.mark(UserMarks.training_began)

    def end(self, error: BaseException | None = None) -> None:
        """Training is over, by this error or in good order; safe to call twice."""
        recording, self._recording = self._recording, None
        self.mark(UserMarks.training_ended)
        self._session = None
        if recording is not None:
            recording.end(error)

    def mark(self, mark: Callable[[UserMarks], None]) -> None:
        if self._session is not None:
            self._session.shell.guarded("loop", mark)(self._session.marks)
