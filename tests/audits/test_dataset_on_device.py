"""dataset_on_device: fires on the line that puts the data there, is silent on a batch's, a model's and small ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efprof.artifacts.events import DeviceData, DeviceTensor
from efprof.artifacts.snapshot import Snapshot
from efprof.audits.dataset_on_device import dataset_on_device
from efprof.facts.allocator.blocks import Block
from efprof.facts.allocator.settings import AllocatorSettings
from efprof.facts.run.run import Run
from efprof.model import NothingToLookAt, NotRecorded, ThinEvidence
from efprof.units import MIB
from tests.audits.test_fragmented_reserve import Program, frames_of
from tests.support.builders import GPU, START_NS, make_steps, write_run

TRAIN = """\
def train(model, device):
    model = model.to(device)
    images = read().to(device)
    for index in torch.randperm(len(images)).split(64):
        batch = images[index]
        loss = model(batch).sum()
        loss.backward()
"""
MODEL, DATA, TAKEN, FORWARD, BACKWARD = 2, 3, 5, 6, 7
BEFORE_US, WITHIN_US = START_NS // 1000 - 5_000_000, START_NS // 1000 + 1_000_000


class TimedProgram(Program):
    """Notes when, too: before the first step, until it is told to begin."""

    def __init__(self) -> None:
        super().__init__(AllocatorSettings())
        self.now_us = BEFORE_US
        self.data: list[Block] = []

    def put_data(self, num_bytes: int) -> Block:
        """By the line that does."""
        self.data.append(self.at_top(DATA).malloc(num_bytes))
        return self.data[-1]

    def begin(self) -> None:
        """The first step."""
        self.now_us = WITHIN_US

    def of_the_model(self, line: int) -> Program:
        """What follows is asked for by a module's own method, called from this line."""
        module = {
            "filename": "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py",
            "line": 5,
            "name": "_apply",
        }
        self._frames = [module, *frames_of(line)[1:]]
        return self

    def at_top(self, line: int) -> Program:
        """What follows is asked for by an operation that the line itself names."""
        self._frames = frames_of(line)[1:]
        return self

    def _note(self, action: str, address: int, size: int, block: Block | None = None) -> None:
        super()._note(action, address, size, block)
        self.entries[-1].time_us = self.now_us

    def step(self) -> None:
        """A batch is taken, goes through the model, and both are given back."""
        batch = self.at_top(TAKEN).malloc(16 * MIB)
        output = self.of_the_model(FORWARD).malloc(100 * MIB)
        self.free(output)
        self.free(batch)


def training(*data_bytes: int) -> TimedProgram:
    program = TimedProgram()
    program.of_the_model(MODEL).malloc(200 * MIB)
    for num_bytes in data_bytes:
        program.put_data(num_bytes)
    program.begin()
    for _ in range(3):
        program.step()
    return program


def seen(program: TimedProgram, *, num_used: int | None = None, why_not: str = "", **fields: Any) -> DeviceData:
    """Two steps took a batch each of the first of the program's data, all of them where nothing else is said."""
    known = {"taken_bytes": 2 * 16 * MIB, "is_varied": True, "is_written": False, "sites": [f"train.py:{TAKEN}:train"]}
    tensors = [
        DeviceTensor(address=block.address, num_bytes=block.size, **(known | fields))
        for block in program.data[:num_used]
    ]
    return DeviceData(at_ns=START_NS, step=3, num_steps=2, tensors=tensors, why_not=why_not)


def run_of(folder: Path, program: TimedProgram, *, snapshot: Snapshot | None = None, **fields: Any) -> Run:
    defaults: dict[str, Any] = {"devices": [GPU], "memory_source": "CUDA caching allocator", "events": [seen(program)]}
    steps = make_steps(10, backward_site=f"train.py:{BACKWARD}:train", loader=1)
    snapshots = [snapshot or program.snapshot()]
    return write_run(folder, steps=steps, sources={"train.py": TRAIN}, snapshots=snapshots, **{**defaults, **fields})


