"""A trace file of any kind becomes the same columns, exact to the nanosecond; a broken one becomes one sentence."""

import gzip
import json
import os
import signal
import tempfile
import time
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from efprof.artifacts.trace import blocks, read
from efprof.artifacts.trace.blocks import TraceText, excerpt
from efprof.artifacts.trace.columns import ABSENT, DENSE, Trace
from efprof.artifacts.trace.events import LAST_US, Decoder
from efprof.artifacts.trace.read import read_here, read_window
from efprof.model import UnreadableInput
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from efprof.recorder.windows.allocation_rows import CallSites
from tests.support.builders import named

QUARTER_NS = 7_889_238 * 10**9
BASE_NS = 227 * QUARTER_NS
TRACES = Path(__file__).parents[3].parent / "shared" / "data" / "traces"
KERNEL = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2.25}
"""On stream 7 of device 0."""
NUM_EVENTS = 20_000
"""Of two megabytes, several blocks."""


def written(folder: Path, content: bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def trace_of(folder: Path, *events: dict[str, Any], **header: Any) -> Trace:
    return read_window(written(folder, json.dumps({**header, "traceEvents": events}).encode()))


def event_text(start_ns: int, duration_ns: int = 0) -> str:
    """One event as torch writes it: microseconds with three decimals."""
    ts, dur = (f"{time // 1000}.{time % 1000:03}" for time in (start_ns, duration_ns))
    return f'{{"ph":"X","cat":"python_function","name":"f","tid":1,"ts":{ts},"dur":{dur}}}'


@settings(max_examples=30, deadline=None)
@given(start_ns=st.integers(0, QUARTER_NS), duration_ns=st.integers(0, QUARTER_NS))
def test_times_since_the_start_of_a_quarter_are_exact(start_ns: int, duration_ns: int) -> None:
    text = f'{{"baseTimeNanoseconds":{BASE_NS},"traceEvents":[{event_text(start_ns, duration_ns)}]}}'
    with tempfile.TemporaryDirectory() as folder:
        trace = read_window(written(Path(folder), gzip.compress(text.encode())))
    assert (int(trace.start_ns[0]), int(trace.duration_ns[0])) == (BASE_NS + start_ns, duration_ns)


@given(starts_ns=st.lists(st.integers(1_700_000_000 * 10**9, 1_900_000_000 * 10**9), min_size=1, max_size=20))
def test_times_since_1970_are_exact_where_a_float_no_longer_tells_them_apart(starts_ns: list[int]) -> None:
    text = ",".join(map(event_text, starts_ns))
    block = Decoder().block(f"[{text}]".encode())
    assert block is not None
    assert block.dense["start_ns"].tolist() == starts_ns


@given(start_ns=st.integers(0, QUARTER_NS))
@settings(max_examples=10, deadline=None)
def test_a_call_finds_its_line_again(start_ns: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        sites = CallSites(Sites(Path(root), LineWriter(RankFolder(Path(root)), "sources.jsonl").write))
        caller = SimpleNamespace(file_name=f"{root}/train.py", line_number=3, function_name="train")
        sites.note(SimpleNamespace(start_time_ns=BASE_NS + start_ns), caller)
        sites.write(Path(root) / "sites-1.parquet")
        text = f'{{"baseTimeNanoseconds":{BASE_NS},"traceEvents":[{event_text(start_ns)}]}}'
        trace = read_window(written(Path(root), gzip.compress(text.encode()), "trace-1.json.gz"))
    assert trace.texts[trace.argument("call_site")[0]] == "train.py:3:train"


def test_nothing_but_events_without_a_time_is_left_out(tmp_path: Path) -> None:
    events = [
        KERNEL,
        {"ph": "i", "name": "[memory]", "s": "t", "ts": 2, "args": {"Total Allocated": 512}},
        {"ph": "s", "id": 9, "cat": "ac2g", "name": "ac2g", "ts": 1, "pid": 1, "tid": 1},
        {"ph": "f", "id": "0x9", "cat": "ac2g", "name": "ac2g", "ts": 2, "pid": 1, "tid": 1, "bp": "e"},
        {"ph": "C", "name": "queue", "ts": 3, "args": {"length": 4}},
        {"ph": "M", "name": "process_name", "pid": 1, "ts": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "cuda_sync", "name": "wait", "ts": 5, "dur": 1, "args": {"wait_on_stream": 7}},
        {"ph": "X", "name": "no time", "ts": "soon"},
    ]
    trace = trace_of(tmp_path, *events)
    assert len(trace) == len(events) - 1
    assert trace.num_unreadable == 1
    (memory,) = named(trace, "[memory]")
    assert trace.argument("total_bytes")[memory] == 512
    assert [int(trace.id[place]) for place in named(trace, "ac2g")] == [9, 9]


def test_events_are_in_order_of_their_start_outer_before_inner(tmp_path: Path) -> None:
    spans = {"inner": (10, 5), "outer": (10, 20), "first": (1, 2)}
    events = [{"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur} for name, (ts, dur) in spans.items()]
    trace = trace_of(tmp_path, *events)
    assert [trace.text(place) for place in range(3)] == ["first", "outer", "inner"]


def test_the_shapes_of_an_operators_inputs_are_numbers_and_a_list_of_tensors_has_its_first_ones(tmp_path: Path) -> None:
    dims = [[24, 1, 8], [[1, 1, 16], [1, 1, 16]], [], []]
    events = [{"ph": "X", "name": "aten::lstm", "ts": 1, "args": {"Input Dims": dims}}, {"ph": "X", "name": "add"}]
    trace = trace_of(tmp_path, *events)
    assert [trace.input_shapes(event) for event in (1, 0)] == [((24, 1, 8), (1, 1, 16), (), ()), ()]


def test_arguments_stay_with_their_events_when_those_are_sorted(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": str(ts), "ts": ts, "args": {"Sequence number": ts, "Input Dims": [[ts]]}}
        for ts in (5, 3, 9)
    ]
    trace = trace_of(tmp_path, *events, {"ph": "X", "name": "none", "ts": 4})
    assert trace.argument("sequence").tolist() == [3, ABSENT, 5, 9]
    assert [trace.texts[code] for code in trace.sparse["shapes"][1]] == ["[[3]]", "[[5]]", "[[9]]"]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("is_list", [True, False])
def test_a_file_reads_the_same_however_it_is_written(
    tmp_path: Path, separators: tuple[str, str], indent: int | None, is_list: bool
) -> None:
    """Nested objects and strings that look like the end of an event lie at every place where it may be cut."""
    tricky = {"a": [{"b": 1}, {"b": 2}], "Call stack": 'f(){},{"x"', "Input Dims": [[1, 2], []]}
    events = [{**KERNEL, "ts": at, "args": {**tricky, "correlation": at}} for at in range(40)]
    whole = events if is_list else {"deviceProperties": [{"id": 0}], "traceEvents": events, "INFO": ["]}", [{"a": 1}]]}
    path = written(tmp_path, json.dumps(whole, indent=indent, separators=separators).encode())
    for num_bytes in (7, 64, 1000, 1 << 20):
        text = TraceText(path)
        with patch.object(blocks, "BLOCK_BYTES", num_bytes):
            found = list(text.decoded(Decoder().block))
        assert sum(len(block.dense["id"]) for block in found) == len(events)
        assert [int(number) for block in found for number in block.dense["id"]] == list(range(40))
        assert text.header.devices == ([] if is_list else [{"id": 0}])


def test_several_processes_read_what_one_does(tmp_path: Path) -> None:
    path = several_blocks(tmp_path, {})
    assert read_here(path, 3)[0].header.rank == 5
    one, several = (read_here(path, number)[1].ordered(0)[0] for number in (1, 3))
    assert len(one["id"]) == NUM_EVENTS
    assert all((one[name] == several[name]).all() for name in one)


def test_one_process_joins_what_several_could_not_decode(tmp_path: Path) -> None:
    path = several_blocks(tmp_path, {"a": [{"b": "x" * 600}, {"b": 2}]})
    with pytest.raises(read._NotDecoded):
        read._read_by(2, path)
    assert len(read_here(path, 2)[1].ordered(0)[0]["id"]) == NUM_EVENTS


def test_a_helper_that_is_killed_costs_time_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "_write_blocks", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    path = several_blocks(tmp_path, {})
    assert len(read_here(path, 2)[1].ordered(0)[0]["id"]) == NUM_EVENTS


def several_blocks(folder: Path, arguments: dict[str, Any]) -> Path:
    """A file whose events fill more blocks than there are processes."""
    events = [{**KERNEL, "name": f"k{at % 7}", "ts": at % 999, "args": arguments} for at in range(NUM_EVENTS)]
    whole = {"distributedInfo": {"rank": 5}, "traceEvents": events}
    path = written(folder, json.dumps(whole, separators=(",", ":")).encode())
    assert len(list(TraceText(path).blocks())) > 3
    return path


def test_a_null_or_an_empty_text_is_no_argument_but_a_flow_may_have_the_number_zero(tmp_path: Path) -> None:
    empty = {"correlation": None, "Sequence number": None, "Call stack": "", "Total Allocated": 0}
    flow = {"ph": "s", "id": 0, "cat": "ac2g", "name": "ac2g", "ts": 2}
    trace = trace_of(tmp_path, {**KERNEL, "args": empty}, flow, {**KERNEL, "ts": 9, "args": {"Sequence number": 0}})
    assert trace.id.tolist() == [ABSENT, 0, ABSENT]
    assert trace.argument("sequence").tolist() == [ABSENT, ABSENT, 0]
    assert trace.argument("total_bytes").tolist() == [0, ABSENT, ABSENT]
    assert "call_stack" not in trace.sparse


@pytest.mark.parametrize(
    ("times", "starts_ns"),
    [
        (["1700000000000000", "1700000000000001"], [1_700_000_000_000_000_000, 1_700_000_000_000_001_000]),
        (["1700000000000000.25", "1700000000000000.125"], [1_700_000_000_000_000_250, 1_700_000_000_000_000_125]),
        (['"1700000000000000.007"', "1.700000000000000007e15"], [1_700_000_000_000_000_007] * 2),
        (["1700000000000000.001", "5"], [1_700_000_000_000_000_001, 5000]),
        (["1700000000000000", "null"], [1_700_000_000_000_000_000]),
        (["9" * 40, "1700000000000000"], [LAST_US * 1000, 1_700_000_000_000_000_000]),
        (["9" * 40, "-1e300"], [LAST_US * 1000, -LAST_US * 1000]),
    ],
)
def test_late_times_are_exact_however_they_are_written(times: list[str], starts_ns: list[int]) -> None:
    block = Decoder().block(b"[%b]" % ",".join(f'{{"ph":"X","ts":{time}}}' for time in times).encode())
    assert block is not None
    assert block.dense["start_ns"].tolist() == starts_ns
    assert block.num_unreadable == len(times) - len(starts_ns)


def test_numbers_that_are_none_cost_no_event(tmp_path: Path) -> None:
    text = '{"traceEvents":[{"ph":"X","ts":1,"dur":0,"args":{"memory bandwidth (GB/s)": inf,"Total Allocated":4}}]}'
    trace = read_window(written(tmp_path, text.encode()))
    assert trace.argument("total_bytes").tolist() == [4]


def test_an_argument_of_another_type_costs_no_event_but_a_name_or_thread_does(tmp_path: Path) -> None:
    odd = {**KERNEL, "name": "odd", "args": {"correlation": "none", "Sequence number": [1]}}
    trace = trace_of(tmp_path, KERNEL, odd, {**KERNEL, "name": 5}, {**KERNEL, "tid": {"a": 1}}, 7)
    assert (len(trace), len(named(trace, "odd")), trace.num_unreadable) == (2, 1, 3)


def test_a_name_that_is_not_utf_8_costs_no_event(tmp_path: Path) -> None:
    trace = read_window(written(tmp_path, b'{"traceEvents":[{"ph":"X","name":"a\xff: nan","ts":1,"dur":1}]}'))
    assert (len(named(trace, "a\ufffd: nan")), trace.num_unreadable) == (1, 0)


def test_an_event_that_cannot_be_read_beside_a_name_that_is_not_utf_8_costs_no_excerpt(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"traceEvents":[{"ph":"X","name":"a\xff","ts":1},{"ph":"X","name":5,"ts":2}]}')
    packed = excerpt(path, lambda block: block.dense["phase"] > 0, [KERNEL])
    kept = json.loads(gzip.decompress(packed).decode(errors="replace"))
    assert kept["traceEvents"][1:] == [KERNEL]


def test_large_times_are_cut_not_wrapped(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, {**KERNEL, "dur": 1e300}, {**KERNEL, "ts": 10**30})
    assert trace.duration_ns.max() > 0
    assert trace.start_ns.min() >= 0


BROKEN = {
    "nothing": b"",
    "no trace": b'{"schemaVersion": 1}',
    "a page": b"<html><body>404</body></html>",
    "cut in an event": b'{"traceEvents": [{"ph":"X","ts":1,"na',
    "cut after an event": b'{"traceEvents": [{"ph":"X","ts":1},{"ph":"X","ts":2}',
    "cut after the list": b'{"traceEvents": [{"ph":"X","ts":1}]',
    "garbage between": b'{"traceEvents": [{"ph":"X","ts":1},{ph:1},{"ph":"X","ts":2}]}',
    "two lists": b'{"traceEvents": [{"ph":"X","ts":1}], "traceEvents": [{"ph":"X","ts":2}]}',
    "packed and cut": gzip.compress(b'{"traceEvents": [' + b'{"ph":"X","ts":1},' * 5000)[:-20],
    "packed garbage": b"\x1f\x8b" + bytes(range(200)),
    "deep": b'{"traceEvents": ' + b"[" * 200_000,
    "deep arguments": b'{"traceEvents": [{"ph":"X","args":' + b'{"a":' * 100_000,
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_one_sentence_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = written(tmp_path, content)
    with pytest.raises(UnreadableInput, match=r"trace\.json") as error:
        read_window(path)
    assert str(error.value).count("\n") == 0


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="No such file"):
        read_window(tmp_path / "none.json")


def test_what_unpacks_to_a_thousand_times_its_size_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    """200 MB of blanks in 200 kB: no list of events within the first 64 MiB."""
    bomb = written(tmp_path, gzip.compress(b" " * (200 << 20), compresslevel=1), "bomb.json.gz")
    start = time.monotonic()
    with pytest.raises(UnreadableInput, match="traceEvents"):
        read_window(bomb)
    assert time.monotonic() - start < 120


def test_an_event_without_an_end_is_given_up_soon(tmp_path: Path) -> None:
    """Looked at again with each 256 KiB more, it took a minute."""
    text = b'{"traceEvents": [{"name": "' + b"a" * (200 << 20)
    start = time.process_time()
    with pytest.raises(UnreadableInput, match="no end of an event"):
        read_here(written(tmp_path, gzip.compress(text, compresslevel=1), "bomb.json.gz"))
    assert time.process_time() - start < 15


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_damage_gives_columns_or_one_sentence(data: st.DataObject) -> None:
    events = [{**KERNEL, "ts": at, "args": {"correlation": at, "Input Dims": [[at]]}} for at in range(5)]
    content = bytearray(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content) - 1))
        content[start : start + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), bytes(content))
        with suppress(UnreadableInput):
            dense, _ = read_here(path)[1].ordered(0)
            assert len({len(column) for column in dense.values()}) == 1


@pytest.mark.skipif(not TRACES.is_dir(), reason="needs ../shared/data/traces")
@pytest.mark.parametrize("path", sorted(TRACES.glob("*.gz")) or [Path()], ids=lambda path: path.name[:40])
def test_real_traces_lose_no_event_and_no_nanosecond(path: Path) -> None:
    if path.stat().st_size > 500_000:
        pytest.skip("the larger ones are read by make bench-trace")
    raw = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal, parse_int=Decimal)
    trace = read_window(path)
    assert len(trace) == len(raw["traceEvents"])
    base = int(raw.get("baseTimeNanoseconds", 0))
    starts = sorted(base + round(event.get("ts", Decimal(0)) * 1000) for event in raw["traceEvents"])
    assert trace.start_ns.tolist() == starts
    assert sum(trace.duration_ns.tolist()) == sum(
        round(event.get("dur", Decimal(0)) * 1000) for event in raw["traceEvents"]
    )
    arrays = [getattr(trace, name) for name in DENSE] + [array for pair in trace.sparse.values() for array in pair]
    assert sum(array.nbytes for array in arrays) <= 64 * len(trace)
