"""How much memory there is, and at which step a given growth would use it up."""

from dataclasses import dataclass
from typing import Self

from efprof.artifacts.steps import read_steps
from efprof.facts.run import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLimits:
    """The memory that training allocates from; `used_bytes` of it at the last step, all of the process's."""

    name: str
    total_bytes: int
    used_bytes: int
    last_step: int
    num_steps: int
    ran_out: bool

    @classmethod
    def compute(cls, run: Run) -> Self:
        """The device's memory where the allocator counted that, else the host's."""
        records = read_steps(run.rank_folder)[0]
        host = run.run_file.host
        is_device = bool(run.run_file.devices) and "CUDA" in run.run_file.memory_source
        read = next((record.memory for record in reversed(records) if record.memory), None)  # not of every short step
        on_device = read[-1].allocated_bytes if read else 0
        # Steps that a killed run left in steps.pending have none.
        resident = next((record.rss_bytes for record in reversed(records) if record.rss_bytes), 0)
        return cls(
            name=run.run_file.devices[0].name if is_device else "the host",
            total_bytes=run.run_file.devices[0].total_bytes if is_device else host.total_bytes if host else 0,
            used_bytes=on_device if is_device else resident,
            last_step=records[-1].step if records else 0,
            num_steps=len(records),
            ran_out=run.run_file.ended == "out_of_memory",
        )

    def end_step(self, bytes_per_step: float) -> int:
        """The step at which memory that grows so fast is used up."""
        return self.last_step + max(0, int((self.total_bytes - self.used_bytes) / bytes_per_step))

    def most_kept(self, bytes_each: float) -> int:
        """How many pieces of that size take a hundredth of the memory."""
        return max(1, int(self.total_bytes / 100 / bytes_each))
