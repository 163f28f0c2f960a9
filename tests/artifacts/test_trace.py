"""Times of a profiler trace: exact to the nanosecond, however far into its quarter of a year."""

import tempfile
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from efprof.artifacts.trace import read_trace
from efprof.model import UnreadableInput
from efprof.recorder.session.sites import Sites
from efprof.recorder.session.writing import LineWriter, RankFolder
from efprof.recorder.windows.allocation_rows import CallSites

QUARTER_NS = 7_889_238 * 10**9
BASE_NS = 227 * QUARTER_NS
offsets = st.integers(0, QUARTER_NS)


def make_trace(start_ns: int, duration_ns: int) -> bytes:
    """One event as torch writes it: microseconds with three decimals, from the start of the quarter."""
    ts, dur = (f"{time // 1000}.{time % 1000:03}" for time in (start_ns, duration_ns))
    event = f'{{"ph":"X","cat":"python_function","name":"f","tid":1,"ts":{ts},"dur":{dur},"args":{{"Python id":7}}}}'
    return f'{{"baseTimeNanoseconds":{BASE_NS},"traceEvents":[{event}]}}'.encode()


@given(start_ns=offsets, duration_ns=offsets)
def test_a_call_finds_its_line_again_and_keeps_its_exact_times(start_ns: int, duration_ns: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        sites = CallSites(Sites(Path(root), LineWriter(RankFolder(Path(root)), "sources.jsonl")))
        caller = SimpleNamespace(file_name=f"{root}/train.py", line_number=3, function_name="train")
        sites.note(SimpleNamespace(start_time_ns=BASE_NS + start_ns), caller)
        path = Path(root) / "trace-1.json"
        path.write_bytes(sites.add_to(make_trace(start_ns, duration_ns)))
        (event,) = read_trace(path).events
    assert (event.start_ns, event.duration_ns) == (BASE_NS + start_ns, duration_ns)
    assert event.arguments.call_site == "train.py:3:train"
    assert event.arguments.python_id == 7, "what torch said of the call stays"


@pytest.mark.parametrize("time", ['"soon"', '"Infinity"', '"NaN"', "[1]"])
def test_a_time_that_is_none_is_one_sentence(tmp_path: Path, time: str) -> None:
    path = tmp_path / "trace-1.json"
    path.write_bytes(msgspec.json.encode({"traceEvents": [{"ph": "X", "ts": msgspec.Raw(time.encode())}]}))
    with pytest.raises(UnreadableInput, match="record the run again"):
        read_trace(path)
