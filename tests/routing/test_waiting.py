"""Those who wait for a worker."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from itertools import count
from random import Random

import pytest

from ladr.errors import DeadlineExceeded, NoWorker, Overloaded
from ladr.routing.lease import Lease
from ladr.routing.orders import Fifo
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.policy import Ask
from ladr.routing.row import Row
from ladr.routing.waiting import Room, Waiter
from ladr.v1 import fleet_pb2

sequence = count()


class Slots:
    """A worker with so many slots, and a room before it."""

    def __init__(self, slots: int, anybody: bool = True) -> None:
        self.free = slots
        self.anybody = anybody
        self.row = Row(fleet_pb2.WorkerReport(worker_id="w"), 0.7)
        self.room = Room(Fifo(), self.bind, lambda: self.anybody)

    def bind(self, waiter: Waiter) -> Lease | None:
        if not self.free:
            return None
        self.free -= 1
        return Lease(self.row, Ask(), LeastRequest(), lambda row: None)

    def give_back(self, lease: Lease) -> None:
        lease.release()
        self.free += 1
        self.room.serve()


async def test_who_came_first_is_served_first() -> None:
    slots = Slots(0)
    served: list[int] = []

    async def wait(n: int) -> None:
        await slots.room.lease(Waiter(sequence=next(sequence), arrived_s=n), 5.0)
        served.append(n)

    tasks = []
    for n in range(5):
        tasks.append(asyncio.create_task(wait(n)))
        await asyncio.sleep(0)
    for _ in range(5):
        slots.free = 1
        slots.room.serve()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert served == [0, 1, 2, 3, 4]
    assert len(slots.room) == 0


async def test_the_wait_ends_with_its_deadline_its_timeout_or_when_there_is_nobody() -> None:
    loop_s = asyncio.get_running_loop().time

    slots = Slots(0)
    with pytest.raises(DeadlineExceeded):
        await slots.room.lease(Waiter(sequence=next(sequence), arrived_s=0, refuse_s=time.monotonic() + 0.05), 5.0)
    with pytest.raises(Overloaded) as refused:
        await slots.room.lease(Waiter(sequence=next(sequence), arrived_s=0), 0.05)
    assert refused.value.retry_after
    slots.anybody = False
    began_s = loop_s()
    with pytest.raises(NoWorker):
        await slots.room.lease(Waiter(sequence=next(sequence), arrived_s=0), 5.0, patience_s=0.05)
    assert loop_s() - began_s < 3
    assert len(slots.room) == 0


async def test_any_storm_of_cancellations_gives_every_place_back() -> None:
    rng = Random(5)
    slots = Slots(3)
    most = 0

    async def use() -> None:
        nonlocal most
        lease = await slots.room.lease(Waiter(sequence=next(sequence), arrived_s=0), 5.0)
        try:
            most = max(most, slots.row.in_flight)
            await asyncio.sleep(rng.random() / 500)
        finally:
            slots.give_back(lease)

    def returned(task: asyncio.Task[None]) -> None:
        if slots.row.in_flight + slots.free < 3:  # a place that was bound to a waiter that went away
            slots.free = 3 - slots.row.in_flight
            slots.room.serve()

    tasks = []
    for n in range(300):
        tasks.append(asyncio.create_task(use()))
        tasks[-1].add_done_callback(returned)
        if n % 5 == 0:
            await asyncio.sleep(0.001)
        rng.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert slots.row.in_flight == 0
    assert not slots.row.leases
    assert len(slots.room) == 0
    assert most <= 3


async def test_the_hint_follows_the_pace_at_which_those_who_wait_are_served() -> None:
    now_s = 100.0
    slots = Slots(0)
    slots.room._clock = lambda: now_s
    waiting = [asyncio.create_task(slots.room.lease(Waiter(next(sequence), 0.0), 500.0)) for _ in range(60)]
    await asyncio.sleep(0)
    assert slots.room.hint() >= timedelta(seconds=0.05)
    for _ in range(20):  # ten a second
        assert slots.room.wait_s() is None or len(slots.room) < 51
        slots.free = 1
        slots.room.serve()
        now_s += 0.1
    assert slots.room.wait_s() == pytest.approx(40 * 0.1, rel=0.1)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
