"""Lines of the user's that take a real step's time in Python: in samples, less the operators that windows saw there."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Self

from efprof.artifacts.events import SampledPlace, TrainingSampled, events_of
from efprof.facts.run.run import Run
from efprof.facts.source.loops import LOOPS, is_of_step, loop_around
from efprof.facts.source.sources import Sources, place_of, split_site
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.loader_lines import binomial_interval
from efprof.facts.time.time_use import TimeUse
from efprof.model import NotRecorded, SourceLine, UnreadableInput, called_name, frozen_dataclass, nodes_on

MIN_SHARE = 0.2
"""Of the step: to rewrite such a line is more than an edit."""
MIN_CALLED = 0.5
"""With what modules of Python's own do there, as to draw a sample: less of that may be needed."""
MIN_CERTAIN = 0.1
MANY_OPERATORS, SMALL_MS = 100, 0.05
"""So many operators a step, of so little time each, cost what Python takes to call them."""
NOT_PYTHON = ("backward", "optimizer")
MAKES_ARRAYS = frozenset({"array", "as_tensor", "asarray", "from_numpy", "stack", "tensor"})
"""What copies Python's numbers into an array, one by one."""
NO_TRAINING = ("torch.serialization.", "torch.utils.tensorboard.")
"""Whose functions no update needs, of torch's own."""


@frozen_dataclass
class PythonLine:
    """Milliseconds per step, with an interval of 95 %; small operators per step where these take the time.

    `loop` repeats the line within a step; None where the line runs once, or once for each item of a batch.
    `makes_array` where it copies numbers of Python into one; `is_of_step` where it may use the step's data. `function`
    is a library's that takes the time, empty where the line's own Python does; `is_aside` where it returns nothing that
    is used.
    """

    blame: SourceLine
    stage: str
    ms: float
    interval_ms: tuple[float, float]
    num_operators: float
    loop: SourceLine | None
    makes_array: bool
    is_of_step: bool
    function: str
    is_aside: bool


@frozen_dataclass
class PythonLines:
    """Those that take a fifth of the step, the costliest first, one for each function; by so many samples.

    What a data set does once for each item, and is no array of Python's numbers, may be work that is needed.
    """

    lines: tuple[PythonLine, ...]
    num_samples: int

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Raises NotRecorded where the training was not sampled."""
        sampled = events_of(run.rank_folder, TrainingSampled)
        if not sampled:
            raise NotRecorded("the training's lines were not sampled; record a run of some 10 steps or more.")
        dear: dict[str, PythonLine] = {}
        for line in sorted(_lines(run, sampled[-1]), key=lambda line: -line.ms):
            if line.loop or line.makes_array or line.stage != "data":
                dear.setdefault(f"{line.blame.file} {line.blame.function}", line)
        return cls(lines=tuple(dear.values()), num_samples=sampled[-1].num_samples)

    @property
    def of_data(self) -> PythonLine | None:
        """The costliest one that makes batches."""
        return next((line for line in self.lines if line.stage == "data"), None)


def _lines(run: Run, sampled: TrainingSampled) -> Iterator[PythonLine]:
    sources, step_ms = run.get(Sources), run.get(StepTimes).median_ms()
    use = run.find(TimeUse, UnreadableInput)
    step_lines = _lines_of_steps(use, sampled)
    aside = [place for place in sampled.lines if _is_aside(place, sources, step_lines)]
    groups = defaultdict[tuple[str, int, bool], list[SampledPlace]](list)
    for place in sampled.lines:
        if place.stage not in NOT_PYTHON:
            file, line, _ = split_site(place.site)
            loop = _loop_of(sources.tree(file), line, {at for name, at in step_lines if name == file})
            groups[file, loop or line, loop is not None].append(place)
    called_us = sum(place.us for group in groups.values() for place in group)
    for (file, first, is_loop), places in groups.items():
        part = sum(place.us for place in places) / max(1e-9, called_us)
        num_operators, operator_ms, python, backward = _in_windows(
            use, {place_of(place.site) for place in places}, part
        )
        tree = sources.tree(file)
        arounds = [loop_around(tree, split_site(place.site)[1]) for place in places]
        is_batch = is_loop and not any(around and around.is_recurrent for around in arounds)
        is_many = is_batch and num_operators >= MANY_OPERATORS and operator_ms <= SMALL_MS
        us = sum(place.us for place in places if is_many or not place.is_in_library or place in aside)
        if us < MIN_CALLED * sampled.total_us and not is_many:
            us -= sum(place.us for place in places if _is_called(place) and place not in aside)
        share = us / sampled.total_us * (1.0 if is_many else python) + backward * is_many
        interval = binomial_interval(round(share * sampled.num_samples), sampled.num_samples)
        is_seen = is_loop or use is not None or any(place in aside for place in places)
        if share >= MIN_SHARE and interval[0] >= MIN_CERTAIN and is_seen:
            inner = [place for place in places if split_site(place.site)[1] != first] or places
            most = max(inner, key=lambda place: place.us)  # Python changes threads where a loop goes back to its begin
            blame = sources.line(most.site)
            yield PythonLine(
                blame=blame,
                stage=most.stage,
                ms=share * step_ms,
                interval_ms=(interval[0] * step_ms, interval[1] * step_ms),
                num_operators=num_operators if is_many else 0.0,
                loop=sources.line(f"{file}:{first}:{split_site(most.site)[2]}") if is_loop else None,
                makes_array=any(
                    called_name(node) in MAKES_ARRAYS
                    for node in ast.walk(tree)
                    if getattr(node, "lineno", 0) == blame.line
                ),
                is_of_step=is_of_step(tree, blame.line),
                function=most.function if _is_called(most) or most in aside else "",
                is_aside=most in aside,
            )


def _lines_of_steps(use: TimeUse | None, sampled: TrainingSampled) -> set[tuple[str, int]]:
    """The lines that lead to what each step does once: a loop around one of them is that of the steps."""
    paths = use.window.walk() if use else ()
    leading = [part.text for path in paths if path.stage == "optimizer" for part in path.parts() if part.kind == "line"]
    sites = [*leading, *(place.site for place in sampled.lines if place.stage in NOT_PYTHON)]
    return {split_site(site)[:2] for site in sites}


def _is_called(place: SampledPlace) -> bool:
    """Whether a module of Python's own does the work there; NumPy's is the line's own."""
    return bool(place.function) and not place.is_in_library and not place.function.startswith("numpy.")


