"""Trains one GPT bare and recorded by turns, and compares what efprof predicts of its memory with what it took.

`python -m benchmarks.recording.on_a_gpu`: the tables are written anew after each part, so what is cut off is not lost.
"""

import gzip
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from benchmarks.machine import machine_line
from benchmarks.recording.on_a_gpu.tables import Estimated, Found, Pair, Predicted, markdown
from benchmarks.recording.on_a_gpu.trainings import Outcome, Size, Training, Trainings
from efprof.artifacts.steps import read_steps
from tests.support.record_fixtures import keep_run

FULL = Size(layers=12, width=1024, heads=16, context=1024, vocabulary=50_304, batch=8, steps=60)
"""200 million parameters: of an H200's memory a dozenth, so that trainings can run beside each other."""
FIXTURE = Size(layers=1, width=128, heads=2, context=128, vocabulary=512, batch=4, steps=8)
"""For the repository: its trace and its snapshot take less than 200 kB each."""
TINY = Size(layers=2, width=32, heads=2, context=32, vocabulary=128, batch=2, steps=12)
"""To try all this where there is no GPU."""

SETTINGS = ("expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:4")
FIRST_STEPS = 4
"""In which the peak comes: the third batch is the longest, and the optimizer has its state by then."""
WINDOW = ("--memory-steps", f"0:{FIRST_STEPS}", "--trace-steps", "none", "--triggers", "none")
CPU_WINDOW = ("--trace-steps", "1:3", "--memory-steps", "none", "--triggers", "none")
"""Its second step has the longest batch."""
CPU_BATCHES = (1, 2)
CPU_THREADS = 6
CPU_STEPS = 3
CPU_LIMIT_S = 70.0
"""The others wait for these: each step is a tera-operation and more."""
FIXTURE_WINDOWS = ("--memory-steps", "0:2", "--trace-steps", "5:6", "--triggers", "none")
CHECKED_STEPS = 8
WARM_UP = 8
"""Steps before that are not timed."""
NUM_PAIRS = 5
REST = 1.1
"""A further pair is begun where so many times the first one's time is left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What is measured, and where the results go."""

    out: Path
    device: str
    size: Size
    num_pairs: int


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("reports/gpu"), show_default=True)
@click.option("--seconds", type=float, default=200.0, show_default=True, help="All of it ends within that time.")
@click.option("--device", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="A model that trains in no time, to try this where there is no GPU.")
def main(out: Path, seconds: float, device: str, tiny: bool) -> None:
    """Write gpt.md, gpt.json and runs/ to the folder --out."""
    out.mkdir(parents=True, exist_ok=True)
    asked = Asked(out=out, device=device, size=TINY if tiny else FULL, num_pairs=1 if tiny else NUM_PAIRS)
    with tempfile.TemporaryDirectory() as folder:
        measure(asked, Trainings(Path(folder), seconds=seconds))


def measure(asked: Asked, trainings: Trainings) -> Found:
    """Most worthy first; where the first pair fails, so would the rest."""
    found, began = Found(), trainings.left_s
    found.pairs.append(pair_of(trainings, asked, 1))
    pair_s = began - trainings.left_s
    write(asked, trainings, found)
    if found.pairs[0].told is None:
        return found
    measure_memory(asked, trainings, found)
    write(asked, trainings, found)
    keep_reports(asked, trainings, found.pairs[0].recorded)
    for number in range(2, asked.num_pairs + 1):
        if trainings.left_s > REST * pair_s:
            found.pairs.append(pair_of(trainings, asked, number))
            write(asked, trainings, found)
    return found


def pair_of(trainings: Trainings, asked: Asked, number: int) -> Pair:
    """The recorded one is second, and first in every other pair: a device that warms up favours neither."""
    bare = Training(name=f"bare-{number}", size=asked.size, device=asked.device)
    recorded = Training(name=f"recorded-{number}", size=asked.size, device=asked.device, recorded=())
    in_order = (bare, recorded) if number % 2 else (recorded, bare)
    outcomes = {one.name: trainings.start(one) for one in in_order}
    outcome = outcomes[recorded.name]
    return Pair(bare=outcomes[bare.name], recorded=outcome, quiet=quiet_steps(outcome))


def quiet_steps(recorded: Outcome) -> list[int]:
    """After the warm-up, those that neither have a window nor come in the two steps after one."""
    if recorded.run is None or recorded.told is None:
        return []
    windows = {step.step for step in read_steps(recorded.run / "rank0")[0] if step.window}
    num_steps = len(recorded.told.step_ms)
    return [step for step in range(WARM_UP, num_steps) if windows.isdisjoint(range(step - 2, step + 1))]


