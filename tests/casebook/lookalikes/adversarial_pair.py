"""All is well: the critic learns from samples that are detached, five times for each time that the generator does."""

import torch
from torch import nn

EXPECTED = ()


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 64))
    critic = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    of_generator = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
    for _ in range(60):
        for _ in range(5):
            samples = generator(torch.randn(512, 32)).detach()
            loss = critic(samples).mean() - critic(torch.randn(512, 64)).mean()
            of_critic.zero_grad()
            loss.backward()
            of_critic.step()
            for parameter in critic.parameters():
                parameter.data.clamp_(-0.01, 0.01)
        loss = -critic(generator(torch.randn(512, 32))).mean()
        of_generator.zero_grad()
        loss.backward()
        of_generator.step()


if __name__ == "__main__":
    train()
