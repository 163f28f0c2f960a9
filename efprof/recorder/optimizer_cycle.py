"""Learns which optimizers take turns, so that a loop without a loader steps once per round of them."""


class OptimizerCycle:
    """The order in which optimizers step, as long as it is one: generator, critic, generator, critic.

    Where it is none (two steps of the critic to one of the generator), every optimizer's step ends a step.
    """

    def __init__(self) -> None:
        self._order: list[int] = []
        self._last: int | None = None
        self._is_strict = True

    def stepped(self, optimizer: int) -> None:
        """This optimizer, by its `id`, has stepped."""
        if not (self._is_strict or self.is_alone):
            return
        if optimizer not in self._order:
            self._order.append(optimizer)
        elif self._is_strict and optimizer != self._expected():
            self.broke()
        self._last = optimizer

    def broke(self) -> None:
        """Optimizers do not take turns after all."""
        self._is_strict = False

    def is_complete(self, stepped: list[int]) -> bool:
        """Whether a step in which these optimizers stepped, in this order, has seen the last of the round."""
        return not self._is_strict or self.is_alone or stepped[-1] == self._order[-1]

    @property
    def is_alone(self) -> bool:
        """Whether only one optimizer has stepped so far."""
        return len(self._order) < 2

    def _expected(self) -> int:
        assert self._last is not None
        return self._order[(self._order.index(self._last) + 1) % len(self._order)]
