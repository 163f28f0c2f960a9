"""A loop that Accelerate prepares: accumulation by its context, clipping, a scheduler, evaluation after an epoch."""

import logging

import torch
import torch.nn.functional as F  # noqa: N812
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(format="%(created)f %(message)s", level=logging.INFO)


def make_loader(num_batches: int, shuffle: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
    x = torch.randn(num_batches * 8, 16)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=shuffle)


def main() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    model, optimizer, train_dataloader, eval_dataloader, scheduler = accelerator.prepare(
        model, optimizer, make_loader(10, shuffle=True), make_loader(3, shuffle=False), scheduler
    )

    for epoch in range(2):
        model.train()
        for step, (x, y) in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            accelerator.print(f"epoch {epoch} step {step} loss {loss.item()}")

        model.eval()
        losses = []
        for x, y in eval_dataloader:
            logging.info("evaluating")
            with torch.no_grad():
                losses.append(accelerator.gather_for_metrics(F.mse_loss(model(x), y).repeat(8)))
        accelerator.print(f"epoch {epoch} eval_loss {torch.cat(losses).mean().item()}")


if __name__ == "__main__":
    main()
