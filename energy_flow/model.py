"""The whole model: one call takes a batch to its losses."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from energy_flow.core.embedding_mapper import EmbeddingMapper
from energy_flow.core.flow_processor import FlowProcessor, FlowResult
from energy_flow.data.batch import Batch
from energy_flow.energy_config import EnergyConfig
from energy_flow.text_bridge.decoder import TextDecoder
from energy_flow.text_bridge.encoder import TextEncoder
from energy_flow.text_bridge.tokens import PADDING


class Losses(NamedTuple):
    """The loss to minimise, its parts, and two measures of the flows; all of shape [], float32, on the device."""

    total: Tensor
    embedding: Tensor  # 1 - cosine similarity to the target embedding, mean over the batch
    surface: Tensor  # mean squared difference of the encoder's surface and the mapper's
    text: Tensor  # cross entropy of the decoder, nats per token
    landed_share: Tensor  # share of flows that reached the output surface
    flow_steps: Tensor  # flow steps taken


class Prediction(NamedTuple):
    """What the model makes of a batch's inputs; the logits are teacher-forced."""

    input_surface: Tensor  # [batch, height, width]
    flow: FlowResult
    embedding: Tensor  # [batch, 768], unit length
    logits: Tensor  # [batch, max_bytes + 1, vocabulary], of each target token after those before it


class EnergyFlowModel(nn.Module):
    """Mapper, flows and text bridge; the flows move once per call, for the whole batch."""

    def __init__(self, config: EnergyConfig) -> None:
        """Build all parts in the sizes of `config`."""
        super().__init__()
        self.weights = config.training
        self.mapper = EmbeddingMapper(config.lattice)
        self.flows = FlowProcessor(config)
        self.encoder = TextEncoder(config.bridge, config.lattice)
        self.decoder = TextDecoder(config.bridge, config.lattice)

    def forward(self, batch: Batch) -> Losses:
        """The losses of a batch of text pairs."""
        predicted = self.predict(batch)
        embedding = (1 - functional.cosine_similarity(predicted.embedding, batch.target_embedding)).mean()
        # The mapper's surface is the encoder's target: the mapper must not move towards the encoder.
        encoded = functional.mse_loss(self.encoder(batch.input_tokens), predicted.input_surface.detach())
        text = functional.cross_entropy(
            predicted.logits.flatten(0, 1).float(), batch.target_tokens[:, 1:].flatten(), ignore_index=PADDING
        )
        total = embedding + self.weights.surface_loss_weight * encoded + self.weights.text_loss_weight * text
        return Losses(total, embedding, encoded, text, predicted.flow.landed_share, predicted.flow.num_steps)

    def predict(self, batch: Batch) -> Prediction:
        """Embedding and text that the flows bring a batch's inputs to."""
        surface = self.mapper.to_surface(batch.input_embedding)
        flow: FlowResult = self.flows(surface)
        return Prediction(
            input_surface=surface,
            flow=flow,
            embedding=self.mapper.from_surface(flow.surface),
            logits=self.decoder(flow.surface, batch.target_tokens[:, :-1]),
        )


def build_model(config: EnergyConfig) -> EnergyFlowModel:
    """A new model in the sizes of `config`, the same one whenever its seed is the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.training.seed)
        return EnergyFlowModel(config)
