"""AIS-Bonn/OCVP-object-centric-video-prediction#3: figures of predictions are drawn for the log, never closed."""

import sys
from io import BytesIO

import matplotlib as mpl
import torch
from matplotlib import pyplot
from torch import nn
from torch.nn import functional

EXPECTED = "memory_growth"
mpl.use("Agg")


def draw(frame: torch.Tensor, is_healthy: bool) -> bytes:
    """A picture of one predicted frame [32, 32], as a logger takes it."""
    figure = pyplot.figure(figsize=(2, 2))  # fault
    figure.figimage(frame.detach().numpy())
    written = BytesIO()
    figure.savefig(written)
    if is_healthy:
        pyplot.close(figure)
    return written.getvalue()


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    mpl.rcParams["figure.max_open_warning"] = 0
    model = nn.Sequential(nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1024))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(240):
        frames = torch.rand(32, 1024)
        predicted = model(frames)
        loss = functional.l1_loss(predicted, frames.roll(1, dims=1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 4 == 0:
            draw(predicted[0].unflatten(0, (32, 32)), is_healthy)


if __name__ == "__main__":
    train("--healthy" in sys.argv)
