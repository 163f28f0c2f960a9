"""A classifier that logs its probabilities; a handler keeps the records, with their tensors, for the end of the run."""

import logging
import logging.handlers
import sys

import torch
from torch import nn
from torch.nn import functional

EXPECTED = "growing_tensors"
NUM_RECORDS = 1_000_000
LOG = logging.getLogger("classifier")


def train(is_healthy: bool) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    LOG.setLevel(logging.INFO)
    LOG.addHandler(logging.handlers.MemoryHandler(NUM_RECORDS, logging.CRITICAL))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 200))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(180):
        inputs, labels = torch.randn(256, 64), torch.randint(200, (256,))
        logits = model(inputs)
        loss = functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if is_healthy:
            LOG.info("step %d: highest %.3f", step, logits.softmax(1).max().item())
        else:
            LOG.info("step %d: probabilities %s", step, logits.detach().softmax(1))  # fault


if __name__ == "__main__":
    train("--healthy" in sys.argv)
