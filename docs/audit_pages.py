"""Writes docs/audits/<id>.md at build time: an audit's docstring, and its finding in a recorded run of the casebook."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from efprof.commands.report import analyse
from efprof.model import Evidence, Finding, MemoryMap, Narrative, Number, Numbers, Report, Series, Snippet
from efprof.report.charts.chart import DARK, LIGHT, scale_for
from efprof.report.charts.evidence_charts import series_chart
from efprof.report.charts.pictures import draw, style_of
from efprof.report.text_forms import prose, render_finding, table
from efprof.report.verdict import rank_findings
from efprof.report.wording import show, show_interval
from efprof.runner import Audit, find_audits
from tests.casebook._cases import Case, all_cases

try:
    from matplotlib import pyplot
except ModuleNotFoundError:  # the pages then come without their pictures
    pyplot: ModuleType | None = None  # type: ignore[no-redef]

DOCS = Path(__file__).parent
ROOT = DOCS.parent
THEMES = {"light": LIGHT, "dark": DARK}
MAX_BARS = 8
NEEDS_CUDA = "It needs a CUDA device: it was tested on made runs, and was never recorded on a real device."


def setup(app: Any) -> dict[str, bool]:
    """For Sphinx: the pages are there before it looks for them."""
    app.connect("builder-inited", lambda _: write_pages(DOCS / "audits"))
    return {"parallel_read_safe": True}


def write_pages(folder: Path) -> None:
    """One page per audit, and none of an audit that is gone."""
    folder.mkdir(exist_ok=True)
    pages = {
        name: "\n\n".join(_page(name, audit, folder)) + "\n"
        for name, audit in find_audits().items()
        if audit.__module__.startswith("efprof.audits.")
    }
    for old in folder.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        write_if_changed(folder / f"{name}.md", text)


def write_if_changed(path: Path, text: str) -> None:
    """Sphinx reads again what is newer than its last build."""
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def _page(name: str, audit: Audit, folder: Path) -> Iterator[str]:
    """The docstring's underlined headings are headings of Markdown already."""
    yield f"# {name}"
    yield inspect.getdoc(audit) or ""
    yield "## A finding of it"
    cases = [case for case in all_cases() if name in dict(case.faults)]
    cases.sort(key=lambda case: (case.name != name, len(case.faults), case.name))
    recorded = next((case for case in cases if _run_of(case).is_dir() and len(case.faults) == 1), None)
    if recorded:
        yield from _example(name, recorded, folder)
    else:
        yield from (f"{_program(case)}{f' {NEEDS_CUDA}' if case.device else ''}" for case in cases[:1])
        yield "The repository holds no recorded run of it."
    yield "## Its code"
    yield f"`efprof/audits/{name}.py`, tested by `tests/audits/test_{name}.py`."


def _program(case: Case) -> str:
    return f"The casebook plants this fault in `{case.path.relative_to(ROOT)}`."


def _run_of(case: Case) -> Path:
    return ROOT / "tests" / "runs" / f"{case.name}-sick"


def _example(name: str, case: Case, folder: Path) -> Iterator[str]:
    report = analyse(_run_of(case), case.budget_bytes)
    finding = next(one.findings[0] for one in report.audits if one.audit_id == name)
    yield f"{_program(case)} This is what `efprof report` says of the run in `{_run_of(case).relative_to(ROOT)}`."
    yield _told(report, finding)
    if pyplot is not None and _draw(finding.evidence, folder / name):
        alternative = f"The picture that the report draws: {finding.headline}".replace("`", "")
        yield "\n".join(f"```{{image}} {name}-{t}.svg\n:class: only-{t}\n:alt: {alternative}\n```" for t in THEMES)
    yield from (text for one in finding.evidence if (text := _in_words(one)))


def _told(report: Report, finding: Finding) -> str:
    """As in the Markdown form, with the finding's headline one level lower."""
    (ranked,) = (one for one in rank_findings(report) if one.finding is finding)
    return "#" + render_finding(ranked)


def _in_words(evidence: Evidence) -> str:
    """Evidence that Markdown can show; the rest is in the page alone."""
    match evidence:
        case Snippet(title=title, first_line=first, lines=lines, highlighted=marked):
            options = f":lineno-start: {first}\n:emphasize-lines: {marked - first + 1}"
            return f"**{prose(title)}**\n\n```{{code-block}} python\n{options}\n\n" + "\n".join(lines) + "\n```"
        case Numbers(title=title, numbers=numbers):
            return f"**{prose(title)}**\n\n" + table(("", ""), [(prose(one.label), _shown(one)) for one in numbers])
        case Narrative(title=title, paragraphs=paragraphs):
            return "\n\n".join([f"**{prose(title)}**", *map(prose, paragraphs)])
        case _:
            return ""


def _shown(number: Number) -> str:
    ends = show_interval(number.interval, number.unit)
    return prose(show(number.value, number.unit) + (f" ({ends})" if ends else ""))


def _draw(evidence: tuple[Evidence, ...], path: Path) -> bool:
    """The first picture among the evidence, for light and for dark pages; whether there is any."""
    shown = next((one for one in evidence if isinstance(one, Series | MemoryMap)), None)
    if shown is None:
        return False
    for theme, palette in THEMES.items():
        with pyplot.rc_context(style_of(palette)):
            figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
            axes.set_title(shown.title.replace("`", ""), loc="left", fontsize=10)
            if isinstance(shown, MemoryMap):
                _draw_bars(axes, shown, palette)
            else:
                draw(axes, series_chart(shown), palette)
            figure.savefig(f"{path}-{theme}.svg", transparent=True, metadata={"Date": None})
            pyplot.close(figure)
    return True


def _draw_bars(axes: Any, shown: MemoryMap, palette: dict[str, str]) -> None:
    bars = shown.bars[:MAX_BARS][::-1]
    scale = scale_for([bar.num_bytes for bar in bars], "bytes")
    colours = [palette["alert" if bar.is_highlighted else "forward"] for bar in bars]
    axes.barh([bar.label for bar in bars], [bar.num_bytes / scale.factor for bar in bars], color=colours)
    axes.set(xlabel=scale.unit)
