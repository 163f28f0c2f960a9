"""What the start-up hook costs a Python child that never imports torch, recorded and bare by turns."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.intervals import Estimate, median_with_interval
from efprof.recorder.launch.launch import child_environment
from efprof.recorder.session.options import Options

START_UP_ROUNDS = 60


def measure_start_up(rounds: int) -> Estimate:
    """Milliseconds that a child which does nothing takes longer, start to end."""
    bare, recorded = dict(os.environ), child_environment(Options())
    order, added = random.Random(0), []
    for _ in range(rounds):
        if order.random() < 0.5:
            first = _child_ms(bare)
            added.append(_child_ms(recorded) - first)
        else:
            first = _child_ms(recorded)
            added.append(first - _child_ms(bare))
    return median_with_interval(added)


def _child_ms(environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True, cwd=Path(os.path.sep))
    return (time.perf_counter() - start) * 1000
