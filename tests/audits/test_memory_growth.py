"""memory_growth: tells of growth that nothing counted explains, is silent where something does, abstains on little."""

from collections.abc import Callable
from pathlib import Path

import pytest

from efprof.artifacts.allocations import AllocationEvent
from efprof.artifacts.events import BackwardCalls, Compilation
from efprof.artifacts.holders import Count
from efprof.artifacts.steps import StepRecord
from efprof.audits.growing_tensors import growing_tensors
from efprof.audits.memory_growth import memory_growth
from efprof.audits.retained_graph import retained_graph
from efprof.facts.growth.kept_growth import GRAPH_NODE_BYTES
from efprof.facts.run.run import Run
from efprof.model import Examination, ThinEvidence
from efprof.units import KIB, MIB
from tests.audits.growing_runs import (
    TRAIN,
    containers_of,
    counts_of,
    epochs,
    leaking_run,
    leaking_steps,
    plain,
    seen,
    summed,
    watch_of,
)
from tests.facts.allocations import allocation
from tests.support.builders import START_NS, make_step, write_run

Audit = Callable[[Run], Examination]


def test_what_a_variable_keeps_is_told_by_the_audit_of_its_own_even_where_memory_stands_still(tmp_path: Path) -> None:
    run = leaking_run(tmp_path)
    assert len(retained_graph(run).findings) == 1
    examination = memory_growth(run)
    assert examination.findings == ()
    assert examination.looked_at.endswith(": what grows was counted to be kept by a variable")
    run = leaking_run(tmp_path / "second", steps=leaking_steps(bytes_per_step=0))
    assert memory_growth(run).findings == ()


NOTHING = counts_of(lambda _: None)


def test_a_holder_that_explains_little_of_the_slope_leaves_the_rest_to_tell(tmp_path: Path) -> None:
    run = leaking_run(tmp_path, lambda n: plain(n, tensor_bytes=64 * 1024 * n))
    (rest,), (told,) = memory_growth(run).findings, growing_tensors(run).findings
    assert str(rest.blame) == "train.py:6"
    assert str(told.blame) == "train.py:8"
    assert (rest.gain.peak_bytes or 0) + (told.gain.peak_bytes or 0) == pytest.approx(59 * MIB, rel=0.02)


def test_what_steps_make_of_a_buffer_that_may_be_filling_grows_with_it_and_is_no_leak(tmp_path: Path) -> None:
    """As a bank of keys that each step joins: a mebibyte outlives each step, and four are more after it."""

    def run_of(name: str, kept: str, num_bytes: int = MIB, surviving_bytes: int = MIB) -> Run:
        source = TRAIN.replace("history.append(loss)", f"history.append(x); {kept}")
        return leaking_run(
            tmp_path / name,
            lambda n: plain(n, tensor_bytes=num_bytes * n),
            steps=leaking_steps(bytes_per_step=4 * MIB),
            sources={"train.py": source},
            allocations=[surviving(8, surviving_bytes)],
        )

    bound = "history = history[-100:]"
    run = run_of("bounded", bound)
    assert memory_growth(run).findings == ()
    assert [finding.may_be_filling for finding in growing_tensors(run).findings] == [True]
    assert memory_growth(run_of("little", bound, 4 * KIB, 4 * KIB)).findings == ()
    for name, kept, num_bytes in (("endless", "pass", MIB), ("of another", bound, 64 * KIB)):
        assert len(memory_growth(run_of(name, kept, num_bytes)).findings) == 1


