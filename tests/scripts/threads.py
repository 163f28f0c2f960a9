"""Two losses of one model, each backpropagated by a thread of its own; the main thread updates the weights."""

from concurrent.futures import ThreadPoolExecutor

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TwoTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [head(x) for head in self.heads]


def main() -> None:
    torch.manual_seed(0)
    model = TwoTasks()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(12 * 8, 16)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True), x.norm(dim=1, keepdim=True)), batch_size=8)

    with ThreadPoolExecutor(max_workers=2) as pool:
        for step, (inputs, *targets) in enumerate(loader):
            optimizer.zero_grad()
            losses = [F.mse_loss(output, target) for output, target in zip(model(inputs), targets, strict=True)]
            for done in [pool.submit(loss.backward) for loss in losses]:
                done.result()
            optimizer.step()
            print(f"step {step} losses {losses[0].item()} {losses[1].item()}")


if __name__ == "__main__":
    main()
