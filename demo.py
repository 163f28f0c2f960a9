"""`make demo`: trains energy_flow twice under the recorder, healthy and with its old faults, and reports both."""

import os
import subprocess
import sys
import time
from pathlib import Path

from efprof.artifacts.runs import find_run
from efprof.commands.report import analyse
from efprof.report.verdict import rank_findings

BIN = Path(sys.executable).parent
OUT = Path("reports/demo")
HISTORY = "tests/casebook/energy_flow_history.py"
STEPS = "52"
"""Two epochs: enough for both faults, and both runs end within a minute on two cores."""
COMPARISON_FAILED = 1
"""The exit code of a comparison in which something got worse, as it must here."""


def main() -> None:
    """Record, report, compare, and say what was found."""
    config = ["experiment"] if has_cuda() else ["cpu_demo", "--steps", STEPS]
    OUT.mkdir(parents=True, exist_ok=True)
    run("efprof", "record", "--name", "demo-healthy", "--", "energy-flow", "train", "--config", *config)
    run("efprof", "record", "--name", "demo-sick", "--", "python", HISTORY, "--config", *config)
    for side in ("healthy", "sick"):
        run("efprof", "report", f"demo-{side}", "--out", str(OUT / f"{side}.html"), quiet=True)
    compare = ("efprof", "compare", "demo-healthy", "demo-sick", "--force", "--out", str(OUT / "compare.html"))
    run(*compare, quiet=True, may_fail_with=COMPARISON_FAILED)
    print("\nWritten:")
    for page in ("healthy", "sick", "compare"):
        print(f"  {OUT / page}.html")
    print("\nThe findings of the sick run:")
    for ranked in rank_findings(analyse(find_run("demo-sick"))):
        finding = ranked.finding
        print(f"  {ranked.rank}. {finding.message}")
        print(f"     {finding.blame}   {finding.blame.text}\n     {finding.fix.summary}")


def has_cuda() -> bool:
    """Whether torch sees a CUDA device; asked in a process of its own, which then lets go of it."""
    answer = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.cuda.is_available())"], capture_output=True
    )
    return answer.stdout.strip() == b"True"


def run(program: str, *arguments: str, quiet: bool = False, may_fail_with: int = 0) -> None:
    """Run one of this environment's programs, showing the command and what it took; stop where it fails."""
    print(f"$ {program} {' '.join(arguments)}", flush=True)
    start = time.monotonic()
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}
    output = subprocess.DEVNULL if quiet else None
    code = subprocess.run([str(BIN / program), *arguments], env=environment, stdout=output, check=False).returncode
    if code not in (0, may_fail_with):
        sys.exit(code)
    print(f"  {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
