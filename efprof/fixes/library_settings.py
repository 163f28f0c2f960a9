"""Settings of well-known libraries that end calls which make a step wait, and advice for all other libraries."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from efprof.model import Fix, frozen_dataclass


class Setting(NamedTuple):
    """What ends calls of this kind, `call` in their name, of a function, or of another at most `depth` below it."""

    function: str
    call: str
    advice: str
    depth: int = 1


@frozen_dataclass
class LibrarySettings:
    """Those of a library, by its packages; `checked` says in which source each function was read."""

    packages: tuple[str, ...]
    checked: str
    settings: tuple[Setting, ...]


NO_FILTER = "Set `logging_nan_inf_filter=False` in `TrainingArguments`: a loss of NaN is then logged as it is."
NOT_SYNCHRONIZED = "Set `timers.throughput.synchronized` to false in DeepSpeed's configuration."
OF_LIBRARIES = (
    LibrarySettings(
        packages=("transformers",),
        checked="transformers 4.57.1 and 5.24.0",
        settings=(
            Setting("Trainer._run_epoch", "bool", NO_FILTER, depth=0),
            Setting("Trainer._inner_training_loop", "bool", NO_FILTER, depth=0),
            Setting(
                "Trainer.training_step",
                "empty_cache",
                "Set `torch_empty_cache_steps=None` in `TrainingArguments`.",
            ),
            Setting(
                "Trainer._maybe_log_save_evaluate",
                "item",
                "Set a larger `logging_steps` in `TrainingArguments`.",
                depth=0,
            ),
            Setting(
                "Trainer._track_num_input_tokens",
                "item",
                'Set `include_num_input_tokens_seen="no"` in `TrainingArguments`.',
            ),
        ),
    ),
    LibrarySettings(
        packages=("lightning", "pytorch_lightning"),
        checked="lightning 2.6.6",
        settings=(
            Setting(
                "_ResultCollection.metrics",
                "item",
                "Log without `prog_bar=True`: such metrics are read after each batch, with or without a bar.",
                depth=4,
            ),
            Setting("_LoggerConnector.log_metrics", "item", "Set a larger `log_every_n_steps` of `Trainer`.", depth=4),
            Setting("ThroughputMonitor._update", "synchronize", "Take `ThroughputMonitor` out of the callbacks."),
            Setting("Trainer._run_stage", "anomaly detection", "Set `detect_anomaly=False` of `Trainer`."),
        ),
    ),
    LibrarySettings(
        packages=("torchmetrics",),
        checked="torchmetrics 1.9.0",
        settings=(
            Setting(
                "BaseAggregator._cast_and_nan_check_input",
                "bool",
                'Give the metric `nan_strategy="disable"`: it then does not look for NaN in each update.',
            ),
        ),
    ),
    LibrarySettings(
        packages=("deepspeed",),
        checked="deepspeed 0.19.8",
        settings=(
            Setting("ThroughputTimer.start", "synchronize", NOT_SYNCHRONIZED),
            Setting("ThroughputTimer.stop", "synchronize", NOT_SYNCHRONIZED),
            Setting(
                "CudaEventTimer.get_elapsed_msec",
                "synchronize",
                "Set `wall_clock_breakdown` to false in DeepSpeed's configuration.",
            ),
            Setting(
                "DeepSpeedZeroOptimizer.has_overflow",
                "item",
                "With bf16, set `bf16.check_grad_overflow` to false in DeepSpeed's configuration; fp16 needs it.",
            ),
        ),
    ),
    LibrarySettings(
        packages=("torch",),
        checked="torch 2.13.0",
        settings=(
            Setting(
                "_unshard",
                "synchronize",
                "Where memory allows, pass `limit_all_gathers=False` to `FullyShardedDataParallel`.",
            ),
            Setting(
                "GradScaler.get_scale",
                "item",
                "Ask for the scale less often: `get_scale()` reads it from the device. bfloat16 needs no scaler.",
            ),
            Setting(
                "_get_value",
                "item",
                "Keep the optimizer's counts of steps (`state['step']`) on the CPU, or pass `fused=True` to it.",
            ),
        ),
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
    above = "".join(f" below `{frame.split(':', 2)[2]}`" for frame in library[1:2])
    frame, advice = next(_known(library, call), (library[0], ""))
    file, line, function = frame.split(":", 2)
    package = file.partition("/")[0]
    by_hand = (
        f"`{function}` of {package} makes the call{above}: look for its setting, or reach it less often from here."
    )
    callers = (other.partition("/")[0] for other in library[library.index(frame) :])
    asking = next((f" for {other}" for other in callers if other != package), "")
    return LibraryCall(
        at=f", in {file}:{line}",
        function=function,
        by=f" by `{function}` of {package}{asking}",
        fix=Fix.by_hand(advice or by_hand),
    )


def _known(library: Sequence[str], call: str) -> Iterator[tuple[str, str]]:
    """Each frame that a setting is of, and what to do; a trace has a method's name without its class."""
    for depth, frame in enumerate(library):
        package, (_, _, function) = frame.partition("/")[0], frame.split(":", 2)
        for own in (one for one in OF_LIBRARIES if package in one.packages):
            for setting in own.settings:
                is_of = f".{setting.function}".endswith(f".{function}") and depth <= setting.depth
                if is_of and setting.call in call:
                    yield frame, f"{setting.advice} This was checked with {own.checked}."
