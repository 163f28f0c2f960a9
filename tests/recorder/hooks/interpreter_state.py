"""What a program could find changed: attributes of modules and types, the C slots of types, and global state."""

import copyreg
import ctypes
import gc
import operator
import os
import random
import signal
import sys
import threading
import warnings
from types import ModuleType
from typing import Any

import numpy as np
import torch

OURS = ("efprof", "tests", "__main__")
"""Modules whose own attributes are not looked at."""

POINTER = ctypes.sizeof(ctypes.c_void_p)

SUITES = {
    "tp_as_async": ("am_await", "am_aiter", "am_anext", "am_send"),
    "tp_as_number": (
        "nb_add", "nb_subtract", "nb_multiply", "nb_remainder", "nb_divmod", "nb_power", "nb_negative", "nb_positive",
        "nb_absolute", "nb_bool", "nb_invert", "nb_lshift", "nb_rshift", "nb_and", "nb_xor", "nb_or", "nb_int",
        "nb_reserved", "nb_float", "nb_inplace_add", "nb_inplace_subtract", "nb_inplace_multiply",
        "nb_inplace_remainder", "nb_inplace_power", "nb_inplace_lshift", "nb_inplace_rshift", "nb_inplace_and",
        "nb_inplace_xor", "nb_inplace_or", "nb_floor_divide", "nb_true_divide", "nb_inplace_floor_divide",
        "nb_inplace_true_divide", "nb_index", "nb_matrix_multiply", "nb_inplace_matrix_multiply",
    ),
    "tp_as_sequence": (
        "sq_length", "sq_concat", "sq_repeat", "sq_item", "was_sq_slice", "sq_ass_item", "was_sq_ass_slice",
        "sq_contains", "sq_inplace_concat", "sq_inplace_repeat",
    ),
    "tp_as_mapping": ("mp_length", "mp_subscript", "mp_ass_subscript"),
    "tp_as_buffer": ("bf_getbuffer", "bf_releasebuffer"),
}  # fmt: skip
"""Of Include/cpython/object.h, the same in Python 3.11 to 3.13."""

TYPE_FIELDS = (
    "ob_refcnt", "ob_type", "ob_size", "tp_name", "tp_basicsize", "tp_itemsize", "tp_dealloc", "tp_vectorcall_offset",
    "tp_getattr", "tp_setattr", "tp_as_async", "tp_repr", "tp_as_number", "tp_as_sequence", "tp_as_mapping", "tp_hash",
    "tp_call", "tp_str", "tp_getattro", "tp_setattro", "tp_as_buffer", "tp_flags", "tp_doc", "tp_traverse", "tp_clear",
    "tp_richcompare", "tp_weaklistoffset", "tp_iter", "tp_iternext", "tp_methods", "tp_members", "tp_getset", "tp_base",
    "tp_dict", "tp_descr_get", "tp_descr_set", "tp_dictoffset", "tp_init", "tp_alloc", "tp_new", "tp_free", "tp_is_gc",
    "tp_bases", "tp_mro", "tp_cache", "tp_subclasses", "tp_weaklist", "tp_del", "tp_version_tag", "tp_finalize",
    "tp_vectorcall",
)  # fmt: skip
"""Each as large as a pointer, or padded to it."""

BOOKKEEPING = frozenset({"ob_refcnt", "tp_cache", "tp_subclasses", "tp_weaklist", "tp_version_tag", *SUITES})
"""What Python changes on its own; the suites are looked into instead."""

VERSION_FLAG = 1 << 19
"""Py_TPFLAGS_VALID_VERSION_TAG: whether an attribute was looked up since the type changed."""

CHECKS = ("PySequence_Check", "PyMapping_Check", "PyNumber_Check", "PyIndex_Check", "PyIter_Check", "PyCallable_Check")
"""Of an instance; the functions look at its type alone."""

_MISSING = object()

Attributes = dict[int, tuple[str, dict[str, Any]]]
"""Of each owner, by its identity: its name, and a copy of its attributes."""


class PretendedInstance(ctypes.Structure):
    """As much of an object as a check looks at: no type has to be called for one."""

    _fields_ = (("ob_refcnt", ctypes.c_ssize_t), ("ob_type", ctypes.c_void_p))


def all_modules() -> dict[str, ModuleType]:
    found = list(sys.modules.items())
    return {name: one for name, one in found if isinstance(one, ModuleType) and not name.startswith(OURS)}


def all_types() -> list[type]:
    """Every class that a module names, and every one that programs derive from torch's."""
    named = [one for module in all_modules().values() for one in list(vars(module).values()) if _is_type(one)]
    found = {id(kind): kind for kind in [*named, *derived_types()]}
    return [kind for kind in found.values() if not name_of(kind).startswith("efprof")]


def derived_types() -> list[type]:
    """Those of torch that programs derive classes from, and these."""
    from torch.optim.lr_scheduler import LRScheduler
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    waiting: list[type] = [torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch.utils.data.DataLoader,
                           LRScheduler,
                           _BaseDataLoaderIter, torch.autograd.Function, torch.amp.GradScaler]  # fmt: skip
    found: dict[int, type] = {}
    while waiting:
        kind = waiting.pop()
        if id(kind) not in found:
            found[id(kind)] = kind
            waiting += type.__subclasses__(kind)
    return list(found.values())


def _is_type(one: object) -> bool:
    return issubclass(type(one), type)  # a stand-in for a class would look itself up, and warn


