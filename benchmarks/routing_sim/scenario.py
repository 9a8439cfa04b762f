"""What is simulated: fleets, requests and what goes wrong. Pure values; all randomness comes from a seed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

BLOCK_TOKENS = 64  # a prefix hash stands for so many tokens of a prompt
FLEET_REQUESTS = 3_000  # a run of a random fleet, about
DEADLINE_S = 2.0  # a first token that comes later is not counted as good


@dataclass(frozen=True)
class Machine:
    """A worker. A decode step with b requests takes step_s · (1 + growth · (b − 1) / (slots − 1)), at least two slots taken.

    Attributes:
        read_tokens: prompt tokens that a request reads in one step; reading takes part in the batch like generating.
        told_slots: the slots that it reports, if they are not its own.
        kv_tokens: size of its key-value cache; a request begins when its prompt and answer fit. 0: no limit.
        cached_blocks: prompt blocks whose prefix it keeps; 0: none.
        away_s: one way over the network to it.
        stage_s: time that a request spends in a further stage there before it asks for a slot, one at a time.
        acceptance: share of drafted tokens that it keeps, four drafted each step; a step then gives 1 + 4 · share tokens.
    """

    slots: int = 32
    step_s: float = 0.010
    growth: float = 1.0
    read_tokens: int = 200
    told_slots: int = 0
    kv_tokens: int = 0
    cached_blocks: int = 0
    away_s: float = 0.00025
    stage_s: float = 0.0
    acceptance: float | None = None

    @property
    def tokens_per_step(self) -> float:
        return 1.0 if self.acceptance is None else 1 + 4 * self.acceptance

    @property
    def tokens_per_s(self) -> float:
        """What it generates with all slots taken."""
        return self.slots * self.tokens_per_step / (self.step_s * (1 + self.growth))


@dataclass(frozen=True)
class Trouble:
    """From `from_s` to `until_s` worker number `worker` takes `slower` times as long, or fails each request at once."""

    worker: int
    from_s: float
    until_s: float = math.inf
    slower: float = 1.0
    fails: bool = False


@dataclass(frozen=True)
class Work:
    """A request as it comes."""

    arrived_s: float
    prompt_tokens: int
    answer_tokens: int
    router: int
    guess_tokens: float  # of the answer, with a log-normal error of 0.5
    session: str = ""
    prefix: tuple[int, ...] = ()
    gives_up_s: float = math.inf  # its client cancels so long after it came


@dataclass(frozen=True)
class Scenario:
    """Requests come by chance (Poisson) at `load` × what the fleet can do; `pulse` more come at once at `pulse_s`."""

    name: str
    fleet: tuple[Machine, ...]
    load: float
    routers: int = 1
    duration_s: float = 120.0
    pulse: int = 0
    pulse_s: float = 30.0
    troubles: tuple[Trouble, ...] = ()
    report_s: float = 0.2
    prompt: tuple[float, float] = (400.0, 0.8)  # median and log-normal spread
    answer: tuple[float, float] = (150.0, 0.8)
    sessions: int = 0  # chats that take turns, each with all of its past as prompt; 0: every request stands alone
    gives_up: float = 0.0  # share of requests whose client cancels, after a mean of 3 s
    order: str = "fifo"

    def mean_tokens(self) -> float:
        """Of an answer, and the steps that reading its prompt takes."""
        mean_prompt = self.prompt[0] * math.exp(self.prompt[1] ** 2 / 2)
        mean_answer = self.answer[0] * math.exp(self.answer[1] ** 2 / 2)
        return mean_answer + mean_prompt / 200

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.load * sum(machine.tokens_per_s for machine in self.fleet) / self.mean_tokens()

    @property
    def expected_answer(self) -> float:
        return self.answer[0] * math.exp(self.answer[1] ** 2 / 2)

    def works(self, seed: int) -> list[Work]:
        """All requests, by time of arrival."""
        rng = Random(f"{self.name} {seed}")
        rate = self.rate
        chats = [_Chat(number, rng) for number in range(self.sessions)]
        found = []
        now_s = rng.expovariate(rate)
        while now_s < self.duration_s:
            found.append(self._work(now_s, rng, chats))
            now_s += rng.expovariate(rate)
        found += [self._work(self.pulse_s, rng, chats) for _ in range(self.pulse)]
        found.sort(key=lambda work: work.arrived_s)
        return found

    def _work(self, now_s: float, rng: Random, chats: list[_Chat]) -> Work:
        prompt = _lognormal(rng, *self.prompt)
        answer = _lognormal(rng, *self.answer)
        work = Work(
            now_s,
            min(prompt, 8192),
            min(answer, 4096),
            rng.randrange(self.routers),
            answer * rng.lognormvariate(0.0, 0.5),
            gives_up_s=rng.expovariate(1 / 3.0) if rng.random() < self.gives_up else math.inf,
        )
        if not chats:
            return work
        chat = rng.choice(chats)
        prefix = chat.turn(min(prompt, 512), rng)
        return replace(work, prompt_tokens=len(prefix) * BLOCK_TOKENS, session=chat.name, prefix=prefix)


@dataclass
class _Chat:
    """A conversation: one of 8 system prompts of 16 blocks, then all turns so far; it begins anew after 64 blocks."""

    number: int
    rng: Random
    blocks: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"chat-{self.number}"

    def turn(self, tokens: int, rng: Random) -> tuple[int, ...]:
        if not self.blocks or len(self.blocks) > 64:
            system = rng.randrange(8)
            self.blocks = [hash((system, block)) for block in range(16)]
        self.blocks += [rng.getrandbits(60) for _ in range(max(tokens // BLOCK_TOKENS, 1))]
        return tuple(self.blocks)


def _lognormal(rng: Random, median: float, spread: float) -> int:
    return max(round(rng.lognormvariate(math.log(median), spread)), 1)


SLOW, FAST = Machine(step_s=0.025), Machine(step_s=0.010)
FLEET = (SLOW, SLOW, FAST, FAST, FAST, FAST)
_SMALL = tuple(replace(machine, slots=4) for machine in FLEET)
_LARGE = tuple(replace(machine, slots=128) for machine in FLEET)
_SLOWER = (Trouble(worker=2, from_s=30.0, slower=5.0),)

SCENARIOS = (
    Scenario("load-50", FLEET, 0.5),
    Scenario("load-65", FLEET, 0.65),
    Scenario("load-80", FLEET, 0.8),
    Scenario("load-90", FLEET, 0.9),
    Scenario("load-95", FLEET, 0.95),
    Scenario("pulse", FLEET, 0.5, pulse=800),
    Scenario("slower", FLEET, 0.65, troubles=_SLOWER),
    Scenario("pulse-slower", FLEET, 0.5, pulse=800, troubles=_SLOWER),
    Scenario("small-slots", _SMALL, 0.8, duration_s=600.0),
    Scenario("large-slots", _LARGE, 0.8, duration_s=60.0),
    Scenario("routers-2", FLEET, 0.8, routers=2),
    Scenario("routers-4", FLEET, 0.8, routers=4),
    Scenario("routers-4-load-95", FLEET, 0.95, routers=4),
    Scenario("routers-4-pulse", FLEET, 0.5, routers=4, pulse=800),
    Scenario("routers-4-slower", FLEET, 0.65, routers=4, troubles=_SLOWER),
    Scenario("routers-4-small-slots", _SMALL, 0.8, routers=4, duration_s=600.0),
)

_TOLD_TWICE = tuple(replace(machine, told_slots=64) for machine in FLEET)
_TOLD_HALF = tuple(replace(machine, told_slots=16) for machine in FLEET)
_KV = tuple(replace(machine, kv_tokens=20_000) for machine in FLEET)
_CACHES = tuple(replace(machine, cached_blocks=4096, read_tokens=100) for machine in FLEET)
_FAR = (SLOW, replace(FAST, away_s=0.04), *(FAST,) * 3, replace(FAST, away_s=0.08))
_STAGES = (SLOW, SLOW, replace(FAST, stage_s=0.10), *(replace(FAST, stage_s=0.02),) * 3)
_DRAFTS = (replace(FAST, acceptance=0.8), replace(FAST, acceptance=0.1), *(replace(FAST, acceptance=0.5),) * 2)

EXTRA = (
    Scenario("black-hole", FLEET, 0.65, routers=2, troubles=(Trouble(2, 30.0, 60.0, fails=True),)),
    Scenario("cancellations", FLEET, 0.8, routers=2, gives_up=0.3),
    Scenario("kv-limits", _KV, 0.65, routers=2),
    Scenario("prefix-caches", _CACHES, 0.65, routers=2, sessions=200),
    Scenario("far-workers", _FAR, 0.65, routers=2),
    Scenario("two-stages", _STAGES, 0.65, routers=2),
    Scenario("drafts", _DRAFTS, 0.8, routers=2),
    Scenario("slots-told-double", _TOLD_TWICE, 0.9, routers=2),
    Scenario("slots-told-half", _TOLD_HALF, 0.9, routers=2),
)


def random_fleets(count: int, seed: int) -> Iterator[Scenario]:
    """Fleets that nothing was tuned on: sizes, speeds, slots, loads, routers and troubles by chance."""
    rng = Random(seed)
    for number in range(count):
        fleet = tuple(
            Machine(
                slots=rng.choice((2, 4, 8, 16, 32, 64)),
                step_s=math.exp(rng.uniform(math.log(0.005), math.log(0.05))),
                growth=rng.uniform(0.2, 2.0),
            )
            for _ in range(rng.randint(2, 12))
        )
        answer = math.exp(rng.uniform(math.log(50), math.log(300)))
        troubles = (Trouble(rng.randrange(len(fleet)), 30.0, slower=rng.uniform(2, 6)),) if rng.random() < 0.3 else ()
        load = rng.uniform(0.5, 0.92)
        if troubles:  # what is left must still do
            whole = sum(machine.tokens_per_s for machine in fleet)
            lost = fleet[troubles[0].worker].tokens_per_s * (1 - 1 / troubles[0].slower)
            load = min(load, 0.92 * (1 - lost / whole))
        scenario = Scenario(
            f"fleet-{seed}-{number}",
            fleet,
            load,
            routers=rng.randint(1, 4),
            pulse=2 * sum(machine.slots for machine in fleet) if rng.random() < 0.25 else 0,
            troubles=troubles,
            prompt=(math.exp(rng.uniform(math.log(100), math.log(1000))), 0.8),
            answer=(answer, rng.uniform(0.4, 1.0)),
        )
        yield replace(scenario, duration_s=min(max(FLEET_REQUESTS / scenario.rate, 60.0), 600.0))
