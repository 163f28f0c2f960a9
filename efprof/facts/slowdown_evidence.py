"""What a slow-down shows for itself: the step times, the stages early and late, the lines that grew."""

from collections.abc import Iterable

from efprof.facts.line_times import LineTime, LineWindow
from efprof.facts.slowdown import Part, Slowdown
from efprof.facts.slowdown_line import SlowdownLine, SlowdownLines
from efprof.facts.step_times import StepTimes, part_of_steps
from efprof.model import STAGES, Evidence, Narrative, Table
from efprof.units import format_ms


def slowdown_evidence(times: StepTimes, slowdown: Slowdown, lines: SlowdownLines) -> tuple[Evidence, ...]:
    """All of it, the picture first."""
    marks = (
        (float(slowdown.early.last_step), "end of the first third"),
        (float(slowdown.late.first_step), "start of the last third"),
    )
    return (
        part_of_steps(times, slowdown.stage, [time.of(slowdown.stage) for time in times.steady], marks),
        _stage_table(slowdown),
        *((_line_table(slowdown, lines.line),) if lines.line else ()),
        _meaning(slowdown, lines),
    )


def slowdown_message(slowdown: Slowdown, lines: SlowdownLines) -> str:
    """How much longer a step takes, in which stage, by which line, and how sure that is."""
    early, late, line = slowdown.early, slowdown.late, lines.line
    took = f"A step takes {format_ms(early.typical_ms)} in steps {early.first_step} to {early.last_step} and "
    took += f"{format_ms(late.typical_ms)} in steps {late.first_step} to {late.last_step}; the {slowdown.stage} "
    took += "stage grew most"
    if line is None:
        reason = lines.reason.removesuffix(".")
        return f"{took}; which line makes it grow is not known ({reason}), or the steps themselves became larger."
    through = f", which goes through `{line.container.name}`" if line.container else ""
    doubt = "" if line.explains(slowdown) else ", unless the steps themselves became larger"
    return f"{took}, by this line{through}{doubt}."


def _stage_table(slowdown: Slowdown) -> Table:
    early, late = slowdown.early, slowdown.late
    stages = sorted(STAGES, key=slowdown.stage_growth_ms, reverse=True)
    rows = [(stage, early.stage_ms[stage], late.stage_ms[stage]) for stage in stages]
    rows.append(("whole step", early.typical_ms, late.typical_ms))
    return _growth_table("Stages, per typical step", "stage", early, late, rows)


def _line_table(slowdown: Slowdown, line: SlowdownLine) -> Table:
    grown = ((line.time, line.early_ms, line.late_ms), *line.others)
    rows = [(_name_of(time), early_ms, late_ms) for time, early_ms, late_ms in grown]
    title = f"Lines that grew in the {slowdown.stage} stage, per step under the profiler"
    return _growth_table(title, "line", line.early, line.late, rows)


def _name_of(time: LineTime) -> str:
    return f"{time.blame.function}, outside of its calls" if time.is_function else f"{time.blame}  {time.blame.text}"


def _growth_table(
    title: str, what: str, early: Part | LineWindow, late: Part | LineWindow, rows: Iterable[tuple[str, float, float]]
) -> Table:
    return Table(
        title=title,
        columns=(
            what,
            f"steps {early.first_step} to {early.last_step}",
            f"steps {late.first_step} to {late.last_step}",
            "growth",
        ),
        units=("", "ms", "ms", "ms"),
        rows=tuple((name, early_ms, late_ms, late_ms - early_ms) for name, early_ms, late_ms in rows),
    )


def _meaning(slowdown: Slowdown, lines: SlowdownLines) -> Narrative:
    low, high = slowdown.ratio_interval
    known = (
        f"The blamed line has {lines.line.share:.0%} of what grew in the {slowdown.stage} stage between two profiler "
        "windows; time in deeper lines of the program is counted there, not here."
        if lines.line
        else f"The line is not known: {lines.reason.removesuffix('.')}. The line shown begins the stage that grew."
    )
    return Narrative(
        title="What it means, how we know, when it is wrong",
        paragraphs=(
            "The work of a step depends on how many steps came before it, so it goes on growing.",
            f"The time that 20 % of the steps stay below was compared between the thirds by a block bootstrap, since "
            f"steps that follow each other are alike: the ratio lies between {low:.2f} and {high:.2f} (95 %). {known}",
            "It is wrong where the later batches are larger, as in data sorted by length or a curriculum: samples, "
            "micro-batches, gradients and allocation windows tell of that as far as they were recorded, and of nothing "
            "that came after the last window. It is wrong too where the machine became busier for one kind of work "
            "only.",
        ),
    )
