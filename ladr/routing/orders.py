"""In which order waiting requests are served. Pure containers; every operation takes O(log n) or less.

Each is a static key in a heap. What depends on the time is made static, or changes once and for all: an entry that is late
stays late, and waiting adds the same to all who wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush

from ladr.v1 import generation_pb2

MAX_KEYS = 4096  # of the fair order; a key that is forgotten begins anew


class Priority(IntEnum):
    """Classes of requests."""

    HIGH = 0
    NORMAL = 1
    BATCH = 2


_CLASSES: dict[int, Priority] = {
    generation_pb2.PRIORITY_HIGH: Priority.HIGH,
    generation_pb2.PRIORITY_BATCH: Priority.BATCH,
}


def class_of(priority: int) -> Priority:
    """The class of a ladr.v1.Priority; normal for none and for one that this version does not know."""
    return _CLASSES.get(priority, Priority.NORMAL)


@dataclass(eq=False)
class Entry:
    """A waiting request. Entries are compared by identity.

    Attributes:
        sequence: unique; of equals the lesser goes first.
        arrived_s: when it came, monotonic seconds.
        deadline_s: when its first token is due; None: at any time.
        predicted_s: how long from a free place to its first token, about.
        tokens: how much work it is: prompt tokens and the answer's expected ones.
        key: who pays for it, in the fair order.
        priority: its class.
    """

    sequence: int
    arrived_s: float
    deadline_s: float | None = None
    predicted_s: float = 0.0
    tokens: float = 1.0
    key: str = ""
    priority: Priority = Priority.NORMAL


class Order(ABC):
    """A queue. `now_s` is monotonic seconds and never goes back. The caller bounds how many entries there are."""

    @abstractmethod
    def push(self, entry: Entry, now_s: float) -> None:
        """Add an entry that is not in it."""

    @abstractmethod
    def peek(self, now_s: float) -> Entry | None:
        """The next one, which stays; None if there is none."""

    @abstractmethod
    def remove(self, entry: Entry) -> None:
        """Take one out, whether it is the next or not. Raises: KeyError: it is not in it."""

    @abstractmethod
    def __len__(self) -> int: ...

    def pop(self, now_s: float) -> Entry | None:
        """Take the next one out; None if there is none."""
        entry = self.peek(now_s)
        if entry is not None:
            self.remove(entry)
        return entry


class _Heap:
    """Entries by a key that does not change. What was taken out is skipped when it comes up, or swept when it is most."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._here: dict[Entry, tuple[float, int, Entry]] = {}

    def push(self, entry: Entry, key: float) -> None:
        item = self._here[entry] = (key, entry.sequence, entry)
        heappush(self._heap, item)

    def peek(self) -> Entry | None:
        while self._heap and self._here.get(self._heap[0][2]) is not self._heap[0]:
            heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def remove(self, entry: Entry) -> None:
        del self._here[entry]
        if len(self._heap) > 2 * len(self._here) + 64:
            self._heap = sorted(self._here.values())  # a sorted list is a heap

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._here

    def __len__(self) -> int:
        return len(self._here)


class _Keyed(Order):
    """The least of a key that is known on arrival."""

    def __init__(self) -> None:
        self._heap = _Heap()

    def key(self, entry: Entry) -> float:
        raise NotImplementedError

    def push(self, entry: Entry, now_s: float) -> None:
        self._heap.push(entry, self.key(entry))

    def peek(self, now_s: float) -> Entry | None:
        return self._heap.peek()

    def remove(self, entry: Entry) -> None:
        self._heap.remove(entry)

    def __len__(self) -> int:
        return len(self._heap)


class Fifo(_Keyed):
    """First come, first served. One that comes back from a failed worker has its old place."""

    def key(self, entry: Entry) -> float:
        return entry.arrived_s


class Shortest(_Keyed):
    """The least work first, and who waits gains on it: tokens + tokens_per_s · arrived.

    With `tokens_per_s` 0 a long request may wait for ever; at 20 one of 2,000 tokens more waits at most 100 s longer.
    """

    def __init__(self, tokens_per_s: float = 20.0) -> None:
        super().__init__()
        self._tokens_per_s = tokens_per_s

    def key(self, entry: Entry) -> float:
        return entry.tokens + self._tokens_per_s * entry.arrived_s


