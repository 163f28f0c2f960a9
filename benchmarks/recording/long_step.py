"""One step of more than a million events: L-BFGS evaluates 20 times, each over 99 time steps of two LSTM cells."""

import torch
from torch import Tensor, nn

NUM_STEPS = 5


class Sequence(nn.Module):
    """That of pytorch/examples' time_sequence_prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.linear = nn.LSTMCell(1, 51), nn.LSTMCell(51, 51), nn.Linear(51, 1)

    def forward(self, series: Tensor) -> Tensor:
        first = second = (series.new_zeros(len(series), 51),) * 2
        found = []
        for value in series.unbind(dim=1):
            first = self.first(value[:, None], first)
            second = self.second(first[0], second)
            found.append(self.linear(second[0]))
        return torch.cat(found, dim=1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    series = torch.sin(torch.arange(100).double() / 5 + 6 * torch.rand(20, 1).double())
    model = Sequence().double()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)

    def evaluate() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(series[:, :-1]), series[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(NUM_STEPS):
        optimizer.step(evaluate)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
