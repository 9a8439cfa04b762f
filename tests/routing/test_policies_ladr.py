"""The ladr policy and its dimensions, on plain values."""

from __future__ import annotations

import gc
import math
import weakref
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladr.config import RouterSettings
from ladr.routing import dimensions
from ladr.routing.dimensions import Dimension, DraftAcceptance, Edge, KvUse, Prefix, Session, Stages, make
from ladr.routing.policies import create
from ladr.routing.policies.ladr import FORGET_PICKS, LOOK_S, START_PACE_S, TRIAL_S, Ladr
from ladr.routing.policy import Ask, Candidate
from tests.routing.workers import Worker

ASK = Ask(prompt_tokens=640, answer_tokens=100.0)


def ladr(*others: Dimension, hold: int = 0, noise: float = 0.0) -> Ladr:
    return Ladr(1.0, hold, noise, others)


def fill(policy: Ladr, worker: Worker, depth: int, own: int | None = None) -> None:
    worker.depth = worker.reported = depth
    worker.in_flight = depth if own is None else own
    policy.changed(worker, Random(0))


WORKERS = st.lists(
    st.tuples(
        st.integers(1, 8),
        st.integers(0, 9),
        st.one_of(st.none(), st.floats(0.001, 0.1)),
        st.floats(0, 1),
        st.floats(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=2000, deadline=None)
@given(WORKERS, st.integers(0, 3), st.integers(0, 10_000))
def test_it_takes_what_a_look_at_all_by_the_formula_would_take(fleet: list[tuple], hold: int, prompt: int) -> None:
    policy = ladr(KvUse(), Stages(), hold=hold)
    workers = []
    typical_s = START_PACE_S
    for number, (slots, depth, pace_s, kv_used, stage_s) in enumerate(fleet):
        worker = Worker(str(number), slots, depth, depth, depth, pace_s=pace_s, kv_used=kv_used, stage_s=stage_s)
        policy.changed(worker, Random(0))
        workers.append(worker)
    costs = {}
    counted = 256
    for bound, tokens in ((512, 768), (1024, 1536), (2048, 3072), (4096, 6144)):
        if prompt >= bound:
            counted = tokens
    for worker in workers:
        if worker.pace_s:
            alone_s = worker.pace_s / (1 + min(max(worker.depth - 1, 0) / worker.slots, 1))
            typical_s += 0.01 * (alone_s - typical_s)
        else:
            alone_s = typical_s
        if worker.depth + 1 <= worker.slots + hold:
            kv_used = min(worker.kv_used or 0, 0.99)
            step_s = alone_s * (1 + min(worker.depth / worker.slots, 1))
            costs[worker.worker_id] = (
                step_s * (128 * (worker.depth + 1) / worker.slots + counted / 48)
                + 0.15 * kv_used / (1 - kv_used)
                + worker.stage_s
            )
    chosen = policy.pick(workers, Ask(prompt_tokens=prompt), Random(0), 0.0)
    if costs:
        assert chosen is not None
        assert math.isclose(costs[chosen.worker_id], min(costs.values()))


def test_a_faster_worker_is_kept_so_much_fuller() -> None:
    policy, fast, slow = ladr(), Worker("fast", pace_s=0.01), Worker("slow", pace_s=0.015)
    for worker in (fast, slow):
        policy.changed(worker, Random(0))
    taken = []
    for _ in range(16):
        chosen = policy.pick([fast, slow], ASK, Random(0), 0.0)
        assert chosen is not None
        fill(policy, chosen, chosen.depth + 1)
        taken.append(chosen.worker_id)
    assert taken[:5] == ["fast", "slow", "fast", "fast", "slow"]  # 10 ms · (1 + n/8) · 16 · (n + 2) against 15 ms
    assert (fast.depth, slow.depth) == (8, 8)


def test_a_long_prompt_goes_to_a_fast_worker_where_a_short_one_leaves_room() -> None:
    policy, fast, slow = ladr(), Worker("fast", slots=32, pace_s=0.01), Worker("slow", slots=32, pace_s=0.025)
    fill(policy, fast, 20)
    fill(policy, slow, 6)
    taken = [policy.pick([fast, slow], Ask(prompt_tokens=tokens), Random(0), 0.0) for tokens in (100, 511, 1024, 9999)]
    assert taken == [slow, slow, fast, fast]


def test_with_all_slots_taken_a_request_waits_and_one_worker_is_tried_a_second() -> None:
    policy, fleet = ladr(), [Worker("a", slots=2), Worker("b", slots=2)]
    for worker in fleet:
        fill(policy, worker, 2)
    tried = [policy.pick(fleet, ASK, Random(0), 10 + step * 0.05) for step in range(int(TRIAL_S / 0.05))]
    assert [worker.worker_id for worker in tried if worker] == ["a", "b"]
    assert LOOK_S < 0.05


def test_a_worker_that_makes_requests_wait_before_its_slots_are_taken_has_fewer() -> None:
    policy, worker = ladr(), Worker("a", slots=64)
    fill(policy, worker, 33)
    assert not policy.keeps(worker, 1)  # 32 run, one waits
    fill(policy, worker, 32)
    policy.pick([worker], ASK, Random(0), 0.0)  # the trial of this second
    assert policy.pick([worker], ASK, Random(0), 0.5) is None
    fill(policy, worker, 31)
    assert policy.pick([worker], ASK, Random(0), 0.5) is worker


def test_a_worker_that_begins_more_than_its_slots_at_once_has_more() -> None:
    policy, worker = ladr(), Worker("a", slots=16)
    for depth in range(16, 32):
        fill(policy, worker, depth)
        assert policy.pick([worker], ASK, Random(0), 0.0) is worker, depth
        fill(policy, worker, depth + 1)
        assert policy.keeps(worker, 0)


def test_a_worker_gains_slots_again_up_to_those_that_it_tells() -> None:
    policy, worker = ladr(), Worker("a", slots=4)
    fill(policy, worker, 4)
    policy.keeps(worker, 2)
    fill(policy, worker, 2)
    policy.keeps(worker, 0)
    assert policy.pick([worker], ASK, Random(0), 0.0) is worker  # the third


def test_a_request_that_waited_long_queues_where_others_send_too_and_stays_there() -> None:
    policy = ladr()
    soon, later = Worker("soon", slots=4, finished_per_s=4), Worker("later", slots=4, finished_per_s=1)
    for worker in (soon, later):
        fill(policy, worker, 4, own=2)
        policy.keeps(worker, 0)
    waited = Ask(arrived_s=0.0)
    assert policy.pick([soon, later], waited, Random(0), 0.9) is not None  # a trial
    assert policy.pick([soon, later], waited, Random(0), 0.95) is not None  # of the other
    assert policy.pick([soon, later], waited, Random(0), 0.99) is None  # a turn in 0.25 s is over a quarter of that
    assert policy.pick([soon, later], waited, Random(0), 1.1) is soon
    fill(policy, soon, 5, own=3)
    assert policy.keeps(soon, 1)
    fill(policy, soon, 4, own=2)
    assert policy.pick([soon, later], waited, Random(0), 1.2) is None  # one at a time
    policy.first_token(soon, 0.1, 1.3)  # of an earlier request, sent at 1.2: later than that one
    assert policy.pick([soon, later], waited, Random(0), 1.4) is soon


def test_a_router_alone_never_queues_at_a_worker() -> None:
    policy, worker = ladr(), Worker("a", slots=4, finished_per_s=100)
    fill(policy, worker, 4)
    policy.pick([worker], Ask(arrived_s=0.0), Random(0), 50.0)  # the trial
    assert policy.pick([worker], Ask(arrived_s=0.0), Random(0), 50.5) is None


def test_two_routers_that_know_the_same_do_not_all_choose_the_same() -> None:
    firsts = set()
    for seed in range(20):
        policy, rng = ladr(noise=0.2), Random(seed)
        fleet = [Worker(str(n), pace_s=0.01) for n in range(10)]
        for worker in fleet:
            policy.changed(worker, rng)
        chosen = policy.pick(fleet, ASK, rng, 0.0)
        assert chosen is not None
        firsts.add(chosen.worker_id)
    assert len(firsts) > 5


def test_a_router_that_is_alone_there_counts_without_noise() -> None:
    """Noise would have 20 routers differ, as above; equal costs take the first."""
    for seed in range(20):
        policy, rng = ladr(noise=0.2), Random(seed)
        fleet = [Worker(str(n), in_flight=2, depth=2, reported=2, pace_s=0.01) for n in range(10)]
        for worker in fleet:
            policy.changed(worker, rng)
        assert policy.pick(fleet, ASK, rng, 0.0) is fleet[0]


def test_weights_follow_free_slots_and_pace() -> None:
    policy = ladr()
    fleet = [Worker("fast", pace_s=0.01), Worker("slow", pace_s=0.02), Worker("full", pace_s=0.01)]
    fill(policy, fleet[2], 8)
    fast, slow, full = policy.weights(fleet)
    assert math.isclose(fast, 2 * slow)
    assert full < 0.02
    assert math.isclose(fast + slow + full, 1)


def test_workers_that_are_gone_are_forgotten() -> None:
    policy, rng = ladr(), Random(0)
    fleet = [Worker(str(n)) for n in range(3)]
    gone = [Worker(f"gone-{n}") for n in range(500)]
    for worker in (*fleet, *gone):
        policy.changed(worker, rng)
    alive = weakref.ref(gone[0])
    del gone, worker
    for _ in range(FORGET_PICKS):
        policy.pick(fleet, ASK, rng, 0.0)
    gc.collect()
    assert alive() is None


def test_memory_nearly_full_a_stage_and_a_long_way_cost_seconds() -> None:
    worker = Worker("a", kv_used=0.75, stage_s=0.3, edge_s=0.04, draft_acceptance=0.5, pace_s=0.01)
    assert math.isclose(KvUse().cost_s(worker), 0.45)
    assert (Stages().cost_s(worker), Edge().cost_s(worker)) == (0.3, 0.04)
    assert math.isclose(DraftAcceptance().cost_s(worker), 0.5 * 0.01 * 32)
    assert DraftAcceptance().cost_s(Worker("b")) == KvUse().cost_s(Worker("b")) == 0


def test_a_long_prefix_draws_to_its_holder_but_not_past_its_slots() -> None:
    policy = ladr(Prefix())
    holder, other = Worker("holder", slots=4, pace_s=0.011), Worker("other", slots=4, pace_s=0.01)
    for worker in (holder, other):
        policy.changed(worker, Random(0))
    ask = Ask(prompt_tokens=6400, prefix=tuple(range(100)))
    policy.sent(holder, ask, 0.0)
    assert policy.pick([holder, other], ASK, Random(0), 0.0) is other
    assert policy.pick([holder, other], ask, Random(0), 0.0) is holder  # 6,400 tokens are 133 steps
    assert policy.pick([holder, other], Ask(prompt_tokens=64, prefix=(0, -1)), Random(0), 0.0) is other
    fill(policy, holder, 4)
    assert policy.pick([holder, other], ask, Random(0), 0.0) is other
    assert policy.pick([other], ask, Random(0), 0.0) is other  # the holder is no candidate


PROMPTS = st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2), max_size=5)), max_size=40)


