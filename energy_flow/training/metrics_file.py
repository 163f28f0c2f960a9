"""`metrics.jsonl`: a line of JSON per step, cut back to the checkpoint that a run goes on from."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from energy_flow.errors import EnergyFlowError
from energy_flow.training.epoch_summary import StepOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class StepMetrics:
    """One optimizer step as it is logged; None where this run, or this device, has no such number."""

    step: int  # attempted steps, from 1: skipped ones count
    global_step: int  # optimizer steps taken so far
    epoch: int | None  # from 1; that of the step's first micro-batch
    loss: float
    embedding_loss: float
    surface_loss: float
    text_loss: float
    landed_share: float
    flow_steps: float
    gradient_norm: float  # before clipping
    is_skipped: bool
    skip_reason: str | None
    num_skipped: int  # so far, this step included
    learning_rate: float
    loss_scale: float  # the scaler's; 1 where losses are not scaled
    wait_ms: float  # host time from the end of the last step to this one's batch at hand
    step_ms: float  # host time of the whole step, the wait included
    samples_per_second: float  # of all processes together
    forward_ms: float | None  # stage times: device time on CUDA, host time on the CPU
    backward_ms: float | None
    optimizer_ms: float | None
    energy_ms: float | None  # the flows' part of forward
    text_bridge_ms: float | None  # the encoder's and decoder's part of forward
    allocated_bytes: int | None
    reserved_bytes: int | None
    gpu_used_bytes: int | None
    gpu_utilisation_percent: float | None
    host_rss_bytes: int | None

    def __str__(self) -> str:
        """Say in one line what a person watches."""
        skipped = f"  skipped: {self.skip_reason}" if self.is_skipped else ""
        return (
            f"step {self.step:>5}  loss {self.loss:.4f}  embedding {self.embedding_loss:.4f}  "
            f"text {self.text_loss:.3f}  gradient {self.gradient_norm:.2f}  {self.step_ms:.0f} ms "
            f"(wait {self.wait_ms:.1f} ms){skipped}"
        )


class MetricsFile:
    """Appends steps to the file."""

    def __init__(self, file: Path, *, first_step: int) -> None:
        """Open `file`, made if need be, without its lines after step `first_step`.

        A run that was killed may have written steps beyond the checkpoint that it goes on from, and half a line.

        Raises:
            EnergyFlowError: naming the file, when it cannot be written.

        """
        self._file = file
        with _disk_told(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            self._stream = file.open("a", encoding="utf-8")
            os.truncate(file, _end_of_step(file, first_step))

    def write(self, metrics: StepMetrics) -> None:
        """Append a line; it reaches the disk with the next `flush`."""
        # Not by `asdict`, which copies each number as if it were a tree: 30 us a step.
        line = json.dumps({name: getattr(metrics, name) for name in metrics.__slots__})
        with _disk_told(self._file):
            self._stream.write(line + "\n")

    def flush(self) -> None:
        """Hand what was written to the system, where it survives the end of this process."""
        with _disk_told(self._file):
            self._stream.flush()

    def sync(self) -> None:
        """Bring it to the disk, where it survives the end of the machine, as a checkpoint does."""
        with _disk_told(self._file):
            self._stream.flush()
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Flush, and close the file."""
        with _disk_told(self._file):
            self._stream.close()


@contextmanager
def _disk_told(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnergyFlowError(f"cannot write metrics to {file}: {error.strerror}") from error


def past_steps(file: Path) -> Iterator[StepOutcome]:
    """The steps in `file`, which `MetricsFile` has cut back; none where there is no file."""
    if not file.exists():
        return
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            fields = json.loads(line)
            yield StepOutcome(**{name: fields[name] for name in StepOutcome._fields})


def _end_of_step(file: Path, last_step: int) -> int:
    """Bytes up to the first line that is torn, unreadable or of a step after `last_step`."""
    end = 0
    with file.open("rb") as lines:
        for line in lines:
            if not line.endswith(b"\n") or not _is_kept(line, last_step):
                break
            end += len(line)
    return end


def _is_kept(line: bytes, last_step: int) -> bool:
    try:
        fields = json.loads(line)
    except ValueError:
        return False
    return isinstance(fields, dict) and fields.keys() >= set(StepOutcome._fields) and fields["step"] <= last_step
