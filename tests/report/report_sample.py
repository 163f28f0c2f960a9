"""A synthetic report with everything a page must cope with: all evidence, broken numbers, hostile strings."""

import dataclasses
import math

from efprof.model import (
    BOUNDARIES,
    Alternative,
    Alternatives,
    AuditResult,
    Bar,
    CodeEdit,
    Comparison,
    ConfigurationValue,
    EnvironmentVariable,
    Finding,
    FindingChange,
    Fix,
    Gain,
    Measurements,
    MemoryMap,
    MemorySample,
    Metric,
    MetricChange,
    Narrative,
    Number,
    Numbers,
    Overhead,
    Report,
    RunIdentity,
    SegmentMap,
    SegmentRow,
    SegmentView,
    Series,
    SeriesLine,
    Snippet,
    SourceLine,
    StageBand,
    StageDelta,
    StepSample,
    Stretch,
    Table,
    Timeline,
)

MIB = 1024**2
NUM_STEPS = 64
HOSTILE = '<script>alert("1")</script> & \'quotes\' "double" </textarea>{{ 7 * 7 }} $x^2$ \x1b[31mred'
LONG_PATH = "/".join(["a_very_long_folder_name_without_any_spaces"] * 8) + "/train.py"


def make_run(**changes: object) -> RunIdentity:
    """The identity of the sample run."""
    fields: dict[str, object] = {
        "run_id": "20260301T101500-train-a1b2c3",
        "path": f"/home/someone/{LONG_PATH}/.efprof/runs/20260301T101500-train-a1b2c3",
        "name": "train.py",
        "command": ("python", "train.py", "--epochs", "1", "--note", HOSTILE),
        "started": "2026-03-01 10:15:00 UTC",
        "duration_s": 93.4,
        "ended": "finished",
        "exit_code": 0,
        "branch": "main",
        "commit": "3f2c1abd0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b",
        "is_dirty": True,
        "devices": ("NVIDIA H200",),
        "num_ranks": 1,
        "num_steps": NUM_STEPS,
        "environment": (("torch", "2.13.0"), ("python", "3.11.9"), ("PYTORCH_CUDA_ALLOC_CONF", HOSTILE)),
        "configuration": (("batch_size", "64"), ("num_workers", "0"), ("hostile", HOSTILE)),
    }
    return RunIdentity(**(fields | changes))  # type: ignore[arg-type]


def make_steps(num_steps: int = NUM_STEPS) -> tuple[StepSample, ...]:
    """Steps of about 36 ms: the first one long, four in a window, one slow, the loss not finite near the end."""
    return tuple(_step(number, num_steps) for number in range(num_steps))


