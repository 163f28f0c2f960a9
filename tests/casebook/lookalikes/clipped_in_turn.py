"""All is well: each of two networks is clipped before its own update, one of them right after the other's."""

import math

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy
from torch.nn.utils import clip_grad_norm_

EXPECTED = ()
NUM_STEPS, NUM_SAMPLES, NUM_NOISE = 150, 128, 32


def layers(num_in: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_in, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2),
                         nn.Linear(256, num_out))  # fmt: skip


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    maker, judge = layers(NUM_NOISE, 16), layers(16, 1)
    of_maker = torch.optim.Adam(maker.parameters(), lr=2e-4)
    of_judge = torch.optim.Adam(judge.parameters(), lr=2e-4)
    ones, zeros = torch.ones(NUM_SAMPLES, 1), torch.zeros(NUM_SAMPLES, 1)
    for step in range(NUM_STEPS):
        made = maker(torch.randn(NUM_SAMPLES, NUM_NOISE))
        of_maker.zero_grad()
        of_judge.zero_grad()
        cross_entropy(judge(made), ones).backward()
        clip_grad_norm_(maker.parameters(), 1.0)
        of_maker.step()
        of_judge.zero_grad()
        real = torch.randn(NUM_SAMPLES, 16).cumsum(1)
        (cross_entropy(judge(real), ones) + cross_entropy(judge(made.detach()), zeros)).backward()
        clip_grad_norm_(judge.parameters(), 1.0)
        of_judge.step()
        if not step % 10:  # the norm of what was used, as a log has it; infinity clips nothing
            print(step, f"{clip_grad_norm_(judge.parameters(), math.inf):.3f}")


if __name__ == "__main__":
    train()
