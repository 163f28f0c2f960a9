"""What stalls a step beside its calls: loaders started anew, modes for debugging; and samples of its lines."""

import json
import threading
import time
from pathlib import Path

import torch

from efprof.artifacts.events import ANOMALY, TrainingSampled
from tests.recorder.recording import EVERY_STEP_IN_FULL, line_of, record_here
from tests.recorder.training import make_loader, make_training, make_weight, train_step

HERE = Path(__file__)
NAME = "tests/recorder/collectors/test_loop_faults.py"


def train_on_first_batches() -> None:
    loader, (model, optimizer) = make_loader(3), make_training()
    for _ in range(3):
        train_step(model, optimizer, *next(iter(loader)))  # first batch


def train_for_epochs() -> None:
    loader, (model, optimizer) = make_loader(1), make_training()
    for _ in range(3):
        for batch in loader:
            train_step(model, optimizer, *batch)


def test_an_iterator_with_batches_left_is_a_restart_and_a_short_epoch_is_none(tmp_path: Path) -> None:
    steps = record_here(tmp_path / "first", train_on_first_batches).steps
    site = f"{NAME}:{line_of(HERE, 'first batch')}:train_on_first_batches"
    assert [[(one.site, one.call, one.count) for one in step.stalls] for step in steps] == [
        [],
        [(site, "DataLoader.__iter__", 1)],
        [(site, "DataLoader.__iter__", 1)],
    ]
    assert all(step.stalls == [] for step in record_here(tmp_path / "epochs", train_for_epochs).steps)


def train_with_anomaly_detection() -> None:
    weight, optimizer = make_weight(2)
    for number in range(2):
        with torch.autograd.set_detect_anomaly(number == 1):  # anomaly
            weight.sum().backward()
        optimizer.step()


def train_in_a_profiler() -> None:
    weight, optimizer = make_weight(2)
    with torch.profiler.profile():  # profiler
        for _ in range(2):
            weight.sum().backward()
            optimizer.step()


def test_a_mode_is_counted_in_the_steps_that_it_is_on_in_at_the_line_that_set_it(tmp_path: Path) -> None:
    steps = record_here(tmp_path / "anomaly", train_with_anomaly_detection).steps
    site = f"{NAME}:{line_of(HERE, 'anomaly')}:train_with_anomaly_detection"
    assert [[(one.site, one.call) for one in step.stalls] for step in steps] == [[], [(site, "anomaly detection")]]
    steps = record_here(tmp_path / "profiler", train_in_a_profiler).steps
    site = f"{NAME}:{line_of(HERE, 'profiler')}:train_in_a_profiler"
    assert [[(one.site, one.call) for one in step.stalls] for step in steps] == [[(site, "torch.profiler")]] * 2


NAMES = [str(number) for number in range(1000)]


def train_with_a_long_line() -> None:
    weight, optimizer = make_weight(2)
    for _ in range(12):
        end = time.perf_counter() + 0.05
        while time.perf_counter() < end:  # long
            pass
        end = time.perf_counter() + 0.03
        while time.perf_counter() < end:
            json.dumps(NAMES)  # written
        weight.sum().backward()
        optimizer.step()


def test_the_line_that_the_training_is_at_is_sampled_and_no_thread_is_left(tmp_path: Path) -> None:
    recorded = record_here(tmp_path / "run", train_with_a_long_line, overhead=EVERY_STEP_IN_FULL)
    sampled = recorded.events(TrainingSampled)[-1]
    first = line_of(HERE, "long")
    us = sum(one.us for one in sampled.lines if int(one.site.split(":")[1]) in (first, first + 1))
    assert us > sampled.total_us / 4
    written = [one for one in sampled.lines if int(one.site.split(":")[1]) == line_of(HERE, "written")]
    assert "json.dumps" in {one.function for one in written if not one.is_in_library}
    assert not [one for one in threading.enumerate() if one.name == "efprof-samples"]


def train_and_look_for_nan() -> None:
    weight, optimizer = make_weight(2)
    with torch.autograd.set_detect_anomaly(True):
        for _ in range(12):
            loss = weight.sum()
            for _ in range(300):
                loss = loss * 1.0  # formats
            loss.backward()
            optimizer.step()


def test_samples_that_meet_anomaly_detection_tell_it_whatever_the_line_calls(tmp_path: Path) -> None:
    recorded = record_here(tmp_path / "run", train_and_look_for_nan, overhead=EVERY_STEP_IN_FULL)
    lines = recorded.events(TrainingSampled)[-1].lines
    at = {int(one.site.split(":")[1]) for one in lines if one.function == ANOMALY}
    assert line_of(HERE, "formats") in at
