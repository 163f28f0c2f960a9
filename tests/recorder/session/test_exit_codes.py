"""The codes of programs that end by `sys.exit`."""

import subprocess
import sys

import pytest

from efprof.recorder.session.endings import exit_code_of


@pytest.mark.parametrize(
    "status", ["None", "0", "False", "3", "256", "-1", "2**63", "-2**63", "0.0", "'no data'", "()"]
)
def test_the_code_of_a_status_is_what_python_makes_of_it(status: str) -> None:
    program = [sys.executable, "-I", "-S", "-c", f"raise SystemExit({status})"]
    code = subprocess.run(program, capture_output=True, check=False).returncode
    assert exit_code_of(eval(status)) == code
