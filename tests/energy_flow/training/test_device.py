import logging

import pytest
import torch

from energy_flow.config_parsing import load_config
from energy_flow.data.dataset import PairDataset
from energy_flow.data.loader import build_loader
from energy_flow.energy_config import RuntimeConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.model import build_model
from energy_flow.processes import Processes
from energy_flow.training.device import choose_device, given_up_on, prepare_device, prepare_process

SECOND_OF_TWO = Processes(rank=1, world_size=2, local_rank=1)


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("no_cuda")
@pytest.mark.parametrize(("has_mps", "chosen"), [(True, "mps"), (False, "cpu")])
def test_auto_without_cuda_takes_mps_and_without_that_the_cpu(
    monkeypatch: pytest.MonkeyPatch, has_mps: bool, chosen: str
) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    assert choose_device(RuntimeConfig(device="auto")) == torch.device(chosen)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(("name", "chosen"), [("auto", "cuda"), ("cuda:1", "cuda:1"), ("cpu", "cpu")])
def test_with_cuda_auto_takes_it_and_a_named_device_is_taken(name: str, chosen: str) -> None:
    assert choose_device(RuntimeConfig(device=name)) == torch.device(chosen)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["cpu:3", "mps:1", "cuda:-1", "cuda:", "CUDA", "xpu", "meta", "", "cuda:2"])
def test_what_is_no_device_here_is_refused_by_name(name: str) -> None:
    with pytest.raises(EnergyFlowError, match=rf"^runtime\.device={name} is no.*choose auto"):
        choose_device(RuntimeConfig(device=name))


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_process_of_a_machine_gets_the_gpu_of_its_number(name: str) -> None:
    assert choose_device(RuntimeConfig(device=name), SECOND_OF_TWO) == torch.device("cuda:1")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["cuda:1", "mps"])
def test_several_processes_cannot_be_given_one_device(name: str) -> None:
    with pytest.raises(EnergyFlowError, match=rf"^runtime\.device={name} is one device.*choose auto, cuda or cpu$"):
        choose_device(RuntimeConfig(device=name), SECOND_OF_TWO)


@pytest.mark.usefixtures("two_gpus")
def test_a_process_without_a_gpu_left_for_it_is_told_how_many_there_are() -> None:
    third = Processes(rank=2, world_size=3, local_rank=2)
    with pytest.raises(EnergyFlowError, match=r"which has 2 CUDA devices, without one; start torchrun with"):
        choose_device(RuntimeConfig(device="auto"), third)


@pytest.mark.usefixtures("no_cuda")
def test_processes_of_a_mac_share_its_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert choose_device(RuntimeConfig(device="auto"), SECOND_OF_TWO) == torch.device("cpu")


def test_one_line_says_the_device_and_what_is_given_up_on_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="energy_flow"):
        prepare_device(torch.device("cpu"), RuntimeConfig(precision="bfloat16"))
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage() == (
        "training on cpu in bfloat16; no CUDA device to use was found; "
        "bfloat16 saves memory, but time only where the processor computes in it"
    )


def test_a_cpu_that_was_asked_for_gives_up_nothing_in_float32() -> None:
    assert given_up_on(torch.device("cpu"), RuntimeConfig(device="cpu")) == []


def test_a_precision_that_the_device_has_not_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: major < 14)
    with pytest.raises(EnergyFlowError, match=r"^runtime\.precision=bfloat16 does not run on mps; choose float16"):
        prepare_device(torch.device("mps"), RuntimeConfig(precision="bfloat16"))


@pytest.mark.parametrize(("tf32", "precision"), [(True, "high"), (False, "highest")])
def test_tf32_is_as_configured(monkeypatch: pytest.MonkeyPatch, tf32: bool, precision: str) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        prepare_process(RuntimeConfig(tf32=tf32))
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_every_precision_runs_forward_and_backward_on_the_cpu(precision: str, dataset: PairDataset) -> None:
    config = load_config("debug", assignments=[f"runtime.precision={precision}"])
    model = build_model(config)
    batch = next(iter(build_loader(config, dataset, torch.device("cpu"))))
    with torch.autocast("cpu", dtype=getattr(torch, precision), enabled=precision != "float32"):
        total = model(batch).total
    total.backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())
