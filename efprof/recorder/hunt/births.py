"""Which operation made a tensor bad, and which of those before it is to blame."""

from collections import deque
from collections.abc import Sequence

from efprof.artifacts.hunts import Kind, Origin


class Event:
    """An operation that left a tensor bad; `root` is the one that made what it passes on, maybe itself."""

    def __init__(
        self, kind: Kind, origin: Origin, *, parents: Sequence["Event"], has_nan: bool, needs_grad: bool
    ) -> None:
        self.kind, self.origin, self.parents, self.has_nan, self.needs_grad = kind, origin, parents, has_nan, needs_grad
        self.is_mask = False
        roots = [parent.root for parent in parents]
        real = [one for one in roots if one.kind in ("nan", "inf") or (one.kind == "given" and not self._unmasks(one))]
        if real:
            self.root: Event = min(real, key=lambda one: one.origin.number)
        else:
            self.root = roots[0] if roots and kind == "passed" else self

    def _unmasks(self, given: "Event") -> bool:
        """Whether it makes NaN of -inf alone, as a mask has them: that is no bad data."""
        return self.kind == "nan" and given.is_mask

    def way(self) -> list["Event"]:
        """From the root to this one, the shortest."""
        waiting = deque[tuple[Event, tuple[Event, ...]]]([(self, (self,))])
        seen = {id(self)}
        while waiting:
            one, way = waiting.popleft()
            if one is self.root:
                return list(reversed(way))
            for parent in one.parents:
                if parent.root is self.root and id(parent) not in seen:
                    seen.add(id(parent))
                    waiting.append((parent, (*way, parent)))
        return [self]
