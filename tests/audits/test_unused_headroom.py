"""unused_headroom: fires where most of a device is never used by steps that are all alike, never on a host."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.readings import DEVICE_USE_FILE, DeviceUse
from efprof.artifacts.run_file import Device
from efprof.artifacts.steps import BoundaryMemory, SiteCalls, StepRecord
from efprof.audits.unused_headroom import unused_headroom
from efprof.facts.run.run import Run
from efprof.model import BOUNDARIES, ConfigurationValue, Finding, NothingToLookAt, ThinEvidence
from efprof.units import GIB, MIB
from tests.support.builders import loader_built, make_step, write_run

TRAIN = """\
from torch.utils.data import DataLoader

def main(model, data, args):
    torch.manual_seed(0)
    loader = DataLoader(data, args.batch_size)
    for batch in loader:
        loss = model(batch)
        optimizer.zero_grad()
        optimizer.step()
        loss.backward()
"""
FIXED, SAMPLE = 2 * GIB, 256 * MIB
"""Parameters and optimizer state; and what each of 16 samples adds."""
OUTSIDE = 1 * GIB
DEVICE = Device(index=0, name="NVIDIA A100", total_bytes=40 * GIB, free_bytes=40 * GIB - OUTSIDE)


def alike(
    step: int, *, samples: int = 16, micro_batches: int = 1, kept: int | None = None, **fields: Any
) -> StepRecord:
    """The allocator reserves nothing before the first step, and in each step what it needs at most."""
    kept = samples // micro_batches * SAMPLE if kept is None else kept
    sizes = (FIXED, FIXED + kept * 3 // 4, FIXED + kept * 3 // 4, FIXED, FIXED)
    record = make_step(step, samples=samples, micro_batches=micro_batches, loader=1, **fields)
    record.memory = [
        BoundaryMemory(name, 1000.0, size, 0 if step == 0 and name == "pre_forward" else FIXED + kept)
        for name, size in zip(BOUNDARIES, sizes, strict=True)
    ]
    return record


def run_of(folder: Path, steps: list[StepRecord], *, has_loader: bool = True, **fields: Any) -> Run:
    defaults: dict[str, Any] = {
        "devices": [DEVICE],
        "memory_source": "CUDA allocator",
        "command": ["python", "train.py", "--batch-size", "16"],
    }
    events = [loader_built(batch_size=16)] if has_loader else []
    return write_run(folder, steps=steps, events=events, sources={"train.py": TRAIN}, **{**defaults, **fields})


def sixty(**fields: Any) -> list[StepRecord]:
    return [alike(step, **fields) for step in range(60)]


def only_finding(run: Run) -> Finding:
    (finding,) = unused_headroom(run).findings
    return finding


def test_it_blames_the_line_that_builds_the_loader_and_sets_a_batch_that_leaves_a_tenth(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path / "run", sixty()))
    assert str(finding.blame) == "train.py:5"
    assert finding.severity == "low"
    # (36 GiB less 1 for others less 2 that are fixed) / 0.25 per sample = 132, down to a multiple of 8.
    (change,) = finding.fix.changes
    assert change == ConfigurationValue(name="args.batch_size", old="16", new="128", file="train.py") or (
        change == ConfigurationValue(name="batch_size", old="16", new="128", file="train.py")
    )
    assert finding.why == "A micro-batch has 16 samples; 128 would fit, 8.0 times as many."
    gain = finding.gain
    assert gain.step_ms is gain.peak_bytes is None
    assert (
        "`efprof fit --budget 35GiB -- python train.py --batch-size 16` measures the largest that fits"
        in finding.fix.summary
    )
    assert finding.fix.applicability == "review"


def test_the_batch_is_changed_under_the_user_s_own_key(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", sixty(), configuration={"train.batch_size": "16"}, command=["python", "train.py"])
    fix = only_finding(run).fix
    assert fix.changes == (ConfigurationValue(name="train.batch_size", old="16", new="128"),)


def test_without_a_loader_the_line_that_runs_backward_is_named(tmp_path: Path) -> None:
    finding = only_finding(run_of(tmp_path / "run", sixty(), has_loader=False))
    assert str(finding.blame) == "train.py:10"
    assert finding.fix.changes == ()
    assert finding.fix.applicability == "manual"


def test_a_device_in_use_by_itself_or_at_one_peak_or_by_others_is_silent(tmp_path: Path) -> None:
    examination = unused_headroom(run_of(tmp_path / "run", sixty(samples=72)))  # 2 + 18 GiB, and 1 for others
    assert examination.findings == ()
    assert examination.looked_at == "57 steps, which left 48 % of the device unused"
    steps = sixty()
    steps[1].memory[2].reserved_bytes = 30 * GIB
    assert unused_headroom(run_of(tmp_path / "second", steps)).findings == ()
    busy = Device(index=0, name="NVIDIA A100", total_bytes=40 * GIB, free_bytes=20 * GIB)
    assert unused_headroom(run_of(tmp_path / "third", sixty(), devices=[busy])).findings == ()


def test_what_libraries_take_of_the_device_after_the_first_step_is_not_free(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", sixty())
    used = DeviceUse(step=40, device=0, used_bytes=15 * GIB, reserved_bytes=6 * GIB)
    (run.rank_folder / DEVICE_USE_FILE).write_bytes(msgspec.json.encode(used) + b"\n")
    assert "; 96 would fit" in only_finding(run).why, "with 9 GiB outside of the allocator instead of 1"


def test_steps_and_samples_of_different_sizes_and_hidden_peaks_are_not_judged(tmp_path: Path) -> None:
    steps = [alike(step, samples=16 if step % 3 else 24) for step in range(60)]
    with pytest.raises(ThinEvidence, match="steps differ in size"):
        unused_headroom(run_of(tmp_path / "run", steps))
    steps = [alike(step, kept=16 * SAMPLE * (50 + step) // 100) for step in range(60)]
    with pytest.raises(ThinEvidence, match="a longer one may need it"):
        unused_headroom(run_of(tmp_path / "second", steps))
    flush = [SiteCalls(site="train.py:9:main", call="torch.cuda.empty_cache", count=1, us=900.0)]
    with pytest.raises(ThinEvidence, match="hides the peak"):
        unused_headroom(run_of(tmp_path / "third", sixty(stalls=flush)))
    with pytest.raises(ThinEvidence, match="50 are needed"):
        unused_headroom(run_of(tmp_path / "fourth", sixty()[:40]))
    with pytest.raises(ThinEvidence, match="number of samples"):
        unused_headroom(run_of(tmp_path / "fifth", sixty(samples=0, kept=GIB)))


def test_a_host_is_never_judged(tmp_path: Path) -> None:
    with pytest.raises(NothingToLookAt, match=r"^Needs a CUDA device\.$"):
        unused_headroom(run_of(tmp_path / "run", sixty(), devices=[], memory_source="C allocator (malloc)"))
