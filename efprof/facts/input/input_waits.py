"""How long the steps waited for data, for which loader, what other settings of it would give, and the evidence."""

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

from efprof.artifacts.events import LoaderBuilt, events_of
from efprof.artifacts.steps import StepRecord
from efprof.facts.run.run import Run
from efprof.facts.steps.ready_threads import ReadyThreads
from efprof.facts.steps.step_times import StepTime, StepTimes, mean_interval, part_of_steps, stall_lines
from efprof.model import Evidence, Narrative, NotRecorded, StallLine, frozen_dataclass
from efprof.units import format_count, format_interval, format_ms, format_share, in_brackets

MIN_GAIN = 0.03
"""More workers that win less than 3 % of the step are no advice: runs differ by as much."""
MIN_SURE_GAIN, MIN_FIRST_GAIN = 0.1, 0.18
"""Nor is a first one for less than a tenth, or, where it may win nothing, than this: where 10 % was predicted
(Lightning's autoencoder on two cores) it won 10 % of a training with one thread, and lost 40 % of one with two."""

HANDOVER_MS = 1.2
"""Taking a finished batch from a worker process: measured at 1.2 ms for batches up to 256 KiB, 2.4 ms for 1 MiB, on two
busy cores with torch 2.13."""
MAX_HANDOVER_MS = 3.0
"""The same for 4 MiB: with workers, a shorter wait does not show that they are too slow."""
SHARED_CORE_COST = 0.6
"""Two busy hardware threads of one core take 1.6 times as long as one alone: measured with convolutions on an EPYC
virtual machine of two processors, which does not tell that they are one core."""
LARGE_WAIT_FACTOR, LARGE_WAIT_MS = 5.0, 1.0
"""A wait this many times the median one is of another kind: workers that are started, not a batch that is made."""
MAX_LARGE_SHARE = 0.25
"""Epochs shorter than four steps are not told from noise."""
MAX_EPOCHS = 0.8
"""The share of the epochs that must begin with a large wait."""
LONGEST_SHARE = 0.05
"""The waits left out of the mean."""

MIN_RESTARTS = 0.5
"""Per step: an evaluation that stops early restarts its loader too, but not in every second step."""


