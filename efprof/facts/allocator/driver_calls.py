"""How often the allocator turned to the driver, which takes time that a cached block does not."""

from dataclasses import dataclass


@dataclass(kw_only=True, slots=True)
class Calls:
    """What was asked of the driver: `cudaMalloc` and mapped ranges, `cudaFree` and unmapped ranges; and retries."""

    num_allocs: int = 0
    num_frees: int = 0
    num_maps: int = 0
    num_unmaps: int = 0
    num_retries: int = 0

    @property
    def num_taken(self) -> int:
        """Times that the driver was asked for memory."""
        return self.num_allocs + self.num_maps

    @property
    def num_returned(self) -> int:
        """Times that it was given memory back."""
        return self.num_frees + self.num_unmaps

    @property
    def total(self) -> int:
        """All that wait for the driver."""
        return self.num_taken + self.num_returned
