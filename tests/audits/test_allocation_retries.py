"""allocation_retries: fires where retries go on, on the line that asked or that of the stage, and on nothing else."""

from collections.abc import Callable
from pathlib import Path

import pytest

from efprof.artifacts.run_file import Device
from efprof.artifacts.snapshot import Snapshot
from efprof.artifacts.steps import BoundaryMemory, StepRecord
from efprof.audits.allocation_retries import allocation_retries
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.run.run import Run
from efprof.model import BOUNDARIES, Alternatives, EnvironmentVariable, Finding, NothingToLookAt, Number, Numbers
from efprof.units import MIB
from tests.audits.test_fragmented_reserve import CACHE, OUTPUT, Program
from tests.support.builders import make_step, on_device, write_run

TRAIN = """\
def train(model, loader):
    for batch in loader:
        output = model(batch)
        cache.append(output.mean(0))
        output.sum().backward()
        optimizer.step()
"""
BACKWARD = "train.py:5:train"
GPU_BYTES, RESERVED = 512 * MIB, 480 * MIB
GPU = Device(index=0, name="NVIDIA T4", total_bytes=GPU_BYTES, free_bytes=GPU_BYTES - RESERVED)
SLOW_MS = 30.0
FRACTION = str(1 / 256)


def every_third(step: int) -> bool:
    return step % 3 == 0


def steps_with(
    is_retried: Callable[[int], bool], *, num_steps: int = 60, boundary: str = "post_backward"
) -> list[StepRecord]:
    """Each such step retries twice before `boundary`, and takes 30 ms longer, give or take one."""
    steps, count = [], 0
    for number in range(num_steps):
        slow_ms = SLOW_MS if is_retried(number) else 0.0
        step = make_step(number, backward_ms=8.0 + slow_ms + number % 3 * 0.1, backward_site=BACKWARD)
        step.memory = []
        for name in BOUNDARIES:
            count += 2 * (is_retried(number) and name == boundary)
            step.memory.append(BoundaryMemory(name, 1000.0, 300 * MIB, RESERVED, 300 * MIB, 0, count))
        steps.append(step)
    return steps


def run_of(folder: Path, steps: list[StepRecord], *programs: Program) -> Run:
    return run_with(folder, steps, *(program.snapshot() for program in programs))


def run_with(folder: Path, steps: list[StepRecord], *snapshots: Snapshot) -> Run:
    return write_run(
        folder, steps=steps, sources={"train.py": TRAIN}, snapshots=snapshots,
        devices=[GPU], memory_source="CUDA allocator",
    )  # fmt: skip


def outgrowing(settings: AllocatorSettings, *, by_mib: int = 4) -> Program:
    """Each output is larger than the one before, and the device too small for both: the old one must go first."""
    program = Program(settings, capacity=GPU_BYTES)
    program.at(CACHE).malloc(20 * MIB)
    for number in range(10):
        program.free(program.at(OUTPUT).malloc((300 + by_mib * number) * MIB))
    return program


def limited_run(folder: Path, snapshot: Snapshot) -> Run:
    """On a device 256 times as large, of which the program lets itself take as much as the other has."""
    large = Device(index=0, name="NVIDIA H200", total_bytes=256 * GPU_BYTES, free_bytes=256 * GPU_BYTES - RESERVED)
    return write_run(
        folder, steps=steps_with(every_third), sources={"train.py": TRAIN}, snapshots=[snapshot],
        devices=[large], memory_source="CUDA allocator", settings={"memory fraction": FRACTION},
    )  # fmt: skip


def only_finding(run: Run) -> Finding:
    (finding,) = allocation_retries(run).findings
    return finding


def test_it_blames_the_line_that_asked_and_sets_what_makes_the_replay_need_no_retry(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path / "run", steps_with(every_third), outgrowing(AllocatorSettings())))
    assert str(finding.blame) == f"train.py:{OUTPUT}"
    assert "most often it was this line that asked" in finding.why
    (change,) = finding.fix.changes
    assert isinstance(change, EnvironmentVariable)
    assert change.new == "expandable_segments:True"
    assert "need 0 instead of 9 retries." in finding.fix.summary
    assert finding.fix.applicability == "safe"


