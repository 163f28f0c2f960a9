"""What a report of a CPU run says of a GPU."""

from pathlib import Path

import pytest

from efprof.commands.report import analyse, render
from efprof.facts.gpu_estimate.gpu_estimate import TITLE, GpuEstimate, gpu_overview
from efprof.facts.run.run import open_run
from efprof.model import NotRecorded, Numbers
from tests.support.builders import make_step, write_run

RUN = Path(__file__).parents[2] / "runs" / "oversized_peak-sick"


def test_it_says_what_the_command_says_under_the_default_settings() -> None:
    run = open_run(RUN)
    (numbers,) = [one for one in gpu_overview(run) if isinstance(one, Numbers)]
    default = run.get(GpuEstimate).default
    assert numbers.numbers[0].value == default.outcome.peak_reserved_bytes
    assert numbers.numbers[0].interval == (
        default.outcome.peak_reserved_low_bytes,
        default.outcome.peak_reserved_high_bytes,
    )


def test_the_page_calls_it_an_estimate_and_says_what_is_missing_where_somebody_asked() -> None:
    assert TITLE not in render(analyse(RUN), "html")
    page = render(analyse(RUN, has_gpu_estimate=True), "html")
    assert TITLE in page
    assert "nothing of this ran on a GPU" in page


def test_a_run_without_a_window_has_no_such_section(tmp_path: Path) -> None:
    run = write_run(tmp_path, steps=[make_step(0)])
    with pytest.raises(NotRecorded):
        gpu_overview(run)
    assert TITLE not in render(analyse(tmp_path, has_gpu_estimate=True), "html")
