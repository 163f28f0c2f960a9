"""python_bound_line: fires on lines that take a fifth of the step in Python, and advises by what they do."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from efprof.artifacts.events import SampledPlace, TrainingSampled
from efprof.artifacts.readings import LONG_STEPS_FILE, LongStep, SampledStack
from efprof.audits.input_stall import input_stall
from efprof.audits.python_bound_line import python_bound_line
from efprof.facts.run.run import Run, open_run
from efprof.model import Finding, NotRecorded
from tests.support.builders import loader_built, make_steps, trace_event, write_run, write_trace

RUNS = Path(__file__).parents[1] / "runs"
SOURCE = """\
def train(batches, model, optimizer):
    for batch in batches:
        weights = counted(batch)
        h = torch.zeros(8)
        for x in batch:
            h = torch.tanh(x + h @ model)
        for x in batch:
            total += torch.dot(x, x)
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        torch.save(
            model.state_dict(), "model.pt"
        )
        state, _ = env.step(loss)
        yield from loader


class Rows:
    def __getitem__(self, index):
        row = torch.tensor(self.rows[index])
        image = decoded(self.files[index])
        for number in row.tolist():
            self.counts[number] += 1
        return row


def mined(labels):
    found = []
    for place, label in enumerate(labels.tolist()):
        found.append((place, label))
    return torch.tensor(found)


def positions(self):
    return torch.tensor(self.table)


def fit(loader):
    return [trained(batch) for batch in loader]
