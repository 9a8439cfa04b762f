"""What the servicer reads of a call beside its request."""

from __future__ import annotations

import pytest

import ladr
from ladr.errors import InvalidRequest
from ladr.request import EDGE_LATENCY, edge_metadata
from services.router.servicer import edge_latency_s
from tests.load import channel_to, eligible
from tests.processes import mesh


def test_what_the_client_says_of_its_own_way_is_read_as_it_was_said() -> None:
    assert edge_latency_s(edge_metadata(0.085)) == pytest.approx(0.085)
    assert edge_latency_s(()) == 0.0
    assert edge_metadata(None) == ()


@pytest.mark.parametrize("said", ["fast", "-1", "nan", "1e9", ""])
def test_what_is_no_latency_is_refused(said: str) -> None:
    with pytest.raises(InvalidRequest, match=EDGE_LATENCY):
        edge_latency_s(((EDGE_LATENCY, said),))


async def test_a_slow_way_to_the_router_is_seen_apart_from_the_fleet() -> None:
    async with mesh(1) as m, channel_to(m.router.address) as channel:
        await eligible(channel, "worker-1")
        async with ladr.Client(m.router.address, edge_latency=3.0) as client:
            await client.complete("x")
        page = m.router.scrape()
        assert 'ladr_router_edge_latency_seconds_sum{model="sim"} 3.0' in page
        (line,) = [one for one in page.splitlines() if one.startswith("ladr_router_time_to_first_token_seconds_sum")]
        assert float(line.rpartition(" ")[2]) < 2
