"""`efprof fit --budget 24GiB -- python train.py --batch-size {batch}`: the largest batch that fits."""

from typing import TYPE_CHECKING

import click

from efprof.commands import COMMAND, print_json
from efprof.commands.allocator import JSON, SIZES, parse_size
from efprof.model import EfprofError
from efprof.units import format_bytes

if TYPE_CHECKING:
    from efprof.fit.search import Fitted


SMALLEST = 2
"""The first that is measured: some layers refuse a single sample."""


@click.command(context_settings={"allow_interspersed_args": False}, options_metavar="--budget SIZE [OPTIONS] --")
@click.option("--budget", required=True, callback=parse_size, metavar="SIZE", help=f"Memory to stay below: {SIZES}.")
@click.option("--max-batch", type=click.IntRange(min=1), help="The largest batch size to try.")
@JSON
@COMMAND
def fit(budget: int, max_batch: int | None, is_json: bool, command: tuple[str, ...]) -> int:
    """Find the largest batch size that fits a memory budget.

    COMMAND trains with the batch size written as {batch}: efprof fit --budget 24GiB -- python train.py --batch-size
    {batch}. It is run for some steps at a few small sizes; a line through their peaks tells which size would fit, and
    that one is run too. Each run is a process of its own: one that runs out of memory leaves nothing behind.

    On a CUDA device the peak is what its allocator had reserved, on a CPU that of tensors. A size that fails for
    another reason than memory ends the search, and those that ran are kept.

    Exit code: 0 where a size fits, 1 where none does.
    """
    from efprof.fit.measuring import PLACE, measure_peak
    from efprof.fit.search import search

    if not any(PLACE in word for word in command):
        raise EfprofError(
            f"the command must name the batch size as {PLACE}, as in 'efprof fit --budget 24GiB -- python train.py "
            f"--batch-size {PLACE}'."
        )

    def measure(batch: int) -> int | None:
        peak = measure_peak(command, batch)
        if not is_json:
            click.echo(render_run(batch, peak, budget))
        return peak

    found = search(measure, budget, smallest=min(SMALLEST, max_batch or SMALLEST), largest_allowed=max_batch)
    if is_json:
        print_json(found)
    else:
        click.echo(render_result(found, budget))
    return 0 if found.largest else 1


def render_run(batch: int, peak_bytes: int | None, budget: int) -> str:
    if peak_bytes is None:
        return f"  batch {batch:>7,}   ran out of memory"
    over = "" if peak_bytes <= budget else "   over budget"
    return f"  batch {batch:>7,}   peak {format_bytes(peak_bytes):>9}{over}"


def render_result(found: "Fitted", budget: int) -> str:
    """What fits, what to take, and how that is known."""
    if not found.largest:
        return f"No batch size that was tried stays below {format_bytes(budget)}."
    peak = next(run.peak_bytes for run in found.runs if run.batch == found.largest)
    assert peak is not None
    lines = [f"Largest that ran below {format_bytes(budget)}: {found.largest:,} (peak {format_bytes(peak)})."]
    if found.model is None and sum(run.peak_bytes is not None for run in found.runs) > 1:
        lines.append("Memory did not grow with the batch in these runs.")
    if found.model is not None:
        fixed, each = format_bytes(found.model.fixed_bytes), format_bytes(found.model.sample_bytes)
        lines.append(f"Memory: {fixed} and {each} per sample, near the budget.")
    if found.failure is not None:
        lines.append(found.failure)
    margin = ": a quarter is left for what a few steps do not show" if found.recommended < found.largest else ""
    lines.append(f"Train with {found.recommended:,}{margin}.")
    return "\n".join(lines)
