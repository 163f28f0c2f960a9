"""What programs do with torch gives the same in each state of the recorder, and the recorder leaves nothing behind."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from efprof.recorder.hooks.torch_versions import version_of
from tests.recorder.conftest import Begin
from tests.recorder.hooks.user_calls import LOADERS, SWAPS

SCRIPT = "from tests.recorder.hooks.conformance import {main}\n{main}('result.json')\n"

WHILE_RECORDING = (
    "in a full step", "while calls are counted", "in a window", "after a window", "in a watch", "in a light step"
)  # fmt: skip
AFTERWARDS = ("after the end", "after the end of light steps")

ANOTHER_LINE = frozenset(
    {
        "made of 0-d tensors that require a gradient", "made of parameters without a dimension",
        "autograd.backward by an old name", "autograd.backward by both names", "hooks of all modules",
        "a traced function",
    }
)  # fmt: skip
"""Torch warns, and the warning's line is that of our function around the one that warns: it is on the stack."""

IS_PYTHONS = frozenset({"functions are functions", "annotations", "type hints"})
"""gc.collect is a function of Python's as long as the recorder counts its calls, and has annotations."""

BY_PROFILER = frozenset({"a function mode around a step"})
"""In a window torch's own profiler reads the gradients of each module's parameters, which a mode sees."""

BY_TRACER = frozenset({"converted: item with an argument"})
"""Python 3.11 calls a method another way while there is a tracer or a profile function, and names another class."""

OF_A_TYPE = frozenset({"compiled methods of operators"})
"""In a window the compiler breaks its graph at `torch.Tensor.__mul__(it, 2)`; the results are the same."""

CAPTURE_END = "capture_end_pre" if hasattr(torch.cuda.CUDAGraph, "capture_end_pre") else "capture_end"
"""What ends a capture; the first since torch 2.14."""

SET = {
    "gc": ("collect",),
    "logging.Logger": ("addHandler",),
    "logging.StreamHandler": ("emit",),
    "sys": ("exit",),
    "multiprocessing.process.BaseProcess": ("run",),
    "torch": ("compile", "set_num_threads"),
    "torch.Tensor": ("__bool__", "__float__", "__index__", "__int__", "cpu", "item", "nonzero", "tolist"),
    "torch._dynamo.eval_frame.OptimizedModule": ("__call__",),
    "torch._tensor_str": ("_str",),
    "torch.accelerator": ("empty_cache", "reset_peak_memory_stats", "synchronize"),
    "torch.accelerator.memory": ("empty_cache", "reset_peak_memory_stats"),
    "torch.amp.grad_scaler.GradScaler": ("__init__", "__setstate__"),
    "torch.autograd": ("backward", "grad"),
    "torch.cuda": ("empty_cache", "reset_peak_memory_stats", "synchronize"),
    "torch.cuda.graphs.CUDAGraph": ("capture_begin", CAPTURE_END, "replay"),
    "torch.cuda.memory": ("empty_cache", "reset_peak_memory_stats"),
    "torch.cuda.streams.Event": ("synchronize",),
    "torch.cuda.streams.Stream": ("synchronize",),
    "torch.nn.modules.module.Module": ("eval",),
    "torch.nn.utils": ("clip_grad_norm_", "clip_grad_value_"),
    "torch.nn.utils.clip_grad": ("clip_grad_norm_", "clip_grad_value_"),
    "torch.optim.lr_scheduler.ChainedScheduler": ("step",),
    "torch.optim.lr_scheduler.CosineAnnealingWarmRestarts": ("step",),
    "torch.optim.lr_scheduler.LRScheduler": ("__init__", "_update_lr"),
    "torch.optim.lr_scheduler.ReduceLROnPlateau": ("step",),
    "torch.optim.lr_scheduler.SequentialLR": ("step",),
    "torch.optim.optimizer.Optimizer": ("__del__", "__init__", "load_state_dict"),
    "torch.utils.data._utils.worker": ("_worker_loop",),
    "torch.utils.data.dataloader.DataLoader": ("__init__", "__iter__"),
    "torch.utils.data.dataloader._BaseDataLoaderIter": ("__next__",),
    "torch.utils.data.dataloader._MultiProcessingDataLoaderIter": ("_shutdown_workers",),
    "torch.autograd.anomaly_mode.detect_anomaly": ("__init__",),
    "torch.autograd.anomaly_mode.set_detect_anomaly": ("__init__",),
    "torch.autograd.profiler.profile": ("__init__",),
    "torch.profiler.profiler.profile": ("__init__",),
}
"""All that the recorder puts into others' modules and types, to be reviewed with each that comes."""

