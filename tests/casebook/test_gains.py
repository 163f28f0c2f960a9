"""How predicted gains are scored against those measured without recording."""

import runpy
from pathlib import Path

import pytest
import torch

from efprof.units import MIB
from tests.casebook._cases import all_cases
from tests.casebook._gains import (
    VARIATIONS,
    ScoredGain,
    gains_table,
    is_well_predicted,
    peaks_until,
    run_bare,
    variations,
)

PROGRAM = """\
import sys
import torch

weight, kept = torch.nn.Parameter(torch.ones(8)), []
optimizer = torch.optim.SGD([weight])
for _ in range(4):
    kept += [] if "--healthy" in sys.argv else [torch.ones(2**22)]
    weight.sum().backward()
    optimizer.step()
"""


def gain(measured: float, predicted: float | None = 8.0, *, noise: float = 1.0) -> ScoredGain:
    return ScoredGain(name="case", resource="time", predicted=predicted, measured=measured, noise=noise)


def test_a_gain_that_does_not_exceed_its_noise_threefold_is_told_and_not_scored() -> None:
    rows = "\n".join(gains_table([gain(10.0), gain(2.9), gain(0.0, None)]))
    assert "| 8.00 ms/step | 10.0 ms/step | 1.00 ms/step | 1.00x | 20 % |" in rows
    assert "| 2.90 ms/step | 1.00 ms/step | 1.00x | too small to score |" in rows
    assert "refused" in rows
    assert "time: 1 scored, median error 20 % (2.00 ms/step); of a predictor that says 'no change' 100 %" in rows


def test_eight_gains_are_needed_and_half_of_them_within_thirty_percent() -> None:
    assert is_well_predicted([gain(10.0)] * 8)
    assert not is_well_predicted([gain(10.0)] * 7 + [gain(2.0)] * 9)
    assert not is_well_predicted([gain(10.0)] * 4 + [gain(20.0)] * 5)


@pytest.mark.long
def test_programs_run_without_recording_and_their_peaks_are_seen_step_by_step(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    steps = run_bare([[str(program)], [str(program), "--healthy"]], tmp_path / "out", is_peak=True)
    assert [len(one) for one in steps] == [4, 4]
    for until, kept in ((0, 1), (2, 3), (None, 4)):
        sick, healthy = peaks_until(steps, until)
        assert sick - healthy == pytest.approx(kept * 16 * MIB, abs=4 * MIB)


def test_each_variation_is_its_program_with_other_sizes(tmp_path: Path) -> None:
    varied = list(variations(list(all_cases()), tmp_path))
    assert len(varied) == len(VARIATIONS)
    assert {case.faults for case in varied} < {case.faults for case in all_cases()}


def test_the_models_of_variations_take_their_data(tmp_path: Path) -> None:
    for case in variations(list(all_cases()), tmp_path):
        program = runpy.run_path(str(case.path))
        if "build_model" in program:
            shape = (2, program["NUM_WORDS"]) if "NUM_WORDS" in program else (2, 3, 32, 32)
            assert program["build_model"]()(torch.zeros(shape)).shape == (2, 4)
