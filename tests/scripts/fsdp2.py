"""Fully sharded training of a small transformer under torchrun, each block sharded by itself."""

import gc

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from ranks import leave_group, print_by_rank
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Transformer(nn.Module):
    def __init__(self, vocabulary: int = 32, width: int = 16, num_layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True) for _ in range(num_layers)
        )
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(x.flatten(0, 1))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Transformer()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = TensorDataset(torch.randint(0, 32, (64, 8)))
    loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))

    losses = []
    for (tokens,) in loader:
        loss = F.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print_by_rank([f"rank {dist.get_rank()} step {step} loss {loss}" for step, loss in enumerate(losses)])
    leave_group()


if __name__ == "__main__":
    main()
    gc.collect()  # the model's cycles hold the group, which must not outlive Python: gloo aborts then, now and then