END_OF_LIFE = ": tp_finalize filled"
"""By `Optimizer.__del__`, of optimizers alone: C code calls it, and tells no kind of thing by it."""

SET_WITH_WINDOWS = {"torch.utils": ("swap_tensors",)}

SET_WITH_SCALERS = {"torch.amp.grad_scaler.GradScaler": ("scale", "step", "unscale_", "update")}
"""Once the program has one."""

OPERATORS = {
    "torch.Tensor": (
        *(f"__{name}__" for name in ("abs", "add", "and", "eq", "floordiv", "ge", "gt", "iadd", "iand", "ifloordiv",
          "ilshift", "imod", "imul", "invert", "ior", "ipow", "irshift", "isub", "itruediv", "ixor", "le", "lshift",
          "lt", "matmul", "mod", "mul", "ne", "neg", "or", "pos", "pow", "radd", "rand", "rfloordiv", "rlshift",
          "rmatmul", "rmod", "rmul", "ror", "rpow", "rrshift", "rshift", "rsub", "rtruediv", "rxor", "sub",
          "truediv", "xor")),
    )
}  # fmt: skip
"""In a window."""

TABLES = frozenset(
    {
        "gc.callbacks", "torch.jit._builtins._builtin_table", "torch.optim.optimizer._global_optimizer_post_hooks",
        "torch.optim.optimizer._global_optimizer_pre_hooks", "torch.nn.modules.module._global_forward_hooks",
        "torch.nn.modules.module._global_forward_hooks_always_called",
        "torch.nn.modules.module._global_forward_pre_hooks", "torch.cuda._queued_calls",
    }
)  # fmt: skip
"""In which it has an entry."""

GLOBALS = frozenset({
    "collector", "environment", "signals", "tracer", "profile function", "modes", "monitoring tools", "threads",
    "switch interval",
})  # fmt: skip
"""The garbage collector's callbacks, KINETO_LOG_LEVEL, SIGTERM; in a watch the tracer, in a window the profiler; the
thread that samples the training, and the interval while it does."""

OF_PYTHON = ("re.", "sys.", "platform.", "pkgutil.", "tempfile.", "msgspec.", "linecache.")
"""Caches of theirs, which fill with use."""


@dataclass
class Found:
    """What the process wrote."""

    num_calls: int
    differences: dict[str, dict[str, list[str]]]
    changes: dict[str, dict[str, list[str]]]
    outside: dict[str, list[str]]
    stopped: list[str]
    held: list[str]


@pytest.fixture(scope="module")
def once() -> list[Found]:
    return []


def read(begin_unrecorded: Begin, tmp_path: Path, main: str) -> Found:
    child = begin_unrecorded(SCRIPT.format(main=main), tmp_path)
    assert child.wait() == 0, child.errors[-2000:]
    return Found(**json.loads((tmp_path / "result.json").read_text()))


@pytest.fixture
def found(once: list[Found], begin_unrecorded: Begin, tmp_path: Path) -> Found:
    """Of one process for all tests; where it failed, they all do at once."""
    if not once:
        once.append(Found(0, {}, {}, {}, ["the calls could not be made"], []))
        once[0] = read(begin_unrecorded, tmp_path, "main")
    return once[0]


def without_lines(text: str) -> str:
    return re.sub(r"Warning at \S+:\d+:", "Warning:", text)


def unexpected(differences: dict[str, list[str]], accepted: frozenset[str]) -> dict[str, list[str]]:
    """Those that are not accepted, of which a warning may have another line alone; each from where the two part."""
    found = {}
    for name, (bare, seen) in differences.items():
        is_line_alone = name in ANOTHER_LINE and without_lines(bare) == without_lines(seen)
        if not is_line_alone and name not in accepted:
            place = next((at for at, pair in enumerate(zip(bare, seen, strict=False)) if pair[0] != pair[1]), 0)
            found[name] = [text[max(0, place - 60) : place + 300] for text in (bare, seen)]
    return found