def name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def attributes(modules: dict[str, ModuleType], types: list[type]) -> Attributes:
    """The values themselves, which are kept alive, so that another cannot have the identity of one."""
    found: Attributes = {id(module): (name, dict(vars(module))) for name, module in modules.items()}
    return found | {id(kind): (name_of(kind), dict(vars(kind))) for kind in types}


def contents(modules: dict[str, ModuleType]) -> dict[tuple[str, str], list[Any]]:
    """What is in the tables and lists that modules name: keys and values of dicts, items of lists and sets.

    Not the table of modules itself, by whatever name: any import adds to it.
    """
    found = {}
    for name, module in modules.items():
        for key, one in list(vars(module).items()):
            if one is sys.modules:
                continue
            if issubclass(type(one), dict):
                found[name, key] = [*dict.keys(one), *dict.values(one)]
            elif issubclass(type(one), list | set):
                found[name, key] = list(one)
    return found


def changed_contents(before: dict[tuple[str, str], list[Any]], now: dict[tuple[str, str], list[Any]]) -> list[str]:
    return sorted(
        ".".join(key) for key in before.keys() & now.keys() if sorted(map(id, before[key])) != sorted(map(id, now[key]))
    )


def changed_attributes(before: Attributes, now: Attributes) -> list[str]:
    """Those that are others, are gone, or have come, of what was there before; not modules imported meanwhile."""
    found = []
    for owner, (name, old) in before.items():
        new = now.get(owner, (name, old))[1]
        if len(old) == len(new) and all(map(operator.is_, old.values(), new.values())):
            continue
        keys = [*old, *(key for key in new if key not in old and type(new[key]) is not ModuleType)]
        found += [f"{name}.{key}" for key in keys if old.get(key, _MISSING) is not new.get(key, _MISSING)]
        found += [f"{name}, in another order"] * (not found and list(old) != [key for key in new if key in old])
    return sorted(found)


def slots_of(kind: type) -> list[bytes]:
    """The memory of its slots, and of the suites that it has: as `changed_slots` compares it."""
    address = id(kind)
    fields = ctypes.string_at(address, len(TYPE_FIELDS) * POINTER)
    suites = [_pointer(fields, TYPE_FIELDS.index(suite)) for suite in SUITES]
    return [fields] + [
        ctypes.string_at(suite, len(names) * POINTER) if suite else bytes(len(names) * POINTER)
        for suite, names in zip(suites, SUITES.values(), strict=True)
    ]


def changed_slots(before: list[bytes], now: list[bytes]) -> list[str]:
    """The names of slots that have another function, or one where there was none."""
    if before == now:
        return []
    found = []
    for old, new, names in zip(before, now, (TYPE_FIELDS, *SUITES.values()), strict=True):
        for place, name in enumerate(names):
            was, is_ = _slot(old, place, name), _slot(new, place, name)
            if name not in BOOKKEEPING and was != is_:
                found.append(f"{name} filled" if not was else f"{name} emptied" if not is_ else name)
    return found


def _slot(fields: bytes, place: int, name: str) -> int:
    value = _pointer(fields, place)
    return value & ~VERSION_FLAG if name == "tp_flags" else value


def _pointer(fields: bytes, place: int) -> int:
    return int.from_bytes(fields[place * POINTER : (place + 1) * POINTER], sys.byteorder)


def checks_of(kind: type) -> dict[str, bool]:
    """What C code, such as torch's when it takes a value for a sequence, asks of an instance."""
    instance = PretendedInstance(1, id(kind))
    found = {}
    for name in CHECKS:
        check = getattr(ctypes.pythonapi, name)
        check.argtypes, check.restype = [ctypes.c_void_p], ctypes.c_int
        found[name] = bool(check(ctypes.addressof(instance)))
    return found


def global_state() -> dict[str, Any]:
    """What is the process's or the thread's, and no attribute of anything."""
    return {
        "tracer": sys.gettrace(),
        "profile function": sys.getprofile(),
        "threads' tracer": getattr(threading, "_trace_hook", None),
        "threads' profile function": getattr(threading, "_profile_hook", None),
        "monitoring tools": list(map(sys.monitoring.get_tool, range(6))) if hasattr(sys, "monitoring") else [],
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "hooks of errors": [sys.excepthook, sys.unraisablehook, threading.excepthook, sys.displayhook],
        "finders": [*sys.meta_path, *sys.path_hooks],
        "path": list(sys.path),
        "warnings' filters": list(warnings.filters),
        "how warnings are shown": warnings.showwarning,
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "timers": [signal.getitimer(one) for one in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "environment": dict(os.environ),
        "working folder": os.getcwd(),  # noqa: PTH109
        "umask": _umask(),
        "streams": [sys.stdin, sys.stdout, sys.stderr],
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), list(gc.callbacks)],
        "reducers": dict(copyreg.dispatch_table),
        "threads": sorted(one.name for one in threading.enumerate()),
        "random state": [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()],
        "defaults": [torch.get_default_dtype(), torch.get_default_device(), torch.get_num_threads(),
                     torch.get_num_interop_threads(), torch.is_warn_always_enabled()],
        "modes": [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu"),
                  torch.is_anomaly_enabled(), torch.are_deterministic_algorithms_enabled(),
                  torch._C._autograd._profiler_enabled(),
                  torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack(),
                  torch._C._is_torch_function_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
                  torch.autograd.profiler._is_profiler_enabled, torch._C._autograd._saved_tensors_hooks_is_enabled(),
                  torch._C._functorch.maybe_current_level(), torch._C._current_graph_task_id()],
        "compiler's callback": torch._C._dynamo.eval_frame.get_eval_frame_callback(),
    }  # fmt: skip


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
