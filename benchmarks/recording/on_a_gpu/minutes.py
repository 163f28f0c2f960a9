"""What fits of `make gpu` in ten minutes on one device, most worthy first: `make gpu-minutes`.

Results are packed after each part, as one archive and a log, so that a run that is cut off loses nothing. Packages
that the machine lacks may be carried as wheels in a folder; that is why nothing but the standard library is imported.
The exit code is 0 once all is packed: the log says what failed.
"""

import argparse
import gzip
import io
import os
import shutil
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recording.on_a_gpu.sessions import PATIENCE_S, ROOT, run_for

TOTAL_S = 560
"""Where a command may take ten minutes, packing fits in the rest."""
MAX_PACKED_BYTES = 15 * 2**20
"""Of the archive; what is larger may not come back."""
LEVEL = 1
"""Of compression: it is packed anew after each part."""
HEAD_BYTES = 1024
MAX_WORKERS = 12
"""Each test has up to three processes at once, and a device's context takes half a gigabyte in two of them."""
TEST_S = 120
MAX_WAIT_S = 90
LAST_LINES = 25

GPT = ("-m", "benchmarks.recording.on_a_gpu", "--seconds", "SECONDS", "--out", "OUT")
"""The time that the part has, and the folder of results, are filled in."""
PYTEST = (
    "-m pytest -p pytest_timeout -p xdist.plugin -p no:cacheprovider -W default -q -rfEs -m gpu --durations=15 "
    "--timeout"
)
"""Other people's plugins are left out. Their warnings, and those of packages that nobody has tried, are no failures."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What Python is to run, and how long it may take."""

    name: str
    limit_s: int
    words: Sequence[str]


def tests(names: Sequence[str], *more: str) -> tuple[str, ...]:
    """Pytest on these files of tests/gpu."""
    return (*PYTEST.split(), str(TEST_S), *(f"tests/gpu/test_{name}.py" for name in names), *more)


def parts(num_workers: int, gpt: Sequence[str] = GPT) -> list[Part]:
    """In this order; their limits together are TOTAL_S."""
    return [
        Part(name="machine", limit_s=30, words=("-c", MACHINE)),
        Part(name="gpt", limit_s=190, words=gpt),
        Part(
            name="simulated",
            limit_s=45,
            words=tests(["17_what_is_simulated"], "-n", str(num_workers), "--dist", "load"),
        ),
        Part(
            name="waits",
            limit_s=45,
            words=tests(["2_always_on", "10_out_of_memory"], "-k", "synchronisation or dump or ring"),
        ),
        Part(
            name="device-time",
            limit_s=35,
            words=tests(["11_device_time"], "-k", "not compiler and not graphs"),
        ),
        Part(
            name="recordings",
            limit_s=130,
            words=tests(
                [
                    "1_main_job",
                    "3_memory",
                    "5_what_if",
                    "10_out_of_memory",
                    "13_loaders",
                    "14_triggers_and_holders",
                    "16_expandable_segments",
                    "2_always_on",
                    "12_distributed",
                    "15_graphs_and_compiled",
                ],
                *("-n", str(num_workers), "--dist", "loadgroup"),
                *("-k", "not synchronisation and not dump and not ring"),
            ),
        ),
        Part(
            name="threads-and-devices",
            limit_s=45,
            words=tests(["8_threads_and_graphs", "9_devices", "20_fit_and_failures"], "-k", "not allocator"),
        ),
        Part(
            name="casebook",
            limit_s=40,
            words=tests(["7_casebook"], "-n", "2", "-k", "allocation_retries or dataset_on_device"),
        ),
    ]


