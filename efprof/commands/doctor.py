"""`efprof doctor`: what can be recorded on this machine and what not, and why."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from efprof.commands import print_json

if TYPE_CHECKING:
    from efprof.recorder.doctor.checks import Check

CANNOT_RECORD = 1

WIDTH = 110
"""Of a line: what a terminal beside an editor shows."""


@click.command()
@click.option("--json", "is_json", is_flag=True, help="Print every check as JSON.")
def doctor(is_json: bool) -> int:
    """Check what can be recorded on this machine.

    It says why the rest cannot be. It imports torch, which takes seconds, and starts nothing on a GPU.

    Exit code: 0 where training can be recorded, 1 where it cannot.
    """
    from efprof.recorder.doctor.checks import can_record, examine

    checks = examine()
    is_fine = can_record(checks)
    if is_json:
        print_json({"can_record": is_fine, "checks": checks})
    else:
        click.echo(render_checks(checks, is_fine))
    return 0 if is_fine else CANNOT_RECORD


def render_checks(checks: "Sequence[Check]", is_fine: bool) -> str:
    """A line for each, what to do below it, and the verdict at the end."""
    status_width = max(len(check.status) for check in checks)
    name_width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        head = f"{check.status:{status_width}}  {check.name:{name_width}}  "
        lines += _wrapped(head, check.why)
        lines += _wrapped(" " * len(head), check.advice) if check.advice else []
    why_not = ", ".join(check.name for check in checks if check.is_essential and check.status == "no")
    verdict = "Training can be recorded here." if is_fine else f"Training cannot be recorded here: {why_not}."
    return "\n".join([*lines, "", verdict])


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head), break_on_hyphens=False)