def test_where_no_setting_helps_the_micro_batch_is_named(tmp_path: Path) -> None:
    program = outgrowing(AllocatorSettings(), by_mib=18)
    finding = only_finding(limited_run(tmp_path / "run", program.snapshot()))
    summary = finding.fix.summary
    assert "Take 14 samples per micro-batch instead of 16" in summary, "as on a device of that size"
    (trials,) = [one for one in finding.evidence if isinstance(one, Alternatives)]
    assert trials.limit == (GPU_BYTES, "what the device has for this program")


def test_without_a_history_the_stage_is_named_its_line_blamed_and_the_gain_what_such_steps_take_longer(
    tmp_path: Path,
) -> None:
    finding = only_finding(run_of(tmp_path / "run", steps_with(every_third)))
    assert str(finding.blame) == "train.py:5"
    assert finding.why.startswith(
        "Each time the allocator gave its cache back to go on. 100 % of them came in the backward"
    )
    assert finding.fix.applicability == "manual"
    assert "Take 14 samples per micro-batch instead of 16" in finding.fix.summary, "(0.9 * 512 - 300) / (180 / 16)"
    (numbers,) = [one for one in finding.evidence if isinstance(one, Numbers)]
    assert Number(label="retries in the backward stage", value=38.0, unit="count") in numbers.numbers
    gain = finding.gain
    assert gain.step_ms == pytest.approx(SLOW_MS / 3, rel=0.05)
    assert gain.step_ms_interval[0] <= gain.step_ms <= gain.step_ms_interval[1]
    assert gain.basis == "measured bound"


def test_what_a_retry_waits_for_a_busy_device_is_not_saved(tmp_path: Path) -> None:
    steps = steps_with(every_third)
    for step in steps:
        on_device(step, 0.0, step.total_us / 1000, 0.0, 0.0, total_ms=step.total_us / 1000)
    gain = only_finding(run_of(tmp_path / "run", steps)).gain
    assert gain.step_ms == pytest.approx(4.0), "until the forward pass has given it all its work"


def test_where_every_step_retries_no_time_is_claimed_and_retries_at_the_start_are_no_fault(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path / "run", steps_with(lambda step: True)))
    assert finding.gain.step_ms is None
    assert finding.message.startswith("The device's memory ran out 2 times per step")
    examination = allocation_retries(run_of(tmp_path / "second", steps_with(lambda step: step < 12)))
    assert examination.findings == ()
    assert examination.looked_at == "57 steps, 18 of the allocator's retries"


def test_two_steps_far_apart_and_a_counter_that_stands_still_are_no_fault(tmp_path: Path) -> None:
    """It counts from the start of the process: what came before the first step is not the loop's."""
    still = steps_with(lambda step: False)
    for here in (here for step in still for here in step.memory):
        here.num_retries = 40
    for name, steps in {"apart": steps_with(lambda step: step in {10, 50}), "still": still}.items():
        assert allocation_retries(run_of(tmp_path / name, steps)).findings == (), name


def test_an_emptied_cache_is_no_retry_and_a_cold_start_is_no_praise_for_a_setting(tmp_path: Path) -> None:
    program = Program(AllocatorSettings(), capacity=GPU_BYTES)
    for _ in range(4):
        program.free(program.at(OUTPUT).malloc(100 * MIB))
        program.empty_cache()
    finding = only_finding(run_of(tmp_path / "run", steps_with(every_third), program))
    assert str(finding.blame) == "train.py:5", "the history holds no retry, so the stage's line it is"
    # The one retry gives back what lay there when the recording began: no setting, started cold, has any.
    program = Program(AllocatorSettings(), capacity=GPU_BYTES)
    program.free(program.at(OUTPUT).malloc(300 * MIB))
    first_entry = len(program.entries)
    program.at(CACHE).malloc(400 * MIB)
    finding = only_finding(
        run_with(tmp_path / "second", steps_with(every_third), program.snapshot(first_entry=first_entry))
    )
    assert finding.fix.applicability == "manual"


def test_a_run_without_the_counter_names_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(NothingToLookAt, match=r"^Needs a CUDA device\.$"):
        allocation_retries(write_run(tmp_path / "run", steps=[make_step(step) for step in range(60)]))