class Minutes:
    """Runs the parts, and keeps what they say in a folder of results."""

    def __init__(self, out: Path, results: Path, *, seconds: float) -> None:
        self._out, self._results, self._log = out, results, out / "log"
        self._ends_at = time.monotonic() + seconds
        self._environment = {**os.environ, "OUT": str(results)} | VARIABLES
        self._log.write_text("")
        self._sizes: dict[tuple[Path, int, int], int] = {}

    def add_packages(self, wheels: Path) -> None:
        """Unpack them into a folder of their own: the interpreter's is not touched."""
        site = Path(tempfile.mkdtemp(prefix="efprof-site-"))
        for wheel in sorted(wheels.glob("*.whl")):
            with zipfile.ZipFile(wheel) as file:
                file.extractall(site)
            self.say(f"unpacked {wheel.name}")
        paths = [str(site), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment["PYTHONPATH"] = os.pathsep.join(paths)

    def run(self, part: Part) -> None:
        """Within its limit and the time that is left; what it said goes to the results, its end to the log."""
        left_s = self._ends_at - time.monotonic()
        if left_s < 2 * PATIENCE_S:
            return self.say(f"== {part.name}: not begun, no time was left")
        seconds, began = min(part.limit_s, left_s), time.monotonic()
        filled_in = {"SECONDS": str(max(1.0, seconds - 2 * PATIENCE_S)), "OUT": str(self._results)}
        words = [filled_in.get(word, word) for word in part.words]
        output = self._results / f"{part.name}.txt"
        exit_code = run_for(seconds, [sys.executable, *words], self._environment, output=output, errors=output)
        ended = "cut off" if exit_code is None else f"exit code {exit_code}"
        last = output.read_text(errors="replace").splitlines()[-LAST_LINES:]
        self.say("\n".join([f"== {part.name}: {ended} after {time.monotonic() - began:.0f} s", *last]))
        self.pack()
        return None

    def say(self, text: str) -> None:
        """To the terminal and to the log."""
        print(text, flush=True)
        with self._log.open("a") as file:
            file.write(f"{text}\n")

    def pack(self) -> None:
        """All results as one archive, in place of the last one; the largest files stay behind where it is too large."""
        files = [path for path in self._results.rglob("*") if path.is_file()]
        room, packed = MAX_PACKED_BYTES, []
        for path in sorted(files, key=lambda path: path.stat().st_size):
            room -= self._packed_bytes(path)
            if room >= 0:
                packed.append(path)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=LEVEL) as tar:
            for path in packed:
                tar.add(path, arcname=Path("results") / path.relative_to(self._results))
        part = self._out / "results.tgz.part"
        part.write_bytes(archive.getvalue())
        part.replace(self._out / "results.tgz")
        for path in set(files) - set(packed):
            self.say(f"not packed, too large: {path.relative_to(self._results)}, {path.stat().st_size:,} bytes")
        for table in self._results.glob("gpt.md"):
            shutil.copyfile(table, self._out / table.name)

    def _packed_bytes(self, path: Path) -> int:
        """What it takes in the archive, its head included; found once for a file that stays as it is."""
        found = path.stat()
        key = (path, found.st_size, found.st_mtime_ns)
        if key not in self._sizes:
            self._sizes[key] = len(gzip.compress(path.read_bytes(), LEVEL)) + HEAD_BYTES
        return self._sizes[key]


VARIABLES = {
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "EFPROF_TESTS_MAX_WAIT_S": str(MAX_WAIT_S),
}

MACHINE = """
import importlib.metadata, shutil, subprocess, sys
if shutil.which("nvidia-smi"):
    print(subprocess.run(["nvidia-smi"], capture_output=True, text=True, check=False).stdout)
print(sys.version)
print(*sorted(f"{one.name}=={one.version}" for one in importlib.metadata.distributions()), sep=", ")
import torch
print(torch.__version__, torch.version.cuda, torch.cuda.is_available())
print(torch.cuda.is_available() and torch.cuda.get_device_properties(0))
"""


def main() -> None:
    """All parts, in the environment's folder OUT."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or ROOT / "reports" / "gpu"))
    parser.add_argument("--wheels", type=Path, default=ROOT / ".whl")
    parser.add_argument("--seconds", type=float, default=TOTAL_S)
    parser.add_argument("--workers", type=int, default=min(MAX_WORKERS, len(os.sched_getaffinity(0))))
    parser.add_argument("--tiny", action="store_true", help="a model that trains in no time")
    asked = parser.parse_args()
    out = asked.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="efprof-results-") as results:
        minutes = Minutes(out, Path(results), seconds=asked.seconds)
        minutes.add_packages(asked.wheels)
        for part in parts(asked.workers, (*GPT, "--tiny") if asked.tiny else GPT):
            minutes.run(part)


if __name__ == "__main__":
    main()
