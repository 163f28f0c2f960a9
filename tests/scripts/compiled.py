"""A compiled model, which says how often it was compiled and why."""

import torch
import torch.nn.functional as F  # noqa: N812
from synthetic_data import make_dataset
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), Residual(32), Residual(32), nn.Linear(32, 1))
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(make_dataset(12 * 8), batch_size=8)

    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.mse_loss(compiled(x), y)
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item()}")
    print("graphs", counters["stats"]["unique_graphs"], "frames", dict(counters["frames"]))
    print("breaks", dict(counters["graph_break"]), "recompiles", dict(counters["recompiles"]))


if __name__ == "__main__":
    main()
