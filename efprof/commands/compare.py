"""`efprof compare BASE HEAD [-- COMMAND]`: what a branch made worse, and which findings came and went."""

import datetime
import math
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from efprof.commands import COMMAND, show_status, trees_of
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
    from collections.abc import Callable

    from efprof.compare.sides.starting import Training
    from efprof.model import Comparison, Report

ENVIRONMENTS = ("torch", "python", "cuda", "env")
EXECUTABLE = click.Path(exists=True, dir_okay=False, path_type=Path)
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
@click.option("--base-python", type=EXECUTABLE, help="With a command that begins with python: the one that runs base.")
@click.option("--head-python", type=EXECUTABLE, help="The one that runs head: another torch, say, is the question.")
@click.option(
    "--across",
    multiple=True,
    type=click.Choice(ENVIRONMENTS),
    help="Compare although these differ, since that is the question; env: recorded variables. Can be repeated.",
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
    base_python: Path | None,
    head_python: Path | None,
    across: tuple[str, ...],
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
        efprof compare . . --base-python OLD/bin/python -- python train.py --epochs 1
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
    pythons = {side: str(path.absolute()) for side, path in (("base", base_python), ("head", head_python)) if path}
    training = Training(command=command, here=Path.cwd().resolve(), num_steps=steps, pythons=pythons)
    _check_command(training, links)
    alike = (*across, *ENVIRONMENTS[:3] * bool(pythons), *["command"] * bool(command))
    compared = partial(compare_reports, forced=force, budgets=budgets, across=alike)
    with progress() as say:
        made = partial(analyse, engine=engine, say=say)
        if command:
            comparison, shown = _run_sides((base, head), training, links, max_minutes, is_timed, made, compared)
        else:
            bases, heads = _find_sides((base, head), made)
            comparison, shown = compared(bases, heads), heads[0]
    name = f"{comparison.base.run_id}-to-{comparison.head.run_id}"
    write_or_print(lambda form: render_comparison(comparison, shown, form, is_static=static), chosen, out, name)
    if comparison.is_failed:
        return FAILED
    is_unclear = any(metric.verdict == "unclear" and metric.budget is not None for metric in comparison.metrics)
    return INCONCLUSIVE if (strict or gate.strict) and is_unclear else 0


def _check_command(training: "Training", links: tuple[Path, ...]) -> None:
    """Raises EfprofError for an option that asks for a command, or for one that begins with python."""
    given = {"--link": links, "--steps": training.num_steps, **{f"--{side}-python": True for side in training.pythons}}
    for option, value in given.items():
        if value and not training.command:
            raise EfprofError(f"{option} is for a comparison that runs a command: write it after two dashes.")
    if training.pythons and not Path(training.command[0]).name.startswith("python"):
        raise EfprofError(f"'{training.command[0]}' is no python: --base-python and --head-python take its place.")


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
    made: "Callable[[Path], Report]", compared: "Callable[..., Comparison]",
) -> "tuple[Comparison, Report]":  # fmt: skip
    """The comparison of whole runs of each side, and of times by turns if asked; with the report on head's first run.

    The runs stay below `.efprof/compare`.
    """
    from efprof.compare.blame import changes_between
    from efprof.compare.sides.full_runs import record_sides
    from efprof.compare.sides.turns import take_turns

    end = time.monotonic() + 60 * minutes
    turns = ", then both by turns" * is_timed
    show_status(f"each side is run twice{turns}: at most {minutes:g} minutes (--max-minutes)")
    with trees_of(refs, training.here, links) as ((base, head), home):
        bases, heads = (
            [made(run) for run in side] for side in record_sides((base, head), training, home, end, show_status)
        )
        show_status(f"the runs are in {home}; 'efprof report' takes each by its folder")
        of_runs = partial(compared, bases, heads, changes=changes_between(base.folder, head.folder))
        comparison = of_runs()  # what refuses it, refuses it before the turns
        if is_timed:
            comparison = of_runs(times=take_turns((base, head), training, home=home, end=end, say=show_status))
    return comparison, heads[0]


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
