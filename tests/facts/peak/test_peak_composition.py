"""What fills the peak, and what checkpointing a line or smaller micro-batches would leave of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.allocations import AllocationEvent
from efprof.artifacts.steps import LightLine
from efprof.facts.peak.peak_composition import PeakComposition, PeakReduction
from efprof.facts.run.run import Run
from efprof.model import NotRecorded
from efprof.units import MIB
from tests.facts.allocations import allocation
from tests.support.builders import START_NS, make_step, write_run

TRAIN = """\
def train(model, loader, optimizer):
    for x in loader:
        loss = model(x).mean()
        loss.backward()
        optimizer.step()
"""
MODEL = """\
class Model(nn.Module):
    def forward(self, hidden):
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


class Block(nn.Module):
    def forward(self, hidden):
        wide = self.widen(hidden)
        return self.narrow(wide)
"""
SOURCES = {"train.py": TRAIN, "model.py": MODEL}
CALL = "train.py:3:train"
LOOP, HEAD = "model.py:4:forward", "model.py:5:forward"
WIDE, NARROW = "model.py:10:forward", "model.py:11:forward"
STEP = 5
BEFORE = 100 * MIB


class Recording:
    """Events of one step: forward lies between 1 and 5 ms, backward up to 13, the optimizer up to 15."""

    def __init__(self) -> None:
        self.events: list[AllocationEvent] = []
        self._sizes: dict[int, int] = {}

    def make(self, at_ms: float, mib: int, *lines: str, backward: bool = False) -> int:
        address = len(self.events) + 1
        self._sizes[address] = mib * MIB
        self._add(at_ms, address, mib * MIB, lines, backward)
        return address

    def free(self, at_ms: float, address: int) -> None:
        self._add(at_ms, address, -self._sizes[address], (), False)

    def _add(self, at_ms: float, address: int, num_bytes: int, lines: tuple[str, ...], backward: bool) -> None:
        at_ns = START_NS + STEP * 1_000_000_000 + round(at_ms * 1e6) + len(self.events)
        where = {"stack": (), "forward_stack": lines} if backward else {"stack": lines}
        self.events.append(allocation(at_ns, address, num_bytes, is_backward=backward, **where))


def stacked_blocks(num_blocks: int = 4, inner_mib: int = 10, output_mib: int = 1) -> Recording:
    """Blocks that keep a wide tensor and what they return; backward goes through them from the last to the first."""
    recording = Recording()
    kept = [
        (recording.make(2, inner_mib, CALL, LOOP, WIDE), recording.make(2, output_mib, CALL, LOOP, NARROW))
        for _ in range(num_blocks)
    ]
    kept.append((recording.make(3, output_mib, CALL, HEAD), recording.make(3, output_mib, CALL)))
    for place, (inner, output) in enumerate(reversed(kept)):
        lines = (LOOP, WIDE) if place else (HEAD,)
        gradient = recording.make(6, 1, CALL, *lines, backward=True)
        recording.free(7, inner)
        recording.free(7, output)
        recording.free(7, gradient)
    return recording


def run_of(
    folder: Path, recording: Recording, *, samples: int = 16, forward_ms: float = 4.0, device_ms: float | None = None
) -> Run:
    """A window of one step after others, whose forward passes take `forward_ms` and on the device `device_ms`, and
    before light ones, of which that is not known.
    """
    steps = [
        make_step(number, backward_site="train.py:4:train", samples=samples, forward_ms=forward_ms)
        for number in range(STEP)
    ]
    for span in (span for step in steps for span in step.spans if span.stage == "forward"):
        span.device_us = None if device_ms is None else device_ms * 1000
    window = make_step(STEP, window="trace-1", allocated_bytes=[BEFORE], samples=samples)
    light = [LightLine(light=[(number, START_NS, 900.0, 1, None, 0) for number in range(6, 20)], recorder_us=1.0)]
    return write_run(folder, steps=[*steps, window, *light], sources=SOURCES, allocations=[recording.events])


def way(peak: PeakComposition, site: str) -> PeakReduction:
    (found,) = [one for one in peak.ways if one.site == site]
    return found


def test_what_is_alive_at_the_peak_is_told_by_what_it_is_for(tmp_path: Path) -> None:
    recording = Recording()
    recording.make(0.5, 2, "train.py:2:train")
    kept = recording.make(2, 20, CALL, WIDE)
    recording.free(2, recording.make(2, 3, CALL, WIDE))
    recording.make(6, 4, CALL, WIDE, backward=True)
    recording.make(6, 5, CALL, WIDE, backward=True)
    recording.free(7, 6)
    recording.free(7, kept)
    peak = run_of(tmp_path, recording).get(PeakComposition)
    assert peak.at_peak == {
        "activations": 20 * MIB, "gradients": 4 * MIB, "optimizer state": 0, "inputs": 2 * MIB, "work space": 5 * MIB,
    }  # fmt: skip
    assert peak.peak_bytes == BEFORE + 29 * MIB, "the batch was there already when memory was first read"


def test_checkpointing_a_loop_s_call_keeps_what_each_returns_and_all_of_the_model_wins_nothing(tmp_path: Path) -> None:
    peak = run_of(tmp_path, stacked_blocks()).get(PeakComposition)
    assert peak.peak_bytes == BEFORE + (4 * 11 + 2 + 1) * MIB
    option = way(peak, LOOP)
    assert option.name.endswith(", run 4 times a step")
    assert option.peak_bytes == BEFORE + (4 * 1 + 10 + 1) * MIB, "four results, the inside of the last, its gradient"
    assert [one for one in peak.ways if one.site == CALL] == []


def test_micro_batches_divide_what_grows_with_the_batch_unless_that_is_of_one(tmp_path: Path) -> None:
    peak = run_of(tmp_path, stacked_blocks()).get(PeakComposition)
    halves, quarters = (one for one in peak.ways if "over 2 " in one.name or "over 4 " in one.name)
    assert halves.peak_bytes == BEFORE + 47 * MIB // 2
    assert quarters.peak_bytes == pytest.approx(BEFORE + 47 * MIB / 4, abs=1)
    peak = run_of(tmp_path / "second", stacked_blocks(), samples=1).get(PeakComposition)
    assert [one for one in peak.ways if "micro-batches" in one.name] == []


@pytest.mark.parametrize(
    ("forward_ms", "device_ms", "factor"),
    [(4.0, None, 1.0), (1.0, None, 0.25), (1.0, 12.0, 3.0), (4.0, 1.0, 1.0)],
    ids=["as long", "a window slows the host", "the device has more to do", "the host has more to do"],
)
def test_a_call_takes_its_share_of_a_forward_pass_outside_windows(
    forward_ms: float, device_ms: float | None, factor: float, tmp_path: Path
) -> None:
    usual = way(run_of(tmp_path / "usual", stacked_blocks()).get(PeakComposition), LOOP)
    run = run_of(tmp_path / "other", stacked_blocks(), forward_ms=forward_ms, device_ms=device_ms)
    assert way(run.get(PeakComposition), LOOP).extra_ms == pytest.approx(factor * usual.extra_ms)
    assert usual.extra_ms > 0


@given(num_blocks=st.integers(1, 6), inner=st.integers(1, 20), output=st.integers(1, 5))
def test_no_way_predicts_more_than_there_was_or_less_than_what_stays(
    tmp_path_factory: pytest.TempPathFactory, num_blocks: int, inner: int, output: int
) -> None:
    run = run_of(tmp_path_factory.mktemp("run"), stacked_blocks(num_blocks, inner, output))
    peak = run.get(PeakComposition)
    assert all(BEFORE <= one.peak_bytes <= peak.peak_bytes for one in peak.ways)


def test_a_window_in_no_step_whose_memory_was_read_is_not_judged(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=[make_step(1)], sources=SOURCES, allocations=[stacked_blocks().events])
    with pytest.raises(NotRecorded, match="memory was read"):
        run.get(PeakComposition)
