import pytest

from efprof.artifacts.run_file import write_run_file
from efprof.commands.report import analyse
from efprof.runner import find_audits
from tests.support.builders import loader_built, make_run_file, make_steps, write_run


def test_every_audit_has_a_result_and_none_breaks(tmp_path):
    write_run(
        tmp_path / "run", steps=make_steps(60, loader=1), events=[loader_built()], sources={"train.py": "x = 1\n"}
    )
    report = analyse(tmp_path / "run")
    assert [result.audit_id for result in report.audits] == list(find_audits())
    assert {result.status for result in report.audits} <= {"passed", "not_applicable"}
    assert report.warnings == ()


@pytest.mark.parametrize("has_rank", [True, False])
def test_a_run_that_finished_no_step_still_has_a_report_with_one_warning(tmp_path, has_rank):
    folder = tmp_path / "run"
    (folder / "rank0").mkdir(parents=True) if has_rank else folder.mkdir()
    write_run_file(folder, make_run_file(ended="raised", exit_code=1))
    report = analyse(folder)
    assert {result.status for result in report.audits} == {"not_applicable"}
    assert report.measurements.metrics == ()
    assert len(report.warnings) == 1


def test_an_overview_that_breaks_is_told_and_costs_no_report(tmp_path, monkeypatch):
    write_run(tmp_path / "run", steps=make_steps(60))
    assert analyse(tmp_path / "run").warnings == ()

    def fail(run):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("efprof.facts.gpu_estimate.gpu_estimate.gpu_overview", fail)
    report = analyse(tmp_path / "run", has_gpu_estimate=True)
    (warning,) = report.warnings
    assert warning.startswith("An overview is missing, since making it failed: ZeroDivisionError: planted")
    assert [result.audit_id for result in report.audits] == list(find_audits())
