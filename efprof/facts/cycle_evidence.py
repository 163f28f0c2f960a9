"""What garbage in reference cycles shows for itself: the collections, the cycle, and how we know."""

from efprof.facts.cycle_lines import ClosedCycle
from efprof.facts.cycle_sawtooth import CycleSawtooth
from efprof.model import Evidence, Gain, Narrative, Number, Numbers, Table

MOST_ROWS = 8


def cycle_gain(sawtooth: CycleSawtooth) -> Gain:
    """What lay there as garbage when most did; another run's collections come at other steps."""
    least, one_step = min(tooth.freed_bytes for tooth in sawtooth.teeth), sawtooth.height_bytes / sawtooth.steps_apart
    _, high = sawtooth.height_interval
    return Gain(
        basis="measured bound",
        explanation="the most that was allocated when a collection began, less the lowest that collections left: the "
        "step's own tensors and all that the program keeps; its interval goes from what the least of the comparable "
        "collections freed to the highest less the lowest, and one step's garbage farther at both ends, as another "
        "run's collections come at other moments",
        peak_bytes=sawtooth.height_bytes,
        peak_bytes_interval=(max(0.0, least - one_step), high + one_step),
    )


def cycle_evidence(sawtooth: CycleSawtooth, closed: ClosedCycle | None) -> tuple[Evidence, ...]:
    """The snippet is the audit's."""
    low, high = sawtooth.height_interval
    numbers = [
        Number(label="garbage at the most", value=sawtooth.height_bytes, unit="bytes", interval=(low, high)),
        Number(label="highest memory that was read", value=sawtooth.peak_bytes, unit="bytes"),
        Number(label="steps from one collection to the next", value=sawtooth.steps_apart, unit="count"),
        Number(label="collections that freed much", value=sawtooth.garbage.num_large, unit="count"),
        Number(label="all collections looked at", value=sawtooth.garbage.num_read, unit="count"),
    ]
    if closed is not None:
        numbers.append(Number(label="such cycles found at one look", value=closed.cycle.count, unit="count"))
        numbers.append(Number(label="tensors that one of them holds", value=closed.cycle.tensors, unit="count"))
        numbers.append(Number(label="bytes of those tensors", value=closed.cycle.tensor_bytes, unit="bytes"))
    return (_table(sawtooth), Numbers(title="Garbage", numbers=tuple(numbers)), _how_we_know(closed))


def _table(sawtooth: CycleSawtooth) -> Table:
    most = sorted(sawtooth.teeth, key=lambda tooth: -tooth.freed_bytes)[:MOST_ROWS]
    return Table(
        title="The collections that freed most",
        columns=("step", "generation", "allocated before", "freed", "time"),
        units=("count", "count", "bytes", "bytes", "ms"),
        rows=tuple(
            (
                float(tooth.step),
                float(tooth.generation),
                float(tooth.before_bytes),
                float(tooth.freed_bytes),
                tooth.seconds * 1000,
            )
            for tooth in sorted(most, key=lambda tooth: tooth.step)
        ),
    )


def _how_we_know(closed: ClosedCycle | None) -> Narrative:
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            "Python frees an object at once when nothing refers to it. Objects that refer to each other in a circle "
            "keep each other, and the tensors behind them, until its collector comes by; that goes by the number of "
            "objects, not by the memory that they hold.",
            f"Allocated memory was read when a collection began and when it ended. {_how_the_line_is_known(closed)}",
            "Where the program frees these cycles at set steps by `gc.collect()` because it wants them, the memory "
            "between is what that costs.",
        ),
    )


def _how_the_line_is_known(closed: ClosedCycle | None) -> str:
    if closed is None:
        return "What the circle is was not found among the user's classes, so the line is the one that runs backward."
    if not closed.statements:
        return "The circle was found among the garbage of a moment; no statement that closes it is in the sources."
    likeliest = closed.statements[0]
    others = [f"{each.file}:{each.line}" for each in closed.statements[1:4]]
    told = "The circle was found among the garbage of a moment, and this statement refers back to what was there before"
    if likeliest.kind == "made":
        told = "The circle was found among the garbage of a moment; which of its statements closes it is not sure"
    return f"{told}; the rest of it is made at {', '.join(others)}." if others else f"{told}."
