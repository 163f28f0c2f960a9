"""`efprof hunt`: the command runs again and the origin stays with the run; what it refuses is one sentence each."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from efprof.artifacts.hunts import Hunt, read_hunt
from efprof.artifacts.run_file import RunFile, read_run_file, write_run_file
from efprof.cli import main
from efprof.commands.hunt import hunt_in, sentence_of
from efprof.commands.report import analyse
from efprof.model import HIDDEN, EfprofError
from efprof.report.verdict import rank_findings
from tests.recorder.recording import EFPROF, Recorded, environment_of, line_of, record_command

RUNS = Path(__file__).parents[1] / "runs"

PROGRAM = """
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, index):
        row = torch.from_numpy(np.random.randn(8).astype("float32"))
        return row * (random.random() > (0.9 if index > 160 and index % 20 == 7 else 0.0))


def main():
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    start = 0
    if "--resume" in sys.argv:
        state = torch.load("last.pt")
        model.load_state_dict(state["model"])
        start = state["step"]
    rows = list(DataLoader(Rows(), batch_size=8, num_workers=1))
    if "--resume" in sys.argv:
        rows = torch.load("rows.pt")
    else:
        torch.save(rows, "rows.pt")
    if "--fail" in sys.argv:
        raise OSError("the disk is gone")
    for step in range(start, 40):
        if step == 10:
            torch.save({"model": model.state_dict(), "step": step}, "last.pt")
        row = rows[step]
        hidden = model(row)
        unit = row / row.norm(dim=1, keepdim=True)  # born
        loss = (hidden - unit).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with Path("log.txt").open("a") as log:
            log.write(f"{step} {loss.item()}\\n")
        if not loss.isfinite():
            break


