"""The session that records this process, and the marks by which a training program names its steps and stages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from efprof.recorder.loop.user_marks import UserMarks
    from efprof.recorder.session.shell import Shell


class Recording(Protocol):
    """What a mark, or who would begin another recording, must know of the session."""

    run_folder: Path
    shell: Shell
    marks: UserMarks


session: Recording | None = None
"""None where nothing is being recorded: set when a session starts, cleared when it ends."""

MARKED_STAGES = ("data", "forward", "backward", "optimizer")
"""The stages that a program may mark: all of `efprof.model.STAGES` but `other`, which is what lies between them."""


def step() -> None:
    """Mark the end of a step; from the first mark on, only marks divide steps. Does nothing if nothing records."""
    recording = session
    if recording is not None:
        recording.shell.guarded("loop", recording.marks.step_ended)()


def stage(name: str) -> Stage:
    """`with efprof.stage("backward"):` marks what runs within it as this stage of the step.

    Raises ValueError for a name that is not one of `data`, `forward`, `backward` and `optimizer`, recorded or not.
    """
    if name not in MARKED_STAGES:
        raise ValueError(f"efprof.stage({name!r}): a stage is one of {', '.join(MARKED_STAGES)}.")
    return Stage(name)


class Stage:
    """What `stage` gives to the `with` statement."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        recording = session
        if recording is not None:
            recording.shell.guarded("loop", recording.marks.stage_began)(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        recording = session
        if recording is not None:
            recording.shell.guarded("loop", recording.marks.stage_ended)()
