"""How a recorded command ended, told by its exit code, the signals it was sent, and what its ranks left."""

import signal
from pathlib import Path

from efprof.artifacts.attempts import last_trained, list_attempts, read_process
from efprof.artifacts.events import OutOfMemory, RecordingEnded, TrainingRaised, read_events
from efprof.artifacts.run_file import Ending, read_run_file
from efprof.artifacts.steps import STEPS_FILE, read_steps
from efprof.recorder.passing import ENDING_SIGNALS, Program

WORDS: dict[Ending, str] = {
    "raised": "stopped with an error",
    "out_of_memory": "ran out of memory",
    "interrupted": "was interrupted",
    "killed": "was killed",
}


def how_it_ended(folder: Path, code: int, program: Program | None = None) -> Ending:
    """The ending of a run whose command gave this code; `program` is None where the run is recorded in code."""
    if code == 0:
        return "finished"
    ranks = [rank for attempt in list_attempts(folder)[-1:] for rank in attempt.rank_folders]
    events = [event for rank in ranks for event in read_events(rank)[0]]
    errors = [event.error for event in events if isinstance(event, TrainingRaised)]
    received = program.received if program is not None else set()
    if any(isinstance(event, OutOfMemory) for event in events):
        return "out_of_memory"
    if "KeyboardInterrupt" in errors or as_shell(code) == 128 + signal.SIGINT or signal.SIGINT in received:
        return "interrupted"
    # A shell between us and the program tells of its signal by 128 + n; a launcher that was sent one tells nothing.
    if code < 0 or 128 < code <= 128 + max(signal.valid_signals()) or not received.isdisjoint(ENDING_SIGNALS):
        return "killed"
    return "killed" if not errors and any(_has_vanished(rank, program) for rank in ranks) else "raised"


def describe_ending(folder: Path) -> str:
    """How a closed run ended, where it did not end well; empty otherwise. Raises UnreadableInput."""
    run, trained = read_run_file(folder), last_trained(list_attempts(folder))
    if run.ended == "finished" or trained is None:
        return ""
    counts = [len(read_steps(rank)[0]) for rank in trained.rank_folders if (rank / STEPS_FILE).exists()]
    after = f"after {max(counts, default=0)} steps (exit code {run.exit_code})"
    return f"the training {WORDS.get(run.ended, run.ended)} {after}"


def as_shell(code: int) -> int:
    """The exit code as a shell gives it: 128 + n for a child that signal n ended."""
    return 128 - code if code < 0 else code


def _has_vanished(rank: Path, program: Program | None) -> bool:
    """Whether a launcher's worker is gone without a word of its recorder's; of our own child the code tells."""
    if program is None or program.child is None:
        return False
    process = read_process(rank)
    is_our_child = process is not None and process.pid == program.child.pid
    return not is_our_child and not any(isinstance(event, RecordingEnded) for event in read_events(rank)[0])