def test_memory_that_grows_as_batches_do_and_by_no_more_than_what_steps_need_is_no_leak(tmp_path: Path) -> None:
    """As that of texts that get longer by plan."""

    def run_of(name: str, *, elements: int, needed: int) -> Run:
        steps = leaking_steps()
        for step in steps:
            step.num_elements = 1000 + elements * step.step
            for here in step.memory[1:-1]:
                here.allocated_bytes += needed * step.step
        return leaking_run(tmp_path / name, counts=NOTHING, steps=steps)

    with pytest.raises(ThinEvidence, match="rises, but so do the elements of the batches"):
        memory_growth(run_of("longer", elements=16, needed=4 * MIB))
    for name, elements, needed in (("a leak too", 16, MIB // 2), ("equal batches", 0, 4 * MIB)):
        assert len(memory_growth(run_of(name, elements=elements, needed=needed)).findings) == 1


def test_a_graph_that_each_epoch_lets_go_does_not_explain_memory_that_goes_on_growing(tmp_path: Path) -> None:
    growing = leaking_steps(160, bytes_per_step=64 * KIB)
    run = leaking_run(tmp_path, steps=growing, counts=epochs(summed, 80))
    (rest,), (told,) = memory_growth(run).findings, retained_graph(run).findings
    assert rest.gain.peak_bytes == pytest.approx(159 * 64 * KIB, rel=0.3)
    assert told.message.startswith("`history` keeps 4.10 KiB more per step")
    assert told.gain.peak_bytes == 4 + 800 * GRAPH_NODE_BYTES, "what it held, not what 160 steps would add"
    assert "though it fell from 328 KiB to 0 B" in str(told.evidence)


ROWS = {"counts": containers_of(), "watches": [watch_of(seen(), path="train.log", number=7)]}


def test_a_container_of_arrays_is_blamed_on_the_line_that_was_seen_on_a_cpu_alone(tmp_path: Path) -> None:
    (finding,) = memory_growth(leaking_run(tmp_path, **ROWS)).findings
    assert str(finding.blame) == "train.py:8"
    assert finding.headline == "`train.log` keeps more and more"
    assert "collections.deque(maxlen=...)" in finding.fix.summary
    (finding,) = memory_growth(
        leaking_run(tmp_path / "second", **ROWS, memory_source="CUDA caching allocator")
    ).findings
    assert str(finding.blame) == "train.py:6"


def test_where_a_library_keeps_what_nobody_can_size_the_line_that_feeds_it_is_blamed(tmp_path: Path) -> None:
    """Open figures of matplotlib: an entry of its list of managers is small, and what it reaches is not."""
    counts = containers_of(path=None, scope=None, owner=None, file=None, entry_bytes=400, type="OrderedDict")
    fills = watch_of(seen(is_within_call=True), path=None, scope=None, file=None, number=7)
    sources = {"train.py": TRAIN.replace("history.append(loss)", "figure = plt.figure()")}
    (finding,) = memory_growth(leaking_run(tmp_path, counts=counts, watches=[fills], sources=sources)).findings
    assert str(finding.blame) == "train.py:8"
    assert "Close each figure" in finding.fix.summary


def test_what_torch_keeps_of_steps_that_compile_is_no_growth(tmp_path: Path) -> None:
    """As many mebibytes at once as other steps would leave one by one."""
    steps = leaking_steps()
    for step in steps:
        for here in step.memory:
            here.allocated_bytes = 100 * MIB + (step.step // 4 * 4) * MIB
    run = leaking_run(tmp_path / "plain", steps=steps, counts=NOTHING, watches=[])
    assert len(memory_growth(run).findings) == 1
    compiled = [
        Compilation(step=step, function="forward", site="train.py:5:train", seconds=0.3) for step in range(0, 60, 4)
    ]
    run = leaking_run(tmp_path / "compiled", steps=steps, counts=NOTHING, watches=[], events=compiled)
    assert memory_growth(run).findings == ()


def test_what_rises_unsteadily_is_not_passed_and_steady_memory_is_silent(tmp_path: Path) -> None:
    """A short run whose every other block stands still: more than noise, and less than a plain line."""
    steps = leaking_steps()
    for step in steps:
        for here in step.memory:
            here.allocated_bytes = 100 * MIB + (step.step // 12 * 12) * MIB
    with pytest.raises(ThinEvidence, match="not as steadily as a leak does; record a longer run"):
        memory_growth(leaking_run(tmp_path, counts=NOTHING, steps=steps))
    (finding,) = memory_growth(leaking_run(tmp_path / "counted", **ROWS, steps=steps)).findings
    assert str(finding.blame) == "train.py:8", "as what each evaluation adds, and no step between"
    taken_for_ten = {**ROWS, "counts": containers_of(entry_bytes=10 * MIB)}
    with pytest.raises(ThinEvidence, match="not as steadily"):
        memory_growth(leaking_run(tmp_path / "shared", **taken_for_ten, steps=steps))
    run = write_run(tmp_path / "second", steps=leaking_steps(bytes_per_step=0), sources={"train.py": TRAIN})
    assert memory_growth(run).findings == ()


SIZES = (
    139033536, 139062112, 139068912, 139076288, 139081648, 144521680, 149306448, 139679136, 139678064, 139678528,
    139678912, 139869312, 139869632, 139869616, 139870000, 139869872, 139869712, 139869952, 139870656, 139870848,
    140009552, 140008928, 140008768, 140008752,
)  # fmt: skip
"""After the steps of a sound program: steps 5 and 6 are a window, after steps 10 and 19 holders were counted."""


def test_what_counting_holders_leaves_behind_is_no_growth(tmp_path: Path) -> None:
    steps = [
        make_step(step, allocated_bytes=[size] * 5, window="trace-1" if step in (5, 6) else None)
        for step, size in enumerate(SIZES)
    ]
    counts = [Count(step=step, moment="step", holders=[]) for step in (10, 19)]
    assert memory_growth(write_run(tmp_path / "counted", steps=steps, counts=counts)).findings == ()
    assert len(memory_growth(write_run(tmp_path / "uncounted", steps=steps)).findings) == 1, "else it looks like some"


def surviving(line: int, num_bytes: int = MIB) -> list[AllocationEvent]:
    """Bytes that a line allocates in each of three steps and nobody gives back."""
    return [
        allocation(START_NS + step * 1_000_000_000 + 2_000_000, step + 1, num_bytes, f"train.py:{line}:train")
        for step in (40, 41, 42)
    ]


def test_the_line_whose_allocations_survive_is_blamed(tmp_path: Path) -> None:
    (finding,) = memory_growth(leaking_run(tmp_path, counts=NOTHING, allocations=[surviving(4)])).findings
    assert str(finding.blame) == "train.py:4"
    assert finding.fix.applicability == "manual"
    assert finding.why == "Most of it is allocated by this line and still alive a step later.", "after the end"


def test_a_gradient_that_leads_back_to_its_tensor_is_blamed(tmp_path: Path) -> None:
    calls = BackwardCalls(
        at_ns=START_NS, step=9, site="train.py:5:train", num_calls=9, num_created=9, num_cycles=6, leaf="x"
    )
    run = leaking_run(tmp_path, counts=NOTHING, events=[calls], allocations=[surviving(4)])
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:5"
    assert finding.headline == "The gradient of `x` leads back to its own tensor"
    assert "`x.grad = None`" in finding.fix.summary
    assert "6 such pairs were alive at once" in finding.why


def test_without_any_holder_the_loop_is_named_and_the_doubt_said_by_this_audit_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=leaking_steps(), sources={"train.py": TRAIN})
    (finding,) = memory_growth(run).findings
    assert str(finding.blame) == "train.py:6"
    assert finding.message.startswith("Memory grows 1.00 MiB per step")
    assert "not known" in finding.why
    assert "holders were not counted" in finding.fix.summary
    assert "over the recorded steps" in finding.gain.explanation
    assert "seen up to" not in finding.message
    for audit in (retained_graph, growing_tensors):
        with pytest.raises(ThinEvidence, match="memory grows, but what keeps it was not counted"):
            audit(run)


def test_what_was_read_too_seldom_to_tell_is_not_judged(tmp_path: Path) -> None:
    with pytest.raises(ThinEvidence, match=r"after 10 of 10 steps outside windows, a trend needs 20; record a longer"):
        memory_growth(write_run(tmp_path, steps=leaking_steps(10)))


def read_early(*, bytes_per_step: int = MIB) -> list[StepRecord]:
    """240 steps, of which the first forty are read, as short ones are."""
    steps = leaking_steps(240, bytes_per_step)
    for step in steps[40:]:
        step.memory = []
    return steps


@pytest.mark.parametrize("audit", [memory_growth, retained_graph, growing_tensors])
def test_what_passes_says_how_many_steps_were_read(audit: Audit, tmp_path: Path) -> None:
    whole = write_run(tmp_path / "whole", steps=leaking_steps(bytes_per_step=0))
    assert audit(whole).looked_at == "memory retained after 60 of 60 steps"
    early = write_run(tmp_path / "early", steps=read_early(bytes_per_step=0))
    assert audit(early).looked_at == "memory retained after 40 of 240 steps, none of them later than step 39"


def test_growth_that_is_known_early_only_is_told_up_to_there_and_its_end_in_time(tmp_path: Path) -> None:
    (finding,) = memory_growth(write_run(tmp_path, steps=read_early(), sources={"train.py": TRAIN})).findings
    assert finding.message.startswith(
        "Memory grows 1.00 MiB per step. The 16.0 GiB of the host last about 4.4 hours at this rate, seen up to step 39"
    )
    assert finding.why.startswith("What holds it is not known")
    assert "seen up to step 39" in finding.message
    assert (finding.gain.peak_bytes, finding.gain.until_step) == (39 * MIB, 39)
    steps = read_early(bytes_per_step=64 * MIB)
    (finding,) = memory_growth(write_run(tmp_path / "second", steps=steps, sources={"train.py": TRAIN})).findings
    assert ". The 16.0 GiB of the host last about 4.1 minutes at this rate, seen up to step 39" in finding.message