def make_memory(num_steps: int = NUM_STEPS) -> tuple[MemorySample, ...]:
    """A staircase of 61 MiB per step with the hill of each step on it."""
    hills = (0, 900, 910, 500, 430)
    return tuple(
        MemorySample(
            step=step,
            boundary=boundary,
            at_s=step * 0.036 + place * 0.007,
            allocated_bytes=(1200 + 61 * step + hill) * MIB,
            reserved_bytes=(2400 + 61 * step + 200 * (step // 20)) * MIB,
        )
        for step in range(num_steps)
        for place, (boundary, hill) in enumerate(zip(BOUNDARIES, hills, strict=True))
    )


def make_measurements(num_steps: int = NUM_STEPS) -> Measurements:
    """Timeline, metrics, stage deltas and the recorder's own cost."""
    steps, memory = make_steps(num_steps), make_memory(num_steps)
    return Measurements(
        metrics=(
            Metric(
                name="step_ms",
                label="step time",
                unit="ms",
                samples=tuple(s.total_ms for s in steps if not s.is_in_window),
                budget=0.05,
            ),
            Metric(name="peak_allocated_bytes", label="peak memory", unit="bytes", samples=_peaks(memory), budget=0.02),
            Metric(name="loss_breaks", label="broken losses", unit="count", samples=(math.nan, 1.0)),
        ),
        timeline=Timeline(steps=steps, memory=memory, windows=((10, 12, "profiler"), (40, 41, f"memory {HOSTILE}"))),
        stage_deltas=tuple(_stage_delta(place, boundary) for place, boundary in enumerate(BOUNDARIES)),
        overhead=Overhead(
            step_ms=0.14,
            share=0.004,
            window_s=1.9,
            num_windows=2,
            num_full_steps=30,
            num_steps=64,
            allowance_s=3.0,
            allowed_share=0.01,
        ),
        memory_source="the CUDA allocator",
        run_time=(("usual steps", 6.2), ("long steps", 1.79), ("other", 0.01), ("recorder", 0.0)),
        num_skipped_steps=2,
        window_memory=make_window_memory(),
        recommendations=(
            "The forward pass allocates 900 MiB per step: checkpoint the encoder's blocks.",
            f"Largest jump at step 63. {HOSTILE}",
        ),
    )


def make_window_memory(num_micro_batches: int = 2) -> Series:
    """A step of several micro-batches of 10 ms, whose activations come and go."""
    x = tuple(float(at) for at in range(10 * num_micro_batches + 3))
    y = tuple(float(MIB * 100 * min(at % 10, 10 - at % 10)) for at in range(len(x)))
    notes = tuple(f"{LONG_PATH}:{place} has 1.50 MiB of it" for place in range(len(x)))
    return Series(
        title="Memory by what it is for, in step 40",
        x_label="time in the step",
        x_unit="ms",
        y_label="alive",
        y_unit="bytes",
        lines=(
            SeriesLine(
                label="held before", x=x, y=tuple(800.0 * MIB for _ in x), notes=tuple("" for _ in x), stage="other"
            ),
            SeriesLine(label="activations", x=x, y=y, notes=notes, stage="forward"),
            SeriesLine(label="work space", x=x, y=y, notes=tuple(HOSTILE for _ in x)),
        ),
        is_stacked=True,
        is_stepped=True,
        bands=(
            *(
                StageBand(start=10.0 * number + start, end=10.0 * number + start + 5, stage=stage)
                for number in range(num_micro_batches)
                for start, stage in ((0, "forward"), (5, "backward"))
            ),
            StageBand(start=10.0 * num_micro_batches, end=x[-1], stage="optimizer"),
        ),
    )


def make_report(**changes: object) -> Report:
    """Three findings, and audits that passed, did not apply and broke."""
    fields: dict[str, object] = {
        "run": make_run(),
        "measurements": make_measurements(),
        "audits": (
            AuditResult(audit_id="nonfinite_loss", status="failed", reason="64 losses", findings=(numbers_finding(),)),
            AuditResult(
                audit_id="blocking_scalar_read", status="failed", reason="1 window", findings=(time_finding(),)
            ),
            AuditResult(audit_id="memory_growth", status="failed", reason="64 steps", findings=(memory_finding(),)),
            AuditResult(audit_id="step_slowdown", status="passed", reason="The last 20 steps are no slower."),
            AuditResult(audit_id="input_stall", status="passed", reason="64 steps waited 0.2 ms for data."),
            AuditResult(
                audit_id="backward_peak",
                status="not_applicable",
                reason="allocations-<n>.parquet is missing; record the run without '--windows none'.",
            ),
            AuditResult(audit_id="broken_audit", status="errored", reason=f"KeyError: {HOSTILE}"),
        ),
        "warnings": ("steps.jsonl ended in a torn line, which was dropped.", HOSTILE),
    }
    return Report(**(fields | changes))  # type: ignore[arg-type]


def make_clean_report() -> Report:
    """The same run with every audit passed."""
    audits = tuple(
        AuditResult(audit_id=name, status="passed", reason="64 steps looked at.")
        for name in ("memory_growth", "blocking_scalar_read", "nonfinite_loss")
    )
    return make_report(audits=audits, warnings=())


def read_until(report: Report, last_step: int) -> Report:
    """The same where memory was read no more after that step."""
    timeline = report.measurements.timeline
    early = dataclasses.replace(timeline, memory=tuple(one for one in timeline.memory if one.step <= last_step))
    return dataclasses.replace(report, measurements=dataclasses.replace(report.measurements, timeline=early))


def memory_finding() -> Finding:
    """The leak of the trainer's history, with a series, a memory map, a snippet and a narrative."""
    staircase = SeriesLine(
        label="allocated at pre_forward",
        x=tuple(map(float, range(NUM_STEPS))),
        y=tuple(float((1200 + 61 * step) * MIB) for step in range(NUM_STEPS)),
        is_highlighted=True,
    )
    flat = SeriesLine(label="without the kept graphs", x=staircase.x, y=tuple(1200.0 * MIB for _ in staircase.x))
    return Finding(
        blame=SourceLine(file="train.py", line=88, function="train_epoch", text="history.append(loss)"),
        category="memory",
        headline="Losses are kept with their graphs",
        message="Memory grows 61.0 MiB per step. The 141 GiB of the device last about 1.4 minutes at this rate.",
        why="`history` keeps each loss, and each loss keeps the graph that made it.",
        fix=Fix(
            summary="Keep the number instead of the tensor.",
            applicability="safe",
            changes=(
                CodeEdit(
                    file="train.py",
                    line=88,
                    old="        history.append(loss)\n",
                    new="        history.append(loss.item())\n",
                ),
            ),
        ),
        gain=Gain(
            basis="replay",
            explanation="Replaying the allocations without the kept graphs ends at 2.05 GiB.",
            peak_bytes=3843 * MIB,
            peak_bytes_interval=(3600.0 * MIB, 3900.0 * MIB),
        ),
        evidence=(
            Snippet(
                title="Where it is kept",
                file="train.py",
                first_line=85,
                lines=(
                    "        loss = model(batch)",
                    "        loss.backward()",
                    "        optimizer.step()",
                    "        history.append(loss)",
                    "        # </script><b>bold</b> & a very long comment " + "x" * 160,
                ),
                highlighted=88,
            ),
            Series(
                title="Memory left over after each step",
                y_label="allocated",
                y_unit="bytes",
                lines=(staircase, flat),
                marks=((37.0, "epoch 2"),),
            ),
            MemoryMap(
                title="What holds memory at the peak",
                bars=(
                    Bar(label="train_epoch.history[0..63] -> grad_fn", num_bytes=3843 * MIB, is_highlighted=True),
                    Bar(label="EnergyTrainer.model parameters", num_bytes=820 * MIB),
                    Bar(label=f"optimizer state {HOSTILE}", num_bytes=380 * MIB),
                ),
            ),
            Alternatives(
                title="Peak under other settings",
                unit="bytes",
                alternatives=(
                    Alternative(
                        label="torch's default", value=6e9, low=6e9, high=6e9, role="recorded", is_out_of_memory=True
                    ),
                    Alternative(label=f"expandable {HOSTILE}", value=4e9, low=3.8e9, high=5e9, role="best"),
                ),
                limit=(6.1e9, f"the device {HOSTILE}"),
            ),
            make_segment_map(),
            Table.of(
                "Who keeps the surviving tensors",
                {"Holder": "", "Tensors": "count", "Bytes": "bytes"},
                [("train_epoch.history[0..63]", 214.0, 3843.0 * MIB), (HOSTILE, 3.0, math.nan)],
            ),
            Narrative(
                title="What it means",
                paragraphs=(
                    "Every loss keeps the graph that made it, and the graph keeps the activations.",
                    "It is wrong where a later backward pass needs the kept graphs.",
                ),
            ),
        ),
        severity="high",
    )


def make_segment_map(num_blocks: int = 30, num_segments: int = 4) -> SegmentMap:
    """Blocks of 1 MiB with all that may lie between them, at two instants; the second has one segment less."""
    pieces = (
        Stretch(state="used", num_bytes=MIB, owner=0),
        Stretch(state="slack", num_bytes=MIB // 4, owner=0),
        Stretch(state="used", num_bytes=MIB, owner=1, is_mixed=True),
        Stretch(state="pending", num_bytes=MIB // 2, owner=1),
        Stretch(state="stranded", num_bytes=MIB),
        Stretch(state="releasable", num_bytes=MIB // 4),
    )
    stretches = tuple(pieces[number % len(pieces)] for number in range(num_blocks))
    num_bytes = sum(one.num_bytes for one in stretches)
    row = SegmentRow(label=f"segment {HOSTILE}", num_bytes=num_bytes, stretches=stretches)
    return SegmentMap(
        title=f"Where it lies {HOSTILE}",
        line_bytes=max(1, num_bytes * 2 // 3),
        owners=("train.py:88", HOSTILE, LONG_PATH),
        views=tuple(
            SegmentView(label=label, rows=(row,) * number, totals=(("used", number * num_bytes),))
            for label, number in (("at the peak", num_segments), (f"at the end {HOSTILE}", num_segments - 1))
        ),
        highlighted=0,
    )


def time_finding() -> Finding:
    """A blocking read, with intervals, numbers and a hostile path."""
    return Finding(
        blame=SourceLine(file=LONG_PATH, line=102, function="log_step", text=f"print(loss.item())  # {HOSTILE}"),
        category="time",
        headline="The step waits for a scalar",
        message="`loss.item()` makes the CPU wait 11.4 ms in every step until the GPU has finished.",
        why="`item()` needs the number that the last kernel of the step writes.",
        fix=Fix(
            summary="Log every 50 steps, and load the next batch ahead.",
            applicability="review",
            changes=(
                ConfigurationValue(name="log_every", old="1", new="50", file="energy.toml"),
                EnvironmentVariable(name="OMP_NUM_THREADS", old=None, new="8"),
            ),
        ),
        gain=Gain(
            basis="measured bound",
            explanation="The waits of the profiled steps add up to this; overlapping work may take some of it back.",
            step_ms=11.4,
            step_ms_interval=(10.1, 12.2),
        ),
        evidence=(
            Series(
                title="Wait per step",
                y_label="wait",
                y_unit="ms",
                lines=(
                    SeriesLine(label="item", x=(10.0, 11.0, 12.0), y=(11.0, 11.4, 12.1), is_highlighted=True),
                    SeriesLine(label=f"_nonzero {HOSTILE}", x=(10.0, 11.0, 12.0), y=(1.0, math.inf, 0.8)),
                ),
                is_stacked=True,
            ),
            Series(
                title="Reads per step",
                y_label="reads",
                y_unit="count",
                lines=(SeriesLine(label="item", x=(10.0, 11.0, 12.0), y=(3.0, 3.0, 4.0)),),
            ),
            Numbers(
                title="Of the profiled steps",
                numbers=(
                    Number(label="reads per step", value=3.0, unit="count"),
                    Number(label="wait per step", value=11.4, unit="ms", interval=(10.1, 12.2)),
                    Number(label="share of the step", value=31.6, unit="percent"),
                    Number(label="not a number", value=math.nan, unit="count"),
                ),
            ),
            Narrative(title="How we know", paragraphs=(f"cudaStreamSynchronize inside this line. {HOSTILE}",)),
        ),
        severity="high",
    )


def certain_finding() -> Finding:
    """A gain and a number whose intervals are too narrow to be told from their values."""
    finding = time_finding()
    number = Number(label="growth", value=33.0 * MIB, unit="bytes", interval=(33.0 * MIB, 33.001 * MIB))
    gain = Gain(
        basis="replay", explanation="Replayed.", peak_bytes=33 * MIB, peak_bytes_interval=(33.0 * MIB, 33.001 * MIB)
    )
    return dataclasses.replace(finding, gain=gain, evidence=(Numbers(title="Growth", numbers=(number,)),))


def numbers_finding() -> Finding:
    """A loss that is not finite; nothing is claimed and a person must write the fix."""
    return Finding(
        blame=SourceLine(file="energy_flow/core/energy_carrier.py", line=41, function="forward", text="x = x / norm"),
        category="numbers",
        headline="The loss is not finite",
        message="The loss is NaN from step 58; the first Inf comes out of a division by a norm of zero.",
        why="`norm` is zero for a row of zeros.",
        fix=Fix(summary="Clip the gradient norm to 1.0 before the optimizer step.", applicability="manual"),
        gain=Gain(basis="model", explanation="Nothing is saved; the run gets a result at all."),
        evidence=(),
        severity="medium",
    )


def make_comparison() -> Comparison:
    """One metric worse and over its budget, one better, one unclear; findings of all three changes."""
    return Comparison(
        base=make_run(run_id="base-run", branch="main"),
        head=make_run(run_id="head-run", branch="feature/<b>"),
        metrics=(
            make_metric_change(
                name="step_ms",
                label="step time",
                effect=0.124,
                interval=(0.09, 0.15),
                verdict="worse",
                is_over_budget=True,
            ),
            make_metric_change(
                name="peak_allocated_bytes",
                label="peak memory",
                unit="bytes",
                effect=-0.08,
                interval=(-0.1, -0.06),
                verdict="better",
            ),
            make_metric_change(name="loss_breaks", label="broken losses", unit="count", effect=None, verdict="unclear"),
        ),
        findings=(
            _finding_change("added", "memory_growth:train.py::train_epoch::history.append(loss)"),
            _finding_change("gone", "input_stall:train.py::main::for batch in loader:"),
            _finding_change("kept", "nonfinite_loss:" + HOSTILE),
        ),
        differences=("The base ran on 1 x A100, the head on 1 x H200.", HOSTILE),
    )


def make_metric_change(**changes: object) -> MetricChange:
    """A metric of about 36 on both sides."""
    fields: dict[str, object] = {
        "name": "step_ms",
        "label": "step time",
        "unit": "ms",
        "base_median": 36.0,
        "base_spread": 1.2,
        "head_median": 40.5,
        "head_spread": math.nan,
        "effect": 0.0,
        "interval": (-0.09, 0.15),
        "verdict": "same",
        "budget": 0.05,
        "is_over_budget": False,
        "reason": f"60 steps on each side, one run each. {HOSTILE}",
    }
    return MetricChange(**(fields | changes))  # type: ignore[arg-type]


def _step(number: int, num_steps: int) -> StepSample:
    is_in_window = number in (10, 11, 12, 40, 41)
    is_slow = number in (0, 33)
    wobble = 1.5 * math.sin(number * 1.7)
    stages = (1.2, 11.0 + wobble, 16.0 - wobble, 6.0, 1.8)
    factor = 30.0 if number == 0 else 2.4 if is_slow else 1.6 if is_in_window else 1.0
    is_broken = number >= num_steps - 6
    return StepSample(
        step=number,
        started_s=number * 0.036,
        total_ms=sum(stages) * factor,
        stage_ms=tuple(stage * factor for stage in stages),
        is_in_window=is_in_window,
        is_slow=is_slow,
        num_micro_batches=1,
        samples=64,
        loss=math.nan if is_broken else 4.0 * math.exp(-number / 30) + 0.1 * math.sin(number),
        gradient_norm=math.inf if is_broken else 1.0 + number**2 / 600,
        num_gradients=212,
        gradient_bytes=410 * MIB,
        num_nan=12 if is_broken else 0,
        num_inf=3 if is_broken else 0,
        scaler_scale=65536.0 if number < 40 else 32768.0,
    )


def _peaks(memory: tuple[MemorySample, ...]) -> tuple[float, ...]:
    peaks: dict[int, float] = {}
    for sample in memory:
        peaks[sample.step] = max(peaks.get(sample.step, 0.0), float(sample.allocated_bytes))
    return tuple(peaks.values())


def _stage_delta(place: int, boundary: str) -> StageDelta:
    return StageDelta(
        boundary=boundary,
        count=NUM_STEPS,
        average_bytes=(3000.0 + 100 * place) * MIB,
        maximum_bytes=(5000 + 100 * place) * MIB,
        average_delta_bytes=(900.0 if place == 1 else -120.0) * MIB,
        largest_jump_bytes=961 * MIB,
        largest_jump_step=63,
    )


def _finding_change(change: str, key: str) -> FindingChange:
    return FindingChange(
        key=key,
        change=change,  # type: ignore[arg-type]
        audit_id=key.split(":", maxsplit=1)[0],
        headline=f"Something was {change}",
        location="train.py:88",
        message=f"It happens in every step. {HOSTILE}",
    )