def test_it_blames_the_line_that_puts_the_data_there_and_saves_all_but_two_batches_as_they_were_taken(
    tmp_path: Path,
) -> None:
    (finding,) = dataset_on_device(run_of(tmp_path / "run", training(800 * MIB))).findings
    assert str(finding.blame) == f"train.py:{DATA}"
    assert finding.blame.text == "images = read().to(device)"
    assert f"train.py:{TAKEN} takes a part at a time" in finding.why
    assert finding.message.startswith("800 MiB lie on device 0 from before the first step to the end, ")
    assert finding.gain.peak_bytes == (800 - 2 * 16) * MIB
    assert finding.gain.basis == "measured bound"
    assert finding.gain.step_ms is None, "what moving each batch takes is not known"
    assert (finding.fix.applicability, finding.fix.changes) == ("manual", ())
    assert "batch.to(device, non_blocking=True)" in finding.fix.summary


def test_of_a_list_of_batches_two_stay(tmp_path: Path) -> None:
    program = training(*[40 * MIB] * 20)
    event = seen(program, num_used=2, taken_bytes=40 * MIB, is_varied=False)
    (finding,) = dataset_on_device(run_of(tmp_path / "run", program, events=[event])).findings
    assert str(finding.blame) == f"train.py:{DATA}"
    assert finding.gain.peak_bytes == 18 * 40 * MIB


@pytest.mark.parametrize(
    "used",
    [{"is_written": True}, {"is_varied": False}, {"taken_bytes": 2 * 800 * MIB}, {"num_used": 0}],
    ids=["written to", "always the same part", "all of it", "unused"],
)
def test_what_steps_use_in_another_way_is_no_data_set(tmp_path: Path, used: dict[str, Any]) -> None:
    program = training(800 * MIB)
    assert dataset_on_device(run_of(tmp_path / "run", program, events=[seen(program, **used)])).findings == ()


def weights(program: TimedProgram) -> None:
    program.of_the_model(DATA).malloc(800 * MIB)
    program.begin()
    program.step()


def given_back(program: TimedProgram) -> None:
    data = program.put_data(800 * MIB)
    program.begin()
    program.step()
    program.free(data)


def below_the_peak(program: TimedProgram) -> None:
    program.free(program.at_top(TAKEN).malloc(3_000 * MIB))
    program.empty_cache()
    program.put_data(800 * MIB)
    program.begin()
    program.step()


@pytest.mark.parametrize("run_program", [weights, given_back, below_the_peak])
def test_what_is_a_models_or_does_not_stay_or_raises_no_peak_is_no_fault(
    run_program: Callable[[TimedProgram], None], tmp_path: Path
) -> None:
    program = TimedProgram()
    run_program(program)
    assert dataset_on_device(run_of(tmp_path / "run", program)).findings == ()


def test_a_run_without_a_snapshot_or_steps_or_in_which_nobody_looked_says_so(tmp_path: Path) -> None:
    program = training(800 * MIB)
    with pytest.raises(NotRecorded, match="device_data"):
        dataset_on_device(run_of(tmp_path / "old", program, events=[]))
    with pytest.raises(ThinEvidence, match=r"was not looked at: code was compiled\."):
        dataset_on_device(run_of(tmp_path / "run", program, events=[seen(program, why_not="code was compiled")]))
    with pytest.raises(NotRecorded, match=r"memory-<n>\.pickle is missing"):
        dataset_on_device(write_run(tmp_path / "second", steps=make_steps(10), devices=[GPU]))
    with pytest.raises(NothingToLookAt, match=r"^Needs a CUDA device\.$"):
        dataset_on_device(write_run(tmp_path / "on a CPU", steps=make_steps(10)))
    run = write_run(tmp_path / "third", snapshots=[training(800 * MIB).snapshot()], devices=[GPU])
    with pytest.raises(NotRecorded, match=r"steps\.jsonl"):
        dataset_on_device(run)
    assert dataset_on_device(run_of(tmp_path / "fourth", training(), events=[])).findings == ()
