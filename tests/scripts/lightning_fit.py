"""Lightning's own loop: validation, gradient clipping, two batches per update."""

import logging
import warnings

import lightning as L  # noqa: N812
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore", message=".*does not have many workers.*")
logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
log = logging.getLogger("regression")
logging.basicConfig(format="%(created)f %(message)s", level=logging.INFO)


class Regression(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x)

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train_loss", loss)
        print(f"epoch {self.current_epoch} batch {batch_idx} loss {loss.item()}")
        return loss

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        x, y = batch
        log.info("evaluating")
        self.log("val_loss", F.mse_loss(self(x), y))

    def on_validation_epoch_end(self) -> None:
        print(f"val_loss {self.trainer.callback_metrics['val_loss'].item()}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def make_loader(num_batches: int, shuffle: bool) -> DataLoader[tuple[torch.Tensor, ...]]:
    x = torch.randn(num_batches * 8, 16)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=shuffle)


def main(callbacks: list[L.Callback] | None = None) -> None:
    L.seed_everything(0, verbose=False)
    trainer = L.Trainer(
        max_epochs=2,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        callbacks=callbacks,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), make_loader(8, shuffle=True), make_loader(3, shuffle=False))


if __name__ == "__main__":
    main()