def names(*tables: dict[str, tuple[str, ...]]) -> set[str]:
    return {f"{owner}.{name}" for table in tables for owner, all_ in table.items() for name in all_}


def of_torch(changed: list[str]) -> set[str]:
    """Without caches of Python's."""
    return {one for one in changed if not one.startswith(OF_PYTHON) or one in names(SET)}


def test_all_calls_are_the_same_each_time_without_the_recorder(found: Found) -> None:
    assert found.num_calls > 700
    assert found.differences["bare again"] == {}


@pytest.mark.parametrize("where", WHILE_RECORDING)
def test_calls_give_the_same_while_the_recorder_is_there(where: str, found: Found) -> None:
    accepted = IS_PYTHONS
    if where == "in a window":
        accepted |= BY_PROFILER
    if where in ("while calls are counted", "in a window", "in a watch"):
        accepted |= BY_TRACER
    assert unexpected(found.differences[where], accepted) == {}


@pytest.mark.parametrize("where", AFTERWARDS)
def test_calls_give_the_same_after_a_recording(where: str, found: Found) -> None:
    assert found.differences[where] == {}


@pytest.mark.parametrize("where", [*WHILE_RECORDING, *AFTERWARDS])
def test_what_is_taken_in_one_state_works_after_the_end(where: str, found: Found) -> None:
    assert found.differences[f"taken {where}"] == {}


def test_each_call_is_made_in_the_state_that_it_is_to_be_made_in(found: Found) -> None:
    for where, calls in found.outside.items():
        assert set(calls) <= {*SWAPS, *LOADERS}, where
    assert len(found.outside["in a window"]) < len({*SWAPS, *LOADERS})


def test_no_collector_stops(found: Found) -> None:
    """But for the window that a call ends."""
    assert [one for one in found.stopped if "exchanged tensors" not in one] == []


@pytest.mark.parametrize("where", WHILE_RECORDING)
def test_attributes_that_the_recorder_sets_are_those_reviewed(where: str, found: Found) -> None:
    expected = names(SET)
    if where != "in a light step":
        expected |= names(SET_WITH_WINDOWS)
    if where not in ("in a full step", "in a light step"):
        expected |= names(SET_WITH_SCALERS)
    if where == "in a window":
        expected |= {*names(OPERATORS), "torch.autograd.profiler._is_profiler_enabled"}  # the latter sets torch itself
    changes = found.changes[where]
    assert of_torch(changes["attributes"]) == expected
    by_torch = {"posix.environ"} if version_of(torch) < (2, 13) else set()  # older ones name inductor's cache later
    assert of_torch(changes["contents"]) - by_torch <= TABLES
    assert set(changes["globals"]) <= GLOBALS


@pytest.mark.parametrize("where", WHILE_RECORDING)
def test_c_code_takes_no_type_for_another_kind_of_thing_while_attributes_are_set(where: str, found: Found) -> None:
    assert found.changes[where]["checks"] == []
    slots = [one for one in found.changes[where]["slots"] if one.endswith(("filled", "emptied"))]
    assert [one for one in slots if not one.endswith(END_OF_LIFE)] == []


@pytest.mark.parametrize("where", AFTERWARDS)
def test_after_the_end_all_attributes_slots_and_global_state_are_as_before(where: str, found: Found) -> None:
    changes = found.changes[where]
    assert of_torch(changes["attributes"]) == set()
    assert of_torch(changes["contents"]) == set()
    assert changes["slots"] == changes["checks"] == changes["globals"] == []


def test_no_table_of_others_holds_a_function_of_the_recorder_after_the_end(found: Found) -> None:
    assert found.held == []


@pytest.mark.long
def test_compiled_code_gives_the_same(begin_unrecorded: Begin, tmp_path: Path) -> None:
    found = read(begin_unrecorded, tmp_path, "main_compiled")
    in_window = found.differences.pop("in a window")
    assert unexpected(in_window, OF_A_TYPE) == {}
    assert {where: made for where, made in found.differences.items() if made} == {}
    assert found.stopped == found.held == []
