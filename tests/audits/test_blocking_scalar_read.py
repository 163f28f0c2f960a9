import pytest

from efprof.artifacts.steps import SiteCalls
from efprof.audits.blocking_scalar_read import blocking_scalar_read
from efprof.facts.run.run import open_run
from efprof.model import NotRecorded, Table, ThinEvidence
from tests.support.builders import GPU, make_busy_step, make_steps, write_run
from tests.support.rating import severity_in

SOURCE = """\
def main():
    for step, (x, y) in enumerate(loader):
        out = model(x)
        for column in range(8):
            total += out[column].mean().item()
        print(loss.item())
        if loss > 3:
            break
"""
STEP_MS = 15.5


def reads(line, *, call="item", count=1, us=100.0):
    return SiteCalls(site=f"train.py:{line}:main", call=call, count=count, us=us)


def examine(folder, step_reads, *, source=SOURCE, micro_batches=1, **run):
    """`step_reads` are those of every step, or a function of its number."""
    each = step_reads if callable(step_reads) else lambda step: step_reads
    steps = make_steps(40, reads=each, micro_batches=micro_batches)
    return blocking_scalar_read(write_run(folder, steps=steps, sources={"train.py": source}, **run))


def test_on_a_gpu_one_read_per_step_blames_its_line(tmp_path):
    examination = examine(tmp_path / "run", [reads(6, us=1550)], devices=[GPU])
    (finding,) = examination.findings
    assert (str(finding.blame), finding.blame.text) == ("train.py:6", "print(loss.item())")
    assert "Tensor values are read once per step, which waits for the GPU for 1.55 ms" in finding.message
    assert finding.gain.step_ms == pytest.approx(1.55)
    assert finding.gain.step_ms_interval == pytest.approx((0.0, 1.55))
    assert finding.gain.basis == "measured bound"
    assert severity_in(open_run(tmp_path / "run"), finding) == "medium", "a tenth of the step"
    assert "until all that was queued before is done" in finding.why
    assert examination.looked_at == "37 steps, 1 line that read"


def test_what_a_read_waits_for_a_busy_device_is_not_saved(tmp_path):
    steps = [make_busy_step(number, reads=[reads(6, us=9000)]) for number in range(40)]
    run = write_run(tmp_path, steps=steps, sources={"train.py": SOURCE}, devices=[GPU])
    (finding,) = blocking_scalar_read(run).findings
    assert "waits for the GPU for 9.00 ms" in finding.message
    assert (finding.gain.step_ms, severity_in(run, finding)) == (pytest.approx(0.2), "low")


def test_on_the_cpu_cheap_reads_are_silent_however_many_and_one_of_a_percent_of_the_step_fires(tmp_path):
    assert examine(tmp_path / "cheap", [reads(6, us=9)]).findings == ()
    assert examine(tmp_path / "many", [reads(5, count=8, us=150)]).findings == (), "under a percent of the step"
    assert examine(tmp_path / "least", [reads(5, count=8, us=160)]).findings != ()
    assert examine(tmp_path / "accumulated", [reads(6, count=8, us=9)], micro_batches=8).findings == ()
    (finding,) = examine(tmp_path / "costly", [reads(6, us=200)]).findings
    assert finding.gain.step_ms_interval == pytest.approx((0.2, 0.2))


def test_on_the_cpu_a_percent_of_a_short_step_is_the_measuring_itself(tmp_path):
    def examine_short(name, us):
        steps = make_steps(
            40, data_ms=0.1, forward_ms=0.4, backward_ms=0.8, optimizer_ms=0.2, other_ms=0.5, reads=[reads(6, us=us)]
        )
        return blocking_scalar_read(write_run(tmp_path / name, steps=steps, sources={"train.py": SOURCE}))

    assert examine_short("below", 49).findings == ()
    assert examine_short("above", 51).findings != ()


def test_on_the_cpu_a_read_in_an_inner_loop_tells_its_cost_and_what_a_gpu_would_do(tmp_path):
    (finding,) = examine(tmp_path / "run", [reads(5, count=8, us=200), reads(6, us=9)]).findings
    assert str(finding.blame) == "train.py:5"
    assert finding.message.startswith("Tensor values are read 8 times per step on this CPU: 200 us per step (1.3 %")
    assert "on a GPU the host stops until all that was queued before is done" in finding.why
    assert severity_in(open_run(tmp_path / "run"), finding) == "low"


def test_on_the_cpu_all_lines_are_one_finding_as_severe_as_what_they_cost_together(tmp_path):
    (finding,) = examine(tmp_path / "run", [reads(5, count=8, us=3000), reads(6, us=1500)]).findings
    assert str(finding.blame) == "train.py:5"
    assert severity_in(open_run(tmp_path / "run"), finding) == "high", "of 15.5 ms"
    assert " at 2 lines: 4.50 ms" in finding.message
    assert finding.gain.step_ms == pytest.approx(4.5)
    (table,) = (one for one in finding.evidence if isinstance(one, Table))
    assert [row[0] for row in table.rows] == ["`train.py:5`", "`train.py:6`"]


def test_on_the_cpu_whole_numbers_which_cut_and_index_are_silent_unless_they_cost_a_percent(tmp_path):
    for name, us, run, num_findings in (
        ("cheap", 31, {}, 0),
        ("costly", 310, {}, 1),
        ("gpu", 31, {"devices": [GPU]}, 1),  # there the recorder leaves out a host's
    ):
        assert len(examine(tmp_path / name, [reads(5, call="int", count=32, us=us)], **run).findings) == num_findings


def test_logging_every_few_steps_and_reads_in_windows_do_not_count_and_every_second_step_is_half(tmp_path):
    steps = make_steps(
        20,
        reads=lambda s: [reads(5, count=9)] if s in (0, 1, 2, 5, 6) else [],
        window=lambda s: "w" if s in (5, 6) else None,
    )
    assert blocking_scalar_read(write_run(tmp_path / "run", steps=steps)).looked_at == "15 steps, 0 lines that read"
    steps = make_steps(43, reads=lambda step: [reads(6, us=1550)] if step % 2 else [])
    (finding,) = blocking_scalar_read(
        write_run(tmp_path / "second", steps=steps, sources={"train.py": SOURCE})
    ).findings
    assert finding.headline == "Tensor values are read in half of the steps"
    assert finding.message.startswith("Tensor values are read in half of the steps on this CPU: ")


def test_few_steps_are_thin_evidence_and_a_run_without_steps_is_not_applicable(tmp_path):
    with pytest.raises(ThinEvidence):
        blocking_scalar_read(write_run(tmp_path / "run", steps=make_steps(6)))
    with pytest.raises(NotRecorded):
        blocking_scalar_read(write_run(tmp_path / "second"))
