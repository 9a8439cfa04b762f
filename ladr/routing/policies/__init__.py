"""The policies, by the names that settings know."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ladr.config import RouterSettings
from ladr.routing.policies.ladr import Ladr
from ladr.routing.policies.ladr_weighted import LadrWeighted
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.policies.round_robin import RoundRobin
from ladr.routing.policy import Policy

POLICIES: Mapping[str, Callable[[RouterSettings], Policy]] = {
    "ladr": lambda settings: Ladr(settings.growth, settings.hold, settings.noise),
    "ladr-weighted": lambda settings: LadrWeighted(settings.alpha, settings.beta),
    "round-robin": lambda settings: RoundRobin(),
    "least-request": lambda settings: LeastRequest(),
}


def create(settings: RouterSettings) -> Policy:
    """The policy that the settings name."""
    return POLICIES[settings.policy](settings)
