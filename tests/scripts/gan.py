"""A generator and a discriminator that take turns, with the R1 penalty on real samples."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LATENT = 8
GAMMA = 10.0


def r1_penalty(scores: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(outputs=scores.sum(), inputs=real, create_graph=True)
    return gradient.square().sum(1).mean()


def main() -> None:
    torch.manual_seed(0)
    netG = nn.Sequential(nn.Linear(LATENT, 32), nn.LeakyReLU(0.2), nn.Linear(32, 16))  # noqa: N806
    netD = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))  # noqa: N806
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.0, 0.99))  # noqa: N806
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.0, 0.99))  # noqa: N806
    dataloader = DataLoader(TensorDataset(torch.randn(80, 16)), batch_size=8, shuffle=True, drop_last=True)

    for epoch in range(2):
        for i, (real,) in enumerate(dataloader):
            # Train the discriminator.
            netD.zero_grad()
            real.requires_grad_()
            real_scores = netD(real)
            fake = netG(torch.randn(real.size(0), LATENT))
            fake_scores = netD(fake.detach())
            lossD = F.softplus(-real_scores).mean() + F.softplus(fake_scores).mean()  # noqa: N806
            penalty = r1_penalty(real_scores, real)
            (lossD + GAMMA / 2 * penalty).backward()
            optimizerD.step()

            # Train the generator.
            netG.zero_grad()
            lossG = F.softplus(-netD(fake)).mean()  # noqa: N806
            lossG.backward()
            optimizerG.step()
            print(f"[{epoch}][{i}] Loss_D {lossD.item()} R1 {penalty.item()} Loss_G {lossG.item()}")


if __name__ == "__main__":
    main()
