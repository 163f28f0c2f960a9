"""oversized_peak: says how a peak comes below a budget, is silent within it, and abstains where none is given."""

from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.events import EVENTS_FILE, OutOfMemory, StepInterrupted
from efprof.artifacts.run_file import SOURCES_FILE, SourceText
from efprof.audits.oversized_peak import oversized_peak
from efprof.facts.peak.window_memory import WindowMemory
from efprof.facts.run.run import Run, open_run
from efprof.model import CodeEdit, NothingToLookAt, NotRecorded, ThinEvidence
from efprof.units import MIB
from tests.facts.peak.test_peak_composition import BEFORE, SOURCES, run_of, stacked_blocks
from tests.support.builders import START_NS, write_run


def blocks_run(folder: Path, budget_mib: int | None, *, samples: int = 1) -> Run:
    """Four blocks in a loop: 147 MiB at the peak, 115 with each block checkpointed."""
    run = run_of(folder, stacked_blocks(), samples=samples)
    texts = SOURCES | {"model.py": SOURCES["model.py"] + "\n\nimport torch\n"}
    lines = [msgspec.json.encode(SourceText(file=file, text=text)) for file, text in texts.items()]
    (run.rank_folder / SOURCES_FILE).write_bytes(b"\n".join([*lines, b""]))
    return open_run(folder, None if budget_mib is None else BEFORE + budget_mib * MIB)


def test_it_blames_the_call_whose_activations_pay_and_its_picture_is_the_one_that_every_run_has(tmp_path: Path) -> None:
    run = blocks_run(tmp_path, 20)
    (finding,) = oversized_peak(run).findings
    assert str(finding.blame) == "model.py:4"
    assert finding.fix.changes == (
        CodeEdit(
            file="model.py",
            line=4,
            old="            hidden = block(hidden)",
            new="            hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)",
        ),
    )
    assert finding.gain.peak_bytes == (47 - 15) * MIB
    assert finding.gain.basis == "replay"
    assert run.get(WindowMemory).series in finding.evidence


def test_where_nothing_suffices_it_offers_the_most_and_what_was_there_before_is_out_of_reach(tmp_path: Path) -> None:
    (finding,) = oversized_peak(blocks_run(tmp_path, 5)).findings
    assert "That alone is not enough" in finding.fix.summary
    assert str(finding.blame) == "model.py:4"
    (finding,) = oversized_peak(blocks_run(tmp_path / "second", -10)).findings
    assert finding.fix.summary.startswith("No batch comes below the budget: 100 MiB were there before the step")


def out_of_memory_run(folder: Path, in_use_mib: int | None, requested_mib: int | None, *, rank: str = "rank0") -> Run:
    """The same run, ended by a request in a later step."""
    blocks_run(folder, None)
    path = folder / "run.json"
    path.write_text(path.read_text().replace('"finished"', '"out_of_memory"'))
    requested = None if requested_mib is None else requested_mib * MIB
    events: list[OutOfMemory | StepInterrupted] = [
        OutOfMemory(at_ns=START_NS, step=9, message="no memory", site=None, requested_bytes=requested)
    ]
    if in_use_mib is not None:
        size = in_use_mib * MIB
        events.append(
            StepInterrupted(at_ns=START_NS, step=9, stage="forward", allocated_bytes=size, reserved_bytes=size)
        )
    (folder / rank).mkdir(exist_ok=True)
    (folder / rank / EVENTS_FILE).write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))
    return open_run(folder)


def test_a_run_that_ran_out_of_memory_in_a_step_like_the_recorded_one_needs_no_budget(tmp_path: Path) -> None:
    """The peak of 147 MiB has to fall by a fifth of the 160 that were needed."""
    (finding,) = oversized_peak(out_of_memory_run(tmp_path, 140, 20)).findings
    assert str(finding.blame) == "model.py:4"
    assert "147 MiB, 32.0 MiB above 115 MiB, below which the step that failed would have been served" in finding.message
    assert finding.fix.changes != ()


def test_a_failed_step_needs_what_the_recorded_one_did_and_a_budget_goes_before_it(tmp_path: Path) -> None:
    (finding,) = oversized_peak(out_of_memory_run(tmp_path, 101, 1)).findings
    assert "29.4 MiB above 118 MiB" in finding.message
    out_of_memory_run(tmp_path / "second", 120, 2304)
    (finding,) = oversized_peak(open_run(tmp_path / "second", BEFORE + 20 * MIB)).findings
    assert finding.message.startswith("The peak is 147 MiB, 27.0 MiB above 120 MiB.")


@pytest.mark.parametrize(
    ("in_use_mib", "requested_mib", "rank", "why"),
    [
        (120, 2304, "rank0", "step 9, in which memory ran out, needed .* no window shows more than 147 MiB"),
        (None, 20, "rank0", "needed is not known"),
        (140, 20, "rank1", "needed is not known"),
    ],
)
def test_a_failed_step_that_no_window_shows_or_nothing_tells_is_not_judged(
    in_use_mib: int | None, requested_mib: int | None, rank: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(ThinEvidence, match=why):
        oversized_peak(out_of_memory_run(tmp_path, in_use_mib, requested_mib, rank=rank))


def test_a_peak_within_the_budget_is_silent_and_without_one_it_says_how_to_give_it(tmp_path: Path) -> None:
    assert oversized_peak(blocks_run(tmp_path, 47)).findings == ()
    with pytest.raises(NothingToLookAt, match=r"^Needs a budget \(`efprof report --budget 24GiB`\)\.$"):
        oversized_peak(blocks_run(tmp_path / "second", None))
    with pytest.raises(NotRecorded, match=r"allocations-<n>\.parquet"):
        oversized_peak(write_run(tmp_path / "third"))
