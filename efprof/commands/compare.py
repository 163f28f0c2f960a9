"""`efprof compare BASE HEAD`: what a branch made slower, bigger or less stable, and which findings came and went."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from efprof.commands.report import (
    ENGINE,
    FORMATS,
    Format,
    analyse,
    check_engine,
    chosen_form,
    progress,
    report_on,
    write_or_print,
)
from efprof.model import EfprofError

if TYPE_CHECKING:
    from efprof.model import Comparison, Report

FAILED = 1
INCONCLUSIVE = 3


def parse_budgets(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> dict[str, float]:
    """METRIC=PERCENT as share of one by metric; refuses what is not a percentage of at least 0."""
    del context, option
    budgets = {}
    for word in words:
        metric, _, percent = word.partition("=")
        try:
            share = float(percent.removesuffix("%")) / 100
        except ValueError:
            share = math.nan
        if not metric or not 0 <= share < math.inf:
            raise click.BadParameter(f"'{word}' is not METRIC=PERCENT, such as step_ms=5.")
        budgets[metric] = share
    return budgets


@click.command()
@click.argument("base")
@click.argument("head")
@click.option("--force", is_flag=True, help="Compare although machine, versions, configuration or command differ.")
@click.option("--strict", is_flag=True, help=f"Exit with {INCONCLUSIVE} where a gated metric is unclear.")
@click.option(
    "--budget",
    "budgets",
    multiple=True,
    metavar="METRIC=PERCENT",
    callback=parse_budgets,
    help="How much worse a metric may get; also makes a gate of one that is only shown. Can be repeated.",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="Default: text, or what the name after --out says.")
@click.option("--json", "is_json", is_flag=True, help="Short for --format json.")
@ENGINE
@click.option("--static", is_flag=True, help="Draw still pictures, for readers without JavaScript (with matplotlib).")
@click.option("--out", type=click.Path(path_type=Path), help="Where to write; default: the terminal, HTML in reports/.")
def compare(
    base: str,
    head: str,
    force: bool,
    strict: bool,
    budgets: dict[str, float],
    form: Format | None,
    is_json: bool,
    engine: str | None,
    static: bool,
    out: Path | None,
) -> int:
    """Compare two runs: what got slower, bigger or less stable.

    BASE and HEAD are each a run folder, its id or name, a git branch or commit (the newest run of it), or 'latest'; or
    a trace of torch's profiler from anywhere. Each may be a URL, such as s3://bucket/run.

    Exit code: 0 no gated metric over its budget (unclear ones included), 1 a gated metric is worse by more than its
    budget, 2 wrong usage or unreadable input, 3 unclear (with --strict), 4 not comparable.
    """
    check_engine(engine, (base, head))
    chosen = chosen_form(form, is_json, out, "text")
    from efprof.artifacts.foreign import is_foreign
    from efprof.artifacts.remote import is_url, without_secrets
    from efprof.artifacts.runs import find_run
    from efprof.compare.comparison import compare_reports

    names = [side if is_url(side) or is_foreign(Path(side)) else str(find_run(side)) for side in (base, head)]
    if Path(names[0]).resolve() == Path(names[1]).resolve():
        name = Path(without_secrets(names[0])).name
        raise EfprofError(f"BASE and HEAD are the same run, {name}: record the changed program first.")
    with progress() as say:
        made = partial(analyse, engine=engine, say=say)
        reports = report_on((names[0],), made), report_on((names[1],), made)
    comparison = compare_reports(*reports, forced=force, budgets=budgets)
    name = f"{comparison.base.run_id}-to-{comparison.head.run_id}"
    write_or_print(lambda form: render_comparison(comparison, reports[1], form, is_static=static), chosen, out, name)
    if comparison.is_failed:
        return FAILED
    is_unclear = any(metric.verdict == "unclear" and metric.budget is not None for metric in comparison.metrics)
    return INCONCLUSIVE if strict and is_unclear else 0


def render_comparison(comparison: "Comparison", head: "Report", form: Format, *, is_static: bool) -> str:
    """The comparison in one of the four forms; the page also shows head's new findings in full."""
    from efprof.report import comparison_form, json_form
    from efprof.report.page import html

    if form == "html":
        return html.render_comparison_html(comparison, head, is_static=is_static)
    forms = {
        "text": comparison_form.render_comparison_text,
        "json": json_form.render_comparison_json,
        "markdown": comparison_form.render_comparison_markdown,
    }
    return forms[form](comparison)
