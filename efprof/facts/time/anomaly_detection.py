"""What anomaly detection takes of a step: the stacks that it formats, by samples, and its checks, by a window."""

import re

from efprof.artifacts.events import ANOMALY, TrainingSampled, events_of
from efprof.facts.run.run import Run
from efprof.facts.steps.step_times import StepTimes
from efprof.facts.time.loader_lines import binomial_interval
from efprof.facts.time.time_use import TimeUse
from efprof.model import UnreadableInput

CHECKS = re.compile(r"^aten::(isnan|_is_any_true)$")
"""What looks for NaN in each gradient, as torch's profiler names it."""


def anomaly_ms(run: Run) -> float:
    """Milliseconds of each step at the least, with 97.5 % of the chance; 0 where no sample met a stack being formatted.

    A sample waits for Python's lock, and so misses the end of what holds it: 32 % of the step was seen where it took
    56 % (torch 2.13).
    """
    sampled = events_of(run.rank_folder, TrainingSampled)
    us = sum(place.us for place in sampled[-1].lines if place.function == ANOMALY) if sampled else 0.0
    if not us:
        return 0.0
    num = sampled[-1].num_samples
    least, _ = binomial_interval(round(us / sampled[-1].total_us * num), num)
    return _checks_ms(run) + least * run.get(StepTimes).median_ms()


def _checks_ms(run: Run) -> float:
    use = run.find(TimeUse, UnreadableInput)
    if use is None:
        return 0.0
    trace = use.window.trace
    return use.per_step_ms(int(trace.duration_ns[trace.matches(CHECKS)].sum())) * use.window.scale
