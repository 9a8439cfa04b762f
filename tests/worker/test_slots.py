"""The worker's queue: bounded, fair by priority, exact in every ending."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladr.errors import Overloaded
from services.worker.slots import Slots, Ticket

HINT = timedelta(seconds=2)


def test_past_slots_and_queue_the_caller_is_told_when_to_come_back() -> None:
    slots = Slots(1, 2)
    for _ in range(3):
        slots.enter(1, HINT)
    with pytest.raises(Overloaded) as refused:
        slots.enter(1, HINT)
    assert refused.value.retry_after == HINT
    assert (slots.load.running, slots.load.queued) == (1, 2)


def test_higher_priority_goes_first_then_first_come() -> None:
    slots = Slots(1, 9)
    first = slots.enter(1, HINT)
    waiting = {name: slots.enter(priority, HINT) for name, priority in (("batch", 2), ("a", 1), ("b", 1), ("high", 0))}
    order = []
    last = first
    for _ in range(4):
        last.leave()
        name = next(n for n, ticket in waiting.items() if ticket.admitted and n not in order)
        order.append(name)
        last = waiting[name]
    assert order == ["high", "a", "b", "batch"]


async def test_a_ticket_waits_for_its_turn() -> None:
    slots = Slots(1, 1)
    first, second = slots.enter(1, HINT), slots.enter(1, HINT)
    turn = asyncio.create_task(second.turn())
    await asyncio.sleep(0)
    assert not turn.done()
    first.leave()
    await turn
    assert (slots.load.running, slots.load.queued) == (1, 0)


def test_in_a_full_queue_the_newest_of_the_lowest_class_gives_way_to_a_higher_one() -> None:
    slots = Slots(1, 2)
    slots.enter(1, HINT)
    first, last = slots.enter(2, HINT), slots.enter(2, HINT)
    high = slots.enter(0, HINT)
    assert (slots.load.running, slots.load.queued) == (1, 2)
    with pytest.raises(Overloaded):
        asyncio.run(last.turn())
    last.leave()
    assert (slots.load.running, slots.load.queued) == (1, 2)
    assert not first.admitted
    assert not high.admitted
    slots.enter(0, HINT)  # the other one of the low class goes too
    with pytest.raises(Overloaded):
        slots.enter(0, HINT)  # nobody is lower now


def test_another_thread_reads_numbers_that_fit_together() -> None:
    """There are never fewer requests than slots here, so every slot is in use in whatever is read."""
    slots = Slots(2, 9)
    held = [slots.enter(1, HINT) for _ in range(2)]
    seen = [slots.load]
    done = threading.Event()

    def read() -> None:
        while len(seen) < 30 and not done.is_set():
            if (load := slots.load) is not seen[-1]:
                seen.append(load)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        while reader.is_alive():
            held += [slots.enter(1, HINT) for _ in range(3)]
            for ticket in held[:3]:
                ticket.leave()
            held = held[3:]
    finally:
        done.set()
        reader.join()
    assert all(load.running == 2 and load.queued <= 3 for load in seen)
    assert all(a.revision < b.revision and a.accepted <= b.accepted for a, b in itertools.pairwise(seen))


@given(st.integers(1, 4), st.integers(0, 5), st.lists(st.tuples(st.booleans(), st.integers(0, 99)), max_size=80))
def test_counts_are_exact_whoever_comes_and_leaves_when(size: int, limit: int, script: list[tuple[bool, int]]) -> None:
    slots = Slots(size, limit)
    held: list[tuple[int, int, Ticket]] = []  # (class, order, ticket), the running ones and the waiting
    accepted = 0
    for order, (arrive, pick) in enumerate(script):
        before = slots.load
        if arrive or not held:
            priority = pick % 3
            waiting = [h for h in held if not h[2].admitted]
            gives_way = max(waiting, default=None) if len(held) == size + limit else None
            if len(held) < size + limit:
                held.append((priority, order, slots.enter(priority, HINT, order)))
            elif gives_way and gives_way[0] > priority:
                held.append((priority, order, slots.enter(priority, HINT, order)))
                held.remove(gives_way)
            else:
                with pytest.raises(Overloaded):
                    slots.enter(priority, HINT)
        else:
            ticket = held.pop(pick % len(held))[2]
            ticket.leave()
            ticket.leave()
        assert slots.load.running == min(len(held), size) == sum(h[2].admitted for h in held)
        assert slots.load.queued == max(len(held) - size, 0)
        assert slots.load.queued_tokens == sum(h[1] for h in held if not h[2].admitted)
        changed = (slots.load.running, slots.load.queued) != (before.running, before.queued)
        assert slots.load.revision > before.revision or not changed
        accepted += len(held) and held[-1][1] == order
        assert slots.load.accepted == accepted
    for _, _, ticket in held:
        ticket.leave()
    assert (slots.load.running, slots.load.queued) == (0, 0)