class Feasible(Order):
    """Those that can still make their deadline, in an order of their own, then those that cannot, first come, first served.

    An entry is late when now + predicted > deadline. One without a deadline counts as due `patience_s` after it came, and is
    not left behind for ever by those that have one. A late one waits until no other does.
    """

    def __init__(self, inner: Callable[[], Order] = Fifo, patience_s: float = 30.0) -> None:
        self._timely = inner()
        self._late = Fifo()
        self._is_late: set[Entry] = set()
        self._patience_s = patience_s

    def push(self, entry: Entry, now_s: float) -> None:
        if self._missed(entry, now_s):
            self._put_behind(entry, now_s)
        else:
            self._timely.push(entry, now_s)

    def peek(self, now_s: float) -> Entry | None:
        entry = self._timely.peek(now_s)
        while entry is not None and self._missed(entry, now_s):
            self._timely.remove(entry)
            self._put_behind(entry, now_s)
            entry = self._timely.peek(now_s)
        return self._late.peek(now_s) if entry is None else entry

    def pop(self, now_s: float) -> Entry | None:
        entry = self.peek(now_s)
        if entry is not None and entry not in self._is_late:
            return self._timely.pop(now_s)  # its own way: a fair order keeps count of what is served
        if entry is not None:
            self.remove(entry)
        return entry

    def remove(self, entry: Entry) -> None:
        if entry in self._is_late:
            self._is_late.remove(entry)
            self._late.remove(entry)
        else:
            self._timely.remove(entry)

    def __len__(self) -> int:
        return len(self._timely) + len(self._late)

    def _put_behind(self, entry: Entry, now_s: float) -> None:
        self._is_late.add(entry)
        self._late.push(entry, now_s)

    def _missed(self, entry: Entry, now_s: float) -> bool:
        deadline_s = entry.arrived_s + self._patience_s if entry.deadline_s is None else entry.deadline_s
        return now_s + entry.predicted_s > deadline_s


class Fair(Order):
    """Start-time fair queueing between keys: each gets its share of the tokens, whoever sends more waits longer.

    start = max(v, the key's last finish), finish = start + tokens; the least start goes first and becomes v.
    Source: Goyal, Vin, Cheng, "Start-time Fair Queueing", SIGCOMM '96.
    """

    def __init__(self) -> None:
        self._heap = _Heap()
        self._starts: dict[Entry, float] = {}
        self._finish: OrderedDict[str, float] = OrderedDict()  # of the keys that came last
        self._virtual = 0.0

    def push(self, entry: Entry, now_s: float) -> None:
        start = max(self._virtual, self._finish.get(entry.key, 0.0))
        self._finish[entry.key] = start + entry.tokens
        self._finish.move_to_end(entry.key)
        self._starts[entry] = start
        self._heap.push(entry, start)
        while len(self._finish) > MAX_KEYS:
            self._finish.popitem(last=False)

    def peek(self, now_s: float) -> Entry | None:
        return self._heap.peek()

    def pop(self, now_s: float) -> Entry | None:
        entry = self._heap.peek()
        if entry is not None:
            self._virtual = self._starts.pop(entry)
            self._heap.remove(entry)
        return entry

    def remove(self, entry: Entry) -> None:
        """One that is not served costs its key nothing, if it is the key's newest."""
        self._heap.remove(entry)
        start = self._starts.pop(entry)
        if self._finish.get(entry.key) == start + entry.tokens:
            self._finish[entry.key] = start

    def __len__(self) -> int:
        return len(self._heap)


class Classes(Order):
    """High before normal before batch, each class in an order of its own. Classes come first in every composed order.

    A class ages: its next entry counts as of the class above once it has waited `ageing_s`, so that none is starved. Of the
    classes' next entries the one with the least arrived + ageing_s · class goes first.
    """

    def __init__(self, inner: Callable[[], Order] = Fifo, ageing_s: float = 30.0) -> None:
        self._inner = {priority: inner() for priority in Priority}
        self._ageing_s = ageing_s

    def push(self, entry: Entry, now_s: float) -> None:
        self._inner[entry.priority].push(entry, now_s)

    def peek(self, now_s: float) -> Entry | None:
        order = self._next(now_s)
        return order.peek(now_s) if order else None

    def pop(self, now_s: float) -> Entry | None:
        order = self._next(now_s)
        return order.pop(now_s) if order else None

    def remove(self, entry: Entry) -> None:
        self._inner[entry.priority].remove(entry)

    def __len__(self) -> int:
        return sum(map(len, self._inner.values()))

    def _next(self, now_s: float) -> Order | None:
        """The class whose turn it is."""
        heads = [(order.peek(now_s), order) for order in self._inner.values()]
        known = [(entry, order) for entry, order in heads if entry is not None]
        return min(known, key=lambda head: self._rank(head[0]))[1] if known else None

    def _rank(self, entry: Entry) -> tuple[float, int]:
        return entry.arrived_s + self._ageing_s * entry.priority, entry.sequence


ORDERS: Mapping[str, Callable[[], Order]] = {
    "fifo": lambda: Classes(Fifo),
    "feasible": lambda: Classes(Feasible),
    "shortest": lambda: Classes(Shortest),
    "feasible-shortest": lambda: Classes(lambda: Feasible(Shortest)),
    "fair": lambda: Classes(Fair),
    "feasible-fair": lambda: Classes(lambda: Feasible(Fair)),
}


def create(name: str) -> Order:
    """The order of that name, empty."""
    return ORDERS[name]()
