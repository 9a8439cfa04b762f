"""How a worker is picked. A policy is values in, choice out: no clock, lock, log or metric inside.

A new one is a class with `pick` in a file of its own and a line in `create`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeVar

from ladr.config import RouterSettings


class Candidate(Protocol):
    """What a policy may know of a worker."""

    @property
    def worker_id(self) -> str:
        """Name, unique in the fleet."""

    @property
    def in_flight(self) -> int:
        """This router's own open requests there."""

    @property
    def queue(self) -> float:
        """Smoothed number of requests there, this router's newest included."""

    @property
    def latency_s(self) -> float | None:
        """Smoothed time to first token; None before the first."""

    @property
    def pace_s(self) -> float | None:
        """Smoothed time between two tokens; None before the first."""

    @property
    def slots(self) -> int:
        """Requests that it can run at once."""


C = TypeVar("C", bound=Candidate)


class Policy(Protocol):
    """Picks one of the workers that may take a request. `candidates` has at least one entry; all of them are eligible."""

    def pick(self, candidates: Sequence[C], rng: Random) -> C:
        """Pick one."""

    def weights(self, candidates: Sequence[Candidate]) -> list[float]:
        """For each candidate the probability that it is picked next, as far as chance decides; they sum to 1."""


def create(settings: RouterSettings) -> Policy:
    """The policy that the settings name."""
    from services.router.policies.ladr_weighted import LadrWeighted
    from services.router.policies.least_request import LeastRequest
    from services.router.policies.round_robin import RoundRobin

    if settings.policy == "round-robin":
        return RoundRobin()
    if settings.policy == "least-request":
        return LeastRequest()
    return LadrWeighted(settings.alpha, settings.beta)
