import torch

from energy_flow.config_parsing import load_config
from energy_flow.core.energy_carrier import EnergyCarrier

CONFIG = load_config("cpu_demo")


def _carrier() -> EnergyCarrier:
    torch.manual_seed(0)
    return EnergyCarrier(CONFIG.carrier, CONFIG.flow)


def test_a_new_carriers_recurrent_weights_are_orthogonal_gate_by_gate() -> None:
    for gate in _carrier().cell.weight_hh.chunk(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(len(gate)), rtol=0, atol=1e-5)


@torch.no_grad()
def test_what_enters_the_gru_is_bounded_however_large_the_signal() -> None:
    carrier = _carrier()
    entered: list[torch.Tensor] = []
    carrier.cell.register_forward_pre_hook(lambda _, inputs: entered.append(inputs[0]))
    signal = 1e6 * torch.randn(50, CONFIG.carrier.neuron_size)
    carrier(signal, torch.ones(50), torch.zeros(50, CONFIG.carrier.hidden_size))
    assert entered[0].abs().max() <= (CONFIG.carrier.neuron_size + 1) ** 0.5


@torch.no_grad()
def test_new_flows_go_nearly_straight_and_keep_most_of_their_energy() -> None:
    energy = torch.randn(500)
    carried = _carrier()(
        torch.randn(500, CONFIG.carrier.neuron_size), energy, torch.randn(500, CONFIG.carrier.hidden_size)
    )
    assert carried.displacement[:, :2].abs().max() < 0.3
    assert carried.displacement[:, 2].std() > 0.05
    assert torch.corrcoef(torch.stack([energy, carried.energy]))[0, 1] > 0.9
