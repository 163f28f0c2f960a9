"""`efprof prove RUN [FINDING...]`: run the command with a finding's fix and without it, and say what that won."""

import datetime
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from efprof.commands import print_json
from efprof.commands.compare import ending_in_order
from efprof.commands.report import analyse
from efprof.model import CodeEdit, EfprofError, Finding, NotComparable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from efprof.compare.sides.starting import Training
    from efprof.compare.sides.trees import Tree
    from efprof.model import Proof, Report
    from efprof.report.verdict import RankedFinding

NOT_PROVED, UNCLEAR, NOTHING = 1, 3, 4


@click.command()
@click.argument("run")
@click.argument("findings", nargs=-1, metavar="[FINDING...]")
@click.option("--all", "is_all", is_flag=True, help="All findings that have an edit.")
@click.option("--head", metavar="REF", help="Prove a fix that you wrote: a branch, or '.', the working tree as it is.")
@click.option("--base", default=None, metavar="REF", help="What has the fault; default: '.', with --head HEAD.")
@click.option("--link", "links", multiple=True, type=click.Path(path_type=Path), metavar="PATH", help="As in compare.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="End each whole run after N steps.")
@click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True)
@click.option("--json", "is_json", is_flag=True, help="For programs.")
def prove(
    run: str,
    findings: tuple[str, ...],
    is_all: bool,
    head: str | None,
    base: str | None,
    links: tuple[Path, ...],
    steps: int | None,
    max_minutes: float,
    is_json: bool,
) -> int:
    """Prove what a fix wins, by running the command with it and without.

    \b
        efprof prove latest --all             # the edits of the report
        efprof prove latest 1 --head .        # what I wrote for finding 1, in the working tree

    Both sides run in source trees of their own, as in `efprof compare`; nothing of yours is changed. The result stays
    with the run, and the report tells it.

    Exit code: 0 all that was tried is proved, 1 something is not, 3 something is unclear, 4 there is nothing to prove.
    """
    from efprof.artifacts.proofs import keep_proofs
    from efprof.artifacts.runs import find_run
    from efprof.compare.sides.starting import Training
    from efprof.report.proof_form import proof_sentence
    from efprof.report.verdict import find_finding, rank_findings

    folder = find_run(run)
    report = analyse(folder)
    ranked = rank_findings(report)
    chosen = [find_finding(report, name) for name in findings]
    if head is None:
        chosen = [item for item in chosen or (ranked if is_all else ranked[:1]) if _edits(item.finding)]
    if not chosen or (head is not None and len(chosen) > 1):
        why = "--head needs the one FINDING that it mends" if head is not None else "no finding chosen has an edit"
        click.echo(f"efprof: there is nothing to prove: {why}", err=True)
        return NOTHING
    here = Path(dict(report.run.environment).get("working folder", "."))
    if not here.is_dir():
        raise EfprofError(f"{here}, where the run was recorded, is gone: record one here.")
    training = Training(command=report.run.command, here=here.resolve(), num_steps=steps)
    refs = (base or ("." if head is None else "HEAD"), *([head] if head else [base or "."] * len(chosen)))
    proofs = _proofs(chosen, refs, training, links, time.monotonic() + 60 * max_minutes, is_own_fix=head is None)
    keep_proofs(folder, proofs)
    if is_json:
        print_json({"proofs": proofs})
    for item, proof in zip(chosen, proofs, strict=True):
        if not is_json:
            click.echo(f"{item.rank}. {proof_sentence(proof)}  {item.finding.headline}")
    verdicts = {proof.verdict for proof in proofs}
    return NOT_PROVED if "not proved" in verdicts else UNCLEAR if "unclear" in verdicts else 0


def _edits(finding: Finding) -> list[CodeEdit]:
    return [change for change in finding.fix.changes if isinstance(change, CodeEdit)]


def _proofs(
    chosen: "Sequence[RankedFinding]", refs: "Sequence[str]", training: "Training", links: "Sequence[Path]",
    end: float, *, is_own_fix: bool,
) -> "list[Proof]":  # fmt: skip
    """One base serves all."""
    from efprof.artifacts.runs import hide_from_git, runs_folder
    from efprof.compare.sides.full_runs import NUM_RUNS, record_run
    from efprof.compare.sides.trees import source_trees

    store = runs_folder().parent.absolute()
    hide_from_git(store)
    home = store / "compare" / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%fZ}"
    own = [Path(os.path.normpath(Path.cwd() / link)) for link in links]
    with ending_in_order(), source_trees(refs, work=store / "work", here=training.here, links=own) as (base, *heads):
        if is_own_fix:
            for item, tree in zip(chosen, heads, strict=True):
                _apply(item.finding, tree)

        def recorded(tree: "Tree") -> "list[Report]":
            _say(f"recording {tree.name}")
            runs = [record_run(tree, training, home / f"{tree.name}-{number + 1}", end) for number in range(NUM_RUNS)]
            return [analyse(run) for run in runs]

        bases = recorded(base)
        proofs = []
        for item, tree in zip(chosen, heads, strict=True):
            try:
                heads_reports = recorded(tree)
            except NotComparable as error:
                proofs.append(_failed(item, str(error)))
                continue
            proofs.append(_proof(item, (base, tree), bases, heads_reports, training, home, end, is_own_fix=is_own_fix))
    return proofs


def _proof(
    item: "RankedFinding", trees: "tuple[Tree, Tree]", bases: "list[Report]", heads: "list[Report]",
    training: "Training", home: Path, end: float, *, is_own_fix: bool,
) -> "Proof":  # fmt: skip
    from efprof.compare.comparison import compare_reports
    from efprof.compare.proving import STEP, promise, prove
    from efprof.compare.sides.turns import take_turns

    promised, times = promise(item.finding, bases[0].measurements.median_step_ms), None
    if promised is not None and promised[0] == STEP:
        times = take_turns(trees, training, home=home / f"turns-{item.rank}", end=end, say=_say)
    comparison = compare_reports(bases, heads, forced=True, times=times)
    return prove(item.key, item.finding, bases, heads, comparison, is_own_fix=is_own_fix)


def _failed(item: "RankedFinding", why: str) -> "Proof":
    from efprof.model import Proof

    return Proof(
        key=item.key, audit_id=item.audit_id, headline=item.finding.headline, verdict="not proved", reasons=(why,)
    )


def _apply(finding: Finding, tree: "Tree") -> None:
    """All edits of a finding, or none; raises EfprofError where a line is another by now."""
    from efprof.fixes.files import edited

    edits = _edits(finding)
    files = {edit.file: tree.folder / edit.file for edit in edits}
    for name, path in files.items():
        if not path.is_file() or not path.resolve().is_relative_to(tree.folder):  # a link leads to the user's own
            raise EfprofError(f"{name} is no file of '{tree.ref}': give --base, a commit that has it.")
    texts = {
        name: edited(path.read_bytes(), [one for one in edits if one.file == name]) for name, path in files.items()
    }
    for name, content in texts.items():
        files[name].write_bytes(content)


def _say(what: str) -> None:
    click.echo(f"efprof: {what}", err=True)
