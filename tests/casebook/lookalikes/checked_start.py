"""All is well: two steps are looked at for anomalies, three are profiled, and each epoch ends with a collection."""

import gc

import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile, schedule

EXPECTED = ()
NUM_EPOCHS, NUM_BATCHES, NUM_CHECKED = 4, 40, 2


def train() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Conv1d(8, 64, 5, padding=2), nn.ReLU(), nn.Conv1d(64, 64, 5, padding=2), nn.ReLU(),
                          nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 6))  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    few = schedule(wait=5, warmup=1, active=3, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=few) as profiler:
        for epoch in range(NUM_EPOCHS):
            for batch in range(NUM_BATCHES):
                signals, labels = torch.randn(32, 8, 256), torch.randint(6, (32,))
                with torch.autograd.set_detect_anomaly(epoch == 0 and batch < NUM_CHECKED):
                    loss = functional.cross_entropy(model(signals), labels)
                    optimizer.zero_grad()
                    loss.backward()
                optimizer.step()
                profiler.step()
            gc.collect()


if __name__ == "__main__":
    train()
