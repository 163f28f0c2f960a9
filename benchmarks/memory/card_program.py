"""One of the programs that were measured on a T4, on the CPU: `python card_program.py MODEL BATCH SIZE STEPS`.

The weights are random, which changes no size. A T4 has no bf16 and computed in fp16; here it is bf16, of as many
bytes, since a CPU takes a minute for a step in fp16.
"""

import sys
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
)


def make_model(name: str) -> Any:
    if name == "gpt2":
        return GPT2LMHeadModel(GPT2Config())
    if name == "distilbert":
        return DistilBertModel(DistilBertConfig())
    if name == "bert":
        return BertModel(BertConfig())
    config = ResNetConfig()
    config.num_labels = 1000
    model = ResNetForImageClassification(config)
    for module in model.modules():
        if isinstance(module, torch.nn.ReLU):
            module.inplace = True  # as in torchvision's, which was measured
    return model


def main() -> None:
    name, (batch, size, num_steps) = sys.argv[1], map(int, sys.argv[2:])
    model = make_model(name).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    if name == "resnet50":
        inputs, targets = torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))
    else:
        inputs = targets = torch.randint(0, model.config.vocab_size - 1, (batch, size))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            if name == "gpt2":
                out = model(input_ids=inputs, labels=targets)
                loss = out.loss
            elif name == "resnet50":
                loss = torch.nn.functional.cross_entropy(model(inputs).logits, targets)
            else:
                out = model(input_ids=inputs)
                loss = out.last_hidden_state.float().pow(2).mean()
        loss.backward()
        optimizer.step()

    for _ in range(num_steps):
        step()


if __name__ == "__main__":
    main()
