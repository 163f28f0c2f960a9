"""Which execution a run folder holds: the model's RunIdentity from run.json."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from efprof.artifacts.events import HoldersCounted, TrainingRaised, WindowOpened, events_of
from efprof.artifacts.run_file import DIFF_FILE
from efprof.facts.run.run import Run
from efprof.facts.source.sources import line_at
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.trace_windows import TraceWindows
from efprof.model import RunError, RunIdentity, UnreadableInput
from efprof.units import format_bytes


def identify(run: Run) -> RunIdentity:
    file, times = run.run_file, run.find(StepTimes)
    traced = run.find(TraceWindows, UnreadableInput) if run.is_foreign else None
    git = file.git
    windows = traced.windows if traced else ()
    # Which of several devices a process used, its kernels tell.
    traced_devices = (str(device.get("name", "")) for one in windows for device in one.trace.header.devices[:1])
    return RunIdentity(
        run_id=file.run_id,
        path=str(run.folder),
        name=file.name,
        command=tuple(file.command),
        started=file.started,
        duration_s=file.duration_s,
        ended=file.ended,
        exit_code=file.exit_code,
        branch=git.branch if git else None,
        commit=git.commit if git else None,
        is_dirty=bool(git and git.is_dirty),
        devices=tuple(device.name for device in file.devices) or tuple(traced_devices),
        num_ranks=len(run.rank_folders),
        num_steps=len(times.every) if times else sum(len(window.numbers) for window in windows),
        environment=tuple(_environment(run)),
        configuration=tuple(sorted(file.configuration.items())),
        error=_error(run),
    )


def first_error(rank_folders: Iterable[Path]) -> TrainingRaised | None:
    """What ended the training: of several ranks the first that raised, the others follow it."""
    errors = [error for rank in rank_folders for error in events_of(rank, TrainingRaised)[-1:]]
    return min(errors, key=lambda error: error.at_ns, default=None)


def _error(run: Run) -> RunError | None:
    raised = first_error(run.rank_folders)
    if raised is None or run.run_file.ended not in ("raised", "out_of_memory"):
        return None
    part = raised.recorder_part
    if part == "apart":  # an earlier window or count may have left something behind
        looked = any(events_of(rank, kind) for rank in run.rank_folders for kind in (WindowOpened, HoldersCounted))
        part = "possible" if looked else "none"
    return RunError(
        kind=raised.error,
        message=raised.message,
        step=raised.step,
        stage=raised.stage,
        blame=line_at(run, raised.sites[-1]) if raised.sites else None,
        recorder_part=part,
    )


def _environment(run: Run) -> Iterator[tuple[str, str]]:
    """(name, value): how far the tree was from its commit, versions, devices, the machine, settings, variables."""
    file, git, host = run.run_file, run.run_file.git, run.run_file.host
    if git is not None and git.is_dirty:
        kept = f"in {DIFF_FILE}" if (run.folder / DIFF_FILE).exists() else "not kept"
        yield "uncommitted changes", f"{kept}; new files: {git.num_untracked}"
    first = [name for name in ("python", "torch", "cuda") if name in file.versions]
    for name in dict.fromkeys([*first, *sorted(file.versions)]):
        yield name, file.versions[name]
    for device in file.devices:
        yield f"device {device.index}", f"{device.name}, {format_bytes(device.total_bytes)}"
    if host:
        yield "cpu", f"{host.cpu}, {host.num_cpus} cores"
        yield "memory", format_bytes(host.total_bytes)
    if file.working_folder:
        yield "working folder", file.working_folder
    yield from sorted(file.settings.items())
    yield from sorted(file.environment.items())
