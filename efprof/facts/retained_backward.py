"""Whether the graph that the step's last backward keeps is gone through again, and what keeping it costs."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from efprof.artifacts.steps import StepRecord, read_steps
from efprof.artifacts.trace import read_trace, trace_paths
from efprof.facts.live_memory import LiveMemory
from efprof.facts.retained_backward_call import RetainingCall, retaining_call
from efprof.facts.retained_backward_nodes import BackwardPass, WindowPasses, passes_of
from efprof.facts.retained_backward_replay import GraphReplay, replay_without_graphs
from efprof.facts.run import Run
from efprof.facts.sources import Sources
from efprof.facts.step_times import StepTimes
from efprof.model import NotRecorded, ThinEvidence


@dataclass(frozen=True, kw_only=True, slots=True)
class RetainedBackward:
    """The call, the same in all of `num_steps` steady steps; None where there is none whose text keeps the graph.

    `num_passes` calls of it were seen in windows. `is_needless` says that none of them had a node run again, before or
    after, and that no step has more passes of backward than those seen. `replay` is None where no allocations tell.
    """

    num_steps: int
    call: RetainingCall | None
    num_passes: int = 0
    is_needless: bool = False
    replay: GraphReplay | None = None

    @classmethod
    def compute(cls, run: Run) -> Self:
        """Reads windows only where a call keeps its graph; raises NotRecorded or ThinEvidence where they lack it."""
        steady = run.get(StepTimes).at_least(1)
        sites = {time.record.backward_site for time in steady}
        site = next(iter(sites))
        call = retaining_call(run.get(Sources), site) if len(sites) == 1 and site else None
        if call is None:
            return cls(num_steps=len(steady), call=None)
        records = [record for record in read_steps(run.rank_folder)[0] if record.window is not None]
        windows = [passes_of(read_trace(path), call.site, records) for path in trace_paths(run.rank_folder)]
        seen = [(window, one) for window in windows for one in window.passes if _can_tell(window, one)]
        if not seen:
            raise ThinEvidence(
                f"{call.file}:{call.line} keeps the graph, and no profiler window shows whether that is needed: record "
                "one of two steps (--trace-steps)."
            )
        replay = _replay(run, windows, call)
        is_needless = (
            not any(_is_needed(window, one, call) for window, one in seen)
            and max(map(_num_backwards, (time.record for time in steady))) <= max(map(_num_backwards, records))
            and not (replay is not None and replay.outlives_a_step)
        )
        return cls(num_steps=len(steady), call=call, num_passes=len(seen), is_needless=is_needless, replay=replay)


def _can_tell(window: WindowPasses, one: BackwardPass) -> bool:
    """Whether a step that goes through an earlier one's graph would show: from its own side, or from the other's."""
    return one.record.sequence is not None or window.passes[-1].record.step > one.record.step


def _is_needed(window: WindowPasses, one: BackwardPass, call: RetainingCall) -> bool:
    return window.is_run_again(one) or (call.creates_graph and window.is_gradient_run(one))


def _num_backwards(record: StepRecord) -> int:
    return sum(span.stage == "backward" for span in record.spans)


def _replay(run: Run, windows: Sequence[WindowPasses], call: RetainingCall) -> GraphReplay | None:
    """Of the window whose peak is highest."""
    passes = {window.name.replace("trace-", "allocations-") + ".parquet": window for window in windows}
    replays: list[GraphReplay] = []
    with contextlib.suppress(NotRecorded):
        for live in run.get(LiveMemory).windows:
            if live.name in passes:
                found = replay_without_graphs(live, passes[live.name], creates_graph=call.creates_graph)
                replays += [found] if found else []
    return max(replays, key=lambda one: one.window.peak_bytes, default=None)
