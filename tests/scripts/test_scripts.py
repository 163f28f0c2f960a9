"""Training scripts as people publish them: recorded unedited, each must show its steps and stages as they are."""

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pytest

from efprof.artifacts.events import CollectorStopped, read_events
from efprof.artifacts.steps import StepRecord, read_steps
from efprof.artifacts.trace.read import read_window, trace_paths
from tests.recorder.recording import Recorded, environment_of
from tests.support.waiting import MAX_WAIT_S

FOLDER = Path(__file__).parent

pytestmark = pytest.mark.timeout(0)  # whichever test comes first runs all scripts, and each of these has its limit

PASS = ("forward", "backward")
MICRO_BATCH = ("data", *PASS)
PLAIN = (*MICRO_BATCH, "optimizer")
TWO_MICRO_BATCHES = (*MICRO_BATCH, *PLAIN)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as a reader of the script would describe it; a stage that goes on is named once."""

    stages: tuple[str, ...] = PLAIN
    micro_batches: int = 1
    samples: int = 8


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a recording of `tests/scripts/<name>.py` must hold, on every rank."""

    name: str
    steps: list[Step]
    evaluates: bool = False
    num_ranks: int = 1

    @property
    def order(self) -> str:
        path = str(FOLDER / f"{self.name}.py")
        return f"{path}:{self.num_ranks}" if self.num_ranks > 1 else path


TWO_BATCHES = Step(stages=TWO_MICRO_BATCHES, micro_batches=2, samples=16)
TAKING_TURNS = (*PLAIN, *PASS, "optimizer")
FETCHED_BEFORE_THE_FIRST = ("data", *PASS, *PASS, "optimizer")


def fetched_ahead(step: Step, batch: int) -> list[Step]:
    """Two epochs of five such steps, of which the first has a batch of this size too many and the last one too few."""
    first, last = (replace(step, samples=step.samples + more) for more in (batch, -batch))
    return 2 * [first, step, step, step, last]


SCRIPTS = (
    Script(
        name="minimal_gpt",
        steps=[Step(stages=(*PASS, *PASS, "optimizer"), micro_batches=2, samples=0)] * 12,
        evaluates=True,
    ),
    Script(name="gan", steps=[Step(stages=TAKING_TURNS, micro_batches=2)] * 20),
    Script(name="lightning_fit", steps=[TWO_BATCHES] * 8, evaluates=True),
    Script(
        name="trainer",
        steps=fetched_ahead(Step(stages=FETCHED_BEFORE_THE_FIRST, micro_batches=2, samples=8), 4),
        evaluates=True,
    ),
    Script(name="accelerate_loop", steps=fetched_ahead(TWO_BATCHES, 8), evaluates=True),
    Script(name="ddp", steps=[TWO_BATCHES] * 10, num_ranks=2),
    Script(name="fsdp2", steps=[Step(samples=4)] * 8, num_ranks=2),
    Script(name="checkpointing", steps=[Step()] * 12),
)

every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


@pytest.fixture(scope="session")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with every script that a test of this session asks for, run bare and recorded."""
    callspecs = [getattr(item, "callspec", None) for item in request.session.items]
    names = {spec.params["script"].name for spec in callspecs if spec is not None and "script" in spec.params}
    folder = tmp_path_factory.mktemp("forked")
    scripts = [script for script in SCRIPTS if script.name in names]
    done = subprocess.run(
        [sys.executable, "-m", "tests.scripts.forked", folder, *(script.order for script in scripts)],
        cwd=folder,
        # Where a rank crashes, its standard error says in which line.
        env=environment_of(folder, {"PYTHONPATH": str(FOLDER.parents[1]), "PYTHONFAULTHANDLER": "1"}),
        stderr=subprocess.PIPE,
        text=True,
        timeout=(1 + 2 * len(scripts)) * MAX_WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    return folder


def printed(folder: Path, script: Script) -> tuple[str, str]:
    return tuple((folder / f"{script.name}.{suffix}").read_text() for suffix in ("out", "err"))  # type: ignore[return-value]


@pytest.fixture
def recorded(script: Script, runs: Path) -> Recorded:
    output, errors = printed(runs / "recorded", script)
    return Recorded(folder=runs / "runs" / script.name, output=output, errors=errors)


def steps_of(recorded: Recorded, rank: int = 0) -> list[StepRecord]:
    return read_steps(recorded.folder / f"rank{rank}")[0]


def stages_of(step: StepRecord) -> tuple[str, ...]:
    return tuple(stage for stage, _ in groupby(span.stage for span in step.spans))


def described(steps: list[StepRecord]) -> list[Step]:
    return [Step(stages=stages_of(step), micro_batches=step.micro_batches, samples=step.samples) for step in steps]


def num_warnings(errors: str) -> int:
    return sum("Warning:" in line for line in errors.splitlines())


@every_script
def test_a_published_script_prints_what_it_prints_without_the_recorder(
    script: Script, recorded: Recorded, runs: Path
) -> None:
    output, errors = printed(runs / "bare", script)
    assert len(output.splitlines()) >= len(script.steps)
    assert recorded.output == output
    assert recorded.our_lines == []
    assert num_warnings(recorded.errors) == num_warnings(errors)


@every_script
def test_every_rank_of_a_published_script_is_recorded_by_every_collector(script: Script, recorded: Recorded) -> None:
    ranks = sorted(recorded.folder.glob("rank*"))
    assert [rank.name for rank in ranks] == [f"rank{number}" for number in range(script.num_ranks)]
    stopped = [event for rank in ranks for event in read_events(rank)[0] if isinstance(event, CollectorStopped)]
    assert stopped == []


@every_script
def test_every_update_of_a_published_script_is_a_step_with_its_stages_batches_and_samples(
    script: Script, recorded: Recorded
) -> None:
    for rank in range(script.num_ranks):
        steps = steps_of(recorded, rank)
        assert [step.step for step in steps] == list(range(len(script.steps)))
        assert described(steps) == script.steps


@every_script
def test_a_window_is_recorded_of_a_published_script(script: Script, recorded: Recorded) -> None:
    for rank in range(script.num_ranks):
        in_window = [step.step for step in steps_of(recorded, rank) if (step.window or "").startswith("trace-")]
        assert in_window in ([4], [4, 5], [5, 6])  # one later where an evaluation came between, shorter on a slow core
        assert len(read_window(trace_paths(recorded.folder / f"rank{rank}")[-1]))


@pytest.mark.parametrize("script", [script for script in SCRIPTS if script.evaluates], ids=lambda script: script.name)
def test_the_evaluation_of_a_published_script_belongs_to_no_step(script: Script, recorded: Recorded) -> None:
    instants = [float(instant) for instant in re.findall(r"(?m)^(\d+\.\d+) evaluating$", recorded.errors)]
    steps = [(step.started_ns / 1e9, (step.started_ns + step.total_us * 1000) / 1e9) for step in steps_of(recorded)]
    assert len(instants) >= 6
    inside = [number for number, (start, end) in enumerate(steps) if any(start < instant < end for instant in instants)]
    assert inside == []
