"""Moves all flows of a batch from the input surface through the lattice onto the output surface."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from energy_flow.core.energy_carrier import Carried, EnergyCarrier
from energy_flow.core.flow_storage import Ended, Flows, split
from energy_flow.core.lattice import Lattice
from energy_flow.core.simple_neuron import SimpleNeuron
from energy_flow.energy_config import EnergyConfig
from energy_flow.errors import EnergyFlowError
from energy_flow.late_read import LateRead

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_LAUNCH_FEATURES = 4  # energy and the three normalised coordinates


class FlowResult(NamedTuple):
    """The output surface and how it came about; the two counts stay on the device."""

    surface: Tensor  # [batch, height, width]
    landed_share: Tensor  # [] float32
    num_steps: Tensor  # [] float32, flow steps in which any flow travelled


class Tally(NamedTuple):
    """How far a batch has come; all of shape [] and int64, on the device."""

    num_travelling: Tensor
    streak: Tensor  # flow steps since when enough flows have landed
    num_steps: Tensor  # flow steps in which any flow travelled


class FlowProcessor(nn.Module):
    """Starts one flow per active surface cell and steps all of them until enough have landed.

    The host never waits for the device here. Landing and convergence are decided on the device, by masks; the
    host learns the number of travelling flows late, where it learns it at all, and that is safe: the number only
    falls, so an old one is still enough room for all that travel.
    """

    def __init__(self, config: EnergyConfig) -> None:
        """Build lattice, neuron and carrier in the sizes of `config`."""
        super().__init__()
        self.config = config.flow
        self.flows_per_text = config.flows_per_text
        self.last_depth = config.lattice.depth - 1
        self.lattice = Lattice(config.lattice)
        self.neuron = SimpleNeuron(config.lattice.cell_channels, config.carrier.neuron_size)
        self.carrier = EnergyCarrier(config.carrier, config.flow)
        self.start = nn.Linear(_LAUNCH_FEATURES, config.carrier.hidden_size)
        self._compiled_advance = _compiled(self.advance) if config.runtime.compile else None

    def forward(self, surface: Tensor) -> FlowResult:
        """Carry input surfaces [batch, height, width] to output surfaces of the same shape."""
        flows, tally = self.launch(surface)
        num_flows = flows.num_rows
        most_travelling = num_flows - math.ceil(self.config.convergence_threshold * num_flows)
        ended: list[Ended] = []
        counts: LateRead[None] = LateRead()
        for num_steps in self._groups():
            flows, tally = self._take_steps(num_steps, flows, tally, most_travelling)
            # Only here and not within a group: when backward computes a group anew, other counts have arrived.
            num_rows = self._rows_needed(tally, counts, num_flows)
            if num_rows == 0:
                break
            if num_rows < flows.num_rows:
                flows, rest = split(flows, num_rows)
                ended.append(rest)
        landed, num_landed = self.deposit([*ended, flows.ended()], surface.shape)
        return FlowResult(landed, landed_share=num_landed / num_flows, num_steps=tally.num_steps.float())

    def launch(self, surface: Tensor) -> tuple[Flows, Tally]:
        """Start a flow at depth 0 under each of the `flows_per_text` strongest cells of every surface."""
        batch, _, width = surface.shape
        num_flows = batch * self.flows_per_text
        activation = surface.flatten(1).float()
        cell = activation.abs().topk(self.flows_per_text, sorted=False).indices
        bound = self.config.energy_bound
        energy = bound * torch.tanh(activation.gather(1, cell).flatten() / bound)
        column, row = (cell % width).flatten().float(), (cell // width).flatten().float()
        position = torch.stack([column, row, torch.zeros_like(column)], dim=-1)
        features = torch.cat([(energy / bound)[:, None], self.lattice.normalise(position)], dim=-1)
        flows = Flows(
            text=torch.arange(num_flows, device=surface.device) // self.flows_per_text,
            position=position,
            energy=energy,
            hidden=torch.tanh(self.start(features)),
            travelling=torch.ones(num_flows, dtype=torch.bool, device=surface.device),
        )
        return flows, Tally(*(torch.full((), start, device=surface.device) for start in (num_flows, 0, 0)))

    def advance(self, flows: Flows, tally: Tally, most_travelling: int) -> tuple[Flows, Tally]:
        """Move the travelling flows by one flow step, and see which of them travel on.

        Enough flows have landed once at most `most_travelling` still travel; when that has been so for
        `convergence_patience` flow steps, the rest is given up where it is.
        """
        moved = self.step(flows)
        position = torch.where(flows.travelling[:, None], moved.position, flows.position)
        travelling = flows.travelling & (position[:, 2] < self.last_depth)
        num_travelling = travelling.sum()
        streak = (tally.streak + 1) * (num_travelling <= most_travelling)
        is_open = streak < self.config.convergence_patience
        energy = torch.where(flows.travelling, moved.energy, flows.energy)
        return (
            Flows(flows.text, position, energy, moved.hidden, travelling & is_open),
            Tally(num_travelling * is_open, streak, tally.num_steps + (tally.num_travelling > 0)),
        )

    def step(self, flows: Flows) -> Flows:
        """Move every row by one flow step: cell and place to signal, signal to energy and displacement."""
        place = self.lattice.normalise(flows.position)
        signal = self.neuron(self.lattice.sample(place), place)
        carried: Carried = self.carrier(signal, flows.energy, flows.hidden)
        position = self.lattice.clamp(flows.position + carried.displacement)
        return flows._replace(position=position, energy=carried.energy, hidden=carried.hidden)

    def deposit(self, ended: Sequence[Ended], shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Surfaces of `shape` [batch, height, width] with the energies of all flows that landed, and their number [].

        An energy is shared among the four cells around its place, so that the place has a gradient.
        """
        text, position, energy = (torch.cat(parts) for parts in zip(*ended, strict=True))
        has_landed = position[:, 2] >= self.last_depth
        plane = position[:, :2]
        first = plane.detach().floor()
        beyond = plane - first
        second = torch.minimum(first + 1, self.lattice.last[:2])
        # A place that is not finite is no cell; its shares are not finite either, and with them the loss.
        column, row = torch.stack([first, second]).nan_to_num().long().unbind(dim=-1)  # each [2, rows]
        share_x, share_y = torch.stack([1 - beyond, beyond]).unbind(dim=-1)
        cells = (text * shape[1] + row[:, None]) * shape[2] + column  # [2, 2, rows], as the shares are
        shares = torch.where(has_landed, energy, 0.0) * share_y[:, None] * share_x
        surface = energy.new_zeros(shape.numel()).scatter_add(0, cells.flatten(), shares.flatten())
        return surface.view(shape), has_landed.sum()

    def _groups(self) -> Iterator[int]:
        """How many flow steps to take before rows are dropped, again and again, `max_steps` in all."""
        group = max(1, self.config.checkpoint_steps)
        for first in range(0, self.config.max_steps, group):
            yield min(group, self.config.max_steps - first)

    def _take_steps(self, num_steps: int, flows: Flows, tally: Tally, most_travelling: int) -> tuple[Flows, Tally]:
        """Take flow steps, and let backward compute them anew where that is configured."""
        advance = self._compiled_advance or self.advance

        def run(flows: Flows, tally: Tally) -> tuple[Flows, Tally]:
            for _ in range(num_steps):
                flows, tally = advance(flows, tally, most_travelling)
            return flows, tally

        if self.config.checkpoint_steps == 0:
            return run(flows, tally)
        # Nothing random happens in a flow step; keeping the state of the generators would make the host wait.
        steps: tuple[Flows, Tally] = checkpoint(run, flows, tally, use_reentrant=False, preserve_rng_state=False)
        return steps

    def _rows_needed(self, tally: Tally, counts: LateRead[None], num_flows: int) -> int:
        """Send the number of travelling flows on its way; the rows that must stay, by the newest one that has arrived.

        Rows are dropped in whole lots: a few sizes of tensor that come again and again leave the allocator's free
        blocks of use, where a new size for every step would shred them.
        """
        if self.config.compaction_lot == 0 or tally.num_travelling.is_mps:  # MPS tells no number without waiting for it
            return num_flows
        lot = math.ceil(self.config.compaction_lot * num_flows)
        counts.push(None, tally.num_travelling)
        arrived = counts.arrived()
        return math.ceil(int(arrived[-1][1]) / lot) * lot if arrived else num_flows


def _compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function`, compiled at its first call for any numbers of rows; anew only for what is not a matter of sizes.

    Raises:
        EnergyFlowError: when this machine cannot compile: at once, or at the first call where a compiler is missing.

    """
    from torch._dynamo.exc import BackendCompilerFailed  # takes seconds to import

    try:
        fast = torch.compile(function, dynamic=True)
    except RuntimeError as error:
        raise _cannot_compile(error) from error

    @wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return fast(*args, **kwargs)
        except BackendCompilerFailed as error:
            raise _cannot_compile(error.inner_exception) from error

    return run


def _cannot_compile(error: Exception) -> EnergyFlowError:
    reason = str(error).partition("\n")[0] or type(error).__name__
    return EnergyFlowError(
        f"runtime.compile=true does not work on this machine ({reason}): set runtime.compile=false, "
        "or install what torch.compile builds with, g++ for the CPU and triton for CUDA"
    )
