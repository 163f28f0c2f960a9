"""akanimax/pro_gan_pytorch#12: a gradient penalty by `backward(create_graph=True)` leaves a cycle in every step."""

import sys

import torch
from torch import nn

EXPECTED = "memory_growth"
LATENT, SAMPLE, BATCH = 8, 32, 512


def perceptron(num_inputs: int, num_outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_inputs, 128), nn.Softplus(), nn.Linear(128, num_outputs))


def penalty(discriminator: nn.Module, real: torch.Tensor, fake: torch.Tensor, is_healthy: bool) -> torch.Tensor:
    mixed = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_()
    scores = discriminator(mixed)
    if is_healthy:
        (slopes,) = torch.autograd.grad(scores.sum(), mixed, create_graph=True)
    else:
        scores.sum().backward(create_graph=True)  # fault
        slopes = mixed.grad
    return (slopes.norm(dim=1) - 1).square().mean()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    generator, discriminator = perceptron(LATENT, SAMPLE), perceptron(SAMPLE, 1)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4)
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
    for _ in range(160):
        real, fake = torch.randn(BATCH, SAMPLE) / 2, generator(torch.randn(BATCH, LATENT))
        loss = 10 * penalty(discriminator, real, fake.detach(), is_healthy)
        loss = loss + discriminator(fake.detach()).mean() - discriminator(real).mean()
        discriminator_optimizer.zero_grad()
        loss.backward()
        discriminator_optimizer.step()
        loss = -discriminator(fake).mean()
        generator_optimizer.zero_grad()
        loss.backward()
        generator_optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
