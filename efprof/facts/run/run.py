"""A recorded run, and the facts about it: each computed once, when first asked for."""

import contextlib
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self, TypeVar

from efprof.artifacts.run_file import Device, RunFile, read_run_file
from efprof.artifacts.runs import last_trained, list_attempts
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.model import EfprofError, NotRecorded, UnreadableInput


class Fact(Protocol):
    """What `Run.get` computes: a class with this one constructor."""

    @classmethod
    def compute(cls, run: "Run") -> Self:
        """Derive the fact; raises NotRecorded where the run lacks a file it needs."""
        ...


F = TypeVar("F", bound=Fact)


class Run:
    """One run folder. `rank_folder` is the first rank's: the audits so far look at one rank.

    Where a launcher restarted the training, the ranks are those of its last attempt that finished a step.
    `budget_bytes` is what its memory is wished to stay below, where someone said so.
    """

    own_packages: frozenset[str] = frozenset()
    """Installed packages whose lines are the user's own, where someone said so."""
    engine: str | None = None
    """The cluster that reads the traces of ranks; None for this machine."""
    num_processes: int | None = None
    """So many decode a large trace; None for as many as there are processors."""

    max_trace_bytes: float = 12 << 20
    """Of packed traces so much is read, some 360,000 events, which takes 2 s; `math.inf` for all."""

    def __init__(self, folder: Path, run_file: RunFile, budget_bytes: int | None = None) -> None:
        self.folder = folder
        self.run_file = run_file
        self.budget_bytes = budget_bytes
        self.attempts = list_attempts(folder)
        self.attempt = last_trained(self.attempts)
        self.rank_folders = self.attempt.rank_folders if self.attempt else ()
        self._facts: dict[type[object], object] = {}

    @property
    def is_foreign(self) -> bool:
        """Whether there are only files of it that efprof did not record."""
        return self.run_file.ended == "unknown"

    @property
    def is_on_cuda(self) -> bool:
        """True if memory was read from CUDA's allocator."""
        return "CUDA" in self.run_file.memory_source

    @property
    def cuda_device(self) -> Device | None:
        """The first of the devices whose allocator was read."""
        return self.run_file.devices[0] if self.run_file.devices and self.is_on_cuda else None

    @property
    def rank_folder(self) -> Path:
        """The folder of the lowest rank that recorded anything."""
        if not self.rank_folders:
            raise NotRecorded(
                f"{self.folder} holds no rank folder: the recorded program ended before its first training step; "
                "record one that trains with PyTorch."
            )
        return self.rank_folders[0]

    @property
    def steps(self) -> list[StepRecord]:
        """All steps of the first rank; raises NotRecorded."""
        return self.read_steps[0]

    @cached_property
    def read_steps(self) -> tuple[list[StepRecord], int]:
        """The same, read once, and the number of torn lines."""
        return read_steps(self.rank_folder)

    def of_rank(self, folder: Path) -> "Run":
        """The same run, as if this rank alone had recorded anything; from any current folder."""
        alone = Run(self.folder.resolve(), self.run_file, self.budget_bytes)
        alone.own_packages, alone.engine, alone.rank_folders = self.own_packages, self.engine, (folder.resolve(),)
        alone.num_processes, alone.max_trace_bytes = self.num_processes, self.max_trace_bytes
        return alone

    def get(self, fact: type[F]) -> F:
        """The fact, computed once, also where a file of it cannot be read; each asker gets an error of its own."""
        if fact not in self._facts:
            try:
                self._facts[fact] = fact.compute(self)
            except UnreadableInput as error:
                self._facts[fact] = UnreadableInput(*error.args)
                raise
        result = self._facts[fact]
        if isinstance(result, UnreadableInput):
            raise UnreadableInput(*result.args)
        assert isinstance(result, fact)
        return result

    def find(self, fact: type[F], *besides: type[EfprofError]) -> F | None:
        """The same; None where it raises NotRecorded, or one of the errors named besides."""
        with contextlib.suppress(NotRecorded, *besides):
            return self.get(fact)
        return None


def open_run(folder: Path, budget_bytes: int | None = None) -> Run:
    """Open a run folder for analysis; raises UnreadableInput."""
    return Run(folder, read_run_file(folder), budget_bytes)
