"""Few-shot learning that takes its query batch from a loader started anew in each episode."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

EXPECTED = "restarted_loader"
SEVERITY = "medium"
NUM_EPISODES = 40


class Queries:
    """Batches of queries without end."""

    def __init__(self, loader: DataLoader[tuple[torch.Tensor, ...]]) -> None:
        self.loader = loader
        self.batches = iter(loader)

    def take_kept(self) -> list[torch.Tensor]:
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.loader)
            batch = next(self.batches)
        return list(batch)

    def take_first(self) -> list[torch.Tensor]:
        for batch in self.loader:  # fault
            return list(batch)
        raise ValueError("there are no queries")


def make_data(num_points: int) -> TensorDataset:
    points = torch.randn(num_points, 32)
    return TensorDataset(points, (points[:, :8].sum(1) > 0).long())


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    support = DataLoader(make_data(16 * NUM_EPISODES), batch_size=16, shuffle=True)
    queries = Queries(DataLoader(make_data(4000), batch_size=64, shuffle=True, num_workers=1))
    take = queries.take_kept if is_healthy else queries.take_first
    for points, labels in support:
        optimizer.zero_grad()
        functional.cross_entropy(model(points), labels).backward()
        query_points, query_labels = take()
        functional.cross_entropy(model(query_points), query_labels).backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
