"""Which lines inside a loader are named: from samples of its workers, or from windows where it has none."""

import msgspec
import pytest

from efprof.artifacts.readings import WORKER_SAMPLES_FILE, SampledLine, WorkerSamples
from efprof.facts.source.sources import Sources
from efprof.facts.time.loader_lines import binomial_interval, lines_of_loader
from efprof.model import Snippet, Table
from tests.support.builders import loader_built, make_step, trace_event, write_run

DATA = """\
class Images:
    def __getitem__(self, index):
        image = self.read(index)
        image = image.rotate(self.angle(index))
        return image
"""
TRAIN = """\
def main():
    for batch in loader:
        train(batch)
"""
READ, ROTATE = "data.py:3:Images.__getitem__", "data.py:4:Images.__getitem__"


def run_of(folder, *samples, steps=(), traces=()):
    run = write_run(folder, steps=steps, sources={"data.py": DATA, "train.py": TRAIN}, traces=traces)
    if samples:
        lines = [msgspec.json.encode(one) + b"\n" for one in samples]
        (run.rank_folder / WORKER_SAMPLES_FILE).write_bytes(b"".join(lines))
    return run


def sampled(*lines, idle=0, loader=1, pid=10):
    return WorkerSamples(loader=loader, pid=pid, num_idle=idle, lines=[SampledLine(*line) for line in lines])


def of_workers(run):
    return lines_of_loader(run, loader_built(num_workers=2), wait_ms=10.0)


def test_samples_of_all_workers_are_one_and_the_slowest_line_is_named_with_its_text(tmp_path):
    first = sampled((READ, None, 20), (ROTATE, "PIL.Image.Image.rotate", 30), idle=5)
    second = sampled((READ, None, 18), (ROTATE, "PIL.Image.Image.rotate", 31), (ROTATE, None, 1), pid=11, idle=5)
    found = of_workers(run_of(tmp_path, first, second))
    assert found.num_samples == 100
    assert found.busy_share == pytest.approx(100 / 110)
    assert [(str(line.blame), line.share) for line in found.lines] == [("data.py:4", 0.62), ("data.py:3", 0.38)]
    assert found.sentence == (
        "62 % (52 % to 71 %) of the workers' time goes to data.py:4 `image = image.rotate(self.angle(index))`, "
        "inside PIL.Image.Image.rotate."
    )


def test_the_evidence_shows_the_line_and_the_others_by_their_shares(tmp_path):
    run = run_of(tmp_path, sampled((ROTATE, None, 60), (None, "torch.collate", 40)))
    snippet, table, _ = of_workers(run).evidence(run.get(Sources))
    assert isinstance(snippet, Snippet)
    assert (snippet.file, snippet.highlighted) == ("data.py", 4)
    assert isinstance(table, Table)
    assert [row[:3] for row in table.rows] == [
        ("data.py:4 image = image.rotate(self.angle(index))", "", 60.0),
        ("no line of yours", "torch.collate", 40.0),
    ]


def test_a_comprehension_counts_for_the_line_it_stands_in(tmp_path):
    inner = "data.py:4:Images.__getitem__.<locals>.<listcomp>"
    found = of_workers(run_of(tmp_path, sampled((ROTATE, None, 30), (inner, None, 30))))
    assert [(str(line.blame), line.share) for line in found.lines] == [("data.py:4", 1.0)]


def test_few_busy_samples_tell_nothing(tmp_path):
    assert of_workers(run_of(tmp_path / "few", sampled((ROTATE, None, 49), idle=1000))) is None
    assert of_workers(run_of(tmp_path / "none")) is None
    assert of_workers(run_of(tmp_path / "another", sampled((ROTATE, None, 500), loader=2))) is None


def test_no_line_is_named_where_the_workers_wait_or_none_takes_a_tenth_for_sure(tmp_path):
    waiting = of_workers(run_of(tmp_path / "waiting", sampled((ROTATE, None, 60), idle=100)))
    many = [(f"data.py:{number}:f", None, 10) for number in range(1, 16)]
    even = of_workers(run_of(tmp_path / "even", sampled(*many)))
    library = of_workers(run_of(tmp_path / "library", sampled((ROTATE, None, 2), (None, "torch.collate", 98))))
    assert [found.sentence for found in (waiting, even, library)] == ["", "", ""]


def window(folder, *events, data_ms=6.0):
    calls = [
        trace_event(name, 5000 + start_ms, duration_ms, call_site=site) for name, start_ms, duration_ms, site in events
    ]
    run = run_of(folder, steps=[make_step(5, window="trace-1", data_ms=data_ms)], traces=[calls])
    return lines_of_loader(run, loader_built(), wait_ms=data_ms)


NEXT = ("torch/utils/data/dataloader.py(700): __next__", 0, 6, "train.py:2:main")
ITEM = ("data.py(2): __getitem__", 1, 5, "torch/utils/data/_utils/fetch.py:50:fetch")


def test_without_workers_a_window_has_the_lines_below_the_one_that_asks(tmp_path):
    rotate = ("<built-in method rotate>", 1.5, 3.5, ROTATE)
    found = window(tmp_path, NEXT, ITEM, rotate)
    shares = [(line.blame and str(line.blame), line.share) for line in found.lines]
    assert shares == [
        ("data.py:4", pytest.approx(3.5 / 6)),
        ("data.py:2", pytest.approx(1.5 / 6)),
        (None, pytest.approx(1 / 6)),
    ]
    assert found.sentence == "58 % of a profiled fetch goes to data.py:4 `image = image.rotate(self.angle(index))`."
    assert [line.interval for line in found.lines] == [None] * 3


def test_a_function_s_own_code_is_told_by_the_line_that_defines_it(tmp_path):
    assert "goes to data.py:2 `def __getitem__" in window(tmp_path, NEXT, ITEM).sentence


def test_a_window_that_left_the_fetch_out_tells_nothing(tmp_path):
    assert window(tmp_path, NEXT, ITEM, data_ms=40.0) is None


@pytest.mark.parametrize(
    ("number", "total", "low", "high"), [(50, 100, 0.404, 0.596), (0, 50, 0.0, 0.071), (50, 50, 0.929, 1.0)]
)
def test_the_interval_is_wilson_s(number, total, low, high):
    assert binomial_interval(number, total) == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))
