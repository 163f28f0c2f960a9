"""`efprof fix RUN FINDING`: the edit of a finding as a diff, for `git apply`."""

import sys
from pathlib import Path

import click

from efprof.commands.report import analyse
from efprof.model import CodeEdit, EfprofError, EnvironmentVariable


@click.command()
@click.argument("run")
@click.argument("finding")
def fix(run: str, finding: str) -> None:
    """Print the edit of a finding as a diff.

    \b
        efprof fix latest 1 | git apply       # -R takes it back

    RUN is a run, its id, its name or 'latest'. FINDING is the number that the report gives it, the id of its audit or
    its key. Nothing is written. Paths in the diff are relative to the repository: apply it there.
    """
    from efprof.artifacts.run_file import read_run_file
    from efprof.artifacts.runs import find_run
    from efprof.fixes.files import edited, patch
    from efprof.report.verdict import find_finding

    folder = find_run(run)
    found = find_finding(analyse(folder), finding)
    changes = found.finding.fix.changes
    edits = [change for change in changes if isinstance(change, CodeEdit)]
    if not edits:
        settings = [f"{one.name}={one.new}" for one in changes if isinstance(one, EnvironmentVariable)]
        how = f"set {' '.join(settings)} before the command" if settings else found.finding.fix.summary.rstrip(".")
        raise EfprofError(f"finding {found.rank} ({found.audit_id}) has no edit of a file: {how}.")
    record = read_run_file(folder)
    recorded_in = Path(record.git.root if record.git else record.working_folder)
    root = recorded_in if recorded_in.is_dir() else Path.cwd()  # it was recorded elsewhere
    patches = []
    for name in dict.fromkeys(edit.file for edit in edits):
        if Path(name).is_absolute():
            raise EfprofError(f"{name} lies outside the repository, which no diff reaches: {found.finding.fix.summary}")
        try:
            content = (root / name).read_bytes()
        except OSError as error:
            raise EfprofError(f"{root / name} cannot be read: {error.strerror}.") from None
        after = edited(content, [edit for edit in edits if edit.file == name])
        patches.append(patch(name, content, after))
    sys.stdout.buffer.write(b"".join(patches))
