"""Which layers lose most by being int8, and how few of them must stay as they were.

Layers of one kind (all `down_proj`, or the output head) suffer from the same outliers, so whole kinds are compared: a handful
of measurements, each of an effect that few tokens show. Single layers are compared only in the kind that reaches the goal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from services.distiller.int8.known import Known
from services.distiller.int8.quantised import Quantised

SHARE = 0.25
"""Of the layers, at most so many are kept."""


def keep_sensitive(quantised: Quantised, few: Known, probe: Known, aim: float, check: Callable[[], None]) -> None:
    """Keep layers until the KL on the probe is at the aim: kinds whole, of the last one no more than it takes.

    Where that is not reached, all kinds that help and of which the share allows it are kept.
    Args:
        few: some of the probe: enough to tell which is worse than which, by many measurements.
        check: called between two measurements; whatever it raises goes on.
    """

    def kl(kept: Collection[str], known: Known = few) -> float:
        check()
        quantised.keep(kept)
        return known.kl(quantised.model)

    quantised.keep(chosen(quantised.names, kl, lambda kept: kl(kept, probe) <= aim))


def chosen(
    names: Sequence[str], kl: Callable[[Sequence[str]], float], enough: Callable[[Sequence[str]], bool]
) -> list[str]:
    """The layers to keep. Args: kl: with these kept; enough: whether no more are needed."""
    room = max(1, int(SHARE * len(names)))
    kept: list[str] = []
    for gain, kind in by_gain(kinds(names), kept, kl):
        if gain <= 0:
            break
        if len(kept) + len(kind) > room:
            continue
        if enough([*kept, *kind]):
            single = [name for _, (name,) in by_gain([[name] for name in kind], kept, kl)]
            return [*kept, *single[: _fewest(single, kept, enough)]]
        kept += kind
    return kept


def _fewest(single: Sequence[str], kept: Sequence[str], enough: Callable[[Sequence[str]], bool]) -> int:
    return fewest(len(single), lambda count: enough([*kept, *single[:count]]))


def kinds(names: Iterable[str]) -> list[list[str]]:
    """Layers by the last part of their name."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        found[name.rpartition(".")[2]].append(name)
    return list(found.values())


def by_gain(
    groups: Iterable[list[str]], kept: Sequence[str], kl: Callable[[Sequence[str]], float]
) -> list[tuple[float, list[str]]]:
    """How much lower the KL is with each group beside `kept`, for each layer of it; most first."""
    before = kl(kept)
    gains = [((before - kl([*kept, *group])) / len(group), group) for group in groups]
    return sorted(gains, key=lambda one: -one[0])


def fewest(count: int, enough: Callable[[int], bool]) -> int:
    """The least number from 1 to `count` that is enough, where more is never worse; `count` if none is."""
    low, high = 1, count
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low if count else 0
