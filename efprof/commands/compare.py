"""`efprof compare BASE HEAD [-- COMMAND]`: what a branch made worse, and which findings came and went."""

import datetime
import math
import os
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from efprof.commands import COMMAND
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
    from collections.abc import Callable, Iterator

    from efprof.compare.sides.starting import Training
    from efprof.compare.times import SideTimes
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
@COMMAND
@click.option(
    "--link",
    "links",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="With a command: data that git ignores, linked into both trees. Can be repeated.",
)
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="With a command: end each run after N steps.")
@click.option(
    "--max-minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="With a command: how long all of it may take.",
)
@click.option(
    "--time/--no-time",
    "is_timed",
    default=True,
    help="With a command: run both by turns, to compare times, or only whole runs, to compare all else; default: both.",
)
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
    command: tuple[str, ...],
    links: tuple[Path, ...],
    steps: int | None,
    max_minutes: float,
    is_timed: bool,
    force: bool,
    strict: bool,
    budgets: dict[str, float],
    form: Format | None,
    is_json: bool,
    engine: str | None,
    static: bool,
    out: Path | None,
) -> int:
    """Compare two sides: what got slower, bigger or less stable.

    \b
        efprof compare main feature -- python train.py --epochs 1
        efprof compare HEAD . -- python train.py --epochs 1
        efprof compare yesterday latest

    With a COMMAND, BASE and HEAD are branches, tags or commits, or '.', the working tree as it is. Each gets a tree of
    its own, in which the command is run and recorded twice, every step in full; then both are run by turns, a few steps
    each, which tells whether head is slower.

    Without one they are runs that were recorded: each a run folder, its id or name, a git branch or commit (the newest
    run of it), or 'latest'; or a trace of torch's profiler from anywhere. Each may be a URL, such as s3://bucket/run.

    Exit code: 0 no gated metric over its budget (unclear ones included), 1 a gated metric is worse by more than its
    budget, 2 wrong usage or unreadable input, 3 unclear (with --strict), 4 not comparable.
    """
    check_engine(engine, (base, head))
    chosen = chosen_form(form, is_json, out, "text")
    from efprof.artifacts.settings import read_settings
    from efprof.compare.comparison import compare_reports
    from efprof.compare.sides.starting import Training

    gate = read_settings(Path.cwd()).gate
    budgets = {name: percent / 100 for name, percent in gate.budget.items()} | budgets
    for option in ("--link",) * bool(links) + ("--steps",) * (steps is not None):
        if not command:
            raise EfprofError(f"{option} is for a comparison that runs a command: write it after two dashes.")
    times = None
    with progress() as say:
        made = partial(analyse, engine=engine, say=say)
        if command:
            training = Training(command=command, here=Path.cwd().resolve(), num_steps=steps)
            bases, heads, times = _run_sides((base, head), training, links, max_minutes, is_timed, made)
        else:
            bases, heads = _find_sides((base, head), made)
    comparison = compare_reports(bases, heads, forced=force, budgets=budgets, times=times)
    name = f"{comparison.base.run_id}-to-{comparison.head.run_id}"
    write_or_print(lambda form: render_comparison(comparison, heads[0], form, is_static=static), chosen, out, name)
    if comparison.is_failed:
        return FAILED
    is_unclear = any(metric.verdict == "unclear" and metric.budget is not None for metric in comparison.metrics)
    return INCONCLUSIVE if (strict or gate.strict) and is_unclear else 0


def _find_sides(names: tuple[str, str], made: "Callable[[Path], Report]") -> "tuple[list[Report], list[Report]]":
    """The report on one recorded run of each side."""
    from efprof.artifacts.foreign import is_foreign
    from efprof.artifacts.remote import is_url, without_secrets
    from efprof.artifacts.runs import find_run

    sides = []
    for name in names:
        is_elsewhere = is_url(name) or is_foreign(Path(name))
        sides.append(name if is_elsewhere else str(find_run(name)))
        if not is_elsewhere and not Path(name).exists():
            click.echo(f"efprof: {_which(name, Path(sides[-1]))}", err=True)
    base, head = sides
    if Path(base).resolve() == Path(head).resolve():
        name = Path(without_secrets(base)).name
        raise EfprofError(f"BASE and HEAD are the same run, {name}: record the changed program first.")
    return [report_on((base,), made)], [report_on((head,), made)]


def _which(name: str, folder: Path) -> str:
    """`'main' is 20260101T..., of 3f2c1ab, 2.0 days old; the branch is at 9ab12cd by now`."""
    from efprof.artifacts.run_file import read_run_file
    from efprof.recorder.launch.machine import read_from_git
    from efprof.units import format_duration

    run = read_run_file(folder)
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(run.started)
    commit = run.git.commit if run.git else None
    said = (
        f"'{name}' is {run.run_id}{f', of {commit[:7]}' if commit else ''}, {format_duration(age.total_seconds())} old"
    )
    if run.git is None or run.git.branch != name or commit is None:
        return said
    now = (read_from_git(Path.cwd(), "rev-parse", "-q", "--verify", f"refs/heads/{name}") or b"").decode().strip()
    return f"{said}; the branch is at {now[:7]} by now" if now not in ("", commit) else said


def _run_sides(
    refs: tuple[str, str], training: "Training", links: tuple[Path, ...], minutes: float, is_timed: bool,
    made: "Callable[[Path], Report]",
) -> "tuple[list[Report], list[Report], SideTimes | None]":  # fmt: skip
    """The reports on the whole runs of each side, which stay below `.efprof/compare`, and times by turns if asked."""
    from efprof.artifacts.runs import hide_from_git, runs_folder
    from efprof.compare.sides.full_runs import record_sides
    from efprof.compare.sides.trees import source_trees
    from efprof.compare.sides.turns import take_turns

    store, end = runs_folder().parent.absolute(), time.monotonic() + 60 * minutes
    hide_from_git(store)
    home = store / "compare" / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%fZ}"
    own = [Path(os.path.normpath(training.here / link)) for link in links]

    def say(what: str) -> None:
        click.echo(f"efprof: {what}", err=True)

    with ending_in_order(), source_trees(refs, work=store / "work", here=training.here, links=own) as trees:
        bases, heads = record_sides(trees, training, home=home, end=end, say=say)
        base, head = trees
        times = take_turns((base, head), training, home=home, end=end, say=say) if is_timed else None
    say(f"the runs are in {home}; 'efprof report' takes each by its folder")
    return [made(run) for run in bases], [made(run) for run in heads], times


@contextmanager
def ending_in_order() -> "Iterator[None]":
    """SIGTERM ends the program that runs and removes the trees, as Ctrl-C does."""
    import signal

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def render_comparison(comparison: "Comparison", head: "Report", form: Format, *, is_static: bool) -> str:
    """The comparison in one of its forms; the page also shows head's new findings in full."""
    from efprof.report import comparison_form, json_form
    from efprof.report.page import html

    if form == "html":
        return html.render_comparison_html(comparison, head, is_static=is_static)
    forms = {
        "text": comparison_form.render_comparison_text,
        "json": json_form.render_comparison_json,
        "markdown": comparison_form.render_comparison_markdown,
        "github": comparison_form.render_comparison_github,
    }
    return forms[form](comparison)
