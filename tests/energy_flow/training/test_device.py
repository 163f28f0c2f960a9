import logging

import pytest
import torch

from energy_flow.energy_config import RuntimeConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.processes import ALONE, Processes
from energy_flow.training.device import choose_device, prepare_device, prepare_process, unsupported_settings

SECOND_OF_TWO = Processes(rank=1, world_size=2, local_rank=1)


THIRD_OF_THREE = Processes(rank=2, world_size=3, local_rank=2)


def _let_machine_have(monkeypatch: pytest.MonkeyPatch, *, num_gpus: int, has_mps: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: num_gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)


@pytest.mark.parametrize(
    ("num_gpus", "has_mps", "processes", "name", "chosen"),
    [
        (0, True, ALONE, "auto", "mps"),
        (0, False, ALONE, "auto", "cpu"),
        (2, False, ALONE, "auto", "cuda"),
        (2, False, ALONE, "cuda:1", "cuda:1"),
        (2, False, ALONE, "cpu", "cpu"),
        (2, False, SECOND_OF_TWO, "auto", "cuda:1"),
        (2, False, SECOND_OF_TWO, "cuda", "cuda:1"),
        (0, True, SECOND_OF_TWO, "auto", "cpu"),  # processes of a Mac share its CPU
    ],
)
def test_a_process_gets_the_device_of_that_name_or_the_fastest_that_is_its_own(
    monkeypatch: pytest.MonkeyPatch, num_gpus: int, has_mps: bool, processes: Processes, name: str, chosen: str
) -> None:
    _let_machine_have(monkeypatch, num_gpus=num_gpus, has_mps=has_mps)
    assert choose_device(RuntimeConfig(device=name), processes) == torch.device(chosen)


@pytest.mark.parametrize(
    ("processes", "name", "told"),
    [
        *(
            (ALONE, name, rf"^runtime\.device={name} is no.*choose auto")
            for name in ("cpu:3", "mps:1", "cuda:-1", "cuda:", "CUDA", "xpu", "meta", "", "cuda:2")
        ),
        *(
            (SECOND_OF_TWO, name, rf"^runtime\.device={name} is one device.*choose auto, cuda or cpu$")
            for name in ("cuda:1", "mps")
        ),
        (THIRD_OF_THREE, "auto", "which has 2 CUDA devices, without one; start torchrun with"),
    ],
)
def test_what_is_no_device_here_or_not_enough_for_all_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, processes: Processes, name: str, told: str
) -> None:
    _let_machine_have(monkeypatch, num_gpus=2)
    with pytest.raises(EnergyFlowError, match=told):
        choose_device(RuntimeConfig(device=name), processes)


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
    assert unsupported_settings(torch.device("cpu"), RuntimeConfig(device="cpu")) == []


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
