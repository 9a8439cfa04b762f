"""Scaling advice for each model that there is, each tick, and for those who watch it."""

from __future__ import annotations

import statistics
from collections.abc import AsyncGenerator, Callable
from datetime import timedelta

import structlog

from ladr.config import RouterSettings
from ladr.routing.router import Router
from ladr.v1 import router_pb2
from services.router.scale import COOLING, IDLE, SLO, STEADY, UNEVEN, WAITING, Scale, Seen
from services.router.watchers import Watchers

log = structlog.get_logger()

MAX_WATCHERS = 256
_SERVICE_S = 1.0  # what a request takes, before anything is known
_REASONS = {
    STEADY: router_pb2.SCALE_REASON_STEADY,
    WAITING: router_pb2.SCALE_REASON_WAITING,
    SLO: router_pb2.SCALE_REASON_SLO,
    IDLE: router_pb2.SCALE_REASON_IDLE,
    COOLING: router_pb2.SCALE_REASON_COOLING,
    UNEVEN: router_pb2.SCALE_REASON_UNEVEN,
}


class Scaling:
    """Keeps a `Scale` for each model.

    Args: misses: share of a model's recent first tokens that came too late, at a time.
    """

    def __init__(self, router: Router, settings: RouterSettings, misses: Callable[[str, float], float]) -> None:
        self._router = router
        self._settings = settings
        self._misses = misses
        self._scales: dict[str, Scale] = {}
        self._watchers = Watchers(MAX_WATCHERS)
        self.advice: dict[str, router_pb2.ScaleAdvice] = {}

    def tick(self, now_s: float) -> None:
        """Look at each model, and tell the watchers what is new."""
        models = self._router.board.models() | self._router.binder.waited_for()
        changed = False
        for gone in self._scales.keys() - models:
            del self._scales[gone]
            del self.advice[gone]
            changed = True
        for model in models:
            scale = self._scales.setdefault(model, Scale(self._settings.scale))
            seen = self._see(model, now_s)
            advice = scale.see(seen, now_s)
            made = router_pb2.ScaleAdvice(
                model=model,
                wanted_workers=advice.wanted,
                present_workers=seen.workers,
                reason=_REASONS[advice.reason],
                slo_miss_ratio=seen.misses,
                score_variation=seen.variation,
                utilization=seen.utilization,
            )
            made.waiting.FromTimedelta(timedelta(seconds=min(seen.waiting_s, 1e6)))
            made.computed_at.GetCurrentTime()
            last = self.advice.get(model)
            if last is None or _said(last) != _said(made):
                changed = True
                if last is not None and last.wanted_workers != advice.wanted:
                    log.info("scale", model=model, workers=seen.workers, wanted=advice.wanted, reason=advice.reason)
            self.advice[model] = made
        if changed:
            self._watchers.tell()

    def utilization(self) -> float:
        """Share of all slots in use, waiting requests included."""
        return max((advice.utilization for advice in self.advice.values()), default=0.0)

    def close(self) -> None:
        """End all watches with Draining."""
        self._watchers.close()

    async def watch(self, model: str) -> AsyncGenerator[router_pb2.ScaleAdvice]:
        """The advice for each model, or for one, and then each that says something else.

        Raises: Overloaded: a watcher too many. Draining: the router is going away.
        """
        told: dict[str, tuple[int, int, int]] = {}
        with self._watchers.one():
            while not self._watchers.closed:
                news = self._watchers.news
                for name, advice in list(self.advice.items()):
                    if model in ("", name) and told.get(name) != _said(advice):
                        told[name] = _said(advice)
                        yield advice
                for name in told.keys() - self.advice.keys():  # nobody serves it or asks for it any more
                    del told[name]
                    yield router_pb2.ScaleAdvice(model=name, reason=router_pb2.SCALE_REASON_IDLE)
                await news.wait()
            raise self._watchers.leaves()

    def _see(self, model: str, now_s: float) -> Seen:
        """What goes on with a model. The time that a request takes is the tokens of an answer at the workers' mean pace."""
        rows = self._router.board.eligible(model, now_s)
        slots = sum(row.slots for row in rows)
        waiting = self._router.binder.waiting_for(model)
        paces = [row.pace_s for row in rows if row.pace_s]
        tokens = self._router.answer_tokens(model)
        service_s = tokens * statistics.fmean(paces) if paces and tokens else _SERVICE_S
        queued = waiting + sum(max(row.depth - row.slots, 0) for row in rows)
        costs = [(row.pace_s or 0.0) * (1 + row.depth / row.slots) for row in rows]
        mean = statistics.fmean(costs) if costs else 0.0
        return Seen(
            workers=len(rows),
            slots=slots,
            requests=waiting + sum(row.depth for row in rows),
            waiting_s=queued * service_s / max(slots, 1),
            misses=self._misses(model, now_s),
            variation=statistics.pstdev(costs) / mean if mean else 0.0,
        )


def _said(advice: router_pb2.ScaleAdvice) -> tuple[int, int, int]:
    return advice.wanted_workers, advice.present_workers, advice.reason
