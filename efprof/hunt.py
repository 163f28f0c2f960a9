"""Runs a recorded command once more, traced around the step that went bad, and judges what that has shown."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from efprof.artifacts.events import StartKept, events_of
from efprof.artifacts.hunts import VARIABLE, Hunt, HuntPlan, HuntSeen, HuntVerdict, RankPlan, Symptom
from efprof.artifacts.steps import StepRecord
from efprof.facts.numbers.nonfinite import NonFinite
from efprof.facts.run.run import Run
from efprof.facts.source.sources import Sources
from efprof.model import EfprofError, NotRecorded, ThinEvidence, frozen_dataclass, lines_of
from efprof.processes import last_line, started

STEPS_BEFORE, MOST_BEFORE = 2, 18
"""That are traced: a NaN is born in the step of the hit or, in its backward pass, in the one before. Where a parameter
or buffer was bad already, a second try begins further back."""
OF_STATE = ("parameter", "buffer", "state")
REFUSED_BELOW = ("cross-device", "Value too large")
"""How the overlay of somebody who is not root refuses to rename a folder, and to write to another's file."""
STEPS_AFTER = 2
"""On a device, where sums come in any order, the symptom may come so many steps later."""
ON_DEVICE = 1e-3
"""How far losses may lie apart there."""
SLOWER = 1.1
START_SECONDS, TRACED_SECONDS = 60.0, 60.0
SECONDS_FOR_RANKS = 10.0
"""After the first process has told; the others are lost without it."""
LOG = "output.txt"
PREFIX = "efprof-hunt-"
OFFLINE = {
    "WANDB_MODE": "offline", "NEPTUNE_MODE": "offline", "COMET_MODE": "disabled", "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:{folder}/mlruns", "SWANLAB_MODE": "offline", "AIM_REPO": "{folder}/aim",
}  # fmt: skip
"""What keeps trackers of experiments from counting it as another run."""
OVERLAY = (
    'o="lowerdir=$1,upperdir=$2,workdir=$3"; '
    '{ mount -t overlay overlay -o "$o,redirect_dir=on" "$1" || mount -t overlay overlay -o "$o" "$1"; } 2>/dev/null '
    '&& cd "$1" && shift 3 && exec "$@"'
)
"""With redirect_dir a folder that was there before can be renamed; not every system has it."""


@frozen_dataclass
class Hit:
    """The step of a run that went bad first, with what each rank has recorded up to it."""

    step: int
    symptom: Symptom
    seconds: float
    """From the start of the command."""
    ranks: Mapping[int, tuple[StepRecord, ...]]

    @classmethod
    def find(cls, run: Run) -> "Hit":
        """Raises EfprofError where all was finite, or nothing can be counted."""
        ranks = {rank_of(folder): run.of_rank(folder) for folder in run.rank_folders}
        found = []
        for number, rank in ranks.items():
            with suppress(NotRecorded, ThinEvidence):
                fact = rank.get(NonFinite)
                if fact.first_step is not None:
                    found.append((fact.first_step, fact.what != "loss", number))
        if not found:
            raise EfprofError(f"{run.run_file.run_id} has no loss or gradient that was NaN or Inf: nothing to hunt.")
        step, is_gradient, first = min(found)
        steps = dict[int, tuple[StepRecord, ...]]()
        for number, rank in ranks.items():
            with suppress(NotRecorded):  # of a process that makes no step
                steps[number] = tuple(one for one in rank.steps if one.step <= step)
        if not sum(one.micro_batches for one in steps[first]):
            raise EfprofError(f"{run.run_file.run_id} knows no backward pass: only steps with one can be found again.")
        last, began = steps[first][-1], datetime.fromisoformat(run.run_file.started).timestamp()
        return cls(
            step=step,
            symptom="gradient" if is_gradient else "loss",
            seconds=max(0.0, last.started_ns / 1e9 + last.total_us / 1e6 - began),
            ranks=steps,
        )

    def plan(self, run: Run, results: Path, *, num_before: int, is_resumed: bool) -> HuntPlan:
        """That traces from `num_before` steps before it on."""
        is_on_device = bool(run.run_file.devices)
        states = {rank_of(folder): events_of(folder, StartKept) for folder in run.rank_folders}
        ranks = {}
        for number, steps in self.ranks.items():
            if not steps:
                continue
            passes = [one.micro_batches for one in steps]
            first_hit = sum(passes[:-1]) if steps[-1].step == self.step else sum(passes)
            ranks[number] = RankPlan(
                first_traced=sum(passes[: max(0, len(passes) - 1 - num_before)]),
                first_hit=first_hit,
                last_pass=first_hit + max(passes) * (1 + STEPS_AFTER * is_on_device) - 1,
                steps=[(one.micro_batches, one.loss) for one in steps],
                state=states[number][0].state if states[number] else None,
            )
        return HuntPlan(
            results=str(results),
            root=run.run_file.git.root if run.run_file.git else run.run_file.working_folder,
            ranks=ranks,
            tolerance=ON_DEVICE if is_on_device else 0.0,
            looks_at_gradients=self.symptom == "gradient" or len(ranks) > 1,
            is_resumed=is_resumed or not self._is_whole,
        )

    @property
    def _is_whole(self) -> bool:
        """Whether each step before is known, so that passes can be counted."""
        return all(not steps or steps[-1].step == len(steps) - 1 for steps in self.ranks.values())


