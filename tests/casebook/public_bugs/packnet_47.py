"""TRI-ML/packnet-sfm#47: a list of each step's outputs, for the mean over the epoch, keeps the loss and its graph."""

import sys

import torch
from torch import nn

EXPECTED = "retained_graph"


class DepthModel(nn.Module):
    """Pictures [batch, 1, 32, 32] -> what a step of Lightning's form returns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))

    def training_step(self, pictures: torch.Tensor, depths: torch.Tensor) -> dict[str, torch.Tensor]:
        residuals = self.layers(pictures) - depths
        return {"loss": residuals.abs().mean(), "rmse": residuals.square().mean().sqrt()}


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DepthModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    outputs = []
    for _ in range(140):
        pictures = torch.rand(32, 1, 32, 32)
        output = model.training_step(pictures, pictures.flip(3))
        optimizer.zero_grad()
        output["loss"].backward()
        optimizer.step()
        if is_healthy:
            output = {name: value.detach().clone() for name, value in output.items()}
        outputs.append(output)  # fault
    print(torch.stack([output["rmse"] for output in outputs]).mean().item())


if __name__ == "__main__":
    train("--healthy" in sys.argv)
