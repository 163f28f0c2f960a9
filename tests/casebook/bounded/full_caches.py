"""All is well: two caches fill up a while into the run, a dict that drops its oldest and an `lru_cache` with a size."""

import functools

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()
NUM_USERS, SIZE = 200, 40


@functools.lru_cache(maxsize=SIZE)
def user_noise(user: int) -> torch.Tensor:
    """[128, 64], the same each time."""
    return torch.randn(128, 64, generator=torch.Generator().manual_seed(user))


class History:
    """The last batch of each user; at most SIZE users."""

    def __init__(self) -> None:
        self.by_user: dict[int, torch.Tensor] = {}

    def put(self, user: int, batch: torch.Tensor) -> None:
        self.by_user.pop(user, None)
        self.by_user[user] = batch
        if len(self.by_user) > SIZE:
            del self.by_user[next(iter(self.by_user))]


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    history = History()
    for _ in range(220):
        user = int(torch.randint(NUM_USERS, ()))
        batch = torch.randn(128, 64)
        loss = functional.l1_loss(model(batch + user_noise(user)), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.put(user, batch)


if __name__ == "__main__":
    train()