def rank_of(folder: Path) -> int:
    return int(folder.name.removeprefix("rank"))


@frozen_dataclass
class Setting:
    """How the command is run again: its words, in this folder, with these variables, for so long at most.

    `is_in_place` lets it write there; else what it writes is thrown away.
    """

    command: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    end: float
    is_in_place: bool = False
    is_resumed: bool = False


def hunt(run: Run, hit: Hit, setting: Setting) -> Hunt:
    """Raises EfprofError where the command fails, or is not done in time."""
    began = time.monotonic()
    for num_before in (STEPS_BEFORE, MOST_BEFORE):
        best = min(_run_traced(run, hit, setting, num_before), key=_rank_of)
        given = best.origin.operands if best.origin is not None and best.origin.kind == "given" else []
        if not any(one.is_a in OF_STATE for one in given) or num_before >= hit.step:
            break
    return _judged(best, hit, run, seconds=time.monotonic() - began)


def _rank_of(seen: HuntSeen) -> tuple[int, int]:
    """The one that saw a birth comes first, then the one that saw anything."""
    kind = "" if seen.origin is None else seen.origin.kind
    order = 0 if kind in ("nan", "inf") else 1 if kind else 2
    return order if seen.why == "hit" else 3, seen.rank


def _judged(seen: HuntSeen, hit: Hit, run: Run, *, seconds: float) -> Hunt:
    why = ""
    verdict: HuntVerdict = "not reproduced"
    origin = seen.origin
    if seen.why == "differs" and seen.difference is not None:
        step, recorded, here = seen.difference
        why = f"the loss of step {step:,} is {here}, and was {recorded}: {_why_differs(seen, run)}"
    elif not seen.has_found_place:
        why = "no three losses in a row are those of the recorded run"
    elif seen.why != "hit":
        why = f"after {seen.num_equal:,} equal losses the {hit.symptom} of step {hit.step:,} is finite this time"
    elif origin is None and seen.symptom == "gradient":
        verdict, why = "no origin", "no number is NaN or Inf, and the norm of the gradients is beyond float32"
    elif origin is None or origin.kind == "passed" or not (origin.site or origin.library_site):
        verdict, why = "no origin", "no operation that was traced made the first of them"
    else:
        verdict = "born"
    return Hunt(
        verdict=verdict,
        why=why,
        step=hit.step,
        seconds=round(seconds, 1),
        num_equal=seen.num_equal,
        rank=seen.rank,
        symptom=seen.symptom,
        origin=seen.origin if verdict == "born" else None,
        chain=seen.chain if verdict == "born" else [],
        norms=seen.norms,
        grown=seen.grown,
        is_compiled=seen.is_compiled,
    )


def _why_differs(seen: HuntSeen, run: Run) -> str:
    if seen.is_compiled and seen.is_traced:
        return "compiled code is traced as eager code, which rounds and draws random numbers in another way"
    if not any(events_of(folder, StartKept) for folder in run.rank_folders):
        return "this recording kept no state of random numbers"
    return (
        "what a generator of its own draws (`numpy.random.default_rng()`), other processes, the clock, and files that "
        "the first run has left (a checkpoint to resume from) may differ"
    )


