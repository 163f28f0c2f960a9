import pytest
import torch
from torch.utils.data import DataLoader

from energy_flow.config_parsing import load_config
from energy_flow.data.batch import Batch, DeviceCopy
from energy_flow.data.dataset import PairDataset
from energy_flow.data.loader import build_loader


def _loader(dataset: PairDataset, device: torch.device) -> DataLoader[Batch]:
    return build_loader(load_config("debug", assignments=["training.steps=12"]), dataset, device)


def test_on_the_cpu_a_batch_is_handed_on_as_it_is(dataset: PairDataset) -> None:
    batch = next(iter(_loader(dataset, torch.device("cpu"))))
    moved = DeviceCopy(torch.device("cpu"))(batch)
    assert [one is other for one, other in zip(batch, moved, strict=True)] == [True] * 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_beside_a_busy_device_give_every_batch_unchanged_and_in_order(dataset: PairDataset) -> None:
    device = torch.device("cuda")
    busy = torch.randn(4096, 4096, device=device)
    to_device, sums = DeviceCopy(device), []
    for batch in _loader(dataset, device):
        moved = to_device(batch)
        for _ in range(5):  # the host is soon many batches ahead
            busy = torch.tanh(busy @ busy)
        sums.append(torch.stack([field.double().sum() for field in moved]))
    expected = [torch.stack([field.double().sum() for field in batch]) for batch in _loader(dataset, device)]
    torch.testing.assert_close(torch.stack(sums).cpu(), torch.stack(expected))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_copy_does_not_wait_for_the_computation_before_it(dataset: PairDataset) -> None:
    device = torch.device("cuda")
    loader, to_device = iter(_loader(dataset, device)), DeviceCopy(device)
    to_device(next(loader))
    following = next(loader)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second of computation
    computed = torch.cuda.current_stream().record_event()
    assert to_device._stream is not None
    to_device(following)
    to_device._stream.synchronize()
    assert not computed.query()
