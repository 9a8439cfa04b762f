from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_server import RedisServer
from tests.router.jobs.stores import Home, redis_home, sqlite_home


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), appendonly=True) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    """An empty place for jobs, of either kind."""
    if request.param == "sqlite":
        return sqlite_home(tmp_path / "jobs.db")
    server: RedisServer = request.getfixturevalue("redis")
    with server.client() as client:
        client.flushall()
    return redis_home(server.url)
