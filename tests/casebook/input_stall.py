"""An image classifier whose augmentation runs in the training process, between two steps."""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

EXPECTED = "input_stall"


class AugmentedImages(Dataset[tuple[torch.Tensor, int]]):
    """Random images with their brightest quadrant as the class; each fetch turns, crops and blurs one anew."""

    def __init__(self, num_images: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.images = torch.rand(num_images, 3, 40, 40, generator=generator)
        self.labels = torch.randint(0, 4, (num_images,), generator=generator)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = self.images[index]
        turned = functional.grid_sample(image[None], self._grid(index), align_corners=False)
        blurred = functional.avg_pool2d(turned, 3, stride=1, padding=1)
        return blurred[0, :, 4:36, 4:36].clone(), int(self.labels[index])

    def _grid(self, index: int) -> torch.Tensor:
        angle = torch.tensor((index % 31 - 15) / 60)
        cosine, sine = torch.cos(angle), torch.sin(angle)
        turn = torch.stack([torch.stack([cosine, -sine, angle]), torch.stack([sine, cosine, angle])])
        return functional.affine_grid(turn[None], [1, 3, 40, 40], align_corners=False)


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def build_loader(is_healthy: bool) -> DataLoader[tuple[torch.Tensor, int]]:
    images = AugmentedImages(64 * 60)
    if is_healthy:
        return DataLoader(images, batch_size=64, shuffle=True, num_workers=1, persistent_workers=True)
    return DataLoader(images, batch_size=64, shuffle=True)  # fault


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for images, labels in build_loader(is_healthy):
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    train("--healthy" in sys.argv)
