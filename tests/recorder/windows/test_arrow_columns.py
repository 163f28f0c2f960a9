"""Columns made from bytes hold what was put in, and bring no other library into the training process."""

import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from efprof.recorder.windows.allocation_rows import booleans, integers, strings

TEXT = st.text(st.characters(codec="utf-8"))


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers_come_back(values: list[int]) -> None:
    assert integers(values).to_pylist() == values


@given(st.lists(st.booleans()))
def test_truth_values_come_back(values: list[bool]) -> None:
    assert booleans(values).to_pylist() == values


@given(st.lists(TEXT))
def test_strings_come_back_and_each_is_kept_once(values: list[str]) -> None:
    column = strings(values)
    assert column.to_pylist() == values
    assert len(column.dictionary) == len(set(values))


def test_writing_a_window_does_not_import_pandas() -> None:
    program = (
        "import sys; from pathlib import Path; from efprof.recorder.windows.allocation_rows import WindowEvents\n"
        "import tempfile; folder = Path(tempfile.mkdtemp())\n"
        "WindowEvents(None).write_allocations(folder / 'allocations-1.parquet')\n"
        "assert (folder / 'allocations-1.parquet').stat().st_size > 0\n"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
