"""`efprof report [RUN]`: say what is wrong with a recorded run, as one HTML file or as text, JSON or Markdown."""

import re
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import click

from efprof.commands.allocator import SIZES, parse_size
from efprof.model import EfprofError, UnreadableInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from efprof.model import Report

ENGINE = click.option(
    "--engine",
    metavar="dask://HOST:8786",
    help="Dask scheduler whose workers read the ranks' traces; default: one process per core here.",
)
OWN = click.option(
    "--own",
    multiple=True,
    metavar="PACKAGE",
    help="An installed package to treat as your own code, in a trace from elsewhere.",
)
Format = Literal["text", "json", "markdown", "html", "github"]

FORMATS = get_args(Format)
FORMAT_OF_SUFFIX: dict[str, Format] = {".txt": "text", ".json": "json", ".md": "markdown", ".html": "html"}
REPORTS_FOLDER = Path("reports")

SHOW_AFTER_S = 1.0
_CLEARED = "\r\x1b[K"


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN | FILE...]")
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Output format; default: HTML, or the suffix of --out.",
)
@click.option("--json", "is_json", is_flag=True, help="Same as --format json.")
@click.option("--brief", is_flag=True, help="The answer in one screen (at most 4 kB), as text or with --json.")
@click.option(
    "--budget",
    callback=parse_size,
    metavar="SIZE",
    help=f"Memory budget; the report says how to get the peak below it: {SIZES}.",
)
@click.option("--gpu-estimate", is_flag=True, help="Estimate a CPU run's memory on a GPU (slow).")
@OWN
@ENGINE
@click.option("--hta", is_flag=True, help="Add what HolisticTraceAnalysis says of a GPU trace (slow).")
@click.option("--each", "is_each", is_flag=True, help="Report each file by itself: they are not ranks of one training.")
@click.option("--static", is_flag=True, help="Static pictures (matplotlib) instead of JavaScript.")
@click.option("--out", type=click.Path(path_type=Path), help="Output file; default: reports/ or the terminal.")
def report(
    runs: tuple[str, ...],
    form: Format | None,
    is_json: bool,
    brief: bool,
    budget: int | None,
    gpu_estimate: bool,
    own: tuple[str, ...],
    hta: bool,
    engine: str | None,
    is_each: bool,
    static: bool,
    out: Path | None,
) -> None:
    """Report what is wrong with a recorded run and what to change.

    RUN is a run folder, its id or name, a git branch or commit (the newest run of it), or 'latest', which is the
    default. FILE is a trace of torch's profiler (.json, .json.gz) or a snapshot of CUDA's allocator (.pickle) from
    anywhere, several of one training, or a folder with those of each rank. Each may be a URL, such as s3://bucket/run.
    """
    check_engine(engine, runs)
    chosen = chosen_form(form, is_json, out, "text" if brief else "html")
    if brief and chosen not in ("text", "json"):
        raise EfprofError(f"--brief makes text or, with --json, JSON, and no {chosen}.")
    from efprof.artifacts.files import no_garbage_collection

    with no_garbage_collection():
        with progress() as say:
            made = partial(
                analyse,
                budget_bytes=budget,
                has_gpu_estimate=gpu_estimate,
                own_packages=frozenset(own),
                has_hta=hta,
                engine=engine,
                say=say,
            )
            results = [report_on(names, made) for names in (_apart(runs, out) if is_each else [runs])]
        for result in results:
            forms = partial(render_brief, result) if brief else partial(render, result, is_static=static)
            write_or_print(forms, chosen, out, result.run.run_id)


def _apart(runs: tuple[str, ...], out: Path | None) -> list[tuple[str, ...]]:
    """Each file of these and of their folders; raises EfprofError where one place is to hold all reports."""
    from efprof.artifacts.foreign import foreign_files, is_foreign

    if out is not None:
        raise EfprofError(f"--each makes a report of each file, and --out {out} holds one: leave one of them out.")
    if not runs or not all(is_foreign(Path(run)) for run in runs):
        raise EfprofError("--each is for traces and snapshots: give files, or a folder of them.")
    return [(str(file),) for file in foreign_files(*map(Path, runs))]


