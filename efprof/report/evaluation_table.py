"""The evaluations of a run: a table, and memory through the one that needed most."""

from collections.abc import Sequence
from typing import Final

from efprof.model import Evaluation, Series, SeriesLine
from efprof.report.chart import Chart, has_curve
from efprof.report.evidence_charts import series_chart
from efprof.report.wording import show

COLUMNS: Final = ("After step", "Line", "Batches", "Time", "Waiting for batches", "Peak", "Kept per batch")
MAX_ROWS: Final = 50


def evaluation_rows(evaluations: Sequence[Evaluation]) -> tuple[tuple[str, ...], ...]:
    """The rows under `COLUMNS`, of the last ones."""
    return tuple(map(_row, evaluations[-MAX_ROWS:]))


def evaluation_chart(evaluations: Sequence[Evaluation]) -> Chart | None:
    """Allocated memory by the batches evaluated, of the one with the highest peak."""
    if not evaluations:
        return None
    highest = max(evaluations, key=lambda each: each.peak_bytes)
    num_batches, num_bytes = zip(*highest.memory, strict=True)
    line = SeriesLine(label=highest.when, x=tuple(map(float, num_batches)), y=tuple(map(float, num_bytes)))
    chart = series_chart(
        Series(
            title="Memory through an evaluation",
            x_label="batches evaluated",
            x_unit="",
            y_label="allocated",
            y_unit="bytes",
            lines=(line,),
        )
    )
    return chart if has_curve(chart) else None


def _row(each: Evaluation) -> tuple[str, ...]:
    return (
        "before all" if each.after_step < 0 else f"{each.after_step:,}",
        str(each.blame or ""),
        f"{each.num_batches:,}",
        show(each.total_ms, "ms"),
        show(each.fetch_ms, "ms"),
        show(each.peak_bytes, "bytes"),
        "" if each.kept_bytes_per_batch is None else show(each.kept_bytes_per_batch, "bytes"),
    )
