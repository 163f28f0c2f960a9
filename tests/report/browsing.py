"""When pages can be opened in a real browser, with which, and how long they may take."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.patience import MAX_WAIT_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
MAX_WAIT_MS = MAX_WAIT_S * 1000

needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM.exists() or importlib.util.find_spec("playwright") is None,
        reason="Opens pages in a browser: needs Debian's chromium (apt-get install chromium) and playwright.",
    ),
]


def new_page(browser: "Browser", **options: Any) -> "Page":
    """A page in a context of its own with these options, which closes with it."""
    page = browser.new_page(**options)
    page.set_default_timeout(MAX_WAIT_MS)
    return page
