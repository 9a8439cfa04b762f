"""Each order against a dumb second one that looks at everything each time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladr.routing.orders import MAX_KEYS, ORDERS, Classes, Entry, Fair, Feasible, Fifo, Order, Priority, Shortest


@dataclass
class Dumb:
    """A list; `best` says which of the entries is next."""

    best: Callable[[list[Entry], float], Entry]
    entries: list[Entry] = field(default_factory=list)

    def pop(self, now_s: float) -> Entry | None:
        if not self.entries:
            return None
        entry = self.best(self.entries, now_s)
        self.entries.remove(entry)
        return entry


def by_arrival(entries: list[Entry], now_s: float) -> Entry:
    return min(entries, key=lambda e: (e.arrived_s, e.sequence))


def by_size(entries: list[Entry], now_s: float) -> Entry:
    return min(entries, key=lambda e: (e.tokens + 20 * e.arrived_s, e.sequence))


def late(entry: Entry, now_s: float) -> bool:
    due_s = entry.arrived_s + 30 if entry.deadline_s is None else entry.deadline_s
    return now_s + entry.predicted_s > due_s


def feasible_first(
    inner: Callable[[list[Entry], float], Entry],
) -> Callable[[list[Entry], float], Entry]:
    def best(entries: list[Entry], now_s: float) -> Entry:
        timely = [entry for entry in entries if not late(entry, now_s)]
        return inner(timely, now_s) if timely else by_arrival(entries, now_s)

    return best


def by_class(inner: Callable[[list[Entry], float], Entry]) -> Callable[[list[Entry], float], Entry]:
    def best(entries: list[Entry], now_s: float) -> Entry:
        heads = [
            inner(of_class, now_s)
            for priority in Priority
            if (of_class := [entry for entry in entries if entry.priority == priority])
        ]
        return min(heads, key=lambda e: (e.arrived_s + 30 * e.priority, e.sequence))

    return best


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "push", "pop", "pop", "remove"]),
        st.sampled_from([0.0, 0.5, 3.0, 20.0]),  # time until then
        st.sampled_from([None, -1.0, 0.5, 2.0, 40.0]),  # deadline after arrival
        st.sampled_from([0.0, 0.4, 5.0]),
        st.integers(1, 500),
        st.sampled_from("abc"),
        st.sampled_from(list(Priority)),
    ),
    max_size=60,
)

PAIRS = {
    "fifo": (Fifo, by_arrival),
    "shortest": (Shortest, by_size),
    "feasible": (Feasible, feasible_first(by_arrival)),
    "feasible, shortest": (lambda: Feasible(Shortest), feasible_first(by_size)),
    "classes": (Classes, by_class(by_arrival)),
    "classes, feasible, shortest": (lambda: Classes(lambda: Feasible(Shortest)), by_class(feasible_first(by_size))),
}


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=500, deadline=None)
@given(steps=STEPS)
def test_an_order_takes_what_a_look_at_everything_would_take(name: str, steps: list[tuple]) -> None:
    make, best = PAIRS[name]
    order, dumb = make(), Dumb(best)
    now_s = 0.0
    for sequence, (what, after_s, due_s, predicted_s, tokens, key, priority) in enumerate(steps):
        now_s += after_s
        if what == "push":
            deadline_s = None if due_s is None else now_s + due_s
            entry = Entry(sequence, now_s, deadline_s, predicted_s, tokens, key, priority)
            order.push(entry, now_s)
            dumb.entries.append(entry)
        elif what == "remove" and dumb.entries:
            entry = dumb.entries.pop(tokens % len(dumb.entries))
            order.remove(entry)
        else:
            seen = order.peek(now_s)
            assert order.pop(now_s) is seen
            assert seen is dumb.pop(now_s)
        assert len(order) == len(dumb.entries)


@settings(max_examples=500, deadline=None)
@given(steps=STEPS)
def test_the_fair_order_is_start_time_fair_queueing(steps: list[tuple]) -> None:
    """The second one keeps each key's tags in a list and finds the least by looking at all."""
    order: Order = Fair()
    waiting: list[tuple[float, int, Entry]] = []
    finish: dict[str, float] = {}
    virtual = 0.0
    for sequence, (what, _, _, _, tokens, key, _) in enumerate(steps):
        if what == "push":
            entry = Entry(sequence, 0.0, tokens=tokens, key=key)
            order.push(entry, 0.0)
            start = max(virtual, finish.get(key, 0.0))
            finish[key] = start + tokens
            waiting.append((start, sequence, entry))
        elif what == "remove" and waiting:
            start, _, gone = waiting.pop(tokens % len(waiting))
            order.remove(gone)
            if finish[gone.key] == start + gone.tokens:
                finish[gone.key] = start
        else:
            expected = None
            if waiting:
                item = min(waiting, key=lambda one: one[:2])
                waiting.remove(item)
                virtual, _, expected = item
            assert order.pop(0.0) is expected
        assert len(order) == len(waiting)


def test_the_fair_order_forgets_keys_though_somebody_always_waits() -> None:
    order = Fair()
    order.push(Entry(0, 0.0, tokens=1.0, key="first"), 0.0)
    for sequence in range(1, 3 * MAX_KEYS):
        order.push(Entry(sequence, 0.0, tokens=1.0, key=str(sequence)), 0.0)
        order.pop(0.0)
    assert len(order._finish) <= MAX_KEYS


def test_a_key_that_sends_ten_times_as_much_gets_no_more_than_the_other() -> None:
    order = Fair()
    for sequence in range(110):
        order.push(Entry(sequence, 0.0, tokens=10, key="quiet" if sequence % 11 == 0 else "loud"), 0.0)
    first = [order.pop(0.0) for _ in range(20)]
    assert sum(entry.key == "quiet" for entry in first if entry) == 10


def test_batch_is_served_in_the_end_however_many_are_above_it() -> None:
    order = Classes(ageing_s=30)
    batch = Entry(0, 0.0, priority=Priority.BATCH)
    order.push(batch, 0.0)
    for second in range(1, 200):
        order.push(Entry(second, float(second), priority=Priority.HIGH), float(second))
        if order.pop(float(second)) is batch:
            break
    assert second == 60  # two classes are worth 60 s; of equals the older goes first


def test_removing_most_of_many_leaves_the_rest_in_order() -> None:
    order = Fifo()
    entries = [Entry(n, float(-n)) for n in range(1000)]
    for entry in entries:
        order.push(entry, 0.0)
    for entry in entries[:990]:
        order.remove(entry)
    assert [order.pop(0.0) for _ in range(11)] == [*entries[:989:-1], None]
    with pytest.raises(KeyError):
        order.remove(entries[0])


def test_one_that_came_back_has_its_old_place() -> None:
    order = ORDERS["fifo"]()
    first, second = Entry(1, 1.0), Entry(2, 2.0)
    order.push(first, 2.0)
    order.push(second, 2.0)
    assert order.pop(2.0) is first
    order.push(first, 3.0)
    assert order.pop(3.0) is first


def test_every_named_order_gives_back_what_it_got() -> None:
    for make in ORDERS.values():
        order = make()
        entries = {Entry(n, 0.0, tokens=n + 1.0, key=str(n % 3), priority=Priority(n % 3)) for n in range(50)}
        for entry in entries:
            order.push(entry, 0.0)
        assert {order.pop(float(second)) for second in range(50)} == entries
        assert order.pop(50.0) is None
