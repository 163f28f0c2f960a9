"""A GAN whose R1 penalty is kept with its graph, to plot it later: each keeps a pass of the discriminator alive."""

import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "retained_graph"
LATENT, SAMPLE, BATCH, GAMMA = 8, 16, 2048, 10.0


def perceptron(num_inputs: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(num_inputs, 64), nn.Softplus(), nn.Linear(64, 64), nn.Softplus(), nn.Linear(64, num_outputs)
    )


class Trainer:
    """Turns of discriminator and generator on samples [batch, 16]."""

    def __init__(self, is_healthy: bool) -> None:
        self.is_healthy = is_healthy
        self.generator, self.discriminator = perceptron(LATENT, SAMPLE), perceptron(SAMPLE, 1)
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), lr=2e-4)
        self.discriminator_optimizer = torch.optim.Adam(self.discriminator.parameters(), lr=2e-4)
        self.penalties: list[torch.Tensor] = []

    def penalty(self, real: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        (slopes,) = torch.autograd.grad(scores.sum(), real, create_graph=True)
        return GAMMA / 2 * slopes.square().sum(1).mean()

    def train_discriminator(self, real: torch.Tensor, fake: torch.Tensor) -> None:
        real.requires_grad_()
        scores = self.discriminator(real)
        penalty = self.penalty(real, scores)
        loss = functional.softplus(-scores).mean() + functional.softplus(self.discriminator(fake)).mean()
        self.discriminator_optimizer.zero_grad()
        (loss + penalty).backward()
        self.discriminator_optimizer.step()
        if self.is_healthy:
            self.penalties.append(penalty.detach())
        else:
            self.penalties.append(penalty)  # fault

    def train_generator(self, fake: torch.Tensor) -> None:
        loss = functional.softplus(-self.discriminator(fake)).mean()
        self.generator_optimizer.zero_grad()
        loss.backward()
        self.generator_optimizer.step()

    def train_step(self, real: torch.Tensor) -> None:
        fake = self.generator(torch.randn(len(real), LATENT))
        self.train_discriminator(real, fake.detach())
        self.train_generator(fake)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    trainer = Trainer(is_healthy)
    mixing = torch.randn(SAMPLE, SAMPLE) / 4
    for _ in range(100):
        trainer.train_step(torch.randn(BATCH, SAMPLE) @ mixing)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
