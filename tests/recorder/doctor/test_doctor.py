"""What `efprof doctor` finds on this machine, and on machines with something amiss; each trap of the allocator."""

import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from efprof.recorder.doctor import checks as checks_module
from efprof.recorder.doctor.checks import (
    Check,
    allocator_checks,
    can_record,
    examine,
    find_traps,
    kernels,
    nvml,
    parse,
    settings_in_effect,
)
from efprof.recorder.hooks import torch_versions
from efprof.recorder.hooks.torch_versions import NEWEST, OLDEST, Version, name_of
from efprof.recorder.launch import machine
from efprof.recorder.launch.machine import driver_version


def named(checks: Iterable[Check], name: str) -> Check:
    (check,) = [check for check in checks if check.name == name]
    return check


def write_executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_training_can_be_recorded_here_and_each_check_says_why() -> None:
    checks = examine()
    assert can_record(checks)
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.why.endswith(".") for check in checks)
    assert all(check.advice for check in checks if check.status == "careful")
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(("bound", "value"), [("NEWEST", (2, 6)), ("OLDEST", (99, 0))])
def test_a_torch_out_of_the_range_is_told_and_can_be_recorded(
    bound: str, value: Version, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_versions, bound, value)
    checks = examine()
    check = named(checks, "torch")
    assert check.status == "careful"
    assert f"not with {torch.__version__}" in check.why
    assert check.advice == f"Install torch {name_of(OLDEST)} to {name_of(NEWEST)} into the environment efprof is in."
    assert can_record(checks)


def test_a_python_that_is_too_new_is_told_and_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks_module, "MAX_PYTHON", (3, 10))
    checks = examine()
    assert named(checks, "Python").status == "careful"
    assert "efprof was tried with Python 3.11 to 3.10" in named(checks, "Python").why
    assert can_record(checks)


@pytest.mark.parametrize("name", ["MPS", "XPU"])
def test_of_another_kind_of_device_it_says_what_is_recorded_and_what_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"MPS": torch.backends.mps, "XPU": torch.xpu}[name]
    assert [check.name for check in examine() if check.name in ("MPS", "XPU")] == []
    monkeypatch.setattr(module, "is_available", lambda: True)
    check = named(examine(), name)
    assert check.status == "careful"
    assert "the host's times" in check.why
    assert "Losses, gradient norms and the device's times and memory are not" in check.why


def test_a_python_that_ignores_its_environment_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolated = write_executable(tmp_path / "python", f'#!/bin/sh\nexec {sys.executable} -I "$@"\n')
    monkeypatch.setattr(sys, "executable", str(isolated))
    checks = examine()
    assert named(checks, "start-up hook").status == "no"
    assert not can_record(checks)


def test_what_a_customization_of_the_site_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("raise RuntimeError('mine is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = named(examine(), "start-up hook")
    assert check.status == "careful"
    assert "mine is broken" in check.why


def test_without_torch_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    checks = examine()
    assert named(checks, "torch").status == "no"
    assert "cannot be imported" in named(checks, "torch").why
    assert not can_record(checks)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56\nGCC version: 12\n",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build  (x@y)\nGCC version: 12\n",
    ],
)
def test_the_driver_is_read_from_its_kernel_module(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version").write_text(text)
    monkeypatch.setattr(machine, "DRIVER_FOLDER", tmp_path)
    assert driver_version() == "550.54.15"


def test_a_build_for_the_cpu_on_a_machine_with_a_driver_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.version.cuda or torch.version.hip:
        pytest.skip("needs a build of torch for the CPU")
    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n")
    monkeypatch.setattr(machine, "DRIVER_FOLDER", tmp_path)
    check = named(examine(), "CUDA")
    assert "there is an NVIDIA driver 550.54.15" in check.why
    assert "Install a CUDA build" in check.advice


def test_memray_that_is_missing_is_said_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "memray", None)
    check = named(examine(), "memray")
    assert (check.status, check.advice) == ("no", "Run 'pip install memray'.")


def fake_torch(**members: object) -> ModuleType:
    """torch, with other C functions or other signatures."""
    fake = ModuleType("torch")
    fake.__dict__.update({"__version__": "2.13.0", "_C": ModuleType("_C"), "cuda": torch.cuda, **members})
    return fake


