"""How tests wait for what must come."""

import os
import time
from collections.abc import Callable

MAX_WAIT_S = int(os.environ.get("EFPROF_TESTS_MAX_WAIT_S", "480"))
"""It only bounds a failure: what takes a second here takes a minute on a slow core with others at work.

The variable is for machines where time is short.
"""

FOR_EVER_S = 100_000
"""What sleeps so long is ended by the test that started it."""


def wait_until(condition: Callable[[], object]) -> None:
    """Return once it holds."""
    deadline = time.monotonic() + MAX_WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
