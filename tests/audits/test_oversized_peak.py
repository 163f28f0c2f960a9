"""oversized_peak: says how a peak comes below a budget, is silent within it, and abstains where none is given."""

from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.run_file import SOURCES_FILE, SourceText
from efprof.audits.oversized_peak import oversized_peak
from efprof.facts.peak.window_memory import WindowMemory
from efprof.facts.run.run import Run, open_run
from efprof.model import CodeEdit, NotRecorded
from efprof.units import MIB
from tests.facts.peak.test_peak_composition import BEFORE, SOURCES, run_of, stacked_blocks
from tests.support.builders import write_run


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
    assert "that alone is not enough" in finding.fix.summary
    assert str(finding.blame) == "model.py:4"
    (finding,) = oversized_peak(blocks_run(tmp_path / "second", -10)).findings
    assert finding.fix.summary.startswith("No batch comes below the budget: 100 MiB were there before the step")


def test_a_peak_within_the_budget_is_silent_and_without_one_it_says_how_to_give_it(tmp_path: Path) -> None:
    assert oversized_peak(blocks_run(tmp_path, 47)).findings == ()
    with pytest.raises(NotRecorded, match="--budget"):
        oversized_peak(blocks_run(tmp_path / "second", None))
    with pytest.raises(NotRecorded, match=r"allocations-<n>\.parquet"):
        oversized_peak(write_run(tmp_path / "third"))