def check_engine(engine: str | None, names: tuple[str, ...]) -> None:
    """Raises EfprofError where a cluster is asked for that does not answer, or does not see what it should read."""
    if engine is None:
        return
    from efprof.artifacts.engine import client_of
    from efprof.artifacts.remote import is_url

    for url in filter(is_url, names):
        raise EfprofError(f"--engine cannot read {url}: its workers do not see the copy of it that is made here.")
    client_of(engine).close()


def report_on(runs: tuple[str, ...], analyse: "Callable[[Path], Report]") -> "Report":
    """The report on one run, or on files of one training that something else wrote, here or at a URL.

    Raises UnreadableInput where nothing could be told of any file.
    """
    from efprof.artifacts.remote import known_by, local_copies

    with local_copies(runs) as local:
        with opened(tuple(local)) as folder:
            result = analyse(folder)
            if result.run.ended == "unknown":  # something else wrote them
                errors = [audit.reason for audit in result.audits if audit.status == "errored"]
                places = [str(folder), *(str(Path(path).resolve()) for path in local)]
                told = [reason for reason in errors if any(place in reason for place in places)]
                if told and not any(one.status in ("passed", "failed") for one in result.audits):
                    links = rf"{re.escape(str(folder))}\S*\.(pickle|json\.gz)"  # to files, known by their own names
                    raise UnreadableInput(re.sub(links, lambda link: str(Path(link[0]).resolve()), told[0]))
                result = replace(result, run=replace(result.run, path=" ".join(local)))
        return replace(
            result,
            run=replace(result.run, path=known_by(result.run.path, local)),
            audits=tuple(replace(audit, reason=known_by(audit.reason, local)) for audit in result.audits),
            warnings=tuple(known_by(warning, local) for warning in result.warnings),
        )


@contextmanager
def opened(runs: tuple[str, ...]) -> "Iterator[Path]":
    """The folder of a run, or one that is made of files that something else wrote."""
    from efprof.artifacts.foreign import as_run, is_foreign
    from efprof.artifacts.runs import find_run

    if runs and all(is_foreign(Path(run)) for run in runs):
        with as_run(*map(Path, runs)) as folder:
            yield folder
    elif len(runs) > 1:
        raise EfprofError(f"{runs[1]} cannot be reported with {runs[0]}: give one run, or files of one training.")
    else:
        yield find_run(runs[0] if runs else None)


def analyse(
    path: Path,
    budget_bytes: int | None = None,
    *,
    has_gpu_estimate: bool = False,
    own_packages: frozenset[str] = frozenset(),
    has_hta: bool = False,
    engine: str | None = None,
    say: "Callable[[str], None]" = lambda _: None,
) -> "Report":
    """Every audit's result over the run in that folder; raises UnreadableInput.

    `say` is told what is done next. With `has_gpu_estimate` the report of a run on a CPU says what it would take on a
    GPU, which may take longer than all the rest; so may `has_hta`, what HolisticTraceAnalysis says.
    """
    from efprof.artifacts.proofs import read_proofs
    from efprof.facts.device.device_evidence import device_overview, device_use_evidence
    from efprof.facts.overview.identity import identify
    from efprof.facts.overview.measurements import measurements_of
    from efprof.facts.overview.run_warnings import warnings_of
    from efprof.facts.run.run import open_run
    from efprof.facts.source.sources import Sources
    from efprof.runner import find_audits, first_overview, make_report

    run = open_run(path, budget_bytes)
    run.own_packages, run.engine = own_packages, engine
    say("reading the run")
    device, failures = first_overview(lambda: device_overview(run))
    measurements = replace(measurements_of(run), device=(*device, *device_use_evidence(run)))
    if has_gpu_estimate:
        from efprof.facts.gpu_estimate.gpu_estimate import gpu_overview

        say("estimating a GPU's memory")
        said, broken = first_overview(lambda: gpu_overview(run))
        measurements, failures = replace(measurements, gpu_estimate=said), (*failures, *broken)
    if has_hta:
        from efprof.facts.overview.hta import hta_evidence

        say("asking HTA")
        said, broken = first_overview(lambda: hta_evidence(run))
        measurements, failures = replace(measurements, hta=said), (*failures, *broken)
    report = make_report(
        run,
        identity=identify(run),
        measurements=measurements,
        audits=find_audits(),
        snippet_of=lambda line: run.get(Sources).snippet(line),
        warnings=(*warnings_of(run), *failures),
        say=say,
    )
    return replace(report, proofs=read_proofs(path))


