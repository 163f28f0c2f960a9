"""How a run ended, in words: the first thing to know about one that did not finish."""

import re
import signal
from typing import Final

from efprof.model import RunIdentity
from efprof.report.wording import count_of, shorten
from efprof.units import format_bytes

BAD_ENDINGS: Final[dict[str, str]] = {
    "raised": "The run stopped with an error of its own",
    "out_of_memory": "The run ran out of memory",
    "killed": "The run was killed from outside",
    "interrupted": "The run was interrupted",
}
FOREIGN: Final = "unknown"
"""How a run ended of which there is only a file that something else wrote."""
NEXT: Final[dict[str, str]] = {
    "raised": "Read what the program itself said last; what was recorded until then is below.",
    "killed": "Read what the program itself said last; what was recorded until then is below.",
    "interrupted": "Let it run on where a check below asks for more steps; what was recorded until then is below.",
    FOREIGN: "Record the training with 'efprof record -- COMMAND' to have its steps, time and numbers checked.",
    "running": "Report again when it has ended; what was recorded until now is below.",
}
REQUEST: Final = re.compile(r"tried to allocate (\d+) bytes")
FIRST_SIGNAL_CODE: Final = 128
"""A shell gives 128 + n for a program that signal n ended."""
MAX_MESSAGE: Final = 300
"""Letters of an exception's message: some hold whole tensors."""


def ending_sentence(run: RunIdentity) -> str:
    """How a run ended badly, after how many steps; empty where it finished, and where only a file of it is known."""
    if run.ended in {"finished", FOREIGN}:
        return ""
    phrase = BAD_ENDINGS.get(run.ended, "The run was still going on, or was killed with its recorder,")
    name = _signal_name(run)
    if name:
        phrase = f"The run was killed by {name}"
    when = f"after {count_of(run.num_steps, 'step')}" if run.num_steps else "before it finished a step"
    code = f" (exit code {run.exit_code})" if run.exit_code else ""
    return f"{phrase} {when}{code}."


def error_phrase(run: RunIdentity) -> str:
    """`RuntimeError in the forward stage of step 5: boom`; empty where no exception was recorded."""
    if run.error is None:
        return ""
    error = run.error
    stage = f"the {error.stage} stage of " if error.stage and error.stage != "other" else ""
    message = shorten(_with_sizes(error.message), MAX_MESSAGE)
    return f"{error.kind} in {stage}step {error.step:,}{f': {message}' if message else ''}"


def next_after_ending(run: RunIdentity) -> str:
    """What to do about how the run ended; empty where it finished."""
    if run.error is not None and run.ended == "raised":
        if run.error.blame is None:  # as from argparse, which prints no traceback
            return "Mend what it names: the program's own output says more; what was recorded until then is below."
        return (
            "Mend that line: the program's own output has the whole traceback; what was recorded until then is below."
        )
    if _signal_name(run) == "SIGKILL":
        return (
            "SIGKILL comes from a person, a scheduler, or the system when the machine's memory runs out: ask its log; "
            "what was recorded until then is below."
        )
    return NEXT.get(run.ended, "")


def _with_sizes(message: str) -> str:
    """The request that failed in words too: torch's CPU allocator tells it in plain bytes, ten digits and more."""
    return REQUEST.sub(lambda found: f"{found[0]} ({format_bytes(int(found[1]))})", message)


def _signal_name(run: RunIdentity) -> str:
    """The signal that ended the run; empty where none did, or none that this system knows."""
    if run.ended != "killed" or run.exit_code is None:
        return ""
    number = run.exit_code - FIRST_SIGNAL_CODE
    return signal.Signals(number).name if number in set(signal.Signals) else ""
