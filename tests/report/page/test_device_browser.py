"""The map of segments in a real browser: drawn at once, it turns to the other instant, and tells what one points at."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from efprof.model import AuditResult
from efprof.report.page.html import render_html
from tests.report.browsing import needs_browser, new_page
from tests.report.report_sample import make_report, make_segment_map, memory_finding

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HEIGHT = 5000
"""All of the page: scrolling would take the note away."""
SHOWN = ".map-view:not([hidden])"

pytestmark = needs_browser


def write_page(folder: Path, num_blocks: int, num_segments: int) -> Path:
    fault = replace(memory_finding(), evidence=(make_segment_map(num_blocks, num_segments),))
    audit = AuditResult(audit_id="a", status="failed", reason="", findings=(fault,))
    path = folder / "page.html"
    path.write_text(render_html(make_report(audits=(audit,))), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: "Browser", tmp_path: Path) -> "Iterator[Page]":
    page = new_page(browser, viewport={"width": 1000, "height": HEIGHT})
    page.goto(write_page(tmp_path, 6, 3).as_uri())
    yield page
    page.close()


def test_one_instant_is_shown_until_one_turns_to_the_other(page: "Page") -> None:
    views, buttons = page.locator(".map-view"), page.locator(".map-switch button")
    assert [views.nth(place).is_visible() for place in (0, 1)] == [True, False]
    buttons.nth(1).click()
    assert [views.nth(place).is_visible() for place in (0, 1)] == [False, True]
    assert [buttons.nth(place).get_attribute("aria-pressed") for place in (0, 1)] == ["false", "true"]


def test_both_instants_are_printed(page: "Page") -> None:
    page.emulate_media(media="print")
    assert [page.locator(".map-view").nth(place).is_visible() for place in (0, 1)] == [True, True]


def test_what_one_points_at_is_told_until_one_leaves(page: "Page") -> None:
    told = page.locator(".map-told")
    box = page.locator(f"{SHOWN} [data-n]").first.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 5)
    assert told.text_content() == page.evaluate("JSON.parse(document.querySelector('[id$=-notes]').textContent)[0]")
    assert told.is_visible()
    page.mouse.move(1, 1)
    assert not told.is_visible()


def test_a_tap_tells_too_and_a_tap_elsewhere_ends_it(browser: "Browser", tmp_path: Path) -> None:
    page = new_page(browser, viewport={"width": 390, "height": HEIGHT}, has_touch=True)
    page.goto(write_page(tmp_path, 6, 3).as_uri())
    box = page.locator(f"{SHOWN} [data-n]").first.bounding_box()
    page.touchscreen.tap(box["x"] + 3, box["y"] + 5)
    told = page.locator(".map-told")
    assert told.is_visible()
    place = told.bounding_box()
    assert place["x"] >= 0
    assert place["x"] + place["width"] <= 390
    page.touchscreen.tap(3, 3)
    assert not told.is_visible()
    page.close()


def test_two_hundred_segments_with_five_thousand_blocks_are_drawn_by_the_page_itself(
    browser: "Browser", tmp_path: Path
) -> None:
    """Nothing has to run or arrive first: that would take as long as torch's own viewer takes for its map."""
    page = new_page(browser, viewport={"width": 1000, "height": 900}, java_script_enabled=False)
    page.goto(write_page(tmp_path, 25, 200).as_uri())
    assert page.locator(f"{SHOWN} [data-n]").count() >= 5000
    page.close()
