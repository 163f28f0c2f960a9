"""The request that ended a run out of memory, as its events tell it: where no snapshot shows the device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from efprof.artifacts.events import OutOfMemory, StepInterrupted, read_events
from efprof.facts.run import Run
from efprof.model import NotRecorded


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryFailure:
    """Where and in which stage it happened. `in_use_bytes` were allocated when the recorder saw the error.

    `requested_bytes` is None where the error does not tell it, as Python's own never does.
    """

    rank_folder: Path
    step: int
    site: str | None
    stage: str | None
    requested_bytes: int | None
    in_use_bytes: int | None
    is_for_tensor: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """The first of all ranks: the others follow it. Raises NotRecorded where no rank ran out of memory."""
        found = [
            (event.at_ns, place, event)
            for place, folder in enumerate(run.rank_folders)
            for event in read_events(folder)[0]
            if isinstance(event, OutOfMemory)
        ]
        if not found or run.run_file.ended != "out_of_memory":
            raise NotRecorded("events.jsonl holds no error that says memory ran out.")
        _, place, event = min(found, key=lambda one: one[:2])
        folder = run.rank_folders[place]
        broken = [one for one in read_events(folder)[0] if isinstance(one, StepInterrupted) and one.step == event.step]
        return cls(
            rank_folder=folder,
            step=event.step,
            site=event.site,
            stage=broken[-1].stage if broken else None,
            requested_bytes=event.requested_bytes,
            in_use_bytes=broken[-1].allocated_bytes if broken else None,
            is_for_tensor=event.is_for_tensor,
        )
