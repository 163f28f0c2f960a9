"""`efprof export --perfetto RUN [FINDING]`: the part of a trace that is worth a look, for other people's viewers."""

import math
from pathlib import Path

import click

from efprof.commands.report import OWN, REPORTS_FOLDER, analyse, harmless, opened, write_file
from efprof.model import EfprofError


@click.command()
@click.argument("run")
@click.argument("finding", required=False)
@click.option("--perfetto", is_flag=True, help="For https://ui.perfetto.dev: the format of Chrome's traces, packed.")
@OWN
@click.option("--out", type=click.Path(path_type=Path), help="Where to write; default: reports/.")
def export(run: str, finding: str | None, perfetto: bool, own: tuple[str, ...], out: Path | None) -> None:
    """Export a typical step as a Perfetto trace.

    RUN is what `efprof report` takes. FINDING is the number that the report gives it, the id of its audit or its key:
    then it is a step in which that is seen. The events stand as they were recorded, with a mark at each instant at
    which the finding's line begins.
    """
    if not perfetto:
        raise EfprofError("there is one form to write so far: add --perfetto.")
    from efprof.artifacts.remote import local_copies
    from efprof.facts.run.run import open_run
    from efprof.facts.time.perfetto import StepsForPerfetto
    from efprof.report.verdict import find_finding

    own_packages = frozenset(own)
    with local_copies((run,)) as local, opened(tuple(local)) as folder:
        found = None
        if finding is not None:
            found = find_finding(analyse(folder, own_packages=own_packages), finding).finding
        recorded = open_run(folder)
        recorded.own_packages, recorded.max_trace_bytes = own_packages, math.inf
        steps = StepsForPerfetto.of(recorded, found)
        name = "-".join([recorded.run_file.run_id, *([finding] if finding else []), "perfetto.json.gz"])
        path = out or REPORTS_FOLDER / harmless(name)
        write_file(path, steps.packed())
    window = steps.window
    numbers = ", ".join(str(window.numbers[place]) for place in steps.begins_ns) if window.has_steps else "not recorded"
    click.echo(f"{path}\nSteps: {numbers}. Open it at https://ui.perfetto.dev")
