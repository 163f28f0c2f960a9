"""The vocabulary every layer shares; it imports nothing else of efprof. All that is imported here is for others."""

from efprof.model.comparison import Comparison, FindingChange, MetricChange, Verdict
from efprof.model.errors import EfprofError, NotComparable, NotRecorded, ThinEvidence, UnreadableInput
from efprof.model.evidence import (
    Alternative,
    Alternatives,
    Bar,
    Evidence,
    Interval,
    Intervals,
    MemoryMap,
    Narrative,
    Number,
    Numbers,
    SegmentMap,
    SegmentRow,
    SegmentView,
    Series,
    SeriesLine,
    Snippet,
    StageBand,
    Stretch,
    StretchState,
    Table,
)
from efprof.model.finding import (
    Applicability,
    AuditResult,
    AuditStatus,
    Category,
    Change,
    CodeEdit,
    ConfigurationValue,
    EnvironmentVariable,
    Examination,
    Finding,
    Fix,
    Gain,
    Severity,
    SourceLine,
)
from efprof.model.report import (
    Evaluation,
    Measurements,
    MemorySample,
    Metric,
    Overhead,
    Report,
    RunError,
    RunIdentity,
    StageDelta,
    StallLine,
    StepSample,
    Timeline,
)
from efprof.model.stages import BOUNDARIES, STAGES
