"""Settings of well-known libraries that end calls which make a step wait, and advice for all other libraries."""

from collections.abc import Iterator, Sequence

from efprof.model import Fix, frozen_dataclass


@frozen_dataclass
class LibrarySetting:
    """What ends a call that a package's `functions` make or lead to; `checked` is the version it was seen in.

    `call` is part of the call's name, since the function may make others.
    """

    packages: tuple[str, ...]
    functions: tuple[str, ...]
    call: str
    advice: str
    checked: str


TRANSFORMERS, DEEPSPEED = ("transformers",), ("deepspeed",)
LIGHTNING = ("lightning", "pytorch_lightning")
IN_TRANSFORMERS, IN_LIGHTNING, IN_DEEPSPEED = "transformers 4.57.1 and 5.24.0", "lightning 2.6.6", "deepspeed 0.19.8"

SETTINGS = (
    LibrarySetting(
        packages=TRANSFORMERS,
        functions=("Trainer._run_epoch", "Trainer._inner_training_loop"),
        call="bool",
        advice="Set `logging_nan_inf_filter=False` in `TrainingArguments`: a loss of NaN is then logged as it is.",
        checked=IN_TRANSFORMERS,
    ),
    LibrarySetting(
        packages=TRANSFORMERS,
        functions=("Trainer.training_step",),
        call="empty_cache",
        advice="Set `torch_empty_cache_steps=None` in `TrainingArguments`.",
        checked=IN_TRANSFORMERS,
    ),
    LibrarySetting(
        packages=TRANSFORMERS,
        functions=("Trainer._maybe_log_save_evaluate",),
        call="item",
        advice="Set a larger `logging_steps` in `TrainingArguments`.",
        checked=IN_TRANSFORMERS,
    ),
    LibrarySetting(
        packages=TRANSFORMERS,
        functions=("Trainer._track_num_input_tokens",),
        call="item",
        advice='Set `include_num_input_tokens_seen="no"` in `TrainingArguments`.',
        checked="transformers 5.24.0",
    ),
    LibrarySetting(
        packages=LIGHTNING,
        functions=("_ResultCollection.metrics",),
        call="item",
        advice="Log without `prog_bar=True`: `Trainer` reads such metrics after each batch, with or without a bar.",
        checked=IN_LIGHTNING,
    ),
    LibrarySetting(
        packages=LIGHTNING,
        functions=("_LoggerConnector.log_metrics",),
        call="item",
        advice="Set a larger `log_every_n_steps` of `Trainer`.",
        checked=IN_LIGHTNING,
    ),
    LibrarySetting(
        packages=LIGHTNING,
        functions=("ThroughputMonitor._update",),
        call="synchronize",
        advice="Take `ThroughputMonitor` out of the callbacks of `Trainer`.",
        checked=IN_LIGHTNING,
    ),
    LibrarySetting(
        packages=LIGHTNING,
        functions=("Trainer._run_stage",),
        call="anomaly detection",
        advice="Set `detect_anomaly=False` of `Trainer`.",
        checked=IN_LIGHTNING,
    ),
    LibrarySetting(
        packages=DEEPSPEED,
        functions=("ThroughputTimer.start", "ThroughputTimer.stop"),
        call="synchronize",
        advice="Set `timers.throughput.synchronized` to false in DeepSpeed's configuration.",
        checked=IN_DEEPSPEED,
    ),
    LibrarySetting(
        packages=DEEPSPEED,
        functions=("CudaEventTimer.get_elapsed_msec",),
        call="synchronize",
        advice="Set `wall_clock_breakdown` to false in DeepSpeed's configuration.",
        checked=IN_DEEPSPEED,
    ),
    LibrarySetting(
        packages=DEEPSPEED,
        functions=("DeepSpeedZeroOptimizer.has_overflow",),
        call="item",
        advice="With bf16, set `bf16.check_grad_overflow` to false in DeepSpeed's configuration; fp16 needs the check.",
        checked=IN_DEEPSPEED,
    ),
    LibrarySetting(
        packages=("torch",),
        functions=("_unshard",),
        call="synchronize",
        advice="Where memory allows, pass `limit_all_gathers=False` to `FullyShardedDataParallel`.",
        checked="torch 2.13.0",
    ),
)


@frozen_dataclass
class LibraryCall:
    """The function of a library to name, `at` its line and `by` whom in words, and what ends its call.

    All is empty, and `fix` None, where the user's own line makes the call.
    """

    at: str = ""
    function: str = ""
    by: str = ""
    fix: Fix | None = None


def library_call(library: Sequence[str], call: str) -> LibraryCall:
    """What to say of a call by these frames, `package/file.py:line:function`, the innermost first.

    The frame that a known setting is of is named, else the innermost.
    """
    if not library:
        return LibraryCall()
    frame, setting = next(_known(library, call), (library[0], None))
    file, line, function = frame.split(":", 2)
    package = file.partition("/")[0]
    above = "".join(f" below `{one.split(':', 2)[2]}`" for one in library[1:2])
    advice = f"`{function}` of {package} makes the call{above}: look for its setting, or reach it less often from here."
    if setting:
        advice = f"{setting.advice} This was checked with {setting.checked}."
    return LibraryCall(
        at=f", in {file}:{line}", function=function, by=f" by `{function}` of {package}", fix=Fix.by_hand(advice)
    )


def _known(library: Sequence[str], call: str) -> Iterator[tuple[str, LibrarySetting]]:
    """A frame of a trace has the function's name without that of its class."""
    for frame in library:
        package, (_, _, function) = frame.partition("/")[0], frame.split(":", 2)
        for setting in SETTINGS:
            is_its = any(f".{one}".endswith(f".{function}") for one in setting.functions)
            if package in setting.packages and is_its and setting.call in call:
                yield frame, setting
