"""The presets: each is a fleet of simulated workers and a load for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ladr.bench.arrivals import Length, Shape

DEFAULT_SCALE = 0.25  # of the full fleets below; keeps two cores about a third busy
MODEL = "sim"
_MARGIN_TOKENS = 64  # what a chat template may add to a prompt
_ENDLESS = 1_000_000  # median answer of the engine: max_tokens ends every answer


@dataclass(frozen=True)
class Workers:
    """Some alike workers of the `simulated` engine; the fields are its settings. `name`: their ids begin with it."""

    name: str
    count: int
    step_ms: float
    slots: int
    prefill_tokens_per_s: float
    growth: float = 1.0

    def capacity_per_s(self, prompt_tokens: float, answer_tokens: float) -> float:
        """Requests a second with every slot busy: slots ÷ (time to read the prompt + answer · the longest step)."""
        step_s = self.step_ms / 1e3 * (1 + self.growth)
        return self.count * self.slots / (prompt_tokens / self.prefill_tokens_per_s + answer_tokens * step_s)


@dataclass(frozen=True)
class Scenario:
    """A preset. `load`: the rate of its arrivals, a pulse apart, as a share of the fleet's capacity."""

    name: str
    about: str
    fleet: tuple[Workers, ...]
    shape: Shape
    load: float

    @property
    def capacity_per_s(self) -> float:
        """Requests of the mean length that the fleet can answer in a second."""
        prompt, answer = self.shape.prompt.mean, self.shape.answer.mean
        return sum(workers.capacity_per_s(prompt, answer) for workers in self.fleet)

    def scaled(self, scale: float) -> Scenario:
        """Slots and the pulse times `scale`; rates follow from the slots, paces and lengths stay as they are."""
        fleet = tuple(replace(workers, slots=max(1, round(workers.slots * scale))) for workers in self.fleet)
        return replace(self, fleet=fleet, shape=replace(self.shape, pulse=round(self.shape.pulse * scale)))


_MIXED_PACE = (Workers("slow", 2, 25, 32, 10_000), Workers("fast", 4, 10, 32, 10_000))
_MIXED_SIZE = (Workers("70b", 2, 40, 32, 2_000), Workers("6b", 4, 8, 32, 20_000))

_BURST = 800  # requests in the pulse, of those that have one or are asked for it
_CHAT = Shape("poisson", Length(128), Length(128), _BURST)
_LONG = Shape("poisson", Length(2048), Length(256), _BURST)
_PULSE = Shape("pulse", Length(128), Length(128), _BURST)
_UNEVEN = Shape("poisson", Length(400, 0.7), Length(128, 0.7), _BURST)

SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("chat", "short chats with 128-token answers", _MIXED_PACE, _CHAT, load=0.8),
        Scenario("long-context", "2k prompts with 256-token answers", _MIXED_PACE, _LONG, load=0.8),
        Scenario("pulse", "800 chats at once on a half-busy fleet", _MIXED_PACE, _PULSE, load=0.5),
        Scenario("mixed", "two 70B beside four 6B, uneven lengths", _MIXED_SIZE, _UNEVEN, load=0.8),
    )
}


def up_fleet(fleet: Sequence[Workers], context_tokens: int) -> tuple[dict[str, Any], ...]:
    """Entries of `up.fleet` for these workers. `context_tokens`: longest prompt and answer together."""
    return tuple(
        {
            "id": f"{workers.name}-{number}",
            "port": 0,
            "http_port": 0,
            "engine": "simulated",
            "models": [{"name": MODEL}],
            "slots": workers.slots,
            "queue_limit": 1024,
            "context_tokens": context_tokens + _MARGIN_TOKENS,
            "simulated": {
                "step": f"{workers.step_ms}ms",
                "growth": workers.growth,
                "prefill_tokens_per_s": workers.prefill_tokens_per_s,
                "answer_tokens": _ENDLESS,
                "answer_sigma": 0,
                "fail_ratio": 0,
            },
        }
        for workers in fleet
        for number in range(1, workers.count + 1)
    )
