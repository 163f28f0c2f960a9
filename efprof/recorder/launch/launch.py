"""Starts the user's command as a child that records itself, waits for it, and notes how it ended."""

import datetime
import errno
import hashlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from efprof.artifacts.events import OutOfMemory, RecordingEnded, TrainingRaised, TrainingStopped, events_of
from efprof.artifacts.run_file import SCHEMA_VERSION, Ending, RunFile, change_run_file, read_run_file, write_run_file
from efprof.artifacts.runs import hide_from_git, last_trained, list_attempts, read_process
from efprof.artifacts.settings import merge, read_settings
from efprof.artifacts.steps import STEPS_FILE, read_steps
from efprof.model import ENDED_WELL, EfprofError
from efprof.recorder.launch.machine import describe_host, keep_diff, kept_configuration, kept_environment, read_git
from efprof.recorder.launch.signal_forwarding import ENDING_SIGNALS, RecordedProgram, passing_signals
from efprof.recorder.session.options import VARIABLE, Options, encode_options, parse_options
from efprof.recorder.session.redaction import without_secret_words

STARTUP_FOLDER = Path(__file__).parent / "startup"

HASH_SEED = "PYTHONHASHSEED"

CANNOT_START = 126
"""What a shell gives for a program that is there and cannot be executed."""


def launch(
    command: list[str],
    *,
    runs_folder: Path,
    name: str | None,
    wanted: Options,
    configuration: dict[str, str],
) -> tuple[Path, int]:
    """Run `command` to its end; returns the run folder and the command's own exit code.

    Raises EfprofError before anything is started where the program or the folder cannot be had.
    """
    path = find_program(command[0])
    run = describe_run(command, name, configuration)
    folder = make_run_folder(runs_folder, run)
    environment = child_environment(options_in(folder, run, wanted))
    start = time.monotonic()
    program = RecordedProgram(run_folder=folder)
    code = _run_child([path, *command[1:]], environment, program)
    close_run(folder, code, time.monotonic() - start, program)
    with suppress(EfprofError):  # the folder is gone, of which there has been word
        run, trained = read_run_file(folder), last_trained(list_attempts(folder))
        if run.ended not in ENDED_WELL and trained is not None:
            counts = [len(read_steps(rank)[0]) for rank in trained.rank_folders if (rank / STEPS_FILE).exists()]
            how = f"{run.ended.replace('_', ' ')}, exit code {run.exit_code}"
            print(f"efprof: the training ended after {max(counts, default=0)} steps ({how})", file=sys.stderr)
    return folder, as_shell(code)


def close_run(
    folder: Path,
    code: int,
    seconds: float,
    program: RecordedProgram | None = None,
) -> None:
    """Note how it ended; what the child added to run.json meanwhile is kept.

    `program` is None of a recording in code: what a rank beside this one has written of its error stands.
    """

    def closed(run: RunFile) -> RunFile:
        if program is None and not code and any(events_of(rank, TrainingRaised) for rank in _last_ranks(folder)):
            return run
        ended, exit_code = how_it_ended(folder, code, program), as_shell(code)
        return msgspec.structs.replace(run, ended=ended, exit_code=exit_code, duration_s=round(seconds, 3))

    try:
        change_run_file(folder, closed)
    except (OSError, EfprofError) as error:  # the exit code is the command's, whatever became of our folder
        print(f"efprof: how the run ended could not be written to {folder}: {error}", file=sys.stderr)


def find_program(program: str) -> str:
    """Its path: on PATH, or beside the efprof that was called from an environment that is not activated."""
    ours = Path(sys.argv[0]).parent
    is_environment = "VIRTUAL_ENV" not in os.environ and (ours / "python").exists()
    path = os.environ.get("PATH", os.defpath)
    found = shutil.which(program, path=os.pathsep.join([str(ours), path] if is_environment else [path, str(ours)]))
    if found is None:
        why = "may not be executed" if Path(program).is_file() else "is not on PATH"
        advice = "write the command after -- as you would run it, such as 'python train.py'."
        raise EfprofError(f"the program '{program}' {why}; {advice}")
    return found


def asked_for(flags: Mapping[str, Any]) -> tuple[str | None, Options, dict[str, str]]:
    """The run's name, what to record, and the user's configuration: as `flags` say, else the settings of this folder.

    Raises EfprofError for what is wrong or cannot be had.
    """
    settings = read_settings(Path.cwd())
    merged = merge(settings.record, flags)
    name = merged.pop("name", None)
    return name, parse_options(**merged), kept_configuration(settings.configuration)