def render(report: "Report", form: Format, *, is_static: bool = False) -> str:
    """The report in one of its forms; a page that is static has still pictures."""
    from efprof.report import json_form, text_forms
    from efprof.report.page import html

    forms: dict[Format, Callable[[Report], str]] = {
        "text": text_forms.render_text,
        "json": json_form.render_json,
        "markdown": text_forms.render_markdown,
        "html": partial(html.render_html, is_static=is_static),
        "github": text_forms.render_github,
    }
    return forms[form](report)


def render_brief(report: "Report", form: Format) -> str:
    """The answer in one screen: JSON where that is asked for, else text."""
    from efprof.report.brief import render_brief_json, render_brief_text

    return render_brief_json(report) if form == "json" else render_brief_text(report)


def chosen_form(form: Format | None, is_json: bool, out: Path | None, default: Format) -> Format:
    """What was asked for, else what the name of the file ends in; refuses options that contradict each other."""
    if is_json and form not in (None, "json"):
        raise EfprofError(f"--json and --format {form} contradict each other: give one of them.")
    if is_json or form or out is None:
        return "json" if is_json else form or default
    suffix = out.suffix.lower()
    if suffix and suffix not in FORMAT_OF_SUFFIX:
        known = ", ".join(FORMAT_OF_SUFFIX)
        raise EfprofError(f"--out {out} ends in none of {known}: give one of these, or --format.")
    return FORMAT_OF_SUFFIX.get(suffix, "html")


def write_or_print(render: "Callable[[Format], str]", form: Format, out: Path | None, name: str) -> None:
    """A page goes to `out` or `reports/<name>.html`, and its summary to the terminal; other forms to `out` or there.

    The name comes from a file, so only harmless characters of it are taken.
    """
    if form == "html":
        path = out or REPORTS_FOLDER / f"{harmless(name)}.html"
        write_file(path, render("html").encode(errors="replace"))
        click.echo(render("text") + str(path))
    elif out is None:
        click.echo(render(form), nl=False)
    else:
        write_file(out, render(form).encode(errors="replace"))
        click.echo(out)


def harmless(name: str) -> str:
    """What a file may be called that is named after something from outside."""
    return re.sub(r"[^\w.+-]", "_", name).lstrip(".") or "run"


def write_file(path: Path, content: bytes) -> None:
    """Write the file in one step, its folder too; raises EfprofError where it cannot be written."""
    from efprof.artifacts.files import write_atomically

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        raise EfprofError(f"{path} cannot be written ({error.strerror}): give another place after --out.") from error


@contextmanager
def progress() -> "Iterator[Callable[[str], None]]":
    """Says on standard error what is being done, to who waits at a terminal longer than a second; gone at the end."""
    start, shown = time.monotonic(), []

    def say(what: str) -> None:
        if sys.stderr.isatty() and time.monotonic() - start >= SHOW_AFTER_S:
            shown.append(what)
            print(f"{_CLEARED}{what} ...", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        if shown:
            print(_CLEARED, end="", file=sys.stderr, flush=True)
