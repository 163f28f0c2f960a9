"""The bars of the what-if: one scale from zero, the band, the limit, and words for what each is."""

import re
from dataclasses import replace

from efprof.model import Alternative, Alternatives
from tests.report.page.test_html import Page, page_of
from tests.report.report_sample import HOSTILE

GIB = 1024**3


def choice(
    label: str, value: float, low: float | None = None, high: float | None = None, **fields: object
) -> Alternative:
    return Alternative(
        label=label,
        value=value * GIB,
        low=(value if low is None else low) * GIB,
        high=(value if high is None else high) * GIB,
        **fields,  # type: ignore[arg-type]
    )


RECORDED = choice("torch's default", 8, role="recorded")
BEST = choice("expandable_segments:True", 6, 5, 7, role="best")
FAILING = choice("max_split_size_mb:64", 2, is_out_of_memory=True)
OTHER = choice("max_split_size_mb:128", 7)


def evidence_of(*alternatives: Alternative, limit: float | None = None) -> Alternatives:
    return Alternatives(
        title="Other settings",
        unit="bytes",
        alternatives=alternatives,
        limit=None if limit is None else (limit * GIB, "the device"),
    )


def shares_of(page: Page, part: str) -> list[list[float]]:
    """The numbers in the style of each such part of a bar, in percent of the largest."""
    styles = [str(tag.get("style")) for tag in page.all("span") if tag.get("class") == part]
    return [[float(number) for number in re.findall(r"([\d.]+)%", style)] for style in styles]


def test_they_come_by_need_and_what_fails_last() -> None:
    page = page_of(evidence_of(FAILING, OTHER, BEST, RECORDED))
    kinds = [item["class"] for item in page.all("li") if item.get("class")]
    assert kinds[:4] == ["best", "other", "recorded", "failing"]
    assert "torch's default as recorded" in page.text


def test_widths_are_shares_of_the_largest_or_the_limit_and_bands_end_within_the_picture() -> None:
    page = page_of(evidence_of(RECORDED, BEST))
    assert shares_of(page, "bar-fill") == [[75], [100]]
    assert shares_of(page, "bar-band") == [[62.5, 25]], "one without a band claims none"
    assert "6.00 GiB 5.00 GiB to 7.00 GiB" in page.text
    (band,) = shares_of(page_of(evidence_of(choice("a", 5, 4, 20))), "bar-band")
    assert sum(band) == 100
    page = page_of(evidence_of(RECORDED, BEST, limit=16))
    assert "the device: 16.0 GiB" in page.text
    assert (shares_of(page, "bar-limit"), shares_of(page, "bar-fill")[1]) == ([[100], [100]], [50])


def test_the_page_says_every_word_and_keeps_hostile_labels_text() -> None:
    evidence = Alternatives(
        title=f"Settings {HOSTILE}",
        unit="bytes",
        alternatives=(RECORDED, BEST, replace(FAILING, label=HOSTILE)),
        limit=(8.5 * GIB, HOSTILE),
    )
    page = page_of(evidence)
    assert "fails at 2.00 GiB" in page.text
    assert page.text.count("<script>alert(") >= 3
    assert not [tag for tag, _ in page.tags if tag in ("b", "textarea")]
    assert page.open == []
