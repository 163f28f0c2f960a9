"""When pages can be opened in a real browser, and with which."""

import importlib.util
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]

needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM.exists() or importlib.util.find_spec("playwright") is None,
        reason="Opens pages in a browser: needs Debian's chromium (apt-get install chromium) and playwright.",
    ),
]