@settings(max_examples=1000, deadline=None)
@given(PROMPTS)
def test_the_holder_of_a_prefix_is_the_last_one_that_got_it(prompts: list[tuple[int, list[int]]]) -> None:
    """The second one remembers whole prompts and compares them block by block."""
    prefix, fleet = Prefix(), [Worker(str(n), pace_s=0.1) for n in range(4)]
    told: list[tuple[int, list[int]]] = []
    for number, blocks in prompts:
        hashes = tuple(hash(tuple(blocks[: end + 1])) for end in range(len(blocks)))
        ask = Ask(prompt_tokens=64 * len(blocks), prefix=hashes)
        last = {}  # blocks from the beginning → the worker that got these last
        for worker, before in told:
            for end in range(len(before)):
                last[tuple(before[: end + 1])] = worker
        for worker in range(4):
            held = max((end for end in range(1, len(blocks) + 1) if last.get(tuple(blocks[:end])) == worker), default=0)
            assert math.isclose(prefix.ask_cost_s(fleet[worker], ask), -held * 64 * 0.1 / 48)
        prefix.sent(fleet[number], ask)
        told.append((number, blocks))


def test_a_session_stays_while_that_costs_little() -> None:
    policy = ladr(Session())
    last, other = Worker("last", pace_s=0.0102), Worker("other", pace_s=0.01)
    for worker in (last, other):
        policy.changed(worker, Random(0))
    ask = Ask(session="s")
    policy.sent(last, ask, 0.0)
    assert policy.pick([last, other], ask, Random(0), 0.0) is last
    fill(policy, last, 4)
    assert policy.pick([last, other], ask, Random(0), 0.0) is other


