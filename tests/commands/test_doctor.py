"""`efprof doctor` from the command line to its exit code."""

import json
import subprocess
from pathlib import Path

from efprof.commands.doctor import WIDTH
from tests.recorder.recording import EFPROF, environment_of


def run_doctor(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = environment_of(folder / "home", variables)
    return subprocess.run([EFPROF, "doctor", *arguments], env=environment, cwd=folder, capture_output=True, text=True)


def test_a_machine_that_can_record_is_fine_and_its_traps_are_told(tmp_path: Path) -> None:
    done = run_doctor(tmp_path, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,max_split_size_mb:128")
    assert done.returncode == 0
    assert done.stdout.endswith("\nTraining can be recorded here.\n")
    assert "careful  allocator settings" in done.stdout
    assert max(map(len, done.stdout.replace(str(tmp_path), "~").splitlines())) <= WIDTH
    assert done.stderr == ""


def test_a_machine_that_cannot_record_fails_and_says_by_what(tmp_path: Path) -> None:
    (tmp_path / "efprof.toml").write_text("[recrod]\n")
    done = run_doctor(tmp_path, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["can_record"]) == (1, False)
    failed = [check for check in found["checks"] if check["is_essential"] and check["status"] == "no"]
    assert [check["name"] for check in failed] == ["settings"]
    assert "did you mean 'record'?" in failed[0]["why"]
