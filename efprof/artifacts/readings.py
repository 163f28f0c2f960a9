"""What is read beside the steps: device_use.jsonl, worker_memory.jsonl, worker_samples.jsonl, evaluations.jsonl,
long_steps.jsonl.
"""

from pathlib import Path

import msgspec

from efprof.artifacts.files import lines_if_any, read_lines

DEVICE_USE_FILE = "device_use.jsonl"

WORKER_MEMORY_FILE = "worker_memory.jsonl"

WORKER_SAMPLES_FILE = "worker_samples.jsonl"

EVALUATIONS_FILE = "evaluations.jsonl"

LONG_STEPS_FILE = "long_steps.jsonl"


class DeviceUse(msgspec.Struct, kw_only=True):
    """One reading at the end of a step; `used_bytes` is what all processes use of the device together."""

    step: int
    device: int
    used_bytes: int
    reserved_bytes: int

    @property
    def outside_bytes(self) -> int:
        """Used by whatever is not PyTorch's allocator in this process: its context, its libraries, others."""
        return max(0, self.used_bytes - self.reserved_bytes)


def read_device_use(rank_folder: Path) -> list[DeviceUse]:
    """All whole lines in order; empty where no CUDA device trained."""
    return lines_if_any(rank_folder / DEVICE_USE_FILE, DeviceUse)


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
    def name(self) -> str:
        if self.worker is not None:
            return f"worker {self.worker} of loader {self.loader}"
        return "training" if self.is_training else "another child"

    @property
    def shared_anonymous_bytes(self) -> int:
        """What a forked process still has in common with its parent; what it writes there is copied and leaves this."""
        return max(0, self.anonymous_bytes - self.private_dirty_bytes)


class ProcessesSample(msgspec.Struct, kw_only=True, tag_field="kind", tag="processes"):
    """The processes at one instant, before `step` or at its end."""

    step: int
    processes: list[ProcessMemory]


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

    `site` is the line of the loop; `start_method` is that of the workers.
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


class SampledLine(msgspec.Struct, array_like=True, frozen=True):
    """How often a data worker was found at a line of the user's, and within which function of a library.

    `site` is None where the library was not called from the user's code, as where it puts a batch together; `inside`
    where the line itself was running.
    """

    site: str | None
    inside: str | None
    num_samples: int


class WorkerSamples(msgspec.Struct, kw_only=True):
    """What one data worker of a loader was found at since its line before; idle ones waited to be asked for a batch."""

    loader: int
    pid: int
    num_idle: int
    lines: list[SampledLine]


def read_worker_samples(rank_folder: Path) -> list[WorkerSamples]:
    """All whole lines in order; raises NotRecorded where there are none."""
    how = "it is written where a DataLoader has worker processes."
    return read_lines(rank_folder / WORKER_SAMPLES_FILE, WorkerSamples, how)[0]


class EvaluationMemory(msgspec.Struct, array_like=True, gc=False):
    """Memory once so many batches were evaluated."""

    num_batches: int
    allocated_bytes: int


class EvaluationRecord(msgspec.Struct, kw_only=True):
    """Forward passes in a row, through whose outputs no backward pass goes, from the first one's begin, or its
    loader's.

    `after_step` is the last step finished by then, -1 where there was none; `callers` are the user's lines that called
    the module, innermost first, and `site` the first of them. `memory` is the readings after each of its first forward
    passes and after the last, the first from before it. `peak_bytes` is the highest of them all, or, where
    `is_peak_exact`, the CUDA allocator's own mark, which the evaluation raised. `graph_bytes` is what one forward
    pass added to memory beside its output, None where it built no graph; `num_alive` is how many of the graphs were
    there at a time. In a rollout the inputs were much smaller than those that are trained on,
    or a line gave them without gradients, in training mode, again and again.
    """

    after_step: int
    started_ns: int
    total_us: float
    num_batches: int
    site: str | None
    memory: list[EvaluationMemory]
    peak_bytes: int
    is_peak_exact: bool
    callers: list[str] = []
    graph_bytes: int | None = None
    num_alive: int = 0
    is_rollout: bool = False


def read_evaluations(rank_folder: Path) -> list[EvaluationRecord]:
    """All whole lines in order; empty where none was seen."""
    return lines_if_any(rank_folder / EVALUATIONS_FILE, EvaluationRecord)


class SampledStack(msgspec.Struct, array_like=True, frozen=True):
    """For how many seconds the training thread was at these lines of the user's.

    The first is where its stack leaves that of a usual step's update, the second the innermost, where there is one
    further in; there is none in the update itself, or where a loader's batch was waited for. `inside` is the function
    of a library that was running, None where the last line itself was. Of the samples of usual steps `usual_share`
    were at the first line too.
    """

    lines: tuple[str, ...]
    inside: str | None
    seconds: float
    usual_share: float


class LongStep(msgspec.Struct, kw_only=True):
    """The time from one update to the next where it was far longer than usual, by the stacks that were seen in it.

    A usual step is taken off, and what the recorder did. `step` is the one that the next update ends. The first line of
    a file has no stacks: from its step on, long ones are looked for. One that goes on for long has several lines.
    """

    step: int
    started_ns: int
    stacks: list[SampledStack] = []

    @property
    def seconds(self) -> float:
        return sum(stack.seconds for stack in self.stacks)


def least_long_step(usual: float, *, unit_per_ms: float) -> float:
    """How long a long step is at least, in the unit of `usual`: three times as long, and 50 ms longer."""
    return max(3 * usual, usual + 50 * unit_per_ms)


def read_long_steps(rank_folder: Path) -> list[LongStep]:
    """The last line of each, in order; raises NotRecorded where nobody looked."""
    how = "it is written once five steps of a torch optimizer were recorded."
    lines, _ = read_lines(rank_folder / LONG_STEPS_FILE, LongStep, how)
    return list({line.started_ns: line for line in lines if line.stacks}.values())
