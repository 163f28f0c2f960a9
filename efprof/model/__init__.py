"""The vocabulary every layer shares; it imports nothing else of efprof."""

from efprof.model.comparison import Comparison, FindingChange, MetricChange, Verdict
from efprof.model.errors import EfprofError, NotComparable, NotRecorded, UnreadableInput
from efprof.model.evidence import (
    Bar,
    Evidence,
    Interval,
    Intervals,
    MemoryMap,
    Narrative,
    Number,
    Numbers,
    Series,
    SeriesLine,
    Snippet,
    Table,
)
from efprof.model.finding import AuditResult, AuditStatus, Finding, Severity
from efprof.model.fix import (
    Applicability,
    Change,
    CodeEdit,
    ConfigurationValue,
    EnvironmentVariable,
    Fix,
)
from efprof.model.gain import Gain
from efprof.model.report import (
    Measurements,
    MemorySample,
    Metric,
    Overhead,
    Report,
    RunIdentity,
    StageDelta,
    StepSample,
    Timeline,
)
from efprof.model.source import SourceLine
from efprof.model.stages import BOUNDARIES, STAGES

__all__ = [
    "BOUNDARIES",
    "STAGES",
    "Applicability",
    "AuditResult",
    "AuditStatus",
    "Bar",
    "Change",
    "CodeEdit",
    "Comparison",
    "ConfigurationValue",
    "EfprofError",
    "EnvironmentVariable",
    "Evidence",
    "Finding",
    "FindingChange",
    "Fix",
    "Gain",
    "Interval",
    "Intervals",
    "Measurements",
    "MemoryMap",
    "MemorySample",
    "Metric",
    "MetricChange",
    "Narrative",
    "NotComparable",
    "NotRecorded",
    "Number",
    "Numbers",
    "Overhead",
    "Report",
    "RunIdentity",
    "Series",
    "SeriesLine",
    "Severity",
    "Snippet",
    "SourceLine",
    "StageDelta",
    "StepSample",
    "Table",
    "Timeline",
    "UnreadableInput",
    "Verdict",
]
