"""What `efprof record` was asked to record, handed to the training process through the environment."""

import importlib.util
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from efprof.model import EfprofError

VARIABLE = "EFPROF_RECORD"

StepRange = tuple[int, int]

DEFAULT_TRACE_STEPS = ((4, 6), (30, 32), (300, 302), (3000, 3002))
"""One window soon after warm-up, so that a run of five steps has one, then ever later ones, each ten times rarer."""

DEFAULT_MEMORY_STEPS = ((0, 4), (310, 313))
"""From before the model is built, so that a replay starts cold, and again when the run has settled."""

DEFAULT_OVERHEAD = 0.01

Trigger = Literal["slow-step", "memory-peak", "non-finite", "signal"]

ALL_TRIGGERS: tuple[Trigger, ...] = get_args(Trigger)


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """`root_name` is the folder that file names are relative to; `host_memory` and `holders` cost much.

    The two names are empty until there is a run folder.
    """

    run_folder_name: str = ""
    root_name: str = ""
    trace_steps: tuple[StepRange, ...] = DEFAULT_TRACE_STEPS
    memory_steps: tuple[StepRange, ...] = DEFAULT_MEMORY_STEPS
    triggers: tuple[Trigger, ...] = ALL_TRIGGERS
    host_memory: bool = False
    holders: bool | None = None
    """Who keeps tensors alive is counted whatever it costs, never, or, where it is None, as far as the budget goes."""
    memory_ring: bool = False
    """The CUDA allocator's last events are kept outside windows, too; off until its cost on a GPU is known."""
    overhead: float = DEFAULT_OVERHEAD
    """The share of the time that recording may cost."""
    keeps_diff: bool = True

    @property
    def run_folder(self) -> Path:
        return Path(self.run_folder_name)

    @property
    def root(self) -> Path:
        """The repository, or the working folder where there is none."""
        return Path(self.root_name)


def parse_options(
    *,
    windows: str = "default",
    trace_steps: str = "default",
    memory_steps: str = "default",
    triggers: str = "default",
    overhead: str = "1%",
    **switches: Any,
) -> Options:
    """The options of the command line, as text; raises EfprofError naming the one that is wrong or cannot be had.

    Named steps of one kind of window move the default ones of the other kind out of their way. A profiler with stacks
    takes away the hook of Python's that memray needs for its lines, so with `host_memory` there is no trace.
    """
    asked = Options(overhead=parse_share(overhead), **switches)
    if asked.host_memory and trace_steps not in ("default", "none"):
        raise EfprofError(
            "--trace-steps and --host-memory both need Python's one profile hook; record twice, once with each."
        )
    if asked.host_memory and importlib.util.find_spec("memray") is None:
        raise EfprofError("--host-memory needs memray, which is not installed: run 'pip install memray'.")
    if asked.host_memory:
        trace_steps = triggers = "none"
    if windows == "none":
        trace_steps = memory_steps = triggers = "none"
    elif windows != "default":
        raise EfprofError(f"--windows {windows!r} is not 'default' or 'none'; name steps by --trace-steps 5:7,100:102.")
    traced = parse_steps("--trace-steps", trace_steps, DEFAULT_TRACE_STEPS)
    remembered = parse_steps("--memory-steps", memory_steps, DEFAULT_MEMORY_STEPS)
    if memory_steps == "default":
        remembered = _clear_of(remembered, traced)
    if trace_steps == "default":
        traced = _clear_of(traced, remembered)
    for one in traced:
        for other in remembered:
            if _overlap(one, other):
                raise EfprofError(
                    f"--trace-steps and --memory-steps both name step {max(one[0], other[0])}; "
                    "the two windows disturb each other, so give them different steps."
                )
    return msgspec.structs.replace(
        asked, trace_steps=traced, memory_steps=remembered, triggers=_parse_triggers(triggers)
    )


def parse_steps(option: str, text: str, default: tuple[StepRange, ...]) -> tuple[StepRange, ...]:
    if text in ("default", "none"):
        return default if text == "default" else ()
    try:
        parts = sorted(tuple(int(end) for end in part.split(":")) for part in text.split(","))
        ranges = tuple((start, end) for start, end in parts if 0 <= start < end)
        if len(ranges) < len(parts):
            raise ValueError
    except ValueError:
        raise EfprofError(
            f"{option} {text!r} is not 'default', 'none' or ranges of steps such as 20:25,500:503; "
            "step 20 alone is 20:21."
        ) from None
    for one, other in pairwise(ranges):
        if _overlap(one, other):
            raise EfprofError(f"{option} {text!r} names step {other[0]} twice; write one range for both.")
    return ranges


def parse_share(text: str) -> float:
    """0.02 for `2%`; raises EfprofError for what is no share above nothing, or is above all of the time."""
    number, sign, rest = str(text).partition("%")  # in code one may write a number
    with suppress(ValueError):
        if sign and not rest.strip() and 0 < float(number) <= 100:
            return float(number) / 100
    raise EfprofError(f"--overhead {text!r} is no share of the time: write one above 0% and up to 100%, such as 2%.")


def read_options() -> Options | None:
    """The options of the recording this process belongs to; None where it is not being recorded."""
    text = os.environ.get(VARIABLE)
    try:
        return msgspec.json.decode(text, type=Options) if text else None
    except msgspec.DecodeError:  # not ours: an efprof of another version set it
        return None


def encode_options(options: Options) -> str:
    return msgspec.json.encode(options).decode()


def _overlap(one: StepRange, other: StepRange) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _clear_of(ranges: tuple[StepRange, ...], taken: tuple[StepRange, ...]) -> tuple[StepRange, ...]:
    return tuple(one for one in ranges if not any(_overlap(one, other) for other in taken))


def _parse_triggers(text: str) -> tuple[Trigger, ...]:
    if text in ("default", "none"):
        return ALL_TRIGGERS if text == "default" else ()
    words = {word.strip() for word in text.split(",")}
    if not words <= set(ALL_TRIGGERS):
        raise EfprofError(f"--triggers {text!r} is not 'default', 'none' or some of {','.join(ALL_TRIGGERS)}.")
    return tuple(trigger for trigger in ALL_TRIGGERS if trigger in words)