"""
FIT = SOURCE.count("\n")
"""The line whose comprehension runs all steps."""
WINDOW = (20, 21)


def run_of(
    folder: Path,
    *places: tuple[int, str, float],
    in_torch: bool = False,
    operators: int = 0,
    function: str = "",
    updates_at: int = 11,
) -> Run:
    """Places are (line, stage, share of the step); operators of 10 us each start in each traced step at the first."""
    lines = [
        SampledPlace(f"train.py:{line}:train", stage, in_torch, us=share * 1e6, function=function)
        for line, stage, share in places
    ]
    update = [SampledPlace(f"train.py:{updates_at}:train", "optimizer", is_in_library=True, us=1.0)]
    sampled = TrainingSampled(step=30, num_samples=400, total_us=1e6, lines=lines + update)
    events: list[dict[str, Any]] = []
    for step in WINDOW:
        events.append(trace_event("train.py(1): train", 1000.0 * step, 15.5))
        for number in range(operators):
            start, site = 1000.0 * step + 0.03 * number, f"train.py:{places[0][0]}:train"
            events.append(trace_event("<built-in method dot>", start, 0.02, call_site=site))
            events.append(trace_event("aten::dot", start + 0.005, 0.01, category="cpu_op"))
    steps = make_steps(40, data_ms=8.0, loader=1, window=lambda step: "trace-1" if step in WINDOW else None)
    loaders = [loader_built(site="train.py:1:train")]
    return write_run(folder, steps=steps, events=[*loaders, sampled], sources={"train.py": SOURCE}, traces=[events])


def lean_run(folder: Path, *places: tuple[int, str, float], backward_ms: float) -> Run:
    """A window without lines: in each step 200 operators of 10 us in forward, and the same in backward of so long."""
    run = run_of(folder, *places, in_torch=True)
    events = []
    for step in WINDOW:
        for number in range(200):
            start = 1000.0 * step + 8.0 + 0.02 * number
            events.append(trace_event("aten::dot", start, 0.01, category="cpu_op"))
            name, each_ms = "autograd::engine::evaluate_function: DotBackward0", backward_ms / 200
            events.append(trace_event(name, 1000.0 * step + 12.0 + each_ms * number, each_ms, category="cpu_op"))
    write_trace(run.rank_folder, 1, events)
    return open_run(run.folder)


def only(run: Run) -> Finding:
    (finding,) = python_bound_line(run).findings
    return finding


@pytest.mark.parametrize(("seconds", "is_told"), [(0.1, True), (5.0, False)])
def test_a_line_at_which_long_steps_spend_more_than_all_usual_ones_is_told_there(
    tmp_path: Path, seconds: float, is_told: bool
) -> None:
    run = run_of(tmp_path / "run", (5, "other", 0.4))
    stack = SampledStack(("train.py:4:train", "train.py:5:train"), None, seconds, 0.0)
    text = msgspec.json.encode(LongStep(step=9, started_ns=1, stacks=[stack]))
    (run.rank_folder / LONG_STEPS_FILE).write_bytes(text + b"\n")
    assert bool(python_bound_line(run).findings) == is_told


def test_a_loop_of_many_small_operators_is_to_be_one_for_the_batch(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path / "run", (8, "other", 0.4), in_torch=True, operators=200))
    assert str(finding.blame) == "train.py:8"
    assert finding.message == "9.00 ms of each step (40 %) go to 200 small operators, at train.py:8."
    assert finding.fix.summary == "Replace the loop at train.py:7 by one operation on the whole array."
    assert finding.gain.step_ms == pytest.approx(9.0)


def test_the_backward_pass_of_a_loop_counts_as_its_own_where_a_window_has_no_lines(tmp_path: Path) -> None:
    places = (8, "forward", 0.15), (9, "forward", 0.03)
    finding = only(lean_run(tmp_path / "run", *places, backward_ms=7.0))
    assert str(finding.blame) == "train.py:8"
    assert "167 small operators and their backward pass" in finding.message
    share = 0.15 + 7.0 / (7.0 + 2.0) * 0.15 / 0.18
    assert finding.gain.step_ms == pytest.approx(22.5 * share, rel=0.01)
    assert python_bound_line(lean_run(tmp_path / "little", *places, backward_ms=0.02)).findings == ()


def test_a_comprehension_that_runs_the_steps_is_no_loop_within_one(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", (FIT, "data", 0.4), in_torch=True, operators=200, updates_at=FIT)
    assert python_bound_line(run).findings == ()


def test_time_at_the_head_of_a_loop_belongs_to_the_line_in_it(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path / "run", (23, "data", 0.3), (24, "data", 0.05)))
    assert str(finding.blame) == "train.py:24"
    assert finding.gain.step_ms == pytest.approx(0.35 * 22.5)


def test_an_array_of_python_numbers_is_to_be_built_once(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path / "run", (21, "data", 0.3)))
    assert finding.fix.summary == "Build this array once, before the training, and index it here."


def test_an_array_of_each_batch_is_not_to_be_built_once(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path / "batch", (32, "other", 0.3)))
    assert finding.fix.summary == "Compute this array from whole arrays, without a loop of Python over their items."
    assert only(run_of(tmp_path / "same", (36, "other", 0.3))).fix.summary.startswith("Build this array once")


def test_a_line_of_the_training_loop_is_to_be_moved_out(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path / "run", (3, "other", 0.3)))
    assert finding.fix.summary.startswith("Move this out of the step")


def test_input_stall_advises_no_worker_for_what_one_array_wins(tmp_path: Path) -> None:
    assert input_stall(run_of(tmp_path / "needed", (22, "data", 0.35))).findings != ()
    python = input_stall(run_of(tmp_path / "python", (21, "data", 0.35)))
    assert python.findings == ()
    assert python.looked_at.endswith("most of it for Python at train.py:21")


def test_what_may_be_needed_once_for_each_item_is_left_to_input_stall(tmp_path: Path) -> None:
    assert python_bound_line(run_of(tmp_path / "run", (22, "data", 0.35))).findings == ()


def test_a_recurrence_and_what_torch_itself_runs_in_python_are_silent(tmp_path: Path) -> None:
    assert python_bound_line(run_of(tmp_path / "cell", (6, "other", 0.4), in_torch=True, operators=200)).findings == ()
    assert python_bound_line(run_of(tmp_path / "model", (9, "forward", 0.6), in_torch=True)).findings == ()


def test_a_file_that_is_written_in_each_step_is_to_be_written_once_in_many(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path / "run", (13, "other", 0.4), in_torch=True, function="torch.serialization.save"))
    assert finding.message == "9.00 ms of each step (40 %) go to torch.serialization.save, at train.py:13."
    assert finding.fix.summary == "Do this once in many steps, or once after each epoch."


@pytest.mark.parametrize(
    ("line", "stage", "function"),
    [
        (15, "other", "gym.core.Env.step"),  # its result is used
        (13, "other", "torch.distributed.barrier"),
        (13, "data", "torch.serialization.save"),
        (16, "other", "library.batches"),  # hands on what it makes
        (11, "other", "lightning.Trainer.fit"),  # leads to the update
    ],
)
def test_a_library_s_work_that_may_be_needed_is_silent(tmp_path: Path, line: int, stage: str, function: str) -> None:
    run = run_of(tmp_path / "run", (line, stage, 0.4), in_torch=True, function=function)
    assert python_bound_line(run).findings == ()


def test_what_a_module_of_python_s_own_does_is_told_from_half_of_the_step_on(tmp_path: Path) -> None:
    finding = only(run_of(tmp_path / "run", (3, "other", 0.6), function="random.Random.sample"))
    assert "(60 %) go to random.Random.sample, at train.py:3." in finding.message
    assert finding.fix.summary.startswith("Have `random.Random.sample` do less here")
    assert python_bound_line(run_of(tmp_path / "less", (3, "other", 0.4), function="random.sample")).findings == ()


def test_less_than_a_fifth_and_what_few_samples_tell_are_silent(tmp_path: Path) -> None:
    assert python_bound_line(run_of(tmp_path / "run", (8, "other", 0.15))).findings == ()


def test_the_recorded_tagger_is_found_and_its_twin_is_silent() -> None:
    finding = only(open_run(RUNS / "python_bound_line-sick"))
    assert finding.blame.text.endswith("# fault")
    assert python_bound_line(open_run(RUNS / "python_bound_line-healthy")).findings == ()


def test_a_run_of_which_no_samples_were_taken_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotRecorded, match="were not sampled"):
        python_bound_line(write_run(tmp_path / "run", steps=make_steps(40)))
