"""Learns which optimizers take turns, so that a loop without a loader steps once per round of them."""


class OptimizerCycle:
    """The order in which optimizers step, as long as it is one: generator, critic, generator, critic.

    Where it is none (two steps of the critic to one of the generator), every optimizer's step ends a step. An optimizer
    that stepped alone several times before the first other came takes turns only once a whole round has shown it: it
    may as well step five times to the other's one.
    """

    def __init__(self) -> None:
        self._order: list[int] = []
        self._last: int | None = None
        self._is_strict = True
        self._has_repeated = False
        self._is_on_trial = False

    def stepped(self, optimizer: int) -> None:
        """This optimizer, by its `id`, has stepped."""
        if not (self._is_strict or self.is_alone):
            return
        if optimizer not in self._order:
            self._order.append(optimizer)
            self._is_on_trial = self._has_repeated
        elif self.is_alone:
            self._has_repeated = True
        elif optimizer != self._expected():
            self.broke()
        elif optimizer == self._order[-1]:
            self._is_on_trial = False
        self._last = optimizer

    def broke(self) -> None:
        """Optimizers do not take turns after all."""
        self._is_strict = False

    def is_complete(self, stepped: list[int]) -> bool:
        """Whether a step in which these optimizers stepped, in this order, has seen the last of the round."""
        takes_turns = self._is_strict and not (self.is_alone or self._is_on_trial)
        return not takes_turns or stepped[-1] == self._order[-1]

    @property
    def is_alone(self) -> bool:
        """Whether only one optimizer has stepped so far."""
        return len(self._order) < 2

    def _expected(self) -> int:
        assert self._last is not None
        return self._order[(self._order.index(self._last) + 1) % len(self._order)]
