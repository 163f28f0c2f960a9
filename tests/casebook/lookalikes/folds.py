"""All is well: each fold of a cross-validation sets the layers afresh, and trains them with an optimizer of its own."""

import torch
from torch import nn
from torch.nn import functional

EXPECTED = ()
NUM_FOLDS, NUM_PATIENTS, NUM_EPOCHS = 5, 1280, 3


def set_afresh(layer: nn.Module) -> None:
    if isinstance(layer, nn.Linear):
        layer.reset_parameters()


def train_fold(model: nn.Module, values: torch.Tensor, labels: torch.Tensor) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(NUM_EPOCHS):
        for picked in torch.randperm(len(values)).split(64):
            loss = functional.cross_entropy(model(values[picked]), labels[picked])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def validate() -> list[float]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    values = torch.randn(NUM_PATIENTS, 96)
    labels = (values[:, :8].sum(1) > 0).long()
    model = nn.Sequential(nn.Linear(96, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2))
    scores = []
    for held_out in torch.arange(NUM_PATIENTS).chunk(NUM_FOLDS):
        model.apply(set_afresh)
        is_kept = torch.ones(NUM_PATIENTS, dtype=torch.bool)
        is_kept[held_out] = False
        train_fold(model, values[is_kept], labels[is_kept])
        with torch.no_grad():
            scores.append((model(values[held_out]).argmax(1) == labels[held_out]).float().mean().item())
    return scores


if __name__ == "__main__":
    print(validate())
