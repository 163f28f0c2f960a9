"""The Hugging Face Trainer with a small causal model, evaluation after every epoch and two batches per update."""

import logging
import tempfile

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

logging.basicConfig(format="%(created)f %(message)s")
log = logging.getLogger("trainer")
log.setLevel(logging.INFO)


class SayWhenEvaluating(TrainerCallback):
    def on_prediction_step(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
        log.info("evaluating")


def make_dataset(size: int) -> list[dict[str, torch.Tensor]]:
    return [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (size, 12))]


def main(callbacks: list[TrainerCallback] | None = None) -> None:
    set_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            eval_strategy="epoch",
            logging_steps=1,
            learning_rate=1e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(
            model=LlamaForCausalLM(config),
            args=arguments,
            train_dataset=make_dataset(40),
            eval_dataset=make_dataset(24),
            callbacks=[SayWhenEvaluating(), *(callbacks or [])],
        )
        trainer.remove_callback(PrinterCallback)  # it prints how long things took
        trainer.train()
    for entry in trainer.state.log_history[:-1]:  # the last one holds times only
        print({name: entry[name] for name in ("step", "loss", "grad_norm", "eval_loss") if name in entry})
    print("weights", sum(weight.double().abs().sum().item() for weight in trainer.model.parameters()))


if __name__ == "__main__":
    main()
