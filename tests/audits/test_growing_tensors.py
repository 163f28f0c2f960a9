"""growing_tensors: fires on the line that was seen to keep tensors, leaves graphs to retained_graph, abstains."""

from pathlib import Path
from typing import Any

import pytest

from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.audits.retained_graph import retained_graph
from efprof.model import Finding, ThinEvidence
from efprof.units import MIB
from tests.audits.growing_runs import TRAIN, counts_of, graphs, leaking_run, leaking_steps, plain, seen, watch_of

SOURCE = TRAIN.replace("history.append(loss)", "history.append(x)")


def finding_of(folder: Path, *, holder: Any = plain, **fields: Any) -> Finding:
    run = leaking_run(folder, holder, **{"sources": {"train.py": SOURCE}, **fields})
    (finding,) = growing_tensors(run).findings
    assert retained_graph(run).findings == memory_growth(run).findings == ()
    return finding


def test_it_blames_the_line_that_was_seen_and_bounds_the_holder(tmp_path: Path) -> None:
    finding = finding_of(tmp_path)
    assert str(finding.blame) == "train.py:8"
    assert "collections.deque(maxlen=" in finding.fix.summary
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)
    assert finding.headline == "`history` keeps tensors"


def test_in_a_short_run_it_says_that_a_buffer_may_still_be_filling(tmp_path: Path) -> None:
    assert "if it is a buffer, it may still be filling: it has 60 entries" in finding_of(tmp_path / "short").message
    counts = counts_of(plain, steps=(19, 39, 79, 159, 249))
    long = finding_of(tmp_path / "long", counts=counts, steps=leaking_steps(250))
    assert "may still be filling" not in long.message


def test_of_a_small_part_of_a_large_storage_a_copy_is_kept(tmp_path: Path) -> None:
    source = SOURCE.replace("append(x)", "append(x[:8, 0])")
    sources = {"train.py": source.replace("loss.backward()\n", "loss.backward(); x.square()\n")}
    finding = finding_of(tmp_path, holder=lambda n: plain(n, value_bytes=1024 * n), sources=sources)
    assert "history.append(x[:8, 0].clone())" in str(finding.fix.changes)
    assert finding.fix.applicability == "safe"
    assert finding.gain.peak_bytes == pytest.approx(59 * MIB, rel=0.01)


def test_a_run_of_a_buffer_that_may_fill_or_without_counts_is_not_judged(tmp_path: Path) -> None:
    counts = counts_of(lambda n: plain({20: 100, 40: 160, 60: 180}[n], type="dict"))
    with pytest.raises(ThinEvidence, match=r"`train.history` .* it may still be filling; record a longer run"):
        growing_tensors(leaking_run(tmp_path / "first", counts=counts))
    with pytest.raises(ThinEvidence, match="a trend needs 20"):
        growing_tensors(leaking_run(tmp_path / "second", counts=[], watches=[], steps=leaking_steps(10)))


def test_the_object_of_a_library_is_named_with_what_ends_it(tmp_path: Path) -> None:
    """`model.register_buffer(f"seen{step}", x)` in every step."""
    fields = {"path": "Net._buffers", "name": "_buffers", "owner": "Net", "scope": "attribute", "type": "dict"}
    watches = [watch_of(seen(is_within_call=True), path="Net._buffers", scope="attribute")]
    finding = finding_of(tmp_path, holder=lambda n: plain(n, **fields), watches=watches)
    assert str(finding.blame) == "train.py:8"
    assert "Register the buffer once" in finding.fix.summary


def test_graphs_and_detached_scalars_are_not_its_business(tmp_path: Path) -> None:
    assert growing_tensors(leaking_run(tmp_path, graphs)).findings == ()
    counts = counts_of(lambda n: plain(n, tensor_bytes=4 * n, value_bytes=4 * n))
    run = leaking_run(tmp_path / "second", counts=counts, steps=leaking_steps(bytes_per_step=0))
    examined = growing_tensors(run)
    assert examined.findings == ()
    assert examined.looked_at.endswith("grows by 4 B per step, too little to matter"), "but it is said"