def options_in(folder: Path, run: RunFile, wanted: Options) -> Options:
    """What to record into this run's folder, where what was not committed is kept as well."""
    keep_diff(folder, run.git if wanted.keeps_diff else None)
    root = run.git.root if run.git else run.working_folder
    return msgspec.structs.replace(wanted, run_folder_name=str(folder), root_name=root)


def describe_run(command: list[str], name: str | None, configuration: dict[str, str]) -> RunFile:
    if not name:  # `train` of `python train.py`, the module of `python -m module`, the program otherwise
        scripts = [word for word in command if word.endswith(".py")]
        modules = [module.rpartition(".")[2] for flag, module in pairwise(command) if flag == "-m"]
        name = Path([*scripts, *modules, command[0]][0]).stem
    started = datetime.datetime.now(datetime.UTC)
    unique = hashlib.sha256(f"{started.isoformat()}{os.getpid()}{command}".encode()).hexdigest()[:6]
    # Arguments that are not valid UTF-8 arrive as lone surrogates, which JSON cannot hold.
    words = [word.encode(errors="surrogateescape").decode(errors="replace") for word in command]
    clean = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return RunFile(
        schema_version=SCHEMA_VERSION,
        run_id=f"{started:%Y%m%dT%H%M%SZ}-{clean}-{unique}",
        name=name,
        command=without_secret_words(words),
        working_folder=str(Path.cwd()),
        started=started.isoformat(timespec="milliseconds"),
        host=describe_host(),
        git=read_git(Path.cwd()),
        environment=kept_environment(os.environ),
        configuration=configuration,
    )


def make_run_folder(runs_folder: Path, run: RunFile) -> Path:
    folder = (runs_folder / run.run_id).absolute()
    try:
        folder.mkdir(parents=True)
        hide_from_git(runs_folder.parent)
        write_run_file(folder, run)
    except OSError as error:
        raise EfprofError(
            f"the run folder {folder} cannot be made: {error.strerror}; set EFPROF_HOME to one that can."
        ) from None
    return folder


def child_environment(options: Options) -> dict[str, str]:
    """A hash seed that is known lets the order of sets come again in a second run."""
    environment = hooked_environment() | {VARIABLE: encode_options(options)}
    return {HASH_SEED: str(1 + secrets.randbelow(2**32 - 1))} | environment


def hooked_environment() -> dict[str, str]:
    """Ours, with the start-up hook ahead of PYTHONPATH."""
    paths = [str(STARTUP_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    return dict(os.environ) | {"PYTHONPATH": os.pathsep.join(paths)}


def _run_child(command: list[str], environment: dict[str, str], program: RecordedProgram) -> int:
    with passing_signals(program):
        try:
            program.child = subprocess.Popen(command, env=environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                print(f"efprof: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
                return CANNOT_START
            program.child = subprocess.Popen(["/bin/sh", *command], env=environment)  # no #! line: as a shell does
        for number in program.waiting:
            program.send(number)
        return program.child.wait()


def how_it_ended(folder: Path, code: int, program: RecordedProgram | None) -> Ending:
    """The ending of a run whose command gave this code; `program` is None where the run is recorded in code."""
    ranks = _last_ranks(folder)
    if code == 0:
        return "stopped" if any(events_of(rank, TrainingStopped) for rank in ranks) else "finished"
    errors = [event.error for rank in ranks for event in events_of(rank, TrainingRaised)]
    received = program.received if program is not None else set()
    if any(events_of(rank, OutOfMemory) for rank in ranks):
        return "out_of_memory"
    if "KeyboardInterrupt" in errors or as_shell(code) == 128 + signal.SIGINT or signal.SIGINT in received:
        return "interrupted"
    # A shell between us and the program tells of its signal by 128 + n; a launcher that was sent one tells nothing.
    if code < 0 or 128 < code <= 128 + max(signal.valid_signals()) or not received.isdisjoint(ENDING_SIGNALS):
        return "killed"
    return "killed" if not errors and any(_has_vanished(rank, program) for rank in ranks) else "raised"


def _last_ranks(folder: Path) -> list[Path]:
    return [rank for attempt in list_attempts(folder)[-1:] for rank in attempt.rank_folders]


def as_shell(code: int) -> int:
    """The exit code as a shell gives it: 128 + n for a child that signal n ended."""
    return 128 - code if code < 0 else code


def _has_vanished(rank: Path, program: RecordedProgram | None) -> bool:
    """Whether a launcher's worker is gone without a word of its recorder's; of our own child the code tells."""
    process, child = read_process(rank), program.child if program is not None else None
    if child is None or (process is not None and process.pid == child.pid):
        return False
    return not events_of(rank, RecordingEnded)
