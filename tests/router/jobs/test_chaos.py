"""The small form of `make chaos`."""

from __future__ import annotations

import pytest

from benchmarks.chaos import chaos


@pytest.mark.timeout(180)
async def test_workers_routers_buses_and_redis_are_killed_and_every_job_is_answered_once() -> None:
    outcome = await chaos(jobs=150, kills=8, seed=7, over_s=12)
    assert sum(outcome.kills.values()) == 8
    assert outcome.wrong == []
    assert (outcome.lost, outcome.twice, outcome.dead) == (0, 0, 0)
