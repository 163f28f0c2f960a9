"""A search for an architecture whose validation batch comes from a loader that starts its worker in each step."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset, TensorDataset

EXPECTED = "restarted_loader"
SEVERITY = "high"
NUM_IMAGES, BATCH_SIZE = 1600, 16


class MixedLayer(nn.Module):
    """A weighted sum of a convolution, a small one and nothing."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.choices = nn.ModuleList([
            nn.Conv2d(channels, channels, 3, padding=1), nn.Conv2d(channels, channels, 1), nn.Identity(),
        ])  # fmt: skip
        self.weights = nn.Parameter(torch.zeros(len(self.choices)))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        outputs = torch.stack([choice(images) for choice in self.choices])
        return torch.einsum("c,c...->...", self.weights.softmax(0), outputs)


def make_images() -> TensorDataset:
    labels = torch.randint(4, (NUM_IMAGES,))
    patterns = torch.randn(4, 8, 12, 12)
    return TensorDataset(patterns[labels] + torch.randn(NUM_IMAGES, 8, 12, 12), labels)


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    images, half = make_images(), NUM_IMAGES // 2
    layers = [MixedLayer(8) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 144, 4))
    choices = torch.optim.Adam([layer.weights for layer in layers], lr=3e-3)
    weights = torch.optim.SGD([one for name, one in model.named_parameters() if "weights" not in name], lr=0.01)
    training = DataLoader(Subset(images, range(half)), batch_size=BATCH_SIZE, shuffle=True)
    validation = DataLoader(Subset(images, range(half, NUM_IMAGES)), batch_size=BATCH_SIZE, num_workers=1)
    kept = iter(validation)
    for batch, labels in training:
        checked, right = next(kept) if is_healthy else next(iter(validation))  # fault
        choices.zero_grad()
        functional.cross_entropy(model(checked), right).backward()
        choices.step()
        weights.zero_grad()
        functional.cross_entropy(model(batch), labels).backward()
        weights.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