def _run_traced(run: Run, hit: Hit, setting: Setting, num_before: int) -> list[HuntSeen]:
    """What each process told; raises EfprofError where none did."""
    with _scratch(setting) as (place, prefix):
        results = place / "results"
        results.mkdir()
        plan = hit.plan(run, results, num_before=num_before, is_resumed=setting.is_resumed)
        (place / "plan.json").write_bytes(msgspec.json.encode(plan))
        offline = {name: value.format(folder=place) for name, value in OFFLINE.items()}
        seeds = {one.state.hash_seed for one in plan.ranks.values() if one.state is not None and one.state.hash_seed}
        environment = {
            **setting.environment, **offline, VARIABLE: str(place / "plan.json"),
            **({"PYTHONHASHSEED": seeds.pop()} if seeds else {}),
        }  # fmt: skip
        log = place / LOG
        words = [*prefix, *setting.command]
        with started(words, folder=setting.folder, environment=environment, log=log) as command:
            told = None
            while not command.wait(0.5):
                now = time.monotonic()
                if told is None and any(results.iterdir()):
                    told = now
                if told is not None and now - told > SECONDS_FOR_RANKS * (len(run.rank_folders) > 1):
                    break
                if now > setting.end:
                    raise EfprofError(
                        f"step {hit.step:,} was not reached in time: it came {hit.seconds / 60:.1f} minutes after the "
                        "start; give more with --max-minutes."
                    )
        files = sorted(results.glob("*.json"))
        if not files:
            said = last_line(log)
            is_refused = any(words in said for words in REFUSED_BELOW)
            advice = ", which the overlay does not let it do: let it write with --in-place" if is_refused else ""
            raise EfprofError(
                f"the command ended without a backward pass, or failed before the bad step: it said '{said}'{advice}."
            )
        return [msgspec.json.decode(file.read_bytes(), type=HuntSeen) for file in files]


@contextmanager
def _scratch(setting: Setting) -> Iterator[tuple[Path, list[str]]]:
    """A folder that is gone afterwards, and what to put before the command so that its writes go there.

    Raises EfprofError where the system allows no such thing.
    """
    for parent in (tempfile.gettempdir(), "/dev/shm"):
        if not Path(parent).is_dir():
            continue
        _remove_orphans(Path(parent))
        place = Path(tempfile.mkdtemp(dir=parent, prefix=f"{PREFIX}{os.getpid()}-"))
        try:
            prefix = [] if setting.is_in_place else overlay_of(setting.folder, place)
            if prefix is not None:
                yield place, prefix
                return
        finally:
            _remove(place)
    raise EfprofError(
        f"this system lets no overlay be laid over {setting.folder}, so the command would write there: "
        "consent with --in-place."
    )


def _remove_orphans(parent: Path) -> None:
    """What hunts left behind that were killed."""
    for place in parent.glob(f"{PREFIX}*"):
        number = place.name.removeprefix(PREFIX).partition("-")[0]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            _remove(place)


def _remove(place: Path) -> None:
    with suppress(OSError):
        (place / "work" / "work").chmod(0o700)  # overlayfs makes it closed to its owner
    shutil.rmtree(place, ignore_errors=True)


def overlay_of(folder: Path, place: Path) -> list[str] | None:
    """Words that run a command with a view of its own of `folder`, whose changes lie in `place`; None if none can."""
    upper, work = place / "upper", place / "work"
    if place.is_relative_to(folder) or set(f"{folder}{place}") & set(":,\\"):
        return None
    for one in (upper, work):
        one.mkdir()
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", "--mount", *as_root, "--", "sh", "-c", OVERLAY, "sh", str(folder), str(upper), str(work)]
    try:
        done = subprocess.run([*words, "true"], capture_output=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return words if done.returncode == 0 else None


def seconds_needed(hit: Hit) -> float:
    """Of one second run, at most."""
    return SLOWER * hit.seconds + TRACED_SECONDS


def changed_sources(run: Run, hide: Callable[[str], str]) -> list[str]:
    """Files that are not as they were when they were recorded, where `hide` took out what looked like a secret."""
    git, here = run.run_file.git, Path(run.run_file.working_folder)
    changed = []
    for name, lines in run.get(Sources).files.items():
        path = Path(git.root if git else here) / name
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue  # typed in, or gone: then the command says so
        if list(lines_of(hide(text))) != list(lines):
            changed.append(name)
    return changed