main()
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A run without a seed, whose data come from a worker, and turn bad in one row of some."""
    folder = tmp_path_factory.mktemp("hunted")
    (folder / "train.py").write_text(PROGRAM)
    return record_command(folder / "home", [sys.executable, "train.py"])


@pytest.mark.long
def test_what_made_the_first_nan_is_found_again_without_a_seed_and_nothing_of_the_users_is_changed(
    recorded: Recorded,
) -> None:
    folder = Path(recorded.run.working_folder)
    before = {path: path.read_bytes() for path in folder.glob("*.*")}
    hunt = hunt_in(recorded.folder, max_minutes=10)
    assert {path: path.read_bytes() for path in folder.glob("*.*")} == before
    assert (hunt.verdict, hunt.why) == ("born", "")
    assert hunt.num_equal == hunt.step
    line = line_of(folder / "train.py", "born")
    assert sentence_of(recorded.folder, hunt).startswith(
        f"train.py:{line}: `div` makes NaN: it is given float32 [8, 1], 0 in 1 "
    )
    (item,) = [one for one in rank_findings(analyse(recorded.folder)) if one.audit_id == "nonfinite_loss"]
    assert item.finding.blame.line == line
    (edit,) = item.finding.fix.changes
    assert "row.norm(dim=1, keepdim=True).clamp_min(1e-06)" in edit.new


@pytest.mark.long
def test_a_command_that_resumes_finds_its_place_by_the_losses(recorded: Recorded) -> None:
    first = hunt_in(recorded.folder, max_minutes=10)
    again = hunt_in(recorded.folder, max_minutes=10)
    assert (again.origin, again.num_equal) == (first.origin, first.num_equal)
    hunt = hunt_in(recorded.folder, (sys.executable, "train.py", "--resume"), max_minutes=10)
    assert hunt.verdict == "born"
    assert read_hunt(recorded.folder) == hunt


@pytest.mark.long
def test_another_course_of_the_training_is_told_with_the_step_that_differs(recorded: Recorded, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(recorded.folder, copy)
    events = copy / "rank0" / "events.jsonl"
    events.write_text("".join(line for line in events.read_text().splitlines(True) if "start_kept" not in line))
    hunt = hunt_in(copy, max_minutes=10)
    assert hunt.verdict == "not reproduced"
    assert hunt.why.startswith("the loss of step 0 is ")
    assert hunt.why.endswith("this recording kept no state of random numbers")
    (item,) = [one for one in rank_findings(analyse(copy)) if one.audit_id == "nonfinite_loss"]
    assert item.finding.blame.file == "train.py"


def changed(recorded: Recorded, tmp_path: Path, change: Callable[[RunFile], RunFile]) -> Path:
    copy = tmp_path / "run"
    shutil.copytree(recorded.folder, copy)
    write_run_file(copy, change(read_run_file(copy)))
    return copy


def test_what_cannot_be_hunted_is_one_sentence(recorded: Recorded, tmp_path: Path) -> None:
    here = str(tmp_path / "elsewhere")
    shutil.copytree(Path(recorded.run.working_folder), here)
    replace = msgspec.structs.replace
    secret = changed(recorded, tmp_path / "a", lambda run: replace(run, command=["python", "train.py", HIDDEN]))
    gone = changed(recorded, tmp_path / "b", lambda run: replace(run, working_folder="/nowhere/at/all"))
    early = changed(recorded, tmp_path / "c", lambda run: replace(run, started="2020-01-01T00:00:00.000+00:00"))
    other = changed(recorded, tmp_path / "d", lambda run: replace(run, working_folder=here, git=None))
    (Path(here) / "train.py").write_text(f"{PROGRAM}\n# changed\n")
    for folder, why in (
        (secret, "holds a secret that was not recorded"),
        (gone, "/nowhere/at/all, where the run was recorded, is gone"),
        (early, "s after the start: give --max-minutes"),
        (other, "train.py is not as it was recorded"),
        (RUNS / "memory_growth-sick", "has no loss or gradient that was NaN or Inf: nothing to hunt"),
    ):
        with pytest.raises(EfprofError, match=why) as caught:
            hunt_in(folder, max_minutes=30)
        assert str(caught.value).count("\n") == 0


@pytest.mark.long
def test_a_command_that_fails_or_takes_too_long_is_one_sentence(recorded: Recorded) -> None:
    with pytest.raises(EfprofError, match=r"it said 'OSError: the disk is gone'"):
        hunt_in(recorded.folder, (sys.executable, "train.py", "--fail"), max_minutes=10)
    with pytest.raises(EfprofError, match="was not reached in time"):
        hunt_in(recorded.folder, (sys.executable, "-c", "import time; time.sleep(600)"), max_minutes=1e-3)


def test_without_an_overlay_it_asks_for_consent(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efprof.hunt.overlay_of", lambda *_: None)
    with pytest.raises(EfprofError, match="consent with --in-place"):
        hunt_in(recorded.folder, max_minutes=10)


def test_an_exit_code_tells_programs(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for verdict, code in (("born", 0), ("not reproduced", 3), ("no origin", 3)):
        made = Hunt(verdict=verdict, why="the loss of step 3 is 1.0, and was 2.0", step=4, seconds=1.0, num_equal=3)
        monkeypatch.setattr("efprof.hunt.hunt", lambda *_, made=made: made)
        monkeypatch.setattr(sys, "argv", ["efprof", "hunt", str(recorded.folder), "--json"])
        with pytest.raises(SystemExit) as caught:
            main()
        assert caught.value.code == code
        assert f'"verdict": "{verdict}"' in capsys.readouterr().out


TWO_RANKS = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    weight = torch.rand(8)
    if dist.get_rank() == 1 and step == 20:
        weight.zero_()
    errors = model(torch.randn(8, 8)).square().mean(1)
    loss = (errors * weight).sum() / weight.sum()  # born
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.long
def test_of_two_ranks_the_one_that_made_it_is_blamed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TWO_RANKS)
    torchrun = str(Path(sys.executable).parent / "torchrun")
    command = [torchrun, "--standalone", "--nproc-per-node", "2", "train.py"]
    folder = record_command(tmp_path / "home", command).folder
    hunt = hunt_in(folder, max_minutes=10)
    assert (hunt.verdict, hunt.rank, hunt.step) == ("born", 1, 20)
    assert hunt.origin is not None
    assert hunt.origin.site == f"train.py:{line_of(tmp_path / 'train.py', 'born')}:<module>"


@pytest.mark.long
def test_record_hunts_at_once_where_asked_to(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    words = [*EFPROF, "record", "--hunt", "--report", "--", sys.executable, "train.py"]
    environment = environment_of(tmp_path / "home", {})
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    line = line_of(tmp_path / "train.py", "born")
    assert f"(train.py:{line})" in done.stdout.splitlines()[0]
