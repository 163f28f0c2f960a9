"""worker_memory.jsonl: memory of the training process and its children, and what data sets hold in Python objects."""

from pathlib import Path

import msgspec

from efprof.artifacts.lines import read_lines

WORKER_MEMORY_FILE = "worker_memory.jsonl"


class ProcessMemory(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One process, in bytes, as Linux tells of it in smaps_rollup.

    `pss_bytes` shares out what several processes have in common; `private_bytes` it has alone, of which
    `private_dirty_bytes` were written; `anonymous_bytes` are of no file. `loader` and `worker` number a data worker;
    the training process itself and its other children have none.
    """

    pid: int
    pss_bytes: int
    private_bytes: int
    private_dirty_bytes: int
    anonymous_bytes: int
    loader: int | None = None
    worker: int | None = None
    is_training: bool = False

    @property
    def shared_anonymous_bytes(self) -> int:
        """What a forked process still has in common with its parent; what it writes there is copied and leaves this."""
        return max(0, self.anonymous_bytes - self.private_dirty_bytes)


class ProcessesSample(msgspec.Struct, kw_only=True, tag_field="kind", tag="processes"):
    """The processes at one instant, before `step` or at its end, but for `num_left_out` of them."""

    step: int
    processes: list[ProcessMemory]
    num_left_out: int = 0


class HeldContainer(msgspec.Struct, kw_only=True):
    """A container that a data set holds: `path` is code the user knows (`TextData.lines`).

    The Python objects in it, and in what lies in it, are estimated at `object_bytes` from a sample: of each no more
    than the page that its reference count lies in. `site` is the user's line that sets the attribute, the last of
    several; None where there is none.
    """

    path: str
    type: str
    element_type: str
    length: int
    object_bytes: int
    site: str | None = None


class DataSetObjects(msgspec.Struct, kw_only=True, tag_field="kind", tag="data_set"):
    """What the data set of a loader with worker processes held when they were started, most bytes first.

    `site` is a line of its class, where the user wrote that, else of the loop; `start_method` is that of the workers.
    """

    loader: int
    site: str | None
    start_method: str
    containers: list[HeldContainer]


def read_worker_memory(rank_folder: Path) -> tuple[list[ProcessesSample], list[DataSetObjects]]:
    """All whole lines in order; raises NotRecorded where there are none."""
    lines: list[ProcessesSample | DataSetObjects]
    lines, _ = read_lines(
        rank_folder / WORKER_MEMORY_FILE,
        ProcessesSample | DataSetObjects,  # type: ignore[arg-type]
        "it is written on Linux, where a DataLoader has worker processes.",
    )
    samples = [line for line in lines if isinstance(line, ProcessesSample)]
    return samples, [line for line in lines if isinstance(line, DataSetObjects)]
