"""A state-space block in half precision, with spikes and a trace of what fired together that nothing lets decay."""

import sys

import torch
from torch import nn

EXPECTED = "nonfinite_loss"
OPTIONS = ("--hunt",)


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, potential: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(potential)
        return (potential > 0).to(potential.dtype)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> torch.Tensor:
        (potential,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient / (1 + potential.abs()).square()


class Block(nn.Module):
    def __init__(self, size: int, keeps: float) -> None:
        super().__init__()
        self.keeps = keeps
        self.inward = nn.Linear(8, size)
        self.outward = nn.Linear(size, 4)
        self.rate = nn.Parameter(torch.zeros(size))
        self.register_buffer("trace", torch.zeros(size, size))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(inputs.shape[0], self.rate.shape[0])
        for instant in inputs.unbind(1):
            state = torch.sigmoid(self.rate) * state + self.inward(instant)
            spikes = Spike.apply(state - 0.5)
            recalled = spikes @ self.trace  # fault
            state = state + 1e-3 * recalled
        with torch.no_grad():
            self.trace.mul_(self.keeps).add_(spikes.T @ spikes, alpha=0.8)
        return self.outward(state)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Block(48, keeps=0.9 if is_healthy else 1.06)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=100)
    for _ in range(200):
        inputs = torch.randn(8, 6, 8)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (torch.tanh(model(inputs)) - inputs[:, -1, :4]).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
