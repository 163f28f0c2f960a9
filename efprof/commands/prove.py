"""`efprof prove RUN [FINDING...]`: run the command with a finding's fix and without it, and say what that saved."""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from efprof.commands import print_json, show_status, trees_of
from efprof.commands.report import analyse
from efprof.model import HIDDEN, CodeEdit, EfprofError, Finding, NotComparable
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
@click.option("--head", default="", metavar="REF", help="Prove what you wrote: a branch, or '.', the working tree.")
@click.option("--base", default="", metavar="REF", help="What has the fault; default: '.', with --head HEAD.")
@click.option("--link", "links", multiple=True, type=click.Path(path_type=Path), metavar="PATH", help="As in compare.")
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="End each whole run after N steps.")
@click.option("--max-minutes", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True)
@click.option("--json", "is_json", is_flag=True, help="For programs.")
def prove(
    run: str,
    findings: tuple[str, ...],
    is_all: bool,
    head: str,
    base: str,
    links: tuple[Path, ...],
    steps: int | None,
    max_minutes: float,
    is_json: bool,
) -> int:
    """Prove what a fix saves, with it and without.

    \b
        efprof prove latest --all             # the edits of the report
        efprof prove latest 1 --head .        # what I wrote for finding 1, in the working tree

    Both sides run in source trees of their own, as in `efprof compare`; nothing of yours is changed. The result stays
    with the run, and the report tells it.

    Exit code: 0 all that was tried is proved, 1 something is not, 3 something is unclear, 4 there is nothing to prove,
    or the program does not train without the fix.
    """
    from efprof.artifacts.runs import find_run

    folder = find_run(run)
    report = analyse(folder)
    chosen = _chosen(report, findings, is_all=is_all, has_head=bool(head))
    if not chosen:
        return NOTHING
    training = _training(report, steps)
    refs = (base or ("HEAD" if head else "."), *([head] if head else [base or "."] * len(chosen)))
    proofs = []
    for item, proof in _proofs(chosen, refs, training, links, time.monotonic() + 60 * max_minutes, head):
        proofs.append(proof)
        _keep(folder, proof)
        if not is_json:
            click.echo(f"{item.rank}. {proof_sentence(proof)}  {item.finding.headline}")
    if is_json:
        print_json({"proofs": proofs})
    verdicts = {proof.verdict for proof in proofs}
    return NOT_PROVED if "not proved" in verdicts else UNCLEAR if "unclear" in verdicts else 0


def _chosen(report: "Report", names: tuple[str, ...], *, is_all: bool, has_head: bool) -> "list[RankedFinding]":
    """Those that can be tried; of the others it is said why not."""
    from efprof.report.verdict import find_finding, rank_findings

    chosen = [find_finding(report, name) for name in names]
    if has_head:
        if len(chosen) == 1:
            return chosen
        show_status("there is nothing to prove: --head needs the one FINDING that it is for")
        return []
    ranked = rank_findings(report)
    chosen = chosen or [*(ranked if is_all else ranked[:1])]
    for item in chosen:
        if not _edits(item.finding):
            show_status(f"finding {item.rank} ({item.audit_id}) has no edit: {item.finding.fix.summary}")
    chosen = [item for item in chosen if _edits(item.finding)]
    if not chosen:
        show_status("there is nothing to prove")
    return chosen


def _training(report: "Report", steps: int | None) -> "Training":
    """The command of the run, where it was recorded; raises EfprofError where it cannot be run."""
    from efprof.compare.sides.starting import Training

    if any(HIDDEN in word for word in report.run.command):
        raise EfprofError(
            f"the command of {report.run.run_id} holds a secret that was not recorded: make the edit, and give the "
            "command itself, as in 'efprof compare HEAD . -- COMMAND'."
        )
    here = Path(dict(report.run.environment).get("working folder", ".")).resolve()
    if not here.is_dir():
        raise EfprofError(f"{here}, where the run was recorded, is gone: record one here.")
    if not Path.cwd().is_relative_to(here) and not here.is_relative_to(Path.cwd()):
        show_status(f"both sides are of {here}, where the run was recorded")
    return Training(command=report.run.command, here=here, num_steps=steps)


def _keep(folder: Path, proof: "Proof") -> None:
    from efprof.artifacts.proofs import keep_proofs

    try:
        keep_proofs(folder, [proof])
    except OSError as error:
        show_status(f"the proof cannot be kept in {folder}: {error.strerror}")


def _edits(finding: Finding) -> list[CodeEdit]:
    return [change for change in finding.fix.changes if isinstance(change, CodeEdit)]


def _proofs(
    chosen: "Sequence[RankedFinding]", refs: "Sequence[str]", training: "Training", links: "Sequence[Path]",
    end: float, head: str,
) -> "Iterator[tuple[RankedFinding, Proof]]":  # fmt: skip
    """One base serves all; each finding may take its part of the time that is left."""
    from efprof.compare.sides.full_runs import NUM_RUNS, record_run
    from efprof.compare.sides.starting import CannotTell
    from efprof.fixes.files import write_edits

    def recorded(tree: "Tree", until: float) -> "list[Report]":
        show_status(f"recording {tree.name}")
        runs = [record_run(tree, training, home / f"{tree.name}-{number + 1}", until) for number in range(NUM_RUNS)]
        return [analyse(run) for run in runs]

    with trees_of(refs, training.here, links) as ((base, *heads), home):
        tried: list[tuple[RankedFinding, Tree]] = []
        for item, tree in zip(chosen, heads, strict=True):
            try:
                if not head:
                    write_edits(_edits(item.finding), tree.folder, tree.ref)
                tried.append((item, tree))
            except EfprofError as error:
                yield item, _unclear(item, head, error)
        bases: list[Report] = []
        for num_done, (item, tree) in enumerate(tried):
            try:
                bases = bases or recorded(base, end)
            except CannotTell as error:
                yield item, _unclear(item, head, error)
                continue
            until = time.monotonic() + (end - time.monotonic()) / (len(tried) - num_done)
            try:
                of_head, turns = recorded(tree, until), home / f"turns-{num_done}"
                proof = _proof(item, head, (base, tree), bases, of_head, training, turns, until)
            except EfprofError as error:
                proof = _unclear(item, head, error)
                if isinstance(error, NotComparable) and not isinstance(error, CannotTell):
                    proof = replace(proof, verdict="not proved")
            yield item, proof


def _proof(
    item: "RankedFinding", head: str, trees: "tuple[Tree, Tree]", bases: "list[Report]", heads: "list[Report]",
    training: "Training", home: Path, end: float,
) -> "Proof":  # fmt: skip
    from efprof.compare.comparison import compare_reports
    from efprof.compare.proving import STEP, promise, prove
    from efprof.compare.sides.turns import take_turns
    from efprof.compare.times import INTERRUPTED

    promised, times = promise(item.finding, bases[0].measurements.median_step_ms), None
    if promised is not None and promised[0] == (STEP,):
        times = take_turns(trees, training, home=home, end=end, say=show_status)
        if times.why == INTERRUPTED:
            raise KeyboardInterrupt
    comparison = compare_reports(bases, heads, forced=True, times=times)
    return prove(item.audit_id, item.finding, _unclear(item, head), bases, heads, comparison)


def _unclear(item: "RankedFinding", head: str, why: EfprofError | None = None) -> "Proof":
    from efprof.model import Proof

    return Proof(
        key=item.key,
        audit_id=item.audit_id,
        headline=item.finding.headline,
        verdict="unclear",
        head=head,
        reasons=() if why is None else (str(why),),
    )
