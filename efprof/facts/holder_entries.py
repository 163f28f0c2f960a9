"""What a holder that grows keeps more with every step, counted in its entries and in the tensors themselves."""

from efprof.facts.growth_suspects import GrowthSuspect
from efprof.facts.holder_lines import HolderGrowth


def tensor_bytes_per_step(growth: HolderGrowth) -> float:
    """The tensors' own bytes, without the graphs that hang on them."""
    return max(0, growth.holder.tensor_bytes_after - growth.holder.tensor_bytes_before) / _num_steps(growth)


def part_of_slope(suspect: GrowthSuspect, growth: HolderGrowth, slope: float) -> float:
    """What one of the suspect's holders stands for, by the growth that was counted of each: their parts differ."""
    counted = sum(one.bytes_per_step for one in suspect.holders)
    return suspect.share * slope * growth.bytes_per_step / counted


def size_of_entry(suspect: GrowthSuspect, growth: HolderGrowth, slope: float) -> tuple[float, str]:
    """The bytes of one entry of one of the suspect's holders, or of one tensor where its length says nothing.

    The other value is which it is; of a tensor that grows, what a step adds. The larger of what was counted and of what
    the slope says.
    """
    num_steps, per_step = _num_steps(growth), max(growth.bytes_per_step, part_of_slope(suspect, growth, slope))
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
