"""`efprof prove RUN [FINDING...]`: run the command with a finding's fix and without it, and say what that won."""

import datetime
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from efprof.commands import print_json
from efprof.commands.compare import ending_in_order
from efprof.commands.report import analyse
from efprof.model import CodeEdit, EfprofError, Finding, NotComparable
from efprof.report.proof_form import proof_sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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

    Exit code: 0 all that was tried is proved, 1 something is not, 3 something is unclear, 4 there is nothing to prove,
    or the program does not train without the fix.
    """
    from efprof.artifacts.run_file import HIDDEN
    from efprof.artifacts.runs import find_run
    from efprof.compare.sides.starting import Training
    from efprof.report.verdict import find_finding, rank_findings

    folder = find_run(run)
    report = analyse(folder)
    ranked = rank_findings(report)
    chosen = [find_finding(report, name) for name in findings]
    if head is None:
        chosen = chosen or [*(ranked if is_all else ranked[:1])]
        for item in chosen:
            if not _edits(item.finding):
                _say(f"finding {item.rank} ({item.audit_id}) has no edit: {item.finding.fix.summary}")
        chosen = [item for item in chosen if _edits(item.finding)]
    if not chosen or (head is not None and len(chosen) > 1):
        _say("there is nothing to prove" + (": --head needs the one FINDING that it mends" if head is not None else ""))
        return NOTHING
    if any(HIDDEN in word for word in report.run.command):
        raise EfprofError(
            f"the command of {report.run.run_id} holds a secret that was not recorded: make the edit, and give the "
            "command itself, as in 'efprof compare HEAD . -- COMMAND'."
        )
    here = Path(dict(report.run.environment).get("working folder", "."))
    if not here.is_dir():
        raise EfprofError(f"{here}, where the run was recorded, is gone: record one here.")
    training = Training(command=report.run.command, here=here.resolve(), num_steps=steps)
    refs = (base or ("." if head is None else "HEAD"), *([head] if head else [base or "."] * len(chosen)))
    proofs = []
    for item, proof in _proofs(chosen, refs, training, links, time.monotonic() + 60 * max_minutes, head or ""):
        proofs.append(proof)
        _keep(folder, proof)
        if not is_json:
            click.echo(f"{item.rank}. {proof_sentence(proof)}  {item.finding.headline}")
    if is_json:
        print_json({"proofs": proofs})
    verdicts = {proof.verdict for proof in proofs}
    return NOT_PROVED if "not proved" in verdicts else UNCLEAR if "unclear" in verdicts else 0


def _keep(folder: Path, proof: "Proof") -> None:
    from efprof.artifacts.proofs import keep_proofs

    try:
        keep_proofs(folder, [proof])
    except OSError as error:
        _say(f"the proof cannot be kept in {folder}: {error.strerror}")


def _edits(finding: Finding) -> list[CodeEdit]:
    return [change for change in finding.fix.changes if isinstance(change, CodeEdit)]


def _proofs(
    chosen: "Sequence[RankedFinding]", refs: "Sequence[str]", training: "Training", links: "Sequence[Path]",
    end: float, head: str,
) -> "Iterator[tuple[RankedFinding, Proof]]":  # fmt: skip
    """One base serves all; each finding may take its part of the time that is left."""
    from efprof.artifacts.runs import hide_from_git, runs_folder
    from efprof.compare.sides.full_runs import NUM_RUNS, record_run
    from efprof.compare.sides.starting import CannotTell
    from efprof.compare.sides.trees import source_trees
    from efprof.model import Proof

    store = runs_folder().parent.absolute()
    hide_from_git(store)
    home = store / "compare" / f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S%fZ}"
    own = [Path(os.path.normpath(Path.cwd() / link)) for link in links]

    def recorded(tree: "Tree", until: float) -> "list[Report]":
        _say(f"recording {tree.name}")
        runs = [record_run(tree, training, home / f"{tree.name}-{number + 1}", until) for number in range(NUM_RUNS)]
        return [analyse(run) for run in runs]

    with ending_in_order(), source_trees(refs, work=store / "work", here=training.here, links=own) as (base, *heads):
        bases = recorded(base, end)
        for place, (item, tree) in enumerate(zip(chosen, heads, strict=True)):
            until = time.monotonic() + (end - time.monotonic()) / (len(chosen) - place)
            proof = Proof(
                key=item.key, audit_id=item.audit_id, headline=item.finding.headline, verdict="unclear", head=head
            )
            try:
                if not head:
                    _apply(item.finding, tree)
                of_head = recorded(tree, until)
                proof = _proof(item, proof, (base, tree), bases, of_head, training, home / f"turns-{place}", until)
            except NotComparable as error:
                is_told = not isinstance(error, CannotTell)
                proof = replace(proof, verdict="not proved" if is_told else "unclear", reasons=(str(error),))
            except EfprofError as error:
                proof = replace(proof, reasons=(str(error),))
            yield item, proof


def _proof(
    item: "RankedFinding", proof: "Proof", trees: "tuple[Tree, Tree]", bases: "list[Report]", heads: "list[Report]",
    training: "Training", home: Path, end: float,
) -> "Proof":  # fmt: skip
    from efprof.compare.comparison import compare_reports
    from efprof.compare.proving import STEP, promise, prove
    from efprof.compare.sides.turns import take_turns

    promised, times = promise(item.finding, bases[0].measurements.median_step_ms), None
    if promised is not None and promised[0] == (STEP,):
        times = take_turns(trees, training, home=home, end=end, say=_say)
    comparison = compare_reports(bases, heads, forced=True, times=times)
    return prove(item.audit_id, item.finding, proof, bases, heads, comparison)


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