@pytest.mark.parametrize(
    ("activities", "has_device", "status"),
    [(["CPU"], True, "no"), (["CPU", "CUDA"], False, "careful"), (["CPU", "CUDA"], True, "yes")],
)
def test_kernels_are_traced_where_torch_has_the_tracer_and_a_device(
    activities: list[str], has_device: bool, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    supported = {getattr(torch.profiler.ProfilerActivity, name) for name in activities}
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: supported)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_device)
    assert kernels(torch).status == status


def test_nvml_is_asked_for_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def fail() -> None:
        raise NVMLError("Driver Not Loaded")

    fake = ModuleType("pynvml")
    fake.__dict__.update(nvmlInit=fail, nvmlShutdown=int, nvmlDeviceGetCount=lambda: 2, NVMLError=NVMLError)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml().why == "The package nvidia-ml-py is not installed; no recording needs it."
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert "the driver says: Driver Not Loaded." in nvml().why
    fake.__dict__["nvmlInit"] = int
    assert nvml().why == "It sees 2 devices."


def test_the_history_needs_its_function_and_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ModuleType("_C")
    compiled.__dict__["_cuda_record_memory_history"] = None
    cuda_build = fake_torch(_C=compiled)
    assert named(allocator_checks(fake_torch()), "allocator history").status == "no"
    assert named(allocator_checks(cuda_build), "allocator history").status == "yes"
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    assert "keeps none" in named(allocator_checks(cuda_build), "allocator history").why


def traps(text: str, version: Version = (2, 13)) -> list[str]:
    return [why for why, _ in find_traps({"PYTORCH_CUDA_ALLOC_CONF": text}, version)]


def of_variables(version: Version, **variables: str) -> list[tuple[str, str]]:
    return list(find_traps({f"PYTORCH_{name}": value for name, value in variables.items()}, version))


def test_settings_are_split_outside_of_brackets() -> None:
    text = "roundup_power2_divisions:[256:1,>:8], expandable_segments:True,lone"
    assert parse(text) == {"roundup_power2_divisions": "[256:1,>:8]", "expandable_segments": "True", "lone": ""}


@pytest.mark.parametrize(
    "text",
    ["", "expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:[256:1,512:2,>:8]",
     "garbage_collection_threshold:0.8,per_process_memory_fraction:0.9", "backend:native,max_split_size_mb:64",
     "large_segment_size_mb:64,max_split_size_mb:64", "pinned_num_register_threads:8"],
)  # fmt: skip
def test_sound_settings_are_no_trap(text: str) -> None:
    assert traps(text) == []


def test_expandable_segments_and_a_largest_split_size_are_a_trap_together() -> None:
    (why,) = traps("expandable_segments:True,max_split_size_mb:128")
    assert "mapped again although gigabytes are free" in why
    assert traps("expandable_segments:False,max_split_size_mb:128") == []


def test_a_collection_threshold_without_a_cap_does_nothing() -> None:
    assert "does nothing unless the program caps its memory" in traps("garbage_collection_threshold:0.8")[0]


def test_the_other_allocator_ignores_all_settings() -> None:
    assert traps("backend:cudaMallocAsync") == []
    assert traps("backend:cudaMallocAsync,expandable_segments:True") == [
        "The allocator cudaMallocAsync ignores expandable_segments."
    ]


@pytest.mark.parametrize("version", [(2, 8), (2, 9)])
def test_the_plain_variable_does_nothing_before_2_10(version: Version) -> None:
    ((why, advice),) = of_variables(version, ALLOC_CONF="expandable_segments:True")
    assert why.startswith("PYTORCH_ALLOC_CONF does nothing: torch 2.")
    assert advice == "Set PYTORCH_CUDA_ALLOC_CONF instead."
    assert settings_in_effect({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, version) == {}


def test_the_plain_variable_works_from_2_10_on_unless_the_other_is_set_too() -> None:
    assert of_variables((2, 10), ALLOC_CONF="expandable_segments:True") == []
    ((why, _),) = of_variables((2, 10), ALLOC_CONF="expandable_segments:True", CUDA_ALLOC_CONF="max_split_size_mb:64")
    assert "PYTORCH_CUDA_ALLOC_CONF is set too and wins" in why
    assert of_variables((2, 10), ALLOC_CONF="max_split_size_mb:64", CUDA_ALLOC_CONF="max_split_size_mb:64") == []
