"""Records in another order each time round, for ever; where it stands is two numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from services.distiller.data.corpus import Offsets


@dataclass(eq=False)
class Order:
    """Args: offsets: of the records, in the file's order. seed: draws the order of each epoch.

    Attributes: epoch: how often all have been gone round; −1 before the first. following: the next place of its order.
    """

    offsets: Offsets
    seed: int
    epoch: int = -1
    following: int = 0
    _order: Offsets = field(default_factory=lambda: np.array([], dtype=np.int64))

    def __next__(self) -> int:
        if self.following == len(self._order):
            self.restore(self.epoch + 1, 0)
        self.following += 1
        return int(self._order[self.following - 1])

    def restore(self, epoch: int, following: int) -> None:
        """Go on from where an order of the same offsets and seed was."""
        self.epoch, self.following = epoch, following
        count = len(self.offsets) if epoch >= 0 else 0
        self._order = self.offsets[np.random.default_rng([self.seed, max(epoch, 0)]).permutation(count)]
