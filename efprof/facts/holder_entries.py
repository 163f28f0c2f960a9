"""What a holder that grows keeps more with every step, counted in its entries and in the tensors themselves."""

from efprof.facts.growth_suspects import GrowthSuspect
from efprof.facts.holder_lines import HolderGrowth


def tensor_bytes_per_step(growth: HolderGrowth) -> float:
    """The tensors' own bytes, without the graphs that hang on them."""
    return max(0, growth.holder.tensor_bytes_after - growth.holder.tensor_bytes_before) / _num_steps(growth)


def size_of_entry(suspect: GrowthSuspect, slope: float) -> tuple[float, str]:
    """The bytes of one of the holder's entries, or of one tensor where its length says nothing, and which it is.

    Of a tensor that grows it is what a step adds. The larger of what was counted and of what the slope says.
    """
    assert suspect.holder is not None
    growth = suspect.holder
    num_steps, per_step = _num_steps(growth), max(growth.bytes_per_step, suspect.share * slope)
    num_entries = growth.holder.length_after - growth.holder.length_before
    num_tensors = growth.holder.tensors_after - growth.holder.tensors_before
    if num_entries > 0:
        return per_step * num_steps / num_entries, "entries"
    if num_tensors > 0:
        return per_step * num_steps / num_tensors, "tensors"
    return per_step, "steps"


def _num_steps(growth: HolderGrowth) -> int:
    """Between the two counts."""
    before, after = growth.steps
    return max(1, after - before)
