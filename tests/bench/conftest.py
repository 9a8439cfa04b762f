"""Fixtures of the played router."""

from tests.client.fake_router import dead_address, router, say

__all__ = ["dead_address", "router", "say"]
