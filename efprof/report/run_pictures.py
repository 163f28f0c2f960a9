"""The pictures that a page shows of every run, findings or none."""

from dataclasses import dataclass

from efprof.model import Report
from efprof.report.chart import Chart, has_curve
from efprof.report.evaluation_table import evaluation_chart
from efprof.report.evidence_charts import series_chart
from efprof.report.page import Picture
from efprof.report.ranking import median_step_ms
from efprof.report.timeline_charts import memory_chart, number_charts, time_chart


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPictures:
    """The pictures that every run has, where they were measured."""

    memory: Picture | None
    window: Picture | None
    """Memory by what it is for, where no card has this picture."""
    time: Picture | None
    numbers: tuple[Picture, ...]
    evaluation: Picture | None


def make_run_pictures(report: Report) -> RunPictures:
    """Memory over time and through an allocation window, time per step, loss and gradient norm."""
    measurements = report.measurements
    window = _window_chart(report)
    memory, time = memory_chart(measurements), time_chart(measurements.timeline, median_step_ms(report))
    numbers = number_charts(measurements.timeline.steps)
    evaluation = evaluation_chart(measurements.evaluations)
    return RunPictures(
        memory=Picture(id="picture-memory", chart=memory) if memory else None,
        window=Picture(id="picture-window", chart=window) if window else None,
        time=Picture(id="picture-time", chart=time) if time else None,
        numbers=tuple(Picture(id=f"picture-number-{place}", chart=chart) for place, chart in enumerate(numbers)),
        evaluation=Picture(id="picture-evaluation", chart=evaluation) if evaluation else None,
    )


def _window_chart(report: Report) -> Chart | None:
    series = report.measurements.window_memory
    shown = [one for audit in report.audits for finding in audit.findings for one in finding.evidence]
    if series is None or series in shown:
        return None
    chart = series_chart(series)
    return chart if has_curve(chart) else None
