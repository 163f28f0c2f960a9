"""Starts recording in a process that has just imported torch."""

from efprof.recorder.options import read_options


def start() -> None:
    """Start the session this process belongs to; a recorder that cannot start must not stop the training."""
    options = read_options()
    if options is None:
        return
    from efprof.artifacts.events import EVENTS_FILE
    from efprof.recorder.shell import Shell
    from efprof.recorder.writing import LineWriter, RankFolder

    folder = RankFolder(options.run_folder)
    shell = Shell(folder, LineWriter(folder, EVENTS_FILE))

    def begin() -> None:
        from efprof.recorder.session import Session

        Session(options, folder, shell).start()

    shell.guarded("session", begin)()
