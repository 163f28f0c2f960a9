"""Runs scripts, bare and recorded, each in a fork of one process: importing torch takes longer than they do.

    python -m tests.scripts.forked FOLDER SCRIPT[:RANKS]...

What `name.py` prints becomes FOLDER/bare/name.out, its standard error FOLDER/bare/name.err. It is recorded as well, as
by `efprof record` without options but every step in full: into FOLDER/runs/name, what it prints into FOLDER/recorded.
Ranks have the variables of torchrun.
"""

import gc
import os
import runpy
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from efprof.artifacts.run_file import write_run_file
from efprof.recorder.launch.launch import close_run
from efprof.recorder.launch.start import start
from efprof.recorder.session.options import VARIABLE, encode_options, parse_options
from tests.recorder.faults.fork_server import import_what_a_child_needs
from tests.support.builders import make_run_file
from tests.support.ports import kept_port, torchrun_variables
from tests.support.waiting import MAX_WAIT_S

ROOT = Path(__file__).parents[2]


def main(folder: Path, scripts: list[str]) -> None:
    import_what_a_child_needs()
    gc.freeze()  # or each child would look through all of torch for garbage when it ends
    for text in scripts:
        script, _, ranks = text.partition(":")
        run = folder / "runs" / Path(script).stem
        for side, recording in (("bare", {}), ("recorded", recording_into(run))):
            with kept_port() as port:
                environments = torchrun_variables(port, int(ranks)) if ranks else [{}]
                for environment in environments:
                    if os.fork() == 0:
                        os.environ.update({**environment, **recording})
                        become(script, folder / side / Path(script).stem)
                        return
                statuses = [os.wait()[1] for _ in environments]
            if any(statuses):
                sys.exit(f"{script} failed; see {folder / side}")
        close_run(run, 0, 1.0)


def recording_into(run: Path) -> Mapping[str, str]:
    run.mkdir(parents=True)
    write_run_file(run, make_run_file(ended="running"))
    options = parse_options(overhead="100%")
    return {VARIABLE: encode_options(msgspec.structs.replace(options, run_folder_name=str(run), root_name=str(ROOT)))}


def become(script: str, output: Path) -> None:
    signal.alarm(MAX_WAIT_S)
    output.parent.mkdir(exist_ok=True)
    for descriptor, suffix in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(output.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.argv = [script]
    sys.path[0] = str(Path(script).parent)  # as Python has it for a script: some import what lies beside them
    if VARIABLE in os.environ:
        start()
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
