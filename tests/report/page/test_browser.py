"""The page in a real browser, at the width of a phone and of a desk, light and dark; and its map of segments."""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from efprof.model import AuditResult
from efprof.report.page.html import render_comparison_html, render_html
from tests.report.report_sample import make_comparison, make_report, make_segment_map, memory_finding
from tests.support.waiting import MAX_WAIT_S

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDER = """() => [...document.querySelectorAll('body *')].filter(e => {
  const r = e.getBoundingClientRect();
  if (r.width === 0 || r.right <= innerWidth + 1) return false;
  for (let p = e.parentElement; p; p = p.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX)) return false;
  return true; }).map(e => e.tagName + '.' + e.className)"""

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not CHROMIUM.exists() or importlib.util.find_spec("playwright") is None,
        reason="Opens pages in a browser: needs Debian's chromium (apt-get install chromium) and playwright.",
    ),
]


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=MAX_WAIT_S * 1000)
        yield browser
        browser.close()


def new_page(browser: "Browser", **options: Any) -> "Page":
    """A page in a context of its own with these options, which closes with it."""
    page = browser.new_page(**options)
    page.set_default_timeout(MAX_WAIT_S * 1000)
    return page


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    pages = {
        "report": render_html(make_report()),
        "comparison": render_comparison_html(make_comparison(), make_report()),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


def open_page(browser: "Browser", path: Path, width: int, scheme: str, complaints: list[str]) -> "Page":
    page = new_page(browser, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.on("console", lambda message: message.type == "error" and complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda r: r.url.startswith(("file:", "data:", "blob:")) or complaints.append(r.url))
    page.goto(path.as_uri())
    return page


@pytest.mark.parametrize(
    ("name", "width", "scheme"),  # each with each other once: half of all eight
    [("report", 390, "dark"), ("report", 1280, "light"), ("comparison", 390, "light"), ("comparison", 1280, "dark")],
)
def test_opens_complete_and_without_complaint(
    browser: "Browser", files: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    complaints: list[str] = []
    page = open_page(browser, files[name], width, scheme, complaints)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
    for place in page.locator(".interactive").all():
        place.evaluate(
            "place => place.scrollIntoView()"
        )  # playwright's own waits for frames, which a busy machine drops
        place.locator(".main-svg").first.wait_for()
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    assert page.evaluate(WIDER) == []
    assert complaints == []
    page.close()


def test_every_picture_that_is_not_closed_is_drawn_without_scrolling(
    browser: "Browser", files: dict[str, Path]
) -> None:
    page = open_page(browser, files["report"], 390, "light", [])
    page.wait_for_function(
        "() => [...document.querySelectorAll('.interactive')]"
        ".every(e => e.closest('details') || e.querySelector('.main-svg'))"
    )
    assert page.evaluate("scrollY") == 0
    page.close()


def test_copies_the_new_line_and_says_so(browser: "Browser", files: dict[str, Path]) -> None:
    page = open_page(browser, files["report"], 1280, "light", [])
    button = page.locator(".change button").first
    button.click()
    page.locator("#said", has_text="Copied to the clipboard").wait_for()
    assert button.text_content() == "Copied"
    page.close()


def test_the_toggle_turns_page_and_pictures_and_is_remembered(browser: "Browser", files: dict[str, Path]) -> None:
    page = open_page(browser, files["report"], 1280, "light", [])
    axis = page.locator("#picture-memory .xtitle")
    page.locator("#picture-memory").evaluate("place => place.scrollIntoView()")
    axis.wait_for()
    before = axis.evaluate("element => element.style.fill")
    page.locator("#theme").click()
    page.wait_for_function(
        "before => document.querySelector('#picture-memory .xtitle').style.fill !== before", arg=before
    )
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.close()


def test_print_shows_all_pictures_in_light_colours(browser: "Browser", files: dict[str, Path]) -> None:
    page = open_page(browser, files["report"], 800, "dark", [])
    page.emulate_media(media="print")
    for title in page.locator(".interactive .xtitle").all():
        title.wait_for(state="attached")
    page.wait_for_function(
        "() => { const named = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();"
        " const probe = document.createElement('i'); probe.style.color = named('--muted');"
        " const titles = [...document.querySelectorAll('.interactive')].map(e => e.querySelector('.xtitle'));"
        " return titles.every(title => title && title.style.fill === probe.style.color); }"
    )
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(255, 255, 255)"
    page.close()


HEIGHT = 5000
"""All of the page: scrolling would take the note away."""
SHOWN = ".map-view:not([hidden])"


def write_page(folder: Path, num_blocks: int, num_segments: int) -> Path:
    """With a map of segments as its only evidence."""
    fault = replace(memory_finding(), evidence=(make_segment_map(num_blocks, num_segments),))
    audit = AuditResult(audit_id="a", status="failed", reason="", findings=(fault,))
    path = folder / "page.html"
    path.write_text(render_html(make_report(audits=(audit,))), encoding="utf-8")
    return path


@pytest.fixture
def map_page(browser: "Browser", tmp_path: Path) -> "Iterator[Page]":
    page = new_page(browser, viewport={"width": 1000, "height": HEIGHT})
    page.goto(write_page(tmp_path, 6, 3).as_uri())
    yield page
    page.close()


def test_one_instant_is_shown_until_one_turns_to_the_other(map_page: "Page") -> None:
    views, buttons = map_page.locator(".map-view"), map_page.locator(".map-switch button")
    assert [views.nth(place).is_visible() for place in (0, 1)] == [True, False]
    buttons.nth(1).click()
    assert [views.nth(place).is_visible() for place in (0, 1)] == [False, True]
    assert [buttons.nth(place).get_attribute("aria-pressed") for place in (0, 1)] == ["false", "true"]


def test_what_one_points_at_is_told_until_one_leaves(map_page: "Page") -> None:
    told = map_page.locator(".map-told")
    box = map_page.locator(f"{SHOWN} [data-n]").first.bounding_box()
    map_page.mouse.move(box["x"] + 3, box["y"] + 5)
    assert told.text_content() == map_page.evaluate("JSON.parse(document.querySelector('[id$=-notes]').textContent)[0]")
    assert told.is_visible()
    map_page.mouse.move(1, 1)
    assert not told.is_visible()


def test_two_hundred_segments_with_five_thousand_blocks_are_drawn_by_the_page_itself(
    browser: "Browser", tmp_path: Path
) -> None:
    """Nothing has to run or arrive first: that would take as long as torch's own viewer takes for its map."""
    page = new_page(browser, viewport={"width": 1000, "height": 900}, java_script_enabled=False)
    page.goto(write_page(tmp_path, 25, 200).as_uri())
    assert page.locator(f"{SHOWN} [data-n]").count() >= 5000
    page.close()