@frozen_dataclass
class InputWaits:
    """Milliseconds per steady step: waiting for data (the mean, since several workers deliver in bursts) and the rest.

    What it takes to record a step in full is no part of these.

    A device waits only as long as it has nothing else to do; the host takes `fetch_ms` for the data.
    `production_ms` is what one worker needs for a step's batches.
    `num_restarts` steps waited for the workers of a new epoch, `restart_ms` is their wait spread over all steps.
    `threads` is None where nobody counted, `loader` where the loader that fed the steps was not seen being built.
    """

    loader: LoaderBuilt | None
    num_cpus: int
    num_epochs: int
    rest_ms: float
    data_ms: float
    data_interval_ms: tuple[float, float]
    fetch_ms: float
    cpu_ms: float
    num_restarts: int
    restart_ms: float
    threads: ReadyThreads | None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Measure the waits; raises NotRecorded or ThinEvidence where there are no steady steps."""
        times = run.get(StepTimes)
        steady = times.at_least(1)
        loader = loader_of(run, [time.record for time in steady])
        num_steps = len(times.own_ms)  # of the light ones nobody knows whether they waited; no epoch begins there
        restarts, epoch = _restarts(steady, loader, num_steps), _steps_per_epoch(times.every, loader)
        usual = [time for time in steady if time not in restarts]
        waits_ms = _without_longest([time.data_wait_ms for time in usual])
        data_ms = statistics.fmean(waits_ms)
        recorded_ms = max(0.0, statistics.median(time.total_ms for time in steady) - times.median_ms())
        return cls(
            loader=loader,
            num_cpus=run.run_file.host.num_cpus if run.run_file.host else 1,
            num_epochs=math.ceil(len(times.every) / epoch) if epoch else 1,
            rest_ms=max(0.0, statistics.median(time.total_ms - time.data_wait_ms for time in steady) - recorded_ms),
            data_ms=data_ms,
            data_interval_ms=mean_interval(waits_ms),
            fetch_ms=statistics.fmean(_without_longest([time.of("data") for time in usual])),
            cpu_ms=max(0.0, statistics.median(time.cpu_ms for time in steady) - recorded_ms),
            num_restarts=len(restarts),
            restart_ms=sum(time.data_wait_ms - data_ms for time in restarts) / num_steps,
            threads=run.find(ReadyThreads),
        )

    @property
    def others(self) -> float:
        """The share of the cores that other programs held, where they left few over."""
        return self.threads.others if self.threads and self.threads.is_disturbed else 0.0

    @property
    def alone(self) -> Self:
        """The same without the time that training and workers were ready and other programs had their cores.

        A short wait does not show how long workers take. Without workers, all of a step takes longer alike, but where
        operations are cut into threads: then any part of the wait may be for these.
        """
        if self.threads is None or not self.others or (self.num_workers and self.data_ms <= MAX_HANDOVER_MS):
            return self
        rank = self.threads.ranks[0]
        waited = min(1.0, (rank.waiting - rank.children_waiting) / rank.num_threads)
        if not self.num_workers:
            data_ms = self.data_ms * (1 - waited) if rank.num_threads == 1 else 0.0
            return replace(self, rest_ms=self.rest_ms * (1 - waited), data_ms=data_ms)
        rest_ms = max(0.0, self.rest_ms - waited * self.step_ms)
        made_ms = self.step_ms * (1 - rank.children_waiting / self.num_workers)
        return replace(self, rest_ms=rest_ms, data_ms=max(0.0, made_ms - rest_ms))

    @property
    def step_ms(self) -> float:
        """The step with its wait."""
        return self.rest_ms + self.data_ms

    @property
    def num_workers(self) -> int:
        """The loader's worker processes; 0 where the training process makes the batches itself."""
        return self.loader.num_workers if self.loader else 0

    @property
    def keeps_workers(self) -> bool:
        return self.loader is not None and self.loader.persistent_workers

    @property
    def production_ms(self) -> float:
        """What one worker needs to make the batches of a step: workers that are waited for are always busy."""
        return self.num_workers * self.step_ms if self.num_workers else self.fetch_ms

    @property
    def most_workers(self) -> int:
        """One core stays with the training process."""
        return self.num_cpus - 1

    @property
    def wanted_workers(self) -> int:
        """How many workers make batches as fast as the rest of the step uses them, on any number of cores."""
        return max(1, math.ceil(self.production_ms / self.rest_ms)) if self.rest_ms else self.num_cpus

    @property
    def best_workers(self) -> int:
        """How many of the wanted workers there are cores for."""
        return min(self.wanted_workers, self.most_workers)

    @property
    def can_win(self) -> bool:
        """Whether these save enough of the step to be worth an edit."""
        workers = self.best_workers
        if workers <= self.num_workers:
            return False
        is_sure = self.saved_interval_ms_with(workers)[0] > 0
        least = MIN_GAIN if self.num_workers else MIN_SURE_GAIN if is_sure else MIN_FIRST_GAIN
        return self.saved_ms_with(workers) >= least * self.step_ms

    def saved_ms_with(self, num_workers: int) -> float:
        """What that many workers save per step, if any, midway between workers that hinder the training and do not."""
        if num_workers <= self.num_workers:
            return 0.0
        return self.step_ms - (self.best_step_ms_with(num_workers) + self.worst_step_ms_with(num_workers)) / 2

    def saved_interval_ms_with(self, num_workers: int) -> tuple[float, float]:
        """From workers that hinder the training on every core they share to workers that do not, and 95 % of steps."""
        half_width_ms = (self.data_interval_ms[1] - self.data_interval_ms[0]) / 2
        handover_ms = MAX_HANDOVER_MS - HANDOVER_MS
        least_ms = self.step_ms - self.worst_step_ms_with(num_workers) - handover_ms - half_width_ms
        most_ms = self.step_ms - self.best_step_ms_with(num_workers) + HANDOVER_MS
        return max(0.0, least_ms), min(self.data_ms, most_ms) + half_width_ms

    def best_step_ms_with(self, num_workers: int) -> float:
        """The slowest of training, workers, and all cores together.

        As far as there are cores, the wait is then hidden behind the training: both do the same work as before.
        """
        training_ms = self.rest_ms + HANDOVER_MS
        return max(training_ms, self.production_ms / num_workers, self._work_ms() / self.num_cpus)

    def worst_step_ms_with(self, num_workers: int) -> float:
        """The same where every two processors are hardware threads of one core, and all share its memory.

        What is busy at the same time then slows down; threads of one operation also wait for the slowest of them.
        """
        training_ms, worker_ms = self.rest_ms + HANDOVER_MS, self.production_ms / num_workers
        best_ms = self.best_step_ms_with(num_workers)
        own_ms = self._work_ms() - self.production_ms
        num_training = min(float(self.num_cpus), own_ms / self.rest_ms) if self.rest_ms else 1.0
        num_busy = num_training + max(1.0, min(num_workers, self.production_ms / best_ms))
        on_shared_cores = min(1.0, max(0.0, num_busy - self.num_cpus / 2))
        on_shared_processors = min(1.0, max(0.0, num_busy - self.num_cpus))
        slowed_ms = SHARED_CORE_COST * on_shared_cores * min(training_ms, worker_ms)
        return max(best_ms, max(training_ms, worker_ms) + slowed_ms + worker_ms * on_shared_processors / 2)

    @property
    def is_out_of_cores(self) -> bool:
        """Whether it is for want of cores that more workers would not help."""
        all_work_ms = self._work_ms() / self.num_cpus
        return self.num_workers >= self.most_workers or all_work_ms > self.rest_ms + HANDOVER_MS

    def told(self) -> tuple[str, str]:
        """Of batches that come too late: what happens, and why."""
        interval = in_brackets(format_interval(*self.data_interval_ms, "ms"))
        share = format_share(self.data_ms / self.step_ms)
        why = "The batches are made in the training process (`num_workers=0`)."
        if self.num_workers:
            why = f"{format_count(self.num_workers, 'data worker')} cannot make batches as fast as they are used."
        return f"Each step waits {format_ms(self.data_ms)}{interval} for its data, {share} of its time.", why

    def told_of_restarts(self) -> tuple[str, str]:
        """Of workers that are started anew: what happens, and why."""
        share = self.restart_ms / (self.step_ms + self.restart_ms)
        cost = f"{format_ms(self.restart_ms)} per step on average, {format_share(share)} of the time"
        why = "The loader ends its workers with each epoch and starts new ones for the next."
        return f"Starting data workers at each of {self.num_restarts} epochs costs {cost}.", why

    def _work_ms(self) -> float:
        """CPU time per step of training and workers together."""
        return self.cpu_ms + (self.production_ms if self.num_workers else 0.0)


