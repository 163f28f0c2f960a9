"""Starts the user's command as a child that records itself, waits for it, and notes how it ended."""

import datetime
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import msgspec

from efprof.artifacts.run_file import SCHEMA_VERSION, RunFile, read_run_file, write_run_file
from efprof.model import EfprofError
from efprof.recorder.machine import describe_host, kept_environment, read_git
from efprof.recorder.options import VARIABLE, Options, encode_options
from efprof.recorder.passing import Program, passing_signals
from efprof.recorder.redaction import without_secret_words
from efprof.recorder.run_ending import as_shell, describe_ending, how_it_ended
from efprof.recorder.uncommitted import keep_diff

STARTUP_FOLDER = Path(__file__).parent / "startup"

CANNOT_START = 126
"""What a shell gives for a program that is there and cannot be executed."""

LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that run another script, after which the run is named."""


def launch(
    command: list[str],
    *,
    runs_folder: Path,
    name: str | None = None,
    wanted: Options | None = None,
    configuration: Mapping[str, str] | None = None,
) -> tuple[Path, int]:
    """Run `command` to its end; returns the run folder and the command's own exit code.

    Raises EfprofError before anything is started where the program or the folder cannot be had.
    """
    path = find_program(command[0])
    run = describe_run(command, name or name_of_command(command), dict(configuration or {}))
    folder = make_run_folder(runs_folder, run)
    root = run.git.root if run.git else run.working_folder
    options = msgspec.structs.replace(wanted or Options(), run_folder_name=str(folder), root_name=root)
    keep_diff(folder, run.git if options.keeps_diff else None)
    start = time.monotonic()
    program, environment = Program(run_folder=folder), child_environment(options)
    code = _run_child([path, *command[1:]], environment, program)
    close_run(folder, code, time.monotonic() - start, program)
    _say_how_it_ended(folder)
    return folder, as_shell(code)


def close_run(folder: Path, code: int, seconds: float, program: Program | None = None) -> None:
    """Note how it ended; what the child added to run.json meanwhile is kept."""
    try:
        ended, exit_code = how_it_ended(folder, code, program), as_shell(code)
        run = read_run_file(folder)
        run = msgspec.structs.replace(run, ended=ended, exit_code=exit_code, duration_s=round(seconds, 3))
        write_run_file(folder, run)
    except (OSError, EfprofError) as error:  # the exit code is the command's, whatever became of our folder
        print(f"efprof: how the run ended could not be written to {folder}: {error}", file=sys.stderr)


def _say_how_it_ended(folder: Path) -> None:
    """Nothing where all went well, nor where the folder is gone, of which there has been word."""
    with suppress(EfprofError):
        sentence = describe_ending(folder)
        if sentence:
            print(f"efprof: {sentence}", file=sys.stderr)


def find_program(program: str) -> str:
    """Its path: on PATH, or beside the efprof that was called from an environment that is not activated."""
    ours = Path(sys.argv[0]).parent
    is_environment = "VIRTUAL_ENV" not in os.environ and (ours / "python").exists()
    path = os.environ.get("PATH", os.defpath)
    found = shutil.which(program, path=f"{ours}{os.pathsep}{path}" if is_environment else path)
    found = found or shutil.which(program, path=str(ours))
    if found is None:
        raise EfprofError(_why_not_found(program))
    return found


def _why_not_found(program: str) -> str:
    if program and Path(program).is_dir():
        return f"'{program}' is a folder; write the program to run after --, as in 'python train.py'."
    if not Path(program).is_file():
        return f"the program '{program}' is not on PATH; {_how_to_write(program)}"
    if program.endswith(".py"):
        return f"'{program}' is no program by itself; write 'efprof record -- python {program}'."
    return f"'{program}' may not be executed; run 'chmod +x {program}' or write its interpreter before it."


def _how_to_write(program: str) -> str:
    words = program.split() or [""]
    if "=" in words[0]:
        return f"set variables before efprof: '{words[0]} efprof record -- ...'."
    if len(words) > 1 and shutil.which(words[0]):
        return f"write its words apart, without quotes: 'efprof record -- {program}'."
    return "write the command after -- as you would run it."


def name_of_command(command: list[str]) -> str:
    """`train` for `python train.py`, the module for `python -m module`, the program otherwise."""
    modules = [module for flag, module in pairwise(command) if flag == "-m" and module not in LAUNCHERS]
    if modules:
        return modules[0].rsplit(".", 1)[-1]
    scripts = [word for word in command if word.endswith(".py")]
    return Path(scripts[0] if scripts else command[0]).stem


def describe_run(command: list[str], name: str, configuration: dict[str, str]) -> RunFile:
    started = datetime.datetime.now(datetime.UTC)
    unique = hashlib.sha256(f"{started.isoformat()}{os.getpid()}{command}".encode()).hexdigest()[:6]
    clean = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return RunFile(
        schema_version=SCHEMA_VERSION,
        run_id=f"{started:%Y%m%dT%H%M%SZ}-{clean}-{unique}",
        name=name,
        command=without_secret_words(_as_text(command)),
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
        ignore = runs_folder.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")  # recordings would otherwise make every repository dirty
        write_run_file(folder, run)
    except OSError as error:
        raise EfprofError(
            f"the run folder {folder} cannot be made: {error.strerror}; set EFPROF_HOME to one that can."
        ) from None
    return folder


def child_environment(options: Options) -> dict[str, str]:
    environment = dict(os.environ)
    paths = [str(STARTUP_FOLDER), *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment[VARIABLE] = encode_options(options)
    environment.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler's library would print at each window
    return environment


def _run_child(command: list[str], environment: dict[str, str], program: Program) -> int:
    """The code it ended with; -n where signal n ended it."""
    with passing_signals(program):
        try:
            program.child = subprocess.Popen(command, env=environment)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                print(f"efprof: {command[0]} cannot be started: {error.strerror}", file=sys.stderr)
                return CANNOT_START
            program.child = subprocess.Popen(["/bin/sh", *command], env=environment)  # no #! line: as a shell does
        return program.child.wait()


def _as_text(words: list[str]) -> list[str]:
    """Arguments that are not valid UTF-8 arrive as lone surrogates, which JSON cannot hold."""
    return [word.encode(errors="surrogateescape").decode(errors="replace") for word in words]
