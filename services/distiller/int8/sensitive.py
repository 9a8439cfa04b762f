"""Which layers lose most by being int8, and how few of them must stay as they were."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from services.distiller.int8.known import Known
from services.distiller.int8.quantised import Quantised

SHARE = 0.25
"""Of the layers, at most so many are kept."""
SPLIT = 2
"""Kinds of layer (say all `down_proj`) whose layers are looked at one by one."""
_MARGIN = 0.95
"""What is chosen on the probe aims a little below the goal, for it is measured elsewhere."""


def keep_sensitive(quantised: Quantised, few: Known, probe: Known, goal: float, check: Callable[[], None]) -> None:
    """Keep the fewest layers with which the KL on the probe is at the goal; all that may be kept, if that is not reached.

    Args:
        few: some of the probe: enough to tell which layer is worse than which, by many measurements.
        check: called between two measurements; whatever it raises goes on.
    """

    def kl(kept: Sequence[str], known: Known = few) -> float:
        check()
        quantised.keep(kept)
        return known.kl(quantised.model)

    ranked = by_gain(quantised, kl(()), kl)
    quantised.keep(ranked[: fewest(len(ranked), lambda count: kl(ranked[:count], probe) <= _MARGIN * goal)])


def by_gain(quantised: Quantised, before: float, kl: Callable[[Sequence[str]], float]) -> list[str]:
    """The layers that are worth most, best first: how much the KL falls when one alone is kept. At most SHARE of all.

    First kinds are measured whole, then the layers of the worst kinds one by one.
    """
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for name in quantised.names:
        kinds[name.rpartition(".")[2]].append(name)
    gain = {kind: before - kl(names) for kind, names in kinds.items()}
    worst = sorted((kind for kind in kinds if len(kinds[kind]) > 1), key=lambda kind: -gain[kind])[:SPLIT]
    single = [kind for kind in kinds if len(kinds[kind]) == 1]
    gains = {kinds[kind][0]: gain[kind] for kind in single}
    gains |= {name: before - kl([name]) for kind in worst for name in kinds[kind]}
    helping = sorted((name for name in gains if gains[name] > 0), key=lambda name: -gains[name])
    return helping[: max(1, int(SHARE * len(quantised.names)))]


def fewest(count: int, enough: Callable[[int], bool]) -> int:
    """The least number from 1 to `count` that is enough, where more is never worse; `count` if none is."""
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low if count else 0
