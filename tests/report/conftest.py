"""A browser for the tests that look at pages as people do."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.report.browsing import CHROMIUM, FLAGS, MAX_WAIT_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=MAX_WAIT_MS)
        yield browser
        browser.close()
