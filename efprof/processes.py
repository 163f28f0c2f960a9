"""Commands that efprof starts and that end with it: their start, pauses and end, and the socket at which they wait."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

GATE_VARIABLE, STEPS_VARIABLE = "EFPROF_GATE", "EFPROF_STEPS"
"""Of a training in a comparison: the socket that tells when to go on, and after how many steps it ends."""
SECONDS_TO_END = 15.0
POLL_SECONDS, LOOK_SECONDS = 0.02, 0.5

Known = dict[int, str]
"""When each of some processes was started, by its number: later that may be another one's."""


def descendants_of(pid: int) -> list[int]:
    """Its children, their children and so on; none where the kernel keeps no list of them."""
    children: list[int] = []
    with suppress(OSError):  # it may end meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return [*children, *(below for child in children for below in descendants_of(child))]


class Command:
    """A command that runs, with every process that it starts, whatever group or session these make for themselves."""

    def __init__(self, process: "subprocess.Popen[bytes]", watch: Callable[[int], None]) -> None:
        """`watch` is given each process that is to end where we are killed."""
        self._process, self._watch = process, watch
        self._seen: Known = {}
        watch(process.pid)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Whether it has ended by then; what it starts meanwhile is noted, so that it can be ended."""
        end = time.monotonic() + seconds
        while not self.has_ended and (left := end - time.monotonic()) > 0:
            self._all()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(min(left, LOOK_SECONDS))
        return self.has_ended

    def pause(self) -> None:
        """Stop all of it: what works ahead, as loaders do, would otherwise do so while another program is measured."""
        for pid in self._all():
            self._watch(pid)
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        for pid in reversed(self._all()):
            _send(pid, signal.SIGCONT)

    def end(self) -> None:
        """Politely first: the recorder passes the signal on and closes its files; then all that is left of it."""
        try:
            self.resume()
            if not self.has_ended:
                _send(self._process.pid, signal.SIGTERM)
            self.wait(SECONDS_TO_END)
        finally:  # by a second Ctrl-C as well
            _kill(_known(self._all()))
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # of its group, what nobody has seen
            self._process.wait()

    def _all(self) -> list[int]:
        """What runs of it: itself, what it has started, and what was seen before whoever started that was gone."""
        roots = [] if self.has_ended else [self._process.pid]
        roots += [pid for pid, began in self._seen.items() if _began(pid) == began]
        found = dict.fromkeys(pid for root in roots for pid in (root, *descendants_of(root)))
        self._seen = _known(found)
        return list(found)


@contextmanager
def started(
    words: Sequence[str], *, folder: Path | None, environment: Mapping[str, str], log: Path
) -> Iterator[Command]:
    """It reads nothing, and prints into `log`. At the end it is over, with all that it has started; if we are killed
    as well. It has a group of its own, so that Ctrl-C is ours to pass on.
    """
    with _guard() as watch, log.open("wb") as file, ExitStack() as stack:
        with _interrupts_wait():
            process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
            command = Command(process, watch)
            stack.callback(command.end)
        yield command


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """A program that has just been started is known before Ctrl-C or SIGTERM ends us; a mask would be inherited."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for one in came:
            signal.raise_signal(one)


def own_path() -> str:
    """PATH, led by the programs beside this Python where no environment is active, as the recorder finds them."""
    path = os.environ.get("PATH", os.defpath)
    return path if "VIRTUAL_ENV" in os.environ else f"{Path(sys.executable).parent}{os.pathsep}{path}"


def last_line(log: Path) -> str:
    """The program's, or the recorder's where it printed none: that says why it could not be started."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("efprof:")]
    return (own or lines or ["nothing"])[-1].removeprefix("efprof: ")


@contextmanager
def _guard() -> Iterator[Callable[[int], None]]:
    """Give it the numbers of processes, and a forked one ends these, with all below them, where we are killed.

    What is stopped the kernel ends only in our own session, and only if no one else there takes our place.
    """
    told, telling = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_guard(told, telling)
    os.close(told)
    try:
        yield lambda watched: _write(telling, watched)
    finally:
        _write(telling, 0)
        os.close(telling)
        os.waitpid(pid, 0)


def _write(telling: int, number: int) -> None:
    with suppress(OSError):  # somebody has killed it
        os.write(telling, number.to_bytes(4))


def _be_guard(told: int, telling: int) -> None:
    """Never returns."""
    try:
        os.setsid()  # no terminal's Ctrl-C
        os.close(telling)
        known: Known = {}
        while (word := os.read(told, 4)) and (pid := int.from_bytes(word)):
            known |= _known([pid])
        if not word:
            alive = [pid for pid, began in known.items() if _began(pid) == began]
            _kill(known | _known(below for pid in alive for below in descendants_of(pid)))
    finally:
        os._exit(0)


def _known(pids: Iterable[int]) -> Known:
    return {pid: began for pid in pids if (began := _began(pid))}


def _kill(known: Known) -> None:
    """Those that still run; until they do no more."""
    for pid, began in known.items():
        if _began(pid) == began:
            _send(pid, signal.SIGKILL)
    end = time.monotonic() + SECONDS_TO_END
    while time.monotonic() < end and any(_began(pid) == began for pid, began in known.items()):
        time.sleep(POLL_SECONDS)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _began(pid: int) -> str:
    """When, as Linux counts it; empty of one that is over, or where nothing tells."""
    with suppress(OSError):
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
        return "" if state == "Z" else rest[18]
    return ""


def listening_socket(path: Path) -> socket.socket:
    """At which others find it by that path."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(path) as name:
        server.bind(name)
    server.listen()
    return server


def connected_socket(path: Path) -> socket.socket:
    """With whoever listens there; raises OSError where that has ended."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(path) as name:
        client.connect(name)
    return client


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Another name of it: that of a socket has 107 letters at most."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
