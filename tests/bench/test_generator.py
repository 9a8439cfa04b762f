"""The open loop against a played router: what it sends, when, and what it makes of stalls, faults and its own delays."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from ladr import errors
from ladr.bench.arrivals import Length, Shape
from ladr.bench.generator import Generator, connections
from ladr.bench.measure import Measurement, Slo
from ladr.bench.prompts import Prompts
from tests.client.fake_router import FakeRouter, serving
from tests.processes import mesh

SHAPE = Shape("constant", Length(16), Length(7))


async def send(
    router: Any, rate: float, duration_s: float, timeout_s: float = 20.0, max_open: int = 1000, seed: int = 0
) -> Measurement:
    measurement = Measurement(Slo(0.5), 0.0, duration_s)
    async with connections(router.address, 2) as channels:
        generator = Generator(channels, measurement, Prompts(seed), timeout_s, max_open)
        await generator.run(SHAPE.arrivals(rate, duration_s, seed, "m"))
        assert generator.open == 0
    return measurement


async def test_every_request_is_sent_with_its_length_and_a_prompt_of_its_own(router: Any) -> None:
    measurement = await send(router, 100, 0.5)
    assert (measurement.offered, measurement.answered, len(router.requests)) == (50, 50, 50)
    assert (measurement.lost, measurement.repeated, measurement.errors) == (0, 0, {})
    assert {len(request.prompt) for request in router.requests} == {64}
    assert len({request.prompt for request in router.requests}) == 50
    assert {(request.model, request.sampling.max_tokens) for request in router.requests} == {("m", 7)}


async def test_a_worker_can_be_asked_straight_by_its_own_method() -> None:
    load = SHAPE.arrivals(20, 0.5, seed=0, model="sim")
    measurement = Measurement(Slo(5.0), 0.0, 0.5)
    async with mesh(1) as m, connections(m.workers[0].address, 1) as channels:
        generator = Generator(channels, measurement, Prompts(0), 20.0, 1000, "/ladr.v1.Worker/Generate")
        await generator.run(load)
    assert (measurement.answered, measurement.lost, measurement.repeated, measurement.errors) == (10, 0, 0, {})


class Stalling(FakeRouter):
    """Answers nobody in its first second."""

    async def Generate(self, request: Any, context: Any) -> None:
        if not self.requests:
            self.until_s = time.monotonic() + 1.0
        self.requests.append(request)
        await asyncio.sleep(self.until_s - time.monotonic())
        await super().Generate(request, context)


async def test_a_stall_of_a_second_is_in_the_latency_of_every_request_that_was_due_in_it() -> None:
    """Had it waited for answers, one request would have met the stall and all percentiles but the last would be calm."""
    async with serving(Stalling()) as router:
        measurement = await send(router, 50, 1.6)
    assert (measurement.offered, measurement.answered) == (80, 80)
    waited = {percent: measurement.ttft.percentile(percent) or 0.0 for percent in (50, 90)}
    assert waited[50] > 0.15  # of 80, 50 were due in the stall, evenly: half waited longer than 0.2 s
    assert waited[90] > 0.7  # a tenth longer than 0.84 s
    assert (measurement.late.percentile(50) or 0.0) < 0.1  # and it is not the generator's own delay


async def test_a_generator_that_is_late_itself_says_so_and_charges_it_to_the_latency(router: Any) -> None:
    async def hold_up() -> None:
        await asyncio.sleep(0.1)
        time.sleep(0.5)  # noqa: ASYNC251  # the delay that is to be found

    held = asyncio.create_task(hold_up())
    measurement = await send(router, 50, 1.0)
    await held
    for latencies in (measurement.late, measurement.ttft):
        ninth = latencies.percentile(90)
        assert ninth is not None
        assert ninth > 0.3


async def test_past_the_most_that_may_be_open_requests_are_not_sent_and_counted(router: Any) -> None:
    router.hang, router.script = True, router.script[:1]
    measurement = await send(router, 100, 0.3, timeout_s=0.6, max_open=5)
    assert measurement.errors == {"TOO_MANY_OPEN": 25, "DEADLINE_EXCEEDED": 5}
    assert (measurement.offered, len(router.requests)) == (30, 5)


@pytest.mark.parametrize(
    ("script", "lost", "repeated"),
    [((0, 1, 3), 1, 0), ((0, 2, 3), 2, 0), ((0, 1, 2, 2, 3), 0, 1), ((0, 1, 1, 2, 3), 0, 2), ((0, 3), 3, 0)],
)
async def test_a_router_that_drops_or_repeats_a_piece_is_found_out(
    router: Any, script: tuple[int, ...], lost: int, repeated: int
) -> None:
    router.script = [router.script[position] for position in script]
    measurement = await send(router, 50, 0.2)
    assert (measurement.lost, measurement.repeated) == (10 * lost, 10 * repeated)
    assert measurement.good == 0


async def test_failures_are_counted_by_their_reason(router: Any) -> None:
    router.script, router.error = router.script[:2], errors.WorkerLost("lost")
    measurement = await send(router, 50, 0.2)
    assert measurement.errors == {"WORKER_LOST": 10}
    router.error = errors.Overloaded("full")
    measurement = await send(router, 50, 0.2)
    assert measurement.errors == {"OVERLOADED": 10}
    router.error = None
    measurement = await send(router, 50, 0.2)
    assert measurement.errors == {"BROKEN_STREAM": 10}


async def test_resumed_answers_are_counted(router: Any) -> None:
    router.script[-1].finished.resumed = True
    assert (await send(router, 50, 0.2)).resumed == 10


async def test_what_is_open_is_cancelled_when_the_run_is(router: Any) -> None:
    router.hang = True
    running = asyncio.create_task(send(router, 50, 30.0))
    await router.until("open", 3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await router.until("open", 0)


async def test_where_nobody_answers_it_says_so(dead_address: str) -> None:
    with pytest.raises(errors.Unreachable, match=dead_address):
        async with asyncio.timeout(30), connections(dead_address, 1):
            raise AssertionError("it connected")
