"""What a report says of a CPU run's memory on a GPU: the estimate under torch's default settings, and its doubts."""

from dataclasses import dataclass
from typing import Self

from efprof.facts.gpu_estimate import CAVEATS, GpuEstimate
from efprof.facts.run import Run
from efprof.model import Evidence, Narrative, Number, Numbers

TITLE = "Memory on a GPU, an estimate"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuOverview:
    """Without the other settings, which take seconds: `efprof allocator what-if RUN` tries them."""

    evidence: tuple[Evidence, ...]

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where no allocation window was recorded, or the run was on a CUDA device."""
        estimate = run.get(GpuEstimate)
        default = estimate.default
        numbers = Numbers(
            title="Played by the model of CUDA's caching allocator, under its default settings",
            numbers=(
                Number(
                    label="peak reserved",
                    value=default.outcome.peak_reserved_bytes,
                    unit="bytes",
                    interval=(default.low_bytes, default.high_bytes),
                ),
                Number(label="most in use at once", value=estimate.peak_allocated_bytes, unit="bytes"),
                Number(label="idle at that peak", value=default.outcome.stranded_bytes, unit="bytes"),
            ),
        )
        return cls(evidence=(numbers, Narrative(title=TITLE, paragraphs=CAVEATS)))
