"""What starting efprof loads: nothing that takes long. By modules, since a clock would fail on a busy machine."""

import subprocess
import sys

SLOW = ("torch", "pandas", "plotly", "numpy", "pyarrow", "matplotlib", "jinja2", "msgspec")

HELP = f"""
import sys
sys.argv = ["efprof", "--help"]
from efprof.cli import main
try:
    main()
finally:
    print("loaded:", *(name for name in {SLOW} if name in sys.modules))
"""


def test_starting_loads_no_slow_library() -> None:
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"
