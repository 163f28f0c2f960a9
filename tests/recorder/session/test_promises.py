"""Promises of the recorder as a whole, each kept by a training that is really recorded."""

import gzip
import json
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from efprof.artifacts.events import CollectorStopped, WindowOpened
from efprof.artifacts.trace.read import trace_paths
from efprof.model import EfprofError
from efprof.recorder.session.options import DEFAULT_OVERHEAD, DEFAULT_TRACE_STEPS, parse_options
from tests.recorder.conftest import Begin
from tests.recorder.faults.programs import training
from tests.recorder.recording import (
    Recorded,
    record_command,
    record_here,
)
from tests.recorder.training import (
    BATCH,
    make_loader,
    make_training,
    train_plainly,
    train_step,
)

MIB = 1024**2


def hoard_at(step: int, num_steps: int) -> None:
    """Allocate and touch 64 MiB at the end of this step, which lasts long enough for the next reading."""
    model, optimizer = make_training()
    kept = []
    for number, (inputs, targets) in enumerate(make_loader(num_steps)):
        train_step(model, optimizer, inputs, targets)
        if number == step:
            kept.append(torch.ones(64 * MIB, dtype=torch.uint8))
            time.sleep(0.03)


def test_each_step_has_the_resident_size_of_the_process(tmp_path: Path) -> None:
    sizes = [step.rss_bytes for step in record_here(tmp_path, lambda: hoard_at(10, 20)).steps]
    assert len(sizes) == 20
    assert all(size > 0 for size in sizes)
    assert sizes[-1] - sizes[8] > 48 * MIB


NO_NETWORK = """
import socket, sys

def refuse(event, arguments):
    if event == "socket.__new__" and arguments[1] != socket.AF_UNIX:
        print("no socket of the network", file=sys.stderr)
        raise PermissionError(event)

sys.addaudithook(refuse)
"""


WITHOUT_LOADER = """
import ctypes
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    optimizer.zero_grad()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    if step == 5:
        torch.range(0, 1)
        print(ctypes.c_int.in_dll(ctypes.CDLL(torch._C.__file__), "FLAGS_caffe2_log_level").value)
"""


@pytest.fixture(scope="module")
def without_options(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A training as `efprof record` takes it by itself, where a socket of the network is refused."""
    folder = tmp_path_factory.mktemp("without_options")
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    (folder / "train.py").write_text(WITHOUT_LOADER)
    command = [sys.executable, "train.py"]
    return record_command(folder / "home", command, environment={"PYTHONPATH": str(folder / "site")})


def test_neither_efprof_nor_the_training_makes_a_socket_of_the_network(without_options: Recorded) -> None:
    assert (without_options.exit_code, len(without_options.steps)) == (0, 40)
    assert "no socket" not in without_options.errors
    assert len(without_options.our_lines) == 1


def test_a_window_adds_no_line_and_takes_none_away(without_options: Recorded) -> None:
    """torch warns from C++ by Python, and by a log of its own whose level 1 lets warnings through."""
    warning, line, ours = without_options.errors.splitlines()
    assert "UserWarning: torch.range is deprecated" in warning
    assert line.strip() == "torch.range(0, 1)"
    assert [ours] == without_options.our_lines
    assert without_options.output == "1\n"


@pytest.mark.filterwarnings("ignore:.*kineto.*:UserWarning")
def test_a_trace_has_the_shapes_of_what_operators_were_given(tmp_path: Path) -> None:
    recorded = record_here(tmp_path, train_plainly, windows=((2, 3),))
    (path,) = trace_paths(recorded.rank)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    shapes = [event["args"]["Input Dims"] for event in events if event["name"] == "aten::addmm"]
    assert [[8], [BATCH, 3], [3, 8], [], []] in shapes


def test_without_options_the_default_windows_are_recorded_and_no_other(without_options: Recorded) -> None:
    """The second one, and the lean one after each, wait for the budget, on a machine where the first takes seconds."""
    opened = without_options.events(WindowOpened)
    full = [event.step for event in opened if event.window.startswith("trace-")]
    assert full in ([first for first, _ in DEFAULT_TRACE_STEPS[:count]] for count in (1, 2))
    assert {event.why for event in opened} == {"schedule"}
    assert len(trace_paths(without_options.rank)) == len(full)


def test_windows_are_named_as_ranges_of_steps_and_triggers_by_their_names() -> None:
    assert parse_options(trace_steps="20:25,500:503").trace_steps == ((20, 25), (500, 503))
    assert parse_options(triggers="signal, slow-step").triggers == ("slow-step", "signal")
    with pytest.raises(EfprofError, match="names step 12 twice"):
        parse_options(trace_steps="10:14,12:20")


def test_the_losses_are_the_same_to_the_bit_where_more_is_recorded(
    begin: Begin, begin_unrecorded: Begin, tmp_path: Path
) -> None:
    bare = begin_unrecorded(training(), tmp_path / "home")
    assert bare.wait() == 0, bare.errors
    output = bare.output
    assert len(output.split()) == 40
    for option in ("holders", *(["host_memory"] if find_spec("memray") else [])):
        place = tmp_path / option
        place.mkdir()
        child = begin(training(), place=place, overhead=DEFAULT_OVERHEAD, **{option: True})
        assert child.wait() == 0, child.errors
        assert child.output == output
        recorded = Recorded(folder=child.folder)
        assert recorded.events(CollectorStopped) == []
        assert len(recorded.steps) == 40
