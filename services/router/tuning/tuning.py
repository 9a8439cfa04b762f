"""Runs the tuner beside the router: measures windows, turns the knobs, writes down each change, keeps what it learnt."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from ladr.config import TunerSettings
from ladr.routing.policy import Knob
from services.common.server import CannotStart

if TYPE_CHECKING:
    from services.router.tuning.tuner import Decision, Tuner

log = structlog.get_logger()

LEAST_REQUESTS = 20  # in a window, before it says anything
MAX_REQUESTS = 10_000  # of a window that are kept
_MAX_AUDIT_BYTES = 1 << 20
_LEAST_VALUE = 1e-4


class Outcomes:
    """What a window is judged by: first-token times, with those that never came as the worst that may be."""

    def __init__(self, slo_s: float) -> None:
        self._slo_s = slo_s
        self._times_s: list[float] = []

    def add(self, took_s: float | None) -> None:
        """A first token came after so long, or (None) the fleet could not give one."""
        if len(self._times_s) < MAX_REQUESTS:
            self._times_s.append(10 * self._slo_s if took_s is None else took_s)

    def take(self, objective: str) -> float | None:
        """The objective over what came since the last time; None: too little came."""
        times_s, self._times_s = sorted(self._times_s), []
        if len(times_s) < LEAST_REQUESTS:
            return None
        if objective == "slo_misses":
            return (sum(took_s > self._slo_s for took_s in times_s) + 1) / (len(times_s) + 2)
        return max(times_s[min(int(0.99 * len(times_s)), len(times_s) - 1)], _LEAST_VALUE)


def state_path(settings: TunerSettings, policy: str) -> Path:
    """Where what was learnt of a policy is kept."""
    if settings.state != Path():
        return settings.state
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "ladr" / f"tuner-{policy}.json"


class Tunable(Protocol):
    """What has knobs; see ladr.routing.policy.Policy."""

    @property
    def knobs(self) -> Sequence[Knob]: ...

    def parameters(self) -> dict[str, float]: ...

    def tune(self, parameters: Mapping[str, float]) -> None: ...


@dataclass
class Tuning:
    """One policy's tuner at work.

    Args:
        name: of the policy. load: share of the fleet's slots in use now.
    """

    settings: TunerSettings
    name: str
    policy: Tunable
    outcomes: Outcomes
    load: Callable[[], float]
    rng: Random
    registry: CollectorRegistry

    def __post_init__(self) -> None:
        self._decisions = Counter(
            "ladr_router_tuner_decisions", "Decisions of the tuner, by kind", ["kind"], registry=self.registry
        )
        self._parameters = Gauge(
            "ladr_router_policy_parameter", "Parameters of the policy", ["name"], registry=self.registry
        )
        self._tell_parameters()

    async def run(self) -> None:
        """Tune for ever. Without knobs there is nothing to do.

        Raises: CannotStart: what it needs is not installed.
        """
        if self.settings.mode == "off" or not self.policy.knobs:
            await asyncio.Event().wait()
        tuner = await asyncio.to_thread(self._tuner)
        while True:
            loads = []
            until_s = time.monotonic() + self.settings.window.total_seconds()
            while (left_s := until_s - time.monotonic()) > 0:
                await asyncio.sleep(min(left_s, 0.5))
                loads.append(self.load())
            value = self.outcomes.take(self.settings.objective)
            if value is not None:
                await self._window(tuner, sum(loads) / len(loads), value)

    async def _window(self, tuner: Tuner, load: float, value: float) -> None:
        """Learn from one; a window that cannot be learnt from changes nothing."""
        before = dict(tuner.parameters)
        try:
            decision = await asyncio.to_thread(tuner.window, load, value)
        except (ValueError, ArithmeticError):  # also what numpy raises of a matrix
            log.exception("tuner_failed", load=load, objective=value)
            return
        event = self._follow(before, decision, load, value)
        if event:
            await asyncio.to_thread(self._audit, event)
        await asyncio.to_thread(self._keep, tuner)

    def _tuner(self) -> Tuner:
        try:
            from services.router.tuning.tuner import Tuner
        except ImportError as error:
            raise CannotStart(f"router.tuner needs {error.name}: pip install 'ladr[tuner]', or set it to off") from None
        tuner = Tuner(self.policy.knobs, self.policy.parameters(), self.rng, self.settings.mode == "on")
        path = self.path
        try:
            tuner.restore(json.loads(path.read_text()))
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("tuner_begins_anew", state=str(path), reason=str(error))
        else:
            log.info("tuner_goes_on", state=str(path), parameters=tuner.parameters)
            if self.settings.mode == "on":
                self.policy.tune(tuner.parameters)
                self._tell_parameters()
        return tuner

    def _follow(
        self, before: Mapping[str, float], decision: Decision, load: float, value: float
    ) -> dict[str, Any] | None:
        """Turn the knobs as decided; gives what is to be written down."""
        self._decisions.labels(decision.kind).inc()
        if decision.parameters == before:
            return None
        event: dict[str, Any] = {
            "kind": decision.kind,
            "mode": self.settings.mode,
            "before": _short(before),
            "after": _short(decision.parameters),
            "load": round(load, 3),
            "objective": round(value, 6),
            "expected": decision.expected and round(decision.expected, 3),
        }
        log.info("tuned", policy=self.name, **event)
        if self.settings.mode == "on":
            self.policy.tune(decision.parameters)
            self._tell_parameters()
        return {"at": time.time(), "policy": self.name, **event}

    def _tell_parameters(self) -> None:
        for name, value in self.policy.parameters().items():
            self._parameters.labels(name).set(value)

    @property
    def path(self) -> Path:
        """Where what it learnt is kept."""
        return state_path(self.settings, self.name)

    def _keep(self, tuner: Tuner) -> None:
        """Write the state, whole or not at all; a disk that is full costs no request."""
        path = self.path
        fresh = path.with_suffix(f".{os.getpid()}.new")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_text(json.dumps(tuner.state()))
            fresh.replace(path)
        except OSError as error:
            log.warning("tuner_not_kept", state=str(path), reason=str(error))

    def _audit(self, event: Mapping[str, Any]) -> None:
        """One line more in the audit log; the file before the last MiB is kept beside it."""
        path = self.path.with_suffix(".audit.jsonl")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size > _MAX_AUDIT_BYTES:
                path.replace(path.with_suffix(".jsonl.1"))
            with path.open("a") as lines:
                lines.write(json.dumps(event) + "\n")
        except OSError as error:
            log.warning("tuner_not_audited", path=str(path), reason=str(error))


def _short(parameters: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in parameters.items()}