def test_prefixes_and_sessions_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dimensions, "MAX_BLOCKS", 10)
    monkeypatch.setattr(dimensions, "MAX_SESSIONS", 10)
    prefix, session, worker = Prefix(), Session(), Worker("a", pace_s=0.01)
    for number in range(100):
        ask = Ask(session=str(number), prefix=(number,), prompt_tokens=64)
        prefix.sent(worker, ask)
        session.sent(worker, ask)
    old, new = (Ask(session=str(n), prefix=(n,), prompt_tokens=64) for n in (89, 90))
    assert not list(prefix.concerns(old))
    assert not list(session.concerns(old))
    assert list(prefix.concerns(new)) == list(session.concerns(new)) == [worker]


class SpeechStage(Dimension):
    """A new stage, all of it: workers with an even name hear worse."""

    def cost_s(self, candidate: Candidate) -> float:
        return 1.0 if candidate.worker_id in "02468" else 0.0


def test_a_new_dimension_is_one_class_and_one_line_of_settings() -> None:
    settings = RouterSettings.model_validate({"dimensions": f"kv,{__name__}:SpeechStage", "noise": 0})
    policy, fleet = create(settings), [Worker(str(n), pace_s=0.01) for n in range(4)]
    for worker in fleet:
        policy.changed(worker, Random(0))
    chosen = policy.pick(fleet, ASK, Random(0), 0.0)
    assert chosen is not None
    assert chosen.worker_id == "1"


def test_an_unknown_dimension_is_refused_with_those_that_there_are() -> None:
    for name in ("kvv", "no.such.module:Thing", "ladr.routing.dimensions:Nothing"):
        with pytest.raises(ValueError, match="kv, stages, edge, draft, prefix, session"):
            make([name])


def test_the_settings_know_every_dimension_and_no_other() -> None:
    every = tuple(dimensions.DIMENSIONS)
    assert RouterSettings.model_validate({"dimensions": every}).dimensions == every
    with pytest.raises(ValueError, match="dimensions"):
        RouterSettings.model_validate({"dimensions": "kvv"})
