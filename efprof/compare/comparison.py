"""Two reports -> what changed between their runs."""

import difflib
from collections.abc import Mapping
from dataclasses import replace

from efprof.compare.comparability import find_differences
from efprof.compare.findings import compare_findings
from efprof.compare.metrics import compare_metrics, has_failed
from efprof.model import Comparison, EfprofError, NotComparable, Report


def compare_reports(
    base: Report, head: Report, *, forced: bool, budgets: Mapping[str, float] | None = None
) -> Comparison:
    """Metrics and findings of `head` against those of `base`; `budgets` replace those of the metrics they name.

    Raises NotComparable where machine, versions, configuration or command differ and it is not `forced`, and
    always where neither run holds a step, or one that did not fail; EfprofError where a budget names no metric.
    """
    differences = find_differences(base, head)
    if differences and not forced:
        raise NotComparable(
            f"base and head differ in {'; '.join(differences)}: record both alike, or compare them as they are "
            "with --force."
        )
    if not base.run.num_steps and not head.run.num_steps:
        raise NotComparable("neither base nor head holds a finished step: record runs that get through one.")
    for side, report in (("base", base), ("head", head)):
        if not report.run.num_steps and not has_failed(report):
            raise NotComparable(
                f"{side} ({report.run.run_id}) holds no finished step: record a run that gets through one."
            )
    if budgets:
        _check_names(budgets, base, head)
        base, head = _with_budgets(base, budgets), _with_budgets(head, budgets)
    return Comparison(
        base=base.run,
        head=head.run,
        metrics=compare_metrics(base, head),
        findings=compare_findings(base, head),
        differences=differences,
    )


def _check_names(budgets: Mapping[str, float], base: Report, head: Report) -> None:
    known = dict.fromkeys(metric.name for side in (base, head) for metric in side.measurements.metrics)
    for name in budgets:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(known) or 'none'}."
            raise EfprofError(f"--budget: there is no metric '{name}'; {hint}")


def _with_budgets(report: Report, budgets: Mapping[str, float]) -> Report:
    measurements = report.measurements
    metrics = tuple(replace(each, budget=budgets.get(each.name, each.budget)) for each in measurements.metrics)
    return replace(report, measurements=replace(measurements, metrics=metrics))
