"""The bars of the what-if: one scale from zero, the band, the limit, and words for what each is."""

from dataclasses import replace

from efprof.model import Alternative, Alternatives, AuditResult
from efprof.report.alternative_bars import AlternativeBars, alternative_bars
from efprof.report.html import render_html
from tests.report.report_sample import HOSTILE, make_report, memory_finding
from tests.report.test_html import Page

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


def bars_of(*alternatives: Alternative, limit: float | None = None) -> AlternativeBars:
    return alternative_bars(
        Alternatives(
            title="Other settings",
            unit="bytes",
            alternatives=alternatives,
            limit=None if limit is None else (limit * GIB, "the device"),
        )
    )


def page_of(evidence: Alternatives) -> Page:
    fault = replace(memory_finding(), evidence=(evidence,))
    audit = AuditResult(audit_id="a", status="failed", reason="", findings=(fault,))
    return Page(render_html(make_report(audits=(audit,))))


def test_the_recorded_one_comes_first_then_by_need_and_what_fails_last() -> None:
    found = bars_of(FAILING, OTHER, BEST, RECORDED)
    assert [bar.label for bar in found.bars] == [one.label for one in (RECORDED, BEST, OTHER, FAILING)]
    assert [bar.kind for bar in found.bars] == ["recorded", "best", "other", "failing"]
    assert [bar.tags for bar in found.bars] == [("as recorded",), ("best",), (), ("out of memory",)]


def test_among_equals_the_best_comes_first() -> None:
    equal = replace(OTHER, value=BEST.value)
    assert [bar.kind for bar in bars_of(equal, BEST).bars] == ["best", "other"]


def test_widths_are_shares_of_the_largest() -> None:
    recorded, best = bars_of(RECORDED, BEST).bars
    assert recorded.width == 100
    assert (best.width, best.band_left, best.band_width) == (75, 62.5, 25)
    assert (best.value, best.band) == ("6.00 GiB", "5.00 GiB to 7.00 GiB")


def test_one_without_a_band_claims_none() -> None:
    (recorded,) = bars_of(RECORDED).bars
    assert (recorded.band, recorded.band_width) == ("", 0)


def test_the_upper_end_of_a_band_is_within_the_picture() -> None:
    wide = bars_of(choice("a", 5, 4, 20)).bars[0]
    assert wide.band_left + wide.band_width == 100


def test_the_limit_is_on_the_same_scale_and_named() -> None:
    found = bars_of(RECORDED, BEST, limit=16)
    assert found.limit == (100, "the device: 16.0 GiB")
    assert found.bars[0].width == 50


def test_what_fails_says_how_far_it_came_even_as_recorded() -> None:
    (bar,) = bars_of(replace(RECORDED, is_out_of_memory=True)).bars
    assert bar.value == "fails at 8.00 GiB"
    assert bar.tags == ("as recorded", "out of memory")


def test_nothing_tried_gives_no_bars_and_zeros_no_error() -> None:
    assert bars_of().bars == ()
    assert bars_of(choice("a", 0)).bars[0].width == 0


def test_the_page_says_every_word_and_keeps_hostile_labels_text() -> None:
    evidence = Alternatives(
        title=f"Settings {HOSTILE}",
        unit="bytes",
        alternatives=(RECORDED, BEST, replace(FAILING, label=HOSTILE)),
        limit=(8.5 * GIB, HOSTILE),
    )
    page = page_of(evidence)
    assert "expandable_segments:True best" in page.text
    assert "6.00 GiB 5.00 GiB to 7.00 GiB" in page.text
    assert "fails at 2.00 GiB" in page.text
    assert page.text.count("<script>alert(") >= 3
    assert not [tag for tag, _ in page.tags if tag in ("b", "textarea")]
    assert page.open == []
