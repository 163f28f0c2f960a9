"""Starts recording in a process that has just imported torch."""

import sys

from efprof.record.options import read_options


def start() -> None:
    """Start the session this process belongs to; a recorder that cannot start must not stop the training."""
    options = read_options()
    if options is None:
        return
    try:
        from efprof.record.session import Session

        Session(options).start()
    except Exception as error:  # the recorder's shell: training must go on
        print(f"efprof: recording did not start, training goes on: {type(error).__name__}: {error}", file=sys.stderr)
