"""What starting efprof loads: nothing that takes long. By modules, since a clock would fail on a busy machine."""

import subprocess
import sys
import time

import pytest

SLOW = ("torch", "pandas", "plotly", "numpy", "pyarrow", "matplotlib", "jinja2", "msgspec")

HELP = """
import sys
sys.argv = ["efprof", "--help"]
from efprof.cli import main
try:
    main()
except SystemExit:
    pass
"""
CALLS = {"import": "import efprof", "help": HELP}


@pytest.mark.parametrize("call", CALLS)
def test_starting_loads_no_slow_library(call: str) -> None:
    program = f"{CALLS[call]}\nimport sys\nprint('loaded:', *(name for name in {SLOW} if name in sys.modules))"
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    print(f"{call}: {time.perf_counter() - start:.3f} s, the interpreter's start included")
    assert done.stdout.splitlines()[-1] == "loaded:"
