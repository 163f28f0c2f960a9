"""What run.json keeps of the process that trains, and how much of its device all use beside what PyTorch reserved."""

import sys
from pathlib import Path

import pytest
import torch

from efprof.artifacts.readings import read_device_use
from efprof.recorder.collectors import environment
from efprof.units import GIB, MIB
from tests.recorder.conftest import Begin
from tests.recorder.recording import Recorded, record_command, record_here
from tests.simulated_cuda.cuda import SimulatedCuda


def train() -> None:
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()


NEW_PRECISION = """
import torch

torch.backends.fp32_precision = "tf32"  # torch's new way, after which its old way refuses to answer
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    weight.square().sum().backward()
    optimizer.step()
"""


def test_settings_are_kept_and_versions_of_what_the_program_imported_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "transformers", raising=False)
    run = record_here(tmp_path, train).run
    assert "transformers" not in run.versions
    assert run.versions["numpy"] == sys.modules["numpy"].__version__
    assert run.settings["default dtype"] == "torch.float32"


def test_a_setting_that_torch_refuses_to_tell_is_left_out_and_the_others_are_kept(begin: Begin) -> None:
    child = begin(NEW_PRECISION)
    assert child.wait() == 0, child.errors
    settings = Recorded(folder=child.folder).run.settings
    assert "matmul precision" not in settings
    assert settings["deterministic algorithms"] == "False"


NEEDS_A_DEVICE = {"memory fraction", "CUDA allocator"}


def test_settings_of_cuda_are_read_by_names_that_torch_knows() -> None:
    for name, place in environment.cuda_settings().items():
        if name not in NEEDS_A_DEVICE:
            assert str(environment.read_setting(place)), name


@pytest.mark.parametrize("release", ["2.10.0", "2.11.0+cu130"])
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_a_torch_that_does_not_tell_the_allocators_settings_has_them_from_either_variable(
    name: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch._C, "_accelerator_getAllocatorSettings", raising=False)
    monkeypatch.setattr(torch, "__version__", release)
    monkeypatch.setenv(name, "max_split_size_mb:64")
    assert environment.read_setting(environment.cuda_settings()["CUDA allocator settings"]) == "max_split_size_mb:64"


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_what_configures_the_allocator_is_kept_as_it_was_written(name: str, tmp_path: Path) -> None:
    settings = "max_split_size_mb:128,garbage_collection_threshold:0.6"
    recorded = record_command(tmp_path / "home", ["true"], environment={name: settings})
    assert recorded.run.environment[name] == settings


def record_with_settings(tmp_path: Path, settings: str, *flags: str) -> Recorded:
    """A command that trains nothing, in a folder with these settings."""
    (tmp_path / "efprof.toml").write_text(settings)
    return record_command(tmp_path / "home", ["true"], options=flags, working_folder=tmp_path)


def test_the_users_configuration_is_kept_without_its_secrets(tmp_path: Path) -> None:
    (tmp_path / "train.toml").write_text('lr = 0.1\n[hub]\ntoken = "hunter22"\nurl = "https://me:hunter33@host"\n')
    run = record_with_settings(tmp_path, 'configuration = "train.toml"\n').run
    assert run.configuration == {"lr": "0.1", "hub.token": "<hidden>", "hub.url": "https://<hidden>@host"}


def test_a_wrong_setting_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "efprof.toml").write_text("[record]\nwindow = 'none'\n")
    with pytest.raises(FileNotFoundError):
        record_command(tmp_path / "home", ["true"], working_folder=tmp_path)


def test_a_cudnn_that_torch_was_not_built_for_is_left_out_of_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise RuntimeError("cuDNN version incompatibility")

    monkeypatch.setattr(torch.backends.cudnn, "version", refuse)
    with SimulatedCuda().in_place():
        torch.cuda.init()
        run = record_here(tmp_path, train).run
    assert "cudnn" not in run.versions
    assert run.devices


def test_the_driver_tells_what_all_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SimulatedCuda().in_place():
        held = torch.zeros(64 * MIB, dtype=torch.uint8, device="cuda")
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (70 * GIB, 80 * GIB))
        reading, at_end = read_device_use(record_here(tmp_path, train).rank)
        monkeypatch.undo()
        del held
    assert (reading.used_bytes, reading.reserved_bytes) == (10 * GIB, 64 * MIB)
    assert reading.outside_bytes == 10 * GIB - 64 * MIB
    assert (at_end.step, at_end.used_bytes) == (2, 10 * GIB)


def test_a_device_without_memory_of_pytorch_s_is_not_asked(tmp_path: Path) -> None:
    """Asking the driver would create a context there."""
    with SimulatedCuda().in_place() as cuda:
        torch.cuda.init()
        recorded = record_here(tmp_path, train)
    assert not (recorded.rank / environment.DEVICE_USE_FILE).exists()
    assert cuda.contexts == set()
