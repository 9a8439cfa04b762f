"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.ports import listening

settings.register_profile("ladr", deadline=None)  # how long an example takes says more of the machine than of the code
settings.load_profile("ladr")


@pytest.fixture(autouse=True, scope="module")
def no_port_stays_open() -> Iterator[None]:
    """A file of tests leaves no port open: the next would take it for its own."""
    before = listening()
    yield
    assert listening() <= before