def restarted_lines(run: Run) -> list[list[StallLine]]:
    """What each line does in at least every second step that restarts a loader; raises NotRecorded without a loader."""
    if not events_of(run.rank_folder, LoaderBuilt):
        raise NotRecorded("no DataLoader was recorded.")
    lines = defaultdict[str, list[StallLine]](list)
    for line in stall_lines(run):
        if line.call.startswith("DataLoader") and line.count_per_step >= MIN_RESTARTS:
            lines[line.blame.key].append(line)
    return list(lines.values())


def waits_of_only_loader_ms(run: Run) -> float:
    """What a step waits for its batches, the loader's start among that; 0 where several loaders share it."""
    if len(events_of(run.rank_folder, LoaderBuilt)) > 1:
        return 0.0
    return statistics.median(time.data_wait_ms for time in run.get(StepTimes).at_least(1))


def loader_of(run: Run, records: Sequence[StepRecord]) -> LoaderBuilt | None:
    """The loader that fed most of these steps; None where it was not seen being built."""
    numbers = Counter(record.loader for record in records if record.loader is not None).most_common(1)
    built = events_of(run.rank_folder, LoaderBuilt)
    return next((event for event in built for number, _ in numbers if event.loader == number), None)


def _without_longest(waits_ms: Sequence[float]) -> list[float]:
    """A few waits are long for reasons of the machine, and would decide a mean."""
    longest_kept = sorted(waits_ms)[math.ceil(len(waits_ms) * (1 - LONGEST_SHARE)) - 1]
    return [wait_ms for wait_ms in waits_ms if wait_ms <= longest_kept]


def _steps_per_epoch(times: Sequence[StepTime], loader: LoaderBuilt | None) -> int | None:
    if loader is None or not loader.num_batches:
        return None
    micro_batches = statistics.median_low([max(1, time.record.micro_batches) for time in times])
    return math.ceil(loader.num_batches / micro_batches)


def _restarts(steady: Sequence[StepTime], loader: LoaderBuilt | None, num_steps: int) -> list[StepTime]:
    """The first steps of the epochs, where they waited long; none for a loader that keeps its workers."""
    if loader is None or not loader.num_workers or loader.persistent_workers:
        return []
    limit_ms = max(LARGE_WAIT_MS, LARGE_WAIT_FACTOR * statistics.median(time.data_wait_ms for time in steady))
    large = [time for time in steady if time.data_wait_ms > limit_ms]
    if len(large) < 2 or len(large) > MAX_LARGE_SHARE * num_steps:
        return []
    steps = _steps_per_epoch(steady, loader) or large[1].step - large[0].step
    first = Counter(time.step % steps for time in large).most_common(1)[0][0]
    at_start = [time for time in large if time.step % steps == first]
    num_epochs = len([time for time in steady if time.step % steps == first])
    return at_start if len(at_start) >= max(2, MAX_EPOCHS * num_epochs) else []


def wait_evidence(times: StepTimes) -> tuple[Evidence, ...]:
    return (
        part_of_steps(times, "waiting for data", [time.data_wait_ms for time in times.steady]),
        Narrative.of(
            "The time between asking the loader for a batch and getting it was measured in the steps recorded in "
            "full; as long as a device still has something to do, it is no wait.",
            "The prediction takes the slowest of three: the rest of the step, one worker's time over the workers, "
            "and all CPU time divided by the processors. Its interval reaches from workers that cost the training "
            "nothing to workers that share its cores and memory, and the prediction lies midway.",
            "It is wrong where batches wait for a disk or a network that more workers cannot make faster, and where "
            "the data set holds a lock.",
        ),
    )
