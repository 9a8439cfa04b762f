"""The policies, by the names that settings know."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ladr.config import RouterSettings
from ladr.routing.dimensions import make
from ladr.routing.policies.grpc_wrr import GrpcWrr
from ladr.routing.policies.ladr import Ladr
from ladr.routing.policies.ladr_weighted import LadrWeighted
from ladr.routing.policies.least_request import LeastRequest
from ladr.routing.policies.lmetric import LMetric
from ladr.routing.policies.peak_ewma import PeakEwma
from ladr.routing.policies.power_of_two import PowerOfTwo
from ladr.routing.policies.prequal import Prequal
from ladr.routing.policies.random_draw import RandomDraw
from ladr.routing.policies.round_robin import RoundRobin
from ladr.routing.policies.sed import ShortestExpectedDelay
from ladr.routing.policies.smg import Smg
from ladr.routing.policy import Policy

POLICIES: Mapping[str, Callable[[RouterSettings], Policy]] = {
    "ladr": lambda settings: Ladr(settings.growth, settings.hold, settings.noise, make(settings.dimensions)),
    "ladr-weighted": lambda settings: LadrWeighted(settings.alpha, settings.beta),
    "round-robin": lambda settings: RoundRobin(),
    "random": lambda settings: RandomDraw(),
    "least-request": lambda settings: LeastRequest(),
    "power-of-two": lambda settings: PowerOfTwo(),
    "peak-ewma": lambda settings: PeakEwma(),
    "prequal": lambda settings: Prequal(),
    "grpc-wrr": lambda settings: GrpcWrr(),
    "sed": lambda settings: ShortestExpectedDelay(),
    "lmetric": lambda settings: LMetric(),
    "smg": lambda settings: Smg(),
}


def create(settings: RouterSettings) -> Policy:
    """The policy that the settings name."""
    return POLICIES[settings.policy](settings)
