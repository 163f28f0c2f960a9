import torch

from energy_flow.energy_config import EnergyConfig
from energy_flow.text_bridge.decoder import TextDecoder
from energy_flow.text_bridge.encoder import TextEncoder
from energy_flow.text_bridge.tokens import encode


def _tokens(config: EnergyConfig, *texts: str) -> torch.Tensor:
    return torch.stack([torch.from_numpy(encode(text, config.bridge.max_bytes)) for text in texts])


@torch.no_grad()
def test_the_decoder_sees_no_token_that_comes_later(config: EnergyConfig) -> None:
    torch.manual_seed(0)
    decoder = TextDecoder(config.bridge, config.lattice)
    surface = torch.randn(1, config.lattice.height, config.lattice.width).expand(2, -1, -1)
    logits = decoder(surface, _tokens(config, "same then this", "same and other")[:, :-1])
    torch.testing.assert_close(logits[0, :6], logits[1, :6])
    assert not torch.allclose(logits[0, 6:8], logits[1, 6:8])


@torch.no_grad()
def test_the_decoder_writes_as_many_tokens_as_a_text_may_have(config: EnergyConfig) -> None:
    decoder = TextDecoder(config.bridge, config.lattice)
    surface = torch.randn(2, config.lattice.height, config.lattice.width)
    assert decoder.write(surface).shape == (2, config.bridge.max_bytes + 1)


@torch.no_grad()
def test_the_encoder_gives_a_text_the_same_surface_in_any_company(config: EnergyConfig) -> None:
    encoder = TextEncoder(config.bridge, config.lattice)
    together = encoder(_tokens(config, "one text", "another, longer text", ""))
    assert torch.isfinite(together).all()
    torch.testing.assert_close(encoder(_tokens(config, "one text")), together[:1], rtol=1e-4, atol=1e-5)
