"""The page, read back with an HTML parser."""

import dataclasses
import html.parser
import json
import sys

import pytest

from efprof.model import AuditResult, EfprofError, Evidence, Finding, Measurements, Report, Timeline
from efprof.report.charts.chart import Chart, Layer
from efprof.report.charts.pictures import svg_of
from efprof.report.page.html import render_comparison_html, render_html
from tests.report.report_sample import (
    HOSTILE,
    certain_finding,
    make_clean_report,
    make_comparison,
    make_measurements,
    make_report,
    make_run,
    make_window_memory,
    memory_finding,
)

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(html.parser.HTMLParser):
    """Tags with their attributes, ids, and the text outside scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script_id = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        self._script_id = dict(attrs).get("id") or "" if tag == "script" else self._script_id

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[self._script_id] = data
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def ids(self) -> list[str]:
        return [str(attributes["id"]) for _, attributes in self.tags if "id" in attributes]

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(evidence: Evidence) -> Page:
    """Of a report whose one finding has that evidence."""
    fault = dataclasses.replace(memory_finding(), evidence=(evidence,))
    return Page(render_html(report_of(fault)))


def report_of(*found: Finding, audit_id: str = "a") -> Report:
    return make_report(audits=(AuditResult(audit_id=audit_id, status="failed", reason="", findings=found),))


@pytest.fixture(scope="module")
def source() -> str:
    return render_html(make_report())


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def test_every_tag_is_closed_every_id_unique_and_nothing_loaded_from_elsewhere(page: Page) -> None:
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert not page.all("link")
    assert all("src" not in script for script in page.all("script"))
    assert not page.all("img")
    policy = next(m for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert str(policy["content"]).startswith("default-src 'none'")


def test_hostile_strings_stay_text_and_no_script_or_control_character_is_open(page: Page, source: str) -> None:
    assert "<script>alert(\"1\")</script> & 'quotes'" in page.text
    assert "{{ 7 * 7 }}" in page.text
    assert len(page.all("script")) == len([s for s in page.all("script") if not s.get("src")])
    assert not [tag for tag, _ in page.tags if tag in ("b", "textarea")]
    for name, script in page.scripts.items():
        if name.endswith("-figure"):
            assert "<" not in script
            json.loads(script, parse_constant=pytest.fail)
    assert "\x1b" not in source
    assert "\ufffd[31mred" in source


def test_sections_come_in_order_after_the_three_lines(page: Page) -> None:
    wanted = ["findings", "memory", "time", "stages", "numbers", "checks", "run"]
    assert [name for name in page.ids if name in wanted] == wanted
    assert page.text.index("Verdict Memory grows 61.0 MiB per step") < page.text.index("Why history keeps each loss")
    assert page.text.index("Why history keeps each loss") < page.text.index("Next Keep the number")
    assert "3 findings (memory 1, time 1, numbers 1); 2 checks passed, 1 not applicable, 1 broke why" in page.text


def test_what_the_time_of_the_run_went_to_is_a_bar_below_the_three_lines(page: Page) -> None:
    assert page.text.index("Next Keep the number") < page.text.index("Of the run's 8.00 s: usual steps 78 %")
    widths = [str(part["style"]) for part in page.all("i") if "title" in part and "flex-grow" in str(part["style"])]
    assert widths == [
        "flex-grow:6.2;--c:var(--forward)",
        "flex-grow:1.79;--c:var(--alert)",
        "flex-grow:0.01;--c:var(--other)",
        "flex-grow:0.0;--c:var(--extra)",
    ]
    assert "usual steps 6.20 s long steps 1.79 s other 10.0 ms" in page.text


def test_cards_come_ranked_and_link_to_themselves_by_anchors_that_survive_moved_lines(page: Page) -> None:
    anchors = [str(card["id"]) for card in page.all("article")]
    assert [anchor.rsplit("-", 1)[0] for anchor in anchors] == [
        "memory-growth",
        "blocking-scalar-read",
        "nonfinite-loss",
    ]
    links = {link["href"] for link in page.all("a")}
    assert {f"#{anchor}" for anchor in anchors} <= links
    moved = dataclasses.replace(memory_finding(), blame=dataclasses.replace(memory_finding().blame, line=99))
    other = Page(render_html(report_of(moved, audit_id="memory_growth")))
    assert other.all("article")[0]["id"] == page.all("article")[0]["id"]


def test_equal_keys_get_anchors_of_their_own_and_no_curve_no_empty_frame() -> None:
    page = Page(render_html(report_of(memory_finding(), memory_finding())))
    assert len(page.ids) == len(set(page.ids))
    whole = make_measurements()
    timeline = Timeline(steps=whole.timeline.steps[:1], memory=whole.timeline.memory[:5])
    measurements = dataclasses.replace(whole, timeline=timeline, window_memory=None)
    page = Page(render_html(make_report(measurements=measurements, audits=())))
    pictures = [tag["aria-label"] for _, tag in page.tags if tag.get("class") == "interactive"]
    assert pictures == ["Memory over time", "Time per step"]


def test_the_blamed_line_is_marked_and_one_whose_text_is_not_known_leaves_no_box(page: Page) -> None:
    assert "> 88 history.append(loss)" in page.text
    unread = dataclasses.replace(memory_finding(), blame=dataclasses.replace(memory_finding().blame, text=""))
    other = Page(render_html(report_of(unread, audit_id="memory_growth")))
    is_boxed = [any("why-code" in code.get("class", "") for code in one.all("code")) for one in (page, other)]
    assert is_boxed == [True, False]


def test_a_fix_is_a_diff_whose_new_side_can_be_copied(page: Page) -> None:
    assert "- history.append(loss) + history.append(loss.item())" in page.text
    copied = [button["data-copy"] for button in page.all("button") if "data-copy" in button]
    assert "        history.append(loss.item())" in copied
    assert "log_every: 50" in copied
    assert "OMP_NUM_THREADS=8" in copied


def test_gains_carry_basis_interval_and_share(page: Page) -> None:
    assert "saves about 11.4 ms (10.1 ms to 12.2 ms) per step 32 % of the median step, from measurements" in page.text
    assert "saves about 3.75 GiB (3.52 GiB to 3.81 GiB) of peak memory 65 % of the recorded peak" in page.text
    assert "Predicted gain: The waits" in page.text
    text = Page(render_html(report_of(certain_finding(), audit_id="growing"))).text
    assert "33.0 MiB" in text
    assert "33.0 MiB to 33.0 MiB" not in text


def test_a_picture_of_the_window_stands_under_memory_over_time_and_not_twice(page: Page) -> None:
    assert page.ids.index("memory") < page.ids.index("picture-window") < page.ids.index("time")
    assert "Memory by what it is for, in step 40" in page.text
    finding = dataclasses.replace(memory_finding(), evidence=(make_window_memory(),))
    page = Page(render_html(report_of(finding, audit_id="oversized_peak")))
    assert "picture-window" not in page.ids
    assert page.text.count("Memory by what it is for, in step 40") == 1
    measurements = dataclasses.replace(make_measurements(), timeline=Timeline(steps=(), memory=()))
    page = Page(render_html(make_report(measurements=measurements)))
    assert "picture-memory" not in page.ids
    assert "picture-window" in page.ids


def test_every_picture_has_its_figure_and_name_and_plotly_is_there_only_with_them(page: Page) -> None:
    drawn = [tag for _, tag in page.tags if tag.get("class") == "interactive"]
    assert len(drawn) == 9
    for picture in drawn:
        assert picture["aria-label"]
        assert json.loads(page.scripts[str(picture["data-figure"])])["data"]
    assert page.ids.count("plotly") == 1
    bare = Measurements(
        metrics=(), timeline=Timeline(steps=(), memory=()), stage_deltas=(), overhead=None, memory_source="x"
    )
    assert "plotly" not in Page(render_html(make_report(measurements=bare, audits=()))).ids


def test_a_clean_run_says_what_was_looked_for_and_every_check_shows_its_status(page: Page) -> None:
    text = Page(render_html(make_clean_report())).text
    assert "No fault was found." in text
    assert "not applicable backward_peak allocations-<n>.parquet is missing" in page.text
    assert "broke broken_audit KeyError" in page.text
    assert "Recording took 1.91 s of 1.6 min (allowed: 3.00 s + 1.0 %): " in page.text


def test_a_comparison_shows_its_verdict_first_and_what_was_added_in_full() -> None:
    page = Page(render_comparison_html(make_comparison(), make_report()))
    assert page.open == []
    assert "worse Head is worse than base: step time +12.4 % (+9.0 % to +15.0 %)." in page.text
    assert "Compared although they differ The base ran on 1 x A100" in page.text
    assert len(page.all("article")) == 1
    assert f"#{page.all('article')[0]['id']}" in {link["href"] for link in page.all("a")}
    assert HOSTILE.split("\x1b", maxsplit=1)[0].strip() in page.text


def test_the_command_is_quoted_and_code_in_a_sentence_is_code() -> None:
    text = Page(render_html(make_report(run=make_run(command=("python", "my train.py"))))).text
    assert "Command python 'my train.py'" in text
    fault = dataclasses.replace(memory_finding(), message="`<b>` & an odd ` stay text")
    assert "<code>&lt;b&gt;</code> &amp; an odd ` stay text" in render_html(report_of(fault))


def test_a_static_page_draws_its_pictures_without_a_script() -> None:
    pytest.importorskip("matplotlib")
    text = render_html(make_report(), is_static=True)
    still = Page(text)
    moving = Page(render_html(make_report()))
    assert "plotly" in moving.ids
    assert "plotly" not in still.ids
    assert not [one for one in still.ids if one.endswith("-figure")]
    assert len(still.ids) == len(set(still.ids))
    assert "<svg" in text


def test_what_a_still_picture_says_is_text_and_no_markup() -> None:
    pytest.importorskip("matplotlib")
    layer = Layer(kind="line", label="<b>$x$", colour="forward", x=(0.0, 1.0), y=(1.0, None))
    chart = Chart(title="", caption="", x_label="<i>", y_label="$\\alpha$", y_unit="", layers=(layer, layer))
    svg = svg_of(chart, "one")
    assert "&lt;i&gt;" in svg
    assert "&lt;b&gt;$x$" in svg
    assert "$\\alpha$" in svg
    assert "var(--forward)" in svg


def test_without_matplotlib_a_static_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(EfprofError, match=r"pip install matplotlib"):
        render_html(make_report(), is_static=True)