def _is_aside(place: SampledPlace, sources: Sources, step_lines: set[tuple[str, int]]) -> bool:
    """Whether what a library's function returns there is used by nothing: it writes a file, logs, draws."""
    file, line, _ = split_site(place.site)
    is_torchs = place.function.startswith("torch.") and not place.function.startswith(NO_TRAINING)
    if place.stage != "other" or not place.function or is_torchs or (file, line) in step_lines:
        return False
    found = nodes_on(sources.tree(file), line)
    return any(isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) for node in found)


def _loop_of(tree: ast.Module, line: int, step_lines: set[int]) -> int | None:
    """Where the innermost loop around the line begins, or on it, unless it is the loop of the steps."""
    loops = {node.lineno: node.end_lineno or 0 for node in ast.walk(tree) if isinstance(node, LOOPS)}
    around = loop_around(tree, line)
    first = line if line in loops else around.line if around else 0
    is_of_steps = any(first <= at <= loops.get(first, first) for at in step_lines)
    return None if is_of_steps else first or None


def _in_windows(use: TimeUse | None, places: set[str], part: float) -> tuple[float, float, float, float]:
    """Of these lines in a step: how many operators they start, how long one takes, and the share of all the rest.

    And the share of the step that their backward pass takes. A window without lines tells of all of them together: so
    many operators are theirs as is their `part` of the time in which lines start any.
    """
    if use is None:
        return 0.0, 0.0, 1.0, 0.0
    of_all = not use.window.lines
    every = list(use.window.walk())
    theirs = every if of_all else [path for place in places for path in use.window.lines.get(("line", place), ())]
    paths = [path for path in theirs if path.stage not in NOT_PYTHON]
    operators = [path for path in paths if path.kind == "operator"]
    num, own_ns = sum(path.count for path in operators), sum(path.own_ns for path in operators)
    if not num:
        return 0.0, 0.0, 1.0, 0.0
    backward_ns = sum(path.own_ns for path in theirs if path.stage == "backward")
    backward = backward_ns / max(1, sum(path.own_ns for path in every)) * (part if of_all else 1.0)
    operator_ms = own_ns / num / 1e6 * use.window.scale
    if of_all:
        return part * num / use.window.num_steps, operator_ms, 1.0, backward
    return num / use.window.num_steps, operator_ms, 1 - own_ns / max(1, sum(path.own_ns for path in paths)), backward
