"""Why memory grows, in words: what keeps it, and how the line is known."""

from collections.abc import Sequence
from typing import Final

from efprof.facts.growth_suspects import GrowthSuspect
from efprof.facts.library_feeders import is_log
from efprof.facts.sources import place_of

MOST_NAMED: Final = 3
"""Holders in one sentence."""


def why_it_grows(suspect: GrowthSuspect) -> str:
    """The cause as a clause of the message, as sure as the evidence is."""
    match suspect.known_by:
        case "holder":
            assert suspect.holder is not None
            what = "tensors with their graphs" if suspect.holder.keeps_graphs else "tensors"
            return f" because {who_keeps(_paths(suspect))} {what}"
        case "feeder":
            assert suspect.fed is not None
            path = suspect.fed.holder.path
            if is_log(suspect.fed.holder):
                return f" because a log handler (`{path}`) keeps each record of this line, with what it was given"
            return f" because this line gives `{path}` something new each time"
        case "cycle":
            assert suspect.cycle is not None
            return (
                f" because the gradient that this call gives `{suspect.cycle.tensor}` has a graph that leads back to it"
            )
        case "survivors":
            return "; most of it is allocated by this line and still alive a step later"
        case "container":
            return (
                f"; no variable keeps more tensors, and `{suspect.container}` is the one container that the loop fills "
                "and never empties"
            )
    return "; what holds it is not known, so this is the line that runs backward"


def meaning_of_growth(suspect: GrowthSuspect) -> str:
    """What it means for the run."""
    if suspect.holder is None:
        return "Every step leaves memory behind that nothing releases."
    is_one, names = not suspect.beside, names_of(_paths(suspect))
    if suspect.holder.keeps_graphs:
        return (
            f"{names} {'holds' if is_one else 'hold'} on to results together with the autograd graphs that made them: "
            "every tensor that those graphs saved for backward stays alive as long as they do."
        )
    return f"{names} {'holds' if is_one else 'hold'} more tensors after every step, and nothing takes any out."


def how_the_line_is_known(suspect: GrowthSuspect, counted: tuple[str, ...] | None) -> str:
    """The evidence for the line; `counted` are the holders that were seen to grow, None where none were counted."""
    if suspect.cycle is not None:
        return (
            f"By the text: each step makes `{suspect.cycle.tensor}` at {place_of(suspect.cycle.made_at)}, this call of "
            "backward gives it a gradient with a graph, and no line takes that away. Tensor, gradient and graph keep "
            "each other alive through C++, where Python's garbage collector does not see them."
        )
    if suspect.fed is not None and is_log(suspect.fed.holder):
        return (
            f"Python's objects were counted twice: `{suspect.fed.holder.path}` grew, and this is the first line of the "
            "steps that logs more than numbers and texts. A handler that keeps records keeps their arguments."
        )
    if suspect.fed is not None:
        return (
            f"Python's objects were counted twice: `{suspect.fed.holder.path}` grew, and this is the first line of the "
            "steps that gives such an object more. Nothing takes out again what is given to it."
        )
    if suspect.container is not None:
        return (
            "Python's objects were counted twice, and no variable keeps more tensors. Arrays and long texts lie in the "
            "same memory. The sources as they ran hold one statement that every step runs and whose container nothing "
            "empties: by its text, not by a count of what it holds."
        )
    if suspect.holder is None and counted:
        return (
            f"Python's objects were counted twice. What grew is {names_of(counted)}, and that is too little, or no "
            "line of the program is known that feeds it: the line is where memory was allocated or backward is run, "
            "not what keeps it."
        )
    if suspect.holder is None and counted is not None:
        return (
            "Python's objects were counted twice, and no variable of the program was seen to keep it: a cache of a "
            "library, a hook that each step registers anew, an object that only C++ holds, or a gradient whose graph "
            "leads back to it may."
        )
    if suspect.holder is None:
        return (
            "No count of Python's holders was taken in this run, so the line is where the surviving memory was "
            "allocated, not what keeps it."
            if suspect.known_by == "survivors"
            else "Neither a count of Python's holders nor an allocation window says what keeps it."
        )
    likeliest = suspect.holder.statements[: suspect.holder.num_likeliest]
    if len(likeliest) == 1:
        return "Python's objects were counted twice, and this is the one statement that makes the holder grow."
    others = ", ".join(f"{statement.file}:{statement.line}" for statement in likeliest[1:4])
    return (
        "Python's objects were counted twice; the holder is known, its line less surely: "
        f"{others} could make it grow as well."
    )


def who_keeps(names: Sequence[str]) -> str:
    """`a` keeps; `a` and `b` keep; `a`, `b` and 3 more keep."""
    return f"{names_of(names)} {'keeps' if len(names) == 1 else 'keep'}"


def names_of(names: Sequence[str]) -> str:
    """In quotes, as many as a sentence holds, and how many more there are."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) > MOST_NAMED:
        left_out = len(quoted) - MOST_NAMED + 1
        quoted = [*quoted[: MOST_NAMED - 1], f"{left_out} more"]
    return " and ".join(filter(None, (", ".join(quoted[:-1]), quoted[-1])))


def _paths(suspect: GrowthSuspect) -> list[str]:
    return [growth.holder.path for growth in suspect.holders]