def measure_memory(asked: Asked, trainings: Trainings, found: Found) -> None:
    """All beside each other, since nothing here is timed."""
    first = asked.size.but(steps=FIRST_STEPS)

    def bare(name: str, size: Size, settings: str = "") -> Training:
        return Training(name=name, size=size, device=asked.device, settings=settings)

    def checked(name: str, recorded: Sequence[str] | None) -> Training:
        size = asked.size.but(steps=CHECKED_STEPS)
        return Training(name=name, size=size, device=asked.device, recorded=recorded, is_deterministic=True)

    everything = [
        Training(name="snapshot", size=first, device=asked.device, recorded=WINDOW),
        Training(name="fixture", size=FIXTURE, device=asked.device, recorded=FIXTURE_WINDOWS),
        checked("checked-bare", None),
        checked("checked-recorded", ()),
        *(bare(f"settings-{number}", first, settings) for number, settings in enumerate(("", *SETTINGS))),
        *(bare(f"batch-{batch}", first.but(batch=batch)) for batch in CPU_BATCHES),
        *(
            Training(
                name=f"cpu-{batch}",
                size=asked.size.but(batch=batch, steps=CPU_STEPS),
                device="cpu",
                recorded=CPU_WINDOW,
                num_threads=CPU_THREADS,
                limit_s=CPU_LIMIT_S,
            )
            for batch in CPU_BATCHES
        ),
    ]
    outcomes = {one.training.name: one for one in trainings.start_together(everything)}
    for name in ("snapshot", "fixture"):
        keep_whole(asked, outcomes[name])
    found.deterministic.append(Pair(bare=outcomes["checked-bare"], recorded=outcomes["checked-recorded"]))
    if (run := outcomes["fixture"].run) is not None:
        keep_run(run, asked.out / "runs" / "gpt")
    found.predicted = predictions(trainings, outcomes)
    found.estimated = estimates(trainings, outcomes)


def predictions(trainings: Trainings, outcomes: dict[str, Outcome]) -> list[Predicted]:
    """What the one snapshot says of each setting; nothing where there is none, as on a CPU."""
    run = outcomes["snapshot"].run
    file = None if run is None else run / "rank0" / "memory-1.pickle"
    if file is None or not file.exists():
        return []
    settings = ("", *SETTINGS)
    words = [word for one in settings for word in ("--conf", one)]
    answer = trainings.ask("what-if", "allocator", "what-if", str(file), *words, "--json")
    devices = json.loads(answer)["devices"] if answer else []
    found = {one["conf"]: one for device in devices for one in device.get("predictions", ())}
    return [
        Predicted(settings=one, measured=outcomes[f"settings-{number}"], **_figures(found[one]))
        for number, one in enumerate(settings)
        if one in found
    ]


def estimates(trainings: Trainings, outcomes: dict[str, Outcome]) -> list[Estimated]:
    """What each recording on the CPU says of its batch."""
    found = []
    for batch in CPU_BATCHES:
        run = outcomes[f"cpu-{batch}"].run
        if run is None:
            continue
        answer = trainings.ask(f"estimate-{batch}", "allocator", "what-if", str(run), "--json")
        for device in json.loads(answer)["devices"] if answer else ():
            default = next(one for one in device["predictions"] if one["conf"] == "")
            measured, in_use = outcomes[f"batch-{batch}"], device["peak_allocated_bytes"]
            found.append(Estimated(batch=batch, in_use=in_use, measured=measured, **_figures(default)))
    return found


def _figures(prediction: dict[str, int]) -> dict[str, int]:
    return {
        "likely": prediction["peak_reserved_bytes"],
        "low": prediction["peak_reserved_low_bytes"],
        "high": prediction["peak_reserved_high_bytes"],
    }


def keep_whole(asked: Asked, outcome: Outcome) -> None:
    """The run as it is, its snapshots compressed; what is too large for an archive stays behind there."""
    if outcome.run is None:
        return
    place = asked.out / "whole" / outcome.training.name
    shutil.copytree(outcome.run, place, dirs_exist_ok=True)
    for snapshot in place.rglob("*.pickle"):
        snapshot.with_suffix(".pickle.gz").write_bytes(gzip.compress(snapshot.read_bytes(), 6))
        snapshot.unlink()


def keep_reports(asked: Asked, trainings: Trainings, recorded: Outcome) -> None:
    """What efprof says of the first recorded run, in every form."""
    if recorded.run is None:
        return
    keep_whole(asked, recorded)
    for suffix in ("html", "json", "md"):
        page = asked.out.absolute() / f"gpt-report.{suffix}"
        trainings.ask(f"report-{suffix}", "report", str(recorded.run), "--out", str(page))


def write(asked: Asked, trainings: Trainings, found: Found) -> None:
    """All that is known up to now, as tables and as figures."""
    told = [one.told for one in trainings.outcomes if one.told]
    accelerator = next((one.accelerator for one in told if one.accelerator), "")
    page = markdown(found, trainings.outcomes, machine_line(accelerator))
    (asked.out / "gpt.md").write_text(page, encoding="utf-8")
    figures = {one.training.name: one.told for one in trainings.outcomes}
    (asked.out / "gpt.json").write_bytes(msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
